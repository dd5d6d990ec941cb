"""Every way to an index: from descriptors, k-NN lists, a graph, a folder, or another index."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from numpy.typing import ArrayLike

from hybrid_gpu.backends import Backend, on_device, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.choices import (
    ArrayInput,
    BackendName,
    BasisName,
    DtypeName,
    GraphInput,
    ListInput,
    MetricName,
    NeighborCount,
    PrecisionName,
    SparseInput,
    SpeaksDlpack,
)
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.filters import DEFAULT_ALPHA
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.graph.affinity import Graph, neighbors_from_lists
from hybrid_gpu.graph.neighbor_count import best_first, check_neighbors
from hybrid_gpu.graph.neighbors import check_engine
from hybrid_gpu.graph.vectors import vectors_of
from hybrid_gpu.index.build import (
    BasisChoice,
    Settings,
    counted,
    optional_units,
    state_from_descriptors,
    state_from_graph,
    state_from_lists,
    with_chosen_basis,
    with_units,
)
from hybrid_gpu.index.build_memory import check_room
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.own_graphs import named_graph
from hybrid_gpu.index.storage import load_state
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.ranking.keys import as_keys, optional_keys
from hybrid_gpu.validation import check_kind

BasisInput: TypeAlias = BasisName | Basis | HostArray | SpeaksDlpack | SparseInput
"""What may be deflated: a kind of basis, one that is made, labels or vectors of the user's own."""

PAPER: Mapping[str, Any] = MappingProxyType({"neighbors": 50, "gamma": 3.0, "alpha": 0.99})
"""The paper's settings: ``build_index(descriptors, **PAPER)``."""


def build_index(
    descriptors: ArrayInput,
    *,
    neighbors: NeighborCount = "auto",
    gamma: float = 3.0,
    alpha: float = DEFAULT_ALPHA,
    basis: BasisInput = "auto",
    rank: int | None = None,
    precision: PrecisionName = "float32",
    tolerance: float | None = None,
    sparsity: float | Sparsity = PAPER_SPARSITY,
    knn: str = "auto",
    keep_neighbors: bool = True,
    keep_descriptors: bool = True,
    keys: ArrayLike | None = None,
    dtype: DtypeName = "float32",
    seed: int = 0,
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> DiffusionIndex:
    """Index a database of descriptors.

    Parameters
    ----------
    descriptors : float array of shape (n, d)
        NumPy, CuPy, or anything that speaks DLPack. Rows are scaled to unit length.
    neighbors
        Nearest neighbors of each item; an edge joins two items that list each other. ``"auto"``:
        the smallest number from 15 to 50 that leaves at most 1 % of the items without an edge, and
        no more than the root of n, or 10 where that is smaller; ``print(index)`` tells it. See
        ``docs/choosing.md``, and ``tune`` if there are labels. The paper takes 50, as
        ``build_index(x, **PAPER)`` does.
    gamma
        An edge weighs ``similarity ** gamma``; a warning tells of items whose edges all weigh too
        little beside the largest for the dtype, which exponents of hundreds may do.
    alpha
        Restart parameter of diffusion, in [0, 1): how far from the query's neighbors scores travel;
        0.99 in the paper. ``search`` takes another one for a query set. ``1 - alpha`` is at least
        1e-6 in float32, 1e-13 in float64, whose rounding hides a rarer restart. Within a hundred
        times of that, rounding can keep a query from the accuracy asked for; the report tells.
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
        The fraction of their entries that ``"sparse-eigen"`` drops, or ``hg.Sparsity``, which
        also tells how they are compared.
    knn
        How neighbors are found, see ``nearest_neighbors``.
    keep_neighbors
        Keep the k-NN lists, so that items can be added and removed.
    keep_descriptors
        Keep the descriptors where the index is, so that queries can be descriptors. If False, they
        may be larger than the memory of the GPU, mapped from a file, say: they are read tile by
        tile. The index then ranks by ``rerank`` and ``search_items``.
    keys : sequence of n strings or integers, optional
        The user's own names of the items, each once: a list, an array, a pandas index. The index
        then takes keys wherever it would take ids, and ``ranking.keys`` has those of the results.
    dtype
        ``"float32"`` or ``"float64"``.
    seed
        Of everything that is random.
    progress
        True for a line on stderr, or a function that is called as ``progress(stage, done, total)``.
    backend
        ``"auto"``, ``"numpy"`` or ``"cupy"``.

    Raises
    ------
    ValueError, TypeError
        For input that cannot be indexed; the message says what to change.
    MemoryError
        If the work will not fit into memory, before it is begun; see ``predicted_bytes``.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from hybrid_gpu import datasets
    >>> digits = datasets.digits()
    >>> index = hg.build_index(digits.descriptors, neighbors=10, alpha=0.9)
    >>> index.n, index.basis.kind
    (1797, 'aggregates')
    >>> ranking = index.search(digits.descriptors[:2], k=3)
    >>> digits.labels[ranking.ids].tolist()
    [[0, 0, 0], [1, 1, 1]]

    With the names that the items have elsewhere:

    >>> items = [[5.0, 0], [5, 1], [0, 5], [1, 5]]
    >>> index = hg.build_index(items, neighbors=1, keys=["ant", "bee", "cat", "dog"])
    >>> keys, scores = index.search([[5.0, 0.2]], k=2)
    >>> keys.tolist(), index.search_items(["dog"], k=2).keys.tolist()
    ([['ant', 'bee']], [['dog', 'cat']])
    """
    device = select_backend(backend, like=descriptors)
    settings = Settings(alpha, gamma, dtype, keep_neighbors, keep_descriptors)
    told = as_progress(progress)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, told)
    check_engine(knn, device)
    with device.annotate("build"):
        vectors = vectors_of(descriptors, "descriptors", dtype=settings.dtype, backend=device)
        known = optional_keys(keys, vectors.shape[0])
        state = state_from_descriptors(vectors, neighbors, knn, settings, choice)
        return DiffusionIndex(replace(state, keys=known))


