"""The ranking methods of the paper, of its baselines, and of this library, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.descent import system_of
from hybrid_gpu.diffusion.diffuse import diffused
from hybrid_gpu.diffusion.filters import gains
from hybrid_gpu.diffusion.paper_hybrid import gains_at, hybrid_as_in_paper
from hybrid_gpu.diffusion.solution import Solution
from hybrid_gpu.diffusion.sparsity import Sparsity
from hybrid_gpu.graph.affinity import Graph, normalized
from hybrid_gpu.graph.csr import row_numbers, submatrix
from hybrid_gpu.ranking.first_stage import FirstStage
from hybrid_gpu.ranking.local_ranking import check_local, local_ranking
from hybrid_gpu.ranking.query_expansion import expanded
from hybrid_gpu.ranking.request import Method, Request
from hybrid_gpu.ranking.state import IndexState


def _right_side(state: IndexState, first_stage: FirstStage) -> Array:
    """The observations as columns (n, m), the largest weight of each being 1 to 2."""
    # The square of a number below 1e-23 is zero in float32, and weights are powers of
    # similarities: those of 1e-7 already have squares that are.
    places = first_stage.observation.ids
    return state.backend.place(places, first_stage.weights, state.n)


def _direct(values: Array, scale: Array | None = None) -> Solution:
    """Scores that took no solver."""
    return Solution(values, residuals=None, steps=0, converged=True, scale=scale)


def _nearest(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    return _direct(first_stage.similarities().T)


def _query_expansion(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    """Similarity to ``q + sum of weight * neighbor``."""
    xp, backend = state.backend.xp, state.backend
    items = state.required_descriptors("query expansion")
    lists = first_stage.nearest(request.expansion.neighbors)
    queries = first_stage.queries
    if queries is None:  # somebody else's first stage: its results stand for the query
        shape = (lists.ids.shape[0], items.shape[1])
        queries = xp.zeros(shape, dtype=items.dtype, device=backend.device)
    vectors = expanded(queries, items, lists, request.expansion.alpha, backend)
    return _direct(backend.matmul(items, vectors.T))


def _temporal(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    """Conjugate gradients on the whole graph, without a basis: eq. (temporal)."""
    solution = diffused(
        state.graph.adjacency,
        _right_side(state, first_stage),
        None,
        request.filter,
        request.stop,
        state.backend,
        watched=_watched(first_stage, request),
        roots=_roots(state, request),
    )
    return replace(solution, scale=first_stage.scale)


def _hybrid(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    """Conjugate gradients outside the span of the basis, which is solved apart."""
    basis, alpha = state.basis, request.filter.resolvent
    right_side = _right_side(state, first_stage)
    adjacency, backend = state.graph.adjacency, state.backend
    solution = diffused(
        adjacency,
        right_side,
        basis,
        request.filter,
        request.stop,
        backend,
        watched=_watched(first_stage, request),
        roots=_roots(state, request),
    )
    if basis is not None and basis.crosses and alpha is not None:
        # The steps take back what such vectors hand to other components, but not to the last bit.
        reached, zeros = first_stage.reachable(), backend.xp.zeros_like(solution.values)
        values = backend.xp.where(reached, solution.values, zeros)
        system = system_of(adjacency, right_side, alpha, backend, roots=_roots(state, request))
        residuals = system.residuals(values)
        solution = replace(solution, values=values, residuals=residuals, filled=0)
    return replace(solution, scale=first_stage.scale)


def _roots(state: IndexState, request: Request) -> Array | None:
    """What scores are made of the values by, where they are not the same."""
    return state.roots() if request.random_walk else None


def _watched(first_stage: FirstStage, request: Request) -> Array | None:
    """The items whose ranking is asked for, where it is not that of all."""
    if request.permitted is None:
        return None
    return request.permitted & first_stage.reachable()


def _truncated(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    """Temporal filtering on the shortlist of each query: a graph of its own for every one."""
    xp, backend = state.backend.xp, state.backend
    shortlists, right_side = (
        first_stage.shortlist(request.shortlist),
        _right_side(state, first_stage),
    )
    columns, solutions, watched = [], [], _watched(first_stage, request)
    for query in range(first_stage.observation.queries):
        places = xp.unique_values(shortlists[query, :])
        places = places[places >= 0]
        if places.shape[0] == 0:
            places = xp.zeros((1,), dtype=xp.int64, device=backend.device)
        solution = diffused(
            _cut_out(state.graph, places, backend),
            xp.take(right_side[:, query : query + 1], places, axis=0),
            None,
            request.filter,
            request.stop,
            backend,
            watched=None
            if watched is None
            else xp.take(watched[:, query : query + 1], places, axis=0),
        )
        columns.append(backend.place(places[None, :], solution.values.T, state.n))
        solutions.append(solution)
    residuals = [solution.residuals for solution in solutions]
    return Solution(
        values=xp.concat(columns, axis=1),
        residuals=None if residuals[0] is None else xp.concat(residuals),
        steps=max(solution.steps for solution in solutions),
        converged=all(solution.converged for solution in solutions),
        resolved=all(solution.resolved for solution in solutions),
        truncation=solutions[0].truncation,
        scale=first_stage.scale,
    )


def _cut_out(graph: Graph, places: Array, backend: Backend) -> Any:
    """The adjacency of some items among themselves, normalized anew."""
    xp = backend.xp
    part = submatrix(graph.adjacency, places, backend)
    rows, columns = row_numbers(part, backend), xp.astype(part.indices, xp.int64)
    # Back from normalized weights to affinities, then normalize by what is left of the degrees.
    root = xp.sqrt(xp.take(graph.degrees, places))
    weights = part.data * (xp.take(root, rows) * xp.take(root, columns))
    affinity = backend.csr(weights, part.indices, part.indptr, part.shape)
    ones = xp.ones((part.shape[0], 1), dtype=weights.dtype, device=backend.device)
    degrees = backend.spmm(affinity, ones)[:, 0]
    return normalized(affinity, degrees, graph.dtype, backend)


def _fast_spectral(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    """``U_1 h(Lambda_1) U_1^T y``, eq. (spectral) with the leading eigenpairs only."""
    basis = state.required_eigenvectors()
    gain = gains_at(request.filter, basis.eigenvalues, state.backend)
    scores = basis.prolong(gain * basis.restrict(_right_side(state, first_stage)))
    return _direct(scores, first_stage.scale)


def _fast_spectral_weighted(
    state: IndexState, first_stage: FirstStage, request: Request
) -> Solution:
    """FSR, mixed with the similarity of items that the eigenvectors represent poorly.

    The paper names the heuristic without a formula. Our reading: an item's weight is the norm of
    its row of U_1, which is 1 for an item that lies in their span and 0 for one that they know
    nothing about. Scores are divided by the filter's gain at frequency 0, so that an item on its
    own would score its similarity: both parts are then in the same units.
    """
    weight = state.required_eigenvectors().row_norms()
    fallback = _powered_similarities(state, first_stage)
    floor = float(gains(request.filter, 0.0))
    spectral = _fast_spectral(state, first_stage, request).values / (floor if floor > 0 else 1.0)
    mixed = weight * spectral + (1 - weight) * fallback
    return _direct(mixed, first_stage.scale)


def _fast_spectral_on_similarity(
    state: IndexState, first_stage: FirstStage, request: Request
) -> Solution:
    """``U_1 g(Lambda_1) U_1^T y + h(0) s``, with the powered similarities s of all items.

    The paper's theorems with ``h(0) I`` for ``h(W - U_1 Lambda_1 U_1^T)``, whose other eigenvalues
    lie around 0; and what diffusion leaves where it is need not be cut to the few items of y.
    """
    basis, observed = state.required_eigenvectors(), _right_side(state, first_stage)
    floor = float(gains(request.filter, 0.0))
    excess = gains_at(request.filter, basis.eigenvalues, state.backend) - floor
    spectral = basis.prolong(excess * basis.restrict(observed))
    scores = spectral + floor * _powered_similarities(state, first_stage)
    return _direct(scores, first_stage.scale)


def _powered_similarities(state: IndexState, first_stage: FirstStage) -> Array:
    """``(similarity)_+ ^ gamma`` of all items (n, m), in the units of ``_right_side``."""
    xp, similar = state.backend.xp, first_stage.similarities().T
    root = xp.astype(first_stage.scale.T ** (1 / state.gamma), similar.dtype)
    return (xp.clip(similar, min=0) / root) ** state.gamma


def _hybrid_paper(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    return _as_in_paper(state, first_stage, request, state.required_eigenvectors())


def _sparse_hybrid(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    vectors = state.required_eigenvectors().sparsified_for(request.filter, request.sparsity)
    return _as_in_paper(state, first_stage, request, vectors)


def _as_in_paper(
    state: IndexState, first_stage: FirstStage, request: Request, vectors: Basis
) -> Solution:
    values, right_side = state.required_eigenvectors().eigenvalues, _right_side(state, first_stage)
    solution = hybrid_as_in_paper(vectors, values, right_side, request.filter, request.stop)
    return replace(solution, scale=first_stage.scale)


def _precomputed(state: IndexState, first_stage: FirstStage, request: Request) -> Solution:
    """The sum of the stored columns of the observed items: diffusion is linear."""
    scaled = replace(first_stage.observation, weights=first_stage.weights)
    values = state.required_columns().combine(scaled, state.backend)
    return _direct(values, first_stage.scale)


def _check_descriptors(state: IndexState, request: Request) -> None:
    state.required_descriptors(f"method {request.method.name!r}")


def _check_eigenvectors(state: IndexState, request: Request) -> None:
    state.required_eigenvectors()


def _check_columns(state: IndexState, request: Request) -> None:
    columns = state.required_columns()
    if request.filter.resolvent != columns.alpha:
        raise ValueError(
            f"the stored columns are those of PageRank({columns.alpha}); got filter "
            f"{request.filter!r}. Call precompute again, or use another method."
        )


def _graph_bytes(state: IndexState, sparsity: Sparsity) -> int:
    return state.memory["graph"]


def _basis_bytes(state: IndexState, sparsity: Sparsity) -> int:
    return state.memory["basis"]


def _graph_and_basis_bytes(state: IndexState, sparsity: Sparsity) -> int:
    return state.memory["graph"] + state.memory["basis"]


def _sparse_hybrid_bytes(state: IndexState, sparsity: Sparsity) -> int:
    vectors = state.required_eigenvectors().sparsified_for(state.filter, sparsity)
    return state.memory["graph"] + vectors.memory


def _column_bytes(state: IndexState, sparsity: Sparsity) -> int:
    return state.memory["columns"]


_TABLE = (
    Method(
        "nn",
        "similarity order of the descriptors, no diffusion",
        _nearest,
        diffuses=False,
        filters=False,
    ),
    Method(
        "alpha-qe",
        "similarity to the query plus its weighted neighbors",
        _query_expansion,
        diffuses=False,
        filters=False,
        check=_check_descriptors,
    ),
    Method(
        "temporal",
        "conjugate gradients on the regularized Laplacian",
        _temporal,
        steps=20,
        kept_bytes=_graph_bytes,
    ),
    Method(
        "truncated",
        "temporal on the query's shortlist, re-normalized",
        _truncated,
        filters=False,
        steps=20,
        kept_bytes=_graph_bytes,
        uses_shortlist=True,
    ),
    Method(
        "fsr",
        "spectral filtering by the leading eigenvectors",
        _fast_spectral,
        needs_eigenvectors=True,
        check=_check_eigenvectors,
        kept_bytes=_basis_bytes,
    ),
    Method(
        "fsrw",
        "fsr, falling back to similarity where it knows little",
        _fast_spectral_weighted,
        filters=False,
        needs_eigenvectors=True,
        check=_check_eigenvectors,
        kept_bytes=_basis_bytes,
    ),
    Method(
        "fsr-similarity",
        "hybrid-paper with similarity in the place of its steps",
        _fast_spectral_on_similarity,
        filters=False,
        needs_eigenvectors=True,
        check=_check_eigenvectors,
        kept_bytes=_basis_bytes,
    ),
    Method(
        "hybrid-paper",
        "spectral and temporal filtering together, as the paper writes it",
        _hybrid_paper,
        steps=5,
        exact=False,
        needs_eigenvectors=True,
        check=_check_eigenvectors,
        kept_bytes=_graph_and_basis_bytes,
    ),
    Method(
        "shybrid",
        "hybrid-paper with sparsified eigenvectors",
        _sparse_hybrid,
        steps=5,
        exact=False,
        needs_eigenvectors=True,
        check=_check_eigenvectors,
        kept_bytes=_sparse_hybrid_bytes,
        uses_sparsity=True,
    ),
    Method(
        "hybrid",
        "conjugate gradients, deflated by any basis; exact",
        _hybrid,
        steps=None,
        kept_bytes=_graph_and_basis_bytes,
    ),
    Method(
        "local",
        "the few items around a query, with groups for the rest; to a right ranking",
        _hybrid,
        rank=local_ranking,
        steps=None,
        needs_groups=True,
        check=check_local,
        kept_bytes=_graph_and_basis_bytes,
    ),
    Method(
        "precomputed",
        "sum of columns that were diffused beforehand",
        _precomputed,
        needs_columns=True,
        check=_check_columns,
        kept_bytes=_column_bytes,
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _TABLE})
"""The ranking methods by name."""
