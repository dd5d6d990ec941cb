"""The system of a local search on the nodes T, of all queries at once, and its solution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hybrid_gpu.backends.local_nodes import (
    LocalNodes,
    QuerySums,
    RaggedRows,
    matrix_of,
    sums_by_query,
)
from hybrid_gpu.backends.local_push import LocalTask, keyed_rows
from hybrid_gpu.backends.protocol import Array, SparseMatrix

# Looking at the residuals on the host waits for the device: do it only every few steps.
_STEPS_BETWEEN_CHECKS = 4


@dataclass(frozen=True, slots=True, eq=False)
class LocalSystem:
    """``A_TT x = f + alpha W x`` with the scores outside of T for a boundary.

    Attributes
    ----------
    members : int64 array of shape (t,)
        Where the nodes of T stand among all.
    places : int64 array of shape (nodes,)
        Where a node of T stands among these; anywhere for others.
    query : int64 array of shape (t,)
        Their queries, ascending.
    rows : sparse matrix of shape (t, nodes)
        The rows of W at T.
    inner : sparse matrix of shape (t, t)
        W from T to T.
    outer : sparse matrix of shape (nodes, t)
        W from T to the other nodes.
    sums : QuerySums
        Over the nodes of T.
    """

    members: Array
    places: Array
    query: Array
    rows: SparseMatrix
    inner: SparseMatrix
    outer: SparseMatrix
    sums: QuerySums


def local_system(task: LocalTask, nodes: LocalNodes, m: int) -> LocalSystem:
    """The system of the nodes inside; each of the m queries must have one."""
    xp, backend, visited = task.xp, task.backend, nodes.keys.shape[0]
    (members,) = xp.nonzero(nodes.inside)
    t, keys = members.shape[0], xp.take(nodes.keys, members)
    places = xp.cumulative_sum(xp.astype(nodes.inside, xp.int64)) - 1
    places = xp.where(places < 0, xp.zeros_like(places), places)
    entries = keyed_rows(task, keys)
    columns = xp.searchsorted(nodes.keys, entries.columns)
    to_inside = xp.take(nodes.inside, columns)
    inner = RaggedRows(
        rows=entries.rows[to_inside],
        columns=xp.take(places, columns[to_inside]),
        weights=entries.weights[to_inside],
    )
    # The other way round: rows for the nodes outside.
    seen = columns[~to_inside]
    order = xp.argsort(seen)
    outer = RaggedRows(
        rows=xp.take(seen, order),
        columns=xp.take(entries.rows[~to_inside], order),
        weights=xp.take(entries.weights[~to_inside], order),
    )
    query = keys // task.n
    whole = RaggedRows(entries.rows, columns, entries.weights)
    return LocalSystem(
        members=members,
        places=places,
        query=query,
        rows=matrix_of(whole, (t, visited), backend),
        inner=matrix_of(inner, (t, t), backend),
        outer=matrix_of(outer, (visited, t), backend),
        sums=sums_by_query(query, m, backend),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LocalSolution:
    """Scores (nodes,), squares of what they leave on T (m,), and steps that were taken (m,)."""

    score: Array
    squared: Array
    steps: Array


def solved(task: LocalTask, system: LocalSystem, nodes: LocalNodes, goal: Array) -> LocalSolution:
    """Conjugate gradients on T from the scores of the nodes, until each query is at its goal.

    A query that has arrived no longer moves, whatever the others do.
    """
    xp, alpha, query = task.xp, task.problem.alpha, system.query
    score = xp.take(nodes.score, system.members)
    residual = xp.take(nodes.left, system.members) - score
    residual = residual + alpha * _times(task, system.rows, nodes.score)
    direction = residual
    (squared,) = _dots(system, residual, residual, xp)
    able, steps = xp.ones_like(squared, dtype=xp.bool), xp.zeros_like(squared, dtype=xp.int64)
    for step in range(task.effort.steps):
        wanting = able & (squared > goal)
        if step % _STEPS_BETWEEN_CHECKS == 0 and not bool(xp.any(wanting)):
            break
        product = direction - alpha * _times(task, system.inner, direction)
        (curvature,) = _dots(system, direction, product, xp)
        moving = wanting & (curvature > 0)
        size = xp.astype(xp.take(_ratio(squared, curvature, moving, xp), query), score.dtype)
        score, residual = score + size * direction, residual - size * product
        (after,) = _dots(system, residual, residual, xp)
        ratio = xp.astype(xp.take(_ratio(after, squared, moving, xp), query), score.dtype)
        direction = residual + ratio * direction
        squared, able = xp.where(moving, after, squared), able & (moving | ~wanting)
        steps = steps + xp.astype(moving, xp.int64)
    score = xp.where(nodes.inside, xp.take(score, system.places), nodes.score)
    return LocalSolution(score, squared, steps)


def predicted_scores(task: LocalTask, system: LocalSystem, nodes: LocalNodes) -> Array:
    """Scores of the nodes outside of T, predicted from the solution; of shape (nodes,)."""
    # The guess has alpha W Z c already.
    change = task.xp.take(nodes.score - nodes.coarse, system.members)
    return nodes.guess + task.problem.alpha * _times(task, system.outer, change)


def rooted(task: LocalTask, keys: Array, scores: Array) -> Array:
    """What scores of nodes count in the ranking."""
    if not task.effort.rooted:
        return scores
    return scores * task.xp.take(task.problem.roots, keys % task.n)


def scores_inside(task: LocalTask, system: LocalSystem, nodes: LocalNodes) -> Array:
    """What the nodes of T score (t,)."""
    scores = task.xp.take(nodes.score + nodes.pushed, system.members)
    return rooted(task, task.xp.take(nodes.keys, system.members), scores)


def plain_scores(task: LocalTask, system: LocalSystem, nodes: LocalNodes, least: Array) -> Array:
    """Scores (m,) in the units of residuals; see ``hg_plain`` in ``kernels/cpu/local_query.h``."""
    if not task.effort.rooted:
        return least
    xp = task.xp
    as_good = scores_inside(task, system, nodes) >= xp.take(least, system.query)
    roots = xp.take(task.problem.roots, xp.take(nodes.keys, system.members) % task.n)
    squares = xp.where(
        as_good, xp.astype(roots, xp.float64) ** 2, xp.zeros_like(as_good, dtype=xp.float64)
    )
    total, count = system.sums(squares, as_good)
    ratio = xp.sqrt(_ratio(count, total, (least > 0) & (total > 0), xp))
    return xp.astype(least * ratio, least.dtype)


def _times(task: LocalTask, matrix: SparseMatrix, values: Array) -> Array:
    return task.backend.spmm(matrix, values[:, None])[:, 0]


def _dots(system: LocalSystem, left: Array, right: Array, xp: Any) -> tuple[Array, ...]:
    return system.sums(xp.astype(left, xp.float64) * xp.astype(right, xp.float64))


def _ratio(above: Array, below: Array, where: Array, xp: Any) -> Array:
    """``above / below`` where the condition holds, 0 elsewhere, without a division by zero."""
    return xp.where(
        where, above / xp.where(where, below, xp.ones_like(below)), xp.zeros_like(above)
    )


def told_scores(task: LocalTask, scores: Array) -> Array:
    """Scores to a sixteenth of the tolerance: so few digits that equal items nearly always tie."""
    xp = task.xp
    wide = xp.astype(scores, xp.float64)
    sizes = xp.where(wide == 0, xp.ones_like(wide), xp.abs(wide))
    parts = 2.0 ** math.floor(math.log2(16 / task.effort.tolerance))
    # As frexp has it: mantissas from 0.5 to 1.
    unit = 2.0 ** (xp.floor(xp.log2(sizes)) + 1) / parts
    return xp.astype(xp.round(wide / unit) * unit, scores.dtype)
