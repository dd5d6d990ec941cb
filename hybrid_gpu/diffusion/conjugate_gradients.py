"""Conjugate gradients for many right-hand sides at once, deflated by a basis or not.

Every column of the right-hand side is a system of its own: whatever it does, it does by itself, and
which others stand beside it changes rounding only. Scalars stay on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.generic import over_rows
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.descent import Descent, Span, System, look_at, rounding_of
from hybrid_gpu.diffusion.solution import Solution, Stopping

_STEPS_AT_MOST = 1000
# Of these, for steps outside the span of a basis. The rest is for plain ones, should these not do.
_DEFLATED_AT_MOST = 500
# The residual at which the best items are told from the others, beside their last score times the
# root of their number: an error of about so much of that score, if it is spread over them.
_PART_OF_LAST = 0.005
# Rankings of more than one in so many of all items are long. In data without structure, scores lie
# so close at their end that such an error would exchange more than one in a hundred. There it shall
# be no larger than what lies between the scores around the last, one in a hundred of the ranks to
# either side, down to this part of the last.
_LONG, _LEAST_PART = 20, 0.001


def conjugate_gradients(system: System, stop: Stopping, basis: Basis | None = None) -> Solution:
    """Solve a system for every column, side by side.

    A column stops moving once its residual is below the tolerance times its right-hand side, or,
    without a tolerance, below what its precision can tell from zero.
    """
    backend, xp, right_side = system.backend, system.backend.xp, system.right_side
    solution, residual = xp.zeros_like(right_side), xp.asarray(right_side, copy=True)
    epsilon = float(xp.finfo(right_side.dtype).eps)
    span = _span_of(basis, system.alpha)
    if span is not None:
        solution, residual = span.corrected(solution, residual)
        if span.basis.invariant:
            # Steps never lead back into a span that diffusion maps onto itself.
            span = None
    most = _STEPS_AT_MOST if stop.steps is None else stop.steps
    if stop.tolerance is None:
        goal = epsilon**2 * system.plain_goal(system.squared, right_side, system.squared)
        descent = Descent(system, backend, span)
        solution, taken = descent.run(solution, residual, goal, steps=most, stop_early=False)
        look = look_at(system, span, solution)
        return Solution(look.solution, system.relative(look.squared), taken, converged=True)
    goal = stop.tolerance**2 * system.squared
    first = _DEFLATED_AT_MOST if span is not None and stop.steps is None else most
    # In a ranking of all items, there is none to be kept out of it.
    best = stop.best if stop.best is not None and stop.best < right_side.shape[0] else None
    solved = _solved(system, span, _Start(solution, residual, goal), first, best)
    if span is not None and solved.steps < most and solved.known.above.any():
        # Where rounding in the projection stops the steps, plain ones may still go on.
        before, residual = solved.steps, look_at(system, None, solved.values).residual
        again = _Start(solved.values, residual, goal)
        solved = _solved(system, None, again, most - before, best)
        solved = replace(solved, steps=solved.steps + before)
    reached, filled, resolved = solved.known.reached, 0, True
    if reached and best is not None:
        filled = best if solved.known.filled else 0
        solved, resolved = _told_apart(system, span, solved, best, most)
    return Solution(
        solved.values,
        system.relative(solved.squared),
        solved.steps,
        reached,
        filled=filled,
        resolved=resolved,
    )


def _span_of(basis: Basis | None, alpha: float) -> Span | None:
    """The span of a basis; None if there is nothing in it."""
    if basis is None or basis.rank == 0:
        return None
    return Span(basis, basis.deflation(alpha))


def _told_apart(
    system: System, span: Span | None, solved: _Solved, k: int, most: int
) -> tuple[_Solved, bool]:
    """Go on with columns whose residual could still move items into their best k, or out of them.

    Where the k-th score is far below the observation, a residual beside that says nothing of it.
    Also tells whether all of them got there.
    """
    xp, open_ = system.backend.xp, np.flatnonzero(solved.known.open)
    half, steps, resolved = (solved.known.open.size + 1) // 2, solved.steps, True
    # Half of them at a time: all the others are kept meanwhile.
    for start in range(0, open_.size, half):
        numbers = system.backend.asarray(open_[start : start + half])
        found = _Solved(*solved.columns(numbers, xp), 0, _NOTHING_KNOWN)
        part = system.columns(numbers)
        found = _chased(part, span, found, k, most - solved.steps)
        resolved = resolved and _resolved(part, found, k)
        steps = max(steps, solved.steps + found.steps)
        solved = _with_columns(solved, numbers, found, xp)
    return replace(solved, steps=steps), resolved


def _resolved(system: System, solved: _Solved, k: int) -> bool:
    """Whether every residual is small beside the k-th score, up to twice the aim."""
    # In long rankings, the aim may be smaller for the sake of a gap that is none.
    longer = _PART_OF_LAST / _LEAST_PART if _is_long(system, k) else 1
    limit = (2 * longer) ** 2 * _ranking_goal(system, solved.values, k)
    return not bool(system.backend.xp.any(solved.squared > limit))


def _chased(system: System, span: Span | None, solved: _Solved, k: int, most: int) -> _Solved:
    """Steps until every residual is small beside the k-th score, which is known better and better.

    Beside a score that is below all rounding, the residual gets as small as rounding lets it.
    """
    xp, backend = system.backend.xp, system.backend
    floor = rounding_of(system.adjacency, system.right_side.dtype, system.alpha, backend)
    numbers = xp.arange(solved.squared.shape[0], dtype=xp.int64, device=backend.device)
    part, found = system, solved
    while solved.steps < most:
        goal = xp.maximum(_ranking_goal(part, found.values, k), floor**2 * part.squared)
        (open_,) = xp.nonzero(found.squared > goal)
        if open_.shape[0] == 0:
            break
        numbers, goal = xp.take(numbers, open_), xp.take(goal, open_)
        part, (values, _) = part.columns(open_), found.columns(open_, xp)
        # Half of it, so that looks are few: scores that were noise are smaller in the next one.
        start = _Start(values, look_at(part, None, values).residual, goal / 4)
        found = _solved(part, span, start, most - solved.steps)
        solved = replace(
            _with_columns(solved, numbers, found, xp), steps=solved.steps + found.steps
        )
        # A column that missed its goal is where rounding lets it get.
        (going,) = xp.nonzero(found.squared <= goal)
        if going.shape[0] == 0:
            break
        numbers, part = xp.take(numbers, going), part.columns(going)
        found = _Solved(*found.columns(going, xp), 0, _NOTHING_KNOWN)
    return solved


def _ranking_goal(system: System, values: Array, k: int) -> Array:
    """The squares of residuals (m,) at which the best k items of each column are told apart."""
    xp, backend = system.backend.xp, system.backend
    wide = min(k + max(1, k // 100), values.shape[0])
    best = xp.astype(backend.top_k(system.scores(values).T, wide).scores, xp.float64)
    best, beyond = best[:, :k], best[:, wide - 1]
    # What diffusion does not reach is told apart already.
    reached = best > 0
    count = xp.sum(xp.astype(reached, xp.float64), axis=1)
    last = xp.min(xp.where(reached, best, xp.full_like(best, xp.inf)), axis=1)
    last = xp.where(count > 0, last, xp.ones_like(last))
    part = xp.full_like(last, _PART_OF_LAST)
    if _is_long(system, k):
        gap = best[:, k - 1 - k // 100] - beyond
        part = xp.clip(gap / last, min=_LEAST_PART, max=_PART_OF_LAST)
    goal = part**2 * count * last**2
    if system.watched is None:
        return xp.where(count > 0, goal, xp.full_like(goal, xp.inf))
    # Watched items that steps did not reach yet may be as far away as any: on to what rounding
    # allows, or until they are reached.
    return xp.where(count < xp.astype(_due(system, k), count.dtype), xp.zeros_like(goal), goal)


def _is_long(system: System, k: int) -> bool:
    """Whether a ranking is so long that the scores at its end may be close together."""
    return _LONG * k > int(system.right_side.shape[0])


def _due(system: System, k: int) -> Array | int:
    """How many items the ranking of each column has: k, or as many (m,) as are watched."""
    if system.watched is None:
        return k
    xp = system.backend.xp
    return xp.clip(xp.sum(xp.astype(system.watched, xp.int64), axis=0), max=k)


def _with_columns(solved: _Solved, numbers: Array, found: _Solved, xp: Any) -> _Solved:
    """The same with other values in some columns, which are numbered upward."""
    count = solved.squared.shape[0]
    every = xp.arange(count, dtype=xp.int64, device=numbers.device)
    place = xp.searchsorted(numbers, every)
    known = xp.take(numbers, xp.clip(place, max=numbers.shape[0] - 1)) == every
    chosen = xp.where(known, count + place, every)
    values = xp.take(xp.concat([solved.values, found.values], axis=1), chosen, axis=1)
    squared = xp.take(xp.concat([solved.squared, found.squared]), chosen)
    return _Solved(values, squared, solved.steps, _NOTHING_KNOWN)


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """Where columns begin: a solution, its residual, and the square that this shall go below."""

    solution: Array
    residual: Array
    goal: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """The best values of each column, the squares of what they really leave, and the steps.

    ``known`` is what the host knows of them, which is nothing once they were changed.
    """

    values: Array
    squared: Array
    steps: int
    known: _Known

    def columns(self, chosen: Array, xp: Any) -> tuple[Array, Array]:
        """Values and squares of some of the columns, by their numbers."""
        return xp.take(self.values, chosen, axis=1), xp.take(self.squared, chosen)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What the host knows of columns, from one look at the device; arrays of shape (m,).

    Attributes
    ----------
    done : bool array
        Who is at its goal, or gets no nearer.
    above : bool array
        Whose residual is above its goal.
    open : bool array
        Whose best items the residual could still change, where that was asked.
    reached, filled : bool
        Whether all are at their goal; and whether every one has as many positive scores as were
        asked for.
    """

    done: HostArray
    above: HostArray
    open: HostArray
    reached: bool
    filled: bool


