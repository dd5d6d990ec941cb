"""The system of diffusion, and steps of conjugate gradients for many columns side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix
from hybrid_gpu.backends.generic import safe_ratio
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.step_records import Course, Product, Standing
from hybrid_gpu.diffusion.basis import Basis, Deflation
from hybrid_gpu.diffusion.solution import RANKING_ACCURACY

# Projected curvatures within so many roundings of the coarse solve are noise.
_CURVATURE_NOISE = 4.0
# Looking at the residuals on the host waits for the device: do it only every few steps.
_STEPS_BETWEEN_CHECKS = 2
# Columns that have arrived cost as much as the others: when so many are left, these go on alone.
_NARROWED_TO = 0.5
# As often as rounding asks for: 1, 4 and 8 end at the same error, and 8 costs least.
_STEPS_BETWEEN_PROJECTIONS = 8


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """``(I - alpha W) x = b`` for the columns of b.

    Attributes
    ----------
    adjacency : sparse matrix of shape (n, n)
        W.
    right_side : float array of shape (n, m)
        b: ``1 - alpha`` times the observation.
    squared : float64 array of shape (m,)
        Squares of the right-hand sides: of the residuals of scores of zero.
    precise : sparse matrix of shape (n, n), or None
        W in float64, where float32 could not tell a residual from its own rounding.
    watched : bool array of shape (n, m), or None
        The items whose ranking is asked for, all of which diffusion can get to; None for all.
    roots : float array of shape (n, 1), or None
        What the values of each item are multiplied with to be its scores; None: nothing. Residuals
        are those of the scores then, and are measured so.
    """

    adjacency: SparseMatrix
    right_side: Array
    squared: Array
    alpha: float
    precise: SparseMatrix | None
    backend: Backend
    watched: Array | None = None
    roots: Array | None = None

    def product(self, direction: Array, wanted: Array | None = None) -> Product:
        """``(I - alpha W) P``; its curvature may be in parts."""
        return self.backend.laplacian_step(
            self.adjacency, direction, self.alpha, summed=False, wanted=wanted
        )

    def left(self, solution: Array) -> Array:
        """What a solution leaves of the right-hand side; in float64 where that is needed."""
        if self.precise is None:
            return self.right_side - self.product(solution).values
        xp = self.backend.xp
        values = xp.astype(solution, xp.float64)
        made = self.backend.laplacian_step(self.precise, values, self.alpha, summed=False)
        return xp.astype(self.right_side, xp.float64) - made.values

    def relative(self, squared: Array) -> Array:
        """Squares of residuals (m,) as relative residuals."""
        xp, whole = self.backend.xp, self.squared
        return xp.sqrt(safe_ratio(squared, whole, whole > 0, xp))

    def columns(self, chosen: Array) -> System:
        """Some of the columns, by their numbers."""
        take = self.backend.xp.take
        right_side, squared = take(self.right_side, chosen, axis=1), take(self.squared, chosen)
        watched = None if self.watched is None else take(self.watched, chosen, axis=1)
        return replace(self, right_side=right_side, squared=squared, watched=watched)

    def scores(self, solution: Array) -> Array:
        """What a solution scores, with zeros for items that are not watched."""
        scores = solution if self.roots is None else solution * self.roots
        if self.watched is None:
            return scores
        return self.backend.xp.where(self.watched, scores, self.backend.xp.zeros_like(scores))

    def squares(self, residual: Array) -> Array:
        """The squares (m,) of residuals, as they are measured."""
        return squared_columns(residual, self.roots, self.backend)

    def plain_goal(self, goal: Array, residual: Array, squared: Array) -> Array:
        """The squares (m,) at which steps stop, which know of no roots.

        As far as a residual and its measured square tell; it has another shape after the steps.
        """
        if self.roots is None:
            return goal
        plain = self.backend.column_dots(residual, residual)
        return goal * safe_ratio(plain, squared, squared > 0, self.backend.xp)

    def residuals(self, solution: Array) -> Array:
        """The relative residual of each column of a solution, float64 of shape (m,)."""
        return self.relative(self.squares(self.left(solution)))


def system_of(
    adjacency: SparseMatrix,
    observation: Array,
    alpha: float,
    backend: Backend,
    *,
    tolerance: float | None = None,
    roots: Array | None = None,
) -> System:
    """The system of diffusion for observations (n, m), both of its sides times ``1 - alpha``.

    Long rows and a rare restart raise rounding: by the root of the entries of a row, and by the
    inverse of ``1 - alpha``, because the right-hand side is that small beside the scores.
    """
    xp, right_side, precise = backend.xp, (1 - alpha) * observation, None
    if right_side.dtype != xp.float64:
        rounding = rounding_of(adjacency, right_side.dtype, alpha, backend)
        if rounding > 0.1 * (RANKING_ACCURACY if tolerance is None else tolerance):
            # Made for each batch: graphs that need it are rare, and it is twice as large.
            data = xp.astype(adjacency.data, xp.float64)
            precise = backend.csr(data, adjacency.indices, adjacency.indptr, adjacency.shape)
    squared = squared_columns(right_side, roots, backend)
    return System(adjacency, right_side, squared, alpha, precise, backend, roots=roots)


def squared_columns(residual: Array, roots: Array | None, backend: Backend) -> Array:
    """The squares (m,) of residuals (n, m), each item's times its root."""
    scaled = residual if roots is None else residual * roots
    return backend.column_dots(scaled, scaled)


