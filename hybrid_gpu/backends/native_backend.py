"""NumPy arrays with the native core for the loops that NumPy and SciPy are slow at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import (
    native_graph,
    native_local,
    native_products,
    native_select,
    native_steps,
)
from hybrid_gpu.backends.csr_matrix import CsrMatrix
from hybrid_gpu.backends.local_records import LocalAnswer, LocalEffort, LocalProblem
from hybrid_gpu.backends.native import Core, lie_apart, native_core
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.protocol import (
    Array,
    HostArray,
    Numbering,
    SparseMatrix,
    TopK,
)
from hybrid_gpu.backends.result_memory import ResultMemory
from hybrid_gpu.backends.step_records import Product, Update

_REALS, _INTEGERS = ("float32", "float64"), ("int32", "int64")


class NativeBackend(NumpyBackend):
    """The NumPy backend with native code in it: to the user the same, only faster.

    What does not suit the native core (mixed types, gaps between rows) is NumPy's as before.
    """

    searches_locally = True

    def __init__(self, core: Core) -> None:
        self.core = core
        self._local = native_local.Native(core, native_local.Memories())
        self._results = ResultMemory()

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process, perhaps on another machine, that one's own core, if it has any.
        return host_backend, ()

    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array:
        if not _fits(matrix, dense):
            return super().spmm(matrix, dense)
        return native_steps.spmm(self.core, matrix, np.ascontiguousarray(dense))

    def subtract_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        if not _fits(matrix, dense) or not _alike(values) or values.dtype != dense.dtype:
            return super().subtract_spmm(values, matrix, dense)
        if not lie_apart(values, dense):
            return super().subtract_spmm(values, matrix, dense)
        native_steps.subtract_spmm(self.core, values, matrix, np.ascontiguousarray(dense))
        return values

    def laplacian_step(
        self,
        matrix: SparseMatrix,
        direction: Array,
        alpha: float,
        *,
        summed: bool = True,
        wanted: Array | None = None,
    ) -> Product:
        if not _fits(matrix, direction):
            return super().laplacian_step(matrix, direction, alpha)
        direction = np.ascontiguousarray(direction)
        values = self._results.empty_like(direction)
        curvature = native_steps.laplacian_step(self.core, matrix, direction, alpha, values)
        return Product(values=values, curvature=curvature)

    def cg_update(
        self,
        solution: Array,
        residual: Array,
        direction: Array,
        product: Array,
        step: Array,
        *,
        summed: bool = True,
    ) -> Update:
        arrays = (solution, residual, direction, product)
        apart = lie_apart(solution, residual, direction) and lie_apart(solution, residual, product)
        if not _alike(*arrays) or not apart:
            return super().cg_update(solution, residual, direction, product, step)
        step = np.ascontiguousarray(step, solution.dtype)
        squares = native_steps.cg_update(self.core, *arrays, step)
        return Update(solution, residual, squares)

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        if not _alike(residual, direction) or not lie_apart(residual, direction):
            return super().cg_direction(residual, direction, ratio)
        ratio = np.ascontiguousarray(ratio, direction.dtype)
        native_steps.cg_direction(self.core, residual, direction, ratio)
        return direction

    def column_dots(self, left: Array, right: Array) -> Array:
        if not _alike(left, right):
            return super().column_dots(left, right)
        return native_steps.column_dots(self.core, left, right)

    def top_k(self, scores: Array, k: int, numbering: Numbering | None = None) -> TopK:
        if not native_select.suits(scores, k):
            return super().top_k(scores, k, numbering)
        return native_select.top_k(self.core, scores, k, numbering)

    def largest_products(
        self,
        left: Array,
        right: Array,
        k: int,
        numbering: Numbering | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> TopK:
        if left is not right or not native_products.suits(right, k):
            return super().largest_products(left, right, k, numbering, advance)
        return native_products.nearest_rows(self.core, right, k, numbering, advance)

    def mutual_edges(self, ids: Array, similarities: Array) -> SparseMatrix:
        known = ids.dtype.name in _INTEGERS and similarities.dtype.name in _REALS
        if not known or ids.size == 0 or len(ids) >= 2**31:
            return super().mutual_edges(ids, similarities)
        return native_graph.mutual_edges(self.core, ids, similarities)

    def connected_components(self, matrix: SparseMatrix) -> NDArray[np.int32]:
        if not _fits(matrix, matrix.data) or matrix.shape[0] >= 2**31:
            return super().connected_components(matrix)
        return native_graph.connected_components(self.core, matrix)

    def reordered(self, matrix: SparseMatrix, numbering: Numbering) -> SparseMatrix:
        if not _fits(matrix, matrix.data):
            return super().reordered(matrix, numbering)
        return native_graph.reordered(self.core, matrix, numbering)

    def local_search(
        self, problem: LocalProblem, places: Array, weights: Array, k: int, effort: LocalEffort
    ) -> LocalAnswer:
        if not native_local.suits(problem):
            return super().local_search(problem, places, weights, k, effort)
        lists = (
            np.ascontiguousarray(places, np.int64),
            np.ascontiguousarray(weights, problem.adjacency.data.dtype),
        )
        return native_local.searched(self._local, problem, *lists, k, effort)


def host_backend() -> NumpyBackend:
    """The backend of the host: with the native core where that can be used."""
    core = native_core()
    return NumpyBackend() if core is None else NativeBackend(core)


def _fits(matrix: SparseMatrix, dense: HostArray) -> bool:
    """Whether the native core multiplies a matrix and an array; a wrong matrix is refused."""
    assert isinstance(matrix, CsrMatrix)
    parts = (matrix.data, matrix.indices, matrix.indptr)
    if dense.dtype != matrix.data.dtype or dense.dtype.name not in _REALS:
        return False
    if matrix.indices.dtype != matrix.indptr.dtype:
        return False
    if matrix.indices.dtype.name not in _INTEGERS:
        return False
    return matrix.sound and all(part.flags.c_contiguous and part.flags.aligned for part in parts)


def _alike(*arrays: HostArray) -> bool:
    """Whether all are row-major arrays without gaps, of one shape and one real type."""
    first = arrays[0]
    return first.dtype.name in _REALS and all(
        one.flags.c_contiguous
        and one.flags.aligned
        and one.shape == first.shape
        and one.dtype == first.dtype
        for one in arrays
    )
