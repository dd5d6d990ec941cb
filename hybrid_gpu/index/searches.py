"""Everything that an index can be asked for: descriptors, another engine's results, own items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybrid_gpu.choices import (
    Accuracy,
    ArrayInput,
    ListInput,
    MethodName,
    MetricName,
    NormalizationName,
)
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.index.search import search_descriptors, search_lists, search_own_items
from hybrid_gpu.index.views import IndexViews
from hybrid_gpu.progress import ProgressOption
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.seeds import seeds_of
from hybrid_gpu.ranking.top_items import Ranking


class SearchableIndex(IndexViews):
    """The searches of an index."""

    __slots__ = ()

    def search(
        self,
        queries: ArrayInput,
        *,
        k: int = 100,
        method: MethodName = "auto",
        accuracy: Accuracy | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        query_neighbors: int | None = 5,
        shortlist: int | None = None,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        allowed: Any = None,
        exclude: Any = None,
        min_score: float | None = None,
        batch: int | None = None,
        progress: ProgressOption = None,
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
        allowed
            The items that results may be, for all queries: a mask (n,) of booleans, or a list of
            ids (of keys, if the index has keys). Or for each query: a mask (m, n), ids (m, q) with
            -1 for none, or a list of m lists. Scores still spread over all items; what is not
            allowed is left out of the ranking, which has ``k`` results as long as there are so many
            allowed ones, and ids of -1 behind them. An empty list allows nothing.
        exclude
            The items that results may not be, in the same forms.
        min_score
            Results with a lower score are left out: ids of -1, scores of -inf.
        batch
            Queries solved side by side; None: as many as help and as memory allows.
        progress
            True for a line on stderr, or a function that is called as
            ``progress("search", done, total)``.

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

        Among some of the items, and without those that are known already:

        >>> index.search([[5.0, 0.2]], k=3, allowed=[1, 2, 4, 5], exclude=[4]).ids.tolist()
        [[1, 2, 5]]
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
            allowed=allowed,
            exclude=exclude,
            min_score=min_score,
            batch=batch,
            progress=progress,
        )
        return search_descriptors(self._state, queries, request)

    def rerank(
        self,
        ids: ListInput,
        similarities: ListInput | None = None,
        *,
        metric: MetricName = "cosine",
        k: int = 100,
        method: MethodName = "auto",
        accuracy: Accuracy | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        query_neighbors: int | None = 5,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        allowed: Any = None,
        exclude: Any = None,
        min_score: float | None = None,
        batch: int | None = None,
        progress: ProgressOption = None,
    ) -> Ranking:
        """Rank the database for the first-stage results of any search engine.

        Parameters
        ----------
        ids : int array of shape (m, q), or a list for each query
            Items found for each query; -1 for 'nothing found', or the largest number in uint32 and
            uint64. Keys, if the index has keys: -1 or None for 'nothing found'. Lists
            may have different lengths. Dicts from items to similarities stand for both. One query
            may come alone: a flat list, or a dict.
        similarities : float array of shape (m, q), or a list for each query
            Their cosine similarities to the query, as they are: the exponent is applied here, and
            negative ones weigh nothing. What stands beside an id of -1 is not looked at, and a list
            of distances may end in NaN or infinity: 'nothing found', whatever the id.
        metric
            What ``similarities`` are. ``"cosine"``, which ``"inner-product"`` or ``"ip"`` of unit
            vectors are, too; or distances of unit vectors, which become cosines:
            ``"cosine-distance"`` (1 - d), ``"l2"`` (1 - d**2 / 2), ``"squared-l2"`` (1 - d / 2),
            which is what FAISS, hnswlib and LanceDB call L2.
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

        Lists of any lengths, or dicts, as most databases give them:

        >>> index.rerank([[4], [0, 2]], [[0.9], [0.9, 0.8]], k=1).ids.tolist()
        [[4], [0]]
        >>> index.rerank([{4: 0.1}, {0: 0.1, 2: 0.2}], metric="cosine-distance", k=1).ids.tolist()
        [[4], [0]]
        >>> index.rerank({4: 0.9}, k=1).ids.tolist()  # one query
        [[4]]
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
            allowed=allowed,
            exclude=exclude,
            min_score=min_score,
            batch=batch,
            progress=progress,
        )
        return search_lists(self._state, ids, similarities, metric, request)

    def search_items(
        self,
        ids: ArrayInput | Sequence[Mapping[Any, float]],
        *,
        weights: Any = None,
        k: int = 100,
        method: MethodName = "auto",
        accuracy: Accuracy | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        normalization: NormalizationName = "symmetric",
        shortlist: int | None = None,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        allowed: Any = None,
        exclude: Any = None,
        min_score: float | None = None,
        batch: int | None = None,
        progress: ProgressOption = None,
    ) -> Ranking:
        """Rank the database for some of its own items, or for weighted sets of them.

        Parameters
        ----------
        ids : int array of shape (m,), or a set of items for each query
            Items; the observation of each is the item itself. Or what each query starts from: a
            list of m lists, an array (m, q) with -1 for none, or a list of dicts from items to
            weights. Keys, if the index has keys.
        weights
            The weights of the items of each query, in the form of ``ids``; 1 if there are none.
            Negative ones push scores down, around the items as well: relevance feedback, with what
            a user likes and what he does not. Methods that compare descriptors take the weighted
            mean of the items for a query.
        normalization
            ``"random-walk"`` for personalized PageRank as igraph and networkx have it: ``alpha`` is
            the damping, ``weights`` the reset or personalization, and the scores are the
            probabilities of a walk, which add up to 1 over all items. Not by ``nn``, ``alpha-qe``,
            ``truncated``, ``fsrw`` and ``fsr-similarity``. Residuals are those of the walk's own
            equation. ``"symmetric"`` is the paper's.

        The other parameters and the result are those of ``search``. An index without descriptors
        knows similarities of an item only to itself: behind what diffusion reaches, ids are -1.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
        >>> index.search_items([3, 0], k=2).ids.tolist()
        [[3, 2], [0, 1]]
        >>> index.search_items([3, 0], k=1, exclude=[[3], [0]]).ids.tolist()  # not themselves
        [[2], [1]]

        Like item 0, and unlike item 3:

        >>> index.search_items([[0, 3]], weights=[[1, -0.5]], k=4).ids.tolist()
        [[0, 1, 2, 3]]
        >>> index.search_items([{0: 1.0, 3: -0.5}], k=4).ids.tolist()
        [[0, 1, 2, 3]]

        Where a walk that begins at either end of a path is in the long run:

        >>> path = hg.build_index_from_graph([(0, 1), (1, 2)], alpha=0.5, dtype="float64")
        >>> found = path.search_items([[0, 2]], k=3, normalization="random-walk")
        >>> found.ids.tolist(), found.scores.round(3).tolist()
        ([[0, 1, 2]], [[0.333, 0.333, 0.333]])
        """
        seeds = seeds_of(self._state, ids, weights)
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
            normalization=normalization,
            shortlist=shortlist,
            sparsity=sparsity,
            expansion=expansion,
            allowed=allowed,
            exclude=exclude,
            min_score=min_score,
            batch=batch,
            progress=progress,
            signed=seeds is not None and seeds.signed,
        )
        return search_own_items(self._state, ids, request, seeds)

    def warm_up(self) -> None:
        """Make what the first search would make, so that it is as fast as the next ones.

        That are the walk of local searches; the inverses of the basis's coarse systems, if the
        index came from a file without them; on a GPU the kernels, which are compiled on first use.
        """
        first = [0] if self._state.keys is None else self._state.keys.values[:1]
        self.search_items(first, k=1)
        if self._state.local:  # hybrid solves the queries that do not settle
            self.search_items(first, k=1, method="hybrid")