def rounding_of(adjacency: SparseMatrix, dtype: Any, alpha: float, backend: Backend) -> float:
    """The relative residual that rounding alone can make."""
    root = math.sqrt(max(backend.longest_row(adjacency), 1))
    return float(backend.xp.finfo(dtype).eps) * root / (1 - alpha)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The span of a basis, which is solved apart and kept out of every step."""

    basis: Basis
    taken_out: Deflation

    def corrected(self, solution: Array, residual: Array) -> tuple[Array, Array]:
        """Solve the residual's part in the span: none of it is left. Both may be overwritten."""
        taken = self.taken_out(residual)
        return self.basis.prolong_onto(solution, taken.coefficients), taken.values


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A solution, what it really leaves, and the squares of that."""

    solution: Array
    residual: Array
    squared: Array


def look_at(system: System, span: Span | None, solution: Array) -> Look:
    """What the values really leave: the recurrence drifts from it by rounding."""
    backend, dtype = system.backend, system.right_side.dtype
    exact = system.left(solution)
    residual = backend.xp.astype(exact, dtype, copy=False)
    if span is not None:
        # The steps moved outside the span only: the same product tells what is due inside.
        solution, residual = span.corrected(solution, residual)
        if system.precise is not None:
            exact = system.left(solution)
            residual = backend.xp.astype(exact, dtype)
    if system.precise is None:
        exact = residual
    return Look(solution, residual, system.squares(exact))


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """Columns on their way; ``numbers`` are their own."""

    numbers: Array
    at: Course

    @property
    def wanting(self) -> Array:
        """Who has not arrived, bool (m,)."""
        return self.at.standing.squared > self.at.standing.target

    def columns(self, chosen: Array, xp: Any) -> _Walk:
        """Some of the columns, by their places."""
        standing = self.at.standing
        parts = (xp.take(getattr(standing, field.name), chosen) for field in fields(standing))
        return _Walk(
            numbers=xp.take(self.numbers, chosen),
            at=Course(
                solution=xp.take(self.at.solution, chosen, axis=1),
                residual=xp.take(self.at.residual, chosen, axis=1),
                direction=xp.take(self.at.direction, chosen, axis=1),
                standing=Standing(*parts),
            ),
        )


class Operator(Protocol):
    """A positive-definite matrix, as steps use it."""

    @property
    def alpha(self) -> float:
        """No eigenvalue is below ``1 - alpha``."""

    def product(self, direction: Array, wanted: Array | None = None) -> Product:
        """The matrix times a direction (n, m); anything, if none of the columns is wanted."""


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """How conjugate gradient steps are taken: with which matrix, and outside of which span."""

    operator: Operator
    backend: Backend
    span: Span | None = None

    def run(
        self, solution: Array, residual: Array, target: Array, *, steps: int, stop_early: bool
    ) -> tuple[Array, int]:
        """Steps until every column's squared residual is below its target; how many they were."""
        xp, backend = self.backend.xp, self.backend
        squared = backend.column_dots(residual, residual)
        standing = Standing(squared, squared, target, xp.ones_like(squared, dtype=xp.bool))
        direction = xp.asarray(residual, copy=True)
        walk = _Walk(
            numbers=xp.arange(squared.shape[0], dtype=xp.int64, device=backend.device),
            at=Course(solution, residual, direction, standing),
        )
        arrived: list[_Walk] = []
        taken = 0
        while taken < steps:
            product = None
            if stop_early and taken % _STEPS_BETWEEN_CHECKS == 0:
                wanting, product = self._look(walk)
                count = int(np.count_nonzero(wanting))
                if count == 0:
                    break
                if count <= _NARROWED_TO * wanting.size:
                    going, over = (
                        backend.asarray(np.flatnonzero(some)) for some in (wanting, ~wanting)
                    )
                    arrived.append(walk.columns(over, xp))
                    walk, product = walk.columns(going, xp), None
            taken += 1
            project = taken % _STEPS_BETWEEN_PROJECTIONS == 0
            if product is None:
                product = self.operator.product(walk.at.direction)
            walk = replace(walk, at=self._stepped(walk.at, product, project, stop_early))
        return _together([*arrived, walk], xp), taken

    def _look(self, walk: _Walk) -> tuple[HostArray, Product | None]:
        """Who has not arrived, on the host; and the next product, if that is under way already."""
        wanting, product = walk.wanting, None
        told = self.backend.download(wanting)
        if self.backend.runs_late:
            # The device works on it while the host waits for the answer, and would have nothing to
            # do otherwise. If everybody has arrived, it does nothing.
            product = self.operator.product(walk.at.direction, wanting)
        return told(), product

    def _stepped(
        self, columns: Course, product: Product, project: bool, stop_early: bool
    ) -> Course:
        """One step of every column that has not arrived."""
        backend, span, standing, taken = self.backend, self.span, columns.standing, None
        values = product.values
        if span is not None:
            # Every column v of the product loses A Z E^-1 Z^T v.
            taken = span.taken_out(values)
            values = taken.values
        # The eigenvalues of A are at least 1 - alpha. A step by less curvature would be one by
        # rounding alone, and run away (20 rings of 70 items in float32: residual 1e-5 after 5
        # steps, 0.07 after 15).
        least = (1 - self.operator.alpha) / 2
        noise = _CURVATURE_NOISE * float(backend.xp.finfo(values.dtype).eps)
        moves = backend.cg_pace(product, standing, least, taken, noise)
        if span is None or not project:
            return backend.cg_advance(columns, values, moves, stop_early=stop_early)
        before, direction = standing.length, columns.direction
        update = backend.cg_update(
            columns.solution, columns.residual, direction, values, moves.step, summed=False
        )
        # Rounding lets the residual leak into the span, where the operator is zero and steps
        # grow without bound: left alone, errors of 1e-5 after 20 steps are 1 after 100.
        solution, residual = span.corrected(update.solution, update.residual)
        left = backend.column_dots(residual, residual)
        # A direction that is no longer orthogonal to the residuals, as its length tells, has
        # lost its way: the column begins anew.
        length = backend.column_dots(direction, direction)
        moving = moves.moving & (length > 0.5 * before) & (length < 2 * before)
        turn = backend.cg_turn(
            left, replace(standing, length=length), moving, stop_early=stop_early
        )
        direction = backend.cg_direction(residual, direction, turn.ratio)
        return Course(solution, residual, direction, turn.standing)


def _together(walks: list[_Walk], xp: Any) -> Array:
    """The solutions of all columns, in their order."""
    if len(walks) == 1:
        return walks[0].at.solution
    places = xp.argsort(xp.concat([walk.numbers for walk in walks]))
    return xp.take(xp.concat([walk.at.solution for walk in walks], axis=1), places, axis=1)
