"""Entry points of the native core for conjugate gradients: they check, cut into tiles, and call.

Where a tile begins depends on the shapes alone, and partial sums are added up in the order of the
tiles: results have the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid_gpu.backends.native import INTEGER, POINTER, REAL, Core, address, written
from hybrid_gpu.backends.protocol import HostArray, SparseMatrix
from hybrid_gpu.backends.threads import for_each

# Multiplications of a tile of a sparse product, and numbers of a tile of a dense pass: some tenths
# of a millisecond, which is long beside the cost of a call.
_TILE_WORK, _TILE_NUMBERS = 1 << 21, 1 << 18
_ENTRY_COLUMNS = 12
# Bytes of a product that is not in the cache any more when it is read again.
_LARGE = 1 << 26

_SPARSE = (INTEGER, INTEGER, INTEGER, POINTER, POINTER, POINTER, POINTER)
_SPMM = (*_SPARSE, POINTER)
_LAPLACIAN_STEP = (*_SPARSE, REAL, INTEGER, POINTER, POINTER)
_COLUMN_DOTS = (INTEGER, INTEGER, POINTER, POINTER, POINTER)
_CG_UPDATE = (INTEGER, INTEGER, *(POINTER,) * 6)
_CG_DIRECTION = (INTEGER, INTEGER, POINTER, POINTER, POINTER)


def spmm(core: Core, matrix: SparseMatrix, dense: HostArray) -> HostArray:
    """A sparse (n, p) matrix times a dense (p, m) array of its type."""
    n, m = matrix.shape[0], dense.shape[1]
    result = np.empty((n, m), dense.dtype)
    _sparse_tiles(core, "hg_spmm", matrix, dense, result)
    return result


def subtract_spmm(core: Core, values: HostArray, matrix: SparseMatrix, dense: HostArray) -> None:
    """``V -= A X`` for values V (n, m)."""
    _sparse_tiles(core, "hg_subtract_spmm", matrix, dense, values)


def _sparse_tiles(
    core: Core, name: str, matrix: SparseMatrix, dense: HostArray, result: HostArray
) -> None:
    m = dense.shape[1]
    parts = _addresses(matrix, dense)
    target = written(result, "result", dense.dtype.name, (matrix.shape[0], m))
    call = core.function(name, _SPMM, dense, matrix.indices)
    _each_tile(
        lambda number, first, last: call(first, last, m, *parts, target), _row_tiles(matrix, m)
    )


def laplacian_step(
    core: Core, matrix: SparseMatrix, direction: HostArray, alpha: float, product: HostArray
) -> HostArray:
    """``(I - alpha W) P`` for a direction P (n, m) into a product; column dots of both, float64."""
    n, m = direction.shape
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the adjacency must be square; got shape {matrix.shape}.")
    tiles = _row_tiles(matrix, m)
    dots = np.zeros((len(tiles), m))
    parts = _addresses(matrix, direction)
    target = written(product, "product", direction.dtype.name, (n, m))
    sums, large = dots.ctypes.data, int(product.nbytes >= _LARGE)
    call = core.function("hg_laplacian_step", _LAPLACIAN_STEP, direction, matrix.indices)
    _each_tile(
        lambda number, first, last: call(
            first, last, m, *parts, alpha, large, target, sums + 8 * m * number
        ),
        tiles,
    )
    return np.asarray(np.sum(dots, axis=0))


def column_dots(core: Core, left: HostArray, right: HostArray) -> HostArray:
    """Dots of the columns of two (n, m) arrays of one type, in float64."""
    (n, m), like = left.shape, left.dtype.name
    tiles = _dense_tiles(n, m)
    dots = np.zeros((len(tiles), m))
    one, other = address(left, "left", like, (n, m)), address(right, "right", like, (n, m))
    sums, size = dots.ctypes.data, left.itemsize
    call = core.function("hg_column_dots", _COLUMN_DOTS, left)

    def multiply(number: int, first: int, last: int) -> None:
        skip = first * m * size
        call(last - first, m, one + skip, other + skip, sums + 8 * m * number)

    _each_tile(multiply, tiles)
    return np.asarray(np.sum(dots, axis=0))


def cg_update(
    core: Core,
    solution: HostArray,
    residual: HostArray,
    direction: HostArray,
    product: HostArray,
    step: HostArray,
) -> HostArray:
    """Move solution and residual by ``step`` (m,), in place; squares of the residual's columns."""
    (n, m), like = solution.shape, solution.dtype.name
    tiles = _dense_tiles(n, m)
    squares = np.zeros((len(tiles), m))
    arrays = (
        written(solution, "solution", like, (n, m)),
        written(residual, "residual", like, (n, m)),
        address(direction, "direction", like, (n, m)),
        address(product, "product", like, (n, m)),
    )
    by, sums, size = address(step, "step", like, (m,)), squares.ctypes.data, solution.itemsize
    call = core.function("hg_cg_update", _CG_UPDATE, solution)

    def update(number: int, first: int, last: int) -> None:
        skip = first * m * size
        call(last - first, m, *(one + skip for one in arrays), by, sums + 8 * m * number)

    _each_tile(update, tiles)
    return np.asarray(np.sum(squares, axis=0))


def cg_direction(core: Core, residual: HostArray, direction: HostArray, ratio: HostArray) -> None:
    """``P = R + P * ratio`` in place, for a ratio (m,)."""
    (n, m), like = direction.shape, direction.dtype.name
    source = address(residual, "residual", like, (n, m))
    target = written(direction, "direction", like, (n, m))
    by, size = address(ratio, "ratio", like, (m,)), direction.itemsize
    call = core.function("hg_cg_direction", _CG_DIRECTION, direction)

    def turn(number: int, first: int, last: int) -> None:
        skip = first * m * size
        call(last - first, m, source + skip, target + skip, by)

    _each_tile(turn, _dense_tiles(n, m))


def _addresses(matrix: SparseMatrix, dense: HostArray) -> tuple[int, ...]:
    """Where the parts of a checked matrix and the array that it is multiplied with begin."""
    (n, p), like = matrix.shape, matrix.indices.dtype.name
    entries = matrix.data.shape
    return (
        address(matrix.indptr, "indptr", like, (n + 1,)),
        address(matrix.indices, "indices", like, entries),
        address(matrix.data, "data", dense.dtype.name, entries),
        address(dense, "dense", dense.dtype.name, (p, dense.shape[1])),
    )


def _row_tiles(matrix: SparseMatrix, m: int) -> list[tuple[int, int, int]]:
    """Number, first and last row of tiles of about the same work."""
    n = matrix.shape[0]
    # To find an entry costs as much as some columns of it; a row without entries is written, too.
    work = (m + _ENTRY_COLUMNS) * (matrix.data.shape[0] + 2 * n)
    return _tiles(n, max(1, n * _TILE_WORK // max(1, work)))


def _dense_tiles(n: int, m: int) -> list[tuple[int, int, int]]:
    return _tiles(n, max(1, _TILE_NUMBERS // max(1, m)))


def _tiles(n: int, rows: int) -> list[tuple[int, int, int]]:
    return [(number, first, min(first + rows, n)) for number, first in enumerate(range(0, n, rows))]


def _each_tile(
    function: Callable[[int, int, int], Any], tiles: Sequence[tuple[int, int, int]]
) -> None:
    if len(tiles) > 1:
        for_each(lambda tile: function(*tile), tiles)
    else:
        for tile in tiles:
            function(*tile)
