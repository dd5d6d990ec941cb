"""The ranking methods of the paper, of its baselines, and of this library, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.diffusion.basis import Basis, EigenBasis
from hybrid_gpu.diffusion.filters import Filter, PageRank, gains
from hybrid_gpu.diffusion.observation import Observation, power_of_two, scatter
from hybrid_gpu.diffusion.solver import (
    Solution,
    Stopping,
    deflated,
    gains_at,
    hybrid_as_in_paper,
    residuals_of,
)
from hybrid_gpu.graph.affinity import Layout, csr_from_sorted, normalized, row_numbers, submatrix
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.query_expansion import Expansion, expanded


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some queries, and everything that a method may look at to score the items for them.

    Attributes
    ----------
    observation : Observation
        The first-stage results that diffusion starts from.
    queries : float array of shape (m, d), or None
        Unit query vectors; None if the first stage was somebody else's.
    similarities : callable that returns a float array of shape (m, n)
        Cosine of every query and item; 0 for items that a foreign first stage did not return.
    shortlist : callable that returns an int64 array of shape (m, t)
        The items that ``truncated`` keeps for each query; -1 for none.
    nearest : callable that returns the ``Neighbors`` of each query
        As many as were asked for.
    expansion : Expansion
        The neighbors that ``alpha-qe`` adds to a query.
    eigenvectors, sparse_eigenvectors : callables
        The eigenvectors of the index, as they are or sparsified.
    columns : callable
        The stored columns of the index.
    stop : Stopping
        When the solver stops.
    """

    layout: Layout
    basis: Basis | None
    descriptors: Array | None
    observation: Observation
    queries: Array | None
    similarities: Callable[[], Array]
    shortlist: Callable[[], Array]
    nearest: Callable[[int], Neighbors]
    expansion: Expansion
    eigenvectors: Callable[[], EigenBasis]
    sparse_eigenvectors: Callable[[], Basis]
    columns: Callable[[], Columns]
    gamma: float
    filter: Filter
    stop: Stopping
    backend: Backend

    def placed(self, ids: Array) -> Array:
        """The places of items in the graph's own order; -1 stays -1."""
        xp = self.backend.xp
        known = xp.where(ids < 0, xp.zeros_like(ids), ids)
        places = xp.take(self.layout.places, xp.reshape(known, (-1,)))
        return xp.where(ids < 0, ids, xp.reshape(places, ids.shape))

    def scale(self) -> Array:
        """How large each observation is: a power of two, float64 of shape (m, 1)."""
        xp, weights = self.backend.xp, self.observation.weights
        largest = xp.max(xp.abs(xp.astype(weights, xp.float64)), axis=1, keepdims=True)
        return power_of_two(largest, xp)

    def scaled(self) -> Observation:
        """The observations, the largest weight of each being 1 to 2."""
        # The square of a number below 1e-23 is zero in float32, and weights are powers of
        # similarities: those of 1e-7 already have squares that are.
        weights = self.backend.xp.astype(
            self.observation.weights / self.scale(), self.layout.graph.degrees.dtype
        )
        return replace(self.observation, weights=weights)

    def right_side(self) -> Array:
        """The scaled observations as columns (n, m), in the graph's own order."""
        seen = self.scaled()
        return scatter(self.placed(seen.ids), seen.weights, seen.n, self.backend)

    def by_item(self, solution: Solution) -> Solution:
        """A solution for ``right_side``, put into the order of the items."""
        values = self.backend.xp.take(solution.values, self.layout.places, axis=0)
        return replace(solution, values=values, scale=self.scale())


@dataclass(frozen=True, slots=True)
class Method:
    """One way to score the items of the database for a batch of queries.

    Attributes
    ----------
    steps : int or None
        Steps that it takes if nobody says otherwise; None: those that its accuracy takes.
    solves : bool
        Whether it takes steps on the graph.
    exact : bool
        Whether its steps converge to the diffusion, so that an accuracy can be asked for.
    """

    name: str
    summary: str
    score: Callable[[Batch], Solution]
    steps: int | None = 0
    solves: bool = False
    exact: bool = True
    needs_eigenvectors: bool = False
    needs_descriptors: bool = False


def _nearest(batch: Batch) -> Solution:
    return _direct(batch.similarities().T)


