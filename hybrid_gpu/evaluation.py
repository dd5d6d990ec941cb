"""How good a ranking is: average precision, recall, and agreement with an exact ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.numpy_backend import host_view
from hybrid_gpu.validation import check_count


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
    ranking, classes = _ranking(ids), np.asarray(host_view(labels))
    wanted = np.asarray(host_view(query_labels))
    if classes.ndim != 1 or wanted.shape != (len(ranking),):
        raise ValueError(
            f"labels must be (n,) and query_labels ({len(ranking)},); got {classes.shape} and "
            f"{wanted.shape}."
        )
    if ranking.max() >= classes.size:
        raise ValueError(
            f"ids must lie below {classes.size}, the number of labels; got {ranking.max()}."
        )
    skipped = None if ignore is None else np.asarray(host_view(ignore))
    if skipped is not None and skipped.shape != wanted.shape:
        raise ValueError(f"ignore must be ({len(ranking)},); got {skipped.shape}.")
    values = []
    for query, line in enumerate(ranking):
        relevant = classes == wanted[query]
        if skipped is not None:
            line = line[line != skipped[query]]
            relevant[skipped[query]] = False
        total = int(relevant.sum())
        if total:
            values.append(_average_precision(relevant[line], total))
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
    at
        Compare the first ``at`` results only.
    """
    one, other = _ranking(ids), _ranking(exact_ids)
    if len(one) != len(other):
        raise ValueError(f"rankings must have as many queries; got {len(one)} and {len(other)}.")
    if at is None:
        at = min(one.shape[1], other.shape[1])
    check_count(at, "at", high=min(one.shape[1], other.shape[1]))
    shared = [
        np.intersect1d(left, right).size / at
        for left, right in zip(one[:, :at], other[:, :at], strict=True)
    ]
    return _mean(shared)


def _average_precision(hits: NDArray[np.bool_], total: int) -> float:
    ranks = np.flatnonzero(hits) + 1
    return float(np.sum(np.arange(1, ranks.size + 1) / ranks) / total)


def _ranking(ids: Any) -> NDArray[np.int64]:
    ranking = np.asarray(host_view(ids))
    if ranking.ndim != 2 or 0 in ranking.shape or ranking.dtype.kind not in "iu":
        raise ValueError(
            f"ids must be a non-empty integer array of shape (m, k); got {ranking.dtype} of shape "
            f"{ranking.shape}."
        )
    if ranking.min() < 0:
        raise ValueError(
            f"ids must not be negative; got {ranking.min()}. Cut lists with 'nothing found' (-1) "
            "to the columns that every query filled."
        )
    if ranking.shape[1] > 1 and not np.all(np.diff(np.sort(ranking, axis=1), axis=1)):
        raise ValueError("ids must not repeat within a ranking; some query lists an item twice.")
    return ranking.astype(np.int64)


def _check_lists(ranking: NDArray[np.int64], relevant: Sequence[Any]) -> None:
    if len(relevant) != len(ranking):
        raise ValueError(
            f"relevant must have one list for each of the {len(ranking)} queries; got "
            f"{len(relevant)}."
        )


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no query has a relevant item: there is nothing to average.")
    return float(np.mean(values))
