"""Diffusion of many observations at once: conjugate gradients, deflated or not, and expansions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import Product
from hybrid_gpu.diffusion.basis import Basis, CoarseSolve, host64
from hybrid_gpu.diffusion.filters import Expansion, Filter, PageRank, as_filter, expand, gains
from hybrid_gpu.diffusion.observation import Observation, power_of_two
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.validation import (
    DTYPES,
    check_count,
    check_finite,
    check_kind,
    check_positive,
    dtype_name,
    shown,
)

Operator: TypeAlias = Callable[[Array], Product]
"""Maps a direction (n, m) to its product with a positive-definite matrix."""

Judge: TypeAlias = Callable[[Array], Array]
"""Maps a solution (n, m) to what it leaves of the right-hand side, in float64."""

RANKING_ACCURACY = 3e-3
"""The relative residual below which rankings hardly change."""

# Looking at the residuals on the host waits for the device: do it only every few steps.
_STEPS_BETWEEN_CHECKS = 2
# Columns that have arrived cost as much as the others: when so many are left, these go on alone.
_NARROWED_TO = 0.5
# As often as rounding asks for: 1, 4 and 8 end at the same error, and 8 costs least.
_STEPS_BETWEEN_PROJECTIONS = 8
_STEPS_AT_MOST = 1000
# Of these, for steps outside the span of a basis. The rest is for plain ones, should these not do.
_DEFLATED_AT_MOST = 500
# What a user may ask for: far beyond what rounding leaves anything to do for.
_STEPS_ALLOWED = 100_000
# A truncation error that no ranking notices.
_TRUNCATION = 1e-5
# Projected curvatures within so many roundings of the coarse solve are noise.
_CURVATURE_NOISE = 4.0
# Roundings that a term of a Chebyshev series leaves behind, with room for long rows.
_ROUNDINGS_PER_TERM = 8
# The smallest 1 - alpha: beyond it, rounded weights may have an eigenvalue above 1 / alpha.
_LEAST_RESTART = {"float32": 1e-6, "float64": 1e-13}


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a solver stops.

    Attributes
    ----------
    steps : int or None
        Steps: exactly so many, or with a tolerance at most. None: what the tolerance takes.
    tolerance : float or None
        The relative residual at which a column stops.
    insists : bool
        Whether to miss the tolerance is an error.
    """

    steps: int | None
    tolerance: float | None
    insists: bool = False


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
        Whether every column reached the tolerance that was asked for; True if none was.
    scale : float64 array of shape (m, 1), or None
        What the values of each column have to be multiplied with; None: nothing.
    truncation : float or None
        Bound on the error of an expansion, rounding included, relative to the observation; None
        where none was used, or none is known.
    """

    values: Array
    residuals: Array | None
    steps: int
    converged: bool
    truncation: float | None = None
    scale: Array | None = None

    def __repr__(self) -> str:
        n, m = self.values.shape
        return f"Solution({m} columns of {n} items, {self.steps} steps)"


def diffuse(
    graph: Graph,
    observation: Observation | Array,
    *,
    filter: Filter | Callable[..., Any] | None = None,
    basis: Basis | None = None,
    accuracy: str | float | None = None,
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
    accuracy
        The relative residual at which each column stops; ``"ranking"``, the default, is 3e-3. For
        expansions, the truncation error; 1e-5 by default. ``Solution.residuals`` tells what was
        reached.
    steps
        Steps of conjugate gradients, exactly so many, or the degree of the expansion. With
        ``accuracy`` or ``rtol``, the most steps.
    rtol
        The same as ``accuracy``, but to miss it is an error.

    Raises
    ------
    ConvergenceError
        If ``rtol`` was given and not reached; its ``result`` is the ``Solution``.
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    if basis is not None and not hasattr(basis, "coarse_solve"):
        raise TypeError(
            f"basis must be a basis or None; got {shown(basis)}. Make one with aggregate_basis, "
            "eigen_basis or given_basis."
        )
    chosen = PageRank() if filter is None else as_filter(filter)
    if isinstance(observation, Observation):
        right_side = observation.dense(device)
    else:
        right_side = observation
        if dtype_name(getattr(right_side, "dtype", None)) not in DTYPES:
            raise TypeError(
                f"observation must be an Observation, or an array (n, m) in float32 or float64; "
                f"got {shown(observation)}."
            )
        if right_side.ndim != 2 or right_side.shape[0] != graph.n:
            raise ValueError(
                f"observation must have shape (n, m) with n = {graph.n}; got "
                f"{tuple(right_side.shape)}."
            )
        check_finite(right_side, "observation", device)
    check_alpha_resolved(chosen, dtype_name(right_side.dtype))
    stop = check_stopping(chosen, steps=steps, rtol=rtol, accuracy=accuracy)
    scaled, scale = _scaled(right_side, device)
    solution = deflated(graph.adjacency, scaled, basis, chosen, stop, device)
    solution = replace(solution, values=solution.values * scale)
    if stop.insists and not solution.converged:
        raise not_converged(solution, rtol, result=solution)
    return solution


def _scaled(right_side: Array, backend: Backend) -> tuple[Array, Array]:
    """Columns whose largest entry is 1 to 2, and what each was divided by."""
    # The square of a number below 1e-23 is zero in float32, and that of one above 1e19 infinite.
    xp = backend.xp
    scale = power_of_two(xp.max(xp.abs(right_side), axis=0, keepdims=True), xp)
    return right_side / scale, scale


def check_stopping(
    filter: Filter,
    *,
    steps: int | None,
    rtol: float | None,
    accuracy: str | float | None,
    default: int | None = None,
) -> Stopping:
    """When to stop, from what a user says.

    If he says nothing: after ``default`` steps, or at the accuracy of a ranking if there is none.
    """
    if rtol is not None and accuracy is not None:
        raise ValueError(
            f"rtol and accuracy exclude each other; got rtol={rtol} and accuracy={accuracy!r}. "
            "Both are relative residuals: rtol raises an error if it is missed, accuracy does not."
        )
    if steps is not None:
        steps = check_count(steps, "steps", low=0, high=_STEPS_ALLOWED)
    if rtol is not None:
        return Stopping(steps, _check_residual(rtol, "rtol"), insists=True)
    solves = isinstance(filter, PageRank)
    if accuracy is None and (steps is not None or (solves and default is not None)):
        return Stopping(default if steps is None else steps, None)
    if accuracy is None or (isinstance(accuracy, str) and accuracy == "ranking"):
        return Stopping(steps, RANKING_ACCURACY if solves else _TRUNCATION)
    if isinstance(accuracy, str):
        raise ValueError(
            f"accuracy must be 'ranking' or a relative residual such as 1e-3; got {accuracy!r}."
        )
    return Stopping(steps, _check_residual(accuracy, "accuracy"))


def _check_residual(value: Any, what: str) -> float:
    residual = check_positive(value, what)
    if residual > 1:
        raise ValueError(
            f"{what} must be at most 1, the relative residual of scores of zero; got {residual}. "
            "1e-3 is precise enough for rankings."
        )
    return residual


def check_alpha_resolved(filter: Filter, dtype: str) -> None:
    """Refuse a restart so rare that the precision cannot tell it from none."""
    if not isinstance(filter, PageRank):
        return
    least = _LEAST_RESTART[dtype]
    if 1 - filter.alpha < least:
        other = " Build the index with dtype='float64'." if dtype == "float32" else ""
        raise ValueError(
            f"alpha must be at most {1 - least:.15g} in {dtype}, whose rounding hides a smaller "
            f"1 - alpha; got {filter.alpha!r}.{other}"
        )


def not_converged(solution: Solution, rtol: float | None, *, result: object) -> ConvergenceError:
    """The error for a solution that missed its tolerance."""
    return ConvergenceError(
        f"the relative residual did not reach rtol={rtol} in {solution.steps} steps. Allow more "
        "steps, ask for a larger rtol, or build the index with dtype='float64' if rtol is below "
        "1e-4. With accuracy= in the place of rtol=, a miss is reported and no error.",
        result=result,
    )


def deflated(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis | None,
    filter: Filter,
    stop: Stopping,
    backend: Backend,
) -> Solution:
    """Diffuse by any filter, with the help of any basis.

    Departs from the paper: eq. (h-temporal) multiplies with the basis in every step. Eigenvectors
    are projected out once instead, because diffusion leaves their span in place; after the same
    number of steps the error is the same to three digits (Fashion-MNIST, rank 100 and 400), at the
    cost of plain conjugate gradients. Other vectors are projected out in every step, exactly.
    """
    if not isinstance(filter, PageRank):
        # Eigenpairs are not exact, and what they leave of themselves the series would raise: with
        # residuals of 1e-3, fifty of them made an error of 2e-7 one of 2e-4.
        return _expanded(adjacency, observation, filter, stop, backend)
    if basis is not None and basis.rank == 0:
        basis = None
    alpha = filter.alpha

    def laplacian(direction: Array) -> Product:
        return backend.laplacian_step(adjacency, direction, alpha)

    # Both sides of the paper's system are multiplied by 1 - alpha.
    right_side = (1 - alpha) * observation
    coarse = None
    if basis is not None:
        coarse = _Coarse(basis, basis.coarse_solve(alpha), alpha, backend)
    judge = _judge(adjacency, right_side, alpha, stop, backend)
    return conjugate_gradients(
        laplacian, right_side, stop, 1 - alpha, backend, coarse=coarse, judge=judge
    )


def _judge(
    adjacency: SparseMatrix, right_side: Array, alpha: float, stop: Stopping, backend: Backend
) -> Judge | None:
    """What tells the residual in float64, where float32 could not tell it from its own rounding.

    Long rows and a rare restart raise rounding: by the root of the entries of a row, and by the
    inverse of ``1 - alpha``, because the right-hand side is that small beside the scores.
    """
    xp = backend.xp
    if dtype_name(right_side.dtype) == "float64":
        return None
    longest = int(xp.max(adjacency.indptr[1:] - adjacency.indptr[:-1]))
    rounding = float(xp.finfo(right_side.dtype).eps) * max(longest, 1) ** 0.5 / (1 - alpha)
    if rounding <= 0.1 * (RANKING_ACCURACY if stop.tolerance is None else stop.tolerance):
        return None
    # Made for each batch: graphs that need it are rare, and it is twice as large as the original.
    data = xp.astype(adjacency.data, xp.float64)
    precise = backend.csr(data, adjacency.indices, adjacency.indptr, adjacency.shape)
    wanted = xp.astype(right_side, xp.float64)

    def residual(solution: Array) -> Array:
        values = xp.astype(solution, xp.float64)
        return wanted - backend.laplacian_step(precise, values, alpha).values

    return residual


def hybrid_as_in_paper(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis,
    eigenvalues: Array,
    filter: Filter,
    stop: Stopping,
    backend: Backend,
) -> Solution:
    """``x = x^s + x^t``: eqs. (hybrid), (h-spectral), (h-temporal) with the mapping (box).

    For filters other than PageRank, the second theorem of the paper's appendix. What the residuals
    tell is how far x is from the diffusion, not how far x^t is from the solution of its own system,
    which is another one unless the eigenpairs are exact.
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

        series = _series(filter, stop)
        rest = _apply_series(without_basis, observation, series, xp)
        # No bound: that of the series says nothing about the eigenpairs.
        return Solution(spectral + rest, None, series.degree, True)

    assert stop.steps is not None, "an accuracy of this system says nothing about the diffusion"
    alpha = filter.alpha

    def laplacian_without_basis(direction: Array) -> Product:
        product = backend.laplacian_step(adjacency, direction, alpha)
        coefficients, weighted = correction(direction)
        # p^T (U Lambda U^T) p is a short sum over the coefficients: no second pass over p.
        extra = alpha * xp.sum(weighted * coefficients, axis=0, dtype=xp.float64)
        return Product(product.values + alpha * basis.prolong(weighted), product.curvature + extra)

    # On the host in float64: in float32, 1 - alpha has lost digits, or is zero.
    excess = filter.excess_transfer(np.minimum(host64(eigenvalues, backend), 1.0))[:, None]
    excess = backend.asarray(excess, dtype_name(eigenvalues.dtype))
    spectral = basis.prolong(excess * basis.restrict(observation))
    right_side = (1 - alpha) * observation
    start = backend.column_dots(right_side, right_side)
    epsilon = float(xp.finfo(right_side.dtype).eps)
    way = _Way(laplacian_without_basis, None, 1 - alpha)
    rest, taken = _descend(
        way,
        xp.zeros_like(right_side),
        xp.asarray(right_side, copy=True),
        epsilon**2 * start,
        stop.steps,
        False,
        backend,
    )
    scores = spectral + rest
    residuals = residuals_of(adjacency, scores, observation, filter, backend)
    return Solution(scores, residuals, taken, converged=True)