def _query_expansion(batch: Batch) -> Solution:
    """Similarity to ``q + sum of weight * neighbor``."""
    xp, backend, items = batch.backend.xp, batch.backend, batch.descriptors
    assert items is not None
    found = batch.nearest(batch.expansion.neighbors)
    queries = batch.queries
    if queries is None:  # somebody else's first stage: its results stand for the query
        shape = (found.ids.shape[0], items.shape[1])
        queries = xp.zeros(shape, dtype=items.dtype, device=backend.device)
    vectors = expanded(
        queries, items, found.ids, found.similarities, batch.expansion.alpha, backend
    )
    return _direct(backend.matmul(items, vectors.T))


def _temporal(batch: Batch) -> Solution:
    return batch.by_item(_solve(batch, batch.right_side(), None))


def _hybrid(batch: Batch) -> Solution:
    right_side = batch.right_side()
    solution = _solve(batch, right_side, batch.basis)
    if batch.basis is not None and batch.basis.crosses and isinstance(batch.filter, PageRank):
        # The steps take back what such vectors hand to other components, but not to the last bit.
        values = _within_components(batch, solution.values)
        adjacency = batch.layout.graph.adjacency
        left = residuals_of(adjacency, values, right_side, batch.filter, batch.backend)
        solution = replace(solution, values=values, residuals=left)
    return batch.by_item(solution)


def _within_components(batch: Batch, values: Array) -> Array:
    """Scores, with zeros for the components in which nothing was observed."""
    xp, backend = batch.backend.xp, batch.backend
    seen, labels = batch.scaled(), batch.layout.graph.components
    places = batch.placed(seen.ids)
    known = xp.where(places < 0, xp.zeros_like(places), places)
    component = backend.asarray(labels.astype("int64"))
    observed = xp.reshape(xp.take(component, xp.reshape(known, (-1,))), places.shape)
    observed = xp.where(places < 0, places, observed)
    count = int(labels.max()) + 1
    reached = xp.take(scatter(observed, seen.weights, count, backend), component, axis=0)
    return xp.where(reached > 0, values, xp.zeros_like(values))


def _solve(batch: Batch, right_side: Array, basis: Basis | None) -> Solution:
    adjacency = batch.layout.graph.adjacency
    return deflated(adjacency, right_side, basis, batch.filter, batch.stop, batch.backend)


def _truncated(batch: Batch) -> Solution:
    """Temporal filtering on the shortlist of each query: a graph of its own for every one."""
    xp, backend = batch.backend.xp, batch.backend
    shortlists, right_side = batch.placed(batch.shortlist()), batch.right_side()
    columns, residuals, solutions = [], [], []
    for query in range(batch.observation.queries):
        places = xp.unique_values(shortlists[query, :])
        places = places[places >= 0]
        if places.shape[0] == 0:
            places = xp.zeros((1,), dtype=xp.int64, device=backend.device)
        solution = deflated(
            _cut_out(batch.layout, places, backend),
            xp.take(right_side[:, query : query + 1], places, axis=0),
            None,
            batch.filter,
            batch.stop,
            backend,
        )
        columns.append(scatter(places[None, :], solution.values.T, batch.layout.graph.n, backend))
        residuals.append(solution.residuals)
        solutions.append(solution)
    whole = Solution(
        values=xp.concat(columns, axis=1),
        residuals=None if residuals[0] is None else xp.concat(residuals),
        steps=max(one.steps for one in solutions),
        converged=all(one.converged for one in solutions),
        truncation=solutions[0].truncation,
    )
    return batch.by_item(whole)


def _cut_out(layout: Layout, places: Array, backend: Backend) -> Array:
    """The adjacency of some items among themselves, normalized anew."""
    xp = backend.xp
    part = submatrix(layout.graph.adjacency, places, backend)
    rows, columns = row_numbers(part, backend), xp.astype(part.indices, xp.int64)
    # Back from normalized weights to affinities, then normalize by what is left of the degrees.
    root = xp.sqrt(xp.take(layout.graph.degrees, places))
    weights = part.data * (xp.take(root, rows) * xp.take(root, columns))
    affinity = backend.csr(weights, part.indices, part.indptr, part.shape)
    ones = xp.ones((part.shape[0], 1), dtype=weights.dtype, device=backend.device)
    degrees = backend.spmm(affinity, ones)[:, 0]
    again = normalized(weights, rows, columns, degrees, xp)
    return csr_from_sorted(again, rows, columns, part.shape, backend)


