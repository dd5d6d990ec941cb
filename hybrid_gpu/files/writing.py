"""Writing files so that nobody ever sees half of one, and so that they outlast a power cut."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

_ZEROS = bytes(1 << 20)
_MOST_RENAMES = 50


@contextmanager
def replacing(
    path: Path, *, temporary: Path | None = None, sync: bool = False
) -> Iterator[BinaryIO]:
    """A new file to write to, which takes the place of ``path`` when the ``with`` block ends.

    Nobody ever sees half of it under that name. If the block fails, the new file is removed, and
    whatever had the name stays.

    Parameters
    ----------
    path
        The name that the file will have. What has this name is replaced, be it a link.
    temporary
        The name of the file until then, in the same folder; what has that name is removed. None:
        a random name.
    sync
        Wait until the content, and then the new name, are on disk, so that a power cut leaves the
        old file or the new one.
    """
    if temporary is None:
        # A short name: that of the file itself may be as long as names can be.
        temporary = path.with_name(f".{secrets.token_hex(4)}{path.suffix}")
    # Opened for writing, a link that somebody put there would be followed.
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:
            yield file
            if sync:
                sync_file(file)
        _rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        sync_folder(path.parent)


def take_name(temporary: Path, path: Path) -> None:
    """Give a finished file its name, if nobody has that name; wait until that is on disk.

    Raises
    ------
    FileExistsError
        If there is a file of that name. It stays as it is, and so does the finished one.
    """
    try:
        os.link(temporary, path)  # unlike a rename, it never takes the place of another file
    except FileExistsError:
        raise
    except OSError:  # a file system on which no file has two names
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        _rename(temporary, path)
    else:
        os.unlink(temporary)
    sync_folder(path.parent)


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write some files, none of which is ever seen half-written.

    All of them are written under temporary names first: if that fails, nothing has changed. Then
    they take their places, in the order of the mapping.
    """
    with ExitStack() as stack:
        # The stack ends its blocks in the reverse order of their beginning.
        for path, content in reversed(list(contents.items())):
            file = stack.enter_context(replacing(path))
            file.write(content)
            file.flush()


def sync_file(file: BinaryIO) -> None:
    """Wait until what was written to an open file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: files made, renamed and removed in it."""
    if os.name == "nt":  # Windows has no such call, and writes names through (untested there).
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as fault:
        # Some network file systems cannot sync a folder; they keep its names on their own.
        if fault.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def reserve_space(file: BinaryIO, size: int) -> None:
    """Make an open file ``size`` bytes long, so that a full disk shows now and not later.

    Raises
    ------
    OSError
        If the disk has no room for it.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as fault:
            if fault.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    for start in range(file.seek(0, os.SEEK_END), size, len(_ZEROS)):
        file.write(_ZEROS[: size - start])
    file.flush()


def write_all(file: BinaryIO | FileIO, content: memoryview) -> None:
    """Write all bytes to an unbuffered file, which may take fewer at a time."""
    while content:
        content = content[file.write(content) or 0 :]


def _rename(old: Path, new: Path) -> None:
    for attempt in range(_MOST_RENAMES):
        try:
            os.replace(old, new)
            return
        except PermissionError:
            # Windows refuses while a reader has the old file open, which is a moment (untested).
            if os.name != "nt" or attempt == _MOST_RENAMES - 1:
                raise
            time.sleep(0.02)
