"""The nodes of a local search: items that the queries of a batch have visited, all in one order.

A node is an item as one query sees it, and its key is ``query * n + item``. Nodes stand by their
keys, so those of a query lie together, and a key is found by a binary search.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.backends.protocol import Array, SparseMatrix


class ArrayBackend(Protocol):
    """As much of a backend as a local search takes: arrays, their products, and what is free."""

    @property
    def xp(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def csr(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
    ) -> SparseMatrix: ...
    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array: ...
    def matmul(self, left: Array, right: Array) -> Array: ...
    def available_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class LocalNodes:
    """What is known of every visited node; arrays of shape (nodes,).

    Attributes
    ----------
    keys : int64 array
        ``query * n + item``, ascending.
    inside : bool array
        Whether the node is one of T, for which the system is solved.
    best : bool array
        Whether it was among the best when the rule last looked.
    left, pushed : float arrays
        f, what push left over, and what it has settled.
    coarse, guess : float arrays
        ``Z c``, and ``f + alpha W Z c``.
    score : float array
        Of T the solution for f, elsewhere its boundary values.
    before : float array
        The whole score when the rule last looked; NaN if it never did.
    """

    keys: Array
    inside: Array
    best: Array
    left: Array
    pushed: Array
    coarse: Array
    guess: Array
    score: Array
    before: Array

    def chosen(self, which: Array, xp: Any) -> LocalNodes:
        """Some of the nodes, by a mask."""
        (places,) = xp.nonzero(which)
        return self._each(lambda name: xp.take(getattr(self, name), places))

    def joined(self, others: LocalNodes, xp: Any) -> LocalNodes:
        """These nodes and others that are not among them."""
        if others.keys.shape[0] == 0:
            return self
        # Two ascending runs: stable sorts merge them.
        order = xp.argsort(xp.concat([self.keys, others.keys]), stable=True)
        return self._each(
            lambda name: xp.take(xp.concat([getattr(self, name), getattr(others, name)]), order)
        )

    def _each(self, made: Any) -> LocalNodes:
        return LocalNodes(**{field.name: made(field.name) for field in fields(self)})


def nodes_of(keys: Array, left: Array, xp: Any) -> LocalNodes:
    """Nodes that nothing is known of but what is left at them."""
    nothing, no = xp.zeros_like(left), xp.zeros_like(keys, dtype=xp.bool)
    return LocalNodes(
        keys=keys,
        inside=no,
        best=no,
        left=left,
        pushed=nothing,
        coarse=nothing,
        guess=nothing,
        score=nothing,
        before=xp.full_like(left, xp.nan),
    )


@dataclass(frozen=True, slots=True, eq=False)
class RaggedRows:
    """Entries of some rows of a matrix, one row after another; arrays of shape (entries,).

    ``rows`` are numbered as they were asked for, from 0.
    """

    rows: Array
    columns: Array
    weights: Array


def ragged_rows(matrix: SparseMatrix, items: Array, backend: ArrayBackend) -> RaggedRows:
    """The rows of a sparse matrix at ``items``, in any order and any number of times."""
    xp = backend.xp
    starts = xp.astype(xp.take(matrix.indptr, items), xp.int64)
    lengths = xp.astype(xp.take(matrix.indptr, items + 1), xp.int64) - starts
    begins = xp.cumulative_sum(lengths) - lengths
    rows = xp.repeat(_count(items.shape[0], backend), lengths)
    # Entry e of these rows stands at e, shifted by the distance of its row's two beginnings.
    entries = _count(rows.shape[0], backend) + xp.take(starts - begins, rows)
    return RaggedRows(
        rows=rows,
        columns=xp.astype(xp.take(matrix.indices, entries), xp.int64),
        weights=xp.take(matrix.data, entries),
    )


def matrix_of(entries: RaggedRows, shape: tuple[int, int], backend: ArrayBackend) -> SparseMatrix:
    """A sparse matrix from entries in the order of their rows."""
    return csr_from_sorted(entries.weights, entries.rows, entries.columns, shape, backend)


def distinct(values: Array, backend: ArrayBackend) -> Array:
    """Integers (count,) >= 0 in order, each of them once."""
    # Of unique_values, the standard does not promise an order.
    xp = backend.xp
    none = xp.full(1, -1, dtype=values.dtype, device=backend.device)
    values = xp.sort(values)
    return values[values != xp.concat([none, values])[:-1]]


def sums_at(places: Array, values: Array, count: int, backend: ArrayBackend) -> Array:
    """Values added up at the places (0 to ``count - 1``) where they belong, of shape (count,)."""
    xp = backend.xp
    order = xp.argsort(places)
    rows = xp.take(places, order)
    # The standard has no scatter: a product with a column is one.
    entries = RaggedRows(rows, xp.zeros_like(rows), xp.take(values, order))
    one = xp.ones((1, 1), dtype=values.dtype, device=backend.device)
    return backend.spmm(matrix_of(entries, (count, 1), backend), one)[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class QuerySums:
    """Sums over the nodes of each query, in float64.

    Each sum is of its own nodes alone: differences of running sums would carry the rounding of
    other queries.
    """

    matrix: SparseMatrix
    backend: ArrayBackend

    @property
    def count(self) -> int:
        """How many queries there are."""
        return self.matrix.shape[0]

    def __call__(self, *values: Array) -> tuple[Array, ...]:
        """Of each array (nodes,) its sums (m,)."""
        xp = self.backend.xp
        columns = xp.stack([xp.astype(one, xp.float64) for one in values], axis=1)
        sums = self.backend.spmm(self.matrix, columns)
        return tuple(sums[:, number] for number in range(len(values)))


def sums_by_query(query: Array, m: int, backend: ArrayBackend) -> QuerySums:
    """Sums over nodes whose queries (nodes,) ascend."""
    xp, nodes = backend.xp, query.shape[0]
    ones = xp.ones(nodes, dtype=xp.float64, device=backend.device)
    entries = RaggedRows(query, _count(nodes, backend), ones)
    return QuerySums(matrix_of(entries, (m, nodes), backend), backend)


def largest_by_query(
    values: Array, query: Array, m: int, ranks: tuple[Any, ...], backend: ArrayBackend
) -> list[Array]:
    """Of values (count,) whose queries ascend, those of some ranks: a number, or one per query.

    Ranks count from 1. The least where there are fewer; anything where there is none.
    """
    xp = backend.xp
    order = xp.argsort(values, descending=True)
    order = xp.take(order, xp.argsort(xp.take(query, order), stable=True))
    bounds = xp.astype(xp.searchsorted(query, _count(m + 1, backend)), xp.int64)
    places = [xp.minimum(bounds[:-1] + rank, bounds[1:]) - 1 for rank in ranks]
    return [xp.take(values, xp.take(order, xp.clip(place, min=0))) for place in places]


def counts_by_query(keys: Array, n: int, m: int, backend: ArrayBackend) -> Array:
    """How many of ascending keys belong to each query, int64 of shape (m,)."""
    bounds = bounds_by_query(keys, n, m, backend)
    return bounds[1:] - bounds[:-1]


def bounds_by_query(keys: Array, n: int, m: int, backend: ArrayBackend) -> Array:
    """Where each query begins among ascending keys, and where the last ends; of shape (m + 1,)."""
    xp = backend.xp
    return xp.astype(xp.searchsorted(keys, _count(m + 1, backend) * n), xp.int64)


def _count(stop: int, backend: ArrayBackend) -> Array:
    return backend.xp.arange(stop, dtype=backend.xp.int64, device=backend.device)
