"""The NumPy/SciPy backend: every core of the host, no GPU needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import array_api_compat
import array_api_compat.numpy as xp
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.protocol import (
    Array,
    Edges,
    Eigenpairs,
    HostArray,
    Product,
    SparseMatrix,
    TopK,
    Update,
)
from hybrid_gpu.errors import DeviceMismatchError

T = TypeVar("T")
R = TypeVar("R")

# DLPack's numbers for memory that the host can read: kDLCPU and kDLCUDAHost.
_HOST_DEVICES = (1, 3)
_FALLBACK_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True, eq=False)
class _RowBlocks:
    """A CSR matrix and the same matrix cut into one block of rows for each thread."""

    data: HostArray
    indices: HostArray
    indptr: HostArray
    shape: tuple[int, int]
    blocks: tuple[Any, ...]
    bounds: tuple[int, ...]


class NumpyBackend(GenericBackend):
    """NumPy arrays and SciPy sparse matrices."""

    xp = xp
    name = "numpy"
    device = "cpu"

    def asarray(self, values: Any, dtype: str | None = None) -> Array:
        return np.asarray(host_view(values), dtype=dtype)

    def to_numpy(self, values: Array) -> HostArray:
        return np.asarray(values)

    def csr(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
    ) -> SparseMatrix:
        bounds = _balanced_bounds(indptr, thread_count())
        blocks = tuple(
            scipy.sparse.csr_array(
                (
                    data[indptr[start] : indptr[stop]],
                    indices[indptr[start] : indptr[stop]],
                    indptr[start : stop + 1] - indptr[start],
                ),
                shape=(stop - start, shape[1]),
            )
            for start, stop in pairwise(bounds)
        )
        return _RowBlocks(data, indices, indptr, shape, blocks, bounds)

    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array:
        assert isinstance(matrix, _RowBlocks)
        dense = np.ascontiguousarray(dense)
        result = np.empty((matrix.shape[0], dense.shape[1]), np.result_type(matrix.data, dense))

        def multiply(block: int) -> None:
            # SciPy releases the GIL inside, so threads really run side by side.
            start, stop = matrix.bounds[block : block + 2]
            result[start:stop] = matrix.blocks[block] @ dense

        # Starting threads costs more than a product with few columns of a small matrix.
        parallel = matrix.data.size * dense.shape[1] > 200_000
        _for_each(multiply, range(len(matrix.blocks)), parallel=parallel)
        return result

    def eigsh(self, matrix: SparseMatrix, k: int, start: HostArray) -> Eigenpairs:
        whole = scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), matrix.shape)
        values, vectors = scipy.sparse.linalg.eigsh(
            whole, k=k, which="LA", v0=start.astype(whole.dtype)
        )
        return Eigenpairs(
            values=values[::-1].copy(), vectors=np.ascontiguousarray(vectors[:, ::-1])
        )

    def connected_components(self, matrix: SparseMatrix) -> NDArray[np.int32]:
        whole = scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), matrix.shape)
        labels = scipy.sparse.csgraph.connected_components(whole, directed=False)[1]
        return np.asarray(labels, dtype=np.int32)

    def mutual_edges(self, ids: Array, similarities: Array) -> Edges:
        n = ids.shape[0]
        order = np.argsort(ids, axis=1, kind="stable")
        columns = np.take_along_axis(ids, order, axis=1)
        weights = np.take_along_axis(similarities, order, axis=1).astype(np.float64)
        own = np.arange(n)[:, None]
        kept = (columns >= 0) & (columns != own) & (weights > 0)
        kept[:, 1:] &= columns[:, 1:] != columns[:, :-1]
        indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        lists = scipy.sparse.csr_array((weights[kept], columns[kept], indptr), shape=(n, n))
        # The transpose is a counting sort: on long lists far cheaper than sorting names.
        back = lists.T.tocsr()
        both = lists.astype(bool).multiply(back.astype(bool))
        mean = scipy.sparse.csr_array((both.multiply(lists) + both.multiply(back)) / 2)
        mean.sort_indices()
        rows = np.repeat(np.arange(n), np.diff(mean.indptr))
        return Edges(rows, mean.indices.astype(np.int64), mean.data)

    def top_k(self, scores: Array, k: int) -> TopK:
        m, n = scores.shape
        best = np.empty((m, k), scores.dtype)
        ids = np.empty((m, k), np.int64)

        def select(rows: slice) -> None:
            # One copy turns the columns of a solution into rows that lie together.
            for row, line in zip(
                range(rows.start, rows.stop), np.ascontiguousarray(scores[rows]), strict=True
            ):
                ids[row] = _best_of_row(line, k)
                best[row] = line[ids[row]]

        chunks = [slice(start, min(start + 32, m)) for start in range(0, m, 32)]
        _for_each(select, chunks, parallel=m * n > 200_000)
        return TopK(scores=best, ids=ids)

    def laplacian_step(self, matrix: SparseMatrix, direction: Array, alpha: float) -> Product:
        values = self.spmm(matrix, direction)
        values *= -alpha
        values += direction
        return Product(values=values, curvature=self.column_dots(direction, values))

    def cg_update(
        self, solution: Array, residual: Array, direction: Array, product: Array, step: Array
    ) -> Update:
        step = step.astype(solution.dtype)
        solution += direction * step
        residual -= product * step
        return Update(solution, residual, self.column_dots(residual, residual))

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        direction *= ratio.astype(direction.dtype)
        direction += residual
        return direction

    def column_dots(self, left: Array, right: Array) -> Array:
        # dtype= makes einsum add up in float64 without a float64 copy of its operands.
        return np.einsum("ij,ij->j", left, right, dtype=np.float64)

    def available_bytes(self) -> int:
        return _available_host_bytes()


def host_view(values: Any) -> Any:
    """The same values as a NumPy array, without a copy where they are on the host already."""
    if isinstance(values, np.ndarray):
        return values
    if array_api_compat.is_cupy_array(values):
        raise DeviceMismatchError(
            f"got a CuPy array on device {values.device.id} for work on the CPU. Move the index "
            f"with index.to('cupy:{values.device.id}'), or the array with cupy.asnumpy(array)."
        )
    if hasattr(values, "__dlpack_device__"):
        kind, number = values.__dlpack_device__()
        if int(kind) not in _HOST_DEVICES:
            raise DeviceMismatchError(
                f"got an array of {type(values).__module__} on device {int(kind)}:{int(number)} "
                "where a host array is needed. Copy it to the host first, e.g. array.cpu()."
            )
        try:
            return np.from_dlpack(values)
        except (RuntimeError, BufferError) as fault:
            raise DeviceMismatchError(
                f"the array of {type(values).__module__} cannot be read from the host: {fault}"
            ) from fault
    return np.asarray(values)


def _best_of_row(line: HostArray, k: int) -> HostArray:
    """Indices of the ``k`` largest entries, best first, ties to the lower index."""
    n = line.size
    if k == n:
        return np.argsort(-line, kind="stable")
    threshold = np.partition(line, n - k)[n - k]
    above = np.flatnonzero(line > threshold)
    # argpartition would pick any of the entries that tie at the threshold: take the first ones.
    level = np.flatnonzero(line == threshold)[: k - above.size]
    above = above[np.argsort(-line[above], kind="stable")]
    return np.concatenate((above, level))


def _balanced_bounds(indptr: HostArray, parts: int) -> tuple[int, ...]:
    """Row numbers that cut a matrix into at most ``parts`` blocks of about equal work."""
    rows = indptr.size - 1
    wanted = np.linspace(0, int(indptr[-1]), parts + 1)[1:-1]
    inner = np.searchsorted(indptr, wanted).tolist()
    return (0, *sorted({row for row in inner if 0 < row < rows}), rows)


@cache
def thread_count() -> int:
    """Threads that this process may run at once."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="hybrid_gpu")


def _for_each(function: Callable[[T], R], items: Iterable[T], *, parallel: bool) -> None:
    if parallel and thread_count() > 1:
        list(_pool().map(function, items))
    else:
        for item in items:
            function(item)


def _available_host_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        # macOS tells no better: count on half of the memory.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return _FALLBACK_BYTES
