"""Building the state of an index: graph, memory order, basis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.choices import DtypeName, PrecisionName
from hybrid_gpu.diffusion.aggregate_basis import aggregate_basis
from hybrid_gpu.diffusion.basis import Basis, host64
from hybrid_gpu.diffusion.eigen_basis import PRECISIONS, eigen_basis
from hybrid_gpu.diffusion.filters import PageRank
from hybrid_gpu.diffusion.galerkin_basis import given_basis, sparse_eigen_basis
from hybrid_gpu.diffusion.solution import check_alpha_resolved
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.diffusion.spectrum import leading_eigenpairs
from hybrid_gpu.graph.affinity import (
    Graph,
    largest_component,
    numbering_of,
    reciprocal_graph,
    renumbered,
)
from hybrid_gpu.graph.aggregation import Aggregation, aggregate
from hybrid_gpu.graph.csr import same_matrix
from hybrid_gpu.graph.neighbor_count import (
    check_neighbors,
    chosen_count,
    measured_recall,
    widest_choice,
)
from hybrid_gpu.graph.neighbors import (
    Neighbors,
    is_approximate,
    neighbors_of_units,
    streamed_neighbors,
    units_for,
)
from hybrid_gpu.graph.vectors import Vectors, put_in_order, vectors_of
from hybrid_gpu.index.build_memory import check_room, check_room_for_groups, groups_for
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking.state import OWN_GRAPH, Grouping, IndexState, Origin
from hybrid_gpu.validation import (
    check_choice,
    check_count,
    check_dtype,
    check_flag,
    check_positive,
    shown,
)

BASES = ("auto", "aggregate", "eigen", "sparse-eigen", "none")

_GROUPED = ("auto", "aggregate")
_DEFAULT_EIGENVECTORS = 100


@dataclass(frozen=True, slots=True, eq=False)
class BasisChoice:
    """The basis that is asked for; see ``build_index`` for its parts.

    ``sparsity`` is a ``Sparsity`` once the choice is made. ``share`` stands for a rank: so many
    times the groups that an index has by default.
    """

    basis: Any = "auto"
    rank: int | None = None
    precision: PrecisionName = "float32"
    tolerance: float | None = None
    sparsity: Any = PAPER_SPARSITY
    seed: int = 0
    progress: Progress | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.sparsity, Sparsity):
            object.__setattr__(self, "sparsity", Sparsity(self.sparsity))

    def check(self, n: int) -> None:
        """Refuse what cannot be a basis of n items."""
        check_choice(self.precision, "precision", PRECISIONS)
        if self.tolerance is not None:
            check_positive(self.tolerance, "tolerance")
        if isinstance(self.basis, str):
            check_choice(self.basis, "basis", BASES)
            return
        if hasattr(self.basis, "coarse_inverse"):
            return
        shape = tuple(getattr(self.basis, "shape", ()))
        if len(shape) not in (1, 2) or shape[0] != n:
            raise ValueError(
                f"basis must be one of {', '.join(BASES)}, labels of shape ({n},), vectors of "
                f"shape ({n}, r), or a basis of index.graph; got {shown(self.basis)}. Make an "
                "array of a list with np.asarray(basis)."
            )

    @property
    def grouped(self) -> bool:
        """Whether it is groups of items, made here."""
        return isinstance(self.basis, str) and self.basis in _GROUPED

    def groups(self, graph: Graph) -> int:
        """How many groups the aggregation shall make, for the order of the items at least."""
        if self.rank is None or not self.grouped:
            return max(1, min(graph.n, round(self.share * default_groups(graph))))
        return check_count(self.rank, "rank", high=graph.n)


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """What an index is built with, beside its data and its basis; checked when it is made."""

    alpha: float
    gamma: float
    dtype: DtypeName
    keep_neighbors: bool = False
    keep_descriptors: bool = True

    def __post_init__(self) -> None:
        alpha = PageRank(self.alpha)
        object.__setattr__(self, "dtype", check_dtype(self.dtype))
        object.__setattr__(self, "alpha", alpha.alpha)
        object.__setattr__(self, "gamma", check_positive(self.gamma, "gamma"))
        check_alpha_resolved(alpha, self.dtype)
        check_flag(self.keep_neighbors, "keep_neighbors")
        check_flag(self.keep_descriptors, "keep_descriptors")


def state_from_descriptors(
    vectors: Vectors,
    neighbors: Any,
    knn: str,
    settings: Settings,
    choice: BasisChoice,
) -> IndexState:
    """The state of an index of descriptors (n, d)."""
    backend, (n, d) = vectors.backend, vectors.shape
    choice.check(n)
    if n < 2:
        raise ValueError("descriptors must have at least two items to be neighbors; got one.")
    count = check_neighbors(neighbors, n - 1)
    # One search serves the choice: the lists are cut when it is made.
    width = widest_choice(n) if count is None else count
    keep = settings.keep_descriptors
    check_room(n, d if keep else 0, width, backend, dtype=settings.dtype)
    units = vectors.units() if keep else units_for(knn, vectors)
    with backend.annotate("knn"):
        if units is None:
            lists = streamed_neighbors(vectors, width, progress=choice.progress)
        else:
            lists = neighbors_of_units(
                units, None, width, knn=knn, progress=choice.progress, backend=backend
            )
        lists, origin = counted(lists, count, backend)
        if is_approximate(knn):
            origin = replace(origin, recall=measured_recall(lists, units, knn, backend))
        lists = compact(lists, backend)  # the wide ones are given back before the graph is made
    if not keep:
        units = None
    state = state_from_lists(lists, origin, None, settings, choice, backend, own=True)
    return with_units(state, units)


def with_units(state: IndexState, units: Array | None) -> IndexState:
    """The index with unit descriptors, numbered by the user's ids, that nobody else has."""
    if units is None:
        return state
    order = state.numbering.order
    return replace(state, descriptors=put_in_order(units, order, state.backend))


