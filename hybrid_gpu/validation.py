"""Checks of what users pass in: every message says what, what was got, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hybrid_gpu.backends.protocol import Array, Backend
from hybrid_gpu.choices import DtypeName

DTYPES = ("float32", "float64")
METRICS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"cosine": (-1, 1), "cosine-distance": (0, 2), "l2": (0, 2), "squared-l2": (0, 4)}
)
"""What may stand beside the ids of a search engine, and the values that unit vectors can have."""

# Beyond the bounds by rounding: three roundings of 2^-9 (both vectors and the product in bfloat16;
# float16 has 2^-11), or int8 codes in the place of vectors.
_SLACK = 0.01
# When lists count as worst first; see _check_best_first.
_LEAST_RISE, _RISES_TOGETHER, _RISES_OF_ONE_LIST = 1e-3, 2, 9
# Lists that are looked at together: what this takes beside a million of them shall not matter.
_ROWS_AT_ONCE = 65_536


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
    check_finite(array, what, backend)
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


def check_neighbor_lists(
    ids: Any,
    similarities: Any,
    n: int | None,
    *,
    metric: str = "cosine",
    dtype: str,
    backend: Backend,
) -> tuple[Array, Array]:
    """Result lists of a search engine as (m, k) arrays of ids and cosines, in the order they came.

    ``n`` is the number of database items (None: the number of lists). Entries of id -1 go to the
    end of their list, with a cosine of 0: what engines leave beside them is not looked at.
    ``metric`` is one of ``METRICS``; distances become the cosines of unit vectors. Cosines may be
    negative.
    """
    xp = backend.xp
    bounds = METRICS[check_choice(metric, "metric", tuple(METRICS))]
    refuse_masked(ids, "ids", "-1")
    refuse_masked(similarities, "similarities", "0")
    id_array = _as_integers(ids, "ids", backend=backend)
    values = _as_floats(similarities, "similarities", dtype=dtype, backend=backend)
    if id_array.ndim != 2 or 0 in id_array.shape:
        raise ValueError(
            f"ids must be a non-empty 2-D array (queries, results); got shape "
            f"{tuple(id_array.shape)}. Reshape one list with ids[None, :]."
        )
    if tuple(values.shape) != tuple(id_array.shape):
        raise ValueError(
            f"ids and similarities must have the same shape; got {tuple(id_array.shape)} and "
            f"{tuple(values.shape)}."
        )
    items = id_array.shape[0] if n is None else n
    low, high = int(xp.min(id_array)), int(xp.max(id_array))
    if low < -1 or high >= items:
        raise ValueError(
            f"ids must lie in [0, {items - 1}], or be -1 for 'nothing found'; got values from "
            f"{low} to {high}."
        )
    if low < 0:
        missing = id_array < 0
        order = xp.argsort(xp.astype(missing, xp.int64), axis=1, stable=True)
        values = xp.where(missing, xp.zeros_like(values), values)
        id_array = xp.take_along_axis(id_array, order, axis=1)
        values = xp.take_along_axis(values, order, axis=1)
    check_finite(values, "similarities", backend)
    _check_range(values, metric, bounds, xp)
    cosines = values
    if metric != "cosine":
        halves = values * values / 2 if metric == "l2" else values * (2 / bounds[1])
        cosines = xp.where(id_array < 0, values, 1 - halves)
    _check_best_first(id_array, cosines, metric, xp)
    return id_array, cosines


def _check_range(values: Array, metric: str, bounds: tuple[float, float], xp: Any) -> None:
    """Refuse what no two unit vectors can have."""
    slack = _SLACK * (bounds[1] - bounds[0]) / 2
    low, high = float(xp.min(values)), float(xp.max(values))
    if bounds[0] - slack <= low and high <= bounds[1] + slack:
        return
    wrong = high if high > bounds[1] + slack else low
    what = f"metric={metric!r} takes values in [{bounds[0]:g}, {bounds[1]:g}]; got {wrong:.6g}."
    normalize = "x = x / np.linalg.norm(x, axis=1, keepdims=True)"
    if metric == "cosine":
        raise ValueError(
            f"similarities must be cosines: {what} For raw inner products, scale descriptors and "
            f"queries to unit length before searching, {normalize}; for distances between unit "
            "vectors pass metric='cosine-distance', 'l2' or 'squared-l2' (FAISS's L2 is squared)."
        )
    raise ValueError(
        f"distances must be those of unit vectors: {what} Scale descriptors and queries before "
        f"searching, {normalize}; FAISS's L2 distances are squared: metric='squared-l2'."
    )


def _check_best_first(ids: Array, cosines: Array, metric: str, xp: Any) -> None:
    """Refuse lists that run from the worst result to the best, as distances taken for cosines do.

    An engine that returns its results in no order gives lists that rise by chance. So lists are
    refused together: none of those that move by more than 1e-3 falls anywhere, and they rise twice
    or more. A list alone is enough if it rises nine times, which chance does to one in millions.
    """
    moving = rising = steps = 0
    for start in range(0, ids.shape[0], _ROWS_AT_ONCE):
        part = slice(start, min(start + _ROWS_AT_ONCE, ids.shape[0]))
        # What was not found stands at the end, so that two found results stand side by side.
        found = ids[part, 1:] >= 0
        change = cosines[part, 1:] - cosines[part, :-1]
        change = xp.where(found, change, xp.zeros_like(change))
        up = xp.sum(xp.clip(change, min=0), axis=1)
        down = xp.sum(xp.clip(change, max=0), axis=1)
        only_up = (up > _LEAST_RISE) & (down == 0)
        times = xp.where(only_up, xp.sum(xp.astype(change > 0, xp.int64), axis=1), 0)
        if bool(xp.any(times >= _RISES_OF_ONE_LIST)):
            raise _worst_first(metric)
        moving += int(xp.count_nonzero((up > _LEAST_RISE) | (down < -_LEAST_RISE)))
        rising += int(xp.count_nonzero(only_up))
        steps += int(xp.sum(times))
    if rising == moving and steps >= _RISES_TOGETHER:
        raise _worst_first(metric)


def _worst_first(metric: str) -> ValueError:
    turn = "turn lists that are worst first with ids[:, ::-1], similarities[:, ::-1]"
    if metric != "cosine":
        return ValueError(
            f"distances must come best first, smallest first; these lists only fall. Pass cosines "
            f"with metric='cosine', and {turn}."
        )
    return ValueError(
        "similarities must come best first, largest first; these lists only rise. Pass distances "
        "between unit vectors with metric='cosine-distance', 'l2' or 'squared-l2' (FAISS's L2 is "
        f"squared), and {turn}."
    )


def check_item_ids(ids: Any, n: int, *, backend: Backend) -> Array:
    """A non-empty (m,) array of ids of database items."""
    xp = backend.xp
    if isinstance(ids, np.ma.MaskedArray):
        raise TypeError(
            "ids must not be a masked array: its mask would be lost. Pass ids.compressed()."
        )
    array = _as_integers(ids, "ids", backend=backend)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"ids must be a non-empty 1-D array; got shape {tuple(array.shape)}.")
    low, high = int(xp.min(array)), int(xp.max(array))
    if low < 0 or high >= n:
        raise ValueError(f"ids must lie in [0, {n - 1}]; got values from {low} to {high}.")
    return array


def check_finite(array: Array, what: str, backend: Backend) -> None:
    """Refuse NaN and infinity."""
    xp = backend.xp
    if not bool(xp.all(xp.isfinite(array))):
        raise ValueError(
            f"{what} must be finite in {dtype_name(array.dtype)}; got NaN or infinity. Find the "
            f"rows with ~np.isfinite({what}).all(axis=1)."
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


def _as_floats(values: Any, what: str, *, dtype: str, backend: Backend) -> Array:
    """An array of floats on the backend, in the given precision."""
    return _in_precision(_floats(values, what, backend), dtype, backend)


def _floats(values: Any, what: str, backend: Backend) -> Any:
    """An array of floats, as it is."""
    array = _as_array(values, what, backend)
    name = dtype_name(array.dtype)
    if name not in ("float16", "float32", "float64"):
        raise TypeError(
            f"{what} must be floating point; got dtype {name}. "
            f"Cast them with {what}.astype('float32')."
        )
    return array


def _in_precision(array: Any, dtype: str, backend: Backend) -> Array:
    # What is too large for the precision becomes infinite, and is refused as such.
    with np.errstate(over="ignore", invalid="ignore"):
        return backend.asarray(array, dtype=dtype)


def _as_integers(values: Any, what: str, *, backend: Backend) -> Array:
    """A non-empty array of int64 on the backend."""
    values = _as_array(values, what, backend)
    name = dtype_name(values.dtype)
    if 0 in values.shape:
        raise ValueError(
            f"{what} must be non-empty; got shape {tuple(values.shape)}. Skip the call when there "
            "is nothing to do."
        )
    if not name.startswith(("int", "uint")):
        raise TypeError(
            f"{what} must be integers; got dtype {name}. Cast them with {what}.astype('int64')."
        )
    integers = backend.asarray(values, dtype="int64")
    # What is too large becomes negative, and -1 stands for 'nothing found'.
    if name == "uint64" and bool(backend.xp.any(integers < 0)):
        raise ValueError(
            f"{what} must be below 2**63; got larger ones in uint64. If they stand for 'nothing "
            f"found', cast them with {what}.astype('int64')."
        )
    return integers


def _as_array(values: Any, what: str, backend: Backend) -> Any:
    """Something with a dtype: arrays as they are, the rest by DLPack or as NumPy reads it."""
    if hasattr(values, "tocsr"):
        raise TypeError(f"{what} must be a dense array; got a sparse one. Pass {what}.toarray().")
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
