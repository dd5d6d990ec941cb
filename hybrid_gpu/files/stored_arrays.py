"""One array in one ``.npy`` file, and small JSON files, both read without trust.

Everything in a file is checked before it is used: no expression is evaluated, no memory is
allocated beyond the size of the file, and every fault is an ``IndexFileError`` that names the file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.writing import sync_file

_MAGIC = b"\x93NUMPY\x01\x00"
# The header exactly as NumPy writes it, of a C-ordered array of numbers in one or two dimensions.
_HEAD = re.compile(
    rb"\{'descr': '([<|][fi][1248])', 'fortran_order': False, "
    rb"'shape': \((\d{1,19},|\d{1,19}, \d{1,19})\), \} *\n"
)
_LONGEST_HEAD = 1024
_LARGEST_JSON, _DEEPEST_JSON = 1 << 20, 8
# Bytes that are read at a time to add up a checksum.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """Type, shape and start of the values in an array file whose size fits them."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.offset + math.prod(self.shape) * np.dtype(self.dtype).itemsize


def write_array(path: Path, array: HostArray) -> dict[str, Any]:
    """Write an array to a new file and wait until it is on disk.

    Returns
    -------
    dict
        ``dtype``, ``shape``, ``bytes`` and ``checksum``, for the header that names the file.

    Raises
    ------
    FileExistsError
        If there is a file of that name.
    """
    # Without this, a 0-d or Fortran-ordered array would come back in another order.
    array = np.ascontiguousarray(array)
    with open(path, "xb") as file:
        write_head(file, array.dtype, array.shape)
        file.write(array.reshape(-1).view(np.uint8).data)
        sync_file(file)
        size = file.tell()
    return {
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "bytes": size,
        "checksum": array_checksum(array),
    }


def write_head(file: BinaryIO, dtype: Any, shape: tuple[int, ...]) -> int:
    """Write the head of an array file, at the beginning of an open file, and return its length."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def open_plain_file(path: Path) -> io.FileIO:
    """Open a plain file for reading; ``IndexFileError`` for a folder, pipe or device, or none."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        file = io.FileIO(os.open(path, flags), "rb")
    except (FileNotFoundError, IsADirectoryError) as fault:
        raise IndexFileError(f"{path}: missing.") from fault
    except OSError as fault:
        raise IndexFileError(f"{path}: cannot be opened ({fault.strerror}).") from fault
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IndexFileError(f"{path}: not a plain file.")
    return file


def read_head(file: io.FileIO, path: Path) -> ArrayFile:
    """Read and check the head of an array file.

    Raises
    ------
    IndexFileError
        If the head is not exactly as this library writes it, or does not fit the file's size.
    """
    try:
        file.seek(0)
        start = file.read(_LONGEST_HEAD)
        size = os.fstat(file.fileno()).st_size
    except OSError as fault:
        raise IndexFileError(f"{path}: cannot be read ({fault.strerror}).") from fault
    offset = len(_MAGIC) + 2 + int.from_bytes(start[8:10], "little")
    matched = _HEAD.fullmatch(start[10:offset])
    if not start.startswith(_MAGIC) or matched is None or offset > len(start):
        raise IndexFileError(
            f"{path}: damaged, it does not begin like an array file of this library."
        )
    shape = tuple(int(part) for part in matched[2].decode().split(",") if part.strip())
    if max(shape) > size:  # an array without entries may claim any other side
        raise IndexFileError(f"{path}: damaged, {size} bytes cannot have the shape {shape}.")
    dtype = matched[1].decode()
    try:
        head = ArrayFile(np.dtype(dtype).str, shape, offset)
    except TypeError as fault:
        raise IndexFileError(f"{path}: damaged, it has the unknown dtype {dtype!r}.") from fault
    if head.dtype != dtype or head.size != size:
        raise IndexFileError(
            f"{path}: damaged, {size} bytes where {dtype} of shape {shape} takes {head.size}."
        )
    return head


def mapped_array(file: io.FileIO, head: ArrayFile) -> HostArray:
    """The array of an open file, mapped into memory for reading."""
    if 0 in head.shape:  # nothing to map
        return np.empty(head.shape, head.dtype)
    return np.memmap(file, head.dtype, "r", head.offset, head.shape)


def file_checksum(file: io.FileIO, path: Path, start: int, stop: int) -> str:
    """The checksum of the bytes from ``start`` to ``stop`` of a file.

    They are read and not mapped, so that a bad disk raises an error and does not kill the process.
    """
    sums, place, buffer = 0, start, memoryview(bytearray(min(_PIECE, max(stop - start, 1))))
    try:
        file.seek(start)
        while place < stop:
            count = file.readinto(buffer[: stop - place])
            if not count:
                raise IndexFileError(f"{path}: cut short while it was read.")
            sums = zlib.crc32(buffer[:count], sums)
            place += count
    except OSError as fault:
        raise IndexFileError(f"{path}: cannot be read ({fault.strerror}).") from fault
    return f"{sums:08x}"


def array_checksum(array: HostArray) -> str:
    """The checksum of the values of an array, in the order in which a file holds them."""
    return checksum(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def checksum(content: Any) -> str:
    """The CRC-32 of some bytes, as eight hex digits."""
    return f"{zlib.crc32(content):08x}"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file.

    Raises
    ------
    IndexFileError
        If the file is missing, too large, too deep, not JSON, or not an object; or if a name stands
        twice in it, or a number is NaN or infinite.
    """
    with open_plain_file(path) as file:
        try:
            content = file.read(_LARGEST_JSON + 1)
        except OSError as fault:
            raise IndexFileError(f"{path}: cannot be read ({fault.strerror}).") from fault
    if len(content) > _LARGEST_JSON:
        raise IndexFileError(f"{path}: more than {_LARGEST_JSON} bytes, which is not ours.")
    try:
        header = json.loads(content, object_pairs_hook=_each_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as fault:
        raise IndexFileError(f"{path}: damaged, it is not JSON ({_short(fault)}).") from fault
    if not isinstance(header, dict):
        raise IndexFileError(f"{path}: not a header of this library.")
    level: list[Any] = [header]
    for _ in range(_DEEPEST_JSON):
        level = [part for value in level for part in _parts(value)]
    if level:  # comparing or printing it would recurse as deep
        raise IndexFileError(f"{path}: damaged, deeper than any header of this library.")
    return header


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _each_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError("a name stands twice")
        values[name] = value
    return values


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _short(fault: BaseException) -> str:
    """The message of a fault, cut short and in ASCII: it may quote any characters of a file."""
    return str(fault).encode("ascii", "backslashreplace").decode()[:200]
