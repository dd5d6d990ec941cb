"""The protocol of the revisited Oxford and Paris benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.evaluation.rankings import checked_depths, checked_ranking, on_host

# The three setups of revisited Oxford/Paris: what counts as found, and what counts as nothing.
_SETUPS = {
    "easy": (("easy",), ("hard", "junk")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("easy", "junk")),
}
_KINDS = ("easy", "hard", "junk")


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """What one setup of revisited Oxford/Paris gives.

    Attributes
    ----------
    mean_average_precision : float
        In [0, 1]; NaN if no query has a positive.
    precision_at : mapping of int to float
        Mean precision at each of the depths that were asked for; NaN if no query has a positive.
    average_precisions : float64 array of shape (m,)
        Average precision of each query; NaN for those without a positive.
    queries : int
        How many queries have a positive: the others are left out of the means.
    """

    mean_average_precision: float
    precision_at: Mapping[int, float]
    average_precisions: NDArray[np.float64]
    queries: int

    def __repr__(self) -> str:
        depths = "".join(f", mP@{k} {100 * v:.2f}" for k, v in self.precision_at.items())
        return f"Score(mAP {100 * self.mean_average_precision:.2f}{depths}, {self.queries} queries)"


@dataclass(frozen=True, slots=True, eq=False)
class Revisited:
    """The three setups of revisited Oxford/Paris, each a `Score`."""

    easy: Score
    medium: Score
    hard: Score

    def __repr__(self) -> str:
        setups = (self.easy, self.medium, self.hard)
        values = "/".join(f"{100 * setup.mean_average_precision:.2f}" for setup in setups)
        return f"Revisited(mAP {values} easy/medium/hard)"


def revisited_protocol(
    ids: Any, ground_truth: Sequence[Mapping[str, Any]], at: Sequence[int] = (1, 5, 10)
) -> Revisited:
    """Mean average precision and precision by the protocol of revisited Oxford and Paris.

    As published with the benchmark (Radenović, Iscen, Tolias, Avrithis and Chum, 2018): Easy asks
    for the easy images, Medium for the easy and the hard ones, Hard for the hard ones. What a
    setup does not ask for (junk; hard in Easy, easy in Hard) is taken out of a ranking before
    ranks are counted. Average precision is the area under the precision-recall curve by
    trapezoids. Precision at k looks no deeper than the last positive: a query with two positives,
    ranked first, has a precision of 1 at every depth.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first, of all items. Ids that the ground truth does not know (distractors,
        appended behind the benchmark's own images) are wrong results. Of lists that were cut
        short, average precision counts the missing positives as never found; precision at k
        knows the positives in the list only, and is too high if the last of them is missing.
    ground_truth : sequence of m mappings
        The ids that are ``"easy"``, ``"hard"`` and ``"junk"`` for each query; other keys are not
        looked at.
    at : sequence of int
        Depths of the precision.

    Returns
    -------
    Revisited
        ``easy``, ``medium`` and ``hard``. Queries without a positive in a setup are left out of
        its means; a setup without any positive has scores of NaN.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking repeats an id, or an id is listed as two of easy,
        hard and junk.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> truth = [{"easy": [3], "hard": [1], "junk": [0]}]
    >>> evaluation.revisited_protocol([[0, 3, 2, 1]], truth)
    Revisited(mAP 100.00/79.17/25.00 easy/medium/hard)
    """
    ranking, depths = checked_ranking(ids), checked_depths(at)
    if len(ground_truth) != len(ranking):
        raise ValueError(
            f"ground_truth must have one mapping for each of the {len(ranking)} queries; got "
            f"{len(ground_truth)}."
        )
    lists = [_known_items(truth, query) for query, truth in enumerate(ground_truth)]
    found = [_find(line, items) for line, items in zip(ranking, lists, strict=True)]
    return Revisited(**{name: _score(name, lists, found, depths) for name in _SETUPS})


@dataclass(frozen=True, slots=True, eq=False)
class _KnownItems:
    """Where a ranking holds items of the ground truth: their places, from 0, and their kinds."""

    places: NDArray[np.int64]
    kinds: NDArray[np.str_]


def _known_items(truth: Any, query: int) -> dict[str, NDArray[np.int64]]:
    """The ids of each kind, checked."""
    missing = [kind for kind in _KINDS if not isinstance(truth, Mapping) or kind not in truth]
    if missing:
        raise ValueError(
            f"ground_truth must map 'easy', 'hard' and 'junk' to ids; query {query} has no "
            f"{', '.join(missing)}. Give an empty list where there is none."
        )
    items = {kind: _id_list(truth[kind], f"{kind!r} of query {query}") for kind in _KINDS}
    together, times = np.unique(np.concatenate(list(items.values())), return_counts=True)
    if together.size and times.max() > 1:
        raise ValueError(
            f"ground_truth must list an item as one of easy, hard and junk; query {query} has "
            f"item {together[times.argmax()]} twice."
        )
    return items


def _id_list(values: Any, what: str) -> NDArray[np.int64]:
    items = on_host(values, what)
    if items.size == 0:
        return np.empty(0, np.int64)
    if items.ndim != 1 or items.dtype.kind not in "iu" or items.min() < 0:
        raise ValueError(
            f"ground_truth must hold ids from 0; {what} is {items.dtype} of shape {items.shape}"
            + (f", from {items.min()}." if items.dtype.kind in "iu" else ".")
        )
    return np.unique(items.astype(np.int64))


def _find(line: NDArray[np.int64], items: Mapping[str, NDArray[np.int64]]) -> _KnownItems:
    # Once for all setups: a ranking of a million items is searched, a few hundred are kept.
    known = np.concatenate([items[kind] for kind in _KINDS])
    kinds = np.repeat(_KINDS, [items[kind].size for kind in _KINDS])
    places = np.flatnonzero(np.isin(line, known))
    order = np.argsort(known)
    return _KnownItems(places, kinds[order][np.searchsorted(known[order], line[places])])


def _score(
    setup: str,
    lists: Sequence[Mapping[str, NDArray[np.int64]]],
    found: Sequence[_KnownItems],
    depths: Sequence[int],
) -> Score:
    """The measures of one setup, the mean over the queries that have something to find in it."""
    wanted, ignored = _SETUPS[setup]
    values = np.full(len(lists), np.nan)
    precisions = np.full((len(lists), len(depths)), np.nan)
    for query, (items, known) in enumerate(zip(lists, found, strict=True)):
        total = sum(items[kind].size for kind in wanted)
        if total:
            taken_out = np.cumsum(np.isin(known.kinds, ignored))
            ranks = (known.places - taken_out)[np.isin(known.kinds, wanted)]
            values[query] = _area(ranks, total)
            precisions[query] = [_precision_before_the_last(ranks, depth) for depth in depths]
    counted = ~np.isnan(values)
    # The mean of nothing is NaN, but NumPy would warn.
    means = precisions[counted].mean(axis=0) if counted.any() else precisions[0]
    return Score(
        mean_average_precision=float(values[counted].mean()) if counted.any() else float("nan"),
        precision_at=dict(zip(depths, means.tolist(), strict=True)),
        average_precisions=values,
        queries=int(counted.sum()),
    )


def _area(ranks: NDArray[np.int64], total: int) -> float:
    """Area under the precision-recall curve, of positives at ranks that count from 0."""
    earlier = np.arange(ranks.size)
    # The curve starts at a precision of 1, before anything was returned.
    before = np.where(ranks == 0, 1, earlier / np.maximum(ranks, 1))
    return float(np.sum(before + (earlier + 1) / (ranks + 1)) / (2 * total))


def _precision_before_the_last(ranks: NDArray[np.int64], depth: int) -> float:
    if ranks.size == 0:
        return 0.0
    reach = min(int(ranks[-1]) + 1, depth)
    return np.count_nonzero(ranks < reach) / reach
