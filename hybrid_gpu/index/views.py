"""What an index shows of itself: its parts, as users number them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from hybrid_gpu.backends import Array, Backend, on_own_device, settled
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.choices import DtypeName
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.graph.affinity import Graph, renumbered
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.state import IndexState

Part = TypeVar("Part")


class IndexViews:
    """The parts of a state in the order of the user's ids; they fit together as the state's do.

    Arrays are made when they are first asked for, and kept.
    """

    __slots__ = ("_basis", "_columns", "_descriptors", "_graph", "_neighbors", "_state")

    def __init__(self, state: IndexState) -> None:
        self._state = state
        self._graph: Kept[None, Graph] = Kept(1)
        self._basis: Kept[None, Basis] = Kept(1)
        self._descriptors: Kept[None, Array] = Kept(1)
        self._neighbors: Kept[None, Neighbors] = Kept(1)
        self._columns: Kept[None, Columns] = Kept(1)
        state.backend.synchronize()  # whoever made it: it may be searched on any stream

    @property
    def state(self) -> IndexState:
        """All parts in the memory order; for those who extend the library."""
        return self._state

    def __len__(self) -> int:
        return self._state.n

    @property
    def n(self) -> int:
        """Number of items."""
        return self._state.n

    @property
    def alpha(self) -> float:
        """Restart parameter of diffusion."""
        return self._state.alpha

    @property
    def gamma(self) -> float:
        """Exponent of the similarities."""
        return self._state.gamma

    @property
    def backend(self) -> Backend:
        """Where the arrays are and where queries are answered."""
        return self._state.backend

    @property
    def dtype(self) -> DtypeName:
        """``"float32"`` or ``"float64"``."""
        return self._state.dtype

    @property
    @on_own_device
    def graph(self) -> Graph:
        """The graph, with the items in the order of their ids. Made when first asked for."""
        state = self._state
        return self._made(
            self._graph, lambda: renumbered(state.graph, state.numbering.inverse, state.backend)
        )

    @property
    @on_own_device
    def basis(self) -> Basis | None:
        """What the solver deflates, for ``graph``; ``basis.memory`` tells its bytes."""
        basis, back = self._state.basis, self._state.numbering.inverse
        if basis is None:
            return None
        return self._made(self._basis, lambda: basis.renumbered(self.graph, back))

    @property
    @on_own_device
    def descriptors(self) -> Array | None:
        """Unit descriptors (n, d) in the order of the ids; None if it was built without them."""
        state, take = self._state, self._state.backend.xp.take
        if state.descriptors is None:
            return None
        return self._made(
            self._descriptors, lambda: take(state.descriptors, state.numbering.places, axis=0)
        )

    @property
    @on_own_device
    def neighbors(self) -> Neighbors | None:
        """The k-NN lists behind the graph, in the order of the ids; None if they were not kept."""
        state, lists = self._state, self._state.neighbors
        if lists is None:
            return None
        return self._made(
            self._neighbors, lambda: lists.renumbered(state.numbering.inverse, state.backend)
        )

    @property
    @on_own_device
    def columns(self) -> Columns | None:
        """What ``precompute`` stored, in the order of the ids."""
        state, columns = self._state, self._state.columns
        if columns is None:
            return None
        return self._made(
            self._columns, lambda: columns.renumbered(state.numbering.inverse, state.backend)
        )

    @property
    def keys(self) -> HostArray | None:
        """The user's own names (n,) of the items, in the order of the ids; None if there are none.

        Integers, or strings as objects.
        """
        return None if self._state.keys is None else self._state.keys.values.copy()

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes of each part: graph, descriptors, neighbors, basis, columns, keys.

        Without the copies in the order of the ids that were asked for.
        """
        return self._state.memory

    def _made(self, kept: Kept[None, Part], make: Callable[[], Part]) -> Part:
        return kept.get(None, lambda: settled(make, self.backend))
