"""The parts of an index as users number them: each made when first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hybrid_gpu.backends import Array, on_own_device, settled
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.graph.affinity import Graph, renumbered
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.state import IndexState

Part = TypeVar("Part")


class Views:
    """The parts of a state in the order of the user's ids; they fit together as the state's do."""

    def __init__(self, state: IndexState) -> None:
        self._state, self._back, self.backend = state, state.numbering.inverse, state.backend
        self._graph: Kept[None, Graph] = Kept(1)
        self._basis: Kept[None, Basis] = Kept(1)
        self._descriptors: Kept[None, Array] = Kept(1)
        self._neighbors: Kept[None, Neighbors] = Kept(1)
        self._columns: Kept[None, Columns] = Kept(1)

    @on_own_device
    def graph(self) -> Graph:
        """The graph."""
        state = self._state
        return self._made(self._graph, lambda: renumbered(state.graph, self._back, state.backend))

    @on_own_device
    def basis(self) -> Basis | None:
        """The basis, for this very graph."""
        basis = self._state.basis
        if basis is None:
            return None
        return self._made(self._basis, lambda: basis.renumbered(self.graph(), self._back))

    @on_own_device
    def descriptors(self) -> Array | None:
        """Unit descriptors (n, d)."""
        state, take = self._state, self._state.backend.xp.take
        if state.descriptors is None:
            return None
        return self._made(
            self._descriptors, lambda: take(state.descriptors, state.numbering.places, axis=0)
        )

    @on_own_device
    def neighbors(self) -> Neighbors | None:
        """The k-NN lists."""
        lists = self._state.neighbors
        if lists is None:
            return None
        return self._made(self._neighbors, lambda: lists.renumbered(self._back, self.backend))

    @on_own_device
    def columns(self) -> Columns | None:
        """The stored columns."""
        columns = self._state.columns
        if columns is None:
            return None
        return self._made(self._columns, lambda: columns.renumbered(self._back, self.backend))

    def _made(self, kept: Kept[None, Part], make: Callable[[], Part]) -> Part:
        return kept.get(None, lambda: settled(make, self.backend))
