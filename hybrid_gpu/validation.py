"""Checks of what users pass in: every message says what, what was got, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hybrid_gpu.backends.protocol import Array, Backend
from hybrid_gpu.choices import DtypeName
from hybrid_gpu.other_arrays import NUMPY, Words, odd_columns, readable, words_of

DTYPES = ("float32", "float64")
METRICS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "cosine": (-1, 1),
        "inner-product": (-1, 1),
        "ip": (-1, 1),
        "cosine-distance": (0, 2),
        "l2": (0, 2),
        "squared-l2": (0, 4),
    }
)
"""What may stand beside the ids of a search engine, and the values that unit vectors can have."""


def check_dtype(dtype: Any) -> DtypeName:
    """``"float32"`` or ``"float64"``."""
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype must be 'float32' or 'float64'; got {shown(dtype)}.")
    return "float32" if name == "float32" else "float64"


def dtype_name(dtype: Any) -> str:
    """The bare name of a dtype of any array library."""
    if isinstance(dtype, type):
        return dtype.__name__
    return str(getattr(dtype, "name", dtype)).rsplit(".", 1)[-1]


def item_bytes(array: Array) -> int:
    """Bytes of one entry of an array of any library."""
    return int(np.dtype(dtype_name(array.dtype)).itemsize)


def check_count(value: Any, what: str, *, low: int = 1, high: int | None = None) -> int:
    """An integer between ``low`` and ``high``, both included."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} must be an integer; got {shown(value)}.")
    if value < low:
        raise ValueError(f"{what} must be at least {low}; got {shown(value)}.")
    if high is not None and value > high:
        raise ValueError(f"{what} must be at most {high}; got {shown(value)}.")
    return int(value)


def check_alpha(alpha: Any) -> float:
    """The restart parameter of diffusion, in [0, 1)."""
    value = check_number(alpha, "alpha")
    if not 0 <= value < 1:
        raise ValueError(f"alpha must lie in [0, 1); got {value}. The paper uses 0.99.")
    return value


def check_positive(value: Any, what: str) -> float:
    """A finite number above 0."""
    number = check_number(value, what)
    if number <= 0:
        raise ValueError(f"{what} must be positive; got {number}.")
    return number


