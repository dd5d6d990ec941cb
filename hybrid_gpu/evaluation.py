"""How good a ranking is: average precision, precision, recall, agreement, revisited Oxford/Paris.

Everything here takes rankings: lists of ids, best first, -1 where nothing was found, which counts
as a wrong result. `ranked` makes them from scores, by the one rule of this library for ties: of
items with equal scores, the lower id comes first.

Two definitions of average precision are in use. The measures by class labels and by lists of
relevant items average the precision at each relevant item; `revisited_protocol` takes the area
under the precision-recall curve by trapezoids, as the publication of that benchmark does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import select_backend
from hybrid_gpu.backends.numpy_backend import host_view
from hybrid_gpu.validation import check_count, refuse_masked

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
        values = "/".join(f"{100 * one.mean_average_precision:.2f}" for one in setups)
        return f"Revisited(mAP {values} easy/medium/hard)"


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
    """
    rows = _on_host(scores, "scores")
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


def mean_average_precision(
    ids: Any, labels: Any, query_labels: Any, *, ignore: Any = None
) -> float:
    """Mean average precision where an item is relevant if it has the query's label.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first. Relevant items that a ranking does not hold count as never found.
    labels : array of shape (n,)
        Class of every database item.
    query_labels : array of shape (m,)
        Class of every query.
    ignore : int array of shape (m,), optional
        An item per query that counts neither for nor against it: itself, if it is in the database.

    Returns
    -------
    float
        In [0, 1]. The precision at each relevant item is averaged over all relevant items of the
        query, then over queries; queries without any relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match or no query has a relevant item.
    """
    found = _hits_of_classes(_ranking(ids), labels, query_labels, ignore)
    return _mean([_average_precision(hits, total) for hits, total in found if total])


def precision(ids: Any, labels: Any, query_labels: Any, *, at: int, ignore: Any = None) -> float:
    """The fraction of each query's first ``at`` results that have its label, on average.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first, with at least ``at`` results beside the ignored one.
    labels : array of shape (n,)
        Class of every database item.
    query_labels : array of shape (m,)
        Class of every query.
    at
        How many results count. They count in full, even if the class has fewer items.
    ignore : int array of shape (m,), optional
        An item per query that is taken out of its ranking: itself, if it is in the database.

    Returns
    -------
    float
        In [0, 1]. As in `mean_average_precision`, queries without any relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking is too short, or no query has a relevant item.
    """
    ranking = _ranking(ids)
    at = check_count(at, "at", high=ranking.shape[1])
    # One more than asked for, where one of them may be ignored.
    shallow = ranking[:, : at if ignore is None else at + 1]
    values = []
    for hits, total in _hits_of_classes(shallow, labels, query_labels, ignore):
        if hits.size < at:
            raise ValueError(
                f"at must be at most {hits.size}, what a ranking holds beside the ignored item; "
                f"got {at}."
            )
        if total:
            values.append(np.count_nonzero(hits[:at]) / at)
    return _mean(values)


def mean_average_precision_of_lists(ids: Any, relevant: Sequence[Any]) -> float:
    """Mean average precision where the relevant items of each query are listed.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        Queries whose list is empty are left out.
    """
    ranking = _ranking(ids)
    _check_lists(ranking, relevant)
    values = []
    for line, items in zip(ranking, relevant, strict=True):
        wanted = np.unique(np.asarray(items, dtype=np.int64))
        if wanted.size:
            values.append(_average_precision(np.isin(line, wanted), wanted.size))
    return _mean(values)


def recall(ids: Any, relevant: Sequence[Any], *, at: int | None = None) -> float:
    """The fraction of each query's relevant items among its first ``at`` results, on average.

    Queries without a relevant item are left out. ``at=None`` looks at the whole ranking.
    """
    ranking = _ranking(ids)
    _check_lists(ranking, relevant)
    if at is not None:
        ranking = ranking[:, : check_count(at, "at", high=ranking.shape[1])]
    values = []
    for line, items in zip(ranking, relevant, strict=True):
        wanted = np.unique(np.asarray(items, dtype=np.int64))
        if wanted.size:
            values.append(np.isin(wanted, line).sum() / wanted.size)
    return _mean(values)


