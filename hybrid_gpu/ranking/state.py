"""The state of an index: one frozen record of everything that is known of a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hybrid_gpu.backends import Array, Backend, on_own_device, settled
from hybrid_gpu.backends.local_records import LocalProblem
from hybrid_gpu.backends.protocol import Numbering
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.choices import DtypeName
from hybrid_gpu.diffusion.aggregate_basis import AggregateBasis
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.eigen_basis import EigenBasis
from hybrid_gpu.diffusion.filters import PageRank
from hybrid_gpu.diffusion.local import local_problem
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.csr import array_bytes
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.graph.routes import HostEdges
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.keys import Keys

# Users are told of more isolated items than this part of all, and of a largest component with less
# than this part of those that have an edge.
_MANY_ISOLATED, _SMALL_LARGEST = 0.01, 0.5
# From so many items on, and so many for each entry of a row, a local search pays: smaller and
# denser graphs are solved whole in less time (``bench/local_or_hybrid.py``).
_ITEMS_WORTH, _ITEMS_WORTH_OF_ENTRY = 20_000, 400


@dataclass(frozen=True, slots=True)
class Grouping:
    """What the memory order of an index, and its groups, were made for.

    Attributes
    ----------
    items : int
        Items of the index at that time.
    changed : int
        Items that were added or removed since.
    share : float or None
        Groups that were asked for, as a part of those that an index has by default; None if the
        basis is not one of groups, or is the user's own.
    """

    items: int
    changed: int = 0
    share: float | None = None

    @property
    def outgrown(self) -> bool:
        """Whether more than a quarter of the items are others now."""
        return 4 * self.changed > self.items


@dataclass(frozen=True, slots=True)
class Origin:
    """How the graph of an index came about; all None for a graph of the user's own.

    Attributes
    ----------
    neighbors : int or None
        Nearest neighbors of each item, the length of the k-NN lists.
    chosen : bool
        Whether their number was chosen from the data.
    recall : float or None
        The part of the true neighbors that an approximate engine found, measured on a sample when
        the index was built; None for exact neighbors and for lists of the user's own.
    """

    neighbors: int | None = None
    chosen: bool = False
    recall: float | None = None

    def __str__(self) -> str:
        if self.neighbors is None:
            return "own graph"
        text = f"{self.neighbors} neighbors"
        if self.chosen:
            text += " (chosen)"
        return text if self.recall is None else f"{text} at recall {self.recall:.3f}"


OWN_GRAPH = Origin()


@dataclass(frozen=True, slots=True, eq=False)
class IndexState:
    """A database that is ready to be searched.

    Everything here is in one order, the graph's own, in which neighbors lie close together in
    memory: rows, columns and ids of the parts are *places*. Only ``numbering`` knows the user's
    ids, which are translated when they come in and when they go out.

    Attributes
    ----------
    graph : Graph
    numbering : Numbering
        The user's ids of the places, and back.
    descriptors : float array of shape (n, d), or None
        Unit descriptors; None if the index was built without them.
    neighbors : Neighbors or None
        The k-NN lists behind the graph, which ``add`` and ``remove`` need; None if not kept.
    basis : Basis or None
        What the solver deflates.
    columns : Columns or None
        What ``precompute`` stored.
    alpha, gamma : float
        Restart parameter of diffusion, exponent of the similarities.
    backend : Backend
        Where the arrays are and where queries are answered.
    grouping : Grouping
        When ``add`` and ``remove`` shall make groups and memory order anew.
    origin : Origin
        How the graph came about.
    keys : Keys or None
        The user's own names of his ids; None if the ids are all there is.
    n : int
        Number of items.
    dtype : str
        ``"float32"`` or ``"float64"``.
    filter : PageRank
        The filter of a search that names no other.
    local : bool
        Whether short rankings are searched locally, if nobody says otherwise.
    notes : tuple of str
        What a user may want to know of the graph: items without an edge, many components.
    """

    graph: Graph
    numbering: Numbering
    descriptors: Array | None
    neighbors: Neighbors | None
    basis: Basis | None
    columns: Columns | None
    alpha: float
    gamma: float
    backend: Backend
    grouping: Grouping
    origin: Origin = OWN_GRAPH
    keys: Keys | None = None

    # Asked for in every search, by everybody.
    n: int = field(init=False)
    dtype: DtypeName = field(init=False)
    filter: PageRank = field(init=False)
    local: bool = field(init=False)
    notes: tuple[str, ...] = field(init=False)
    _problems: Kept[float, LocalProblem] = field(init=False)
    _edges: Kept[None, HostEdges] = field(init=False)
    _roots: Kept[None, Array] = field(init=False)
    _hub: Kept[None, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.graph.n)
        object.__setattr__(self, "dtype", self.graph.dtype)
        object.__setattr__(self, "filter", PageRank(self.alpha))
        groups = isinstance(self.basis, AggregateBasis) and self.basis.spread is not None
        entries = self.graph.adjacency.data.shape[0] / max(self.n, 1)
        large = self.n >= max(_ITEMS_WORTH, _ITEMS_WORTH_OF_ENTRY * entries)
        local = groups and large and self.backend.searches_locally
        object.__setattr__(self, "local", local)
        object.__setattr__(self, "notes", tuple(_notes(self.graph)))
        # Of this state alone: another one has another graph, order or basis.
        object.__setattr__(self, "_problems", Kept(2))
        object.__setattr__(self, "_edges", Kept(1))
        object.__setattr__(self, "_roots", Kept(1))
        object.__setattr__(self, "_hub", Kept(1))

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes of each part: graph, descriptors, neighbors, basis, columns, keys."""
        numbers = array_bytes(self.numbering.order) + array_bytes(self.numbering.places)
        lists = self.neighbors
        return {
            "graph": self.graph.memory + numbers,
            "descriptors": 0 if self.descriptors is None else array_bytes(self.descriptors),
            "neighbors": 0
            if lists is None
            else array_bytes(lists.ids) + array_bytes(lists.similarities),
            "basis": 0 if self.basis is None else self.basis.memory,
            "columns": 0 if self.columns is None else self.columns.memory,
            "keys": 0 if self.keys is None else self.keys.memory,
        }

    def described(self) -> str:
        """The index in a line: its sizes, its basis, its settings, where it is."""
        basis = "no basis" if self.basis is None else f"{self.basis.rank} {self.basis.kind}"
        size = sum(self.memory.values()) / 1e6
        named = "" if self.keys is None else f" with {self.keys.kind} for keys"
        return (
            f"{self.n} items{named}, {self.origin}, {self.graph.edges} edges, {basis}, "
            f"alpha {self.alpha}, {self.dtype}, {size:.1f} MB on {self.backend.name}"
            + "".join(f"; {note}" for note in self.notes)
        )

    def required_eigenvectors(self) -> EigenBasis:
        """The eigenvectors, or an error that says how to get them."""
        if not isinstance(self.basis, EigenBasis):
            raise ValueError(
                f"this method needs eigenvectors, and the index has "
                f"{'no basis' if self.basis is None else self.basis.kind}. Build it with "
                "basis='eigen', or use method='hybrid' or 'temporal'."
            )
        return self.basis

    def required_descriptors(self, what: str) -> Array:
        """The descriptors, or an error that says what to do without them."""
        if self.descriptors is None:
            raise ValueError(
                f"{what} needs descriptors, and the index was built without them. Pass "
                "descriptors= when building it, or use rerank with the results of your own engine."
            )
        return self.descriptors

    @on_own_device
    def roots(self) -> Array:
        """Roots of the degrees over that of the mean one, (n, 1); 1 for items without an edge."""

        def made() -> Array:
            return settled(lambda: 1 / self.graph.degree_correction(self.backend), self.backend)

        return self._roots.get(None, made)

    @on_own_device
    def hub(self) -> int:
        """The most edges that an item has."""
        return self._hub.get(None, lambda: self.backend.longest_row(self.graph.adjacency))

    @on_own_device
    def local_problem(self, alpha: float) -> LocalProblem:
        """What a local search for an alpha needs; made once and kept."""
        basis = self.required_groups()
        return self._problems.get(
            alpha,
            lambda: local_problem(self.graph, basis, self.numbering.order, alpha, self.backend),
        )

    @on_own_device
    def host_edges(self) -> HostEdges:
        """The edges on the host; moved there once and kept."""
        matrix, to_host = self.graph.adjacency, self.backend.to_numpy

        def moved() -> HostEdges:
            parts = (matrix.data, matrix.indices, matrix.indptr, self.numbering.order)
            return HostEdges(*map(to_host, parts))

        return self._edges.get(None, moved)

    def required_groups(self) -> AggregateBasis:
        """The groups of items, or an error that says how to get them."""
        basis = self.basis
        if not isinstance(basis, AggregateBasis) or basis.spread is None:
            raise ValueError(
                f"method 'local' needs groups of items, and the index has "
                f"{'no basis' if basis is None else basis.kind}. Build it with "
                "basis='aggregate', or use method='hybrid'."
            )
        return basis

    def required_columns(self) -> Columns:
        """The stored columns, or an error that says how to make them."""
        if self.columns is None:
            raise ValueError(
                "method 'precomputed' needs stored columns. Make them with "
                "index = index.precompute(keep=1000)."
            )
        return self.columns

    def required_neighbors(self) -> Neighbors:
        """The k-NN lists, or an error that says how to keep them."""
        if self.neighbors is None:
            raise ValueError(
                "the index has no k-NN lists to bring up to date. Build it with "
                "keep_neighbors=True from descriptors or from lists."
            )
        return self.neighbors


def _notes(graph: Graph) -> Iterator[str]:
    """What stands in the way of diffusion: items that it cannot reach, or not from most others."""
    sizes = np.bincount(graph.components)
    isolated = int(np.count_nonzero(sizes == 1))
    joined, largest = graph.n - isolated, int(sizes.max())
    if isolated > _MANY_ISOLATED * graph.n:
        yield (
            f"{isolated} items ({100 * isolated / graph.n:.0f} %) have no edge: diffusion does not "
            "reach them"
        )
    if largest > 1 and largest < _SMALL_LARGEST * joined:
        yield (
            f"{int(np.count_nonzero(sizes > 1))} components, the largest of {largest} items: "
            "scores do not pass from one to another"
        )
