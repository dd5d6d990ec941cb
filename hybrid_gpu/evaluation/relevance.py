"""Measures by class labels, by lists of relevant items, and by another ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import select_backend
from hybrid_gpu.evaluation.rankings import check_lists, checked_ranking, mean_of, on_host
from hybrid_gpu.validation import check_count


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
    found = _hits_of_classes(checked_ranking(ids), labels, query_labels, ignore)
    return mean_of([_average_precision(hits, total) for hits, total in found if total])


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
    ranking = checked_ranking(ids)
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
    return mean_of(values)


def mean_average_precision_of_lists(ids: Any, relevant: Sequence[Any]) -> float:
    """Mean average precision where the relevant items of each query are listed.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        Queries whose list is empty are left out.
    """
    ranking = checked_ranking(ids)
    check_lists(ranking, relevant)
    values = []
    for line, items in zip(ranking, relevant, strict=True):
        wanted = np.unique(np.asarray(items, dtype=np.int64))
        if wanted.size:
            values.append(_average_precision(np.isin(line, wanted), wanted.size))
    return mean_of(values)


def recall(ids: Any, relevant: Sequence[Any], *, at: int | None = None) -> float:
    """The fraction of each query's relevant items among its first ``at`` results, on average.

    Queries without a relevant item are left out. ``at=None`` looks at the whole ranking.
    """
    ranking = checked_ranking(ids)
    check_lists(ranking, relevant)
    if at is not None:
        ranking = ranking[:, : check_count(at, "at", high=ranking.shape[1])]
    values = []
    for line, items in zip(ranking, relevant, strict=True):
        wanted = np.unique(np.asarray(items, dtype=np.int64))
        if wanted.size:
            values.append(np.isin(wanted, line).sum() / wanted.size)
    return mean_of(values)


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
    one, other = checked_ranking(ids), checked_ranking(exact_ids)
    if len(one) != len(other):
        raise ValueError(f"rankings must have as many queries; got {len(one)} and {len(other)}.")
    if at is None:
        at = min(one.shape[1], other.shape[1])
    check_count(at, "at", high=min(one.shape[1], other.shape[1]))
    shared = []
    for found, exact in zip(one[:, :at], other[:, :at], strict=True):
        wanted = exact[exact >= 0]
        shared.append(np.isin(wanted, found).sum() / wanted.size if wanted.size else 1.0)
    return mean_of(shared)


def _hits_of_classes(
    ranking: NDArray[np.int64], labels: Any, query_labels: Any, ignore: Any
) -> Iterator[tuple[NDArray[np.bool_], int]]:
    """Which results of each query have its label, and how many items have it."""
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
    skipped = None if ignore is None else _ignored(ignore, len(ranking), classes.size)
    for query, line in enumerate(ranking):
        relevant = classes == wanted[query]
        if skipped is not None:
            line = line[line != skipped[query]]
            relevant[skipped[query]] = False
        yield relevant[line] & (line >= 0), int(np.count_nonzero(relevant))


def _ignored(ignore: Any, m: int, n: int) -> NDArray[Any]:
    skipped = on_host(ignore, "ignore")
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