def agreement(ids: Any, exact_ids: Any, *, at: int | None = None) -> float:
    """The fraction of the exact top items that a ranking also has among its own, on average.

    Parameters
    ----------
    ids, exact_ids : int arrays of shape (m, k)
        Two rankings of the same queries, best first.
        A query for which the exact one found nothing (-1 only) counts as agreed on.
    at
        Compare the first ``at`` results only.
    """
    one, other = _ranking(ids), _ranking(exact_ids)
    if len(one) != len(other):
        raise ValueError(f"rankings must have as many queries; got {len(one)} and {len(other)}.")
    if at is None:
        at = min(one.shape[1], other.shape[1])
    check_count(at, "at", high=min(one.shape[1], other.shape[1]))
    shared = []
    for found, exact in zip(one[:, :at], other[:, :at], strict=True):
        wanted = exact[exact >= 0]
        shared.append(np.isin(wanted, found).sum() / wanted.size if wanted.size else 1.0)
    return _mean(shared)


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
    """
    ranking, depths = _ranking(ids), _depths(at)
    if len(ground_truth) != len(ranking):
        raise ValueError(
            f"ground_truth must have one mapping for each of the {len(ranking)} queries; got "
            f"{len(ground_truth)}."
        )
    lists = [_known_items(truth, query) for query, truth in enumerate(ground_truth)]
    found = [_find(line, items) for line, items in zip(ranking, lists, strict=True)]
    return Revisited(**{name: _score(name, lists, found, depths) for name in _SETUPS})


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
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
    items = _on_host(values, what)
    if items.size == 0:
        return np.empty(0, np.int64)
    if items.ndim != 1 or items.dtype.kind not in "iu" or items.min() < 0:
        raise ValueError(
            f"ground_truth must hold ids from 0; {what} is {items.dtype} of shape {items.shape}"
            + (f", from {items.min()}." if items.dtype.kind in "iu" else ".")
        )
    return np.unique(items.astype(np.int64))


def _find(line: NDArray[np.int64], items: Mapping[str, NDArray[np.int64]]) -> _Found:
    # Once for all setups: a ranking of a million items is searched, a few hundred are kept.
    known = np.concatenate([items[kind] for kind in _KINDS])
    kinds = np.repeat(_KINDS, [items[kind].size for kind in _KINDS])
    places = np.flatnonzero(np.isin(line, known))
    order = np.argsort(known)
    return _Found(places, kinds[order][np.searchsorted(known[order], line[places])])


def _score(
    setup: str,
    lists: Sequence[Mapping[str, NDArray[np.int64]]],
    found: Sequence[_Found],
    depths: Sequence[int],
) -> Score:
    wanted, ignored = _SETUPS[setup]
    values = np.full(len(lists), np.nan)
    precisions = np.full((len(lists), len(depths)), np.nan)
    for query, (items, one) in enumerate(zip(lists, found, strict=True)):
        total = sum(items[kind].size for kind in wanted)
        if total:
            taken_out = np.cumsum(np.isin(one.kinds, ignored))
            ranks = (one.places - taken_out)[np.isin(one.kinds, wanted)]
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


def _depths(at: Any) -> tuple[int, ...]:
    if isinstance(at, (str, Mapping)) or not hasattr(at, "__iter__"):
        raise ValueError(f"at must be a sequence of depths, such as (1, 5, 10); got {at!r}.")
    return tuple(check_count(depth, "at") for depth in at)


def _hits_of_classes(
    ranking: NDArray[np.int64], labels: Any, query_labels: Any, ignore: Any
) -> Iterator[tuple[NDArray[np.bool_], int]]:
    """Which results of each query have its label, and how many items have it."""
    classes, wanted = _on_host(labels, "labels"), _on_host(query_labels, "query_labels")
    if classes.ndim != 1 or not classes.size or wanted.shape != (len(ranking),):
        raise ValueError(
            f"labels must be (n,) with n at least 1, and query_labels ({len(ranking)},); got "
            f"{classes.shape} and {wanted.shape}."
        )
    if ranking.max() >= classes.size:
        raise ValueError(
            f"ids must lie below {classes.size}, the number of labels; got {ranking.max()}."
        )
    skipped = None if ignore is None else _ignored(ignore, len(ranking), classes.size)
    for query, line in enumerate(ranking):
        relevant = classes == wanted[query]
        if skipped is not None:
            line = line[line != skipped[query]]
            relevant[skipped[query]] = False
        yield relevant[line] & (line >= 0), int(np.count_nonzero(relevant))


def _ignored(ignore: Any, m: int, n: int) -> NDArray[Any]:
    skipped = _on_host(ignore, "ignore")
    if skipped.shape != (m,) or skipped.dtype.kind not in "iu":
        raise ValueError(
            f"ignore must be an integer array ({m},); got {skipped.dtype} of shape {skipped.shape}."
        )
    if skipped.min() < 0 or skipped.max() >= n:
        raise ValueError(
            f"ignore must hold ids in [0, {n - 1}]; got values from {skipped.min()} to "
            f"{skipped.max()}."
        )
    return skipped


def _average_precision(hits: NDArray[np.bool_], total: int) -> float:
    ranks = np.flatnonzero(hits) + 1
    return float(np.sum(np.arange(1, ranks.size + 1) / ranks) / total)


def _ranking(ids: Any) -> NDArray[np.int64]:
    refuse_masked(ids, "ids", "-1")
    ranking = _on_host(ids, "ids")
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
    if _repeats(ranking):
        raise ValueError("ids must not repeat within a ranking; some query lists an item twice.")
    return ranking


def _on_host(values: Any, what: str) -> NDArray[Any]:
    try:
        return np.asarray(host_view(values))
    except ValueError as fault:
        raise ValueError(
            f"{what} must be an array, all rows of the same length: {fault}"
        ) from fault


def _repeats(ranking: NDArray[np.int64]) -> bool:
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


def _check_lists(ranking: NDArray[np.int64], relevant: Sequence[Any]) -> None:
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


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no query has a relevant item: there is nothing to average.")
    return float(np.mean(values))
