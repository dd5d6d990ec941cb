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
        "1e-4.",
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
    solution, residual = xp.zeros_like(right_side), xp.asarray(right_side, copy=True)
    start = xp.sum(right_side * right_side, axis=0, dtype=xp.float64)
    tolerance = float(xp.finfo(right_side.dtype).eps) if rtol is None else rtol
    target = tolerance**2 * start
    taken, worst = 0, float("inf")
    while True:
        solution, more = _descend(
            apply, solution, residual, target, steps - taken, rtol is not None, backend
        )
        taken += more
        # The recurrence drifts from the truth by rounding: look at what the values really leave.
        residual = right_side - apply(solution).values
        squared = xp.sum(residual * residual, axis=0, dtype=xp.float64)
        residuals = xp.sqrt(_safe_ratio(squared, start, start > 0, xp))
        if rtol is None:
            return Solution(solution, residuals, taken, converged=True)
        before, worst = worst, float(xp.max(residuals))
        # A fresh start from the true residual mends the drift, until rounding stops all progress.
        if worst <= rtol or taken >= steps or worst > 0.9 * before:
            return Solution(solution, residuals, taken, converged=worst <= rtol)
        target = target / 4  # aim lower: to land on the mark again would drift past it again


def _descend(
    apply: Operator,
    solution: Array,
    residual: Array,
    target: Array,
    steps: int,
    stop_early: bool,
    backend: Backend,
) -> tuple[Array, int]:
    """Conjugate gradient steps until every column's squared residual is below its target."""
    xp = backend.xp
    direction = xp.asarray(residual, copy=True)
    squared = xp.sum(residual * residual, axis=0, dtype=xp.float64)
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
        if stop_early and taken % _STEPS_BETWEEN_CHECKS == 0:
            if not bool(xp.any(squared > target)):
                break
    return solution, taken


def _safe_ratio(above: Array, below: Array, where: Array, xp: Any) -> Array:
    """``above / below`` where the condition holds, 0 elsewhere, without a division by zero."""
    zeros = xp.zeros_like(above)
    ones = xp.ones_like(below)
    return xp.where(where, above / xp.where(where, below, ones), zeros)
