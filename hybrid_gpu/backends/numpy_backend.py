"""The NumPy/SciPy backend: every core of the host, no GPU needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import array_api_compat
import array_api_compat.numpy as xp
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from hybrid_gpu.backends.csr_arrays import index_type
from hybrid_gpu.backends.csr_matrix import CsrMatrix
from hybrid_gpu.backends.dense_product import dense_product
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.backends.protocol import (
    Array,
    Eigenpairs,
    HostArray,
    Numbering,
    SparseMatrix,
    TopK,
)
from hybrid_gpu.backends.row_selection import best_of_row
from hybrid_gpu.backends.step_records import Product, Update
from hybrid_gpu.backends.threads import for_each
from hybrid_gpu.errors import DeviceMismatchError
from hybrid_gpu.other_arrays import readable

# DLPack's numbers for memory that the host can read: kDLCPU and kDLCUDAHost.
_HOST_DEVICES = (1, 3)
# Starting threads costs more than an operation on fewer entries.
_WORTH_THREADS = 200_000
# A tile is what a core's cache holds, about a megabyte in float32, and large beside the cost of a
# call.
_TILE_ENTRIES = 262_144
# Entries of k-NN lists that are sorted and matched at a time.
_LIST_ENTRIES = 1 << 16
# Entries of a row that are worth a pass of their own when columns are added up.
_ROW_ENTRIES = 64


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
        return CsrMatrix(data, indices, indptr, shape)

    def matmul(self, left: Array, right: Array) -> Array:
        return dense_product(left, right)

    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array:
        assert isinstance(matrix, CsrMatrix)
        dense = np.ascontiguousarray(dense)
        result = np.empty((matrix.shape[0], dense.shape[1]), np.result_type(matrix.data, dense))

        def multiply(part: tuple[int, Any]) -> None:
            # SciPy releases the GIL inside, so threads really run side by side.
            start, rows = part
            result[start : start + rows.shape[0]] = rows @ dense

        parallel = matrix.data.size * dense.shape[1] > _WORTH_THREADS
        _for_each(multiply, matrix.blocks, parallel=parallel)
        return result

    def subtract_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        assert isinstance(matrix, CsrMatrix)
        dense = np.ascontiguousarray(dense)

        def subtract(part: tuple[int, Any]) -> None:
            # The product of a tile is taken off while it is in the cache.
            start, rows = part
            values[start : start + rows.shape[0]] -= rows @ dense

        m = dense.shape[1]
        parallel = matrix.data.size * m > _WORTH_THREADS
        _for_each(subtract, matrix.parts(m), parallel=parallel)
        return values

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

    def mutual_edges(self, ids: Array, similarities: Array) -> SparseMatrix:
        n, k = ids.shape
        parts = [
            _sorted_lists(ids[rows], similarities[rows], rows.start) for rows in _list_tiles(n, k)
        ]
        counts, columns, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        del parts
        indptr = np.concatenate([[0], np.cumsum(counts)])
        if columns.size < 2**31:
            indptr = indptr.astype(columns.dtype)  # or SciPy would widen the columns too
        lists = scipy.sparse.csr_array((weights, columns, indptr), shape=(n, n))
        # The transpose is a counting sort: on long lists far cheaper than sorting names.
        back = lists.T.tocsr()
        # A tile of rows at a time: what lies between the lists and the edges is larger than both.
        found = []
        for tile in _list_tiles(n, k):
            forth, returned = (matrix[tile].astype(np.float64) for matrix in (lists, back))
            both = forth.astype(bool).multiply(returned.astype(bool))
            mean = scipy.sparse.csr_array((both.multiply(forth) + both.multiply(returned)) / 2)
            mean.sort_indices()
            found.append((np.diff(mean.indptr), mean.indices, mean.data))
        del lists, back
        counts, columns, weights = (np.concatenate(part) for part in zip(*found, strict=True))
        del found
        kind = index_type(n, columns.size)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(kind)
        return CsrMatrix(weights, columns.astype(kind), indptr, (n, n))

    def top_k(self, scores: Array, k: int, numbering: Numbering | None = None) -> TopK:
        m, n = scores.shape
        best = np.empty((m, k), scores.dtype)
        ids = np.empty((m, k), np.int64)

        def select(rows: slice) -> None:
            # One copy turns the columns of a solution into rows that lie together.
            for row, line in zip(
                range(rows.start, rows.stop), np.ascontiguousarray(scores[rows]), strict=True
            ):
                ids[row] = best_of_row(line, k, numbering)
                best[row] = line[ids[row]]

        chunks = [slice(start, min(start + 32, m)) for start in range(0, m, 32)]
        _for_each(select, chunks, parallel=m * n > _WORTH_THREADS)
        return TopK(scores=best, ids=ids)

    def place(self, ids: Array, values: Array, n: int) -> Array:
        m = ids.shape[0]
        result = np.zeros((n, m), values.dtype)
        known = ids >= 0
        columns = np.broadcast_to(np.arange(m)[:, None], ids.shape)
        np.add.at(result, (ids[known], columns[known]), values[known])
        return result

    def laplacian_step(
        self,
        matrix: SparseMatrix,
        direction: Array,
        alpha: float,
        *,
        summed: bool = True,
        wanted: Array | None = None,
    ) -> Product:
        assert isinstance(matrix, CsrMatrix)
        direction = np.ascontiguousarray(direction)
        m = direction.shape[1]
        parts = matrix.parts(m)
        values, curvature = np.empty_like(direction), np.empty((len(parts), m))

        def step(number: int) -> None:
            start, rows = parts[number]
            own = direction[start : start + rows.shape[0]]
            product = rows @ direction
            product *= -alpha
            product += own
            values[start : start + rows.shape[0]] = product
            curvature[number] = _dots(own, product)

        _for_each(step, range(len(parts)), parallel=matrix.data.size * m > _WORTH_THREADS)
        return Product(values=values, curvature=np.sum(curvature, axis=0))

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
        step = step.astype(solution.dtype)
        tiles = _row_tiles(solution)
        squared = np.empty((len(tiles), solution.shape[1]))

        def update(number: int) -> None:
            rows = tiles[number]
            moved = direction[rows] * step
            solution[rows] += moved
            np.multiply(product[rows], step, out=moved)
            left = residual[rows]
            left -= moved
            squared[number] = _dots(left, left)

        _for_each(update, range(len(tiles)), parallel=len(tiles) > 1)
        return Update(solution, residual, np.sum(squared, axis=0))

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        ratio = ratio.astype(direction.dtype)

        def turn(rows: slice) -> None:
            part = direction[rows]
            part *= ratio
            part += residual[rows]

        tiles = _row_tiles(direction)
        _for_each(turn, tiles, parallel=len(tiles) > 1)
        return direction

    def column_dots(self, left: Array, right: Array) -> Array:
        tiles = _row_tiles(left)
        dots = np.empty((len(tiles), left.shape[1]))

        def multiply(number: int) -> None:
            dots[number] = _dots(left[tiles[number]], right[tiles[number]])

        _for_each(multiply, range(len(tiles)), parallel=len(tiles) > 1)
        return np.sum(dots, axis=0)

    def available_bytes(self) -> int:
        return available_host_bytes()


def _for_each(function: Callable[[Any], Any], items: Iterable[Any], *, parallel: bool) -> None:
    """Call a function for every item; on several threads only if that is worth their start."""
    if parallel:
        for_each(function, items)
    else:
        for item in items:
            function(item)


def host_view(values: Any) -> Any:
    """The same values as a NumPy array, without a copy where they are on the host already."""
    if not isinstance(values, np.ndarray):
        values = readable(values)
    if isinstance(values, np.ndarray):
        return values
    if array_api_compat.is_cupy_array(values):
        raise DeviceMismatchError(
            f"got a CuPy array on device {values.device.id} for work on the CPU. Move the index "
            f"with index.to('cupy:{values.device.id}'), or the array with cupy.asnumpy(array)."
        )
    if hasattr(values, "__dlpack_device__"):
        kind, number = values.__dlpack_device__()
        if not is_on_host(values):
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


def host_copy(values: Any) -> Any:
    """The same values as a NumPy array, copied from a device if they are on one."""
    if array_api_compat.is_cupy_array(values):
        values = values.get()
    elif array_api_compat.is_torch_array(values):
        values = readable(values).cpu()
    return host_view(values)


def is_on_host(values: Any) -> bool:
    """Whether the host can read an array: pinned memory, which a GPU reads too, is the host's."""
    if not hasattr(values, "__dlpack_device__"):
        return True
    return int(values.__dlpack_device__()[0]) in _HOST_DEVICES


