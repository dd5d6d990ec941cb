"""Launching the CUDA kernels of ``hybrid_gpu.kernels`` on CuPy arrays.

Every scalar is passed as a NumPy scalar of the kernel's own type: CuPy hands a Python float over as
a double, which a kernel that expects a float would read as garbage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import cupy
import numpy as np

from hybrid_gpu import kernels  # type: ignore[attr-defined]  # stands beside, see pyproject
from hybrid_gpu.backends.protocol import (
    Array,
    Deflated,
    Numbering,
    Product,
    SparseMatrix,
    TopK,
    Update,
)
from hybrid_gpu.backends.step_records import Moves, Standing, Turn

# What the kernels of top_k can do: results per row, and items.
LARGEST_K = 2048
LARGEST_N = 2**31 - 16_385

_THREADS = 256
# Bounds the partial sums of few columns; far more blocks than a GPU runs at once.
_ROW_BLOCKS = 1024
# Columns that a block of column_sums adds up, and threads for each.
_SLICE, _LINES = 4, 128
_LONG_ROWS = 256
_C_NAMES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


@dataclass(frozen=True, eq=False)
class DeviceCsr:
    """A CSR matrix on the device; unlike CuPy's, its indices may take 64 bits."""

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]

    @cached_property
    def longest_row(self) -> int:
        """Entries of the longest row; to ask waits for the device, so that it is done once."""
        return int(cupy.max(self.indptr[1:] - self.indptr[:-1]))


