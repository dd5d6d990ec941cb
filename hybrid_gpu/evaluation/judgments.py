"""What each result of a query is worth, once the junk is out, and what that makes of the list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.evaluation.averages import mean_of
from hybrid_gpu.evaluation.rankings import checked_ranking, id_lists, on_host
from hybrid_gpu.validation import check_count, shown


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One query: the worth of its results, and of its relevant items.

    Attributes
    ----------
    gains : float64 array
        Worth of each result that counts, best result first, junk taken out; 0 for a wrong one.
    ideal : float64 array
        Worth of every relevant item, found or not, the worthiest first. All above 0.
    """

    gains: NDArray[np.float64]
    ideal: NDArray[np.float64]

    def average_precision(self) -> float:
        ranks = np.flatnonzero(self.gains) + 1
        return float(np.sum(np.arange(1, ranks.size + 1) / ranks) / self.ideal.size)

    def precision(self) -> float:
        return np.count_nonzero(self.gains) / self.gains.size

    def recall(self) -> float:
        return np.count_nonzero(self.gains) / self.ideal.size

    def success(self) -> float:
        return float(np.any(self.gains))

    def first_rank(self) -> float:
        """The rank of the first relevant result, from 1; infinity if there is none."""
        return float(np.argmax(self.gains > 0)) + 1 if np.any(self.gains) else float("inf")

    def reciprocal_rank(self) -> float:
        return 1 / self.first_rank()

    def ndcg(self) -> float:
        best = self.ideal[: self.gains.size]
        places = np.flatnonzero(self.gains)
        # As parts of the largest gain: whatever its scale, no sum overflows.
        found = self.gains[places] / best[0] / np.log2(places + 2)
        most = best / best[0] / np.log2(np.arange(2, best.size + 2))
        # Gains that differ by rounding only could bring it above 1.
        return min(1.0, float(np.sum(found) / np.sum(most)))


def values_of(judged: Iterable[Judged], formula: Callable[[Judged], float]) -> NDArray[np.float64]:
    """A value for each query; NaN where nothing is relevant."""
    return np.array(
        [formula(judgment) if judgment.ideal.size else np.nan for judgment in judged], np.float64
    )


def matching_curve(judged: Iterable[Judged], depths: Sequence[int]) -> dict[int, float]:
    """The fraction of queries whose first relevant result is not below each depth."""
    ranks = values_of(judged, Judged.first_rank)
    return {depth: mean_of(np.where(np.isnan(ranks), np.nan, ranks <= depth)) for depth in depths}


def judged_by_labels(
    ids: Any, labels: Any, query_labels: Any, *, ignore: Any, at: int | None = None
) -> Iterator[Judged]:
    """Results that have the query's label are worth 1."""
    ranking = checked_ranking(ids)
    classes, wanted = _checked_labels(labels, query_labels, ranking)
    junk = _checked_junk(ignore, len(ranking), classes.size)
    at = _checked_depth(at, ranking)
    # Counted once for each class that is asked for, not once for each query.
    asked = list(wanted)
    sizes = {label: int(np.count_nonzero(classes == label)) for label in set(asked)}
    for query, (line, label) in enumerate(zip(ranking, asked, strict=True)):
        kept, relevant = _without(line, junk, query, at), sizes[label]
        if junk is not None:
            relevant -= int(np.count_nonzero(classes[junk[query]] == label))
        # -1 would be read as the last item.
        hits = (classes[kept] == label) & (kept >= 0)
        yield Judged(hits.astype(np.float64), np.broadcast_to(1.0, relevant))


