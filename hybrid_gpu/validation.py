"""Checks of what users pass in: every message says what, what was got, and what to do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybrid_gpu.backends.protocol import Array, Backend

DTYPES = ("float32", "float64")


def check_dtype(dtype: Any) -> str:
    """``"float32"`` or ``"float64"``."""
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype must be 'float32' or 'float64'; got {dtype!r}.")
    return name


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
        raise TypeError(f"{what} must be an integer; got {value!r}.")
    if value < low:
        raise ValueError(f"{what} must be at least {low}; got {value}.")
    if high is not None and value > high:
        raise ValueError(f"{what} must be at most {high}; got {value}.")
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
        raise TypeError(f"{what} must be a number; got {value!r}.")
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite; got {value}.")
    return float(value)


def check_vectors(values: Any, what: str, *, dtype: str, backend: Backend) -> Array:
    """A finite, non-empty (n, d) array of floats on the backend, in the given precision."""
    array = _as_floats(values, what, dtype=dtype, backend=backend)
    if array.ndim != 2:
        hint = f" Reshape one vector with {what}[None, :]." if array.ndim == 1 else ""
        raise ValueError(f"{what} must be 2-D (n, d); got shape {tuple(array.shape)}.{hint}")
    if 0 in array.shape:
        raise ValueError(
            f"{what} must hold at least one vector; got shape {tuple(array.shape)}. "
            "Skip the call when there is nothing to do."
        )
    check_finite(array, what, backend)
    return array


def check_neighbor_lists(
    ids: Any, similarities: Any, n: int | None, *, dtype: str, backend: Backend
) -> tuple[Array, Array]:
    """Result lists of a search engine as (m, k) arrays; entries that are padding become id -1.

    ``n`` is the number of database items (None: the number of lists). Similarities of padded
    entries are not looked at, because engines leave anything there.
    """
    xp = backend.xp
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
    values = xp.where(id_array < 0, xp.zeros_like(values), values)
    check_finite(values, "similarities", backend)
    smallest = float(xp.min(values))
    if smallest < 0:
        raise ValueError(
            f"similarities must not be negative (cosines, larger is closer); got {smallest:.6g}. "
            "Clip cosines with np.maximum(similarities, 0); for Euclidean distances between unit "
            "vectors pass 1 - distances**2 / 2."
        )
    return id_array, values


def check_item_ids(ids: Any, n: int, *, backend: Backend) -> Array:
    """A non-empty (m,) array of ids of database items."""
    xp = backend.xp
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
            f"{what} must be finite; got NaN or infinity. Find the rows with "
            f"~np.isfinite({what}).all(axis=1)."
        )


def check_choice(value: Any, what: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}; got {value!r}.")
    return str(value)


def _as_floats(values: Any, what: str, *, dtype: str, backend: Backend) -> Array:
    if not hasattr(values, "dtype"):
        values = np.asarray(values)
    name = dtype_name(values.dtype)
    if name not in ("float16", "float32", "float64"):
        raise TypeError(
            f"{what} must be floating point; got dtype {name}. "
            f"Cast them with {what}.astype('float32')."
        )
    return backend.asarray(values, dtype=dtype)


def _as_integers(values: Any, what: str, *, backend: Backend) -> Array:
    if not hasattr(values, "dtype"):
        values = np.asarray(values)
    name = dtype_name(values.dtype)
    if not name.startswith(("int", "uint")):
        raise TypeError(
            f"{what} must be integers; got dtype {name}. Cast them with {what}.astype('int64')."
        )
    return backend.asarray(values, dtype="int64")
