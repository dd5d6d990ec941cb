"""Diffusion of many observations at once: conjugate gradients, deflated or not, and expansions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import Product
from hybrid_gpu.basis import Basis, EigenBasis
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.filters import Expansion, Filter, PageRank, as_filter, expand, gains
from hybrid_gpu.graph import Graph
from hybrid_gpu.observation import Observation
from hybrid_gpu.validation import check_count, check_finite, check_positive, dtype_name

Operator: TypeAlias = Callable[[Array], Product]
"""Maps a direction (n, m) to its product with a positive-definite matrix."""

# Looking at the residuals on the host waits for the device: do it only every few steps.
_STEPS_BETWEEN_CHECKS = 4
# As often as rounding asks for: 1, 4 and 8 end at the same error, and 8 costs least.
_STEPS_BETWEEN_PROJECTIONS = 8
_STEPS_AT_MOST = 1000
# A truncation error that no ranking notices.
_TRUNCATION = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Diffused scores of m observations.

    Attributes
    ----------
    values : float array of shape (n, m)
        One column per observation; x in the paper.
    residuals : float64 array of shape (m,), or None
        Norm of the residual relative to the observation's, computed anew from the values; None
        where no system was solved.
    steps : int
        Steps taken, or degree of the expansion.
    converged : bool
        Whether every column reached the ``rtol`` that was asked for; True if none was.
    truncation : float or None
        Bound on the error of an expansion, relative to the observation; None where none was used.
    """

    values: Array
    residuals: Array | None
    steps: int
    converged: bool
    truncation: float | None = None

    def __repr__(self) -> str:
        n, m = self.values.shape
        return f"Solution({m} columns of {n} items, {self.steps} steps)"