def judged_by_lists(
    ids: Any, relevant: Any, *, ignore: Any, at: int | None = None, gains: Any = None
) -> Iterator[Judged]:
    """Results that are listed are worth their gain, or 1."""
    ranking = checked_ranking(ids)
    lists = id_lists(relevant, "relevant", len(ranking))
    worth = None if gains is None else _checked_gains(gains, relevant, lists)
    junk = _checked_junk(ignore, len(ranking))
    at = _checked_depth(at, ranking)
    for query, (line, items) in enumerate(zip(ranking, lists, strict=True)):
        wanted, first = np.unique(items, return_index=True)
        value = np.ones(wanted.size) if worth is None else worth[query][first]
        counts = value > 0
        if junk is not None:
            counts &= ~np.isin(wanted, junk[query])
        wanted, value = wanted[counts], value[counts]
        kept = _without(line, junk, query, at)
        found = np.zeros(kept.size)
        places = np.flatnonzero(np.isin(kept, wanted))
        found[places] = value[np.searchsorted(wanted, kept[places])]
        yield Judged(found, np.sort(value)[::-1])


def _without(
    line: NDArray[np.int64], junk: list[NDArray[np.int64]] | None, query: int, at: int | None
) -> NDArray[np.int64]:
    """The first ``at`` results of a query beside its junk."""
    if junk is None:
        return line[:at]
    # No more can be junk than is listed: the rest of a long ranking need not be looked at.
    line = line if at is None else line[: at + junk[query].size]
    kept = line[~np.isin(line, junk[query])][:at]
    if at is not None and kept.size < at:
        raise ValueError(
            f"at must be at most {kept.size}, what a ranking holds beside the ignored items of "
            f"query {query}; got {at}. Rank more items, or look less deep."
        )
    return kept


def _checked_depth(at: int | None, ranking: NDArray[np.int64]) -> int | None:
    return None if at is None else check_count(at, "at", high=ranking.shape[1])


def _checked_labels(
    labels: Any, query_labels: Any, ranking: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    classes, wanted = on_host(labels, "labels"), on_host(query_labels, "query_labels")
    if classes.ndim != 1 or not classes.size or wanted.shape != (len(ranking),):
        raise ValueError(
            f"labels must be (n,) with n at least 1, and query_labels ({len(ranking)},); got "
            f"{classes.shape} and {wanted.shape}."
        )
    if ranking.max() >= classes.size:
        raise ValueError(
            f"ids must lie below {classes.size}, the number of labels; got {ranking.max()}."
        )
    return classes, wanted


def _checked_junk(ignore: Any, m: int, n: int | None = None) -> list[NDArray[np.int64]] | None:
    """The items of each query that do not count, each once; None if there are none at all."""
    if ignore is None:
        return None
    junk = [np.unique(items) for items in id_lists(ignore, "ignore", m)]
    for query, items in enumerate(junk):
        if n is not None and items.size and items[-1] >= n:
            raise ValueError(
                f"ignore must hold ids in [0, {n - 1}]; got {items[-1]} for query {query}."
            )
    return junk


def _checked_gains(
    gains: Any, relevant: Any, lists: list[NDArray[np.int64]]
) -> list[NDArray[np.float64]]:
    """The gain of every relevant item, in the order of the lists."""
    if not hasattr(gains, "__len__") or len(gains) != len(lists):
        got = len(gains) if hasattr(gains, "__len__") else type(gains).__name__
        raise ValueError(
            f"gains must have one list for each of the {len(lists)} queries; got {got}."
        )
    worth = []
    for query, (line, items) in enumerate(zip(gains, lists, strict=True)):
        if isinstance(relevant[query], (set, frozenset)):
            raise ValueError(
                f"gains need relevant items in an order; got a set for query {query}. Pass lists."
            )
        worth.append(_gain_list(line, items, query))
    return worth


def _gain_list(line: Any, items: NDArray[np.int64], query: int) -> NDArray[np.float64]:
    values = on_host(line, f"gains of query {query}").reshape(-1)
    if values.size != items.size or values.dtype.kind not in "iuf":
        raise ValueError(
            f"gains must have a number for each of the {items.size} relevant items of query "
            f"{query}; got {values.size} of {values.dtype}."
        )
    values = values.astype(np.float64)
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError(
            f"gains must be finite and not negative; got {shown(values)} for query {query}."
        )
    _, first, place = np.unique(items, return_index=True, return_inverse=True)
    if not np.array_equal(values[first][place], values):
        raise ValueError(
            f"gains must be the same wherever an item is listed; query {query} lists one twice, "
            "with two gains."
        )
    return values
