"""Measures by lists of relevant items.

``ignore`` means what it means for labels. An item that is listed as relevant and ignored is
ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.evaluation.averages import averaged
from hybrid_gpu.evaluation.judgments import Judged, judged_by_lists, matching_curve, values_of
from hybrid_gpu.evaluation.rankings import checked_depths


@averaged
def mean_average_precision_of_lists(
    ids: Any, relevant: Sequence[Any], *, ignore: Any = None
) -> NDArray[np.float64]:
    """Mean average precision where the relevant items of each query are listed.

    The precision at each relevant item is averaged over all relevant items of the query.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first. Relevant items that a ranking does not hold count as never found.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, or no query has a relevant item.
    """
    return values_of(judged_by_lists(ids, relevant, ignore=ignore), Judged.average_precision)


@averaged
def precision_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """The fraction of each query's first ``at`` results that are relevant, on average.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    at
        How many results count. They count in full, even if fewer items are relevant.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking without its ignored items is shorter than ``at``,
        or no query has a relevant item.
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.precision)


@averaged
def recall(
    ids: Any, relevant: Sequence[Any], *, at: int | None = None, ignore: Any = None
) -> NDArray[np.float64]:
    """The fraction of each query's relevant items among its first ``at`` results, on average.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    at
        How many results count; None counts the whole ranking.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking without its ignored items is shorter than ``at``,
        or no query has a relevant item.
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.recall)


@averaged
def mean_reciprocal_rank_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: int | None = None, ignore: Any = None
) -> NDArray[np.float64]:
    """One over the rank of the first relevant result, on average.

    A query for which nothing relevant is found counts as 0.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    at
        How many results count; None counts the whole ranking.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking without its ignored items is shorter than ``at``,
        or no query has a relevant item.
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.reciprocal_rank)


@averaged
def ndcg_of_lists(
    ids: Any, relevant: Sequence[Any], *, gains: Any = None, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """Normalized discounted cumulative gain of the first ``at`` results, on average.

    A relevant result at rank i adds its gain / log2(i + 1); the sum is divided by that of the best
    ranking there is: all relevant items in front, the worthiest first.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    gains : sequence of m collections of numbers, optional
        What each listed item is worth, 0 or more; None makes it 1. They are taken as they are:
        pass ``2**grade - 1`` for the exponential form. Items worth 0 are not relevant.
    at
        How many results count, of the ranking and of the best one.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking without its ignored items is shorter than ``at``,
        or no query has a relevant item.
    """
    return values_of(judged_by_lists(ids, relevant, gains=gains, at=at, ignore=ignore), Judged.ndcg)


@averaged
def success_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """The fraction of queries with a relevant item among their first ``at`` results.

    The matching rate at rank ``at`` of re-identification: a point of `cumulative_match_of_lists`.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    at
        How many results count.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    float
        In [0, 1]. Queries without a relevant item are left out.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking without its ignored items is shorter than ``at``,
        or no query has a relevant item.
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.success)


def cumulative_match_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: Sequence[int] = (1, 5, 10, 20), ignore: Any = None
) -> dict[int, float]:
    """`success_of_lists` at several depths: the CMC curve of re-identification.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.
    at : sequence of int
        The depths of the curve.
    ignore : int array of shape (m,) or sequence of m collections of ids, optional
        Items of each query that count neither for nor against it.

    Returns
    -------
    mapping of int to float
        The fraction of queries with a relevant item at each depth.

    Raises
    ------
    ValueError
        If the lengths do not match, a ranking without its ignored items is shorter than a depth,
        or no query has a relevant item.
    """
    depths = checked_depths(at)
    deepest = max(depths, default=None)
    judged = judged_by_lists(ids, relevant, at=deepest, ignore=ignore)
    return matching_curve(judged, depths)