def diffuse(
    graph: Graph,
    observation: Observation | Array,
    *,
    filter: Filter | Callable[..., Any] | None = None,
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
        ``PageRank(0.99)`` if None, which is solved by conjugate gradients; any other filter, or
        function of frequencies, is expanded in Chebyshev polynomials.
    basis
        Vectors to deflate. The answer that the steps converge to is the same for every basis.
    steps
        Steps of conjugate gradients, 20 without and 5 with a basis; or the degree of the
        expansion, by default what a truncation error of 1e-5 takes. With ``rtol``, the most steps.
    rtol
        Stop each column at this relative residual; for expansions, the truncation error.

    Raises
    ------
    ConvergenceError
        If ``rtol`` was given and not reached; its ``result`` is the ``Solution``.
    """
    device = select_backend(backend, like=graph.degrees)
    chosen = PageRank() if filter is None else as_filter(filter)
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
    if isinstance(chosen, PageRank):
        steps, rtol = check_stopping(steps, rtol, default=20 if basis is None else 5)
    else:
        steps, rtol = check_degree(steps, rtol)
    solution = deflated(graph.adjacency, right_side, basis, chosen, steps, rtol, device)
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


def check_degree(steps: int | None, rtol: float | None) -> tuple[int | None, float | None]:
    """The degree of an expansion, None for what the tolerance takes, and the tolerance."""
    if rtol is not None:
        rtol = check_positive(rtol, "rtol")
    return (None if steps is None else check_count(steps, "steps", low=0)), rtol


def not_converged(solution: Solution, rtol: float | None, *, result: object) -> ConvergenceError:
    """The error for a solution that missed its tolerance."""
    return ConvergenceError(
        f"the relative residual did not reach rtol={rtol} in {solution.steps} steps. Allow more "
        "steps, ask for a larger rtol, or build the index with dtype='float64' if rtol is below "
        "1e-4.",
        result=result,
    )


def deflated(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis | None,
    filter: Filter,
    steps: int | None,
    rtol: float | None,
    backend: Backend,
) -> Solution:
    """Diffuse by any filter, with the help of any basis.

    Departs from the paper: eq. (h-temporal) multiplies with the basis in every step. Eigenvectors
    are projected out once instead, because diffusion leaves their span in place; after the same
    number of steps the error is the same to three digits (Fashion-MNIST, rank 100 and 400), at the
    cost of plain conjugate gradients. Other vectors are projected out in every step, exactly.
    """
    if basis is not None and basis.rank == 0:
        basis = None
    if not isinstance(filter, PageRank):
        return _expanded(adjacency, observation, basis, filter, steps, rtol, backend)
    assert steps is not None
    alpha = filter.alpha

    def laplacian(direction: Array) -> Product:
        return backend.laplacian_step(adjacency, direction, alpha)

    # Both sides of the paper's system are multiplied by 1 - alpha.
    right_side = (1 - alpha) * observation
    coarse = None if basis is None else _Coarse(basis, alpha, backend)
    return conjugate_gradients(laplacian, right_side, steps, rtol, backend, coarse=coarse)


def hybrid_as_in_paper(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis,
    eigenvalues: Array,
    filter: Filter,
    steps: int | None,
    rtol: float | None,
    backend: Backend,
) -> Solution:
    """``x = x^s + x^t``: eqs. (hybrid), (h-spectral), (h-temporal) with the mapping (box).

    For filters other than PageRank, the second theorem of the paper's appendix.
    """
    xp = backend.xp
    values = eigenvalues[:, None]

    def correction(direction: Array) -> tuple[Array, Array]:
        coefficients = basis.restrict(direction)
        return coefficients, values * coefficients

    if not isinstance(filter, PageRank):
        excess = gains_at(filter, eigenvalues, backend) - float(gains(filter, 0.0))
        spectral = basis.prolong(excess * basis.restrict(observation))

        def without_basis(signal: Array) -> Array:
            return backend.spmm(adjacency, signal) - basis.prolong(correction(signal)[1])

        series = _series(filter, -1.0, 1.0, steps, rtol)
        rest = _apply_series(without_basis, observation, series, xp)
        return Solution(spectral + rest, None, series.degree, True, series.truncation)

    assert steps is not None
    alpha = filter.alpha

    def laplacian_without_basis(direction: Array) -> Product:
        product = backend.laplacian_step(adjacency, direction, alpha)
        coefficients, weighted = correction(direction)
        # p^T (U Lambda U^T) p is a short sum over the coefficients: no second pass over p.
        extra = alpha * xp.sum(weighted * coefficients, axis=0, dtype=xp.float64)
        return Product(product.values + alpha * basis.prolong(weighted), product.curvature + extra)

    spectral = basis.prolong(filter.excess_transfer(values) * basis.restrict(observation))
    rest = conjugate_gradients(
        laplacian_without_basis, (1 - alpha) * observation, steps, rtol, backend
    )
    return replace(rest, values=spectral + rest.values)


@dataclass(frozen=True, slots=True, eq=False)
class _Coarse:
    """A basis at work on ``A = I - alpha W``."""

    basis: Basis
    alpha: float
    backend: Backend

    def correct(self, solution: Array, residual: Array) -> tuple[Array, Array]:
        """Solve the residual's part in the span of the basis: none of it is left."""
        coefficients = self._solve(self.basis.restrict(residual))
        residual = self.basis.without_image(residual, coefficients, self.alpha)
        return solution + self.basis.prolong(coefficients), residual

    def projected(self, apply: Operator) -> Operator:
        """The operator without the span of the basis: every product v loses ``A Z E^-1 Z^T v``."""
        xp, basis = self.backend.xp, self.basis

        def without_span(direction: Array) -> Product:
            product = apply(direction)
            restricted = basis.restrict(product.values)
            coefficients = self._solve(restricted)
            values = basis.without_image(product.values, coefficients, self.alpha)
            # The span's share of p^T A p is a short sum over the coefficients.
            share = xp.sum(restricted * coefficients, axis=0, dtype=xp.float64)
            return Product(values, product.curvature - share)

        return without_span

    def _solve(self, restricted: Array) -> Array:
        return self.basis.coarse_solve(self.alpha)(restricted)


def conjugate_gradients(
    apply: Operator,
    right_side: Array,
    steps: int,
    rtol: float | None,
    backend: Backend,
    *,
    coarse: _Coarse | None = None,
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
    projected, kept_out = apply, None
    if coarse is not None:
        solution, residual = coarse.correct(solution, residual)
        if not coarse.basis.invariant:
            projected, kept_out = coarse.projected(apply), coarse
    taken, worst = 0, float("inf")
    while True:
        solution, more = _descend(
            projected,
            solution,
            residual,
            target,
            steps - taken,
            rtol is not None,
            backend,
            kept_out,
        )
        taken += more
        # The recurrence drifts from the truth by rounding: look at what the values really leave.
        residual = right_side - apply(solution).values
        if coarse is not None and not coarse.basis.invariant:
            # The steps moved outside the span only: the same product tells what is due inside.
            solution, residual = coarse.correct(solution, residual)
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
    kept_out: _Coarse | None,
) -> tuple[Array, int]:
    """Conjugate gradient steps until every column's squared residual is below its target.

    ``kept_out`` is the basis whose span the steps stay out of, if there is one.
    """
    xp = backend.xp
    direction = xp.asarray(residual, copy=True)
    squared = xp.sum(residual * residual, axis=0, dtype=xp.float64)
    taken = 0
    for taken in range(1, steps + 1):
        product = apply(direction)
        moving = (squared > target) & (product.curvature > 0)
        step = _safe_ratio(squared, product.curvature, moving, xp)
        update = backend.cg_update(solution, residual, direction, product.values, step)
        solution, residual, left = update.solution, update.residual, update.squared_norm
        if kept_out is not None and taken % _STEPS_BETWEEN_PROJECTIONS == 0:
            # Rounding lets the residual leak into the span, where the operator is zero and steps
            # grow without bound: left alone, errors of 1e-5 after 20 steps are 1 after 100.
            solution, residual = kept_out.correct(solution, residual)
            left = xp.sum(residual * residual, axis=0, dtype=xp.float64)
        ratio = _safe_ratio(left, squared, moving, xp)
        direction = backend.cg_direction(residual, direction, ratio)
        squared = left
        if stop_early and taken % _STEPS_BETWEEN_CHECKS == 0:
            if not bool(xp.any(squared > target)):
                break
    return solution, taken


def _expanded(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis | None,
    filter: Filter,
    degree: int | None,
    rtol: float | None,
    backend: Backend,
) -> Solution:
    """``h(W) y`` by a Chebyshev series; eigenvectors take their part of it exactly."""

    def step(signal: Array) -> Array:
        return backend.spmm(adjacency, signal)

    series = _series(filter, -1.0, 1.0, degree, rtol)
    if not isinstance(basis, EigenBasis):
        # Only eigenvectors tell what any other filter does to them.
        values = _apply_series(step, observation, series, backend.xp)
        return Solution(values, None, series.degree, True, series.truncation)
    coefficients = basis.restrict(observation)
    gain = gains_at(filter, basis.eigenvalues, backend)
    rest = observation - basis.prolong(coefficients)
    rest = _apply_series(step, rest, series, backend.xp)
    # Once more: what rounding left of the eigenvectors may have been raised by the series.
    rest = rest - basis.prolong(basis.restrict(rest))
    values = basis.prolong(gain * coefficients) + rest
    return Solution(values, None, series.degree, True, series.truncation)


def gains_at(filter: Filter, eigenvalues: Array, backend: Backend) -> Array:
    """The filter's gain at each eigenvalue, (r, 1); asked on the host, as any function can be."""
    exact = gains(filter, backend.to_numpy(eigenvalues))[:, None]
    return backend.asarray(exact, dtype_name(eigenvalues.dtype))


def _series(
    filter: Filter, low: float, high: float, degree: int | None, rtol: float | None
) -> Expansion:
    return expand(
        filter,
        low=low,
        high=high,
        degree=degree,
        tolerance=_TRUNCATION if rtol is None else rtol,
    )


def _apply_series(
    step: Callable[[Array], Array], signal: Array, series: Expansion, xp: Any
) -> Array:
    """The series of the step's matrix, by the three-term recurrence."""
    center, radius = (series.low + series.high) / 2, (series.high - series.low) / 2
    weights = series.coefficients.tolist()
    before, now = signal, (step(signal) - center * signal) / radius
    total = weights[0] * before
    for number, weight in enumerate(weights[1:], start=1):
        total = total + weight * now
        if number < series.degree:
            before, now = now, (2 / radius) * (step(now) - center * now) - before
    return total


def _safe_ratio(above: Array, below: Array, where: Array, xp: Any) -> Array:
    """``above / below`` where the condition holds, 0 elsewhere, without a division by zero."""
    zeros = xp.zeros_like(above)
    ones = xp.ones_like(below)
    return xp.where(where, above / xp.where(where, below, ones), zeros)
