"""The index as users hold it: a frozen state, and everything that can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hybrid_gpu.backends import Backend
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.index.packing import moved
from hybrid_gpu.index.precompute import precomputed_columns
from hybrid_gpu.index.search import search_descriptors, search_lists, search_own_items
from hybrid_gpu.index.storage import save_state
from hybrid_gpu.index.update import with_items, without_items
from hybrid_gpu.index.views import IndexViews
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.top_items import Ranking


class DiffusionIndex(IndexViews):
    """A database that answers queries by diffusion on its k-NN graph.

    Made by ``build_index`` and its siblings, or by ``load_index``. It never changes: ``add``,
    ``remove``, ``precompute`` and ``to`` give another index.

    Inside, items lie in an order in which neighbors are close together in memory. Everything that
    an index takes, gives and shows is numbered by the user's ids.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"DiffusionIndex({self._state.described()})"

    def search(
        self,
        queries: Any,
        *,
        k: int = 100,
        method: str = "auto",
        accuracy: str | float | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        query_neighbors: int | None = 5,
        shortlist: int | None = None,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Rank the database for query descriptors.

        Parameters
        ----------
        queries : float array of shape (m, d)
            They need not be in the database, nor of unit length.
        k
            Results per query; all items if there are fewer.
        method
            One of ``hybrid_gpu.METHODS``, or ``"auto"``: ``local`` for short rankings of large
            indexes, ``hybrid`` else, by a fixed rule of the index and the request (docs/local.md).
        accuracy
            The relative residual at which a query stops, or ``"ranking"``, the default of
            ``hybrid``: 3e-3, and less where the k-th best score is far below the observation: 2 %
            of it (times the root of k), or what rounding allows. ``report.residuals`` tells what
            each query reached; those that missed a residual of 3e-3 are noted in the report.
        steps
            Solver steps, exactly so many, as in the paper; 20 are the default of ``temporal`` and
            ``truncated``, 5 that of ``hybrid-paper`` and ``shybrid``. With ``accuracy`` or
            ``rtol``, the most steps.
        rtol
            The same as ``accuracy``, but to miss it is an error.
        alpha
            Another restart parameter than ``index.alpha``; short for ``filter=PageRank(alpha)``.
        filter
            Another filter than ``PageRank(index.alpha)``: ``HeatKernel``, ``Polynomial``, or any
            function of frequencies in [-1, 1].
        degree_correction
            Divide scores by the root of the items' degrees, over that of the mean degree: items
            with many or heavy edges no longer come first for that alone. Items without an edge
            keep their scores.
        query_neighbors
            Items that diffusion starts from, 5 in the paper; None for all.
        shortlist
            Items that ``truncated`` keeps; 75,000, or all if there are fewer.
        sparsity
            The fraction of eigenvectors' entries that ``shybrid`` drops, or ``hg.Sparsity``.
        expansion
            The neighbors that ``alpha-qe`` adds to a query; ``Expansion(neighbors=10, alpha=3)``.
        batch
            Queries solved side by side; None: as many as help and as memory allows.
        progress
            Called as ``progress("search", done, total)``.

        Returns
        -------
        Ranking
            ``ids`` and ``scores`` of shape (m, k), NumPy arrays if the queries came from the host,
            else arrays of the index's device.

        Raises
        ------
        ConvergenceError
            If ``rtol`` was given and a query missed it; its ``result`` is the ``Ranking``.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
        >>> index = hg.build_index(items, neighbors=2, alpha=0.9)
        >>> ranking = index.search([[5.0, 0.2], [0.2, 5]], k=3)
        >>> ranking
        Ranking(2 queries, top 3, hybrid)
        >>> sorted(ranking.ids[0].tolist()), sorted(ranking.ids[1].tolist())
        ([0, 1, 2], [3, 4, 5])
        """
        request = requested(
            self._state,
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            alpha=alpha,
            filter=filter,
            degree_correction=degree_correction,
            query_neighbors=query_neighbors,
            shortlist=shortlist,
            sparsity=sparsity,
            expansion=expansion,
            batch=batch,
            progress=progress,
        )
        return search_descriptors(self._state, queries, request)

    def rerank(
        self,
        ids: Any,
        similarities: Any,
        *,
        metric: str = "cosine",
        k: int = 100,
        method: str = "auto",
        accuracy: str | float | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        query_neighbors: int | None = 5,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Rank the database for the first-stage results of any search engine.

        Parameters
        ----------
        ids : int array of shape (m, q)
            Items found for each query, best first; -1 for 'nothing found'.
        similarities : float array of shape (m, q)
            Their cosine similarities to the query, as they are: the exponent is applied here, and
            negative ones weigh nothing. What stands beside an id of -1 is not looked at.
        metric
            What ``similarities`` are. ``"cosine"``; or distances of unit vectors, which become
            cosines: ``"cosine-distance"`` (1 - d), ``"l2"`` (1 - d**2 / 2), ``"squared-l2"``
            (1 - d / 2), which is what FAISS calls L2.
        k
            Results per query; may be larger than q, because diffusion finds items that the first
            stage missed.

        The other parameters and the result are those of ``search``. ``truncated`` takes the given
        results as its shortlist; ``nn`` returns them in the order of their similarity.

        Behind what diffusion reaches come the given results that it did not, by their similarity.
        The rest has no similarity to a query that is not known: it comes by the cosine to the mean
        of the hits that diffusion starts from, each weighted as it is there, if the index has
        descriptors. Where that is not known either, ids are -1 and scores -inf.

        Raises
        ------
        ValueError
            For values that are not of the metric, and for lists that are worst first: distances
            that were taken for similarities.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
        >>> index = hg.build_index(items, neighbors=2, alpha=0.9)
        >>> ranking = index.rerank([[4]], [[0.9]], k=3)  # one hit, and what is around it
        >>> sorted(ranking.ids[0].tolist())
        [3, 4, 5]
        """
        request = requested(
            self._state,
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            alpha=alpha,
            filter=filter,
            degree_correction=degree_correction,
            query_neighbors=query_neighbors,
            sparsity=sparsity,
            expansion=expansion,
            batch=batch,
            progress=progress,
        )
        return search_lists(self._state, ids, similarities, metric, request)

    def search_items(
        self,
        ids: Any,
        *,
        k: int = 100,
        method: str = "auto",
        accuracy: str | float | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        shortlist: int | None = None,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Rank the database for some of its own items.

        Parameters
        ----------
        ids : int array of shape (m,)
            Items; the observation of each is the item itself.

        The other parameters and the result are those of ``search``. An index without descriptors
        knows similarities of an item only to itself: behind what diffusion reaches, ids are -1.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.search_items([3, 0], k=2).ids.tolist()
        [[3, 2], [0, 1]]
        """
        request = requested(
            self._state,
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            alpha=alpha,
            filter=filter,
            degree_correction=degree_correction,
            shortlist=shortlist,
            sparsity=sparsity,
            expansion=expansion,
            batch=batch,
            progress=progress,
        )
        return search_own_items(self._state, ids, request)

    def warm_up(self) -> None:
        """Make what the first search would make, so that it is as fast as the next ones.

        That are the walk of local searches; the inverses of the basis's coarse systems, if the
        index came from a file without them; on a GPU the kernels, which are compiled on first use.
        """
        self.search_items([0], k=1)
        if self._state.local:  # hybrid solves the queries that do not settle
            self.search_items([0], k=1, method="hybrid")

    def precompute(
        self,
        *,
        keep: int = 1000,
        rtol: float | None = None,
        folder: str | os.PathLike[str] | None = None,
        batch: int | None = None,
        progress: Progress | None = None,
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

    def add(self, descriptors: Any) -> DiffusionIndex:
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

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.add([[4.0, 0.1]]).search_items([4], k=2).ids.tolist()
        [[4, 0]]
        """
        return DiffusionIndex(with_items(self._state, descriptors))

    def remove(self, ids: Any) -> DiffusionIndex:
        """The index without some items; those that remain are renumbered in order.

        Lists that lose an item are searched again if the index has descriptors, and stay shorter
        if not. For the rest, see ``add``.

        Parameters
        ----------
        ids : int array of shape (m,)
            Items to leave out; repeated ids count once.

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
