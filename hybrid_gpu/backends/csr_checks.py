"""What native code may read: a sparse matrix whose entries lie within its shape and arrays."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends.protocol import SparseMatrix


def check_parts(matrix: SparseMatrix) -> None:
    """Refuse a matrix whose entries lie outside of its shape or of its arrays."""
    (n, p), indptr, indices = matrix.shape, matrix.indptr, matrix.indices
    if indptr.shape != (n + 1,) or indices.shape != matrix.data.shape:
        raise ValueError(
            f"a matrix of shape {matrix.shape} must have {n + 1} row bounds and as many indices as "
            f"values; got {indptr.shape}, {indices.shape} and {matrix.data.shape}."
        )
    if int(indptr[0]) < 0 or int(indptr[-1]) > indices.size or bool(np.any(np.diff(indptr) < 0)):
        raise ValueError(f"row bounds must rise from 0 to {indices.size}; got others.")
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= p):
        raise ValueError(
            f"indices must be from 0 to {p - 1}; got {int(indices.min())} to {int(indices.max())}."
        )
