"""The CuPy backend: one CUDA device, with kernels of our own where they beat CUDA's libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import array_api_compat.cupy as xp
import cupy
import cupyx.scipy.sparse
import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import cuda, device_memory, transfers
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.local_records import LocalAnswer, LocalEffort, LocalProblem
from hybrid_gpu.backends.numpy_backend import NumpyBackend, host_view
from hybrid_gpu.backends.protocol import (
    Array,
    CoarseInverse,
    CoarseVectors,
    Deflated,
    Edges,
    Eigenpairs,
    HostArray,
    Numbering,
    Product,
    SparseMatrix,
    TopK,
    Update,
)
from hybrid_gpu.errors import BackendUnavailableError, DeviceMismatchError

# DLPack's numbers for memory of a CUDA device: kDLCUDA and kDLCUDAManaged.
_CUDA_DEVICES = (2, 13)
ENGINES = ("own", "cusparse")
# Entries of a list that are placed one by one; longer lists are sorted first.
_PLACED_ONE_BY_ONE = 64
# Rows of scores that are sorted as a whole at a time, where more is wanted than the kernel gives.
_SORTED_TOGETHER = 4


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCsr:
    """A CSR matrix on the device; unlike CuPy's, its indices may take 64 bits."""

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]


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
                values = cupy.from_dlpack(values)
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

    def eigsh(self, matrix: SparseMatrix, k: int, start: HostArray) -> Eigenpairs:
        from cupyx.scipy.sparse.linalg import eigsh

        with self.device:
            # CuPy overwrites v0: what it gets here is a copy by nature.
            first = cupy.asarray(start, dtype=matrix.data.dtype)
            values, vectors = eigsh(self._csr_matrix(matrix), k=k, which="LA", v0=first)
            order = cupy.argsort(-values)
            return Eigenpairs(values[order], cupy.ascontiguousarray(vectors[:, order]))

    def connected_components(self, matrix: SparseMatrix) -> NDArray[np.int32]:
        # CuPy's own needs pylibcugraph; a graph is labeled once, when it is built.
        host = NumpyBackend()
        parts = (self.to_numpy(part) for part in (matrix.data, matrix.indices, matrix.indptr))
        data, indices, indptr = parts
        return host.connected_components(host.csr(data, indices, indptr, matrix.shape))

    def mutual_edges(self, ids: Array, similarities: Array) -> Edges:
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
            return Edges(rows[order], columns[order], weights[order])

    def top_k(self, scores: Array, k: int, numbering: Numbering | None = None) -> TopK:
        with self.device:
            if k <= cuda.LARGEST_K and scores.shape[1] <= cuda.LARGEST_N:
                return cuda.top_k(scores, k, numbering)
            # To sort a row takes twenty times its memory: some at a time.
            m = scores.shape[0]
            found = TopK(cupy.empty((m, k), scores.dtype), cupy.empty((m, k), cupy.int64))
            for start in range(0, m, _SORTED_TOGETHER):
                rows = slice(start, min(start + _SORTED_TOGETHER, m))
                best = super().top_k(scores[rows, :], k, numbering)
                found.scores[rows, :], found.ids[rows, :] = best.scores, best.ids
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

    def laplacian_step(self, matrix: SparseMatrix, direction: Array, alpha: float) -> Product:
        with self.device:
            return cuda.laplacian_step(matrix, cupy.ascontiguousarray(direction), alpha)

    def cg_update(
        self, solution: Array, residual: Array, direction: Array, product: Array, step: Array
    ) -> Update:
        with self.device:
            arrays = (cupy.ascontiguousarray(array) for array in (solution, residual))
            solution, residual = arrays
            return cuda.cg_update(
                solution,
                residual,
                cupy.ascontiguousarray(direction),
                cupy.ascontiguousarray(product),
                step,
            )

    def column_dots(self, left: Array, right: Array) -> Array:
        with self.device:
            return super().column_dots(left, right)

    def deflate(
        self, values: Array, vectors: CoarseVectors, inverse: CoarseInverse, alpha: float
    ) -> Deflated:
        with self.device:
            return super().deflate(values, vectors, inverse, alpha)

    def local_search(
        self, problem: LocalProblem, places: Array, weights: Array, k: int, effort: LocalEffort
    ) -> LocalAnswer:
        with self.device:
            return super().local_search(problem, places, weights, k, effort)

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        with self.device:
            return cuda.cg_direction(
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

    def _csr_matrix(self, matrix: SparseMatrix) -> Any:
        arrays = (matrix.data, matrix.indices, matrix.indptr)
        return cupyx.scipy.sparse.csr_matrix(arrays, shape=matrix.shape)

    def _spmm_by_cusparse(self, matrix: SparseMatrix, dense: Array) -> Array:
        from cupyx import cusparse

        sparse = self._csr_matrix(matrix)
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


def open_device(number: int) -> CupyBackend:
    """The backend of a CUDA device that answers.

    Raises
    ------
    BackendUnavailableError
        If there is no driver, no device, or not this one.
    """
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as fault:
        raise BackendUnavailableError(
            f"CuPy {cupy.__version__} is installed, but no GPU answers: {fault}. Check the driver "
            "with nvidia-smi, or use backend='numpy'."
        ) from fault
    if count == 0:
        raise BackendUnavailableError(
            "CuPy is installed, but this machine has no CUDA device. Use backend='numpy'."
        )
    if number >= count:
        raise BackendUnavailableError(
            f"there is no CUDA device {number}: this machine has {count}, numbered from 0. Use "
            f"backend='cupy:{count - 1}' or lower."
        )
    return CupyBackend(number)


def device_count() -> int:
    """CUDA devices that answer; 0 without a driver."""
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def describe_devices() -> list[tuple[str, str]]:
    """CuPy, CUDA, driver and every device, in words."""
    facts = [("cupy", str(cupy.__version__))]
    runtime = cupy.cuda.runtime
    try:
        facts.append(("cuda", f"{_dotted(runtime.runtimeGetVersion())} (runtime)"))
        facts.append(("driver", f"for CUDA up to {_dotted(runtime.driverGetVersion())}"))
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as fault:
        return [*facts, ("driver", f"no GPU answers: {fault}")]
    for number in range(count):
        about = runtime.getDeviceProperties(number)
        name = about["name"].decode()
        size = about["totalGlobalMem"] / 1e9
        facts.append(
            (f"gpu {number}", f"{name}, {size:.1f} GB, sm_{about['major']}{about['minor']}")
        )
    return facts


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _import_nvtx() -> ModuleType | None:
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx  # type: ignore[no-any-return]


_nvtx = _import_nvtx()
