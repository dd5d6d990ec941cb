"""The ranking methods of the paper and of its baselines, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.basis import Basis
from hybrid_gpu.filters import PageRank
from hybrid_gpu.graph import Graph, csr_from_sorted, normalized, row_numbers, submatrix
from hybrid_gpu.neighbors import unit_rows
from hybrid_gpu.observation import Observation, scatter
from hybrid_gpu.solver import Solution, hybrid_as_in_paper, temporal


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
    basis, sparse_basis : callables
        The eigenvectors of the index, dense or sparsified.
    row_norms : callable that returns a float array of shape (n,)
        Norm of each item's row of the eigenvectors.
    """

    graph: Graph
    descriptors: Array | None
    observation: Observation
    queries: Array | None
    similarities: Callable[[], Array]
    shortlist: Callable[[], Array]
    basis: Callable[[], Basis]
    sparse_basis: Callable[[], Basis]
    row_norms: Callable[[], Array]
    gamma: float
    filter: PageRank
    steps: int
    rtol: float | None
    backend: Backend


@dataclass(frozen=True, slots=True)
class Method:
    """One way to score the items of the database for a batch of queries."""

    name: str
    summary: str
    score: Callable[[Batch], Solution]
    steps: int = 0
    needs_eigenvectors: bool = False
    needs_descriptors: bool = False


def _nearest(batch: Batch) -> Solution:
    return _direct(batch.similarities().T)


def _query_expansion(batch: Batch) -> Solution:
    """Similarity to ``q + sum of weight * neighbor``: the observation is the expansion."""
    xp, backend = batch.backend.xp, batch.backend
    assert batch.descriptors is not None
    ids, weights = batch.observation.ids, batch.observation.weights
    m, q = ids.shape
    # Ids of -1 carry no weight, whichever row is looked up for them.
    weights = xp.where(ids < 0, xp.zeros_like(weights), weights)
    rows = xp.reshape(xp.where(ids < 0, xp.zeros_like(ids), ids), (-1,))
    neighbors = xp.reshape(xp.take(batch.descriptors, rows, axis=0), (m, q, -1))
    expanded = xp.sum(neighbors * weights[:, :, None], axis=1)
    if batch.queries is not None:
        expanded = expanded + batch.queries
    return _direct(xp.matmul(batch.descriptors, unit_rows(expanded, backend).T))


def _temporal(batch: Batch) -> Solution:
    return temporal(
        batch.graph.adjacency,
        batch.observation.dense(batch.backend),
        batch.filter,
        batch.steps,
        batch.rtol,
        batch.backend,
    )


def _truncated(batch: Batch) -> Solution:
    """Temporal filtering on the shortlist of each query: a graph of its own for every one."""
    xp, backend = batch.backend.xp, batch.backend
    shortlists = batch.shortlist()
    observation = batch.observation.dense(backend)
    ids, values, residuals = [], [], []
    steps, converged = 0, True
    for query in range(batch.observation.queries):
        items = xp.unique_values(shortlists[query, :])
        items = items[items >= 0]
        if items.shape[0] == 0:
            items = xp.zeros((1,), dtype=xp.int64, device=backend.device)
        part = submatrix(batch.graph.adjacency, items, backend)
        rows, columns = row_numbers(part, backend), xp.astype(part.indices, xp.int64)
        # Back from normalized weights to affinities, then normalize by what is left of the degrees.
        root = xp.sqrt(xp.take(batch.graph.degrees, items))
        weights = part.data * (xp.take(root, rows) * xp.take(root, columns))
        affinity = backend.csr(weights, part.indices, part.indptr, part.shape)
        ones = xp.ones((part.shape[0], 1), dtype=weights.dtype, device=backend.device)
        degrees = backend.spmm(affinity, ones)[:, 0]
        again = normalized(weights, rows, columns, degrees, xp)
        adjacency = csr_from_sorted(again, rows, columns, part.shape, backend)
        right_side = xp.take(observation[:, query : query + 1], items, axis=0)
        solution = temporal(adjacency, right_side, batch.filter, batch.steps, batch.rtol, backend)
        # A column of the result, as a list that scatter can place.
        ids.append(items)
        values.append(solution.values[:, 0])
        residuals.append(solution.residuals)
        steps, converged = max(steps, solution.steps), converged and solution.converged
    whole = [
        scatter(one[None, :], score[None, :], batch.graph.n, backend)
        for one, score in zip(ids, values, strict=True)
    ]
    return Solution(xp.concat(whole, axis=1), xp.concat(residuals), steps, converged)


def _fast_spectral(batch: Batch) -> Solution:
    """``U_1 h(Lambda_1) U_1^T y``, eq. (spectral) with the leading eigenpairs only."""
    basis = batch.basis()
    gains = batch.filter.transfer(basis.eigenvalues)[:, None]
    coefficients = basis.restrict(batch.observation.dense(batch.backend))
    return _direct(basis.prolong(gains * coefficients))


def _fast_spectral_weighted(batch: Batch) -> Solution:
    """FSR, mixed with the similarity of items that the eigenvectors represent poorly.

    The paper names the heuristic without a formula. Our reading: an item's weight is the norm of
    its row of U_1, which is 1 for an item that lies in their span and 0 for one that they know
    nothing about. Scores are divided by the filter's gain at frequency 0, so that an item on its
    own would score its similarity: both parts are then in the same units.
    """
    xp = batch.backend.xp
    weight = batch.row_norms()[:, None]
    fallback = xp.clip(batch.similarities().T, min=0) ** batch.gamma
    spectral = _fast_spectral(batch).values / batch.filter.transfer(0.0)
    return _direct(weight * spectral + (1 - weight) * fallback)


def _hybrid_paper(batch: Batch) -> Solution:
    return _hybrid(batch, batch.basis())


def _sparse_hybrid(batch: Batch) -> Solution:
    return _hybrid(batch, batch.sparse_basis())


def _hybrid(batch: Batch, basis: Basis) -> Solution:
    return hybrid_as_in_paper(
        batch.graph.adjacency,
        batch.observation.dense(batch.backend),
        basis,
        batch.filter,
        batch.steps,
        batch.rtol,
        batch.backend,
    )


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
    Method("temporal", "conjugate gradients on the regularized Laplacian", _temporal, steps=20),
    Method("truncated", "temporal on the query's shortlist, re-normalized", _truncated, steps=20),
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
        needs_eigenvectors=True,
    ),
    Method(
        "shybrid",
        "hybrid-paper with sparsified eigenvectors",
        _sparse_hybrid,
        steps=5,
        needs_eigenvectors=True,
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _TABLE})
"""The ranking methods by name."""
