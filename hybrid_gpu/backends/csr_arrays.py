"""Compressed sparse rows of entries in order, for any backend."""

from __future__ import annotations

from typing import Any

from hybrid_gpu.backends.protocol import Array, SparseMatrix


def index_type(*sizes: int) -> str:
    """The integers that a matrix counts with, by its rows, columns and entries."""
    # 32-bit indices halve what the sparse product reads beside the values.
    return "int32" if max(sizes) < 2**31 else "int64"


def csr_from_sorted(
    data: Array,
    rows: Array,
    columns: Array,
    shape: tuple[int, int],
    backend: Any,
    *,
    wide: bool = False,
) -> SparseMatrix:
    """A sparse matrix from entries that are in row order already; ``wide``: counted by int64."""
    xp = backend.xp
    bounds = xp.arange(shape[0] + 1, dtype=xp.int64, device=backend.device)
    kind = xp.int64 if wide else getattr(xp, index_type(*shape, data.shape[0]))
    starts = xp.astype(xp.searchsorted(rows, bounds), kind)
    matrix: SparseMatrix = backend.csr(data, xp.astype(columns, kind), starts, shape)
    return matrix
