"""How far a ranking agrees with another one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.evaluation.averages import averaged
from hybrid_gpu.evaluation.rankings import checked_ranking
from hybrid_gpu.validation import check_count


@averaged
def agreement(ids: Any, exact_ids: Any, *, at: int | None = None) -> NDArray[np.float64]:
    """The fraction of the exact top items that a ranking also has among its own, on average.

    Parameters
    ----------
    ids, exact_ids : int arrays of shape (m, k)
        Two rankings of the same queries, best first.
        A query for which the exact one found nothing (-1 only) counts as agreed on.
    at
        Compare the first ``at`` results only.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.agreement([[4, 2, 7, 1]], [[2, 4, 9, 7]])
    0.75
    >>> evaluation.agreement([[4, 2, 7, 1]], [[2, 4, 9, 7]], at=2)
    1.0
    """
    given, best = checked_ranking(ids), checked_ranking(exact_ids)
    if len(given) != len(best):
        raise ValueError(f"rankings must have as many queries; got {len(given)} and {len(best)}.")
    if at is None:
        at = min(given.shape[1], best.shape[1])
    check_count(at, "at", high=min(given.shape[1], best.shape[1]))
    shared = []
    for found, exact in zip(given[:, :at], best[:, :at], strict=True):
        wanted = exact[exact >= 0]
        shared.append(np.isin(wanted, found).sum() / wanted.size if wanted.size else 1.0)
    return np.array(shared, np.float64)