def _list_tiles(n: int, k: int) -> list[slice]:
    """Rows of k-NN lists, some hundred thousand entries at a time."""
    rows = max(1, _LIST_ENTRIES // k)
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def _sorted_lists(
    ids: HostArray, similarities: HostArray, first: int
) -> tuple[HostArray, HostArray, HostArray]:
    """Length, columns and weights of the lists of items from ``first`` on, by column."""
    order = np.argsort(ids, axis=1, kind="stable")
    columns = np.take_along_axis(ids, order, axis=1)
    weights = np.take_along_axis(similarities, order, axis=1)
    own = np.arange(first, first + len(ids))[:, None]
    kept = (columns >= 0) & (columns != own) & (weights > 0)
    kept[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    small = np.int32 if columns.max(initial=0) < 2**31 else np.int64
    return kept.sum(axis=1), columns[kept].astype(small), weights[kept]


def _dots(left: HostArray, right: HostArray) -> HostArray:
    """Dot products of the columns of two tiles, added up in float64."""
    # On a tile in cache, half the time of an einsum that is told to add in float64.
    products = left * right
    n, m = products.shape
    # NumPy adds up row by row, which is slow for short rows: several of them are taken as one.
    together = _ROW_ENTRIES // max(m, 1) if m > 1 else 1
    if together < 2:
        return np.asarray(np.sum(products, axis=0, dtype=np.float64))
    whole = n - n % together
    wide = np.sum(products[:whole].reshape(-1, together * m), axis=0, dtype=np.float64)
    rest = np.sum(products[whole:], axis=0, dtype=np.float64)
    return np.asarray(wide.reshape(together, m).sum(axis=0) + rest)


def _row_tiles(array: HostArray) -> list[slice]:
    """Rows that stay in the cache together; all of them if there are few."""
    n, m = array.shape
    if array.size <= _WORTH_THREADS:
        return [slice(0, n)]
    rows = max(1, _TILE_ENTRIES // m)
    return [slice(start, start + rows) for start in range(0, n, rows)]
