"""Array files that users bring: ``.npy``, ``.npz`` and ``.mat``, read without trust in them."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.files.matlab_files import damage_named as mat_damage_named
from hybrid_gpu.files.matlab_files import read_values, read_variables
from hybrid_gpu.files.recognition import (
    LARGEST_PACKING,
    MAT_MAGIC,
    NPY_MAGIC,
    ZIP_MAGIC,
    read_start,
    web_page_note,
)

# Bytes of the header of a .npy file; that of a plain array has 118.
_LONGEST_HEADER = 10_000
_MAT_NUMBERS = {"double", "single", "logical"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def load_array(path: str | os.PathLike[str], *, name: str | None = None) -> NDArray[Any]:
    """The array of a ``.npy`` file, mapped into memory, or of a ``.npz`` or ``.mat`` archive.

    Parameters
    ----------
    path
        The kind of file is recognized by its content. Files of pickled Python objects are never
        opened. ``.mat`` files must be of version 5, as MATLAB's ``save -v7`` and older write them;
        of their variables only matrices of real numbers are read. Vectors are matrices of one row
        or column, as in MATLAB.
    name
        The array to take from an archive of several; an archive of one array needs no name.

    Raises
    ------
    ValueError
        If there is no such file, or it is not one array; the message names the file.
    """
    file = Path(path)
    start = read_start(file, "an array file")
    if start.startswith(NPY_MAGIC):
        return _from_npy(file)
    if start.startswith(ZIP_MAGIC):
        return _from_npz(file, name)
    if start.startswith(MAT_MAGIC):
        return _from_mat(file, name)
    raise ValueError(
        f"{file}: not an array file{web_page_note(start)}. Write one with numpy.save or "
        "numpy.savez."
    )


def array_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of the arrays in a ``.npz`` or ``.mat`` archive; empty for a ``.npy`` file."""
    file = Path(path)
    start = read_start(file, "an array file")
    if start.startswith(MAT_MAGIC):
        with mat_damage_named(file):
            variables = read_variables(file)
        return tuple(variable.name for variable in variables if variable.kind in _MAT_NUMBERS)
    if start.startswith(ZIP_MAGIC):
        with _archive(file) as archive:
            return tuple(_members(archive))
    return ()


def array_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """The shape of the array of a ``.npy`` file, or of all arrays of a ``.npz`` archive, by name.

    The values are not read. The only array of a ``.npy`` file has the name ``""``.

    Raises
    ------
    ValueError
        If there is no such file, or it is neither; the message names the file.
    """
    file = Path(path)
    start = read_start(file, "an array file")
    if start.startswith(NPY_MAGIC):
        return {"": load_array(file).shape}
    if not start.startswith(ZIP_MAGIC):
        return {name: load_array(file, name=name).shape for name in array_names(file)}
    shapes = {}
    with _archive(file) as archive:
        for name, member in _members(archive).items():
            _check_member(file, member)
            with _damage_named(file), archive.open(member) as stream:
                shapes[name] = _read_header(stream)[0]
    return shapes


