"""Diffusion as a linear system: conjugate gradients on many observations at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import Product
from hybrid_gpu.basis import Basis
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.filters import PageRank
from hybrid_gpu.graph import Graph
from hybrid_gpu.observation import Observation
from hybrid_gpu.validation import check_count, check_finite, check_positive

Operator: TypeAlias = Callable[[Array], Product]
"""Maps a direction (n, m) to its product with a positive-definite matrix."""

# Looking at the residuals on the host waits for the device: do it only every few steps.
_STEPS_BETWEEN_CHECKS = 4
_STEPS_AT_MOST = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Diffused scores of m observations.

    Attributes
    ----------
    values : float array of shape (n, m)
        One column per observation; x in the paper.
    residuals : float64 array of shape (m,), or None
        Norm of the residual relative to the observation's, computed anew from the values; None
        where nothing was solved.
    steps : int
        Steps taken.
    converged : bool
        Whether every column reached the ``rtol`` that was asked for; True if none was.
    """

    values: Array
    residuals: Array | None
    steps: int
    converged: bool

    def __repr__(self) -> str:
        n, m = self.values.shape
        return f"Solution({m} columns of {n} items, {self.steps} steps)"


def diffuse(
    graph: Graph,
    observation: Observation | Array,
    *,
    filter: PageRank | None = None,
    basis: Basis | None = None,
    steps: int | None = None,
    rtol: float | None = None,
    backend: str | Backend = "auto",
) -> Solution:
    """Spread observations over the graph.

    Parameters
    ----------
    observation : Observation, or float array of shape (n, m)
        One column per query.
    filter
        The filter; ``PageRank(0.99)`` if None.
    basis
        Eigenvectors: the paper's hybrid method, eqs. (hybrid), (h-spectral), (h-temporal).
        None: temporal filtering, eq. (temporal).
    steps
        Steps of conjugate gradients; 20 without and 5 with a basis. With ``rtol``, the most steps.
    rtol
        Stop each column at this relative residual.

    Raises
    ------
    ConvergenceError
        If ``rtol`` was given and not reached; its ``result`` is the ``Solution``.
    """
    device = select_backend(backend, like=graph.degrees)
    filter = PageRank() if filter is None else filter
    if isinstance(observation, Observation):
        right_side = observation.dense(device)
    else:
        right_side = observation
        if right_side.ndim != 2 or right_side.shape[0] != graph.n:
            raise ValueError(
                f"observation must have shape (n, m) with n = {graph.n}; got "
                f"{tuple(right_side.shape)}."
            )
        check_finite(right_side, "observation", device)
    steps, rtol = check_stopping(steps, rtol, default=20 if basis is None else 5)
    if basis is None:
        solution = temporal(graph.adjacency, right_side, filter, steps, rtol, device)
    else:
        solution = hybrid_as_in_paper(
            graph.adjacency, right_side, basis, filter, steps, rtol, device
        )
    if not solution.converged:
        raise not_converged(solution, rtol, result=solution)
    return solution


def check_stopping(
    steps: int | None, rtol: float | None, *, default: int
) -> tuple[int, float | None]:
    """The number of steps, at most or exactly, and the tolerance."""
    if rtol is not None:
        rtol = check_positive(rtol, "rtol")
    if steps is None:
        return (default if rtol is None else _STEPS_AT_MOST), rtol
    return check_count(steps, "steps", low=0), rtol


def not_converged(solution: Solution, rtol: float | None, *, result: object) -> ConvergenceError:
    """The error for a solution that missed its tolerance."""
    return ConvergenceError(
        f"the relative residual did not reach rtol={rtol} in {solution.steps} steps. Allow more "
        "steps, ask for a larger rtol, or build the index with dtype='float64' if rtol is below "
        "1e-4. What was computed is in the error's .result.",
        result=result,
    )


def temporal(
    adjacency: SparseMatrix,
    observation: Array,
    filter: PageRank,
    steps: int,
    rtol: float | None,
    backend: Backend,
) -> Solution:
    """Solve ``L_alpha(W) x = y``, eq. (temporal), for all columns of y."""
    alpha = filter.alpha

    def laplacian(direction: Array) -> Product:
        return backend.laplacian_step(adjacency, direction, alpha)

    # Both sides of the paper's system are multiplied by 1 - alpha.
    return conjugate_gradients(laplacian, (1 - alpha) * observation, steps, rtol, backend)


def hybrid_as_in_paper(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis,
    filter: PageRank,
    steps: int,
    rtol: float | None,
    backend: Backend,
) -> Solution:
    """``x = x^s + x^t``: eqs. (hybrid), (h-spectral), (h-temporal) with the mapping (box)."""
    xp = backend.xp
    alpha = filter.alpha
    values = basis.eigenvalues[:, None]

    def laplacian_without_basis(direction: Array) -> Product:
        product = backend.laplacian_step(adjacency, direction, alpha)
        coefficients = basis.restrict(direction)
        weighted = alpha * values * coefficients
        # p^T (U Lambda U^T) p is a short sum over the coefficients: no second pass over p.
        extra = xp.sum(weighted * coefficients, axis=0, dtype=xp.float64)
        return Product(product.values + basis.prolong(weighted), product.curvature + extra)

    spectral = basis.prolong(filter.excess_transfer(values) * basis.restrict(observation))
    rest = conjugate_gradients(
        laplacian_without_basis, (1 - alpha) * observation, steps, rtol, backend
    )
    return Solution(spectral + rest.values, rest.residuals, rest.steps, rest.converged)


def conjugate_gradients(
    apply: Operator, right_side: Array, steps: int, rtol: float | None, backend: Backend
) -> Solution:
    """Solve ``A x = b`` for every column of b, side by side.

    A column stops moving once its residual is below ``rtol`` of its right-hand side, or, without
    ``rtol``, below what its precision can tell from zero. Scalars stay on the device.
    """
    xp = backend.xp
    solution = xp.zeros_like(right_side)
    residual, direction = xp.asarray(right_side, copy=True), xp.asarray(right_side, copy=True)
    squared = xp.sum(right_side * right_side, axis=0, dtype=xp.float64)
    tolerance = float(xp.finfo(right_side.dtype).eps) if rtol is None else rtol
    start, target = squared, tolerance**2 * squared
    taken = 0
    for taken in range(1, steps + 1):
        product = apply(direction)
        moving = (squared > target) & (product.curvature > 0)
        step = _safe_ratio(squared, product.curvature, moving, xp)
        update = backend.cg_update(solution, residual, direction, product.values, step)
        solution, residual = update.solution, update.residual
        ratio = _safe_ratio(update.squared_norm, squared, moving, xp)
        direction = backend.cg_direction(residual, direction, ratio)
        squared = update.squared_norm
        if rtol is not None and taken % _STEPS_BETWEEN_CHECKS == 0:
            if not bool(xp.any(squared > target)):
                break
    # The recurrence drifts from the truth by rounding: report what the values really leave.
    error = right_side - apply(solution).values
    squared = xp.sum(error * error, axis=0, dtype=xp.float64)
    residuals = xp.sqrt(_safe_ratio(squared, start, start > 0, xp))
    # The factor forgives the drift of the last bits, not a missed tolerance.
    converged = rtol is None or not bool(xp.any(residuals > 1.1 * rtol))
    return Solution(solution, residuals, taken, converged)


def _safe_ratio(above: Array, below: Array, where: Array, xp: Any) -> Array:
    """``above / below`` where the condition holds, 0 elsewhere, without a division by zero."""
    zeros = xp.zeros_like(above)
    ones = xp.ones_like(below)
    return xp.where(where, above / xp.where(where, below, ones), zeros)