def build_index_from_neighbors(
    ids: ListInput,
    similarities: ListInput | None = None,
    *,
    metric: MetricName = "cosine",
    neighbors: NeighborCount = "auto",
    descriptors: ArrayInput | None = None,
    gamma: float = 3.0,
    alpha: float = DEFAULT_ALPHA,
    basis: BasisInput = "auto",
    rank: int | None = None,
    precision: PrecisionName = "float32",
    tolerance: float | None = None,
    sparsity: float | Sparsity = PAPER_SPARSITY,
    keep_neighbors: bool = True,
    keys: ArrayLike | None = None,
    dtype: DtypeName = "float32",
    seed: int = 0,
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> DiffusionIndex:
    """Index a database by the k-NN lists of the user's own engine.

    Parameters
    ----------
    ids : int array of shape (n, k)
        Neighbors of every item, in order of the items; -1 for 'nothing found'. An item's own id is
        skipped. Keys, if there are ``keys``.
    similarities : float array of shape (n, k)
        Their cosine similarities, as they are.
    metric
        What ``similarities`` are, if not cosines; see ``DiffusionIndex.rerank``, which also tells
        in what other forms lists may come.
    neighbors
        How many of each list to use, the most similar ones; ``"auto"`` as in ``build_index``.
    descriptors : float array of shape (n, d), optional
        Needed for ``search`` with query descriptors; ``rerank`` does without.

    The other parameters are those of ``build_index``.

    Examples
    --------
    Two pairs, each the other's nearest neighbor:

    >>> import hybrid_gpu as hg
    >>> ids, distances = [[1], [0], [3], [2]], [[0.2], [0.2], [0.3], [0.3]]
    >>> index = hg.build_index_from_neighbors(ids, distances, metric="l2", alpha=0.9)
    >>> index.graph
    Graph(4 items, 2 edges, 2 components, 0 isolated)
    """
    device = select_backend(backend, like=ids)
    settings = Settings(alpha, gamma, dtype, keep_neighbors)
    told = as_progress(progress)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, told)
    with device.annotate("build"):
        known = None
        if keys is not None:
            known = as_keys(keys, None)
            places, similarities = known.ids_of_lists(ids, similarities, metric)
            known.check_count(len(places))
            ids = places
        lists = neighbors_from_lists(
            ids, similarities, metric=metric, dtype=settings.dtype, backend=device
        )
        n, k = lists.ids.shape
        choice.check(n)
        count = check_neighbors(neighbors, k)
        check_room(n, 0, k, device, dtype=settings.dtype)
        units = optional_units(descriptors, n, settings.dtype, device)
        if count is None or count < k:
            lists = best_first(lists, device)
        lists, origin = counted(lists, count, device)
        state = state_from_lists(lists, origin, None, settings, choice, device)
        return DiffusionIndex(replace(with_units(state, units), keys=known))


