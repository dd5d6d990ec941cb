"""Sparse matrices in compressed rows, as far as the array API can handle them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix
from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.validation import item_bytes

# Entries of a tile of rows, about.
_TILE_ENTRIES = 1 << 20


def row_numbers(matrix: SparseMatrix, backend: Backend) -> Array:
    """The row of every stored entry, int64 of shape (entries,)."""
    xp = backend.xp
    items = xp.arange(matrix.shape[0], dtype=xp.int64, device=backend.device)
    return xp.repeat(items, xp.astype(matrix.indptr[1:] - matrix.indptr[:-1], xp.int64))


def row_tiles(matrix: SparseMatrix, backend: Backend) -> list[tuple[slice, slice]]:
    """Rows of a matrix, some at a time, and their entries: as slices.

    For what needs more memory than the matrix if it is done to all of it at once.
    """
    n, entries = matrix.shape[0], int(matrix.data.shape[0])
    tiles = min(n, -(-entries // _TILE_ENTRIES))
    if tiles <= 1:  # nothing of the device is waited for
        return [(slice(0, n), slice(0, entries))]
    rows = [n * tile // tiles for tile in range(tiles + 1)]
    bounds = backend.to_numpy(
        backend.xp.take(matrix.indptr, backend.asarray(np.array(rows), "int64"))
    )
    return [
        (slice(*some), slice(*theirs))
        for some, theirs in zip(pairwise(rows), pairwise(bounds.tolist()), strict=True)
    ]


def submatrix(matrix: SparseMatrix, items: Array, backend: Backend) -> SparseMatrix:
    """The rows and columns of ``items``, an ascending (t,) array of ids, as a (t, t) matrix."""
    xp = backend.xp
    t = items.shape[0]
    starts = xp.astype(xp.take(matrix.indptr, items), xp.int64)
    lengths = xp.astype(xp.take(matrix.indptr, items + 1), xp.int64) - starts
    ends = xp.cumulative_sum(lengths)
    total = int(ends[-1])
    # Entry e of the cut-out rows stands at e, shifted by the distance of its row's two beginnings.
    positions = xp.arange(total, dtype=xp.int64, device=backend.device) + xp.repeat(
        starts - (ends - lengths), lengths
    )
    rows = xp.repeat(xp.arange(t, dtype=xp.int64, device=backend.device), lengths)
    columns = xp.astype(xp.take(matrix.indices, positions), xp.int64)
    places = xp.searchsorted(items, columns)
    places = xp.where(places < t, places, xp.zeros_like(places))
    inside = xp.take(items, places) == columns
    return csr_from_sorted(
        xp.take(matrix.data, positions)[inside],
        rows[inside],
        xp.astype(places, xp.int64)[inside],
        (t, t),
        backend,
    )


def same_matrix(left: SparseMatrix, right: SparseMatrix, backend: Backend) -> bool:
    """Whether two sparse matrices are the same, entry by entry."""
    if left is right:
        return True
    xp = backend.xp
    parts = [(left.indptr, right.indptr), (left.indices, right.indices), (left.data, right.data)]
    return all(a.shape == b.shape for a, b in parts) and all(
        a is b or bool(xp.all(a == b)) for a, b in parts
    )


def matrix_bytes(matrix: SparseMatrix) -> int:
    """Bytes of the three arrays of a sparse matrix."""
    return sum(array_bytes(part) for part in (matrix.data, matrix.indices, matrix.indptr))


def array_bytes(array: Array) -> int:
    """Bytes of an array of any library."""
    return int(np.prod(array.shape)) * item_bytes(array)
