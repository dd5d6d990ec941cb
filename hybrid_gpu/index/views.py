"""The parts of an index as users number them: each made when first asked for, and kept."""

from __future__ import annotations

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.graph.affinity import Graph, renumbered
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.state import IndexState


class Views:
    """The parts of a state in the order of the user's ids; they fit together as the state's do."""

    def __init__(self, state: IndexState) -> None:
        self._state, self._back = state, state.numbering.inverse
        self._graph: Kept[None, Graph] = Kept(1)
        self._basis: Kept[None, Basis] = Kept(1)
        self._descriptors: Kept[None, Array] = Kept(1)
        self._neighbors: Kept[None, Neighbors] = Kept(1)
        self._columns: Kept[None, Columns] = Kept(1)

    def graph(self) -> Graph:
        """The graph."""
        state = self._state
        return self._graph.get(None, lambda: renumbered(state.graph, self._back, state.backend))

    def basis(self) -> Basis | None:
        """The basis, for this very graph."""
        basis = self._state.basis
        if basis is None:
            return None
        return self._basis.get(None, lambda: basis.renumbered(self.graph(), self._back))

    def descriptors(self) -> Array | None:
        """Unit descriptors (n, d)."""
        state, take = self._state, self._state.backend.xp.take
        if state.descriptors is None:
            return None
        return self._descriptors.get(
            None, lambda: take(state.descriptors, state.numbering.places, axis=0)
        )

    def neighbors(self) -> Neighbors | None:
        """The k-NN lists."""
        lists = self._state.neighbors
        if lists is None:
            return None
        return self._neighbors.get(None, lambda: lists.renumbered(self._back, self._state.backend))

    def columns(self) -> Columns | None:
        """The stored columns."""
        columns = self._state.columns
        if columns is None:
            return None
        return self._columns.get(None, lambda: columns.renumbered(self._back, self._state.backend))
