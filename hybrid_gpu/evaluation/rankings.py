"""Rankings from scores, and what every measure asks of rankings, ids and depths."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import select_backend
from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.validation import check_count, refuse_masked, shown


def ranked(scores: Any, *, k: int | None = None) -> NDArray[np.int64]:
    """The ids of the best items of each row of scores, best first, ties to the lower id.

    Parameters
    ----------
    scores : float array of shape (m, n)
        One row per query; larger is better. Infinities are fine, and 0.0 and -0.0 tie.
    k
        How many items of each row; None gives all of them.

    Returns
    -------
    int64 array of shape (m, k)

    Raises
    ------
    ValueError
        If scores are not a non-empty (m, n) array of floats, hold NaN, or have fewer than ``k``
        columns.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.ranked([[0.2, 0.9, 0.2]]).tolist()
    [[1, 0, 2]]
    """
    rows = on_host(scores, "scores")
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind != "f":
        raise ValueError(
            f"scores must be a non-empty float array of shape (m, n); got {rows.dtype} of shape "
            f"{rows.shape}. Reshape one row with scores[None, :], cast with scores.astype(float)."
        )
    if np.isnan(rows).any():
        raise ValueError(
            f"scores must not be NaN, which has no place in an order; got "
            f"{int(np.isnan(rows).sum())}. Give items that must come last a score of -inf."
        )
    k = rows.shape[1] if k is None else check_count(k, "k", high=rows.shape[1])
    ids: NDArray[np.int64] = select_backend("numpy").top_k(rows, k).ids
    return ids


def checked_ranking(ids: Any) -> NDArray[np.int64]:
    """Rankings (m, k) on the host; an error if they are none."""
    refuse_masked(ids, "ids", "-1")
    ranking = on_host(ids, "ids")
    if ranking.ndim != 2 or 0 in ranking.shape or ranking.dtype.kind not in "iu":
        raise ValueError(
            f"ids must be a non-empty integer array of shape (m, k); got {ranking.dtype} of shape "
            f"{ranking.shape}."
        )
    ranking = ranking.astype(np.int64, copy=False)
    if ranking.min() < -1:
        raise ValueError(
            f"ids must be those of items, or -1 for 'nothing found'; got {ranking.min()}."
        )
    if repeats(ranking):
        raise ValueError("ids must not repeat within a ranking; some query lists an item twice.")
    return ranking


def on_host(values: Any, what: str) -> NDArray[Any]:
    """Values of any array library as a NumPy array, copied from a device if they are on one."""
    try:
        return np.asarray(host_copy(values))
    except ValueError as fault:
        raise ValueError(
            f"{what} must be an array, all rows of the same length: {fault}"
        ) from fault


def repeats(ranking: NDArray[np.int64]) -> bool:
    """Whether a line holds an item twice; -1 is none."""
    bound = int(ranking.max()) + 1
    if bound > 2 * ranking.size:
        # Few results of many items: a slot for every item would cost more than the sort.
        ordered = np.sort(ranking, axis=1)
        return bool(np.any((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] >= 0)))
    # Each item's slot keeps one place only: with a repeated item, some place is not read back.
    slots = np.empty(bound, np.int32)
    places = np.arange(ranking.shape[1], dtype=np.int32)
    missing = bool(ranking.min() < 0)
    for line in ranking:
        items = line[line >= 0] if missing else line
        slots[items] = places[: items.size]
        if not np.array_equal(slots[items], places[: items.size]):
            return True
    return False


def id_lists(values: Any, what: str, m: int) -> list[NDArray[np.int64]]:
    """The ids that belong to each of m queries: one id each, or a collection each."""
    if hasattr(values, "ndim"):
        refuse_masked(values, what, "-1")
        values = np.atleast_1d(on_host(values, what))
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping, Set)):
        raise TypeError(
            f"{what} must be a sequence with one list of ids for each of the {m} queries; got "
            f"{shown(values)}."
        )
    if len(values) != m:
        raise ValueError(
            f"{what} must have one list for each of the {m} queries; got {len(values)}. Give an "
            "empty list where there is none."
        )
    return [_id_list(items, what, query) for query, items in enumerate(values)]


def _id_list(items: Any, what: str, query: int) -> NDArray[np.int64]:
    if isinstance(items, (Mapping, Set)):
        items = list(items)
    array = on_host(items, f"{what} of query {query}")
    if not array.size:
        return np.empty(0, np.int64)
    if array.ndim > 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{what} must be an integer array or list of ids for each query; got {array.dtype} of "
            f"shape {array.shape} for query {query}."
        )
    if array.min() < 0 or array.max() > np.iinfo(np.int64).max:
        wrong = array.min() if array.min() < 0 else array.max()
        raise ValueError(
            f"{what} must be ids of items, from 0 up; got {wrong} for query {query}. Leave "
            "padding out: lists may differ in length."
        )
    return array.reshape(-1).astype(np.int64)


def checked_depths(at: Any) -> tuple[int, ...]:
    """The depths of a curve."""
    if isinstance(at, (str, Mapping)) or not hasattr(at, "__iter__"):
        raise ValueError(f"at must be a sequence of depths, such as (1, 5, 10); got {at!r}.")
    return tuple(check_count(depth, "at") for depth in at)
