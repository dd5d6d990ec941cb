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
    """`mean_average_precision` where the relevant items of each query are listed.

    Parameters
    ----------
    ids : int array of shape (m, k)
        Rankings, best first. Relevant items that a ranking does not hold count as never found.
    relevant : sequence of m collections of ids
        The relevant items of each query, each counted once.

    ``ignore``, the result and the errors are those of `mean_average_precision`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> round(evaluation.mean_average_precision_of_lists([[0, 1, 2]], [[0, 2]]), 3)
    0.833
    """
    return values_of(judged_by_lists(ids, relevant, ignore=ignore), Judged.average_precision)


@averaged
def precision_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """`precision` where the relevant items of each query are listed.

    ``ids`` and ``relevant`` are those of `mean_average_precision_of_lists`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.precision_of_lists([[0, 1, 2]], [[0, 2]], at=2)
    0.5
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.precision)


@averaged
def recall(
    ids: Any, relevant: Sequence[Any], *, at: int | None = None, ignore: Any = None
) -> NDArray[np.float64]:
    """The fraction of each query's relevant items among its first ``at`` results, on average.

    Parameters
    ----------
    at
        How many results count; None counts the whole ranking.

    ``ids`` and ``relevant`` are those of `mean_average_precision_of_lists`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.recall([[0, 1, 2]], [[0, 2, 7, 9]])
    0.5
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.recall)


@averaged
def mean_reciprocal_rank_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: int | None = None, ignore: Any = None
) -> NDArray[np.float64]:
    """`mean_reciprocal_rank` where the relevant items of each query are listed.

    ``ids`` and ``relevant`` are those of `mean_average_precision_of_lists`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.mean_reciprocal_rank_of_lists([[1, 0, 2]], [[0, 2]])
    0.5
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.reciprocal_rank)


@averaged
def ndcg_of_lists(
    ids: Any, relevant: Sequence[Any], *, gains: Any = None, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """`ndcg` where the relevant items of each query are listed, and may differ in worth.

    A relevant result at rank i adds its gain / log2(i + 1); the best ranking has the worthiest
    items first.

    Parameters
    ----------
    gains : sequence of m collections of numbers, optional
        What each listed item is worth, 0 or more; None makes it 1. They are taken as they are:
        pass ``2**grade - 1`` for the exponential form. Items worth 0 are not relevant.

    ``ids`` and ``relevant`` are those of `mean_average_precision_of_lists`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> round(evaluation.ndcg_of_lists([[0, 1, 2]], [[0, 2]], gains=[[3, 1]], at=3), 3)
    0.964
    """
    return values_of(judged_by_lists(ids, relevant, gains=gains, at=at, ignore=ignore), Judged.ndcg)


@averaged
def success_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: int, ignore: Any = None
) -> NDArray[np.float64]:
    """`success` where the relevant items of each query are listed.

    ``ids`` and ``relevant`` are those of `mean_average_precision_of_lists`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.success_of_lists([[1, 0], [1, 0]], [[0], [1]], at=1)
    0.5
    """
    return values_of(judged_by_lists(ids, relevant, at=at, ignore=ignore), Judged.success)


def cumulative_match_of_lists(
    ids: Any, relevant: Sequence[Any], *, at: Sequence[int] = (1, 5, 10, 20), ignore: Any = None
) -> dict[int, float]:
    """`cumulative_match` where the relevant items of each query are listed.

    ``ids`` and ``relevant`` are those of `mean_average_precision_of_lists`.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.cumulative_match_of_lists([[1, 0], [1, 0]], [[0], [1]], at=(1, 2))
    {1: 0.5, 2: 1.0}
    """
    depths = checked_depths(at)
    deepest = max(depths, default=None)
    judged = judged_by_lists(ids, relevant, at=deepest, ignore=ignore)
    return matching_curve(judged, depths)
