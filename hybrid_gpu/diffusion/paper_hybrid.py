"""The paper's hybrid method, as the paper writes it: ``x = x^s + x^t``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.step_records import Product
from hybrid_gpu.diffusion.basis import Basis, host64
from hybrid_gpu.diffusion.chebyshev import apply_series, series_for
from hybrid_gpu.diffusion.descent import Descent, System, system_of
from hybrid_gpu.diffusion.filters import Filter, PageRank, gains
from hybrid_gpu.diffusion.solution import Solution, Stopping
from hybrid_gpu.validation import dtype_name


def hybrid_as_in_paper(
    basis: Basis, eigenvalues: Array, observation: Array, filter: Filter, stop: Stopping
) -> Solution:
    """``x = x^s + x^t``: eqs. (hybrid), (h-spectral), (h-temporal) with the mapping (box).

    For filters other than PageRank, the second theorem of the paper's appendix.

    Parameters
    ----------
    basis
        The eigenvectors U_1, in full or sparsified.
    eigenvalues : float array of shape (r,)
        Lambda_1.
    observation : float array of shape (n, m)
        The columns y.

    Returns
    -------
    Solution
        Its residuals tell how far x is from the diffusion, not how far x^t is from the solution of
        its own system, which is another one unless the eigenpairs are exact.
    """
    backend = basis.backend
    if filter.resolvent is None:
        excess = gains_at(filter, eigenvalues, backend) - float(gains(filter, 0.0))
        spectral = basis.prolong(excess * basis.restrict(observation))
        series = series_for(filter, stop)
        values = eigenvalues[:, None]

        def without_basis(signal: Array) -> Array:
            product = backend.spmm(basis.adjacency, signal)
            return product - basis.prolong(values * basis.restrict(signal))

        rest = apply_series(without_basis, observation, series)
        # No bound: that of the series says nothing about the eigenpairs.
        reached = stop.tolerance is None or series.truncation <= stop.tolerance
        return Solution(spectral + rest, None, series.degree, reached)
    assert stop.steps is not None, "an accuracy of this system says nothing about the diffusion"
    alpha = filter.resolvent
    # On the host in float64: in float32, 1 - alpha has lost digits, or is zero.
    frequencies = np.minimum(host64(eigenvalues, backend), 1.0)[:, None]
    excess = PageRank(alpha).excess_transfer(frequencies)
    excess = backend.asarray(excess, dtype_name(eigenvalues.dtype))
    spectral = basis.prolong(excess * basis.restrict(observation))
    system = system_of(basis.adjacency, observation, alpha, backend)
    rest, taken = _temporal_part(_WithoutBasis(basis, eigenvalues, alpha), system, stop.steps)
    scores = spectral + rest
    return Solution(scores, system.residuals(scores), taken, converged=True)


@dataclass(frozen=True, slots=True, eq=False)
class _WithoutBasis:
    """The regularized Laplacian of ``W - U_1 Lambda_1 U_1^T``, which eq. (h-temporal) solves."""

    basis: Basis
    eigenvalues: Array
    alpha: float

    def product(self, direction: Array, wanted: Array | None = None) -> Product:
        """Its product with a direction (n, m)."""
        basis, backend, xp = self.basis, self.basis.backend, self.basis.backend.xp
        product = backend.laplacian_step(basis.adjacency, direction, self.alpha)
        coefficients = basis.restrict(direction)
        weighted = self.eigenvalues[:, None] * coefficients
        # p^T (U Lambda U^T) p is a short sum over the coefficients: no second pass over p.
        extra = self.alpha * xp.sum(weighted * coefficients, axis=0, dtype=xp.float64)
        values = product.values + self.alpha * basis.prolong(weighted)
        return Product(values, product.curvature + extra)


def _temporal_part(operator: _WithoutBasis, system: System, steps: int) -> tuple[Array, int]:
    """Steps on the Laplacian without the basis; x^t of eq. (h-temporal)."""
    backend, xp, right_side = system.backend, system.backend.xp, system.right_side
    epsilon = float(xp.finfo(right_side.dtype).eps)
    return Descent(operator, backend).run(
        xp.zeros_like(right_side),
        xp.asarray(right_side, copy=True),
        epsilon**2 * system.squared,
        steps=steps,
        stop_early=False,
    )


def gains_at(filter: Filter, eigenvalues: Array, backend: Backend) -> Array:
    """The filter's gain at each eigenvalue, (r, 1); asked on the host, as any function can be."""
    exact = gains(filter, np.minimum(host64(eigenvalues, backend), 1.0))[:, None]
    return backend.asarray(exact, dtype_name(eigenvalues.dtype))
