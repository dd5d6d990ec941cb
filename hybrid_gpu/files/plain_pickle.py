"""Pickles of plain data, read without running anything that they ask for.

The unpickler knows plain values and numeric arrays, and refuses everything else.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PlainArray:
    """What stands for a ``numpy.ndarray`` of a pickle.

    Attributes
    ----------
    values : ndarray or None
        The array; None if the pickle makes an array and never fills it.
    """

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise _RefusedPickle("it holds an array that is not complete")
        shape, dtype, by_columns, data = state[-4:]
        self.values = _numbers(data, dtype, shape, "F" if by_columns else "C")


def read_plain_pickle(content: bytes) -> Any:
    """What a pickle holds, if it is nothing but plain values and numeric arrays.

    Parameters
    ----------
    content
        A pickle of any protocol, written by Python 2 or 3 with NumPy 1 or 2. Texts of Python 2 are
        read as latin1, in which every byte is a letter.

    Returns
    -------
    object
        Numbers, texts, bytes, lists, tuples and dicts as they were, NumPy's scalars as Python's
        numbers, and a :class:`PlainArray` in the place of every array.

    Raises
    ------
    ValueError
        If the pickle asks for anything else, which is neither looked up nor run, or if it is
        damaged, cut short, or no pickle at all.
    """
    try:
        _check_opcodes(content)
        # latin1 turns the byte strings of Python 2, arrays included, into text without loss.
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except _RefusedPickle as fault:
        raise ValueError(
            f"refused, because {fault}. Only plain values and numeric arrays are read."
        ) from fault
    except Exception as fault:  # a damaged pickle makes the unpickler raise almost anything
        raise ValueError(f"not a pickle, damaged, or cut short ({fault}).") from fault


class _RefusedPickle(Exception):
    """A pickle holds something that is not data."""


def _check_opcodes(content: bytes) -> None:
    """Refuse what ``find_class`` is never asked about: cached extensions and a huge memo."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name.startswith("EXT"):
            raise _RefusedPickle("it asks for a registered extension")
        # A written memo is numbered one by one; the unpickler allocates up to the highest number.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count + 1:
            raise _RefusedPickle("its memo is numbered out of order")


class _Unpickler(pickle.Unpickler):
    """An unpickler that can call the stand-ins of ``_CALLS`` and nothing else."""

    def find_class(self, module: str, name: str, /) -> Any:
        call = _CALLS.get((module, name))
        if call is None:
            raise _RefusedPickle(f"it asks for {f'{module}.{name}'[:100]!r}")
        return _StandIn(call)


class _StandIn:
    """What a pickle gets for a function or class; a new one each time, so no change outlasts it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise _RefusedPickle("it changes a function")


class _PickledDtype:
    """What stands for a ``numpy.dtype`` of a pickle: one of the numeric types."""

    __slots__ = ("order", "type")

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in _NUMBERS:
            shown = name[:20] if isinstance(name, str) else type(name).__name__
            raise _RefusedPickle(f"it holds an array that is not numeric (dtype {shown!r})")
        self.type: str = name
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        # Version, byte order, then what only structured and nested types have.
        if not isinstance(state, tuple) or len(state) < 5 or state[2:5] != (None, None, None):
            raise _RefusedPickle("it holds an array that is not numeric")
        if state[1] not in ("<", ">", "|", "="):
            raise _RefusedPickle("it holds an array of unknown byte order")
        self.order = state[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"{self.order}{self.type}")


def _numbers(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    """An array from its bytes; refuses any type, shape or length that does not fit them."""
    if isinstance(data, str):  # the bytes of Python 2
        data = data.encode("latin1")
    if not isinstance(dtype, _PickledDtype) or not isinstance(data, (bytes, bytearray)):
        raise _RefusedPickle("it holds an array that is not numeric")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise _RefusedPickle("it holds an array without a proper shape")
    if len(shape) > 32 or len(data) != math.prod(shape) * dtype.dtype.itemsize:
        raise _RefusedPickle("it holds an array whose bytes do not fill its shape")
    if order == "F":
        return np.frombuffer(data, dtype=dtype.dtype).reshape(shape, order="F")
    if order != "C":
        raise _RefusedPickle("it holds an array in an unknown order")
    return np.frombuffer(data, dtype=dtype.dtype).reshape(shape)


def _reconstruct(*_: Any) -> PlainArray:
    return PlainArray()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> PlainArray:
    array = PlainArray()
    array.values = _numbers(data, dtype, shape, order)
    return array


def _scalar(dtype: Any, data: Any) -> Any:
    return _numbers(data, dtype, (), "C").item()


def _encode(text: Any, encoding: Any) -> bytes:
    # How protocol 2 writes the bytes of Python 3.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _RefusedPickle("it encodes a text")
    return text.encode("latin1")


def _no_bytes(*arguments: Any) -> bytes:
    # How protocol 2 writes an empty bytes.
    if arguments:
        raise _RefusedPickle("it converts something into bytes")
    return b""


def _never_called(*_: Any) -> Any:
    raise _RefusedPickle("it makes an array in an unusual way")


_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
# NumPy 2 renamed numpy.core; Python 3 renamed __builtin__.
_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _never_called,
    ("numpy", "dtype"): _PickledDtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
}
