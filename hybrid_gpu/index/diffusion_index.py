"""The index as users hold it: a frozen state, and everything that can be asked of it."""

from __future__ import annotations

import os
from dataclasses import replace

from numpy.typing import ArrayLike

from hybrid_gpu.backends import Backend
from hybrid_gpu.choices import ArrayInput
from hybrid_gpu.index.packing import moved
from hybrid_gpu.index.precompute import precomputed_columns
from hybrid_gpu.index.searches import SearchableIndex
from hybrid_gpu.index.storage import save_state
from hybrid_gpu.index.update import with_items, without_items
from hybrid_gpu.progress import ProgressOption


class DiffusionIndex(SearchableIndex):
    """A database that answers queries by diffusion on its k-NN graph.

    Made by ``build_index`` and its siblings, or by ``load_index``. It never changes: ``add``,
    ``remove``, ``precompute`` and ``to`` give another index.

    Inside, items lie in an order in which neighbors are close together in memory. Everything that
    an index takes, gives and shows is numbered by the user's ids.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"DiffusionIndex({self._state.described()})"

    def precompute(
        self,
        *,
        keep: int = 1000,
        rtol: float | None = None,
        folder: str | os.PathLike[str] | None = None,
        batch: int | None = None,
        progress: ProgressOption = None,
    ) -> DiffusionIndex:
        """The same index with every item diffused beforehand, for ``method="precomputed"``.

        Parameters
        ----------
        keep
            Entries to store for each item: the best ones.
        rtol
            Relative residual of each column. None: a local search where ``method="auto"`` takes
            one for ``keep`` items, with scores as in docs/local.md, and 1e-3 elsewhere.
        folder
            Where to store them while they are made. Called again with the same folder after an
            interruption, the work goes on where it was. None: in memory only.

        See ``estimate_precompute`` for what it will take.

        Raises
        ------
        IndexFileError
            If the folder holds anything but columns of this index with these settings, if they are
            damaged, or if another process is at work on them. Nothing has changed then.
        OSError
            If the disk has no room for the columns, which is told before the work begins.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.precompute(keep=2).search([[5.0, 2]], k=2, method="precomputed").ids.tolist()
        [[1, 0]]
        """
        columns = precomputed_columns(
            self._state, keep=keep, rtol=rtol, folder=folder, batch=batch, progress=progress
        )
        return DiffusionIndex(replace(self._state, columns=columns))

    def add(self, descriptors: ArrayInput, *, keys: ArrayLike | None = None) -> DiffusionIndex:
        """The index with more items, which get the ids from n up.

        Lists and graph become those of an index that is built of all items with ``knn="exact"``.
        New items join the groups of their neighbors. Once more than a quarter of the items were
        added or removed since the groups were made, groups and memory order are made anew, as
        ``build_index`` makes them; a basis of the user's own is only carried over. Eigenvectors
        are computed anew, beginning with the old ones. Stored columns are dropped, with a warning.

        The graph is made anew in one pass over all lists, however few items are new: add them
        together, not one by one.

        Parameters
        ----------
        descriptors : float array of shape (m, d)
        keys
            The keys of the new items, (m,), if the index has keys, and only then.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.add([[4.0, 0.1]]).search_items([4], k=2).ids.tolist()
        [[4, 0]]
        """
        return DiffusionIndex(with_items(self._state, descriptors, keys))

    def remove(self, ids: ArrayInput) -> DiffusionIndex:
        """The index without some items; those that remain are renumbered in order.

        Lists that lose an item are searched again if the index has descriptors, and stay shorter
        if not. For the rest, see ``add``.

        Parameters
        ----------
        ids : int array of shape (m,)
            Items to leave out; repeated ids count once. Keys, if the index has keys: those of the
            other items stay as they are.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.remove([0, 1]).search_items([0], k=2).ids.tolist()  # they were 2 and 3
        [[0, 1]]
        """
        return DiffusionIndex(without_items(self._state, ids))

    def to(self, backend: str | Backend) -> DiffusionIndex:
        """The same index on another backend.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.to("numpy").backend.name
        'numpy'
        """
        state = moved(self._state, backend)
        return self if state is self._state else DiffusionIndex(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder; an index that is there already is replaced in one step.

        Examples
        --------
        >>> import tempfile
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index.save(folder)
        ...     hg.load_index(folder).n
        4
        """
        save_state(self._state, path)