def csr_spmm(matrix: SparseMatrix, dense: Array, *, taken_off: Array | None = None) -> Array:
    """``A X`` for a row-major X, or ``V - A X`` in the place of the values V to take it off."""
    n, m = matrix.shape[0], dense.shape[1]
    # A kernel reads raw memory: values of another type would be garbage, not an error.
    common = cupy.result_type(matrix.data, dense)
    data, dense = matrix.data.astype(common, copy=False), dense.astype(common, copy=False)
    result = cupy.empty((n, m), common) if taken_off is None else taken_off
    _same_types(result, dense)
    if n == 0 or m == 0:
        return result
    length = matrix.data.size / n
    shape = kernels.wide_shape(m, dense.dtype.itemsize, _alignment(dense, result), n=n)
    if shape is not None and length <= _LONG_ROWS:
        _wide_spmm(matrix, data, dense, result, shape, subtract=taken_off is not None)
        return result
    name, block, columns = "csr_spmm", kernels.row_block(m, length), 0
    if length > _LONG_ROWS:
        name, block, columns = "csr_spmm_long_rows", (_THREADS, 1), 32
    grid = (min(-(-n // block[1]), 2**31 - 1), -(-m // (columns or block[0])))
    indptr, indices = _same_types(matrix.indptr, matrix.indices)
    subtract = np.int32(taken_off is not None)
    arguments = (np.int64(n), np.int32(m), subtract, indptr, indices, data, dense, result)
    _kernel("csr_spmm", name, dense.dtype, matrix.indices.dtype)(grid, block, arguments)
    return result


def _wide_spmm(
    matrix: SparseMatrix,
    data: Array,
    dense: Array,
    result: Array,
    shape: kernels.WideShape,
    *,
    subtract: bool,
) -> None:
    n, m = result.shape
    indptr, indices = _same_types(matrix.indptr, matrix.indices)
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes), np.int32(subtract))
    kernel = _kernel("wide_product", "wide_spmm", dense.dtype, indices.dtype, shape.defines)
    block = (shape.lanes, shape.rows)
    kernel(shape.grid(n, m), block, (*sizes, indptr, indices, data, dense, result))


def laplacian_step(
    matrix: SparseMatrix, direction: Array, alpha: float, *, summed: bool
) -> Product:
    """``(I - alpha W) P`` and the column dots of P with it; in parts if not summed."""
    n, m = direction.shape
    value = direction.dtype.type
    product = cupy.empty_like(direction)
    indptr, indices = _same_types(matrix.indptr, matrix.indices)
    data, direction = _same_types(matrix.data, direction)
    shape = kernels.wide_shape(m, direction.dtype.itemsize, _alignment(direction, product), n=n)
    sizes: tuple[Any, ...] = (np.int64(n), np.int32(m))
    if shape is None:
        block = kernels.row_block(m, matrix.data.size / max(n, 1))
        grid = (max(1, min(-(-n // block[1]), _ROW_BLOCKS)), -(-m // block[0]))
        kernel = _kernel("laplacian_step", "laplacian_step", direction.dtype, indices.dtype)
    else:
        block, grid = (shape.lanes, shape.rows), shape.grid(n, m)
        sizes = (*sizes, np.int32(shape.passes))
        names = ("wide_product", "wide_laplacian")
        kernel = _kernel(*names, direction.dtype, indices.dtype, shape.defines)
    partial = cupy.empty((grid[0], m), cupy.float64)
    arrays = (indptr, indices, data, direction, product, partial)
    kernel(grid, block, (*sizes, value(alpha), *arrays))
    return Product(product, _column_sums(partial) if summed else partial)


def cg_update(
    solution: Array,
    residual: Array,
    direction: Array,
    product: Array,
    step: Array,
    *,
    summed: bool,
) -> Update:
    """Move solution and residual in place, and return the residual's squared column norms."""
    n, m = solution.shape
    arrays = _same_types(direction, product, solution, residual)
    step = cupy.ascontiguousarray(step, cupy.float64)
    shape = kernels.tile_shape(m, solution.dtype.itemsize, _alignment(*arrays))
    grid = shape.grid(n, m)
    partial = cupy.empty((grid[0], m), cupy.float64)
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    kernel = _kernel("cg_update", "cg_update", solution.dtype, defines=shape.defines)
    kernel(grid, shape.block, (*sizes, step, *arrays, partial))
    return Update(solution, residual, _column_sums(partial) if summed else partial)


def cg_direction(residual: Array, direction: Array, ratio: Array) -> Array:
    """``R + P ratio``, in the place of P."""
    n, m = residual.shape
    arrays = _same_types(residual, direction)
    ratio = cupy.ascontiguousarray(ratio, cupy.float64)
    shape = kernels.tile_shape(m, residual.dtype.itemsize, _alignment(*arrays))
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    kernel = _kernel("cg_direction", "cg_direction", residual.dtype, defines=shape.defines)
    kernel(shape.grid(n, m), shape.block, (*sizes, ratio, *arrays))
    return direction


def column_dots(left: Array, right: Array) -> Array:
    """Dot products of the columns of two (n, m) arrays of one type."""
    n, m = left.shape
    arrays = _same_types(left, right)
    shape = kernels.tile_shape(m, left.dtype.itemsize, _alignment(*arrays))
    grid = shape.grid(n, m)
    partial = cupy.empty((grid[0], m), cupy.float64)
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    kernel = _kernel("columns", "column_dots", left.dtype, defines=shape.defines)
    kernel(grid, shape.block, (*sizes, *arrays, partial))
    return _column_sums(partial)


def top_k(scores: Array, k: int, numbering: Numbering | None) -> TopK:
    """The k best of each row of scores (m, n), which may be a transposed view."""
    m, n = scores.shape
    columns = scores.strides[0] == scores.dtype.itemsize and scores.strides[1] > scores.strides[0]
    best = BestOfRows(m, n, k, scores.dtype, numbering, columns=columns)
    best.read(scores, 0)
    return best.sorted()


def list_bytes(n: int, k: int, dtype: Any) -> int:
    """Bytes that ``BestOfRows`` takes for a row among many."""
    shape = kernels.top_k_shape(n, n, k, columns=False, multiprocessors=1)
    return int((shape.room + shape.merge_room) * (dtype.itemsize + 4))


class BestOfRows:
    """The k best of each of m rows, whose scores may come some items at a time.

    Parameters
    ----------
    m, n, k
        Rows, items that come at a time, and results of a row.
    columns
        Whether neighboring rows are neighbors in memory.
    """

    def __init__(
        self, m: int, n: int, k: int, dtype: Any, numbering: Numbering | None, *, columns: bool
    ) -> None:
        self.m, self.k, self.dtype = m, k, dtype
        self.shape = kernels.top_k_shape(
            m, n, k, columns=columns, multiprocessors=_multiprocessors(cupy.cuda.Device().id)
        )
        self.numbers = None
        if numbering is not None:
            self.numbers = cupy.ascontiguousarray(numbering.order, cupy.int64)
        self.keys, self.places = self._lists(m * self.shape.parts * self.shape.room)
        self.least, self.bounds = self._lists(m * self.shape.parts)
        self.counts = cupy.empty((m * self.shape.parts,), cupy.int32)
        self.begun = False

    def read(self, scores: Array, first: int) -> None:
        """Look at the scores (m, count) of the items from the place ``first`` on.

        Places ascend from call to call.
        """
        shape, (m, n) = self.shape, scores.shape
        row_stride, item_stride = (stride // scores.dtype.itemsize for stride in scores.strides)
        arguments = (
            *map(np.int32, (m, n, self.k, shape.width, shape.parts, first, self.begun)),
            scores,
            np.int64(row_stride),
            np.int64(item_stride),
            self.numbers,
            self.keys,
            self.places,
            self.counts,
            self.least,
            self.bounds,
        )
        grid = (shape.parts * -(-m // shape.width),)
        _kernel("top_k", "top_k_part", self.dtype)(grid, (shape.threads,), arguments)
        self.begun = True

    def sorted(self) -> TopK:
        """The best of all items that were read, of which there must be k."""
        shape = self.shape
        best = cupy.empty((self.m, self.k), self.dtype)
        ids = cupy.empty((self.m, self.k), cupy.int64)
        arguments = (
            *map(np.int32, (self.k, shape.parts, shape.room)),
            self.keys,
            self.places,
            self.counts,
            self.numbers,
            *self._lists(self.m * shape.merge_room),
            best,
            ids,
        )
        _kernel("top_k", "top_k_merge", self.dtype)((self.m,), (shape.merge_threads,), arguments)
        return TopK(scores=best, ids=ids)

    def _lists(self, count: int) -> tuple[Array, Array]:
        """Room for keys, which are integers in the order of scores, and for places."""
        kind = cupy.uint32 if self.dtype.itemsize == 4 else cupy.uint64
        return cupy.empty((count,), kind), cupy.empty((count,), cupy.int32)


@cache
def _multiprocessors(device: int) -> int:
    runtime = cupy.cuda.runtime
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))


def mutual(ids: Array, similarities: Array) -> Array:
    """What the listed item's own list gives back to each item; 0 if it does not list it."""
    n, k = ids.shape
    result = cupy.empty_like(similarities)
    arguments = (np.int64(n), np.int32(k), ids, similarities, result)
    grid = (min(-(-n // 8), 65_536),)
    _kernel("mutual", "mutual", similarities.dtype)(grid, (32, 8), arguments)
    return result


def cg_pace(
    product: Product, standing: Standing, least: float, taken: Deflated | None, noise: float
) -> Moves:
    """How far columns go: one kernel, which adds up the parts of their curvature as well."""
    parts = _in_parts(product.curvature)
    m = parts.shape[1]
    step, moving = cupy.empty((m,), cupy.float64), cupy.empty((m,), cupy.bool_)
    rank, value = 0, product.values.dtype
    pair: tuple[Array, ...] = (None, None)
    if taken is not None:
        pair = tuple(map(cupy.ascontiguousarray, (taken.restricted, taken.coefficients)))
        _same_types(*pair, product.values)
        rank, noise = taken.restricted.shape[0], noise * taken.norm
    state = _numbers(standing.squared, standing.length, standing.target)
    bounds = (np.float64(noise), np.float64(least))
    arguments = (np.int64(parts.shape[0]), np.int32(m), parts, np.int64(rank), *pair, *bounds)
    _columns("cg_pace", value, m, (*arguments, *state, step, moving))
    return Moves(step, moving)


def cg_turn(squared_norm: Array, standing: Standing, moving: Array, *, stop_early: bool) -> Turn:
    """Where columns are after an update: one kernel, which adds up the parts of their squares."""
    parts = _in_parts(squared_norm)
    m = parts.shape[1]
    ratio, squared, length, target = (cupy.empty((m,), cupy.float64) for _ in range(4))
    fresh = cupy.empty((m,), cupy.bool_)
    state = _numbers(standing.squared, standing.length, standing.target)
    flags = (cupy.ascontiguousarray(moving), cupy.ascontiguousarray(standing.fresh))
    sizes = (np.int64(parts.shape[0]), np.int32(m), parts, np.int32(stop_early))
    made = (ratio, squared, length, target, fresh)
    _columns("cg_turn", parts.dtype, m, (*sizes, *flags, *state, *made))
    return Turn(ratio, Standing(squared, length, target, fresh))


def _column_sums(partial: Array) -> Array:
    rows, m = partial.shape
    sums = cupy.empty((m,), cupy.float64)
    _columns("column_sums", partial.dtype, m, (np.int64(rows), np.int32(m), partial, sums))
    return sums


def _columns(name: str, value: Any, m: int, arguments: tuple[Any, ...]) -> None:
    kernel = _kernel("columns", name, value, defines=("HG_PACK=1",))
    kernel((-(-m // _SLICE),), (_SLICE, _LINES), arguments)


def _in_parts(sums: Array) -> Array:
    """Sums (m,) as one part of themselves."""
    (parts,) = _numbers(sums if sums.ndim == 2 else sums[None, :])
    return parts


def _numbers(*arrays: Array) -> tuple[Array, ...]:
    return tuple(cupy.ascontiguousarray(array, cupy.float64) for array in arrays)


def _same_types(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, if all of them have one type: a kernel is compiled for that one."""
    types = {str(array.dtype) for array in arrays}
    if len(types) > 1:
        raise TypeError(
            f"arrays of one kernel must have one dtype; got {', '.join(sorted(types))}."
        )
    return arrays


def _alignment(*arrays: Array) -> int:
    """The largest number of bytes, up to 16, at a multiple of which all arrays begin."""
    together = 16
    for array in arrays:
        together |= array.data.ptr
    return int(together & -together)


@cache
def _module(file: str, value: str, index: str | None, defines: tuple[str, ...]) -> Any:
    options = ["-std=c++17", f"-DHG_VALUE={_C_NAMES[value]}"]
    if index is not None:
        options.append(f"-DHG_INDEX={_C_NAMES[index]}")
    options += [f"-D{define}" for define in defines]
    return cupy.RawModule(code=kernels.source(file), options=tuple(options), backend="nvrtc")


@cache
def _function(
    file: str, name: str, value: str, index: str | None, defines: tuple[str, ...], device: int
) -> Any:
    """A kernel, compiled on first use; CuPy keeps the result on disk as well."""
    return _module(file, value, index, defines).get_function(name)


def _kernel(
    file: str, name: str, value: Any, index: Any = None, defines: tuple[str, ...] = ()
) -> Any:
    types = (str(value), None if index is None else str(index))
    return _function(file, name, *types, defines, cupy.cuda.Device().id)