def build_index_from_graph(
    affinity: GraphInput,
    *,
    weights: str | ArrayLike | None = "weight",
    n: int | None = None,
    descriptors: ArrayInput | None = None,
    gamma: float = 3.0,
    alpha: float = DEFAULT_ALPHA,
    basis: BasisInput = "auto",
    rank: int | None = None,
    precision: PrecisionName = "float32",
    tolerance: float | None = None,
    sparsity: float | Sparsity = PAPER_SPARSITY,
    keys: ArrayLike | None = None,
    dtype: DtypeName = "float32",
    seed: int = 0,
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> DiffusionIndex:
    """Index a database by the user's own undirected graph.

    Parameters
    ----------
    affinity : sparse matrix (n, n), graph of networkx or igraph, or integer array of shape (e, 2)
        A symmetric, non-negative matrix, whose diagonal is left out; a graph; or an edge list.
        Edges between the same items add up. Self-loops of a graph count as in its own library: a
        walk of igraph takes them twice, one of networkx once. Weights are raised to no power, and
        normalized here.
    weights
        The edges' weights: the attribute that holds them, where edges have it, 1 elsewhere; or
        numbers (e,), for an edge list or igraph. None: all are 1. A name that no edge has is
        refused, unless it is the default.
    n
        Number of items of an edge list; one more than the largest id if None.
    keys
        Names of the items, in order; an edge list is one of names then. Strings or integers that
        are the nodes of networkx, or the ``name`` of igraph's vertices, are keys without being
        asked for. Other nodes have the ids in which their graph counts them.
    descriptors : float array of shape (n, d), optional
        Needed for ``search`` with query descriptors; ``rerank`` and ``search_items`` do without.
    gamma
        The exponent of the similarities of queries.

    The other parameters are those of ``build_index``. Directed graphs are refused.

    Examples
    --------
    A path of three items, asked for what is near its end:

    >>> import hybrid_gpu as hg
    >>> index = hg.build_index_from_graph([(0, 1), (1, 2)], weights=[1, 2], alpha=0.5)
    >>> index.search_items([2], k=3).ids.tolist()
    [[2, 1, 0]]

    The same by names:

    >>> edges, names = [("a", "b"), ("b", "c")], ["a", "b", "c"]
    >>> index = hg.build_index_from_graph(edges, weights=[1, 2], keys=names, alpha=0.5)
    >>> index.search_items(["c"], k=3).keys.tolist()
    [['c', 'b', 'a']]
    """
    device = select_backend(backend, like=getattr(affinity, "data", None))
    settings = Settings(alpha, gamma, dtype)
    told = as_progress(progress)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, told)
    with device.annotate("build"):
        made = named_graph(
            affinity, weights=weights, n=n, keys=keys, dtype=settings.dtype, backend=device
        )
        choice.check(made.graph.n)
        units = optional_units(descriptors, made.graph.n, settings.dtype, device)
        state = state_from_graph(made.graph, None, None, settings, choice, device)
        return DiffusionIndex(replace(with_units(state, units), keys=made.keys))


def with_basis(
    index: DiffusionIndex,
    basis: BasisInput,
    *,
    rank: int | None = None,
    precision: PrecisionName = "float32",
    tolerance: float | None = None,
    sparsity: float | Sparsity = PAPER_SPARSITY,
    seed: int = 0,
    progress: ProgressOption = None,
) -> DiffusionIndex:
    """The same index with another basis; the graph is shared.

    ``basis`` is one of ``build_index``, or a basis that was made for ``index.graph``.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
    >>> index = hg.build_index(items, neighbors=2, basis="none", alpha=0.9)
    >>> hg.with_basis(index, "eigen", rank=2).basis.kind
    'eigenvectors'
    """
    check_kind(index, "index", DiffusionIndex, "Make one with build_index.")
    told = as_progress(progress)
    choice = BasisChoice(basis, rank, precision, tolerance, sparsity, seed, told)
    choice.check(index.n)
    with index.backend.annotate("basis"):
        return DiffusionIndex(with_chosen_basis(index.state, choice))


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def index_of_graph(graph: Graph, *, seed: int, backend: BackendName | Backend) -> DiffusionIndex:
    """An index of a graph alone, without a basis."""
    device = select_backend(backend, like=graph.degrees)
    settings = Settings(DEFAULT_ALPHA, PAPER["gamma"], graph.dtype)
    choice = BasisChoice("none", seed=seed)
    return DiffusionIndex(state_from_graph(graph, None, None, settings, choice, device))


def load_index(
    path: str | os.PathLike[str], *, verify: bool = True, backend: BackendName | Backend = "auto"
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

    Examples
    --------
    >>> import tempfile
    >>> import hybrid_gpu as hg
    >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index.save(folder)
    ...     hg.load_index(folder).search([[5.0, 0.2]], k=2).ids.tolist()
    [[0, 1]]
    """
    return DiffusionIndex(load_state(path, verify, backend))
