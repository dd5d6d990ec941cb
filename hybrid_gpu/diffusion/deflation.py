"""A basis at work on a system: its span is solved apart, and kept out of every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.protocol import Product
from hybrid_gpu.diffusion.basis import Basis, CoarseSolve

Operator: TypeAlias = Callable[[Array], Product]
"""Maps a direction (n, m) to its product with a positive-definite matrix."""

# Projected curvatures within so many roundings of the coarse solve are noise.
_CURVATURE_NOISE = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Deflation:
    """A basis Z and the inverse of its ``E = Z^T A Z`` on ``A = I - alpha W``."""

    basis: Basis
    solve: CoarseSolve
    alpha: float

    def correct(self, solution: Array, residual: Array) -> tuple[Array, Array]:
        """Solve the residual's part in the span of the basis: none of it is left."""
        coefficients = self.solve(self.basis.restrict(residual))
        residual = self.basis.without_image(residual, coefficients, self.alpha)
        return solution + self.basis.prolong(coefficients), residual

    def projected(self, apply: Operator) -> Operator:
        """The operator without the span of the basis: every product v loses ``A Z E^-1 Z^T v``."""
        xp, basis = self.basis.backend.xp, self.basis

        def without_span(direction: Array) -> Product:
            epsilon = float(xp.finfo(direction.dtype).eps)
            product = apply(direction)
            restricted = basis.restrict(product.values)
            coefficients = self.solve(restricted)
            values = basis.without_image(product.values, coefficients, self.alpha)
            # The span's share of p^T A p is a short sum over the coefficients.
            share = xp.sum(restricted * coefficients, axis=0, dtype=xp.float64)
            left = product.curvature - share
            # What is left of two nearly equal numbers may be the rounding of the coarse solve.
            size = xp.sum(restricted * restricted, axis=0, dtype=xp.float64)
            noise = _CURVATURE_NOISE * epsilon * self.solve.norm * size
            return Product(values, xp.where(left > noise, left, xp.zeros_like(left)))

        return without_span


def deflation_by(basis: Basis | None, alpha: float) -> Deflation | None:
    """What a basis does for a system; None if there is no vector in it."""
    if basis is None or basis.rank == 0:
        return None
    return Deflation(basis, basis.coarse_solve(alpha), alpha)
