"""Every way to an index: from descriptors, k-NN lists, a graph, a folder, or another index."""

from __future__ import annotations

import os
from typing import Any

from hybrid_gpu.backends import Backend, on_device, select_backend
from hybrid_gpu.graph.affinity import Graph, graph_from_affinity, neighbors_from_lists
from hybrid_gpu.graph.neighbors import check_engine
from hybrid_gpu.index.build import (
    BasisChoice,
    Settings,
    check_room,
    optional_units,
    state_from_descriptors,
    state_from_graph,
    state_from_lists,
    with_chosen_basis,
)
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.storage import load_state
from hybrid_gpu.progress import Progress
from hybrid_gpu.validation import check_kind, check_vectors


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
    settings = Settings(alpha, gamma, dtype, keep_neighbors)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, progress)
    check_engine(knn)
    with device.annotate("build"):
        vectors = check_vectors(descriptors, "descriptors", dtype=settings.dtype, backend=device)
        return DiffusionIndex(
            state_from_descriptors(vectors, neighbors, knn, settings, choice, device)
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
    settings = Settings(alpha, gamma, dtype, keep_neighbors)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, progress)
    with device.annotate("build"):
        lists = neighbors_from_lists(
            ids, similarities, metric=metric, dtype=settings.dtype, backend=device
        )
        n, k = lists.ids.shape
        choice.check(n)
        check_room(n, 0, k, device)
        units = optional_units(descriptors, n, settings.dtype, device)
        return DiffusionIndex(state_from_lists(lists, units, settings, choice, device))


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
    settings = Settings(alpha, gamma, dtype)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, progress)
    with device.annotate("build"):
        graph = graph_from_affinity(affinity, dtype=settings.dtype, backend=device)
        choice.check(graph.n)
        units = optional_units(descriptors, graph.n, settings.dtype, device)
        return DiffusionIndex(state_from_graph(graph, units, None, settings, choice, device))


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
    """The same index with another basis; the graph is shared.

    ``basis`` is one of ``build_index``, or a basis that was made for ``index.graph``.
    """
    check_kind(index, "index", DiffusionIndex, "Make one with build_index.")
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, progress)
    choice.check(index.n)
    with index.backend.annotate("basis"):
        return DiffusionIndex(with_chosen_basis(index.state, choice))


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def index_of_graph(graph: Graph, *, seed: int, backend: str | Backend) -> DiffusionIndex:
    """An index of a graph alone, without a basis, at the paper's settings."""
    device = select_backend(backend, like=graph.degrees)
    settings = Settings(0.99, 3.0, graph.dtype)
    choice = BasisChoice("none", seed=seed)
    return DiffusionIndex(state_from_graph(graph, None, None, settings, choice, device))


def load_index(
    path: str | os.PathLike[str], *, verify: bool = True, backend: str | Backend = "auto"
) -> DiffusionIndex:
    """Open an index; no GPU is needed to open one that was built on a GPU.

    Arrays are mapped into memory, not copied. A save to the same folder does not disturb an index
    that is open; but a file that somebody cuts short while it is mapped ends the process.

    Parameters
    ----------
    path
        The folder that ``index.save`` wrote.
    verify
        Compare every array with its checksum, which reads the whole index once. Without it, sizes,
        dtypes and shapes are still compared with the header, and all indices checked, so that a
        damaged index cannot crash the process; but a damaged value can give a wrong answer.
    backend
        Where the index shall live.

    Raises
    ------
    IndexFileError
        If there is no index, or it is damaged, cut short, or of a newer format; names the file.
    """
    return DiffusionIndex(load_state(path, verify, backend))