def _fast_spectral(batch: Batch) -> Solution:
    """``U_1 h(Lambda_1) U_1^T y``, eq. (spectral) with the leading eigenpairs only."""
    basis = batch.eigenvectors()
    gain = gains_at(batch.filter, basis.eigenvalues, batch.backend)
    return batch.by_item(_direct(basis.prolong(gain * basis.restrict(batch.right_side()))))


def _fast_spectral_weighted(batch: Batch) -> Solution:
    """FSR, mixed with the similarity of items that the eigenvectors represent poorly.

    The paper names the heuristic without a formula. Our reading: an item's weight is the norm of
    its row of U_1, which is 1 for an item that lies in their span and 0 for one that they know
    nothing about. Scores are divided by the filter's gain at frequency 0, so that an item on its
    own would score its similarity: both parts are then in the same units.
    """
    xp = batch.backend.xp
    vectors = xp.take(batch.eigenvectors().dense(), batch.layout.places, axis=0)
    weight = xp.sqrt(xp.sum(vectors * vectors, axis=1, keepdims=True))
    # Both parts are divided by the size of the observation.
    scale = batch.scale()
    root = xp.astype(scale.T ** (1 / batch.gamma), vectors.dtype)
    fallback = (xp.clip(batch.similarities().T, min=0) / root) ** batch.gamma
    floor = float(gains(batch.filter, 0.0))
    spectral = _fast_spectral(batch).values / (floor if floor > 0 else 1.0)
    mixed = weight * spectral + (1 - weight) * fallback
    return replace(_direct(mixed), scale=scale)


def _hybrid_paper(batch: Batch) -> Solution:
    return _as_in_paper(batch, batch.eigenvectors())


def _sparse_hybrid(batch: Batch) -> Solution:
    return _as_in_paper(batch, batch.sparse_eigenvectors())


def _as_in_paper(batch: Batch, vectors: Basis) -> Solution:
    solution = hybrid_as_in_paper(
        batch.layout.graph.adjacency,
        batch.right_side(),
        vectors,
        batch.eigenvectors().eigenvalues,
        batch.filter,
        batch.stop,
        batch.backend,
    )
    return batch.by_item(solution)


def _precomputed(batch: Batch) -> Solution:
    """The sum of the stored columns of the observed items: diffusion is linear."""
    values = batch.columns().combine(batch.scaled(), batch.backend)
    return replace(_direct(values), scale=batch.scale())


def _direct(values: Array) -> Solution:
    return Solution(values, residuals=None, steps=0, converged=True)


_TABLE = (
    Method("nn", "similarity order of the descriptors, no diffusion", _nearest),
    Method(
        "alpha-qe",
        "similarity to the query plus its weighted neighbors",
        _query_expansion,
        needs_descriptors=True,
    ),
    Method(
        "temporal",
        "conjugate gradients on the regularized Laplacian",
        _temporal,
        steps=20,
        solves=True,
    ),
    Method(
        "truncated",
        "temporal on the query's shortlist, re-normalized",
        _truncated,
        steps=20,
        solves=True,
    ),
    Method(
        "fsr",
        "spectral filtering by the leading eigenvectors",
        _fast_spectral,
        needs_eigenvectors=True,
    ),
    Method(
        "fsrw",
        "fsr, falling back to similarity where it knows little",
        _fast_spectral_weighted,
        needs_eigenvectors=True,
    ),
    Method(
        "hybrid-paper",
        "spectral and temporal filtering together, as the paper writes it",
        _hybrid_paper,
        steps=5,
        solves=True,
        exact=False,
        needs_eigenvectors=True,
    ),
    Method(
        "shybrid",
        "hybrid-paper with sparsified eigenvectors",
        _sparse_hybrid,
        steps=5,
        solves=True,
        exact=False,
        needs_eigenvectors=True,
    ),
    Method(
        "hybrid",
        "conjugate gradients, deflated by any basis; exact",
        _hybrid,
        steps=None,
        solves=True,
    ),
    Method("precomputed", "sum of columns that were diffused beforehand", _precomputed),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _TABLE})
"""The ranking methods by name."""
