"""The CuPy backend: one CUDA device, with kernels of our own where they beat CUDA's libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import cuda, cuda_steps, device_memory, transfers
from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.backends.cuda import DeviceCsr
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.local_records import LocalAnswer, LocalEffort, LocalProblem
from hybrid_gpu.backends.numpy_backend import NumpyBackend, host_view
from hybrid_gpu.backends.protocol import (
    Array,
    CoarseInverse,
    CoarseVectors,
    Deflated,
    Eigenpairs,
    HostArray,
    Numbering,
    SparseMatrix,
    TopK,
)
from hybrid_gpu.backends.step_records import Course, Moves, Product, Standing, Turn, Update
from hybrid_gpu.errors import DeviceMismatchError
from hybrid_gpu.other_arrays import readable

# DLPack's numbers for memory of a CUDA device: kDLCUDA and kDLCUDAManaged.
_CUDA_DEVICES = (2, 13)
ENGINES = ("own", "cusparse")
# Entries of a list that are placed one by one; longer lists are sorted first.
_PLACED_ONE_BY_ONE = 64
# Rows of scores that are sorted as a whole at a time, where more is wanted than the kernel gives.
_SORTED_TOGETHER = 4
# Products that are looked at while they are in the L2 cache (40 MB and more from the A100 on), and
# rows of them: with more, cuBLAS is hardly faster.
_PRODUCT_BYTES, _PRODUCT_ROWS = 32 << 20, 1024


class CupyBackend(GenericBackend):
    """CuPy arrays on one device.

    Parameters
    ----------
    number
        The CUDA device.
    engine
        Who multiplies sparse and dense matrices: ``"own"``, a kernel that reads and writes
        row-major arrays, or ``"cusparse"``, which writes column-major ones that are then copied.
    """

    xp = xp
    runs_late = True

    def __init__(self, number: int, *, engine: str = "own") -> None:
        self.device = cupy.cuda.Device(number)
        self.name = f"cupy:{number}"
        self.engine = engine

    def asarray(self, values: Any, dtype: str | None = None) -> Array:
        with self.device:
            if isinstance(values, cupy.ndarray):
                self._check_device(values.device.id)
            elif self._is_on_gpu(values):
                self._check_device(int(values.__dlpack_device__()[1]))
                values = cupy.from_dlpack(readable(values))
            else:
                return cupy.asarray(np.asarray(host_view(values), dtype=dtype))
            return values if dtype is None else values.astype(dtype, copy=False)

    def to_numpy(self, values: Array) -> HostArray:
        with self.device:
            return np.asarray(cupy.asnumpy(values))

    def csr(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
    ) -> SparseMatrix:
        # Kernels read memory from the first entry on, whatever the strides.
        with self.device:
            data, indices = cupy.ascontiguousarray(data), cupy.ascontiguousarray(indices)
            return DeviceCsr(data, indices, cupy.ascontiguousarray(indptr), shape)

    def longest_row(self, matrix: SparseMatrix) -> int:
        assert isinstance(matrix, DeviceCsr)
        with self.device:
            return matrix.longest_row

    def matmul(self, left: Array, right: Array) -> Array:
        with self.device:
            return super().matmul(left, right)

    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array:
        with self.device:
            if self.engine == "own":
                return cuda.csr_spmm(matrix, cupy.ascontiguousarray(dense))
            return self._spmm_by_cusparse(matrix, cupy.ascontiguousarray(dense))

    def subtract_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        with self.device:
            if self.engine == "own" and values.flags.c_contiguous:
                return cuda.csr_spmm(matrix, cupy.ascontiguousarray(dense), taken_off=values)
            return super().subtract_spmm(values, matrix, dense)

    def add_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        with self.device:
            if self.engine == "own" and values.flags.c_contiguous:
                # All entries count as folded, and change their sign.
                dense, folded = cupy.ascontiguousarray(dense), cuda.Folded(0, -1.0)
                return cuda.csr_spmm(matrix, dense, taken_off=values, folded=folded)
            return super().add_spmm(values, matrix, dense)

    def eigsh(self, matrix: SparseMatrix, k: int, start: HostArray) -> Eigenpairs:
        from cupyx.scipy.sparse.linalg import eigsh

        with self.device:
            # CuPy overwrites v0: what it gets here is a copy by nature.
            first = cupy.asarray(start, dtype=matrix.data.dtype)
            values, vectors = eigsh(cuda.csr_for_cupy(matrix), k=k, which="LA", v0=first)
            order = cupy.argsort(-values)
            return Eigenpairs(values[order], cupy.ascontiguousarray(vectors[:, order]))

    def connected_components(self, matrix: SparseMatrix) -> NDArray[np.int32]:
        # CuPy's own needs pylibcugraph; a graph is labeled once, when it is built.
        host = NumpyBackend()
        parts = (self.to_numpy(part) for part in (matrix.data, matrix.indices, matrix.indptr))
        data, indices, indptr = parts
        return host.connected_components(host.csr(data, indices, indptr, matrix.shape))

    def mutual_edges(self, ids: Array, similarities: Array) -> SparseMatrix:
        with self.device:
            n, k = ids.shape
            ids = cupy.ascontiguousarray(ids, cupy.int64)
            back = cuda.mutual(ids, cupy.ascontiguousarray(similarities))
            mutual = back > 0
            rows = cupy.repeat(cupy.arange(n, dtype=cupy.int64), k)[mutual.ravel()]
            columns = ids[mutual]
            there, returned = similarities[mutual], back[mutual]
            weights = (there.astype(cupy.float64) + returned.astype(cupy.float64)) / 2
            order = cupy.argsort(rows * n + columns)
            return csr_from_sorted(weights[order], rows[order], columns[order], (n, n), self)

    def top_k(self, scores: Array, k: int, numbering: Numbering | None = None) -> TopK:
        with self.device:
            small = k <= cuda.LARGEST_K and scores.shape[1] <= cuda.LARGEST_N
            if small and 0 not in scores.shape:
                return cuda.top_k(scores, k, numbering)
            # To sort a row takes twenty times its memory: some at a time.
            m = scores.shape[0]
            found = TopK(cupy.empty((m, k), scores.dtype), cupy.empty((m, k), cupy.int64))
            for start in range(0, m, _SORTED_TOGETHER):
                rows = slice(start, min(start + _SORTED_TOGETHER, m))
                best = super().top_k(scores[rows, :], k, numbering)
                found.scores[rows, :], found.ids[rows, :] = best.scores, best.ids
            return found

    def largest_products(
        self,
        left: Array,
        right: Array,
        k: int,
        numbering: Numbering | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> TopK:
        (m, _), n = left.shape, right.shape[0]
        if k > cuda.LARGEST_K or n > cuda.LARGEST_N:
            return super().largest_products(left, right, k, numbering, advance)
        with self.device:
            room, kind = self.available_bytes() // 4, left.dtype
            rows = max(1, min(m, _PRODUCT_ROWS, room // cuda.list_bytes(n, k, kind)))
            items = max(1, min(n, min(room, _PRODUCT_BYTES) // (rows * kind.itemsize)))
            found = TopK(cupy.empty((m, k), kind), cupy.empty((m, k), cupy.int64))
            memory = cupy.empty((rows * items,), kind)
            for start in range(0, m, rows):
                if advance:
                    advance(start)
                chosen = slice(start, min(start + rows, m))
                queries = left[chosen, :]
                best = cuda.BestOfRows(len(queries), items, k, kind, numbering, columns=False)
                for first in range(0, n, items):
                    others = right[first : first + items, :]
                    tile = memory[: len(queries) * len(others)].reshape(len(queries), -1)
                    best.read(cupy.dot(queries, others.T, out=tile), first)
                part = best.sorted()
                found.scores[chosen, :], found.ids[chosen, :] = part.scores, part.ids
            return found

    def place(self, ids: Array, values: Array, n: int) -> Array:
        with self.device:
            m, q = ids.shape
            if q > _PLACED_ONE_BY_ONE:
                return super().place(ids, values, n)
            # Each pass has one entry of every query: no two of them meet, as atomic sums would, in
            # an order that changes from run to run. One row more takes the entries of no item.
            result, columns = cupy.zeros((n + 1, m), values.dtype), cupy.arange(m)
            rows = cupy.where(ids < 0, n, ids)
            for number in range(q):
                result[rows[:, number], columns] += values[:, number]
            return result[:n, :]

    def laplacian_step(
        self,
        matrix: SparseMatrix,
        direction: Array,
        alpha: float,
        *,
        summed: bool = True,
        wanted: Array | None = None,
    ) -> Product:
        with self.device:
            if 0 in direction.shape:
                return super().laplacian_step(matrix, direction, alpha)
            direction = cupy.ascontiguousarray(direction)
            if wanted is not None:
                wanted = cupy.ascontiguousarray(wanted)
            return cuda.laplacian_step(matrix, direction, alpha, summed=summed, wanted=wanted)

    def cg_pace(
        self,
        product: Product,
        standing: Standing,
        least: float,
        taken: Deflated | None = None,
        noise: float = 0.0,
    ) -> Moves:
        with self.device:
            return cuda_steps.cg_pace(product, standing, least, taken, noise)

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
        with self.device:
            if 0 in solution.shape:
                return super().cg_update(solution, residual, direction, product, step)
            solution, residual = map(cupy.ascontiguousarray, (solution, residual))
            direction, product = map(cupy.ascontiguousarray, (direction, product))
            return cuda_steps.cg_update(solution, residual, direction, product, step, summed=summed)

    def cg_turn(
        self, squared_norm: Array, standing: Standing, moving: Array, *, stop_early: bool
    ) -> Turn:
        with self.device:
            return cuda_steps.cg_turn(squared_norm, standing, moving, stop_early=stop_early)

    def cg_advance(
        self, columns: Course, product: Array, moves: Moves, *, stop_early: bool
    ) -> Course:
        with self.device:
            if moves.tickets is None or 0 in product.shape:
                return super().cg_advance(columns, product, moves, stop_early=stop_early)
            return cuda_steps.cg_advance(columns, product, moves, stop_early=stop_early)

    def column_dots(self, left: Array, right: Array) -> Array:
        with self.device:
            if left.dtype != right.dtype or 0 in left.shape:
                return super().column_dots(left, right)
            left_rows = cupy.ascontiguousarray(left)
            return cuda_steps.column_dots(
                left_rows, left_rows if right is left else cupy.ascontiguousarray(right)
            )

    def deflate(
        self, values: Array, vectors: CoarseVectors, inverse: CoarseInverse, alpha: float
    ) -> Deflated:
        ours = self.engine == "own" and values.flags.c_contiguous
        if vectors.spread is None or inverse.together is None or not ours:
            with self.device:
                return super().deflate(values, vectors, inverse, alpha)
        with self.device:
            # As the generic one, with every part written where the next product reads it.
            r, s = vectors.transposed.shape[0], inverse.together.shape[0]
            restricted, solved = cuda.csr_restrict(vectors.transposed, values, inverse.alone, s)
            cupy.matmul(inverse.together, restricted[:s, :], out=solved[:s, :])
            folded = cuda.Folded(r, -alpha)
            values = cuda.csr_spmm(vectors.spread, solved, taken_off=values, folded=folded)
            return Deflated(values, solved, restricted, inverse.norm)

    def local_search(
        self, problem: LocalProblem, places: Array, weights: Array, k: int, effort: LocalEffort
    ) -> LocalAnswer:
        with self.device:
            return super().local_search(problem, places, weights, k, effort)

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        with self.device:
            if 0 in direction.shape:
                return super().cg_direction(residual, direction, ratio)
            return cuda_steps.cg_direction(
                cupy.ascontiguousarray(residual), cupy.ascontiguousarray(direction), ratio
            )

    def uploads(
        self, arrays: Sequence[Array | HostArray], start: int, width: int
    ) -> Iterator[tuple[Array, ...]]:
        if all(isinstance(array, cupy.ndarray) for array in arrays):
            yield from super().uploads(arrays, start, width)
            return
        yield from transfers.uploads(arrays, start, width, self.device, self._copies)

    def download(self, values: Array) -> Callable[[], HostArray]:
        with self.device:
            return transfers.Download(values, self._copies)

    def synchronize(self) -> None:
        with self.device:
            cupy.cuda.get_current_stream().synchronize()

    def free_memory(self) -> None:
        with self.device:
            device_memory.release()

    def available_bytes(self) -> int:
        with self.device:
            return device_memory.available_bytes(self.device)

    @contextmanager
    def stage(self, label: str, times: dict[str, list[Callable[[], float]]]) -> Iterator[None]:
        with self.device:
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            with self.annotate(label):
                yield
            end.record()

        def seconds() -> float:
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3

        times[label].append(seconds)

    @contextmanager
    def annotate(self, label: str) -> Iterator[None]:
        with self.device:
            if _nvtx is None:
                yield
            else:
                with _nvtx.annotate(label, domain="hybrid_gpu"):
                    yield

    @cached_property
    def _copies(self) -> Any:
        """The second stream: copies run on it while the first one computes."""
        with self.device:
            return cupy.cuda.Stream(non_blocking=True)

    def _spmm_by_cusparse(self, matrix: SparseMatrix, dense: Array) -> Array:
        from cupyx import cusparse

        sparse = cuda.csr_for_cupy(matrix)
        if not sparse.has_canonical_format:
            sparse.sum_duplicates()
        # A row-major array is a column-major one transposed: cuSPARSE reads it without a copy.
        product = cusparse.spmm(sparse, dense.T, transb=True)
        return cupy.ascontiguousarray(product)

    def _check_device(self, number: int) -> None:
        if number != self.device.id:
            raise DeviceMismatchError(
                f"got an array on device {number} for work on device {self.device.id}. Move the "
                f"index with index.to('cupy:{number}'), or the array with "
                f"cupy.asarray(cupy.asnumpy(array)) under cupy.cuda.Device({self.device.id})."
            )

    @staticmethod
    def _is_on_gpu(values: Any) -> bool:
        if not hasattr(values, "__dlpack_device__"):
            return False
        return int(values.__dlpack_device__()[0]) in _CUDA_DEVICES


def _import_nvtx() -> ModuleType | None:
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx  # type: ignore[no-any-return]


_nvtx = _import_nvtx()
