"""Files that users bring: arrays, IDX files, and the right answers of a retrieval benchmark.

Nothing here runs code from a file; pickles are read by ``plain_pickle``.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.files.matlab_files import DamagedFileError, read_values, read_variables
from hybrid_gpu.files.plain_pickle import PlainArray, read_plain_pickle

_NPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK"
_MAT_MAGIC = b"MATLAB 5.0 MAT-file"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
# MATLAB puts 512 bytes of its own before the HDF5 signature of a v7.3 file.
_HEAD = 512 + len(_HDF5_MAGIC)
# zlib cannot pack closer than this.
_LARGEST_PACKING = 1040
# Of a .npy file: that of a plain array takes 118 bytes.
_LONGEST_HEADER = 10_000
_MAT_NUMBERS = {"double", "single", "logical"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
# The published ground truths are below 1 MB.
_LARGEST_GROUND_TRUTH = 64 * 2**20
_JUDGMENTS = ("easy", "hard", "junk")
_ARRAY_ENDINGS = (".npy", ".npz", ".mat")
_TRUTH_ENDINGS = (".json", ".pkl", ".mat")


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """The right answers of the revisited Oxford and Paris benchmarks.

    Attributes
    ----------
    images : tuple of str
        Names of the database pictures; an id is a position in this list.
    query_images : tuple of str
        Names of the query pictures.
    queries : tuple of mappings
        For each query, ``"easy"``, ``"hard"`` and ``"junk"``, each an int64 array of ids from 0.
    """

    images: tuple[str, ...]
    query_images: tuple[str, ...]
    queries: tuple[Mapping[str, NDArray[np.int64]], ...]

    def __repr__(self) -> str:
        return f"GroundTruth({len(self.images)} images, {len(self.queries)} queries)"


def load_array(path: str | os.PathLike[str], *, name: str | None = None) -> NDArray[Any]:
    """The array of a ``.npy`` file, mapped into memory, or of a ``.npz`` or ``.mat`` archive.

    Parameters
    ----------
    path
        Recognized by its content. Files of pickled Python objects are never opened. ``.mat`` files
        are those of MATLAB's ``save -v7`` or older (version 5); of their variables only matrices of
        real numbers are read, and vectors are matrices of one row or column, as in MATLAB.
    name
        The array to take from an archive of several; an archive of one array needs no name.

    Raises
    ------
    ValueError
        If there is no such file, or it is not one array; the message names the file.
    """
    file = Path(path)
    head = _head(file, "an array file")
    if head.startswith(_NPY_MAGIC):
        return _from_npy(file)
    if head.startswith(_ZIP_MAGIC):
        return _from_npz(file, name)
    if head.startswith(_MAT_MAGIC):
        return _from_mat(file, name)
    raise ValueError(
        f"{file}: not an array file{_web_page(head)}. Write one with numpy.save or numpy.savez."
    )


def array_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of the arrays in a ``.npz`` or ``.mat`` archive; nothing for a ``.npy`` file."""
    file = Path(path)
    head = _head(file, "an array file")
    if head.startswith(_MAT_MAGIC):
        return tuple(name for name, (_, kind) in _variables(file).items() if kind in _MAT_NUMBERS)
    if head.startswith(_ZIP_MAGIC):
        with _archive(file) as archive:
            return tuple(_members(archive))
    return ()


