"""Entry point of the native core for the best entries of rows."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends.native import INTEGER, POINTER, Core, address
from hybrid_gpu.backends.protocol import HostArray, Numbering, TopK
from hybrid_gpu.backends.threads import for_each

# Columns that are read together, as in select.c.
_TOGETHER = 16
# A heap keeps the best: of more than one entry in so many, to sort them all is faster.
_FEW = 16
# Entries that are worth a second thread.
_WORTH_THREADS = 200_000

_TOP_K = (INTEGER, INTEGER, INTEGER, POINTER, POINTER, INTEGER, POINTER, POINTER)


def suits(scores: HostArray, k: int) -> bool:
    """Whether it is done here: few entries of rows, or of columns, that lie side by side."""
    known = scores.dtype.name in ("float32", "float64") and scores.flags.aligned
    whole = scores.flags.c_contiguous or scores.T.flags.c_contiguous
    return known and whole and 0 < k <= scores.shape[1] // _FEW


def top_k(core: Core, scores: HostArray, k: int, numbering: Numbering | None) -> TopK:
    """The ``k`` largest entries of each row of (m, n), best first, ties to the lower id."""
    (m, n), like = scores.shape, scores.dtype.name
    if not 0 < k <= n:
        raise ValueError(f"k must be from 1 to {n}; got {k}.")
    best, ids = np.empty((m, k), like), np.empty((m, k), np.int64)
    order = 0 if numbering is None else address(numbering.order, "order", "int64", (n,))
    by_columns = scores.T.flags.c_contiguous and not scores.flags.c_contiguous
    if by_columns:
        source, width, stride, apart = address(scores.T, "scores", like, (n, m)), _TOGETHER, m, 1
    else:
        source, width, stride, apart = address(scores, "scores", like, (m, n)), 1, 1, n
    call = core.function("hg_top_k", _TOP_K, scores)
    values, places, size = best.ctypes.data, ids.ctypes.data, scores.itemsize

    def select(first: int) -> None:
        call(
            n,
            min(width, m - first),
            stride,
            source + first * apart * size,
            order or None,
            k,
            values + first * k * size,
            places + first * k * 8,
        )

    blocks = range(0, m, width)
    if m * n > _WORTH_THREADS:
        for_each(select, blocks)
    else:
        for first in blocks:
            select(first)
    return TopK(scores=best, ids=ids)
