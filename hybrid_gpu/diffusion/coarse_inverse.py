"""The inverse of the small system of a basis, on the host and with few copies of it."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from hybrid_gpu.backends.dense_product import dense_product
from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import single_threaded_blas

# Arrays in float64 that it takes, with the result: without a gram matrix, and with one.
_ARRAYS, _ARRAYS_WITH_GRAM = 2, 6
# Rows that are made symmetric at a time.
_ROWS = 64
# Rows of a matrix that is inverted in one piece.
_LEAF = 512


def inverted(
    coupling: HostArray, gram: HostArray | None, alpha: float, dtype: str
) -> tuple[HostArray, float]:
    """The inverse of ``E = Z^T (I - alpha W) Z``, symmetric, and a bound on its norm.

    Parameters
    ----------
    coupling : float64 array of shape (s, s)
        ``Z^T W Z``; overwritten.
    gram : array of shape (s, s), or None
        ``Z^T Z``; None if the vectors are orthonormal. Where they depend on each other, it is the
        pseudo-inverse that is given.
    dtype
        Of the result.
    """
    small = coupling
    small *= -alpha
    if gram is None:
        # Orthonormal vectors: E has no eigenvalue below 1 - alpha.
        np.fill_diagonal(small, 1 + np.diagonal(small))
        _invert(small)
        return _symmetric(small, dtype), 1 / (1 - alpha)
    small += gram
    # BLAS on one thread: a fork while it has several would leave this process waiting for ever.
    with single_threaded_blas():
        inverse, norm = _pseudo_inverse(small, float(np.finfo(dtype).eps))
    return _symmetric(inverse, dtype), norm


def check_room_for_inverse(size: int, *, orthonormal: bool) -> None:
    """Refuse an inverse that cannot fit: in a container, the system would end the process."""
    arrays = _ARRAYS if orthonormal else _ARRAYS_WITH_GRAM
    needed, available = arrays * 8 * size**2, available_host_bytes()
    if needed > available:
        raise MemoryError(
            f"to invert the system of {size} basis vectors takes about {needed / 1e6:.0f} MB; "
            f"{available / 1e6:.0f} MB are available. Build with a smaller rank, or allow the "
            "process more memory."
        )


def _invert(matrix: HostArray) -> None:
    """Write the inverse of a positive-definite matrix over it.

    By halves, so that nearly all of it is products: they take all threads, and forks do no harm.
    """
    if len(matrix) <= _LEAF:
        matrix[:] = _inverse_of_leaf(matrix)
        return
    half = len(matrix) // 2
    first, last = slice(None, half), slice(half, None)
    corner, side, rest = matrix[first, first], matrix[first, last], matrix[last, last]
    _invert(corner)
    across = dense_product(corner, side)
    rest -= dense_product(side.T, across)
    _invert(rest)
    back = dense_product(across, rest)
    corner += dense_product(back, across.T)
    matrix[first, last], matrix[last, first] = -back, -back.T


def _inverse_of_leaf(matrix: HostArray) -> HostArray:
    if len(matrix) == 0:
        return matrix
    # BLAS on one thread: a fork while it has several would leave this process waiting for ever.
    with single_threaded_blas():
        factors, pivots, _ = lapack.dgetrf(matrix)
        width, _ = lapack.dgetri_lwork(len(matrix))
        inverse, singular = lapack.dgetri(factors, pivots, lwork=int(width), overwrite_lu=True)
    if singular:
        raise np.linalg.LinAlgError("the small system of the basis is singular.")
    return np.asarray(inverse)


def _symmetric(matrix: HostArray, dtype: str) -> HostArray:
    """The mean of a matrix and its transpose."""
    result = np.empty(matrix.shape, dtype)
    for start in range(0, len(matrix), _ROWS):
        rows = slice(start, start + _ROWS)
        result[rows] = (matrix[rows] + matrix[:, rows].T) / 2
    return result


def _pseudo_inverse(matrix: HostArray, epsilon: float) -> tuple[HostArray, float]:
    """The inverse of a symmetric matrix where it is not rounding, and its largest eigenvalue."""
    if len(matrix) == 0:
        return matrix, 0.0
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    # Nor what is so small that its inverse is infinite.
    least = float(np.finfo(np.float64).smallest_normal)
    kept = values > max(values[-1] * epsilon * values.size, least)
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, 1 / float(values[0]) if values.size else 0.0
