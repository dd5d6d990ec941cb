"""Matrices of a basis, sparse or dense: products, transposes, rows in another order."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix
from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.backends.protocol import HostArray, Numbering
from hybrid_gpu.diffusion.basis import host64
from hybrid_gpu.graph.csr import row_numbers
from hybrid_gpu.validation import dtype_name


def both_ways(
    data: Array,
    rows: Array,
    columns: Array,
    shape: tuple[int, int],
    backend: Backend,
    *,
    wide: bool = False,
) -> tuple[SparseMatrix, SparseMatrix]:
    """A sparse matrix from entries in row order, and its transpose; ``wide``: counted by int64."""
    xp = backend.xp
    turned = xp.argsort(columns * shape[0] + rows)
    return (
        csr_from_sorted(data, rows, columns, shape, backend, wide=wide),
        csr_from_sorted(
            xp.take(data, turned),
            xp.take(columns, turned),
            xp.take(rows, turned),
            (shape[1], shape[0]),
            backend,
            wide=wide,
        ),
    )


def times(matrix: Any, dense: Array, backend: Backend) -> Array:
    """The product of a sparse or dense matrix and a dense one."""
    if hasattr(matrix, "indptr"):
        return backend.spmm(matrix, dense)
    return backend.matmul(matrix, dense)


def rows_taken(
    matrix: Any, columns: int, numbering: Numbering, backend: Backend
) -> tuple[Any, Any]:
    """A matrix (n, columns), sparse or dense, with its rows in another order; and its transpose."""
    xp = backend.xp
    if not hasattr(matrix, "indptr"):
        taken = xp.take(matrix, numbering.order, axis=0)
        return taken, taken.T
    rows = xp.take(numbering.places, row_numbers(matrix, backend))
    entry_columns = xp.astype(matrix.indices, xp.int64)
    order = xp.argsort(rows * columns + entry_columns)
    return both_ways(
        xp.take(matrix.data, order),
        xp.take(rows, order),
        xp.take(entry_columns, order),
        (matrix.shape[0], columns),
        backend,
        wide=dtype_name(matrix.indices.dtype) == "int64",
    )


def dense_on_host(matrix: Any, backend: Backend) -> HostArray:
    """A small matrix, sparse or not, as a dense float64 array of the host."""
    if not hasattr(matrix, "indptr"):
        return host64(matrix, backend)
    indptr = backend.to_numpy(matrix.indptr)
    result = np.zeros(matrix.shape, order="F")  # as LAPACK wants it
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(indptr))
    result[rows, backend.to_numpy(matrix.indices)] = backend.to_numpy(matrix.data)
    return result