def counted(lists: Neighbors, count: int | None, backend: Backend) -> tuple[Neighbors, Origin]:
    """The lists with so many neighbors, or with as many as suit the data if it is None."""
    chosen = count is None
    if count is None:
        with backend.annotate("count"):
            count = chosen_count(lists, backend)
    return lists.cut(count), Origin(count, chosen)


def state_from_lists(
    lists: Neighbors,
    origin: Origin,
    units: Array | None,
    settings: Settings,
    choice: BasisChoice,
    backend: Backend,
    *,
    own: bool = False,
) -> IndexState:
    """The state of an index of checked k-NN lists (n, k); its own are kept without a copy."""
    with backend.annotate("graph"):
        graph = reciprocal_graph(lists, gamma=settings.gamma, dtype=settings.dtype, backend=backend)
    check_room_for_groups(graph, backend)
    kept = (lists if own else compact(lists, backend)) if settings.keep_neighbors else None
    return state_from_graph(graph, units, kept, settings, choice, backend, origin=origin)


def state_from_graph(
    graph: Graph,
    units: Array | None,
    lists: Neighbors | None,
    settings: Settings,
    choice: BasisChoice,
    backend: Backend,
    *,
    origin: Origin = OWN_GRAPH,
) -> IndexState:
    """The state of an index of a graph; all of its parts come numbered by the user's ids."""
    xp = backend.xp
    # One tree serves both: the order in which its leaves lie in memory, and the groups.
    tree = aggregate(
        graph,
        groups=choice.groups(graph),
        seed=choice.seed,
        progress=choice.progress,
        backend=backend,
    )
    numbering = numbering_of(tree.order, backend)
    state = IndexState(
        graph=renumbered(graph, numbering, backend),
        numbering=numbering,
        descriptors=None if units is None else xp.take(units, numbering.order, axis=0),
        neighbors=None if lists is None else lists.renumbered(numbering, backend),
        basis=None,
        columns=None,
        alpha=settings.alpha,
        gamma=settings.gamma,
        backend=backend,
        grouping=Grouping(graph.n),
        origin=origin,
    )
    return with_chosen_basis(state, choice, labels=tree.labels[tree.order])


