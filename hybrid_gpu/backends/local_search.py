"""Diffusion of a batch of queries, each on the few items that matter to it, in array operations.

The method, its three stages and its rule are those of ``kernels/cpu/local_query.h``. The items that
m queries have visited are the nodes of one graph without edges between queries, and every operation
is on all nodes: queries go from round to round together, and leave when they are over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from hybrid_gpu.backends.local_nodes import (
    ArrayBackend,
    LocalNodes,
    bounds_by_query,
    counts_by_query,
    largest_by_query,
    nodes_of,
    sums_by_query,
)
from hybrid_gpu.backends.local_push import (
    LocalTask,
    coarse_coefficients,
    guessed_nodes,
    observed_nodes,
    pushed_nodes,
    step_out,
)
from hybrid_gpu.backends.local_records import LocalAnswer, LocalEffort, LocalProblem
from hybrid_gpu.backends.local_system import (
    LocalSolution,
    LocalSystem,
    local_system,
    plain_scores,
    predicted_scores,
    rooted,
    scores_inside,
    solved,
    told_scores,
)
from hybrid_gpu.backends.protocol import Array

# As in kernels/cpu/local.c, which tells what they are for.
_RINGS, _ROUNDINGS, _NEAR, _MOST, _WHOLE, _TRIES = 8, 8, 4, 4, 100, 4
_BORDER_LOW, _BORDER_HIGH = 0.7, 1.5
# What a round takes for each entry of a row, and for each node.
_BYTES_OF_ENTRY, _BYTES_OF_NODE = 80, 400


@dataclass(frozen=True, slots=True, eq=False)
class _OpenQueries:
    """The queries that are not over; arrays of shape (m,), coefficients (r, m).

    ``numbers`` are the caller's. ``whole`` is the square of the observation, ``rest`` of what push
    left of it, ``goal`` of what may be left at the end; ``full`` tells who ran out of room.
    """

    numbers: Array
    whole: Array
    rest: Array
    goal: Array
    full: Array
    steps: Array
    coefficients: Array

    @property
    def count(self) -> int:
        return int(self.numbers.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Verdict:
    """What a round found out about each query: over or not, settled or not, what is left."""

    over: Array
    settled: Array
    squared: Array


def search_locally(
    backend: ArrayBackend,
    problem: LocalProblem,
    places: Array,
    weights: Array,
    k: int,
    effort: LocalEffort,
) -> LocalAnswer:
    """The best ``k`` items for observations (m, q): places, -1 for none, and their weights."""
    xp, (m, width) = backend.xp, places.shape
    task = LocalTask(problem, effort, backend, room=max(effort.room, width))
    places = xp.astype(places, xp.int64, copy=False)
    _check_places(places, task.n, xp)
    together = _queries_at_once(task)
    slices = [slice(start, min(start + together, m)) for start in range(0, max(m, 1), together)]
    answers = [_searched(task, places[some, :], weights[some, :], k) for some in slices]
    return _concatenated(answers, xp)


def _queries_at_once(task: LocalTask) -> int:
    """How many queries fit into half of the memory, should each of them take all of its room."""
    row = task.problem.adjacency.data.shape[0] / max(task.n, 1)
    most = task.room * (row * _BYTES_OF_ENTRY + _BYTES_OF_NODE)
    return max(1, int(task.backend.available_bytes() / 2 / most))


def _searched(task: LocalTask, places: Array, weights: Array, k: int) -> LocalAnswer:
    """The answers of queries that go together."""
    xp, backend, effort, m = task.xp, task.backend, task.effort, places.shape[0]
    nodes = observed_nodes(task, places, weights)
    query = nodes.keys // task.n
    (whole,) = sums_by_query(query, m, backend)(xp.astype(nodes.left, xp.float64) ** 2)
    sizes = xp.where(places >= 0, xp.abs(weights), xp.zeros_like(weights))
    none = xp.zeros((m, 1), dtype=weights.dtype, device=backend.device)
    largest = xp.max(xp.concat([sizes, none], axis=1), axis=1)
    queries = _OpenQueries(
        numbers=xp.arange(m, dtype=xp.int64, device=backend.device),
        whole=whole,
        rest=whole,
        goal=effort.tolerance**2 * whole,
        full=xp.zeros_like(whole, dtype=xp.bool),
        steps=xp.zeros_like(whole, dtype=xp.int64),
        coefficients=xp.zeros((task.groups, m), dtype=weights.dtype, device=backend.device),
    )
    seen = whole > 0
    parts = [_nothing_found(_some(queries, ~seen, xp), k, task, settled=True)]
    queries, nodes = _going_on(task, queries, nodes, seen)
    if queries.count:
        nodes, full = pushed_nodes(task, nodes, effort.push * largest[seen])
        squares = xp.astype(nodes.left, xp.float64) ** 2
        sums = sums_by_query(nodes.keys // task.n, queries.count, backend)
        rows, rest = sums(nodes.inside, squares)
        queries = replace(queries, full=full, rest=rest)
        parts.append(_nothing_found(_some(queries, rows == 0, xp), k, task, settled=False))
        queries, nodes = _going_on(task, queries, nodes, rows > 0)
    if queries.count:
        coefficients = coarse_coefficients(task, nodes, queries.count)
        nodes = guessed_nodes(task, nodes, coefficients)
        parts += _rounds(task, replace(queries, coefficients=coefficients), nodes, k)
    answer = _concatenated([part for _, part in parts], xp)
    # In the caller's order.
    return _in_order(answer, xp.argsort(xp.concat([numbers for numbers, _ in parts])), xp)


def _check_places(places: Array, n: int, xp: Any) -> None:
    # A device reads whatever stands at a place that does not exist.
    if 0 not in places.shape and bool(xp.any((places < -1) | (places >= n))):
        raise ValueError(f"places must be from -1 to {n - 1}; got others.")


def _rounds(
    task: LocalTask, queries: _OpenQueries, nodes: LocalNodes, k: int
) -> list[tuple[Array, LocalAnswer]]:
    """Rounds until the rule is met by every query, or there is no room for it."""
    xp, parts, number = task.xp, [], 0
    while queries.count:
        number += 1
        queries, nodes, verdict = _round(task, queries, nodes, number, k)
        if not bool(xp.any(verdict.over)):
            continue
        ended, its_nodes = _going_on(task, queries, nodes, verdict.over)
        told = _Verdict(*(getattr(verdict, field.name)[verdict.over] for field in fields(verdict)))
        parts.append((ended.numbers, _answered(task, ended, its_nodes, told, number, k)))
        queries, nodes = _going_on(task, queries, nodes, ~verdict.over)
    return parts


def _round(
    task: LocalTask, queries: _OpenQueries, nodes: LocalNodes, number: int, k: int
) -> tuple[_OpenQueries, LocalNodes, _Verdict]:
    """Solve for T, look at the best, and let those in who may be among them."""
    xp, effort, m = task.xp, task.effort, queries.count
    system = local_system(task, nodes, m)
    visited = counts_by_query(nodes.keys, task.n, m, task.backend)
    rows = counts_by_query(xp.take(nodes.keys, system.members), task.n, m, task.backend)
    complete = visited == rows  # whole components: nothing is cut off
    aimed = queries.goal
    solution = solved(task, system, nodes, aimed)
    nodes = replace(nodes, score=solution.score)
    ranks = effort.watched, k, k - effort.spare, k + effort.spare + 1
    last, kth, within, beyond = _scores_at(task, system, nodes, ranks)
    last = xp.where(rows >= effort.watched, last, xp.zeros_like(last))
    plain = plain_scores(task, system, nodes, last)
    goal = xp.where(last > 0, _goal_beside(task, queries, plain, effort.watched), aimed)
    # Whole components are solved well: nothing else is wrong with them.
    inside = plain_scores(task, system, nodes, xp.where(rows > k, kth, xp.zeros_like(kth)))
    goal = xp.where(complete, _goal_beside(task, queries, inside, k) / _WHOLE, goal)
    endless = xp.full_like(goal, xp.inf)
    for _ in range(_TRIES):
        goals = xp.where(complete, goal, endless)
        solution = _tried_again(task, system, nodes, solution, goals)
        nodes = replace(nodes, score=solution.score)
    queries = replace(queries, steps=queries.steps + solution.steps, goal=goal)

    changes, drift, nodes = _changes(task, system, nodes, last)
    predicted = predicted_scores(task, system, nodes)
    query = nodes.keys // task.n
    above = ~nodes.inside & (rooted(task, nodes.keys, predicted) >= xp.take(last, query))
    (rivals,) = sums_by_query(query, m, task.backend)(above)
    gap, moved = within - beyond, xp.where(xp.isfinite(drift), drift, xp.ones_like(drift))
    close = (gap > effort.tolerance / 4 * within) & (gap <= effort.gap * moved * last)
    moves = (changes > effort.few) | close
    still = xp.where(
        moves, (changes <= effort.changes) & (drift <= effort.calm), drift <= effort.drift
    )
    # Beside the rounding of what push left, smaller residuals say nothing.
    told = goal >= (_ROUNDINGS * float(xp.finfo(last.dtype).eps)) ** 2 * queries.rest
    quiet = (rows >= effort.fewest) & still & (rivals == 0) & (last > 0) & (number > 1)
    reached = solution.squared <= xp.where(complete, goal, _NEAR * goal)
    nearby = _MOST * visited <= (_MOST - 1) * task.n
    settled = (complete | (quiet & nearby)) & reached & told
    over = settled | complete | (number >= effort.rounds)
    nodes = replace(nodes, score=xp.where(nodes.inside, nodes.score, predicted))
    queries, nodes = _let_in(task, queries, nodes, last, ~over & ~queries.full)
    return queries, nodes, _Verdict(over | queries.full, settled, solution.squared)


def _goal_beside(task: LocalTask, queries: _OpenQueries, score: Array, rank: int) -> Array:
    """The square of what may be left: beside the observation, and the score of a rank if positive.

    Where scores fall steeply, the best items are far below the observation.
    """
    xp, whole = task.xp, queries.whole
    small = rank * xp.astype(score, xp.float64) ** 2
    return task.effort.tolerance**2 * xp.where((score > 0) & (small < whole), small, whole)


def _tried_again(
    task: LocalTask, system: LocalSystem, nodes: LocalNodes, before: LocalSolution, goal: Array
) -> LocalSolution:
    """The solution of queries that shall be at a goal and are not: from their true residuals."""
    xp = task.xp
    if not bool(xp.any(before.squared > goal)):
        return before
    after = solved(task, system, nodes, goal)
    squared = xp.where(before.squared > goal, after.squared, before.squared)
    return LocalSolution(after.score, squared, before.steps + after.steps)


def _scores_at(
    task: LocalTask, system: LocalSystem, nodes: LocalNodes, ranks: tuple[int, ...]
) -> list[Array]:
    """Of every rank, counted from 1, each query's score on T (m,); the least where T is smaller."""
    scores = scores_inside(task, system, nodes)
    return largest_by_query(scores, system.query, system.sums.count, ranks, task.backend)


