"""Measures by class labels: an item is relevant if it has the query's label.

``ignore`` names the items of each query that are taken out of its ranking before ranks are counted,
and that it need not find: one item each (itself, if it is in the database) or a list each (junk).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.evaluation.averages import averaged
from hybrid_gpu.evaluation.judgments import Judged, judged_by_labels, matching_curve, values_of
from hybrid_gpu.evaluation.rankings import checked_depths


@averaged
def mean_average_precision(
    ids: Any, labels: Any, query_labels: Any, *, ignore: Any = None
) -> NDArray[np.float64]:
    """Mean average precision where an item is relevant if it has the query's label.

    The precision at each relevant item is averaged over all relevant items of the query.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first. Relevant items that a ranking does not hold count as never found.
    labels : array of shape (n,)
        Class of every database item.
    query_labels : array of shape (m,)
        Class of every query.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, or no query has a relevant item; with ``at``, also if a
        ranking without its ignored items is shorter.

    Examples
    --------
    Of two cats, the first comes first and the second comes third:

    >>> from hybrid_gpu import evaluation
    >>> labels = ["cat", "dog", "cat"]
    >>> round(evaluation.mean_average_precision([[0, 1, 2]], labels, ["cat"]), 3)
    0.833
    """
    return values_of(
        judged_by_labels(ids, labels, query_labels, ignore=ignore), Judged.average_precision
    )


@averaged
def precision(
    ids: Any, labels: Any, query_labels: Any, *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """The fraction of each query's first ``at`` results that have its label, on average.

    Parameters
    ----------
    at
        How many results count. They count in full, even if fewer items are relevant.

    The other parameters, the result and the errors are those of `mean_average_precision`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.precision([[0, 1, 2]], ["cat", "dog", "cat"], ["cat"], at=2)
    0.5
    """
    return values_of(
        judged_by_labels(ids, labels, query_labels, at=at, ignore=ignore), Judged.precision
    )


@averaged
def mean_reciprocal_rank(
    ids: Any, labels: Any, query_labels: Any, *, at: int | None = None, ignore: Any = None
) -> NDArray[np.float64]:
    """One over the rank of the first relevant result, on average.

    A query for which nothing relevant is found counts as 0.

    Parameters
    ----------
    at
        How many results count; None counts the whole ranking.

    The other parameters, the result and the errors are those of `mean_average_precision`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.mean_reciprocal_rank([[1, 0, 2]], ["cat", "dog", "cat"], ["cat"])
    0.5
    """
    return values_of(
        judged_by_labels(ids, labels, query_labels, at=at, ignore=ignore), Judged.reciprocal_rank
    )


@averaged
def ndcg(
    ids: Any, labels: Any, query_labels: Any, *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """Normalized discounted cumulative gain of the first ``at`` results, on average.

    A relevant result at rank i adds 1 / log2(i + 1); the sum is divided by that of the best
    ranking there is: all relevant items in front.

    Parameters
    ----------
    at
        How many results count, of the ranking and of the best one.

    The other parameters, the result and the errors are those of `mean_average_precision`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> round(evaluation.ndcg([[0, 1, 2]], ["cat", "dog", "cat"], ["cat"], at=3), 3)
    0.92
    """
    return values_of(judged_by_labels(ids, labels, query_labels, at=at, ignore=ignore), Judged.ndcg)


@averaged
def success(
    ids: Any, labels: Any, query_labels: Any, *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """The fraction of queries with a relevant item among their first ``at`` results.

    The matching rate at rank ``at`` of re-identification: a point of `cumulative_match`.

    Parameters
    ----------
    at
        How many results count.

    The other parameters, the result and the errors are those of `mean_average_precision`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.success([[1, 0], [1, 0]], ["cat", "dog"], ["cat", "dog"], at=1)
    0.5
    """
    return values_of(
        judged_by_labels(ids, labels, query_labels, at=at, ignore=ignore), Judged.success
    )


def cumulative_match(
    ids: Any,
    labels: Any,
    query_labels: Any,
    *,
    at: Sequence[int] = (1, 5, 10, 20),
    ignore: Any = None,
) -> dict[int, float]:
    """`success` at several depths: the CMC curve of re-identification.

    Images of the same person by the same camera are junk there, which ``ignore`` takes out:
    ``[np.flatnonzero((people == p) & (cameras == c)) for p, c in zip(query_people,
    query_cameras)]``.

    Parameters
    ----------
    at : sequence of int
        The depths of the curve.

    The other parameters and the errors are those of `mean_average_precision`.

    Returns
    -------
    mapping of int to float
        The fraction of queries with a relevant item at each depth.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> ids, labels = [[1, 0], [1, 0]], ["cat", "dog"]
    >>> evaluation.cumulative_match(ids, labels, ["cat", "dog"], at=(1, 2))
    {1: 0.5, 2: 1.0}
    """
    depths = checked_depths(at)
    deepest = max(depths, default=None)
    judged = judged_by_labels(ids, labels, query_labels, at=deepest, ignore=ignore)
    return matching_curve(judged, depths)