def load_ground_truth(path: str | os.PathLike[str]) -> GroundTruth:
    """The ground truth of revisited Oxford or Paris, as published or as JSON.

    Parameters
    ----------
    path
        ``gnd_roxford5k.pkl`` and its like: a dict of ``imlist``, ``qimlist`` and ``gnd``, a list of
        one dict of ``easy``, ``hard`` and ``junk`` per query; the same as JSON; or the same as
        ``.mat``, whose ``gnd`` is a struct array. Recognized by its content. **Ids start at 0 in
        pickles and JSON, and at 1 in .mat files**, as Python and MATLAB count; those returned
        always start at 0.

    Raises
    ------
    ValueError
        If the file is not one of these, or a pickle asks for anything but plain values and numeric
        NumPy arrays: its code is never run. The message names the file.

    References
    ----------
    F. Radenović, A. Iscen, G. Tolias, Y. Avrithis and O. Chum, "Revisiting Oxford and Paris:
    Large-Scale Image Retrieval Benchmarking", CVPR 2018.
    """
    file = Path(path)
    head = _head(file, "a ground truth")
    size = file.stat().st_size
    if size > _LARGEST_GROUND_TRUTH:
        raise ValueError(
            f"{file}: {size} bytes; expected a ground truth of at most {_LARGEST_GROUND_TRUTH}."
        )
    if head.startswith(_MAT_MAGIC):
        return _ground_truth(file, _mat_ground_truth(file), first=1)
    if _web_page(head):
        raise ValueError(f"{file}: not a ground truth{_web_page(head)}.")
    # No pickle starts with an opening brace. Editors on Windows put a mark before it.
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    reader = _from_json if is_json else _from_pickle
    return _ground_truth(file, reader(file), first=0)


def benchmark_files(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """The files of a benchmark by their parts, as ``datasets.load_folder`` describes them.

    Every part that a benchmark needs is there; the ground truth is called ``"ground_truth"``.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"{place}: {'not a folder' if place.exists() else 'no such folder'}.")
    names = sorted(path.name for path in place.iterdir() if path.is_file())
    candidates = {
        part: [name for name in names if name in {f"{part}{end}" for end in _ARRAY_ENDINGS}]
        for part in ("descriptors", "queries", "labels", "query_labels", "distractors")
    }
    candidates["ground_truth"] = [
        name
        for name in names
        if name.startswith(("ground_truth.", "gnd_")) and name.endswith(_TRUTH_ENDINGS)
    ]
    for part, files in candidates.items():
        if len(files) > 1:
            raise ValueError(f"{place}: has {part} {len(files)} times ({', '.join(files)}).")
    found = {part: place / files[0] for part, files in candidates.items() if files}
    _check_parts(place, found, names)
    return found


def by_rows(
    array: NDArray[Any],
    place: str | os.PathLike[str],
    *,
    items: int | None = None,
    dimensions: int | None = None,
    square: bool = False,
) -> NDArray[Any]:
    """The array with items as rows, found out by the sizes that are known.

    ``square`` says that a square array has its items as rows; otherwise it is refused.
    """

    def fits(shape: tuple[int, ...]) -> bool:
        return items in (None, shape[0]) and dimensions in (None, shape[1])

    rows, columns = (array.ndim == 2 and fits(shape) for shape in (array.shape, array.shape[::-1]))
    if rows and (square or not columns):
        return array
    if columns and not rows:
        return array.T
    expected = f"({items or 'items'}, {dimensions or 'dimensions'})"
    reason = "both ways round fit, so items may be rows or columns. Make a Benchmark of arrays."
    if not rows:
        reason = f"expected {expected} or the transpose. Do the files belong together?"
    raise ValueError(f"{place}: shape {array.shape}; {reason}")


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the IDX format: a magic number, the sizes, the values."""
    size = path.stat().st_size
    packed = path.suffix == ".gz"
    header = 4 * (dimensions + 1)
    wrong = f"{path}: not an IDX file of {dimensions} dimensions, or cut short."
    try:
        with gzip.open(path) if packed else open(path, "rb") as stream:
            sizes = np.frombuffer(stream.read(header).ljust(header, b"\0"), dtype=">u4").tolist()
            expected = math.prod(sizes[1:])
            # The third byte of the magic number says 'bytes', the fourth how many dimensions.
            # What cannot be in the file is not even tried.
            if sizes[0] != 0x800 + dimensions or expected > size * (
                _LARGEST_PACKING if packed else 1
            ):
                raise ValueError(wrong)
            content = stream.read(expected + 1)
    except (OSError, EOFError, zlib.error) as fault:
        raise ValueError(f"{path}: damaged ({fault}).") from fault
    if len(content) != expected:
        raise ValueError(wrong)
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes[1:])


