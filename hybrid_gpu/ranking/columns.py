"""Columns of the diffusion operator, stored: what each item on its own would score every other."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_gpu.backends import Array, Backend, on_own_device
from hybrid_gpu.backends.protocol import Numbering
from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.graph.csr import array_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The best entries of ``h(W) e_j`` for every item j.

    Attributes
    ----------
    ids : int32 array of shape (n, keep)
        Items by descending score; -1 where diffusion reached no more.
    scores : float array of shape (n, keep)
        Their scores.
    alpha : float
        The restart parameter that they were computed with.
    """

    ids: Array
    scores: Array
    alpha: float

    @property
    def keep(self) -> int:
        """Entries per column."""
        return int(self.ids.shape[1])

    @property
    def memory(self) -> int:
        """Bytes."""
        return array_bytes(self.ids) + array_bytes(self.scores)

    @on_own_device
    def combine(self, observation: Observation, backend: Backend) -> Array:
        """Scores (n, m) of observations: each observed item adds its column, times its weight."""
        xp = backend.xp
        m, q = observation.ids.shape
        known = observation.ids >= 0
        rows = xp.reshape(xp.where(known, observation.ids, xp.zeros_like(observation.ids)), (-1,))
        weights = xp.where(known, observation.weights, xp.zeros_like(observation.weights))
        shape = (m, q, self.keep)
        ids = xp.reshape(xp.astype(xp.take(self.ids, rows, axis=0), xp.int64), shape)
        scores = xp.reshape(xp.take(self.scores, rows, axis=0), shape) * weights[:, :, None]
        # Columns of a file that was opened without verify are not looked at before.
        ids = xp.where(ids < observation.n, ids, -xp.ones_like(ids))
        flat = (m, q * self.keep)
        return backend.place(xp.reshape(ids, flat), xp.reshape(scores, flat), observation.n)

    @on_own_device
    def renumbered(self, numbering: Numbering, backend: Backend) -> Columns:
        """The columns with the item ``numbering.order[p]`` at place p."""
        xp, n = backend.xp, self.ids.shape[0]
        # Columns of a file that was opened without verify are not looked at before.
        known = xp.where(self.ids < n, self.ids, -xp.ones_like(self.ids))
        scores = xp.take(self.scores, numbering.order, axis=0)
        return Columns(numbering.moved_lists(known, backend), scores, self.alpha)

    def __repr__(self) -> str:
        return f"Columns({self.keep} entries for each of {self.ids.shape[0]} items)"
