"""Entry points of the native core for graphs: mutual edges, components, rows in another order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.csr_arrays import index_type
from hybrid_gpu.backends.csr_matrix import CsrMatrix
from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.backends.native import INTEGER, POINTER, Core, address, written
from hybrid_gpu.backends.protocol import HostArray, Numbering, SparseMatrix
from hybrid_gpu.backends.threads import for_each

# Rows of a tile: milliseconds of work.
_TILE_ROWS = 4096

_SORTED_LISTS = (INTEGER, INTEGER, INTEGER, *(POINTER,) * 5)
_LISTED_BACK = (INTEGER, INTEGER, INTEGER, *(POINTER,) * 4)
_COUNT_BACK = (INTEGER, INTEGER, INTEGER, POINTER, POINTER, POINTER)
_MUTUAL_EDGES = (INTEGER, INTEGER, INTEGER, *(POINTER,) * 7)
_COMPONENTS = (INTEGER, POINTER, POINTER, POINTER)
_REORDER = (INTEGER, INTEGER, *(POINTER,) * 8)


def mutual_edges(core: Core, ids: HostArray, similarities: HostArray) -> CsrMatrix:
    """The edges between items that list each other; lists (n, k), ids below n < 2^31.

    Lists may lie anywhere, in a mapped file, say: they are read once, a tile at a time.
    """
    (n, k), like = ids.shape, similarities.dtype.name
    if n >= 2**31 or similarities.shape != (n, k):
        raise ValueError(
            f"ids and similarities must have the same shape, of less than 2**31 lists; got "
            f"{ids.shape} and {similarities.shape}."
        )
    columns, counts = np.empty((n, k), np.int32), np.empty(n, np.int32)
    weights, back = np.empty((n, k), like), np.zeros((n, k), like)
    sorted_lists = columns.ctypes.data, weights.ctypes.data, counts.ctypes.data
    sort = core.function("hg_sorted_lists", _SORTED_LISTS, similarities)
    look = core.function("hg_listed_back", _LISTED_BACK, similarities)
    count = core.function("hg_count_back", _COUNT_BACK, similarities)
    tiles = _tiles(n)

    def arrange(tile: tuple[int, int]) -> None:
        first, last = tile
        some = np.ascontiguousarray(ids[first:last], np.int64)
        if some.size and int(some.max()) >= n:
            raise ValueError(f"ids must be below the number of lists, {n}; got {some.max()}.")
        values = np.ascontiguousarray(similarities[first:last])
        given = (
            address(some, "ids", "int64", (last - first, k)),
            address(values, "similarities", like, (last - first, k)),
        )
        if sort(first, last, k, *given, *sorted_lists):
            raise MemoryError(f"no memory to sort lists of {k} entries.")

    for_each(arrange, tiles)
    bounds = np.zeros(n + 1, np.int64)
    returned, found = back.ctypes.data, bounds.ctypes.data + 8
    for_each(lambda tile: look(*tile, k, *sorted_lists, returned), tiles)
    for_each(lambda tile: count(*tile, k, counts.ctypes.data, returned, found), tiles)
    np.cumsum(bounds, out=bounds)
    total = int(bounds[-1])
    kind = index_type(n, total)
    needed, available = total * (np.dtype(kind).itemsize + 8), available_host_bytes()
    if needed > available:
        raise MemoryError(
            f"{total} edges take {needed / 1e6:.0f} MB more memory; {available / 1e6:.0f} MB are "
            "available. Take fewer neighbors, or allow the process more memory."
        )
    others, means = np.empty(total, kind), np.empty(total, np.float64)
    fill = core.function("hg_mutual_edges", _MUTUAL_EDGES, similarities, others)
    parts = bounds.ctypes.data, others.ctypes.data, means.ctypes.data
    for_each(lambda tile: fill(*tile, k, *sorted_lists, returned, *parts), tiles)
    return CsrMatrix(means, others, bounds.astype(kind, copy=False), (n, n))


def connected_components(core: Core, matrix: SparseMatrix) -> NDArray[np.int32]:
    """The component of every node of a checked matrix (n, n), numbered by their first nodes."""
    n, like = matrix.shape[0], matrix.indices.dtype.name
    if matrix.shape != (n, n) or n >= 2**31:
        raise ValueError(f"the matrix must be square, of less than 2**31 rows; got {matrix.shape}.")
    labels = np.empty(n, np.int32)
    indptr = address(matrix.indptr, "indptr", like, (n + 1,))
    indices = address(matrix.indices, "indices", like, matrix.data.shape)
    function = core.function("hg_components", _COMPONENTS, matrix.indices)
    function(n, indptr, indices, labels.ctypes.data)
    return labels


def reordered(core: Core, matrix: SparseMatrix, numbering: Numbering) -> CsrMatrix:
    """A checked matrix (n, n) with row and column ``order[p]`` at place p, its rows by column."""
    n, like, entries = matrix.shape[0], matrix.indices.dtype.name, matrix.data.shape
    if matrix.shape != (n, n):
        raise ValueError(f"the matrix must be square; got shape {matrix.shape}.")
    order = address(numbering.order, "order", "int64", (n,))
    places = address(numbering.places, "places", "int64", (n,))
    _check_places(numbering, n)
    lengths = np.diff(matrix.indptr)[numbering.order]
    starts = np.zeros(n + 1, like)
    np.cumsum(lengths, out=starts[1:])
    total = int(starts[-1])
    indices, data = np.empty(total, like), np.empty(total, matrix.data.dtype)
    parts = (
        address(matrix.indptr, "indptr", like, (n + 1,)),
        address(matrix.indices, "indices", like, entries),
        address(matrix.data, "data", matrix.data.dtype.name, entries),
        starts.ctypes.data,
        written(indices, "indices", like, (total,)),
        written(data, "data", matrix.data.dtype.name, (total,)),
    )
    function = core.function("hg_reorder", _REORDER, matrix.data, matrix.indices)
    for_each(lambda tile: function(*tile, order, places, *parts), _tiles(n))
    return CsrMatrix(data, indices, starts, (n, n))


def _check_places(numbering: Numbering, n: int) -> None:
    for name, numbers in (("order", numbering.order), ("places", numbering.places)):
        if n and (int(numbers.min()) < 0 or int(numbers.max()) >= n):
            raise ValueError(f"{name} must hold numbers from 0 to {n - 1}; got others.")
    # Places out of step with the order would not end a call, but each item must have one row.
    if not np.array_equal(numbering.places[numbering.order], np.arange(n)):
        raise ValueError("order and places must be permutations, each the inverse of the other.")


def _tiles(n: int) -> list[tuple[int, int]]:
    return [(first, min(first + _TILE_ROWS, n)) for first in range(0, n, _TILE_ROWS)]