def _head(file: Path, expected: str) -> bytes:
    """The first bytes of a file that exists and is not HDF5."""
    if not file.is_file():
        reason = f"a folder, not {expected}" if file.is_dir() else "no such file"
        raise ValueError(f"{file}: {reason}.")
    with open(file, "rb") as stream:
        head = stream.read(_HEAD)
    if head.startswith((_HDF5_MAGIC, b"MATLAB 7.3")) or head.endswith(_HDF5_MAGIC):
        raise ValueError(
            f"{file}: an HDF5 file, such as MATLAB's save -v7.3 writes, which is not read. Save it "
            "with -v7, or, where that is too large, write .npy with numpy.save."
        )
    return head


def _check_parts(folder: Path, found: Mapping[str, Path], names: list[str]) -> None:
    labels = {"labels", "query_labels"}
    missing = sorted({"descriptors", "queries"} - found.keys())
    if "ground_truth" not in found:
        missing += sorted(labels - found.keys()) if labels & found.keys() else []
        missing += [] if labels & found.keys() else ["labels and query_labels, or a ground truth"]
    elif labels & found.keys():
        raise ValueError(f"{folder}: has labels and a ground truth; expected one of the two.")
    if not missing:
        return
    advice = ""
    if "queries" in missing and "labels" in found:
        advice = " Give queries, or take some of the items as queries with split_queries."
    elif "ground_truth" in found:
        advice = " revisited() reads the published files of revisited Oxford and Paris."
    raise ValueError(
        f"{folder}: missing {', '.join(missing)}; found {', '.join(names[:20]) or 'nothing'}. "
        "Expected descriptors, queries, and either labels and query_labels or a ground truth "
        f"(ground_truth.json, gnd_*.pkl, gnd_*.mat); arrays as .npy, .npz or .mat.{advice}"
    )


def _web_page(head: bytes) -> str:
    # What a server sends instead of a file that has moved.
    page = head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))
    return ": it is a web page, so the download went wrong" if page else ""


def _from_npy(file: Path) -> NDArray[Any]:
    with _damage_named(file), open(file, "rb") as stream:
        dtype = _checked_dtype(stream, file.stat().st_size, file)
        if dtype is not None:
            mapped: NDArray[Any] = np.lib.format.open_memmap(file, mode="r")
            return mapped
        # NumPy maps no empty array.
        stream.seek(0)
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _from_npz(file: Path, name: str | None) -> NDArray[Any]:
    with _archive(file) as archive:
        members = _members(archive)
        chosen = name if name in members else next(iter(members)) if len(members) == 1 else None
        if chosen is None:
            wanted = "exactly one" if name is None else f"one, or one called {name!r}"
            raise ValueError(
                f"{file}: holds {len(members)} arrays ({', '.join(members)}); expected {wanted}."
            )
        member = members[chosen]
        if not member.filename.endswith(".npy"):
            raise ValueError(f"{file}: {chosen!r} is not an array. Write one with numpy.savez.")
        _check_member(file, member)
        with _damage_named(file), archive.open(member) as stream:
            _checked_dtype(stream, member.file_size, file)
        with _damage_named(file), archive.open(member) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


@contextmanager
def _archive(file: Path) -> Iterator[zipfile.ZipFile]:
    with open(file, "rb") as stream:
        with _damage_named(file):
            archive = zipfile.ZipFile(stream)
        with archive:
            yield archive


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {one.filename.removesuffix(".npy"): one for one in archive.infolist()}


