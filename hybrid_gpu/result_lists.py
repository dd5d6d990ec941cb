"""Lists of results as search engines give them: of any length, padded, by cosines or distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.protocol import Array, Backend
from hybrid_gpu.list_order import check_best_first, list_tiles
from hybrid_gpu.other_arrays import as_array, readable, whole_numbers, words_of
from hybrid_gpu.validation import (
    METRICS,
    as_floats,
    as_integers,
    check_choice,
    check_finite,
    refuse_masked,
    shown,
)

# Beyond the bounds by rounding: three roundings of 2^-9 (both vectors and the product in bfloat16;
# float16 has 2^-11), or int8 codes in the place of vectors.
_SLACK = 0.01
# No distance of unit vectors: engines fill up with NaN, infinity, or the largest number they have.
_FILLER = 3e38
_SIMILARITIES = ("cosine", "inner-product", "ip")
# What engines and scikit-learn call their metrics.
_OTHER_NAMES = {
    "cos": "'cosine-distance' for usearch, whose cos is 1 - cosine",
    "dot": "'inner-product', or 'cosine-distance' for LanceDB, whose dot is 1 - product",
    "euclid": "'l2'",
    "euclidean": "'l2'",
    "l2sq": "'squared-l2'",
    "sqeuclidean": "'squared-l2'",
}
_FORMS = "a list for each query, [[3, 5], [8]], or a dict, [{3: 0.9, 5: 0.8}, {8: 0.7}]"


def check_metric(metric: Any) -> str:
    """One of ``METRICS``."""
    other = _OTHER_NAMES.get(metric.lower()) if isinstance(metric, str) else None
    if other is not None and metric not in METRICS:
        raise ValueError(
            f"metric must be one of {', '.join(METRICS)}; got {shown(metric)}. Pass {other}."
        )
    return check_choice(metric, "metric", tuple(METRICS))


def batched(ids: Any, similarities: Any) -> tuple[Any, Any]:
    """The results of one query as those of a batch of one; anything else as it came.

    Some engines return flat lists for one query, even for a batch of one.
    """
    if isinstance(ids, Mapping):
        return [ids], similarities
    ids, similarities = readable(ids), readable(similarities)
    if not _is_flat(ids) or not _is_flat(similarities):
        return ids, similarities
    if isinstance(ids, (list, tuple)) and isinstance(similarities, (list, tuple)):
        return [ids], [similarities]
    return _as_row(ids), _as_row(similarities)


def _as_row(values: Any) -> Any:
    return (as_array(values) if isinstance(values, (list, tuple)) else values)[None, :]


def _is_flat(values: Any) -> bool:
    """Whether these are the entries of one list."""
    if isinstance(values, (list, tuple)):
        return bool(values) and not any(map(_is_list, values))
    if _rows(values) is not None:
        return False
    return len(getattr(values, "shape", ())) == 1


def evened(ids: Any, similarities: Any) -> tuple[Any, Any]:
    """Result lists of m queries as two arrays, or whatever is no lists as it came.

    Dicts from items to similarities are taken apart. Lists of different lengths are filled up: with
    -1 or, where items are no integers, with None.

    Raises
    ------
    ValueError, TypeError
        For a dict beside a list, and for lists that do not fit together.
    """
    rows = _rows(ids)
    if rows is not None and any(isinstance(row, Mapping) for row in rows):
        if not all(isinstance(row, Mapping) for row in rows):
            raise TypeError(
                f"ids must be lists, or dicts of similarities; got both. Pass {_FORMS}."
            )
        if similarities is not None:
            raise ValueError("similarities stand in the dicts already; leave similarities out.")
        return _filled([list(row) for row in rows], [list(row.values()) for row in rows])
    if similarities is None:
        raise TypeError(
            f"similarities of the ids are missing. Pass ids and similarities, or {_FORMS}."
        )
    values = _rows(similarities)
    if rows is None or values is None or (_is_even(rows) and _is_even(values)):
        return ids, similarities
    return _filled(rows, values)


def _rows(lists: Any) -> list[Any] | None:
    """The list of each query; None for arrays, and for what is no list of lists."""
    if hasattr(lists, "__array__") and not isinstance(lists, np.ndarray):
        lists = readable(lists)  # a column of lists
    if isinstance(lists, np.ndarray) and lists.dtype == object and lists.ndim == 1:
        lists = lists.tolist()
    if not isinstance(lists, (list, tuple)) or not lists:
        return None
    if not all(_is_list(row) for row in lists):
        return None
    return list(lists)


def _is_list(one: Any) -> bool:
    """Whether this is a list of some kind, an array too, of a length that is known."""
    return (
        hasattr(one, "__len__") and isinstance(one, Iterable) and not isinstance(one, str | bytes)
    )


def _is_even(rows: list[Any]) -> bool:
    """Whether lists have the same length, and are not empty."""
    lengths = {len(row) for row in rows}
    return len(lengths) == 1 and 0 not in lengths


def _filled(rows: list[Any], values: list[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    lengths = [len(row) for row in rows]
    for query, (count, other) in enumerate(zip(lengths, map(len, values), strict=False)):
        if count != other:
            raise ValueError(
                f"ids and similarities must be as many for each query; query {query} has {count} "
                f"ids and {other} similarities."
            )
    if len(rows) != len(values):
        raise ValueError(
            f"ids and similarities must have a list for each query; got {len(rows)} and "
            f"{len(values)} lists."
        )
    place = np.arange(max(1, *lengths))[None, :] < np.array(lengths)[:, None]
    items = _joined(rows)
    nothing: Any = {"O": None, "u": 2**64 - 1}.get(items.dtype.kind, -1)
    ids, cosines = np.full(place.shape, nothing, items.dtype), np.zeros(place.shape)
    ids[place] = items
    given = _joined(values)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"similarities must be lists of numbers; got {shown(given)}.")
    cosines[place] = given
    return ids, cosines


def _joined(rows: list[Any]) -> NDArray[Any]:
    """All entries in a row: int64, uint64, floats, or objects as they are."""
    rows = [_on_host(row) for row in rows if len(row)]
    parts = [as_array(row) for row in rows]
    kinds = "".join(sorted({part.dtype.kind for part in parts}))
    if kinds in ("", "i"):
        return np.concatenate(parts or [np.empty(0, np.int64)]).astype(np.int64)
    if kinds in ("u", "f", "fi"):
        return np.concatenate(parts).astype(np.uint64 if kinds == "u" else np.float64)
    # NumPy would make strings of the integers among them, and floats of large integers.
    flat = [one for row in rows for one in (row.tolist() if hasattr(row, "tolist") else row)]
    if all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in flat):
        return whole_numbers(flat)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array


def _on_host(row: Any) -> Any:
    """A list as NumPy reads it; the lists of a device are copied one by one."""
    if array_api_compat.is_cupy_array(row):
        row = row.get()
    row = readable(row)
    row = row.cpu() if array_api_compat.is_torch_array(row) else row
    return with_gaps(np.asarray(row)) if hasattr(row, "dtype") else row


def with_gaps(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids of 32 bits as int64, -1 where these say 'nothing found'; others as they are.

    The largest number of 32 bits says so. Of more bits, it would be a number like any other.
    """
    if ids.dtype != np.uint32:
        return ids
    wide = ids.astype(np.int64)
    return np.where(wide == 2**32 - 1, -1, wide)


