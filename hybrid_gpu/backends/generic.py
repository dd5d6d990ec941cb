"""The operations of a backend that the array API can express, slowly but on every device.

A backend inherits from ``GenericBackend`` and overrides only what it does faster; the contract
test compares every override with the version here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.backends.local_records import LocalAnswer, LocalEffort, LocalProblem
from hybrid_gpu.backends.local_search import search_locally
from hybrid_gpu.backends.protocol import (
    Array,
    CoarseInverse,
    CoarseVectors,
    Deflated,
    HostArray,
    Numbering,
    SparseMatrix,
    TopK,
)
from hybrid_gpu.backends.step_records import Course, Moves, Product, Standing, Turn, Update

# Rows of a product at a time: with more, BLAS is no faster.
_TILE_ROWS = 1024
# Parts of a tall array that are reduced side by side.
_PARTS = 64


class GenericBackend(ABC):
    """Top-k and the conjugate gradient step, written in ``xp`` and ``spmm`` alone."""

    xp: Any
    device: Any
    searches_locally = False
    runs_late = False

    @abstractmethod
    def asarray(self, values: Any, dtype: str | None = None) -> Array: ...

    @abstractmethod
    def to_numpy(self, values: Array) -> HostArray: ...

    @abstractmethod
    def csr(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
    ) -> SparseMatrix: ...

    @abstractmethod
    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array: ...

    @abstractmethod
    def available_bytes(self) -> int: ...

    def matmul(self, left: Array, right: Array) -> Array:
        return self.xp.matmul(left, right)

    def longest_row(self, matrix: SparseMatrix) -> int:
        return int(self.xp.max(matrix.indptr[1:] - matrix.indptr[:-1]))

    def reordered(self, matrix: SparseMatrix, numbering: Numbering) -> SparseMatrix:
        xp, (n, _) = self.xp, matrix.shape
        items = xp.arange(n + 1, dtype=xp.int64, device=self.device)
        lengths = xp.astype(matrix.indptr[1:] - matrix.indptr[:-1], xp.int64)
        rows = xp.take(numbering.places, xp.repeat(items[:-1], lengths))
        columns = xp.take(numbering.places, xp.astype(matrix.indices, xp.int64))
        moved = xp.argsort(rows * n + columns)
        kind = matrix.indices.dtype
        return self.csr(
            xp.take(matrix.data, moved),
            xp.astype(xp.take(columns, moved), kind),
            xp.astype(xp.searchsorted(xp.take(rows, moved), items), kind),
            matrix.shape,
        )

    def subtract_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        return values - self.spmm(matrix, dense)

    def add_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        return values + self.spmm(matrix, dense)

    def mutual_edges(self, ids: Array, similarities: Array) -> SparseMatrix:
        xp = self.xp
        n, k = ids.shape
        order = xp.argsort(ids, axis=1, stable=True)
        columns = xp.reshape(xp.take_along_axis(ids, order, axis=1), (-1,))
        weights = xp.reshape(xp.take_along_axis(similarities, order, axis=1), (-1,))
        rows = xp.repeat(xp.arange(n, dtype=xp.int64, device=self.device), k)
        repeated = self._same_as_before(rows * (n + 1) + columns)
        kept = (columns >= 0) & (columns != rows) & (weights > 0) & ~repeated
        rows, columns = rows[kept], columns[kept]
        weights = xp.astype(weights[kept], xp.float64)
        # An edge that both ends list stands twice under its one name (lower id, higher id).
        names = xp.minimum(rows, columns) * n + xp.maximum(rows, columns)
        by_name = xp.argsort(names, stable=True)
        names, weights = xp.take(names, by_name), xp.take(weights, by_name)
        second = self._same_as_before(names)
        first = xp.flip(self._same_as_before(xp.flip(names)))
        weights = (weights[first] + weights[second]) / 2
        low, high = names[first] // n, names[first] % n
        rows, columns = xp.concat([low, high]), xp.concat([high, low])
        order = xp.argsort(rows * n + columns)
        return csr_from_sorted(
            xp.take(xp.concat([weights, weights]), order),
            xp.take(rows, order),
            xp.take(columns, order),
            (n, n),
            self,
        )

    def _same_as_before(self, values: Array) -> Array:
        """Whether each entry of a (count,) array of integers >= -1 equals the one before it."""
        before = self.xp.asarray([-2], dtype=values.dtype, device=self.device)
        return self.xp.concat([before, values])[:-1] == values

    def top_k(self, scores: Array, k: int, numbering: Numbering | None = None) -> TopK:
        xp = self.xp
        if numbering is not None:
            # In the order of the user's ids, a stable sort settles ties as it should.
            best = self.top_k(xp.take(scores, numbering.places, axis=1), k)
            return TopK(scores=best.scores, ids=numbering.to_places(best.ids, xp))
        ids = xp.argsort(scores, axis=-1, descending=True, stable=True)
        ids = xp.asarray(ids[:, :k], copy=True)  # a view would keep all of them
        return TopK(scores=xp.take_along_axis(scores, ids, axis=-1), ids=ids)

    def largest_products(
        self,
        left: Array,
        right: Array,
        k: int,
        numbering: Numbering | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> TopK:
        m, n = left.shape[0], right.shape[0]
        # Products and what top-k makes of them, in half of the memory: what libraries take for
        # themselves, nobody tells.
        size = self.xp.finfo(left.dtype).bits // 8
        tile = max(1, min(_TILE_ROWS, m, self.available_bytes() // (8 * n * size)))
        parts = []
        for start in range(0, m, tile):
            if advance:
                advance(start)
            products = self.matmul(left[start : min(start + tile, m), :], right.T)
            parts.append(self.top_k(products, k, numbering))
        scores, ids = ([getattr(part, name) for part in parts] for name in ("scores", "ids"))
        return TopK(scores=self.xp.concat(scores), ids=self.xp.concat(ids))

    def place(self, ids: Array, values: Array, n: int) -> Array:
        xp = self.xp
        m, q = ids.shape
        columns = xp.repeat(xp.arange(m, dtype=xp.int64, device=self.device), q)
        rows, entries = xp.reshape(ids, (-1,)), xp.reshape(values, (-1,))
        known = rows >= 0
        rows, columns, entries = rows[known], columns[known], entries[known]
        order = xp.argsort(rows * m + columns)
        bounds = xp.arange(n + 1, dtype=xp.int64, device=self.device)
        # The standard has no scatter: a product with the identity is one, and adds up repeated ids.
        matrix = self.csr(
            xp.take(entries, order),
            xp.take(columns, order),
            xp.astype(xp.searchsorted(xp.take(rows, order), bounds), xp.int64),
            (n, m),
        )
        return self.spmm(matrix, xp.eye(m, dtype=values.dtype, device=self.device))

    def laplacian_step(
        self,
        matrix: SparseMatrix,
        direction: Array,
        alpha: float,
        *,
        summed: bool = True,
        wanted: Array | None = None,
    ) -> Product:
        values = direction - alpha * self.spmm(matrix, direction)
        return Product(values=values, curvature=self.column_dots(direction, values))

    def cg_pace(
        self,
        product: Product,
        standing: Standing,
        least: float,
        taken: Deflated | None = None,
        noise: float = 0.0,
    ) -> Moves:
        xp, curvature = self.xp, _summed(product.curvature, self.xp)
        if taken is not None:
            rounding = taken.norm * self.column_dots(taken.restricted, taken.restricted)
            left = curvature - self.column_dots(taken.restricted, taken.coefficients)
            # What is left of two nearly equal numbers may be the rounding of the coarse solve.
            curvature = xp.where(left > noise * rounding, left, xp.zeros_like(left))
        moving = (standing.squared > standing.target) & (curvature > least * standing.length)
        return Moves(safe_ratio(standing.squared, curvature, moving, xp), moving)

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
        step = self.xp.astype(step, solution.dtype)
        solution = solution + direction * step
        residual = residual - product * step
        return Update(solution, residual, self.column_dots(residual, residual))

    def cg_turn(
        self, squared_norm: Array, standing: Standing, moving: Array, *, stop_early: bool
    ) -> Turn:
        xp, target = self.xp, standing.target
        squared_norm = _summed(squared_norm, xp)
        ratio = safe_ratio(squared_norm, standing.squared, moving, xp)
        if stop_early:
            stuck = (standing.squared > target) & ~moving & standing.fresh
            target = xp.where(stuck, xp.full_like(target, xp.inf), target)
        # The old direction is orthogonal to the new residual.
        length = squared_norm + ratio**2 * standing.length
        return Turn(ratio, Standing(squared_norm, length, target, ~moving))

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        return residual + direction * self.xp.astype(ratio, residual.dtype)

    def cg_advance(
        self, columns: Course, product: Array, moves: Moves, *, stop_early: bool
    ) -> Course:
        arrays = (columns.solution, columns.residual, columns.direction)
        moved = self.cg_update(*arrays, product, moves.step, summed=False)
        left, standing = moved.squared_norm, columns.standing
        turn = self.cg_turn(left, standing, moves.moving, stop_early=stop_early)
        direction = self.cg_direction(moved.residual, columns.direction, turn.ratio)
        return Course(moved.solution, moved.residual, direction, turn.standing)

    def column_dots(self, left: Array, right: Array) -> Array:
        """Dot products of the columns of two (n, m) arrays, accumulated in float64."""
        return self.xp.sum(left * right, axis=0, dtype=self.xp.float64)

    def deflate(
        self, values: Array, vectors: CoarseVectors, inverse: CoarseInverse, alpha: float
    ) -> Deflated:
        xp = self.xp
        restricted = self._times(vectors.transposed, values)
        s = 0 if inverse.together is None else inverse.together.shape[0]
        coefficients = inverse.alone * restricted[s:, :]
        if inverse.together is not None:
            first = self.matmul(inverse.together, restricted[:s, :])
            coefficients = xp.concat([first, coefficients])
        if vectors.spread is None:
            change = self._times(vectors.vectors, coefficients)
            values = values - change + alpha * self.spmm(vectors.adjacency, change)
        else:
            both = xp.concat([coefficients, -alpha * coefficients])
            values = self.subtract_spmm(values, vectors.spread, both)
        return Deflated(
            values=values,
            coefficients=coefficients,
            restricted=restricted,
            norm=inverse.norm,
        )

    def local_search(
        self, problem: LocalProblem, places: Array, weights: Array, k: int, effort: LocalEffort
    ) -> LocalAnswer:
        return search_locally(self, problem, places, weights, k, effort)

    def _times(self, matrix: Any, dense: Array) -> Array:
        """A sparse matrix or an array, times an array."""
        return (self.spmm if hasattr(matrix, "indptr") else self.matmul)(matrix, dense)

    def uploads(
        self, arrays: Sequence[Array | HostArray], start: int, width: int
    ) -> Iterator[tuple[Array, ...]]:
        count = arrays[0].shape[0]
        for first in range(start, count, width):
            last = min(first + width, count)
            yield tuple(self.asarray(array[first:last, ...]) for array in arrays)

    def download(self, values: Array) -> Callable[[], HostArray]:
        host = self.to_numpy(values)
        return lambda: host

    def synchronize(self) -> None:
        return None

    def free_memory(self) -> None:
        return None

    @contextmanager
    def stage(self, label: str, times: dict[str, list[Callable[[], float]]]) -> Iterator[None]:
        start = time.perf_counter()
        with self.annotate(label):
            yield
        self.synchronize()
        seconds = time.perf_counter() - start
        times[label].append(lambda: seconds)

    def annotate(self, label: str) -> AbstractContextManager[None]:
        return nullcontext()


def _summed(sums: Array, xp: Any) -> Array:
    """Sums (m,), which may be given in parts (parts, m)."""
    return sums if sums.ndim == 1 else xp.sum(sums, axis=0)


def power_of_two(sizes: Array, xp: Any) -> Array:
    """A power of two near each of some sizes; 1 for zero.

    What is divided by it and multiplied with it again is the same to the last bit.
    """
    some = sizes > 0
    exponents = xp.floor(xp.log2(xp.where(some, sizes, xp.ones_like(sizes))))
    return xp.pow(xp.full_like(sizes, 2.0), exponents)


def safe_ratio(above: Array, below: Array, where: Array, xp: Any) -> Array:
    """``above / below`` where the condition holds, 0 elsewhere, without a division by zero."""
    zeros = xp.zeros_like(above)
    ones = xp.ones_like(below)
    return xp.where(where, above / xp.where(where, below, ones), zeros)


def over_rows(reduce: Callable[..., Array], values: Array, xp: Any) -> Array:
    """``reduce(values, axis=0)`` for a tall array (n, m), in two stages.

    CuPy gives the sums of 32 columns to one block, which takes them row after row.
    """
    n, m = values.shape
    rows = n // _PARTS
    if rows < _PARTS:
        return reduce(values, axis=0)
    whole = rows * _PARTS
    parts = reduce(xp.reshape(values[:whole, :], (_PARTS, rows, m)), axis=1)
    if whole < n:
        parts = xp.concat([parts, reduce(values[whole:, :], axis=0)[None, :]])
    return reduce(parts, axis=0)
