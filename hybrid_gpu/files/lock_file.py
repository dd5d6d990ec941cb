"""One lock on one small file, as the operating system has it.

The system takes a lock back when its process dies. A child that was forked from the process does
not hold it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path

from hybrid_gpu.errors import IndexFileError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Windows locks bytes of a file: one that is never written.
_LOCKED_BYTE = 1 << 30
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)

# Descriptors that this process has locked, or is about to lock.
_held: set[int] = set()


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file that only its own folder has; a link is not followed.

    Raises
    ------
    IndexFileError
        If the path leads to anything but a plain file, or the file has a second name (a hard link).
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
        waiting = getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, flags | _NO_FOLLOW | _BINARY | waiting, 0o666)
    except OSError as fault:
        if fault.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise IndexFileError(f"{path}: not a plain file. Nothing was changed.") from fault
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (not _NO_FOLLOW and path.is_symlink()):
        os.close(descriptor)
        raise IndexFileError(f"{path}: not a plain file. Nothing was changed.")
    if status.st_nlink > 1:
        # Two folders would take each other's marks off the list.
        os.close(descriptor)
        raise IndexFileError(
            f"{path}: a hard link that another folder has too, as cp -l makes it. Nothing was "
            "changed. Remove it here, or copy the folder without links."
        )
    return descriptor


def hold(descriptor: int) -> None:
    """Note that a descriptor is about to be locked, so that no forked child keeps it open."""
    _held.add(descriptor)


def is_held(descriptor: int) -> bool:
    """Whether this process locked a descriptor; False in a child that was forked from it."""
    return descriptor in _held


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this path; another process may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def release(descriptor: int) -> None:
    """Unlock a descriptor and close it."""
    if descriptor not in _held:  # a fork of the process that has the lock
        return
    _held.discard(descriptor)
    # close() alone would not do: a child that was forked meanwhile may have the file open.
    with contextlib.suppress(OSError):
        _unlock(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """Close the parent's files in a forked child; their locks would outlive the parent."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

if sys.platform == "win32":  # follows the documentation; untested

    def try_lock(descriptor: int) -> bool:
        """Lock an open file for this descriptor alone; False if another one has the lock."""
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as fault:
            if fault.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def try_lock(descriptor: int) -> bool:
        """Lock an open file for this descriptor alone; False if another one has the lock."""
        # flock, not lockf: it keeps threads of one process apart too.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
