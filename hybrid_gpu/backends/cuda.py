"""Launching the CUDA kernels of ``hybrid_gpu.kernels`` on CuPy arrays.

Every scalar is passed as a NumPy scalar of the kernel's own type: CuPy hands a Python float over as
a double, which a kernel that expects a float would read as garbage.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from hybrid_gpu import kernels  # type: ignore[attr-defined]  # stands beside, see pyproject
from hybrid_gpu.backends.protocol import Array, Numbering, Product, SparseMatrix, TopK, Update

# What the top_k kernel can do: results per row, and items.
LARGEST_K = 2048
LARGEST_N = 2**31 - 4097

_THREADS = 256
# Bounds the partial sums that column_sums adds up; far more blocks than a GPU runs at once.
_ROW_BLOCKS = 1024
_LONG_ROWS = 256
_C_NAMES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


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
    name, block, columns = "csr_spmm", kernels.row_block(m, length), 0
    if length > _LONG_ROWS:
        name, block, columns = "csr_spmm_long_rows", (_THREADS, 1), 32
    grid = (min(-(-n // block[1]), 2**31 - 1), -(-m // (columns or block[0])))
    indptr, indices = _same_types(matrix.indptr, matrix.indices)
    subtract = np.int32(taken_off is not None)
    arguments = (np.int64(n), np.int32(m), subtract, indptr, indices, data, dense, result)
    _kernel("csr_spmm", name, dense.dtype, matrix.indices.dtype)(grid, block, arguments)
    return result


def laplacian_step(matrix: SparseMatrix, direction: Array, alpha: float) -> Product:
    """``(I - alpha W) P`` and the column dots of P with it."""
    n, m = direction.shape
    value = direction.dtype.type
    product = cupy.empty_like(direction)
    block = kernels.row_block(m, matrix.data.size / max(n, 1))
    blocks = max(1, min(-(-n // block[1]), _ROW_BLOCKS))
    partial = cupy.empty((blocks, m), cupy.float64)
    indptr, indices = _same_types(matrix.indptr, matrix.indices)
    data, direction = _same_types(matrix.data, direction)
    arguments = (
        np.int64(n),
        np.int32(m),
        value(alpha),
        indptr,
        indices,
        data,
        direction,
        product,
        partial,
    )
    kernel = _kernel("laplacian_step", "laplacian_step", direction.dtype, matrix.indices.dtype)
    kernel((blocks, -(-m // block[0])), block, arguments)
    return Product(product, _column_sums(partial))


def cg_update(
    solution: Array, residual: Array, direction: Array, product: Array, step: Array
) -> Update:
    """Move solution and residual in place, and return the residual's squared column norms."""
    n, m = solution.shape
    block = kernels.tile_block(m)
    blocks = max(1, min(-(-n // block[1]), _ROW_BLOCKS))
    partial = cupy.empty((blocks, m), cupy.float64)
    _same_types(solution, residual, direction, product)
    step = cupy.ascontiguousarray(step, cupy.float64)
    arguments = (np.int64(n), np.int32(m), step, direction, product, solution, residual, partial)
    kernel = _kernel("cg_update", "cg_update", solution.dtype)
    kernel((blocks, -(-m // block[0])), block, arguments)
    return Update(solution, residual, _column_sums(partial))


def cg_direction(residual: Array, direction: Array, ratio: Array) -> Array:
    """``R + P ratio``, in the place of P."""
    n, m = residual.shape
    block = kernels.tile_block(m)
    grid = (min(-(-n // block[1]), 2**31 - 1), -(-m // block[0]))
    _same_types(residual, direction)
    ratio = cupy.ascontiguousarray(ratio, cupy.float64)
    arguments = (np.int64(n), np.int32(m), ratio, residual, direction)
    _kernel("cg_direction", "cg_direction", residual.dtype)(grid, block, arguments)
    return direction


def top_k(scores: Array, k: int, numbering: Numbering | None) -> TopK:
    """The k best of each row of scores (m, n), which may be a transposed view."""
    m, n = scores.shape
    best = cupy.empty((m, k), scores.dtype)
    ids = cupy.empty((m, k), cupy.int64)
    size = scores.dtype.itemsize
    row_stride, item_stride = (stride // size for stride in scores.strides)
    block = (1024 if n > 16_000 else 256,)
    arguments = (
        np.int32(n),
        np.int32(k),
        scores,
        np.int64(row_stride),
        np.int64(item_stride),
        None if numbering is None else cupy.ascontiguousarray(numbering.places, cupy.int64),
        best,
        ids,
    )
    _kernel("top_k", "top_k", scores.dtype)((m,), block, arguments)
    return TopK(scores=best, ids=ids)


def mutual(ids: Array, similarities: Array) -> Array:
    """What the listed item's own list gives back to each item; 0 if it does not list it."""
    n, k = ids.shape
    result = cupy.empty_like(similarities)
    arguments = (np.int64(n), np.int32(k), ids, similarities, result)
    grid = (min(-(-n // 8), 65_536),)
    _kernel("mutual", "mutual", similarities.dtype)(grid, (32, 8), arguments)
    return result


def _column_sums(partial: Array) -> Array:
    blocks, m = partial.shape
    sums = cupy.empty((m,), cupy.float64)
    kernel = _kernel("laplacian_step", "column_sums", np.dtype(np.float64), np.dtype(np.int32))
    kernel((-(-m // 32),), (_THREADS,), (np.int32(blocks), np.int32(m), partial, sums))
    return sums


def _same_types(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, if all of them have one type: a kernel is compiled for that one."""
    types = {str(array.dtype) for array in arrays}
    if len(types) > 1:
        raise TypeError(
            f"arrays of one kernel must have one dtype; got {', '.join(sorted(types))}."
        )
    return arrays


@cache
def _module(file: str, value: str, index: str | None) -> Any:
    options = ["-std=c++17", f"-DHG_VALUE={_C_NAMES[value]}"]
    if index is not None:
        options.append(f"-DHG_INDEX={_C_NAMES[index]}")
    return cupy.RawModule(code=kernels.source(file), options=tuple(options), backend="nvrtc")


@cache
def _function(file: str, name: str, value: str, index: str | None, device: int) -> Any:
    """A kernel, compiled on first use; CuPy keeps the result on disk as well."""
    return _module(file, value, index).get_function(name)


def _kernel(file: str, name: str, value: Any, index: Any = None) -> Any:
    return _function(
        file, name, str(value), None if index is None else str(index), cupy.cuda.Device().id
    )