def residuals_of(
    adjacency: SparseMatrix,
    values: Array,
    observation: Array,
    filter: PageRank,
    backend: Backend,
) -> Array:
    """The relative residual of each column of scores in the system of the diffusion."""
    right_side = (1 - filter.alpha) * observation
    judge = _judge(adjacency, right_side, filter.alpha, Stopping(None, None), backend)
    if judge is None:
        left = right_side - backend.laplacian_step(adjacency, values, filter.alpha).values
    else:
        left = judge(values)
    squared, start = (backend.column_dots(one, one) for one in (left, right_side))
    return _relative(squared, start, backend.xp)


@dataclass(frozen=True, slots=True, eq=False)
class _Coarse:
    """A basis at work on ``A = I - alpha W``."""

    basis: Basis
    solve: CoarseSolve
    alpha: float
    backend: Backend

    def correct(self, solution: Array, residual: Array) -> tuple[Array, Array]:
        """Solve the residual's part in the span of the basis: none of it is left."""
        coefficients = self.solve(self.basis.restrict(residual))
        residual = self.basis.without_image(residual, coefficients, self.alpha)
        return solution + self.basis.prolong(coefficients), residual

    def projected(self, apply: Operator) -> Operator:
        """The operator without the span of the basis: every product v loses ``A Z E^-1 Z^T v``."""
        xp, basis = self.backend.xp, self.basis

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


