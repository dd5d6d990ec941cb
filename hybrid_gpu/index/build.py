"""Building an index: from descriptors, from k-NN lists, or from an affinity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.diffusion.basis import (
    PRECISIONS,
    EigenBasis,
    GalerkinBasis,
    aggregate_basis,
    eigen_basis,
    given_basis,
    sparse_eigen_basis,
)
from hybrid_gpu.diffusion.filters import PageRank
from hybrid_gpu.diffusion.solver import check_alpha_resolved
from hybrid_gpu.diffusion.spectrum import leading_eigenpairs
from hybrid_gpu.graph.affinity import (
    Graph,
    Layout,
    arranged,
    graph_from_affinity,
    largest_component,
    neighbors_from_lists,
    reciprocal_graph,
)
from hybrid_gpu.graph.aggregation import Aggregation, aggregate
from hybrid_gpu.graph.neighbors import Neighbors, nearest_neighbors, unit_rows
from hybrid_gpu.index.diffusion_index import DiffusionIndex, Grouping
from hybrid_gpu.progress import Progress
from hybrid_gpu.validation import (
    check_choice,
    check_count,
    check_dtype,
    check_flag,
    check_kind,
    check_positive,
    check_sparsity,
    check_vectors,
    shown,
)

BASES = ("auto", "aggregate", "eigen", "sparse-eigen", "none")

_DEFAULT_EIGENVECTORS = 100
_FEWEST_PER_GROUP = 8
# What building takes at its peak: measured on 12,000 to 200,000 items with 10 to 50 neighbors,
# most where every edge is mutual.
_BYTES_PER_NEIGHBOR, _BYTES_PER_DIMENSION = 125, 12


def build_index(
    descriptors: Any,
    *,
    neighbors: int = 50,
    gamma: float = 3.0,
    alpha: float = 0.99,
    basis: Any = "auto",
    rank: int | None = None,
    precision: str = "float32",
    tolerance: float | None = None,
    sparsity: float = 0.99,
    knn: str = "auto",
    keep_neighbors: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """Index a database of descriptors.

    Parameters
    ----------
    descriptors : float array of shape (n, d)
        NumPy, CuPy, or anything that speaks DLPack. Rows are scaled to unit length.
    neighbors
        Nearest neighbors of each item; an edge joins two items that list each other.
    gamma
        An edge weighs ``similarity ** gamma``; a warning tells of items whose edges all weigh too
        little beside the largest for the dtype, which exponents of hundreds may do.
    alpha
        Restart parameter of diffusion, in [0, 1); ``1 - alpha`` at least 1e-6 in float32, 1e-13 in
        float64, whose rounding hides a rarer restart. Within a hundred times of that, rounding can
        keep a query from the accuracy asked for; the report tells.
    basis
        What the solver deflates. ``"aggregate"``: groups of items, cheap to make and to keep.
        ``"eigen"``: leading eigenvectors, which the methods of the paper need. ``"sparse-eigen"``:
        the largest entries of them. ``"none"``. ``"auto"`` is ``"aggregate"``. Or the user's own:
        labels (n,), such as the cells of an inverted file, or vectors (n, r), dense or sparse.
    rank
        Groups or eigenvectors to keep; None: as many groups as keep a step about as cheap as one
        without them (the root of twice the graph's entries), or 100 eigenvectors.
    precision
        How eigenvectors are kept: ``"float32"`` (in full), ``"float16"`` or ``"int8"``.
    tolerance
        The largest residual of an eigenpair; None: 1e-3 in float32, 1e-8 in float64.
    sparsity
        The fraction of their entries that ``"sparse-eigen"`` drops.
    knn
        How neighbors are found, see ``nearest_neighbors``.
    keep_neighbors
        Keep the k-NN lists, so that items can be added and removed.
    dtype
        ``"float32"`` or ``"float64"``.
    seed
        Of everything that is random.
    progress
        Called as ``progress(stage, done, total)``.
    backend
        ``"auto"``, ``"numpy"`` or ``"cupy"``.

    Raises
    ------
    ValueError, TypeError
        For input that cannot be indexed; the message says what to change.
    """
    device = select_backend(backend, like=descriptors)
    dtype = check_dtype(dtype)
    with device.annotate("build"):
        vectors = check_vectors(descriptors, "descriptors", dtype=dtype, backend=device)
        _check_diffusion(alpha, gamma, dtype)
        _check_settings(basis, precision, tolerance, sparsity, vectors.shape[0])
        keep_neighbors = check_flag(keep_neighbors, "keep_neighbors")
        if vectors.shape[0] < 2:
            raise ValueError("descriptors must have at least two items to be neighbors; got one.")
        neighbors = check_count(neighbors, "neighbors", high=vectors.shape[0] - 1)
        _check_memory(vectors.shape[0], vectors.shape[1], neighbors, device)
        units = unit_rows(vectors, device)
        with device.annotate("knn"):
            found = nearest_neighbors(
                units, k=neighbors, knn=knn, dtype=dtype, progress=progress, backend=device
            )
        index = _index(
            _reciprocal(found, gamma, dtype, device),
            units,
            compact(found, device) if keep_neighbors else None,
            alpha,
            gamma,
            seed,
            device,
        )
        return with_basis(
            index,
            basis,
            rank=rank,
            precision=precision,
            tolerance=tolerance,
            sparsity=sparsity,
            seed=seed,
            progress=progress,
        )


def build_index_from_neighbors(
    ids: Any,
    similarities: Any,
    *,
    metric: str = "cosine",
    descriptors: Any = None,
    gamma: float = 3.0,
    alpha: float = 0.99,
    basis: Any = "auto",
    rank: int | None = None,
    precision: str = "float32",
    tolerance: float | None = None,
    sparsity: float = 0.99,
    keep_neighbors: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """Index a database by the k-NN lists of the user's own engine.

    Parameters
    ----------
    ids : int array of shape (n, k)
        Neighbors of every item, in order of the items; -1 for 'nothing found'. An item's own id is
        skipped.
    similarities : float array of shape (n, k)
        Their cosine similarities, as they are.
    metric
        What ``similarities`` are, if not cosines; see ``DiffusionIndex.rerank``.
    descriptors : float array of shape (n, d), optional
        Needed for ``search`` with query descriptors; ``rerank`` does without.

    The other parameters are those of ``build_index``.
    """
    device = select_backend(backend, like=ids)
    dtype = check_dtype(dtype)
    with device.annotate("build"):
        found = neighbors_from_lists(ids, similarities, metric=metric, dtype=dtype, backend=device)
        n, k = found.ids.shape
        _check_diffusion(alpha, gamma, dtype)
        _check_settings(basis, precision, tolerance, sparsity, n)
        keep_neighbors = check_flag(keep_neighbors, "keep_neighbors")
        _check_memory(n, 0, k, device)
        index = _index(
            _reciprocal(found, gamma, dtype, device),
            _optional_units(descriptors, n, dtype, device),
            compact(found, device) if keep_neighbors else None,
            alpha,
            gamma,
            seed,
            device,
        )
        return with_basis(
            index,
            basis,
            rank=rank,
            precision=precision,
            tolerance=tolerance,
            sparsity=sparsity,
            seed=seed,
            progress=progress,
        )


def build_index_from_graph(
    affinity: Any,
    *,
    descriptors: Any = None,
    gamma: float = 3.0,
    alpha: float = 0.99,
    basis: Any = "auto",
    rank: int | None = None,
    precision: str = "float32",
    tolerance: float | None = None,
    sparsity: float = 0.99,
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """Index a database by the user's own affinity matrix.

    Parameters
    ----------
    affinity : sparse matrix of shape (n, n)
        Symmetric and non-negative. Its diagonal is left out; the other entries are the weights of
        edges, raised to no power, and are normalized here.
    descriptors : float array of shape (n, d), optional
        Needed for ``search`` with query descriptors; ``rerank`` does without.
    gamma
        The exponent of the similarities of queries.

    The other parameters are those of ``build_index``.
    """
    device = select_backend(backend, like=getattr(affinity, "data", None))
    dtype = check_dtype(dtype)
    with device.annotate("build"):
        graph = graph_from_affinity(affinity, dtype=dtype, backend=device)
        _check_diffusion(alpha, gamma, dtype)
        _check_settings(basis, precision, tolerance, sparsity, graph.n)
        units = _optional_units(descriptors, graph.n, dtype, device)
        index = _index(graph, units, None, alpha, gamma, seed, device)
        return with_basis(
            index,
            basis,
            rank=rank,
            precision=precision,
            tolerance=tolerance,
            sparsity=sparsity,
            seed=seed,
            progress=progress,
        )


def with_basis(
    index: DiffusionIndex,
    basis: Any,
    *,
    rank: int | None = None,
    precision: str = "float32",
    tolerance: float | None = None,
    sparsity: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> DiffusionIndex:
    """The same index with another basis; the graph is shared. See ``build_index``."""
    check_kind(index, "index", DiffusionIndex, "Make one with build_index.")
    _check_settings(basis, precision, tolerance, sparsity, index.n)
    graph, device = index.layout.graph, index.backend
    grouping = Grouping(index.n)
    with device.annotate("basis"):
        if isinstance(basis, str):
            chosen = _made(
                graph, basis, rank, precision, tolerance, sparsity, seed, progress, device
            )
            if basis in ("auto", "aggregate"):
                share = 1.0 if rank is None else rank / default_groups(graph)
                grouping = replace(grouping, share=share)
        else:
            chosen = _given(index.layout, basis, device)
    return replace(index, basis=chosen, grouping=grouping, _sparse={})


def _made(
    graph: Graph,
    basis: str,
    rank: int | None,
    precision: str,
    tolerance: float | None,
    sparsity: float,
    seed: int,
    progress: Progress | None,
    device: Backend,
) -> EigenBasis | GalerkinBasis | None:
    """A basis by its name."""
    if basis in ("auto", "aggregate"):
        count = default_groups(graph) if rank is None else check_count(rank, "rank", high=graph.n)
        groups = aggregate(graph, groups=count, seed=seed, progress=progress, backend=device)
        return aggregate_basis(graph, groups, backend=device)
    if basis in ("eigen", "sparse-eigen"):
        if rank is None:
            rank = min(_DEFAULT_EIGENVECTORS, largest_component(graph).size)
        spectrum = leading_eigenpairs(
            graph, rank=rank, tolerance=tolerance, seed=seed, progress=progress, backend=device
        )
        if basis == "eigen":
            return eigen_basis(spectrum, graph, precision=precision, backend=device)
        return sparse_eigen_basis(spectrum.eigenvectors, graph, sparsity=sparsity, backend=device)
    return None


def index_of_graph(
    graph: Graph, *, alpha: float = 0.99, gamma: float = 3.0, seed: int = 0, backend: Backend
) -> DiffusionIndex:
    """An index of a graph alone, without a basis."""
    return _index(graph, None, None, alpha, gamma, seed, backend)


def default_groups(graph: Graph) -> int:
    """How many aggregates pay: the coarse solve shall cost about as much as a product with W."""
    entries = int(graph.adjacency.data.shape[0])
    return max(1, min(graph.n // _FEWEST_PER_GROUP, math.isqrt(2 * entries)))


def compact(neighbors: Neighbors, backend: Backend) -> Neighbors:
    """Lists to keep: of our own, whatever the caller does with his, and with ids of 32 bits."""
    xp = backend.xp
    ids = xp.astype(neighbors.ids, xp.int32)
    return Neighbors(ids=ids, similarities=xp.asarray(neighbors.similarities, copy=True))


def _index(
    graph: Graph,
    units: Array | None,
    neighbors: Neighbors | None,
    alpha: float,
    gamma: float,
    seed: int,
    backend: Backend,
) -> DiffusionIndex:
    """An index without a basis, its graph in the order of the aggregation tree."""
    tree: Aggregation = aggregate(graph, groups=default_groups(graph), seed=seed, backend=backend)
    return DiffusionIndex(
        layout=arranged(graph, tree.order, backend),
        descriptors=units,
        neighbors=neighbors,
        basis=None,
        columns=None,
        alpha=float(alpha),
        gamma=float(gamma),
        backend=backend,
        grouping=Grouping(graph.n),
    )


def _reciprocal(neighbors: Neighbors, gamma: float, dtype: str, backend: Backend) -> Graph:
    with backend.annotate("graph"):
        return reciprocal_graph(neighbors, gamma=gamma, dtype=dtype, backend=backend)


def _given(layout: Layout, basis: Any, backend: Backend) -> GalerkinBasis:
    """The user's own basis, its rows put into the graph's own order."""
    order = backend.to_numpy(layout.order)
    if hasattr(basis, "tocsr"):
        return given_basis(layout.graph, basis.tocsr()[order], backend=backend)
    values = basis if isinstance(basis, np.ndarray) else backend.to_numpy(backend.asarray(basis))
    if values.ndim == 1:
        return aggregate_basis(layout.graph, values[order], backend=backend)
    return given_basis(layout.graph, values[order], backend=backend)


def _check_diffusion(alpha: Any, gamma: Any, dtype: str) -> None:
    check_alpha_resolved(PageRank(alpha), dtype)
    check_positive(gamma, "gamma")


def _check_settings(basis: Any, precision: Any, tolerance: Any, sparsity: Any, n: int) -> None:
    check_choice(precision, "precision", PRECISIONS)
    if tolerance is not None:
        check_positive(tolerance, "tolerance")
    check_sparsity(sparsity)
    if isinstance(basis, str):
        check_choice(basis, "basis", BASES)
        return
    shape = tuple(getattr(basis, "shape", ()))
    if len(shape) not in (1, 2) or shape[0] != n:
        raise ValueError(
            f"basis must be one of {', '.join(BASES)}, labels of shape ({n},) or vectors of shape "
            f"({n}, r); got {shown(basis)}. Make an array of a list with np.asarray(basis)."
        )


def _check_memory(n: int, d: int, neighbors: int, backend: Backend) -> None:
    """Refuse what cannot fit: in a container, the system would end the process without a word."""
    needed = n * (_BYTES_PER_NEIGHBOR * neighbors + _BYTES_PER_DIMENSION * d)
    available = backend.available_bytes()
    if needed > available:
        raise MemoryError(
            f"to build an index of {n} items with {neighbors} neighbors each takes about "
            f"{needed / 1e6:.0f} MB more memory; {available / 1e6:.0f} MB are available on "
            f"{backend.name}. Take fewer neighbors, or allow the process more memory."
        )


def _optional_units(descriptors: Any, n: int, dtype: str, backend: Backend) -> Array | None:
    if descriptors is None:
        return None
    vectors = check_vectors(descriptors, "descriptors", dtype=dtype, backend=backend)
    if vectors.shape[0] != n:
        raise ValueError(
            f"descriptors must have one row for each of the {n} items; got {vectors.shape[0]}."
        )
    return unit_rows(vectors, backend)