_NOTHING_KNOWN = _Known(*3 * (np.zeros(0, dtype=bool),), reached=False, filled=False)


def _known_of(
    system: System, values: Array, squared: Array, goal: Array, done: Array, k: int | None
) -> _Known:
    """Everything that the host will ask, at once: to ask waits for the device."""
    xp = system.backend.xp
    asked = [squared, goal, xp.astype(done, xp.float64)]
    if k is not None:
        # Most columns pass by a count, which takes a fraction of the time of their best scores.
        part = _LEAST_PART if _is_long(system, k) else _PART_OF_LAST
        enough = xp.astype(xp.sqrt(squared / k) / part, values.dtype)
        above = xp.astype(system.scores(values) >= enough, xp.uint8)
        count = over_rows(partial(xp.sum, dtype=xp.int64), above, xp)
        asked += [xp.astype(count < _due(system, k), xp.float64), xp.astype(enough, xp.float64)]
    left, wanted, ended, *more = system.backend.to_numpy(xp.stack(asked))
    open_ = more[0] > 0 if more else np.zeros(left.size, dtype=bool)
    # A count of scores that are at least 0 says nothing.
    filled = bool(more and system.watched is None and np.all(~open_ & (more[1] > 0)))
    reached = bool(np.all((left <= wanted) & np.isfinite(left)))
    return _Known(ended > 0, left > wanted, open_, reached, filled)


