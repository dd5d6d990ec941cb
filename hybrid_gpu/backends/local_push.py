"""How a local search begins: push around the observations, and a coarse guess for what is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hybrid_gpu.backends.local_nodes import (
    ArrayBackend,
    LocalNodes,
    RaggedRows,
    counts_by_query,
    distinct,
    matrix_of,
    nodes_of,
    ragged_rows,
    sums_at,
)
from hybrid_gpu.backends.local_records import LocalEffort, LocalProblem
from hybrid_gpu.backends.protocol import Array

# Sweeps of the push at most. The system solves for all nodes that were pushed, so little depends on
# what is left at them: on 20,000 random items (24 queries, alpha 0.9 to 0.999), the mean agreement
# with the exact 50 best was the same for 8 to 200 sweeps. In a component so small that nothing
# spreads out, mass would only fade by alpha from sweep to sweep.
_SWEEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class LocalTask:
    """A problem, how far to go in it, and where it is solved; ``room`` is for nodes of a query."""

    problem: LocalProblem
    effort: LocalEffort
    backend: ArrayBackend
    room: int

    @property
    def xp(self) -> Any:
        """The array API namespace."""
        return self.backend.xp

    @property
    def n(self) -> int:
        """The number of items."""
        return self.problem.adjacency.shape[0]

    @property
    def groups(self) -> int:
        """The number of groups, r."""
        return self.problem.spread.shape[1] // 2


def observed_nodes(task: LocalTask, places: Array, weights: Array) -> LocalNodes:
    """The nodes of observations (m, q); repeated places add up, places of -1 are none."""
    xp = task.xp
    queries = xp.arange(places.shape[0], dtype=xp.int64, device=task.backend.device)
    known = places >= 0
    entries = (queries[:, None] * task.n + places)[known]
    keys = distinct(entries, task.backend)
    where = xp.searchsorted(keys, entries)
    left = sums_at(where, weights[known], keys.shape[0], task.backend)
    return nodes_of(keys, left, xp)


def pushed_nodes(task: LocalTask, nodes: LocalNodes, thresholds: Array) -> tuple[LocalNodes, Array]:
    """Nodes after the push, and which queries (m,) ran out of room.

    In each sweep all residuals above their limits (the query's threshold times the item's root)
    are pushed at once: added to the scores, and alpha of them handed to the neighbors.
    """
    xp, alpha, m = task.xp, task.problem.alpha, thresholds.shape[0]
    full = xp.zeros_like(thresholds, dtype=xp.bool)
    due = xp.ones_like(nodes.inside)  # what was observed is pushed in any case
    for _ in range(_SWEEPS):
        if not bool(xp.any(due)):
            break
        step = step_out(task, nodes, due, m)
        full, due = full | step.full, step.chosen
        nothing = xp.zeros_like(nodes.left)
        mass = xp.where(due, nodes.left, nothing)
        passed = alpha * step.entries.weights * xp.take(mass[due], step.entries.rows)
        nodes = replace(
            nodes,
            inside=nodes.inside | due,
            pushed=nodes.pushed + mass,
            left=xp.where(due, nothing, nodes.left),
        )
        fresh = nodes_of(step.fresh, xp.zeros_like(step.fresh, dtype=mass.dtype), xp)
        nodes = nodes.joined(fresh, xp)
        where = xp.searchsorted(nodes.keys, step.entries.columns)
        left = nodes.left + sums_at(where, passed, nodes.keys.shape[0], task.backend)
        nodes = replace(nodes, left=left)
        query, item = nodes.keys // task.n, nodes.keys % task.n
        limit = xp.take(thresholds, query) * xp.take(task.problem.roots, item)
        due = (xp.abs(left) > limit) & ~xp.take(full, query)
    return nodes, full


@dataclass(frozen=True, slots=True, eq=False)
class StepOut:
    """What some nodes see around them.

    Attributes
    ----------
    chosen : bool array of shape (nodes,)
        The nodes, without those of queries that have no room for what they see.
    entries : RaggedRows
        The rows of the graph at these nodes; the columns are keys.
    fresh : int64 array
        Keys that were not visited yet, ascending.
    full : bool array of shape (m,)
        Queries that have no room.
    """

    chosen: Array
    entries: RaggedRows
    fresh: Array
    full: Array


def step_out(task: LocalTask, nodes: LocalNodes, chosen: Array, m: int) -> StepOut:
    """Look around some nodes (a mask) of m queries."""
    xp, backend = task.xp, task.backend
    step = _looked_around(task, nodes, chosen)
    counts = counts_by_query(nodes.keys, task.n, m, backend)
    full = counts + counts_by_query(step.fresh, task.n, m, backend) > task.room
    if bool(xp.any(full)):
        chosen = chosen & ~xp.take(full, nodes.keys // task.n)
        step = _looked_around(task, nodes, chosen)
    return replace(step, full=full)


def _looked_around(task: LocalTask, nodes: LocalNodes, chosen: Array) -> StepOut:
    xp = task.xp
    keys = nodes.keys[chosen]
    entries = keyed_rows(task, keys)
    seen = distinct(entries.columns, task.backend)
    where = xp.searchsorted(nodes.keys, seen)
    where = xp.where(where < nodes.keys.shape[0], where, xp.zeros_like(where))
    fresh = seen[xp.take(nodes.keys, where) != seen]
    return StepOut(chosen, entries, fresh, full=keys)


def keyed_rows(task: LocalTask, keys: Array) -> RaggedRows:
    """The rows of the graph at some keys, with keys for columns."""
    entries = ragged_rows(task.problem.adjacency, keys % task.n, task.backend)
    start = keys - keys % task.n
    return replace(entries, columns=entries.columns + task.xp.take(start, entries.rows))


def coarse_coefficients(task: LocalTask, nodes: LocalNodes, m: int) -> Array:
    """``c = E^-1 Z^T f`` of what push left over, of shape (r, m)."""
    xp, backend, inverse, r = task.xp, task.backend, task.problem.inverse, task.groups
    if r == 0:
        return xp.zeros((0, m), dtype=nodes.left.dtype, device=backend.device)
    entries = ragged_rows(task.problem.spread, nodes.keys % task.n, backend)
    own = entries.columns < r
    rows, columns, shares = entries.rows[own], entries.columns[own], entries.weights[own]
    query = xp.take(nodes.keys // task.n, rows)
    sums = sums_at(columns * m + query, shares * xp.take(nodes.left, rows), r * m, backend)
    sums = xp.reshape(sums, (r, m))
    s = 0 if inverse.together is None else inverse.together.shape[0]
    coefficients = inverse.alone * sums[s:, :]
    if inverse.together is None:
        return coefficients
    return xp.concat([backend.matmul(inverse.together, sums[:s, :]), coefficients])


def guessed_nodes(task: LocalTask, nodes: LocalNodes, coefficients: Array) -> LocalNodes:
    """Nodes with the first guess: of the groups, and smoothed by the graph."""
    xp, backend, (r, m) = task.xp, task.backend, coefficients.shape
    guess, coarse = nodes.left, xp.zeros_like(nodes.left)
    if r > 0:
        entries = ragged_rows(task.problem.spread, nodes.keys % task.n, backend)
        columns = entries.columns * m + xp.take(nodes.keys // task.n, entries.rows)
        # Z stands before W Z: by one product with two columns, each of them is met apart.
        flat = xp.reshape(coefficients, (-1,))
        none = xp.zeros_like(flat)
        both = xp.stack([xp.concat([flat, none]), xp.concat([none, flat])], axis=1)
        shape = (nodes.keys.shape[0], 2 * r * m)
        matrix = matrix_of(replace(entries, columns=columns), shape, backend)
        sums = backend.spmm(matrix, both)
        coarse, guess = sums[:, 0], nodes.left + task.problem.alpha * sums[:, 1]
    return replace(nodes, coarse=coarse, guess=guess, score=guess)
