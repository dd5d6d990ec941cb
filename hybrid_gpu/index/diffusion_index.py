"""The diffusion index: a database's graph and basis, ready to rank queries in batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.diffusion.basis import EigenBasis, GalerkinBasis, sparse_eigen_basis
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.graph.affinity import Graph, Layout, array_bytes
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.index.search import Options, search_descriptors, search_own_items, search_results
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.validation import dtype_name


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


@dataclass(frozen=True, slots=True, eq=False)
class DiffusionIndex:
    """A database that answers queries by diffusion on its k-NN graph.

    Made by ``build_index`` and its siblings, or by ``load_index``.

    Attributes
    ----------
    layout : Layout
        The graph, renumbered for memory locality; items keep their own ids outside of it.
    descriptors : float array of shape (n, d), or None
        Unit descriptors; None if the index was built without them.
    neighbors : Neighbors or None
        The k-NN lists behind the graph, which ``add`` and ``remove`` need; None if not kept.
    basis : EigenBasis, GalerkinBasis or None
        What the solver deflates; ``basis.memory`` tells its bytes.
    columns : Columns or None
        What ``precompute`` stored.
    alpha, gamma : float
        Restart parameter of diffusion, exponent of the similarities.
    backend : Backend
        Where the arrays are and where queries are answered.
    grouping : Grouping or None
        When ``add`` and ``remove`` shall make groups and memory order anew; None if not known.
    """

    layout: Layout
    descriptors: Array | None
    neighbors: Neighbors | None
    basis: EigenBasis | GalerkinBasis | None
    columns: Columns | None
    alpha: float
    gamma: float
    backend: Backend
    grouping: Grouping | None = None
    _sparse: dict[float, GalerkinBasis] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of items."""
        return self.layout.graph.n

    @property
    def graph(self) -> Graph:
        """The graph, with items numbered as the user numbers them. Made anew at each call."""
        return self.layout.original(self.backend)

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``."""
        return dtype_name(self.layout.graph.degrees.dtype)

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes of each part: ``graph``, ``descriptors``, ``neighbors``, ``basis``, ``columns``."""
        order = array_bytes(self.layout.order) + array_bytes(self.layout.places)
        lists = self.neighbors
        return {
            "graph": self.layout.graph.memory + order,
            "descriptors": 0 if self.descriptors is None else array_bytes(self.descriptors),
            "neighbors": 0
            if lists is None
            else array_bytes(lists.ids) + array_bytes(lists.similarities),
            "basis": 0 if self.basis is None else self.basis.memory,
            "columns": 0 if self.columns is None else self.columns.memory,
        }

    def __repr__(self) -> str:
        basis = "no basis"
        if self.basis is not None:
            basis = f"{self.basis.rank} {self.basis.kind}"
        size = sum(self.memory.values()) / 1e6
        return (
            f"DiffusionIndex({self.n} items, {self.layout.graph.edges} edges, {basis}, "
            f"alpha {self.alpha}, {self.dtype}, {size:.1f} MB on {self.backend.name})"
        )

    def search(
        self,
        queries: Any,
        *,
        k: int = 100,
        method: str = "auto",
        accuracy: str | float | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        query_neighbors: int | None = 5,
        shortlist: int | None = None,
        sparsity: float = 0.99,
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
            One of ``hybrid_gpu.METHODS``, or ``"auto"``: ``hybrid``.
        accuracy
            The relative residual at which a query stops, or ``"ranking"``, the default of
            ``hybrid``: 3e-3, where rankings hardly change any more. ``report.residuals`` tells what
            each query reached; those that missed it are noted in the report.
        steps
            Solver steps, exactly so many, as in the paper; 20 are the default of ``temporal`` and
            ``truncated``, 5 that of ``hybrid-paper`` and ``shybrid``. With ``accuracy`` or
            ``rtol``, the most steps.
        rtol
            The same as ``accuracy``, but to miss it is an error.
        filter
            Another filter than ``PageRank(index.alpha)``: ``HeatKernel``, ``Polynomial``, or any
            function of frequencies in [-1, 1].
        query_neighbors
            Items that diffusion starts from, 5 in the paper; None for all.
        shortlist
            Items that ``truncated`` keeps; 75,000, or all if there are fewer.
        sparsity
            The fraction of the eigenvectors' entries that ``shybrid`` drops.
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
        """
        options = Options(
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            filter=filter,
            query_neighbors=query_neighbors,
            shortlist=shortlist,
            sparsity=sparsity,
            expansion=Expansion() if expansion is None else expansion,
            batch=batch,
            progress=progress,
        )
        return search_descriptors(self, queries, options)

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
        filter: Filter | Callable[..., Any] | None = None,
        query_neighbors: int | None = 5,
        sparsity: float = 0.99,
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
        """
        options = Options(
            k=k,
            metric=metric,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            filter=filter,
            query_neighbors=query_neighbors,
            sparsity=sparsity,
            expansion=Expansion() if expansion is None else expansion,
            batch=batch,
            progress=progress,
        )
        return search_results(self, ids, similarities, options)

    def search_items(
        self,
        ids: Any,
        *,
        k: int = 100,
        method: str = "auto",
        accuracy: str | float | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        shortlist: int | None = None,
        sparsity: float = 0.99,
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
        """
        options = Options(
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            filter=filter,
            shortlist=shortlist,
            sparsity=sparsity,
            expansion=Expansion() if expansion is None else expansion,
            batch=batch,
            progress=progress,
        )
        return search_own_items(self, ids, options)

    def precompute(
        self,
        *,
        keep: int = 1000,
        rtol: float = 1e-3,
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
            Relative residual of each column.
        folder
            Where to store them while they are made. Called again with the same folder after an
            interruption, the work goes on where it was. None: in memory only.

        See ``estimate_precompute`` for what it will take.
        """
        from hybrid_gpu.index.precompute import precompute

        return precompute(self, keep=keep, rtol=rtol, folder=folder, batch=batch, progress=progress)

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
        """
        from hybrid_gpu.index.update import add

        return add(self, descriptors)

    def remove(self, ids: Any) -> DiffusionIndex:
        """The index without some items; those that remain are renumbered in order.

        Lists that lose an item are searched again if the index has descriptors, and stay shorter
        if not. For the rest, see ``add``.

        Parameters
        ----------
        ids : int array of shape (m,)
            Items to leave out; repeated ids count once.
        """
        from hybrid_gpu.index.update import remove

        return remove(self, ids)

    def to(self, backend: str | Backend) -> DiffusionIndex:
        """The same index on another backend."""
        from hybrid_gpu.index.storage import moved

        return moved(self, backend)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder; an index that is there already is replaced in one step."""
        from hybrid_gpu.index.storage import save_index

        save_index(self, path)

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

    def required_columns(self) -> Columns:
        """The stored columns, or an error that says how to make them."""
        if self.columns is None:
            raise ValueError(
                "method 'precomputed' needs stored columns. Make them with "
                "index = index.precompute(keep=1000)."
            )
        return self.columns

    def sparse_eigenvectors(self, sparsity: float) -> GalerkinBasis:
        """The eigenvectors without their smallest entries; made once and kept."""
        vectors = self.required_eigenvectors()
        made = self._sparse.get(sparsity)
        if made is None:
            made = sparse_eigen_basis(
                vectors.dense(), self.layout.graph, sparsity=sparsity, backend=self.backend
            )
            # One at a time, and another thread may want another: what is kept need not be ours.
            self._sparse.clear()
            self._sparse[sparsity] = made
        return made