def with_chosen_basis(state: IndexState, choice: BasisChoice, *, labels: Any = None) -> IndexState:
    """The same index with another basis, ready to be searched with it.

    ``labels`` (n,) are groups of the size that is asked for, if there are any already.
    """
    grouping = Grouping(state.n)
    with state.backend.annotate("basis"):
        if choice.grouped:
            share = choice.share
            if choice.rank is not None:
                share = choice.rank / default_groups(state.graph)
            grouping = replace(grouping, share=share)
            basis: Basis | None = _aggregates(state, choice, labels)
        elif isinstance(choice.basis, str):
            basis = _eigenvectors(state, choice)
        else:
            basis = _given(state, choice.basis)
        if basis is not None:
            # The inverse of its coarse system: the first search shall not have to wait for it.
            basis.coarse_inverse(state.alpha)
    return replace(state, basis=basis, grouping=grouping)


def default_groups(graph: Graph) -> int:
    """How many aggregates pay: the coarse solve shall cost about as much as a product with W."""
    return groups_for(graph.n, int(graph.adjacency.data.shape[0]))


def compact(neighbors: Neighbors, backend: Backend) -> Neighbors:
    """Lists to keep: of our own, whatever the caller does with his, and with ids of 32 bits."""
    xp = backend.xp
    ids = xp.astype(neighbors.ids, xp.int32)
    return Neighbors(ids=ids, similarities=xp.asarray(neighbors.similarities, copy=True))


def optional_units(descriptors: Any, n: int, dtype: str, backend: Backend) -> Array | None:
    """Unit descriptors of n items, if there are any."""
    if descriptors is None:
        return None
    vectors = vectors_of(descriptors, "descriptors", dtype=dtype, backend=backend)
    if vectors.shape[0] != n:
        raise ValueError(
            f"descriptors must have one row for each of the {n} items; got {vectors.shape[0]}."
        )
    return vectors.units()


def _aggregates(state: IndexState, choice: BasisChoice, labels: Any) -> Basis:
    """Groups of items as a basis; made now if there are no labels yet."""
    graph, backend = state.graph, state.backend
    groups: Aggregation | Any = labels
    if groups is None:
        groups = aggregate(
            graph,
            groups=choice.groups(graph),
            seed=choice.seed,
            progress=choice.progress,
            backend=backend,
        )
    return aggregate_basis(graph, groups, backend=backend)


def _eigenvectors(state: IndexState, choice: BasisChoice) -> Basis | None:
    """The eigenvectors that are asked for, whole or sparse; None if no basis is."""
    graph, backend = state.graph, state.backend
    if choice.basis == "none":
        return None
    rank = choice.rank
    if rank is None:
        rank = min(_DEFAULT_EIGENVECTORS, largest_component(graph).size)
    spectrum = leading_eigenpairs(
        graph,
        rank=rank,
        tolerance=choice.tolerance,
        order=np.arange(graph.n),  # it lies in memory as it should already
        seed=choice.seed,
        progress=choice.progress,
        backend=backend,
    )
    if choice.basis == "eigen":
        return eigen_basis(spectrum, graph, precision=choice.precision, backend=backend)
    sparsity: Sparsity = choice.sparsity
    return sparse_eigen_basis(
        spectrum.eigenvectors,
        graph,
        sparsity=sparsity.fraction,
        weights=sparsity.weights(host64(spectrum.eigenvalues, backend), state.filter),
        backend=backend,
    )


def _given(state: IndexState, basis: Any) -> Basis:
    """The user's own basis, its rows put into the graph's own order."""
    graph, backend, order = state.graph, state.backend, state.numbering.order
    if hasattr(basis, "coarse_inverse"):
        user_graph = renumbered(graph, state.numbering.inverse, backend)
        if not same_matrix(basis.adjacency, user_graph.adjacency, backend):
            raise ValueError(
                "basis must be one of this index's graph; got one of another graph. Make it with "
                "index.graph."
            )
        made: Basis = basis.renumbered(graph, state.numbering)
        return made
    host_order = backend.to_numpy(order)
    if hasattr(basis, "tocsr"):
        return given_basis(graph, basis.tocsr()[host_order], backend=backend)
    values = basis if isinstance(basis, np.ndarray) else backend.to_numpy(backend.asarray(basis))
    if values.ndim == 1:
        return aggregate_basis(graph, values[host_order], backend=backend)
    return given_basis(graph, values[host_order], backend=backend)