def _from_npy(file: Path) -> NDArray[Any]:
    """The array of a ``.npy`` file, mapped into memory."""
    with _damage_named(file), open(file, "rb") as stream:
        dtype = _checked_dtype(stream, file.stat().st_size, file)
        if dtype is not None:
            mapped: NDArray[Any] = np.lib.format.open_memmap(file, mode="r")
            return mapped
        # NumPy maps no empty array.
        stream.seek(0)
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _from_npz(file: Path, name: str | None) -> NDArray[Any]:
    """An array of a ``.npz`` archive, by its name or because it is the only one."""
    with _archive(file) as archive:
        members = _members(archive)
        chosen = name if name in members else next(iter(members)) if len(members) == 1 else None
        if chosen is None:
            expected = "exactly one" if name is None else f"one, or one called {name!r}"
            raise ValueError(
                f"{file}: holds {len(members)} arrays ({', '.join(members)}); expected {expected}."
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
    return {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def _check_member(file: Path, member: zipfile.ZipInfo) -> None:
    """Refuse a member that would unpack to more bytes than it can hold, or than memory has."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # NumPy writes no other kind, and bzip2 packs a million times.
        raise ValueError(
            f"{file}: packed in a way that NumPy does not use. Write it with numpy.savez."
        )
    size, available = member.file_size, available_host_bytes()
    # The size that the archive gives may be damaged, too.
    packed = min(member.compress_size, file.stat().st_size)
    if size > LARGEST_PACKING * max(packed, 1):
        raise ValueError(f"{file}: damaged, {packed} bytes cannot hold {size}.")
    if size > available:
        raise MemoryError(
            f"{file}: its array takes {size / 1e6:.0f} MB; {available / 1e6:.0f} MB are available. "
            "Save it with numpy.save: .npy files are mapped, not read."
        )


def _checked_dtype(stream: IO[bytes], size: int, file: Path) -> np.dtype[Any] | None:
    """Check the header of a ``.npy`` file against the number of bytes that follow it.

    Parameters
    ----------
    stream
        At the start of the file.
    size
        Bytes of the whole file.
    file
        Named in error messages.

    Returns
    -------
    dtype or None
        The type of the array; None if it has no entries.
    """
    shape, dtype = _read_header(stream)
    if dtype.hasobject:
        raise _RefusedArray(
            f"{file}: an array of Python objects, which is not read. Save numbers, not objects."
        )
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size - stream.tell():
        raise ValueError(f"its bytes do not fill shape {shape} of {dtype}")
    return dtype if math.prod(shape) else None


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array of a ``.npy`` file, from its start on."""
    version = np.lib.format.read_magic(stream)
    readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    if version[0] not in readers:
        # Version 3 is for records whose fields have names beyond latin1: no array of numbers.
        raise ValueError(f"version {version[0]} of NumPy's format is not read")
    # NumPy reads a header as a whole before it looks at what it says.
    width = 2 * version[0]
    length = int.from_bytes(stream.read(width), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    stream.seek(-width, os.SEEK_CUR)
    shape, _, dtype = readers[version[0]](stream)
    return shape, dtype


class _RefusedArray(ValueError):
    """A file is not damaged, but holds what is not read."""


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Turn whatever NumPy and zipfile raise for a damaged file into an error that names it."""
    try:
        yield
    except _RefusedArray:
        raise
    except Exception as fault:
        reason = str(fault) or type(fault).__name__
        raise ValueError(f"{file}: damaged or cut short ({reason}).") from fault


def _from_mat(file: Path, name: str | None) -> NDArray[Any]:
    """A matrix of real numbers from a ``.mat`` file, by its name or because it is the only one."""
    with mat_damage_named(file):
        variables = {variable.name: variable for variable in read_variables(file)}
    matrices = [
        variable.name
        for variable in variables.values()
        if variable.kind in _MAT_NUMBERS and len(variable.shape) == 2
    ]
    chosen = name if name in variables else matrices[0] if len(matrices) == 1 else None
    if chosen is None:
        listed = ", ".join(
            f"{variable.name}: {'x'.join(map(str, variable.shape))} {variable.kind}"
            for variable in variables.values()
        )
        expected = "exactly one" if name is None else f"one, or one called {name!r}"
        raise ValueError(
            f"{file}: holds {len(matrices)} numeric matrices ({listed or 'nothing'}); "
            f"expected {expected}."
        )
    array, kind = None, variables[chosen].kind
    # Cells and structs are refused before they are read: a small file may hold millions of them.
    if kind in _MAT_NUMBERS:
        with mat_damage_named(file):
            array = read_values(file, [chosen])[chosen]
        # MATLAB lists complex numbers under the class of real ones.
        kind = "complex"
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise ValueError(f"{file}: {chosen!r} is {kind}; expected a matrix of real numbers.")
    return array
