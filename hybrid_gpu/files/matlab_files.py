"""MATLAB's ``.mat`` files of version 5 (``save -v7`` or older), read without trust in them.

Every length in a file is checked against the bytes that are there before anything is read or
allocated, so that nothing here can run past the end of a buffer. Numbers, texts, cells and structs
are read: descriptors and ground truths hold nothing else.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.files.recognition import LARGEST_PACKING

_HEADER, _TAG = 128, 8
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"
}  # fmt: skip
_ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CLASSES = (
    "", "cell", "struct", "object", "char", "sparse", "double", "single", "int8", "uint8", "int16",
    "uint16", "int32", "uint32", "int64", "uint64", "function", "opaque",
)  # fmt: skip
_NUMERIC_CLASSES = _CLASSES[6:16]
_COMPLEX, _LOGICAL = 0x800, 0x200
# The start of a variable, in which its class, shape and name stand.
_HEAD_BYTES = 4096
_DIMENSIONS_AT_MOST, _DEPTH_AT_MOST = 32, 16


class DamagedFileError(Exception):
    """A file is cut short, or its lengths and types do not agree with its content."""


@contextmanager
def damage_named(file: Path) -> Iterator[None]:
    """Turn a ``DamagedFileError`` into a ``ValueError`` that names the file."""
    try:
        yield
    except DamagedFileError as fault:
        raise ValueError(f"{file}: a damaged .mat file, or cut short ({fault}).") from fault


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """The name, the shape and the MATLAB class (``kind``) of a variable."""

    name: str
    shape: tuple[int, ...]
    kind: str


def read_variables(file: Path) -> tuple[Variable, ...]:
    """The variables of a file, without their content.

    Raises
    ------
    DamagedFileError
        For a file that is cut short, or no ``.mat`` file of version 5.
    """
    with open(file, "rb") as stream:
        return tuple(stored.variable for stored in _stored(stream))


def read_values(
    file: Path, names: Collection[str], *, largest: int | None = None
) -> dict[str, Any]:
    """The content of the variables of these names.

    Parameters
    ----------
    largest
        Bytes that a compressed variable may take when it is unpacked; None: what memory allows.

    Returns
    -------
    dict
        By name: arrays of numbers in the type that they are stored in, texts as str (a list of them
        for several rows), cells as lists, structs as lists of dicts, both column by column. None
        for anything else. Names that the file does not have are left out.

    Raises
    ------
    DamagedFileError
        For a file that is cut short or damaged, or whose numbers would not fit into memory.
    """
    values: dict[str, Any] = {}
    with open(file, "rb") as stream:
        for stored in _stored(stream):
            name = stored.variable.name
            if name in names:
                if name in values:
                    raise DamagedFileError(f"it holds {name!r} twice")
                values[name] = _value(stored.content(largest), stored.order, 0)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A variable in an open file: its description, and where its content is."""

    stream: BinaryIO
    start: int
    size: int
    packed: bool
    order: str
    variable: Variable

    def content(self, largest: int | None) -> memoryview:
        """The whole variable, unpacked; an error if that takes more than ``largest`` bytes."""
        self.stream.seek(self.start)
        content = _read(self.stream, self.size)
        if self.packed:
            room = available_host_bytes() // 2
            content = _unpacked(content, self.order, room if largest is None else largest)
        return memoryview(content)


def _stored(stream: BinaryIO) -> Iterator[_Stored]:
    """The variables of an open file, one after another; only their heads are read."""
    header = _read(stream, _HEADER)
    order = {b"IM": "<", b"MI": ">"}.get(header[126:])
    if order is None or struct.unpack(f"{order}H", header[124:126])[0] >> 8 != 1:
        raise DamagedFileError("its header names no version 5")
    end, position = os.fstat(stream.fileno()).st_size, _HEADER
    while position < end:
        stream.seek(position)
        kind, size = struct.unpack(f"{order}II", _read(stream, _TAG))
        start = position + _TAG
        if kind not in (_MATRIX, _COMPRESSED) or size > end - start:
            raise DamagedFileError(f"at byte {position} is no variable, or only a part of one")
        # Compressed variables are not padded.
        position = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        head = _read(stream, min(size, _HEAD_BYTES))
        if kind == _COMPRESSED:
            head = _unpacked_head(head, order)
        variable = _described(memoryview(head), order)[0]
        if variable.name:  # variables without a name are MATLAB's own
            yield _Stored(stream, start, size, kind == _COMPRESSED, order, variable)


