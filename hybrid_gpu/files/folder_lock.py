"""A folder that one writer at a time fills, and that knows which of its files are its own.

The folder holds one small file more, ``.hybrid-gpu.lock``. Whoever writes holds a lock on it, which
the system takes back when the process dies. The file is empty, or lists *marks*: eight hex digits
that stand in the names of all files of one save. A mark is on the list, and the list on disk,
before the first file with it is made and before the first one is thrown away. So what a killed
writer leaves behind is known for certain, and the next one removes it; a file that is neither
named by the folder's own header nor marked so is somebody else's, and never touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.writing import sync_folder

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".hybrid-gpu.lock"
NamedFiles: TypeAlias = Callable[[Path], frozenset[str]]
"""The files that a folder's own header names, itself among them; an error if it is not ours."""

# Exactly the names that this library gives to arrays and to headers on their way: a copy that the
# user made of one (``ids.backup.<mark>.npy``) is his.
_ARRAYS = (
    "(?:adjacency|basis_(?:vectors|transposed|spread|coupling))_(?:data|indices|indptr)"
    "|degrees|order|components|descriptors|neighbor_(?:ids|similarities)|column_(?:ids|scores)"
    "|basis_(?:eigenvalues|vectors|scales|residuals|gram|coupling|alone)|ids|scores"
    "|section_[a-z_]+"  # whatever a later version adds
)
_MARK = "([0-9a-f]{8})"
_MARKED = re.compile(rf"(?:{_ARRAYS})\.{_MARK}\.npy|(?:header|progress)\.json\.{_MARK}\.tmp")
_LIST = re.compile(rb"[0-9a-f\n\0]*")  # A power cut can leave zeros in the place of a mark.
_LONGEST_LIST = 1 << 20
# What desktops put into any folder, and what NFS makes of a file that was removed while in use.
_OF_THE_SYSTEM = re.compile(r"\.DS_Store|Thumbs\.db|desktop\.ini|\.nfs[0-9a-f]+")
_SECONDS_BETWEEN_TRIES = 0.02
# A folder that others dissolve again and again is made so many times.
_MOST_TRIES = 100
# Windows locks bytes of a file: one that is never written.
_LOCKED_BYTE = 1 << 30
# Faults of a path, and not of the disk that it leads to.
_NO_PATH = (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)

# Descriptors that are, or shall be, locked by this process.
_held: set[int] = set()


class OwnFolder:
    """A folder that this writer alone may change, until the ``with`` block ends.

    ``is_new`` is whether it was made for this writer, and so is not the user's.
    """

    def __init__(self, path: Path, named: NamedFiles, descriptor: int, is_new: bool) -> None:
        self.path = path
        self.is_new = is_new
        self._named = named
        self._descriptor = descriptor

    def begin(self) -> str:
        """A new mark for the files to come, after what killed writers left is removed.

        Files that the header names now are listed too, for the time when it no longer does.
        """
        self.sweep()
        names = os.listdir(self.path)
        mark = secrets.token_hex(4)
        while any(mark in name for name in names):
            mark = secrets.token_hex(4)
        self.list_marks(mark, *_marks_of(self._named(self.path)))
        return mark

    def list_marks(self, *marks: str) -> None:
        """Put marks on the list, on disk."""
        content = "".join(f"{mark}\n" for mark in marks).encode()
        # On a line of its own, whatever a torn write left at the end.
        os.lseek(self._descriptor, 0, os.SEEK_END)
        written = os.write(self._descriptor, b"\n" + content)
        if written != len(content) + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / LOCK))
        os.fsync(self._descriptor)
        sync_folder(self.path)

    def sweep(self) -> None:
        """Remove every file with a listed mark that the header does not name."""
        marks, named = _listed(self.path), self._named(self.path)
        left = False
        for name in os.listdir(self.path):
            if name in named or not _marks_of([name]) & marks:
                continue
            try:
                os.unlink(self.path / name)
            except OSError:  # Windows removes no file that a reader has mapped: the next save will.
                left = True
        if marks and not left:
            # The list must not be shorter on disk than the names.
            sync_folder(self.path)
            os.ftruncate(self._descriptor, 0)

    def dissolve(self, *, keep_folder: bool = False) -> None:
        """Remove the files that the header names, and the folder if nobody else put anything in.

        ``keep_folder`` is for a folder that somebody else made: it is left empty.
        """
        self.sweep()
        named = self._named(self.path)
        self.list_marks(*_marks_of(named))
        # The header first: without it, the others are leftovers with a listed mark.
        for name in sorted(named, key=lambda name: bool(_marks_of([name]))):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty; or Windows, where the lock file is in use
            if set(os.listdir(self.path)) == {LOCK}:
                os.unlink(self.path / LOCK)
                if not keep_folder:
                    self.path.rmdir()

    def withdraw(self) -> None:
        """Remove the lock file, unless the folder holds files of ours."""
        # Under the lock, as when a folder is dissolved: whoever waits for it looks again.
        if self._descriptor not in _held or not _is_at(self._descriptor, self.path / LOCK):
            return
        if not self._named(self.path):
            self.sweep()
            if not _listed(self.path):
                os.unlink(self.path / LOCK)