def conjugate_gradients(
    apply: Operator,
    right_side: Array,
    stop: Stopping,
    smallest: float,
    backend: Backend,
    *,
    coarse: _Coarse | None = None,
    judge: Judge | None = None,
) -> Solution:
    """Solve ``A x = b`` for every column of b, side by side.

    A column stops moving once its residual is below the tolerance times its right-hand side, or,
    without a tolerance, below what its precision can tell from zero. Whatever a column does, it
    does by itself: which others stand beside it changes rounding only. Scalars stay on the device.

    Parameters
    ----------
    smallest
        A lower bound of A's eigenvalues: ``1 - alpha``.
    judge
        Tells the residual of a solution in float64; None: the operator's own precision will do.
    """
    xp = backend.xp
    solution, residual = xp.zeros_like(right_side), xp.asarray(right_side, copy=True)
    start = backend.column_dots(right_side, right_side)
    epsilon = float(xp.finfo(right_side.dtype).eps)
    if coarse is not None:
        solution, residual = coarse.correct(solution, residual)
    outside = coarse is not None and not coarse.basis.invariant
    way = _Way(apply, coarse if outside else None, smallest, judge)
    most = _STEPS_AT_MOST if stop.steps is None else stop.steps
    goal = (epsilon if stop.tolerance is None else stop.tolerance) ** 2 * start
    if stop.tolerance is None:
        solution, taken = _descend(way, solution, residual, goal, most, False, backend)
        look = way.look(solution, right_side, backend)
        residuals = _relative(look.squared, start, xp)
        return Solution(look.solution, residuals, taken, converged=True)
    first = _DEFLATED_AT_MOST if outside and stop.steps is None else most
    solved = _solved(way, solution, residual, right_side, goal, first, backend)
    if outside and solved.steps < most and bool(xp.any(solved.squared > goal)):
        # Where rounding in the projection stops the steps, plain ones may still go on.
        plain, before = _Way(apply, None, smallest, judge), solved.steps
        residual = plain.look(solved.values, right_side, backend).residual
        solved = _solved(plain, solved.values, residual, right_side, goal, most - before, backend)
        solved = replace(solved, steps=solved.steps + before)
    reached = bool(xp.all((solved.squared <= goal) & xp.isfinite(solved.squared)))
    return Solution(solved.values, _relative(solved.squared, start, xp), solved.steps, reached)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """How steps are taken.

    ``kept_out`` is the basis whose span they stay out of, if there is one; ``smallest`` a lower
    bound of A's eigenvalues. A step by less curvature would be one by rounding alone, and run away
    (20 rings of 70 items in float32: residual 1e-5 after 5 steps, 0.07 after 15).
    """

    apply: Operator
    kept_out: _Coarse | None
    smallest: float
    judge: Judge | None = None

    @property
    def operator(self) -> Operator:
        return self.apply if self.kept_out is None else self.kept_out.projected(self.apply)

    def look(self, solution: Array, right_side: Array, backend: Backend) -> _Look:
        """What the values really leave: the recurrence drifts from it by rounding."""
        residual = self._left(solution, right_side, backend)
        if self.kept_out is not None:
            # The steps moved outside the span only: the same product tells what is due inside.
            solution, residual = self.kept_out.correct(solution, residual)
        if self.judge is None:
            return _Look(solution, residual, backend.column_dots(residual, residual))
        exact = self.judge(solution)
        single = backend.xp.astype(exact, right_side.dtype)
        return _Look(solution, single, backend.column_dots(exact, exact))

    def _left(self, solution: Array, right_side: Array, backend: Backend) -> Array:
        if self.judge is None:
            return right_side - self.apply(solution).values
        return backend.xp.astype(self.judge(solution), right_side.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """A solution, what it really leaves, and the squares of that."""

    solution: Array
    residual: Array
    squared: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """The best values of each column, the squares of what they really leave, and the steps."""

    values: Array
    squared: Array
    steps: int


def _solved(
    way: _Way,
    solution: Array,
    residual: Array,
    right_side: Array,
    goal: Array,
    steps: int,
    backend: Backend,
) -> _Solved:
    """Steps until every column's true residual is at its goal, or stops getting smaller."""
    xp = backend.xp
    least = backend.column_dots(residual, residual)
    best, done, taken, first = solution, least <= goal, 0, True
    while taken < steps and not bool(xp.all(done)):
        before = least
        if not first:
            best = xp.asarray(best, copy=True)  # steps may be written over what they start from
        mine = xp.where(done, xp.full_like(goal, xp.inf), goal)
        solution, more = _descend(way, solution, residual, mine, steps - taken, True, backend)
        taken += more
        look = way.look(solution, right_side, backend)
        solution, residual, squared = look.solution, look.residual, look.squared
        if first:
            best, least = solution, squared
        else:
            better = ~done & (squared < least)
            best, least = xp.where(better, solution, best), xp.where(better, squared, least)
            # Each start from the true residual mends the drift, until rounding ends all progress.
            # Not `least >= ...`, which is false for NaN: that would go on for ever.
            done = done | ~(least < 0.8 * before)
            if more == 0:
                break
        first, done = False, done | (least <= goal)
    return _Solved(best, least, taken)


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """Columns on their way.

    ``numbers`` are the columns' own, ``squared`` and ``length`` the squares of residual and
    direction, ``fresh`` tells whose direction is the residual itself.
    """

    numbers: Array
    solution: Array
    residual: Array
    direction: Array
    squared: Array
    length: Array
    fresh: Array
    target: Array

    def columns(self, chosen: Array, xp: Any) -> _Walk:
        """Some of the columns, by their places."""
        wide = ("solution", "residual", "direction")
        names = [field.name for field in fields(self)]
        return _Walk(
            **{
                name: xp.take(getattr(self, name), chosen, axis=1 if name in wide else 0)
                for name in names
            }
        )


def _descend(
    way: _Way,
    solution: Array,
    residual: Array,
    target: Array,
    steps: int,
    stop_early: bool,
    backend: Backend,
) -> tuple[Array, int]:
    """Conjugate gradient steps until every column's squared residual is below its target."""
    xp, apply = backend.xp, way.operator
    squared = backend.column_dots(residual, residual)
    walk = _Walk(
        numbers=xp.arange(squared.shape[0], dtype=xp.int64, device=backend.device),
        solution=solution,
        residual=residual,
        direction=xp.asarray(residual, copy=True),
        squared=squared,
        length=squared,
        fresh=xp.ones_like(squared, dtype=xp.bool),
        target=target,
    )
    arrived: list[_Walk] = []
    taken = 0
    while taken < steps:
        if stop_early and taken % _STEPS_BETWEEN_CHECKS == 0:
            wanting = walk.squared > walk.target
            count = int(xp.sum(xp.astype(wanting, xp.int64)))
            if count == 0:
                break
            if count <= _NARROWED_TO * walk.numbers.shape[0]:
                (going,), (over,) = xp.nonzero(wanting), xp.nonzero(~wanting)
                arrived.append(walk.columns(over, xp))
                walk = walk.columns(going, xp)
        taken += 1
        project = taken % _STEPS_BETWEEN_PROJECTIONS == 0
        walk = _stepped(walk, way, apply, project, stop_early, backend)
    return _together([*arrived, walk], backend), taken


def _stepped(
    walk: _Walk, way: _Way, apply: Operator, project: bool, stop_early: bool, backend: Backend
) -> _Walk:
    """One conjugate gradient step of every column that has not arrived."""
    xp = backend.xp
    product = apply(walk.direction)
    wanting = walk.squared > walk.target
    moving = wanting & (product.curvature > way.smallest / 2 * walk.length)
    step = _safe_ratio(walk.squared, product.curvature, moving, xp)
    update = backend.cg_update(walk.solution, walk.residual, walk.direction, product.values, step)
    solution, residual, left = update.solution, update.residual, update.squared_norm
    if way.kept_out is not None and project:
        # Rounding lets the residual leak into the span, where the operator is zero and steps
        # grow without bound: left alone, errors of 1e-5 after 20 steps are 1 after 100.
        solution, residual = way.kept_out.correct(solution, residual)
        left = backend.column_dots(residual, residual)
        # A direction that is no longer orthogonal to the residuals, as its length tells, has lost
        # its way: the column begins anew.
        length = backend.column_dots(walk.direction, walk.direction)
        moving = moving & (length > 0.5 * walk.length) & (length < 2 * walk.length)
        walk = replace(walk, length=length)
    # A column that could not move begins anew, with its residual for a direction; one that could
    # not even then is where rounding lets it get.
    ratio = _safe_ratio(left, walk.squared, moving, xp)
    target = walk.target
    if stop_early:
        stuck = wanting & ~moving & walk.fresh
        target = xp.where(stuck, xp.full_like(target, xp.inf), target)
    return replace(
        walk,
        solution=solution,
        residual=residual,
        direction=backend.cg_direction(residual, walk.direction, ratio),
        squared=left,
        # The direction is orthogonal to the next residual.
        length=left + ratio**2 * walk.length,
        fresh=~moving,
        target=target,
    )


def _together(walks: list[_Walk], backend: Backend) -> Array:
    """The solutions of all columns, in their order."""
    xp = backend.xp
    if len(walks) == 1:
        return walks[0].solution
    places = xp.argsort(xp.concat([walk.numbers for walk in walks]))
    return xp.take(xp.concat([walk.solution for walk in walks], axis=1), places, axis=1)


def _relative(squared: Array, start: Array, xp: Any) -> Array:
    return xp.sqrt(_safe_ratio(squared, start, start > 0, xp))


def _expanded(
    adjacency: SparseMatrix, observation: Array, filter: Filter, stop: Stopping, backend: Backend
) -> Solution:
    """``h(W) y`` by a Chebyshev series."""

    def step(signal: Array) -> Array:
        return backend.spmm(adjacency, signal)

    series = _series(filter, stop)
    values = _apply_series(step, observation, series, backend.xp)
    epsilon = float(backend.xp.finfo(observation.dtype).eps)
    # Every term is rounded, and the recurrence hands its errors on.
    rounding = _ROUNDINGS_PER_TERM * epsilon * (series.degree + 1) * series.size
    return Solution(values, None, series.degree, True, series.truncation + rounding)


def gains_at(filter: Filter, eigenvalues: Array, backend: Backend) -> Array:
    """The filter's gain at each eigenvalue, (r, 1); asked on the host, as any function can be."""
    exact = gains(filter, np.minimum(host64(eigenvalues, backend), 1.0))[:, None]
    return backend.asarray(exact, dtype_name(eigenvalues.dtype))


def _series(filter: Filter, stop: Stopping) -> Expansion:
    tolerance = _TRUNCATION if stop.tolerance is None else stop.tolerance
    return expand(filter, degree=stop.steps, tolerance=tolerance)


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