def _read(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise DamagedFileError("it ends too early")
    return content


def _unpacked(packed: bytes, order: str, largest: int) -> bytes:
    """The variable in a compressed element."""
    unpacking = zlib.decompressobj()
    try:
        size, left = _packed_size(unpacking, packed, order)
        if size > LARGEST_PACKING * len(packed):
            raise DamagedFileError(f"{len(packed)} compressed bytes cannot hold {size}")
        if size > largest:
            raise DamagedFileError(f"a variable of {size} bytes is too large to be unpacked")
        # One byte more than there should be: asking for it makes zlib compare its checksum.
        content = unpacking.decompress(left, size + 1)
    except zlib.error as fault:
        raise DamagedFileError(str(fault)) from fault
    if len(content) != size or not unpacking.eof:
        raise DamagedFileError("a compressed variable is not as long as it says")
    return content


def _unpacked_head(packed: bytes, order: str) -> bytes:
    """The first bytes of the variable in a compressed element."""
    unpacking = zlib.decompressobj()
    try:
        size, left = _packed_size(unpacking, packed, order)
        return unpacking.decompress(left, max(1, min(size, _HEAD_BYTES)))
    except zlib.error as fault:
        raise DamagedFileError(str(fault)) from fault


def _packed_size(unpacking: Any, packed: bytes, order: str) -> tuple[int, bytes]:
    """Bytes of a compressed variable, as its tag says, and the part that is still packed."""
    tag = unpacking.decompress(packed, _TAG)
    if len(tag) < _TAG or struct.unpack(f"{order}II", tag)[0] != _MATRIX:
        raise DamagedFileError("what is compressed is no variable")
    return struct.unpack(f"{order}II", tag)[1], unpacking.unconsumed_tail


def _element(content: memoryview, start: int, order: str) -> tuple[int, memoryview, int]:
    """Type and bytes of the element at ``start``, and where the next one starts."""
    if start + _TAG > len(content):
        raise DamagedFileError("a variable ends too early")
    kind, size = struct.unpack_from(f"{order}II", content, start)
    begin = start + _TAG
    if kind >> 16:  # a short element: size, type and up to four bytes in the place of a tag
        kind, size, begin = kind & 0xFFFF, kind >> 16, start + 4
        if size > 4:
            raise DamagedFileError("a short element is too long")
    if begin + size > len(content):
        raise DamagedFileError("an element is longer than the variable that it is in")
    after = start + _TAG if begin == start + 4 else begin + -(-size // 8) * 8
    return kind, content[begin : begin + size], min(after, len(content))


def _described(content: memoryview, order: str) -> tuple[Variable, int, int]:
    """Name, shape and class of a variable, its flags, and where its content starts."""
    kind, flags, start = _element(content, 0, order)
    if kind != 6 or len(flags) != 8:
        raise DamagedFileError("a variable has no class")
    flag = struct.unpack_from(f"{order}I", flags)[0]
    kind, sizes, start = _element(content, start, order)
    if kind != 5 or len(sizes) % 4 or not 8 <= len(sizes) <= 4 * _DIMENSIONS_AT_MOST:
        raise DamagedFileError("a variable has no shape")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    kind, name, start = _element(content, start, order)
    if kind not in (1, 2) or min(shape) < 0:
        raise DamagedFileError("a variable has no name, or a shape that cannot be")
    number = flag & 0xFF
    label = _CLASSES[number] if 0 < number < len(_CLASSES) else "unknown"
    if flag & _LOGICAL and label in _NUMERIC_CLASSES:
        label = "logical"
    return Variable(bytes(name).decode("latin-1"), shape, label), flag, start


def _value(content: memoryview, order: str, depth: int) -> Any:
    """The content of a variable; ``depth`` is how many cells and structs it lies in."""
    if len(content) == 0:
        return np.zeros((0, 0))  # how MATLAB writes the empty matrix inside a cell
    if depth > _DEPTH_AT_MOST:
        raise DamagedFileError("cells and structs are nested too deep")
    variable, flag, start = _described(content, order)
    if variable.kind in _NUMERIC_CLASSES or variable.kind == "logical":
        real, start = _numbers(content, start, variable.shape, order)
        if not flag & _COMPLEX:
            return real
        return real + 1j * _numbers(content, start, variable.shape, order)[0]
    if variable.kind == "char":
        return _texts(content, start, variable.shape, order)
    count = math.prod(variable.shape)
    if variable.kind == "cell":
        return _children(content, start, count, order, depth)
    if variable.kind == "struct":
        return _structs(content, start, count, order, depth)
    return None


def _numbers(
    content: memoryview, start: int, shape: tuple[int, ...], order: str
) -> tuple[NDArray[Any], int]:
    """An array of numbers, and where the next element starts."""
    kind, data, after = _element(content, start, order)
    if kind not in _NUMBERS:
        raise DamagedFileError("an array holds no numbers")
    dtype = np.dtype(f"{order}{_NUMBERS[kind]}")
    # Python's integers do not overflow, whatever shape a file makes up.
    if math.prod(shape) * dtype.itemsize != len(data):
        raise DamagedFileError(f"{len(data)} bytes do not fill an array of shape {shape}")
    values = np.frombuffer(data, dtype).reshape(shape, order="F")
    return values.astype(dtype.newbyteorder("="), copy=False), after


def _texts(content: memoryview, start: int, shape: tuple[int, ...], order: str) -> str | list[str]:
    """A text, or a list of texts if there are several rows."""
    kind, data, _ = _element(content, start, order)
    if kind not in _ENCODINGS:
        raise DamagedFileError("a text is not in letters")
    encoding = _ENCODINGS[kind]
    if kind in (4, 17, 18):
        encoding += "-le" if order == "<" else "-be"
    text = bytes(data).decode(encoding, errors="replace")
    if shape[0] <= 1:
        return text
    if len(text) != math.prod(shape):
        raise DamagedFileError(f"{len(text)} letters do not fill a text of shape {shape}")
    # Column by column, like all of MATLAB's arrays; rows are filled up with blanks.
    return [text[row :: shape[0]].rstrip() for row in range(shape[0])]


def _children(content: memoryview, start: int, count: int, order: str, depth: int) -> list[Any]:
    """The ``count`` variables inside a cell or struct, from ``start`` on."""
    if count > (len(content) - start) // _TAG:
        raise DamagedFileError(f"{count} entries are more than there is room for")
    values = []
    for _ in range(count):
        kind, data, start = _element(content, start, order)
        if kind != _MATRIX:
            raise DamagedFileError("an entry of a cell or struct is no variable")
        values.append(_value(data, order, depth + 1))
    return values


def _structs(
    content: memoryview, start: int, count: int, order: str, depth: int
) -> list[dict[str, Any]]:
    """The entries of a struct array, each a dict by field name.

    Parameters
    ----------
    content
        The whole variable.
    start
        Where the length of its field names stands.
    count
        Entries by the shape of the variable.
    order
        Byte order, ``"<"`` or ``">"``.
    depth
        How many cells and structs the variable lies in.
    """
    kind, length, start = _element(content, start, order)
    if kind != 5 or len(length) != 4:
        raise DamagedFileError("a struct does not tell how long its names are")
    width = struct.unpack(f"{order}i", length)[0]
    _, letters, start = _element(content, start, order)
    if width <= 0 or len(letters) % width:
        raise DamagedFileError("a struct has no names")
    names = [
        bytes(letters[place : place + width]).split(b"\0")[0].decode("latin-1")
        for place in range(0, len(letters), width)
    ]
    if not names:
        # Entries without a field take no room, so that their number could not be checked.
        return []
    values = _children(content, start, count * len(names), order, depth)
    return [
        dict(zip(names, values[place : place + len(names)], strict=True))
        for place in range(0, len(values), len(names))
    ]