def check_number(value: Any, what: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{what} must be a number; got {shown(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf  # an integer of hundreds of digits
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite in float64; got {shown(value)}.")
    return number


def check_sparsity(value: Any) -> float:
    """The fraction of entries to drop, in [0, 1)."""
    sparsity = check_number(value, "sparsity")
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must lie in [0, 1); got {sparsity}. The paper uses 0.99.")
    return sparsity


def check_sequence(values: Any, what: str, example: str) -> tuple[Any, ...]:
    """The entries of a list, a 1-D array or the like; a word is none."""
    try:
        if not isinstance(values, (str, bytes, dict, set)):
            return tuple(values)
    except TypeError:
        pass
    raise TypeError(f"{what} must be a sequence of numbers; got {shown(values)}. Pass {example}.")


def check_flag(value: Any, what: str) -> bool:
    """True or False; an array or a word is none of both."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what} must be True or False; got {shown(value)}.")
    return bool(value)


def check_kind(value: Any, what: str, kind: type[Any] | tuple[type[Any], ...], advice: str) -> None:
    """Refuse what is not a record of the library's own."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{what} must be of type {names}; got {shown(value)}. {advice}")


def shown(value: Any) -> str:
    """A value for a message, on one line and not longer than that."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = f"an integer of {value.bit_length()} bits"
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


def check_vectors(values: Any, what: str, *, dtype: str, backend: Backend) -> Array:
    """A finite, non-empty (n, d) array of floats on the backend, in the given precision."""
    array = _in_precision(check_vector_rows(values, what, backend=backend), dtype, backend)
    check_finite(array, what, backend, words_of(values))
    return array


def check_vector_rows(values: Any, what: str, *, backend: Backend) -> Any:
    """A non-empty (n, d) array of floats where it is; its values are not looked at."""
    refuse_masked(values, what, "0")
    array = _floats(values, what, backend)
    axes = len(array.shape)
    if axes != 2:
        hint = f" Reshape one vector with {what}[None, :]." if axes == 1 else ""
        raise ValueError(f"{what} must be 2-D (n, d); got shape {tuple(array.shape)}.{hint}")
    if 0 in array.shape:
        raise ValueError(
            f"{what} must hold at least one vector; got shape {tuple(array.shape)}. "
            "Skip the call when there is nothing to do."
        )
    return array


def check_item_ids(ids: Any, n: int, *, backend: Backend) -> Array:
    """A non-empty (m,) array of ids of database items."""
    xp = backend.xp
    if isinstance(ids, np.ma.MaskedArray):
        raise TypeError(
            "ids must not be a masked array: its mask would be lost. Pass ids.compressed()."
        )
    array = as_integers(ids, "ids", backend=backend)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"ids must be a non-empty 1-D array; got shape {tuple(array.shape)}.")
    low, high = int(xp.min(array)), int(xp.max(array))
    if low < 0 or high >= n:
        raise ValueError(f"ids must lie in [0, {n - 1}]; got values from {low} to {high}.")
    return array


def check_finite(array: Array, what: str, backend: Backend, words: Words = NUMPY) -> None:
    """Refuse NaN and infinity; the message has the words of the library that they came from."""
    xp = backend.xp
    if not bool(xp.all(xp.isfinite(array))):
        raise ValueError(
            f"{what} must be finite in {dtype_name(array.dtype)}; got NaN or infinity. Find the "
            f"rows with {words.not_finite.format(what)}."
        )


def refuse_masked(values: Any, what: str, filler: str) -> None:
    """Refuse NumPy's masked arrays, whose mask no other library looks at."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{what} must not be a masked array: its mask would be lost. Pass "
            f"{what}.filled({filler})."
        )


def check_choice(value: Any, what: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    # Not every value can be compared with a word: arrays answer by arrays.
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}; got {shown(value)}.")
    return str(value)


def as_floats(values: Any, what: str, *, dtype: str, backend: Backend) -> Array:
    """An array of floats on the backend, in the given precision."""
    return _in_precision(_floats(values, what, backend), dtype, backend)


def _floats(values: Any, what: str, backend: Backend) -> Any:
    """An array of floats, as it is."""
    words = words_of(values)
    # Before they are read: of dates and truth values beside numbers, libraries make numbers.
    odd = odd_columns(values)
    if odd:
        raise TypeError(
            f"{what} must have numbers in every column; {', '.join(odd[:3])} does not. Leave out "
            f"what does not with {words.numbers_only.format(what)}."
        )
    array = _as_array(values, what, backend)
    name = dtype_name(array.dtype)
    if name in ("float16", "float32", "float64"):
        return array
    raise TypeError(
        f"{what} must be floating point; got dtype {name}. Cast them with "
        f"{words.floats.format(what)}."
    )


def _in_precision(array: Any, dtype: str, backend: Backend) -> Array:
    # What is too large for the precision becomes infinite, and is refused as such.
    with np.errstate(over="ignore", invalid="ignore"):
        return backend.asarray(array, dtype=dtype)


def as_integers(
    values: Any, what: str, *, gaps: bool = False, narrow: bool = False, backend: Backend
) -> Array:
    """A non-empty array of int64 on the backend; with ``narrow``, int32 stays what it is.

    With ``gaps``, what unsigned engines return for 'nothing found' becomes -1: the largest number
    of 32 or 64 bits.
    """
    array, words = _as_array(values, what, backend), words_of(values)
    name = dtype_name(array.dtype)
    if 0 in array.shape:
        raise ValueError(
            f"{what} must be non-empty; got shape {tuple(array.shape)}. Skip the call when there "
            "is nothing to do."
        )
    if not name.startswith(("int", "uint")):
        advice = f"Cast them with {words.integers.format(what)}."
        if name.startswith(("str", "object")):
            advice = "Names of your own are taken by an index that is built with keys=."
        raise TypeError(f"{what} must be integers; got dtype {name}. {advice}")
    kept = narrow and name == "int32"
    xp, integers = backend.xp, backend.asarray(array, dtype="int32" if kept else "int64")
    if gaps and name == "uint32":
        integers = xp.where(integers == 2**32 - 1, -xp.ones_like(integers), integers)
    # What is too large becomes negative, and -1 stands for 'nothing found'.
    if name == "uint64" and bool(xp.any(integers < (-1 if gaps else 0))):
        raise ValueError(
            f"{what} must be below 2**63; got larger ones in uint64. If they stand for 'nothing "
            f"found', cast them with {words.integers.format(what)}."
        )
    return integers


def _as_array(values: Any, what: str, backend: Backend) -> Any:
    """Something with a dtype: arrays as they are, the rest by DLPack or as NumPy reads it."""
    if hasattr(values, "tocsr"):
        raise TypeError(f"{what} must be a dense array; got a sparse one. Pass {what}.toarray().")
    values = readable(values)
    if hasattr(values, "dtype"):
        return values
    if hasattr(values, "__dlpack__"):
        return backend.asarray(values)
    try:
        return np.asarray(values)
    except ValueError as fault:
        raise ValueError(
            f"{what} must be an array, all rows of the same length: {fault}"
        ) from fault


def is_bool(value: Any) -> bool:
    """Whether a value is True or False, of Python or NumPy."""
    return isinstance(value, (bool, np.bool_))
