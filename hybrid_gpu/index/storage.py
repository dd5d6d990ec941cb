"""Index files: folders, headers, versions.

An index is a folder. Each array is a plain ``.npy`` file that ``numpy.load`` reads without pickle;
``header.json`` names the files, their dtypes, shapes and checksums, and the index's parameters.
Array files of every save have names of their own, and the header is put in place last, in one
step: a crash at any moment leaves the folder at the old index or at the new one. ``folder_lock``
keeps a second writer out, and everything that is not the index's own.

Version 3, which is written, has everything in the graph's memory order, and *sections* beside the
index proper: parts that a reader may not know. One that is not required is skipped by a reader
that does not know it, so that later versions of the library can add to the format without breaking
it for earlier ones. Versions 1 and 2 are read: they number descriptors, lists and columns by the
user's ids, and version 1 has no dtypes and shapes in the header.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hybrid_gpu.backends import Backend, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.folder_lock import LOCK, is_folder, own_folder, refuse_strangers, unreachable
from hybrid_gpu.files.stored_arrays import (
    checksum,
    file_checksum,
    mapped_array,
    open_plain_file,
    read_head,
    read_json,
    write_array,
)
from hybrid_gpu.files.writing import replacing, sync_folder
from hybrid_gpu.index.file_checks import check_arrays, check_parameters, check_section
from hybrid_gpu.index.packing import (
    INVERSE,
    KEYS,
    WALK,
    Packed,
    Section,
    in_memory_order,
    packed,
    unpacked,
)
from hybrid_gpu.ranking.state import IndexState

FORMAT = "hybrid-gpu index"
VERSION = 3
HEADER = "header.json"

_SECTIONS = (INVERSE, WALK, KEYS)
# Seconds that a save waits for another one to the same folder: longer than any index takes.
_PATIENCE = 600.0
# A reader that was overtaken by a save begins again. Each time, a whole save went by.
_MOST_TRIES = 1000
_CHECKSUM = re.compile(r"[0-9a-f]{8}")
_SECTION = re.compile(r"[a-z][a-z_]{0,40}")


def save_state(state: IndexState, path: str | os.PathLike[str]) -> None:
    """Write an index to the folder ``path``, replacing an index that is there.

    While another process or thread saves to the same folder, this waits, for ten minutes at most.

    Raises
    ------
    IndexFileError
        If ``path`` is a file, or a folder with anything in it that its own header does not name,
        or another process is still writing to it. Nothing has changed then.
    OSError
        If the disk is full or cannot be written. The index that was there is still there.
    """
    # Once: with a relative path, a change of the working directory would lead elsewhere.
    folder = Path(path).absolute()
    if state.local:
        # Who loads the index shall not wait for it at the first search, each time.
        state.local_problem(state.alpha)
    with own_folder(folder, _named_files, patience=_PATIENCE) as own:
        mark = own.begin()
        try:
            _write(packed(state), folder, mark)
        finally:
            # Whatever happened, the header tells which files are in use. Open maps of the others
            # stay valid.
            own.sweep()


def _write(parts: Packed, folder: Path, mark: str) -> None:
    """Write all arrays under names with a mark, then the header that makes them the index."""

    def written(arrays: Mapping[str, HostArray], prefix: str = "") -> dict[str, Any]:
        entries = {}
        for name, array in arrays.items():
            file = f"{prefix}{name}.{mark}.npy"
            entries[name] = {"file": file, **write_array(folder / file, array)}
        return entries

    header = {
        "format": FORMAT,
        "version": VERSION,
        "parameters": parts.parameters,
        "arrays": written(parts.arrays),
        "sections": {
            name: {
                "required": section.required,
                "parameters": section.parameters,
                "arrays": written(section.arrays, _prefix(name)),
            }
            for name, section in parts.sections.items()
        },
    }
    header["checksum"] = _header_checksum(header)
    # What could not be read again must not take the place of what can.
    content = json.dumps(header, indent=2, allow_nan=False)
    _check_header(json.loads(content), folder)
    # The arrays' names are on disk before the header that names them, and the header before the
    # old arrays go.
    sync_folder(folder)
    temporary = folder / f"{HEADER}.{mark}.tmp"
    with replacing(folder / HEADER, temporary=temporary, sync=True) as file:
        file.write(content.encode())


def load_state(path: str | os.PathLike[str], verify: bool, backend: str | Backend) -> IndexState:
    """Open an index; see ``load_index``."""
    device = select_backend(backend)
    # Once: with a relative path, a change of the working directory would lead elsewhere.
    folder = Path(path).absolute()
    header = read_header(folder)
    for _ in range(_MOST_TRIES):
        try:
            parts = _read_parts(folder, header, verify)
            break
        except IndexFileError:
            # Files go when another process has put a new header in place.
            before, header = header, read_header(folder)
            if header == before:
                raise
    else:
        raise IndexFileError(
            f"{folder}: another process saves to it without a pause. Load it when that is done."
        )
    check_arrays(parts.arrays, parts.parameters, verify, _faults(folder, header["arrays"]))
    for name, section in parts.sections.items():
        entries = header["sections"][name]["arrays"]
        check_section(name, section, parts, verify, _faults(folder, entries))
    if header["version"] < 3:
        parts = Packed(in_memory_order(parts.arrays), parts.parameters)
    with device.annotate("load"):
        return unpacked(parts, device)


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path that an index cannot be saved to, before hours of building it."""
    refuse_strangers(Path(path).absolute(), _named_files)