def _solved(
    system: System, span: Span | None, start: _Start, steps: int, k: int | None = None
) -> _Solved:
    """Steps until every column's true residual is at its goal, or stops getting smaller."""
    backend, xp, goal = system.backend, system.backend.xp, start.goal
    descent = Descent(system, backend, span)
    solution, residual = start.solution, start.residual
    least = squared = system.squares(residual)
    best, done, taken, first = solution, least <= goal, 0, True
    known: _Known | None = None
    while taken < steps and not (known is not None and known.done.all()):
        before = least
        if not first:
            best = xp.asarray(best, copy=True)  # steps may be written over what they start from
        near = system.plain_goal(goal, residual, squared)
        target = xp.where(done, xp.full_like(goal, xp.inf), near)
        solution, more = descent.run(
            solution, residual, target, steps=steps - taken, stop_early=True
        )
        if first and more == 0:
            break  # everybody was there
        taken += more
        look = look_at(system, span, solution)
        solution, residual, squared = look.solution, look.residual, look.squared
        if first:
            best, least = solution, squared
        else:
            better = ~done & (squared < least)
            best, least = xp.where(better, solution, best), xp.where(better, squared, least)
            # Each start from the true residual mends the drift, until rounding ends all progress.
            # Not `least >= ...`, which is false for NaN: that would go on for ever.
            done = done | ~(least < 0.8 * before)
        first, done = False, done | (least <= goal)
        known = _known_of(system, best, least, goal, done, k)
        if more == 0:
            break
    if known is None:
        known = _known_of(system, best, least, goal, done, k)
    return _Solved(best, least, taken, known)