def is_filler(values: Array, found: Array, xp: Any) -> Array:
    """Where lists (m, q) of distances end in what says that nothing was found.

    That is NaN, infinity or the largest float, and behind it nothing but more of it, or what was
    not ``found`` anyway. In the midst of a list it is a mistake. Where there is nothing else in any
    list, something is wrong with all of them.
    """
    return _ends_in_filler(values, found, xp) & xp.any(found & (xp.abs(values) < _FILLER))


def _ends_in_filler(values: Array, found: Array, xp: Any) -> Array:
    """Where lists end in filler, whatever the other lists are."""
    filler = ~(xp.abs(values) < _FILLER)
    good = xp.astype(found & ~filler, xp.int64)
    total = xp.sum(good, axis=1, keepdims=True)
    return filler & (total == xp.cumulative_sum(good, axis=1))


def is_distance(metric: str) -> bool:
    """Whether smaller is nearer. Nobody fills up lists of cosines with NaN: there it is a fault."""
    return check_metric(metric) not in _SIMILARITIES


def check_neighbor_lists(
    ids: Any,
    similarities: Any,
    n: int | None,
    *,
    metric: str = "cosine",
    dtype: str,
    narrow: bool = False,
    backend: Backend,
) -> tuple[Array, Array]:
    """Result lists of a search engine as (m, k) arrays of ids and cosines, in the order they came.

    ``n`` is the number of database items (None: the number of lists). Entries of id -1 go to the
    end of their list, with a cosine of 0: what engines leave beside them is not looked at. So does
    what they fill up lists of distances with. ``metric`` is one of ``METRICS``; distances become
    the cosines of unit vectors. Cosines may be negative. With ``narrow``, ids of 32 bits stay so.

    What needs no change is not copied, and what lies between is made for some lists at a time:
    those of a whole database may be mapped from a file.
    """
    xp, metric = backend.xp, check_metric(metric)
    refuse_masked(ids, "ids", "-1")
    refuse_masked(similarities, "similarities", "0")
    words = words_of(similarities)
    ids, similarities = evened(ids, similarities)
    id_array = as_integers(ids, "ids", gaps=True, narrow=narrow, backend=backend)
    values = as_floats(similarities, "similarities", dtype=dtype, backend=backend)
    _check_shapes(id_array, values, ids)
    items = id_array.shape[0] if n is None else n
    id_array, values = _gaps_last(id_array, values, items, is_distance(metric), xp)
    for rows in list_tiles(values):
        check_finite(values[rows, :], "similarities", backend, words)
    _check_range(values, metric, words.units.format("x"), xp)
    cosines = _as_cosines(id_array, values, metric, xp)
    check_best_first(id_array, cosines, distances=is_distance(metric), xp=xp)
    return id_array, cosines