def has_index(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has the header of an index, as one whose first save was killed has not."""
    return os.path.lexists(Path(path) / HEADER)


def is_ours(path: Path) -> bool:
    """Whether a folder is one that this library writes to, and that is for its own files only."""
    if os.path.lexists(path / LOCK):
        return True
    try:  # a copy without hidden files has no lock
        return has_index(path) and bool(read_header(path))
    except IndexFileError:
        return False


def remove_index(path: str | os.PathLike[str]) -> None:
    """Remove an index and its folder.

    Raises
    ------
    IndexFileError
        If the folder holds anything else, or somebody is writing to it. Nothing has changed then.
    """
    if os.path.lexists(path):
        with own_folder(Path(path).absolute(), _named_files, patience=0.0) as own:
            own.dissolve()


def _named_files(folder: Path) -> frozenset[str]:
    """The files that the folder's header names, and the header; none if there is no header."""
    if not os.path.lexists(folder / HEADER):
        return frozenset()
    entries = _entries(read_header(folder))
    return frozenset({HEADER, *(entry["file"] for entry in entries)})


def _entries(header: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a header says of each of its files, those of sections included."""
    yield from header["arrays"].values()
    for section in header.get("sections", {}).values():
        yield from section["arrays"].values()


def read_header(folder: Path) -> dict[str, Any]:
    """The header of an index, after every check that needs no array."""
    path = folder / HEADER
    if not is_folder(folder):
        raise IndexFileError(f"{folder}: no such index.")
    try:
        os.lstat(path)
    except FileNotFoundError as fault:
        raise IndexFileError(
            f"{folder}: not an index, or one whose first save was interrupted: it has no {HEADER}."
        ) from fault
    except OSError as fault:
        raise unreachable(path, fault) from fault
    header = read_json(path)
    _check_header(header, folder)
    return header


def _check_header(header: Mapping[str, Any], folder: Path) -> None:
    """Refuse what is no header of this library, or not one that this version can read."""
    path = folder / HEADER
    if header.get("format") != FORMAT:
        raise IndexFileError(f"{path}: not a header of this library.")
    version = header.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= VERSION:
        raise IndexFileError(
            f"{path}: format version {version!r}, and this version of hybrid-gpu reads up to "
            f"{VERSION}. Upgrade: git pull, then pip install . in the clone."
        )
    if header.get("checksum") != _header_checksum(header):
        raise IndexFileError(f"{path}: damaged, its checksum does not match.")
    sections = header.get("sections", {})
    if (
        not _are_arrays(header.get("arrays"), "", version)
        or not isinstance(sections, dict)
        or (sections and version < 3)
        or not all(_is_section(name, section) for name, section in sections.items())
    ):
        raise IndexFileError(f"{path}: damaged, its list of arrays is not one of this library.")
    for name, section in sections.items():
        if section["required"] and name not in _SECTIONS:
            raise IndexFileError(
                f"{path}: has a part {name!r} that this version of hybrid-gpu does not know. "
                "Upgrade: git pull, then pip install . in the clone."
            )
    check_parameters(header.get("parameters"), _faults(folder, header["arrays"]))


def _prefix(section: str) -> str:
    """What the names of a section's files begin with, so that any version knows them for ours."""
    return f"section_{section}_"


def _is_section(name: str, section: Any) -> bool:
    return (
        bool(_SECTION.fullmatch(name))
        and isinstance(section, dict)
        and isinstance(section.get("required"), bool)
        and isinstance(section.get("parameters"), dict)
        and _are_arrays(section.get("arrays"), _prefix(name), 3)
    )


def _are_arrays(arrays: Any, prefix: str, version: int) -> bool:
    """Whether a header lists arrays as a save does."""
    return isinstance(arrays, dict) and all(
        _is_entry(f"{prefix}{name}", entry, version) for name, entry in arrays.items()
    )


def _is_entry(name: str, entry: Any, version: int) -> bool:
    """Whether an entry of the header names a file as a save does, in this folder and no other."""
    if not isinstance(entry, dict):
        return False
    pattern = re.escape(name) + r"\.[0-9a-f]{8}\.npy"
    named = re.fullmatch("[a-z_]+", name) and re.fullmatch(pattern, str(entry.get("file")))
    complete = version == 1 or ("dtype" in entry and "shape" in entry)
    return bool(named and complete and _CHECKSUM.fullmatch(str(entry.get("checksum"))))


def _header_checksum(header: Mapping[str, Any]) -> str:
    # Version 1 left its format and version out.
    first = () if header["version"] == 1 else ("format", "version")
    last = () if header["version"] < 3 else ("sections",)
    covered = (*first, "parameters", "arrays", *last)
    body = {part: header.get(part) for part in covered}
    return checksum(json.dumps(body, sort_keys=True).encode())


def _read_parts(folder: Path, header: Mapping[str, Any], verify: bool) -> Packed:
    """All arrays, mapped; opened before any is read, because an open file cannot go away."""
    known = {name: part for name, part in header.get("sections", {}).items() if name in _SECTIONS}
    with contextlib.ExitStack() as stack:
        files = {
            entry["file"]: stack.enter_context(open_plain_file(folder / entry["file"]))
            for entries in (header["arrays"], *(part["arrays"] for part in known.values()))
            for entry in entries.values()
        }

        def read(entries: Mapping[str, Any]) -> dict[str, HostArray]:
            return {
                name: _read_array(files[entry["file"]], folder / entry["file"], entry, verify)
                for name, entry in entries.items()
            }

        sections = {
            name: Section(read(part["arrays"]), part["parameters"], part["required"])
            for name, part in known.items()
        }
        return Packed(read(header["arrays"]), header["parameters"], sections)


def _read_array(file: Any, path: Path, entry: Mapping[str, Any], verify: bool) -> HostArray:
    """One array that is what the header says of it."""
    size = os.fstat(file.fileno()).st_size
    if size != entry.get("bytes"):
        raise IndexFileError(f"{path}: {size} bytes where {entry.get('bytes')!r} were written.")
    head = read_head(file, path)
    expected = (entry.get("dtype", head.dtype), entry.get("shape", list(head.shape)))
    if expected != (head.dtype, list(head.shape)):
        raise IndexFileError(
            f"{path}: damaged, {head.dtype} of shape {head.shape} where the header says "
            f"{expected[0]!r} of shape {expected[1]!r}."
        )
    if verify and file_checksum(file, path, head.offset, size) != entry["checksum"]:
        raise IndexFileError(f"{path}: damaged, its checksum does not match.")
    try:
        return mapped_array(file, head)
    except OSError as fault:  # too many maps or files of this process
        raise IndexFileError(f"{path}: cannot be mapped ({fault.strerror}).") from fault


def _faults(folder: Path, entries: Mapping[str, Any]) -> Any:
    def fault(name: str | None, wrong: str) -> IndexFileError:
        file = HEADER if name is None else entries[name]["file"]
        return IndexFileError(f"{folder / file}: {wrong}.")

    return fault
