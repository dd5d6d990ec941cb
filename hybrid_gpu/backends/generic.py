"""The operations of a backend that the array API can express, slowly but on every device.

A backend inherits from ``GenericBackend`` and overrides only what it does faster; the contract
test compares every override with the version here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hybrid_gpu.backends.protocol import Array, Product, SparseMatrix, TopK, Update


class GenericBackend(ABC):
    """Top-k and the conjugate gradient step, written in ``xp`` and ``spmm`` alone."""

    xp: Any

    @abstractmethod
    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array: ...

    def top_k(self, scores: Array, k: int) -> TopK:
        xp = self.xp
        ids = xp.argsort(scores, axis=-1, descending=True, stable=True)[:, :k]
        return TopK(scores=xp.take_along_axis(scores, ids, axis=-1), ids=ids)

    def laplacian_step(self, matrix: SparseMatrix, direction: Array, alpha: float) -> Product:
        values = direction - alpha * self.spmm(matrix, direction)
        return Product(values=values, curvature=self.column_dots(direction, values))

    def cg_update(
        self, solution: Array, residual: Array, direction: Array, product: Array, step: Array
    ) -> Update:
        step = self.xp.astype(step, solution.dtype)
        solution = solution + direction * step
        residual = residual - product * step
        return Update(solution, residual, self.column_dots(residual, residual))

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        return residual + direction * self.xp.astype(ratio, residual.dtype)

    def column_dots(self, left: Array, right: Array) -> Array:
        """Dot products of the columns of two (n, m) arrays, accumulated in float64."""
        return self.xp.sum(left * right, axis=0, dtype=self.xp.float64)

    def synchronize(self) -> None:
        return None

    def free_memory(self) -> None:
        return None

    def annotate(self, label: str) -> AbstractContextManager[None]:
        return nullcontext()