def _gaps_last(
    ids: Array, values: Array, items: int, distances: bool, xp: Any
) -> tuple[Array, Array]:
    """Lists with what was not found at their end, by the id -1 and a value of 0; checks the ids."""
    # Where there is nothing but filler, something is wrong with all lists.
    filled_up = distances and any(
        bool(xp.any((ids[rows, :] >= 0) & (xp.abs(values[rows, :]) < _FILLER)))
        for rows in list_tiles(ids)
    )

    def known(rows: slice) -> Array:
        some = ids[rows, :]
        if not filled_up:
            return some
        filler = _ends_in_filler(values[rows, :], some >= 0, xp)
        return xp.where(filler, -xp.ones_like(some), some)

    ends = [(int(xp.min(some)), int(xp.max(some))) for some in map(known, list_tiles(ids))]
    if _least_id(min(low for low, _ in ends), max(high for _, high in ends), items) >= 0:
        return ids, values
    new_ids, new_values = xp.empty_like(ids), xp.empty_like(values)
    for rows in list_tiles(ids):
        some = known(rows)
        missing = some < 0
        order = xp.argsort(xp.astype(missing, xp.int64), axis=1, stable=True)
        numbers = xp.where(missing, xp.zeros_like(values[rows, :]), values[rows, :])
        new_ids[rows, :] = xp.take_along_axis(some, order, axis=1)
        new_values[rows, :] = xp.take_along_axis(numbers, order, axis=1)
    return new_ids, new_values


def _as_cosines(ids: Array, values: Array, metric: str, xp: Any) -> Array:
    """What an engine gives, as the cosines of unit vectors; 0 beside an id of -1."""
    if not is_distance(metric):
        return values
    cosines = xp.empty_like(values)
    for rows in list_tiles(values):
        some = values[rows, :]
        halves = some * some / 2 if metric == "l2" else some * (2 / METRICS[metric][1])
        cosines[rows, :] = xp.where(ids[rows, :] < 0, some, 1 - halves)
    return cosines


def _check_shapes(ids: Array, values: Array, given: Any) -> None:
    if ids.ndim != 2 or 0 in ids.shape:
        one = "[ids], [similarities]" if isinstance(given, (list, tuple)) else "ids[None, :]"
        raise ValueError(
            f"ids must be a non-empty 2-D array (queries, results); got shape "
            f"{tuple(ids.shape)}. Reshape one list with {one}."
        )
    if tuple(values.shape) != tuple(ids.shape):
        raise ValueError(
            f"ids and similarities must have the same shape; got {tuple(ids.shape)} and "
            f"{tuple(values.shape)}."
        )


def _least_id(low: int, high: int, items: int) -> int:
    """The least of ids from one to another, if all are in their range."""
    if low < -1 or high >= items:
        raise ValueError(
            f"ids must lie in [0, {items - 1}], or be -1 for 'nothing found'; got values from "
            f"{low} to {high}. For an engine with names of its own, build the index with keys=."
        )
    return low


def _check_range(values: Array, metric: str, normalize: str, xp: Any) -> None:
    """Refuse what no two unit vectors can have; ``normalize`` gives vectors x this length."""
    bounds = METRICS[metric]
    slack = _SLACK * (bounds[1] - bounds[0]) / 2
    low, high = float(xp.min(values)), float(xp.max(values))
    if bounds[0] - slack <= low and high <= bounds[1] + slack:
        return
    wrong = high if high > bounds[1] + slack else low
    what = f"metric={metric!r} takes values in [{bounds[0]:g}, {bounds[1]:g}]; got {wrong:.6g}."
    normalize = f"x = {normalize}"
    if not is_distance(metric):
        raise ValueError(
            f"similarities must be cosines: {what} For raw inner products, scale descriptors and "
            f"queries to unit length before searching, {normalize}; for distances between unit "
            "vectors pass metric='cosine-distance', 'l2' or 'squared-l2' (FAISS's L2 is squared)."
        )
    raise ValueError(
        f"distances must be those of unit vectors: {what} Scale descriptors and queries before "
        f"searching, {normalize}; FAISS's L2 distances are squared: metric='squared-l2'."
    )