@contextmanager
def own_folder(path: Path, named: NamedFiles, *, patience: float) -> Iterator[OwnFolder]:
    """Lock a folder for writing; make it if it is not there.

    What was made for that goes again if the ``with`` block fails before it has put anything there.

    Parameters
    ----------
    named
        Tells which files the folder's own header names.
    patience
        Seconds to wait for another writer.

    Raises
    ------
    IndexFileError
        If the folder holds anything that is not its own, if another process is still writing to it
        after that time, or if its file system has no locks. Nothing has changed then.
    """
    if not os.path.exists(path / LOCK):  # not even a lock file goes into somebody else's folder
        refuse_strangers(path, named)
    made = _Made(path)
    try:
        descriptor = _locked(path, made, time.monotonic() + patience)
    except BaseException:
        made.remove_folders()
        raise
    own = OwnFolder(path, named, descriptor, is_new=path in made.folders)
    try:
        refuse_strangers(path, named)
        yield own
    except BaseException:
        made.take_back(own)
        raise
    finally:
        _release(descriptor)


class _Made:
    """What one call made on its way to a lock, to be removed if nothing comes of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folders: list[Path] = []
        self._lock = False

    def open_lock(self) -> int:
        """A descriptor of the lock file, made if it is not there, as are the folders above it."""
        lock = self._path / LOCK
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                self._make_folders()
                try:
                    descriptor = _open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                except FileExistsError:
                    return _open(lock, os.O_RDWR)
                self._lock = True
                return descriptor
            except FileNotFoundError as fault:
                # Another process has just dissolved the folder; or, as in /proc, none can be made.
                if not tries_left:
                    raise unreachable(self._path, fault) from fault
            except OSError as fault:
                if fault.errno in _NO_PATH:
                    raise unreachable(self._path, fault) from fault
                raise
        raise AssertionError("the last try returns or raises")

    def _make_folders(self) -> None:
        missing, folder = [], self._path
        while not os.path.exists(folder):
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            try:
                folder.mkdir()
            except FileExistsError:
                if not folder.is_dir():
                    raise
                continue
            self.folders.append(folder)
            sync_folder(folder.parent)

    def take_back(self, own: OwnFolder) -> None:
        """Remove the lock file, if it is ours and nothing needs it, and then the folders."""
        if self._lock:
            with contextlib.suppress(OSError, IndexFileError):
                own.withdraw()
        self.remove_folders()

    def remove_lock(self) -> None:
        """Remove a lock file that nobody can have locked, and nobody has written to."""
        with contextlib.suppress(OSError):
            if self._lock and not os.path.getsize(self._path / LOCK):
                os.unlink(self._path / LOCK)

    def remove_folders(self) -> None:
        """Remove the folders, as far as they are empty."""
        while self.folders:
            with contextlib.suppress(OSError):
                self.folders.pop().rmdir()


def is_folder(path: Path) -> bool:
    """Whether a folder is there; ``IndexFileError`` if something else is, or nobody may look."""
    # One look at what is there: between two, another process may make or dissolve the folder.
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise IndexFileError(f"{path}: a link that leads nowhere, not a folder.") from None
        return False
    except (OSError, ValueError) as fault:
        raise unreachable(path, fault) from fault
    if not stat.S_ISDIR(mode):
        what = "a file" if stat.S_ISREG(mode) else "not a folder"
        raise IndexFileError(f"{path}: an index is a folder, and this is {what}.")
    return True


def unreachable(path: Path, fault: OSError | ValueError) -> IndexFileError:
    """The error for a path that leads to no folder that this process may look at."""
    if isinstance(fault, OSError):
        return IndexFileError(f"{path}: cannot be reached ({fault.strerror}).")
    return IndexFileError(f"{str(path)!r}: not a path ({fault}).")  # with a NUL, say: not as it is


def refuse_strangers(path: Path, named: NamedFiles) -> None:
    """Raise ``IndexFileError`` unless a folder is missing, empty, or holds its own files only."""
    if not is_folder(path):
        return
    try:
        strangers = _strangers(path, named)
        # While another process saves, its names come and go: a stranger is what stays.
        strangers = strangers and strangers & _strangers(path, named)
    except FileNotFoundError:  # dissolved meanwhile
        return
    except OSError as fault:
        raise unreachable(path, fault) from fault
    if strangers:
        raise IndexFileError(
            f"{path}: the folder holds other files ({min(strangers)}); choose an empty or new one, "
            "or move them away. Nothing was changed."
        )


def _strangers(path: Path, named: NamedFiles) -> set[str]:
    # In this order: a writer lists its marks before it makes files, and files before the header.
    present = set(os.listdir(path))
    marks = _listed(path) if LOCK in present else set()
    own = named(path) | {LOCK}
    return {
        name
        for name in present - own
        if not _OF_THE_SYSTEM.fullmatch(name) and not _marks_of([name]) & marks
    }


def _marks_of(names: Iterable[str]) -> set[str]:
    found = (_MARKED.fullmatch(name) for name in names)
    return {one[1] or one[2] for one in found if one}


def _listed(path: Path) -> set[str]:
    """The marks on the list."""
    try:
        descriptor = _open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:  # another process has just dissolved the folder
        return set()
    try:
        content = os.read(descriptor, _LONGEST_LIST + 1)
    finally:
        os.close(descriptor)
    if len(content) > _LONGEST_LIST or not _LIST.fullmatch(content):
        raise IndexFileError(
            f"{path / LOCK}: not a lock file of this library. Choose another folder, or move the "
            "file away. Nothing was changed."
        )
    lines = content.decode("ascii").split("\n")
    return {line for line in lines if len(line) == 8 and "\0" not in line}


def _open(path: Path, flags: int) -> int:
    """A descriptor of a plain file; a link is not followed."""
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


def _locked(path: Path, made: _Made, deadline: float) -> int:
    """A descriptor of the folder's lock file, with the lock on it."""
    while True:
        descriptor = made.open_lock()
        _held.add(descriptor)
        try:
            if _try_lock(descriptor) and _is_at(descriptor, path / LOCK):
                return descriptor
        except OSError as fault:
            _release(descriptor)
            made.remove_lock()
            raise IndexFileError(
                f"{path}: the file system has no locks ({fault.strerror}), so that two writers "
                "could not be told apart. Save to a local disk and copy the folder."
            ) from fault
        except BaseException:
            _release(descriptor)
            raise
        _release(descriptor)
        if time.monotonic() >= deadline:
            raise IndexFileError(
                f"{path}: another process or thread is writing to the folder. Try again when it is "
                "done, or choose another folder."
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the file is still the one of that name, and not one that was removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _release(descriptor: int) -> None:
    if descriptor not in _held:  # a fork of the process that has the lock
        return
    _held.discard(descriptor)
    # Not left to close(): a child that was forked meanwhile may still have the file open.
    with contextlib.suppress(OSError):
        _unlock(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """In a forked child: let go of the parent's files, or their locks would outlive the parent."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

if sys.platform == "win32":  # follows the documentation; untested

    def _try_lock(descriptor: int) -> bool:
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

    def _try_lock(descriptor: int) -> bool:
        # flock, not lockf: it keeps threads of one process apart too.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
