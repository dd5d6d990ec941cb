"""What every measure asks of a ranking: lists of ids on the host, each item once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.numpy_backend import host_view
from hybrid_gpu.validation import refuse_masked


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
    """Values of any array library as a NumPy array."""
    try:
        return np.asarray(host_view(values))
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


def check_lists(ranking: NDArray[np.int64], relevant: Sequence[Any]) -> None:
    """Refuse lists of relevant items that are not one for each ranking."""
    if len(relevant) != len(ranking):
        raise ValueError(
            f"relevant must have one list for each of the {len(ranking)} queries; got "
            f"{len(relevant)}."
        )
    for query, items in enumerate(relevant):
        wanted = np.asarray(items)
        if wanted.size and wanted.min() < 0:
            raise ValueError(
                f"relevant must be ids of items, from 0 up; got {wanted.min()} for query {query}."
            )


def mean_of(values: Sequence[float]) -> float:
    """The mean over queries; an error if there is none to average."""
    if not values:
        raise ValueError("no query has a relevant item: there is nothing to average.")
    return float(np.mean(values))