def _check_member(file: Path, member: zipfile.ZipInfo) -> None:
    """Refuse what a small file would unpack to without end."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # NumPy writes no other kind, and bzip2 packs a million times.
        raise ValueError(
            f"{file}: packed in a way that NumPy does not use. Write it with numpy.savez."
        )
    size, available = member.file_size, available_host_bytes()
    # What the archive says of its own size may be damaged, too.
    packed = min(member.compress_size, file.stat().st_size)
    if size > _LARGEST_PACKING * max(packed, 1):
        raise ValueError(f"{file}: damaged, {packed} bytes cannot hold {size}.")
    if size > available:
        raise MemoryError(
            f"{file}: its array takes {size / 1e6:.0f} MB; {available / 1e6:.0f} MB are available. "
            "Save it with numpy.save: .npy files are mapped, not read."
        )


def _checked_dtype(stream: IO[bytes], size: int, file: Path) -> np.dtype[Any] | None:
    """The type of an array whose header agrees with the bytes that are there; None if empty."""
    version = np.lib.format.read_magic(stream)
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    if version[0] not in read:
        # Version 3 is for records whose fields have names beyond latin1: no array of numbers.
        raise ValueError(f"version {version[0]} of NumPy's format is not read")
    # A header is read as a whole, before anybody looks at what it says.
    width = 2 * version[0]
    length = int.from_bytes(stream.read(width), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    stream.seek(-width, os.SEEK_CUR)
    shape, _, dtype = read[version[0]](stream)
    if dtype.hasobject:
        raise _Refused(
            f"{file}: an array of Python objects, which is not read. Save numbers, not objects."
        )
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size - stream.tell():
        raise ValueError(f"its bytes do not fill shape {shape} of {dtype}")
    return dtype if math.prod(shape) else None


class _Refused(ValueError):
    """A file that is whole, and not what is read."""


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Whatever a damaged file makes NumPy and zipfile raise, as an error that names it."""
    try:
        yield
    except _Refused:
        raise
    except Exception as fault:
        reason = str(fault) or type(fault).__name__
        raise ValueError(f"{file}: damaged or cut short ({reason}).") from fault


def _from_mat(file: Path, name: str | None) -> NDArray[Any]:
    found = _variables(file)
    matrices = [
        variable
        for variable, (shape, kind) in found.items()
        if kind in _MAT_NUMBERS and len(shape) == 2
    ]
    chosen = name if name in found else matrices[0] if len(matrices) == 1 else None
    if chosen is None:
        listed = ", ".join(
            f"{variable}: {'x'.join(map(str, shape))} {kind}"
            for variable, (shape, kind) in found.items()
        )
        wanted = "exactly one" if name is None else f"one, or one called {name!r}"
        raise ValueError(
            f"{file}: holds {len(matrices)} numeric matrices ({listed or 'nothing'}); "
            f"expected {wanted}."
        )
    # Cells and structs are not read to be refused: a small file may hold millions of them.
    array = _values(file, [chosen])[chosen] if found[chosen][1] in _MAT_NUMBERS else None
    # Complex numbers have the class of real ones in MATLAB's list of variables.
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        kind = found[chosen][1] if array is None else "complex"
        raise ValueError(f"{file}: {chosen!r} is {kind}; expected a matrix of real numbers.")
    return array