def _changes(
    task: LocalTask, system: LocalSystem, nodes: LocalNodes, last: Array
) -> tuple[Array, Array, LocalNodes]:
    """How many of the best are new (m,), how much scores around the last moved against each other.

    The second is a standard deviation, relative to the last score. The best are marked.
    """
    xp = task.xp
    score = scores_inside(task, system, nodes)
    before = xp.take(nodes.before, system.members)
    least = xp.take(last, system.query)
    now = score >= least
    border = (score >= _BORDER_LOW * least) & (score <= _BORDER_HIGH * least) & ~xp.isnan(before)
    moved = xp.astype(score, xp.float64) - xp.astype(before, xp.float64)
    moved = xp.where(border, moved, xp.zeros_like(moved))
    new = now & ~xp.take(nodes.best, system.members)
    changes, total, squares, count = system.sums(new, moved, moved**2, border)
    some = xp.where(count > 0, count, xp.ones_like(count))
    variance = squares / some - (total / some) ** 2
    spread = xp.sqrt(xp.where(variance > 0, variance, xp.zeros_like(variance)))
    known = (count > 0) & (last > 0)
    size = xp.where(known, xp.astype(last, xp.float64), xp.ones_like(spread))
    drift = xp.where(known, spread / size, xp.full_like(spread, xp.inf))
    nodes = replace(
        nodes,
        best=nodes.inside & xp.take(now, system.places),
        before=xp.where(nodes.inside, xp.take(score, system.places), nodes.before),
    )
    return changes, drift, nodes


