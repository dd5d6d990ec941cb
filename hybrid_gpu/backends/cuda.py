"""Sparse products, mutual neighbors and top-k on CuPy arrays, by CUDA kernels of our own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import cupy
import cupyx.scipy.sparse
import numpy as np

from hybrid_gpu import kernels  # type: ignore[attr-defined]  # stands beside, see pyproject
from hybrid_gpu.backends.cuda_launch import alignment, compiled, same_types
from hybrid_gpu.backends.cuda_steps import column_sums
from hybrid_gpu.backends.protocol import Array, Numbering, SparseMatrix, TopK
from hybrid_gpu.backends.step_records import Product

# What the kernels of top_k can do: results per row, and items.
LARGEST_K = 2048
LARGEST_N = 2**31 - 16_385

_THREADS = 256
# Bounds the partial sums of few columns; far more blocks than a GPU runs at once.
_ROW_BLOCKS = 1024
_LONG_ROWS = 256


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


def csr_for_cupy(matrix: SparseMatrix) -> Any:
    """The matrix as CuPy has it, whose indices take 32 bits: it would cut longer ones off."""
    entries = matrix.data.shape[0]
    if max(entries, *matrix.shape) >= 2**31:
        raise ValueError(
            f"CuPy's eigensolver and cuSPARSE's products, as CuPy calls them, count by 32 bits; "
            f"got a graph of {entries} entries. Use basis='aggregate', which needs neither."
        )
    arrays = (matrix.data, matrix.indices, matrix.indptr)
    return cupyx.scipy.sparse.csr_matrix(arrays, shape=matrix.shape)


class Folded(NamedTuple):
    """Columns from ``at`` on are those before it once more, their entries times ``times``."""

    at: int
    times: float


def csr_spmm(
    matrix: SparseMatrix,
    dense: Array,
    *,
    taken_off: Array | None = None,
    folded: Folded | None = None,
) -> Array:
    """``A X`` for a row-major X, or ``V - A X`` in the place of the values V to take it off."""
    # A kernel reads raw memory: values of another type would be garbage, not an error.
    common = cupy.result_type(matrix.data, dense)
    data, dense = matrix.data.astype(common, copy=False), dense.astype(common, copy=False)
    n, m = matrix.shape[0], dense.shape[1]
    result = cupy.empty((n, m), common) if taken_off is None else taken_off
    subtract, folded = taken_off is not None, folded or Folded(matrix.shape[1], 1.0)
    _spmm(matrix, data, dense, result, subtract=subtract, folded=folded)
    return result


def csr_restrict(
    matrix: SparseMatrix, dense: Array, scale: Array, start: int
) -> tuple[Array, Array]:
    """``A X``, and room for as much, in which rows from ``start`` on are times ``scale``."""
    data, dense, scale = same_types(matrix.data, dense, cupy.ascontiguousarray(scale))
    shape = matrix.shape[0], dense.shape[1]
    result, scaled = cupy.empty(shape, dense.dtype), cupy.empty(shape, dense.dtype)
    folded = Folded(matrix.shape[1], 1.0)
    _spmm(matrix, data, dense, result, folded=folded, scaled=(start, scale, scaled))
    return result, scaled


def _spmm(
    matrix: SparseMatrix,
    data: Array,
    dense: Array,
    result: Array,
    *,
    folded: Folded,
    subtract: bool = False,
    scaled: tuple[int, Array | None, Array | None] | None = None,
) -> None:
    """The product by the kernel for its shape, into a result that is there."""
    same_types(data, dense, result)
    n, m = result.shape
    if n == 0 or m == 0:
        return
    start, scale, copy = (n, None, None) if scaled is None else scaled
    indptr, indices = same_types(matrix.indptr, matrix.indices)
    types, length = (dense.dtype, indices.dtype), matrix.data.size / n
    sizes: tuple[Any, ...] = (np.int64(n), np.int32(m))
    packed = (dense, result) if copy is None else (dense, result, copy)
    shape = kernels.wide_shape(m, dense.dtype.itemsize, alignment(*packed), n=n)
    if shape is not None and length <= _LONG_ROWS:
        sizes, block, grid = (*sizes, np.int32(shape.passes)), shape.block, shape.grid(n, m)
        kernel = compiled("wide_product", "wide_spmm", *types, shape.defines)
    else:
        long = length > _LONG_ROWS
        block = (_THREADS, 1) if long else kernels.row_block(m, length)
        grid = (min(-(-n // block[1]), 2**31 - 1), -(-m // (32 if long else block[0])))
        kernel = compiled("csr_spmm", "csr_spmm_long_rows" if long else "csr_spmm", *types)
    fold = (indices.dtype.type(folded.at), dense.dtype.type(folded.times))
    arrays = (indptr, indices, data, dense, result)
    kernel(grid, block, (*sizes, np.int32(subtract), *arrays, *fold, np.int64(start), scale, copy))


def laplacian_step(
    matrix: SparseMatrix,
    direction: Array,
    alpha: float,
    *,
    summed: bool,
    wanted: Array | None,
) -> Product:
    """``(I - alpha W) P`` and the column dots of P with it; in parts if not summed."""
    n, m = direction.shape
    value = direction.dtype.type
    product = cupy.empty_like(direction)
    indptr, indices = same_types(matrix.indptr, matrix.indices)
    data, direction = same_types(matrix.data, direction)
    shape = kernels.wide_shape(m, direction.dtype.itemsize, alignment(direction, product), n=n)
    sizes: tuple[Any, ...] = (np.int64(n), np.int32(m))
    if shape is None:
        block = kernels.row_block(m, matrix.data.size / max(n, 1))
        grid = (max(1, min(-(-n // block[1]), _ROW_BLOCKS)), -(-m // block[0]))
        kernel = compiled("laplacian_step", "laplacian_step", direction.dtype, indices.dtype)
    else:
        block, grid = shape.block, shape.grid(n, m)
        sizes = (*sizes, np.int32(shape.passes))
        names = ("wide_product", "wide_laplacian")
        kernel = compiled(*names, direction.dtype, indices.dtype, shape.defines)
    partial = cupy.empty((grid[0], m), cupy.float64)
    arrays = (indptr, indices, data, direction, product, partial, wanted)
    kernel(grid, block, (*sizes, value(alpha), *arrays))
    return Product(product, column_sums(partial) if summed else partial)


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
        compiled("top_k", "top_k_part", self.dtype)(grid, (shape.threads,), arguments)
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
        compiled("top_k", "top_k_merge", self.dtype)((self.m,), (shape.merge_threads,), arguments)
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
    compiled("mutual", "mutual", similarities.dtype)(grid, (32, 8), arguments)
    return result