def _variables(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and MATLAB class of every variable."""
    try:
        return {one.name: (one.shape, one.kind) for one in read_variables(file)}
    except DamagedFileError as fault:
        raise _damaged_mat(file, fault) from fault


def _values(file: Path, names: list[str], largest: int | None = None) -> dict[str, Any]:
    try:
        return read_values(file, names, largest=largest)
    except DamagedFileError as fault:
        raise _damaged_mat(file, fault) from fault


def _damaged_mat(file: Path, fault: Exception) -> ValueError:
    return ValueError(f"{file}: a damaged .mat file, or cut short ({fault}).")


def _mat_ground_truth(file: Path) -> dict[str, Any]:
    content = _values(file, ["imlist", "qimlist", "gnd", "qidx"], _LARGEST_GROUND_TRUTH)
    for name in ("imlist", "qimlist", "gnd"):
        if isinstance(content.get(name), list):
            content[name] = [_innermost(cell) for cell in content[name]]
    return content


def _innermost(cell: Any) -> Any:
    """What a cell holds, if it is a cell of one entry."""
    while isinstance(cell, list) and len(cell) == 1:
        cell = cell[0]
    return cell


def _from_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{file}: damaged JSON ({fault}).") from fault


def _from_pickle(file: Path) -> Any:
    try:
        return read_plain_pickle(file.read_bytes())
    except ValueError as fault:
        raise ValueError(
            f"{file}: {fault} Expected a ground truth as a pickle, JSON or .mat."
        ) from fault


def _ground_truth(file: Path, content: Any, *, first: int) -> GroundTruth:
    """Check what a file holds; ``first`` is the lowest id in it."""
    if not isinstance(content, dict):
        raise ValueError(f"{file}: holds a {type(content).__name__}; expected a dict.")
    entries = _listed(file, content, "gnd")
    if "qidx" in content or any(isinstance(entry, dict) and "ok" in entry for entry in entries):
        raise ValueError(
            f"{file}: the ground truth of the original Oxford or Paris; expected that of the "
            "revisited benchmark (gnd_roxford5k or gnd_rparis6k), with easy, hard and junk."
        )
    images, query_images = (_names(file, content, name) for name in ("imlist", "qimlist"))
    if len(entries) != len(query_images):
        raise ValueError(
            f"{file}: 'gnd' has {len(entries)} entries and 'qimlist' {len(query_images)}; "
            "expected one for each query."
        )
    queries = []
    for position, entry in enumerate(entries):
        missing = [name for name in _JUDGMENTS if not isinstance(entry, dict) or name not in entry]
        if missing:
            raise ValueError(f"{file}: query {position} of 'gnd' has no {', '.join(missing)}.")
        queries.append(
            {
                name: _ids(f"{file}: {name} of query {position}", entry[name], first, len(images))
                for name in _JUDGMENTS
            }
        )
    return GroundTruth(images, query_images, tuple(queries))


def _listed(file: Path, content: dict[Any, Any], name: str) -> list[Any] | tuple[Any, ...]:
    values = content.get(name)
    if not isinstance(values, (list, tuple)) or not values:
        known = ", ".join(sorted(str(key)[:40] for key in content if isinstance(key, str)))
        raise ValueError(
            f"{file}: no list {name!r} in it; expected imlist, qimlist and gnd, got "
            f"{known or 'nothing'}."
        )
    return values


def _names(file: Path, content: dict[Any, Any], name: str) -> tuple[str, ...]:
    values = _listed(file, content, name)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{file}: {name!r} must be a list of names of pictures.")
    return tuple(values)


def _ids(what: str, values: Any, first: int, n: int) -> NDArray[np.int64]:
    values = values.values if isinstance(values, PlainArray) else values
    if isinstance(values, np.ndarray):
        values = values.ravel().tolist()
    # Flat lists of numbers only: NumPy would try to unfold whatever is nested in them.
    if not isinstance(values, (list, tuple)) or not all(map(_is_whole, values)):
        raise ValueError(f"{what} must be a list of ids, which are whole numbers.")
    low, high = min(values, default=first), max(values, default=first)
    if low < first or high >= first + n:
        counted = " (in .mat files they start at 1)" if first else ""
        raise ValueError(
            f"{what}: ids must lie in [{first}, {first + n - 1}], for {n} pictures{counted}; got "
            f"values from {int(low)} to {int(high)}."
        )
    return np.array([int(value) - first for value in values], dtype=np.int64)


def _is_whole(value: Any) -> bool:
    # MATLAB stores ids as floating point. Numbers beyond 64 bits may be too long to print.
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and -(2**63) <= value < 2**63
