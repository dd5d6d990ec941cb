"""A folder that one writer at a time fills, and that knows which of its files are its own.

The folder holds one small file more, ``.hybrid-gpu.lock``. A writer holds a lock on it while it
writes. The file is empty, or lists *marks*: a mark is eight hex digits that stand in the names of
all files of one save. A mark is put on the list, and the list on disk, before the first file with
that mark is made, and before the first one is removed. So the files that a killed writer leaves
behind are known for certain, and the next writer removes them. A file that the folder's own header
does not name, and that has no listed mark, is somebody else's and is never touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files import lock_file
from hybrid_gpu.files.writing import sync_folder

LOCK = ".hybrid-gpu.lock"
NamedFiles: TypeAlias = Callable[[Path], frozenset[str]]
"""Names of the files that a folder's own header lists, and of the header; an error if not ours."""

# Exactly the names that this library gives to arrays and to temporary headers: a copy that the user
# made of one (``ids.backup.<mark>.npy``) belongs to the user.
_ARRAYS = (
    "(?:adjacency|basis_(?:vectors|transposed|spread|coupling))_(?:data|indices|indptr)"
    "|degrees|order|components|descriptors|neighbor_(?:ids|similarities)|column_(?:ids|scores)"
    "|basis_(?:eigenvalues|vectors|scales|residuals|gram|coupling|alone)|ids|scores"
    "|section_[a-z_]+"  # whatever a later version adds
)
_MARK = "([0-9a-f]{8})"
_STATES = r"(?:header\.json|progress\.json|manifest\.jsonl)"
_MARKED = re.compile(rf"(?:{_ARRAYS})\.{_MARK}\.npy|{_STATES}\.{_MARK}\.tmp")
_LIST = re.compile(rb"[0-9a-f\n\0]*")  # A power cut can leave zeros in the place of a mark.
_LONGEST_LIST = 1 << 20
# Files that desktops put into any folder, and NFS's names of files that were removed while in use.
_OF_THE_SYSTEM = re.compile(r"\.DS_Store|Thumbs\.db|desktop\.ini|\.nfs[0-9a-f]+")
_SECONDS_BETWEEN_TRIES = 0.02
# How often a folder is made again if other processes keep removing it.
_MOST_TRIES = 100
# Faults of a path, and not of the disk that it leads to.
_NO_PATH = (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class OwnFolder:
    """A folder that this writer alone may change, until the ``with`` block ends.

    Attributes
    ----------
    path : Path
    is_new : bool
        Whether the folder was made for this writer; otherwise it is the user's.
    """

    def __init__(self, path: Path, named: NamedFiles, descriptor: int, is_new: bool) -> None:
        self.path = path
        self.is_new = is_new
        self._named = named
        self._descriptor = descriptor

    def begin(self) -> str:
        """Remove what killed writers left, and list a new mark for the files of this save.

        The marks of the files that the header names now are listed too: they become leftovers when
        the header names other files.
        """
        self.sweep()
        names = os.listdir(self.path)
        mark = secrets.token_hex(4)
        while any(mark in name for name in names):
            mark = secrets.token_hex(4)
        self.list_marks(mark, *_marks_of(self._named(self.path)))
        return mark

    def list_marks(self, *marks: str) -> None:
        """Add marks to the list, and wait until it is on disk."""
        content = "".join(f"{mark}\n" for mark in marks).encode()
        # Starts with a new line: an interrupted write may have left half a mark at the end.
        os.lseek(self._descriptor, 0, os.SEEK_END)
        written = os.write(self._descriptor, b"\n" + content)
        if written != len(content) + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / LOCK))
        os.fsync(self._descriptor)
        sync_folder(self.path)

    def sweep(self) -> None:
        """Remove every file with a listed mark that the header does not name."""
        marks, named = _listed(self.path), self._named(self.path)
        all_removed = True
        for name in os.listdir(self.path):
            if name in named or not _marks_of([name]) & marks:
                continue
            try:
                os.unlink(self.path / name)
            except OSError:  # Windows removes no file that a reader has mapped: the next save will.
                all_removed = False
        if marks and all_removed:
            # The removals must be on disk before the marks leave the list.
            sync_folder(self.path)
            os.ftruncate(self._descriptor, 0)

    def dissolve(self, *, keep_folder: bool = False) -> None:
        """Remove the files that the header names, and the folder if it is empty then.

        Parameters
        ----------
        keep_folder
            Leave the empty folder: for one that the user made.
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
        # Only under the lock: a writer that waits for it checks that its lock file is still there.
        descriptor, lock = self._descriptor, self.path / LOCK
        if not lock_file.is_held(descriptor) or not lock_file.is_at(descriptor, lock):
            return
        if not self._named(self.path):
            self.sweep()
            if not _listed(self.path):
                os.unlink(lock)


@contextmanager
def own_folder(path: Path, named: NamedFiles, *, patience: float) -> Iterator[OwnFolder]:
    """Lock a folder for writing; make it if it is not there.

    If the ``with`` block fails before it has put anything there, what was made is removed again.

    Parameters
    ----------
    named
        Gives the names of the files that the folder's own header lists.
    patience
        Seconds to wait for another writer.

    Raises
    ------
    IndexFileError
        If the folder holds files of somebody else, if another process is still writing to it after
        that time, or if its file system has no locks. Nothing has changed then.
    """
    if not os.path.exists(path / LOCK):  # not even a lock file goes into somebody else's folder
        refuse_strangers(path, named)
    creation = _Creation(path)
    try:
        descriptor = _locked(path, creation, time.monotonic() + patience)
    except BaseException:
        creation.remove_folders()
        raise
    own = OwnFolder(path, named, descriptor, is_new=path in creation.folders)
    try:
        refuse_strangers(path, named)
        yield own
    except BaseException:
        creation.take_back(own)
        raise
    finally:
        lock_file.release(descriptor)


class _Creation:
    """Folders and lock file that one call made, to be removed if the call fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folders: list[Path] = []
        self._lock = False

    def open_lock(self) -> int:
        """A descriptor of the lock file; it and the folders above it are made if missing."""
        lock = self._path / LOCK
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                self._make_folders()
                try:
                    descriptor = lock_file.open_plain(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                except FileExistsError:
                    return lock_file.open_plain(lock, os.O_RDWR)
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
        """Make the folders of the path that are missing, and remember them."""
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
        """Remove the lock file, if this call made it and nothing needs it, then the folders."""
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
        """Remove the folders that this call made, unless something is in them."""
        while self.folders:
            with contextlib.suppress(OSError):
                self.folders.pop().rmdir()


def is_folder(path: Path) -> bool:
    """Whether a folder is there; ``IndexFileError`` if something else is, or nobody may look."""
    # One look only: between two, another process may make or remove the folder.
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
        # While another process saves, its files come and go: a stranger is seen twice.
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
    """Names in a folder that are neither its own, nor marked, nor the system's."""
    # In this order: a writer lists its marks, then makes its files, and then the header.
    present = set(os.listdir(path))
    marks = _listed(path) if LOCK in present else set()
    own = named(path) | {LOCK}
    return {
        name
        for name in present - own
        if not _OF_THE_SYSTEM.fullmatch(name) and not _marks_of([name]) & marks
    }


def _marks_of(names: Iterable[str]) -> set[str]:
    """The marks that stand in file names of ours."""
    matches = (_MARKED.fullmatch(name) for name in names)
    return {match[1] or match[2] for match in matches if match}


def _listed(path: Path) -> set[str]:
    """The marks in the lock file of a folder."""
    try:
        descriptor = lock_file.open_plain(path / LOCK, os.O_RDONLY)
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


def _locked(path: Path, creation: _Creation, deadline: float) -> int:
    """A descriptor of the folder's lock file, locked; waits for it until the deadline.

    Raises
    ------
    IndexFileError
        If another writer still has the lock at the deadline, or the file system has no locks.
    """
    while True:
        descriptor = creation.open_lock()
        lock_file.hold(descriptor)
        try:
            if lock_file.try_lock(descriptor) and lock_file.is_at(descriptor, path / LOCK):
                return descriptor
        except OSError as fault:
            lock_file.release(descriptor)
            creation.remove_lock()
            raise IndexFileError(
                f"{path}: the file system has no locks ({fault.strerror}), so that two writers "
                "could not be told apart. Save to a local disk and copy the folder."
            ) from fault
        except BaseException:
            lock_file.release(descriptor)
            raise
        lock_file.release(descriptor)
        if time.monotonic() >= deadline:
            raise IndexFileError(
                f"{path}: another process or thread is writing to the folder. Try again when it is "
                "done, or choose another folder."
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)