def _let_in(
    task: LocalTask, queries: _OpenQueries, nodes: LocalNodes, last: Array, growing: Array
) -> tuple[_OpenQueries, LocalNodes]:
    """The best nodes by their predicted scores come in, so many that T grows as it should."""
    xp, m, full = task.xp, queries.count, queries.full
    if not bool(xp.any(growing)):
        return queries, nodes
    (rows,) = sums_by_query(nodes.keys // task.n, m, task.backend)(nodes.inside)
    growth = task.effort.growth
    # The rule compares two rounds, and the first that counts has ``fewest`` items.
    before = math.floor(task.effort.fewest / (1 + growth)) - rows
    wanted = xp.maximum(xp.floor(growth * rows) + 1, before)
    wanted = xp.astype(wanted, xp.int64)
    # Where fewer than are watched are known at all, everybody may come in.
    anybody = last <= 0
    for _ in range(_RINGS):
        query = nodes.keys // task.n
        able = ~nodes.inside & xp.take(growing, query)
        able = able & ((nodes.score > 0) | xp.take(anybody, query))
        if not bool(xp.any(able)):
            break
        told = rooted(task, nodes.keys, nodes.score)
        (least,) = largest_by_query(told[able], query[able], m, (wanted,), task.backend)
        least = xp.where(anybody, xp.full_like(last, -xp.inf), xp.minimum(least, last))
        step = step_out(task, nodes, able & (told >= xp.take(least, query)), m)
        (found,) = sums_by_query(query, m, task.backend)(step.chosen)
        fresh = nodes_of(step.fresh, xp.zeros_like(step.fresh, dtype=last.dtype), xp)
        fresh = guessed_nodes(task, fresh, queries.coefficients)
        nodes = replace(nodes, inside=nodes.inside | step.chosen).joined(fresh, xp)
        full, wanted = full | step.full, wanted - xp.astype(found, xp.int64)
        growing = growing & ~full & (wanted > 0) & (found > 0)
        if not bool(xp.any(growing)):
            break
    return replace(queries, full=full), nodes


def _answered(
    task: LocalTask,
    queries: _OpenQueries,
    nodes: LocalNodes,
    verdict: _Verdict,
    number: int,
    k: int,
) -> LocalAnswer:
    """The k best of T in order, and how each query came to them."""
    xp, m = task.xp, queries.count
    keys = nodes.keys[nodes.inside]
    scores = rooted(task, keys, (nodes.score + nodes.pushed)[nodes.inside])
    scores = told_scores(task, scores)
    bounds = bounds_by_query(keys, task.n, m, task.backend)
    rows = bounds[1:] - bounds[:-1]
    # Stable sorts, the weightiest last: by query, then by score, then by the user's ids.
    order = xp.argsort(xp.take(task.problem.order, keys % task.n))
    order = xp.take(order, xp.argsort(xp.take(scores, order), descending=True, stable=True))
    order = xp.take(order, xp.argsort(xp.take(keys, order) // task.n, stable=True))
    ranks = xp.arange(k, dtype=xp.int64, device=task.backend.device)[None, :]
    there = ranks < rows[:, None]
    chosen = bounds[:-1][:, None] + ranks
    chosen = xp.where(there, chosen, xp.zeros_like(chosen))
    chosen = xp.take(order, xp.reshape(chosen, (-1,)))
    scores = (1 - task.problem.alpha) * xp.reshape(xp.take(scores, chosen), (m, k))
    places = xp.reshape(xp.take(keys % task.n, chosen), (m, k))
    return LocalAnswer(
        places=xp.where(there, places, xp.full_like(places, -1)),
        scores=xp.where(there, scores, xp.zeros_like(scores)),
        found=xp.where(rows < k, rows, xp.full_like(rows, k)),
        settled=verdict.settled,
        rounds=xp.full_like(rows, number),
        visited=rows,
        steps=queries.steps,
        residuals=xp.sqrt(verdict.squared / queries.whole),
    )


def _nothing_found(
    queries: _OpenQueries, k: int, task: LocalTask, *, settled: bool
) -> tuple[Array, LocalAnswer]:
    """The answer of queries that observe nothing, or have no room for what they observe."""
    xp, device, m = task.xp, task.backend.device, queries.count
    none = xp.zeros_like(queries.steps)
    answer = LocalAnswer(
        places=xp.full((m, k), -1, dtype=xp.int64, device=device),
        scores=xp.zeros((m, k), dtype=queries.coefficients.dtype, device=device),
        found=none,
        settled=xp.full_like(queries.full, settled),
        rounds=none if settled else none + 1,
        visited=none,
        steps=none,
        residuals=xp.zeros_like(queries.whole),
    )
    return queries.numbers, answer


def _going_on(
    task: LocalTask, queries: _OpenQueries, nodes: LocalNodes, which: Array
) -> tuple[_OpenQueries, LocalNodes]:
    """Some of the queries (a mask), numbered anew, and their nodes."""
    xp = task.xp
    nodes = nodes.chosen(xp.take(which, nodes.keys // task.n), xp)
    numbers = xp.cumulative_sum(xp.astype(which, xp.int64)) - 1
    keys = xp.take(numbers, nodes.keys // task.n) * task.n + nodes.keys % task.n
    return _some(queries, which, xp), replace(nodes, keys=keys)


def _some(queries: _OpenQueries, which: Array, xp: Any) -> _OpenQueries:
    (chosen,) = xp.nonzero(which)
    parts = {field.name: getattr(queries, field.name) for field in fields(queries)}
    return _OpenQueries(**{name: xp.take(part, chosen, axis=-1) for name, part in parts.items()})


def _concatenated(answers: list[LocalAnswer], xp: Any) -> LocalAnswer:
    names = [field.name for field in fields(LocalAnswer)]
    return LocalAnswer(
        **{name: xp.concat([getattr(one, name) for one in answers]) for name in names}
    )


def _in_order(answer: LocalAnswer, order: Array, xp: Any) -> LocalAnswer:
    """The answers of queries in another order."""
    names = [field.name for field in fields(LocalAnswer)]
    return LocalAnswer(**{name: xp.take(getattr(answer, name), order, axis=0) for name in names})
