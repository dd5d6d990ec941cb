"""Writing files so that nobody ever sees half of one, and so that they outlast a power cut."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import BinaryIO

_ZEROS = bytes(1 << 20)


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write some files, none of which is ever seen half-written.

    All of them are written under temporary names first: if that fails, nothing has changed.
    """
    # Not longer than need be: the name of a file may be as long as names can be.
    temporary = {path: path.with_name(f".{secrets.token_hex(4)}{path.suffix}") for path in contents}
    try:
        for path, content in contents.items():
            temporary[path].write_bytes(content)
        for path, name in temporary.items():
            os.replace(name, path)
    finally:
        for name in temporary.values():
            name.unlink(missing_ok=True)


def write_synced(path: Path, content: bytes) -> None:
    """Write a small new file and wait until it is on disk; what had its name is removed."""
    # Opened for writing, a link that somebody planted would be followed.
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        sync_file(file)


def sync_file(file: BinaryIO) -> None:
    """Wait until what was written to an open file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: what was made, renamed and removed in it."""
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


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a file over another one in one step, and wait until that is on disk."""
    for attempt in range(50):
        try:
            os.replace(temporary, path)
            break
        except PermissionError:
            # Windows refuses while a reader has the old file open, which is a moment (untested).
            if os.name != "nt" or attempt == 49:
                raise
            time.sleep(0.02)
    sync_folder(path.parent)


def reserve_space(file: BinaryIO, size: int) -> None:
    """Make an open file ``size`` bytes long, or fail now: not while it is being filled.

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
    """Write all of some bytes to a file without a buffer, which may take them in several parts."""
    while content:
        content = content[file.write(content) or 0 :]
