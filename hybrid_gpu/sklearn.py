"""Neighbors by diffusion as a scikit-learn estimator; needs scikit-learn, and is imported by name.

``from hybrid_gpu.sklearn import DiffusionNeighbors``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from hybrid_gpu.choices import BackendName, DtypeName, MethodName, NeighborCount
from hybrid_gpu.diffusion.filters import DEFAULT_ALPHA
from hybrid_gpu.errors import install_line
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import build_index, build_index_from_neighbors
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.validation import check_choice, check_count

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as missing:
    raise ModuleNotFoundError(
        f"hybrid_gpu.sklearn needs scikit-learn 1.6 or newer ({missing}); "
        f"{install_line('sklearn')}",
        name="sklearn",
    ) from missing

__all__ = ["DiffusionNeighbors"]

METRICS = ("cosine", "precomputed")
KERNELS = ("gaussian", "cosine-distance", "l2", "squared-l2")
MODES = ("distance", "connectivity", "score")
# Neighbors of a graph that are read where their number is to be chosen: no more are ever taken.
_MOST_CHOSEN = 50


class DiffusionNeighbors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The items that diffusion on the k-NN graph of the fitted samples ranks first.

    Takes the place of ``sklearn.neighbors.KNeighborsTransformer`` in a pipeline, and that of
    ``NearestNeighbors`` where ids are asked for.

    Parameters
    ----------
    n_neighbors
        Neighbors that ``kneighbors`` returns, and ``transform`` keeps.
    mode
        What ``transform`` stores: ``"distance"``, of ``n_neighbors + 1`` samples, because nearly
        every fitted sample is among its own neighbors (as KNeighborsTransformer does; diffusion
        may rank others before it); ``"connectivity"``, ones; or ``"score"``, the scores of
        diffusion, which are affinities.
    metric
        ``"cosine"``: samples are vectors, scaled to unit length. ``"precomputed"``: they are rows
        of a graph of distances, sparse as KNeighborsTransformer makes it, or dense. Entries that a
        sparse graph does not store are no neighbors, stored zeros are neighbors at a distance of 0.
    kernel
        How distances of a precomputed graph become similarities. ``"gaussian"``:
        ``exp(-(d / scale_)**2 / 2)``, for distances of any kind; those of a query are divided by
        that of its nearest sample, so that queries far from all samples have neighbors too. For
        distances of unit vectors, the cosines that they stand for: ``"cosine-distance"``
        (scikit-learn's ``"cosine"``), ``"l2"`` (its ``"euclidean"``) and ``"squared-l2"``.
    graph_neighbors
        Neighbors of each sample in the graph that scores travel on; see ``neighbors`` of
        ``build_index``.
    gamma, alpha, dtype, backend
        Those of ``build_index``.
    method, query_neighbors
        Those of ``DiffusionIndex.search``.

    Attributes
    ----------
    index_ : DiffusionIndex
        What answers; ``index_.save(folder)`` writes it to files that are no pickles.
    n_samples_fit_ : int
    n_features_in_ : int
    feature_names_in_ : array of shape (n_features_in_,)
        If ``fit`` saw names of columns.
    scale_ : float or None
        The width of the Gaussian: the median of the samples' distances to the last of their
        neighbors. None without ``metric="precomputed"`` and ``kernel="gaussian"``.

    Notes
    -----
    Diffusion gives scores, the larger the nearer. The distance of a result is how far its score
    falls below that of the query's best one, ``1 - score / best``: 0 for the best, 1 for samples
    that diffusion does not reach. Distances of two queries are no measure of which is nearer.

    Examples
    --------
    >>> from hybrid_gpu.sklearn import DiffusionNeighbors
    >>> samples = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
    >>> neighbors = DiffusionNeighbors(n_neighbors=2, graph_neighbors=2).fit(samples)
    >>> sorted(neighbors.kneighbors([[0.1, 5.0]], 3, return_distance=False)[0].tolist())
    [3, 4, 5]
    >>> neighbors.transform(samples).shape
    (6, 6)
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        mode: str = "distance",
        metric: str = "cosine",
        kernel: str = "gaussian",
        graph_neighbors: NeighborCount = "auto",
        gamma: float = 3.0,
        alpha: float = DEFAULT_ALPHA,
        method: MethodName = "auto",
        query_neighbors: int | None = 5,
        dtype: DtypeName = "float32",
        backend: BackendName = "auto",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.kernel = kernel
        self.graph_neighbors = graph_neighbors
        self.gamma = gamma
        self.alpha = alpha
        self.method = method
        self.query_neighbors = query_neighbors
        self.dtype = dtype
        self.backend = backend

    def fit(self, X: Any, y: Any = None) -> DiffusionNeighbors:
        """Make the index of the samples.

        Parameters
        ----------
        X : array or data frame of shape (n, d); for ``metric="precomputed"`` a graph (n, n)
        y
            Not looked at.
        """
        check_count(self.n_neighbors, "n_neighbors")
        check_choice(self.mode, "mode", MODES)
        check_choice(self.kernel, "kernel", KERNELS)
        _check_graph_neighbors(self.graph_neighbors)
        precomputed = check_choice(self.metric, "metric", METRICS) == "precomputed"
        samples = self._validated(X, reset=True)
        index, scale = self._index_of_graph(samples) if precomputed else self._index_of(samples)
        self.index_, self.n_samples_fit_, self.scale_ = index, index.n, scale
        return self

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """The neighbors of samples, nearest first.

        Parameters
        ----------
        X : array or data frame of shape (m, d), or a graph (m, n), optional
            Without it, the fitted samples, none of which is its own neighbor.
        n_neighbors
            How many; that of the estimator by default.
        return_distance
            Whether to return distances too.

        Returns
        -------
        distances : float64 array of shape (m, n_neighbors)
            Only if ``return_distance``; see the notes of the class.
        ids : int64 array of shape (m, n_neighbors)

        Raises
        ------
        ValueError
            If diffusion on a precomputed graph reaches fewer samples: there is nothing to tell how
            near the others are.
        """
        ranking = self._ranked(X, n_neighbors)
        if bool(np.any(ranking.ids < 0)):
            least = int(np.min(np.sum(ranking.ids >= 0, axis=1)))
            raise ValueError(
                f"diffusion reaches only {least} samples from some of these, fewer than "
                f"n_neighbors={ranking.ids.shape[1]}. Take fewer, or transform, whose rows may be "
                "shorter."
            )
        if not return_distance:
            return ranking.ids
        return _distances(ranking.scores), ranking.ids

    def kneighbors_graph(
        self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> csr_matrix:
        """The neighbors of samples as a sparse matrix (m, n), the nearest first in each row.

        Parameters are those of ``kneighbors``; ``mode`` is that of the class. Rows are shorter
        where diffusion on a precomputed graph reaches fewer samples.
        """
        check_choice(mode, "mode", MODES)
        ranking = self._ranked(X, n_neighbors)
        values = np.ones(ranking.ids.shape) if mode == "connectivity" else ranking.scores
        if mode == "distance":
            values = _distances(ranking.scores)
        found = ranking.ids >= 0
        indptr = np.concatenate([[0], np.cumsum(np.sum(found, axis=1))])
        shape = (len(found), self.n_samples_fit_)
        return csr_matrix((values[found], ranking.ids[found], indptr), shape=shape)

    def transform(self, X: Any) -> csr_matrix:
        """The neighbors of samples as a sparse matrix (m, n) of what ``mode`` says.

        Parameters
        ----------
        X : array or data frame of shape (m, d), or a graph (m, n)
        """
        check_is_fitted(self)
        # Most fitted samples are their own neighbors, whom consumers of distances leave out.
        count = self.n_neighbors + (self.mode == "distance")
        return self.kneighbors_graph(X, min(count, self.n_samples_fit_), self.mode)

    @property
    def _n_features_out(self) -> int:
        return self.n_samples_fit_

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Samples as scikit-learn checks them; graphs in their own order, with stored zeros."""
        graph = self.metric == "precomputed"
        return validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr" if graph else False,
            dtype=np.float64 if graph else [np.float64, np.float32],
            ensure_min_samples=2 if reset else 1,
        )

    def _index_of(self, vectors: NDArray[Any]) -> tuple[DiffusionIndex, None]:
        neighbors = self.graph_neighbors
        if not isinstance(neighbors, str):
            neighbors = min(neighbors, len(vectors) - 1)
        index = build_index(
            vectors,
            neighbors=neighbors,
            gamma=self.gamma,
            alpha=self.alpha,
            dtype=self.dtype,
            backend=self.backend,
        )
        return index, None

    def _index_of_graph(self, graph: Any) -> tuple[DiffusionIndex, float | None]:
        n, columns = graph.shape
        if n != columns:
            raise ValueError(
                f"a precomputed graph must be square (n, n) to be fitted; got shape {graph.shape}."
            )
        most = _MOST_CHOSEN if isinstance(self.graph_neighbors, str) else self.graph_neighbors
        lists = _nearest(graph, most, own=False)
        scale = lists.scale() if self.kernel == "gaussian" else None
        index = build_index_from_neighbors(
            lists.ids,
            lists.similarities(scale),
            metric="cosine" if self.kernel == "gaussian" else self.kernel,  # type: ignore[arg-type]
            neighbors="auto" if isinstance(self.graph_neighbors, str) else lists.ids.shape[1],
            gamma=self.gamma,
            alpha=self.alpha,
            dtype=self.dtype,
            backend=self.backend,
        )
        return index, scale

    def _ranked(self, X: Any, n_neighbors: int | None) -> Ranking:
        check_is_fitted(self)
        most = self.n_samples_fit_ - (X is None)
        k = check_count(self.n_neighbors if n_neighbors is None else n_neighbors, "n_neighbors")
        if k > most:
            raise ValueError(f"n_neighbors must be at most {most}, the samples there are; got {k}.")
        if X is None:
            own = np.arange(self.n_samples_fit_)
            return self.index_.search_items(own, k=k, method=self.method, exclude=own[:, None])
        samples = self._validated(X, reset=False)
        if self.metric != "precomputed":
            return self.index_.search(
                samples, k=k, method=self.method, query_neighbors=self.query_neighbors
            )
        lists = _nearest(samples, max(k, self.query_neighbors or self.n_samples_fit_), own=True)
        return self.index_.rerank(
            lists.ids,
            # Only their ratios rank the samples.
            lists.similarities(self.scale_, nearest_is_one=True),
            metric="cosine" if self.kernel == "gaussian" else self.kernel,  # type: ignore[arg-type]
            k=k,
            method=self.method,
            query_neighbors=self.query_neighbors,
        )

    def __getstate__(self) -> dict[str, Any]:
        # On the host: a pickle shall open where there is no GPU.
        state = dict(super().__getstate__())
        if "index_" in state:
            state["index_"] = state["index_"].to("numpy")
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        graph = self.metric == "precomputed"
        tags.input_tags.pairwise = tags.input_tags.sparse = tags.input_tags.positive_only = graph
        tags.transformer_tags.preserves_dtype = []
        return tags


@dataclass(frozen=True, slots=True, eq=False)
class _DistanceLists:
    """The nearest entries of each row of a graph, nearest first.

    Attributes
    ----------
    ids : int64 array of shape (m, q)
        -1 for none.
    distances : float64 array of shape (m, q)
        0 beside -1.
    """

    ids: NDArray[np.int64]
    distances: NDArray[np.float64]

    def scale(self) -> float:
        """The median distance to the last neighbor, of samples that have one beyond themselves."""
        farthest = np.max(self.distances, axis=1)
        return float(np.median(farthest[farthest > 0])) if np.any(farthest > 0) else 1.0

    def similarities(
        self, scale: float | None, *, nearest_is_one: bool = False
    ) -> NDArray[np.float64]:
        """By the Gaussian of a scale; without one, the distances as they are.

        With ``nearest_is_one``, those of a row are divided by that of its nearest entry.
        """
        if scale is None:
            return self.distances
        far = self.distances / scale
        # Rows are nearest first. Of a row far from everything, each Gaussian would underflow to 0.
        least = far[:, :1] if nearest_is_one else 0.0
        with np.errstate(over="ignore"):  # infinitely far: a similarity of 0
            squares = np.maximum(far - least, 0) * (far + least)
        return np.asarray(np.exp(-squares / 2))


def _check_graph_neighbors(count: Any) -> None:
    if not isinstance(count, str):
        check_count(count, "graph_neighbors")
    elif count != "auto":
        raise ValueError(f"graph_neighbors must be a number or 'auto'; got {count!r}.")


def _nearest(graph: Any, most: int, *, own: bool) -> _DistanceLists:
    """The nearest entries of each row of a graph (m, n), no more than ``most``.

    Without ``own``, a sample is none of its neighbors.
    """
    values = graph.data if issparse(graph) else graph
    if np.min(values, initial=0) < 0:
        raise ValueError(
            "Negative values in data: a precomputed graph must hold distances; got "
            f"{np.min(values):.3g}. Similarities s become distances by 1 - s."
        )
    rows, columns, distances = _entries(graph)
    if not own:
        kept = rows != columns
        rows, columns, distances = rows[kept], columns[kept], distances[kept]
    order = np.lexsort((columns, distances, rows))
    rows, columns, distances = rows[order], columns[order], distances[order]
    lengths = np.bincount(rows, minlength=graph.shape[0])
    place = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = place < most
    shape = (graph.shape[0], max(1, min(most, int(lengths.max()))))
    ids, nearest = np.full(shape, -1), np.zeros(shape)
    ids[rows[kept], place[kept]] = columns[kept]
    nearest[rows[kept], place[kept]] = distances[kept]
    return _DistanceLists(ids, nearest)


def _entries(graph: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Rows, columns and values of a graph: those that are stored, zeros too, or all of a dense one.

    Not by ``tocoo`` or ``nonzero`` of SciPy: a stored zero is a neighbor at no distance.
    """
    m, n = graph.shape
    if not issparse(graph):
        return np.repeat(np.arange(m), n), np.tile(np.arange(n), m), np.ravel(graph)
    rows = np.repeat(np.arange(m), np.diff(graph.indptr))
    columns = graph.indices.astype(np.int64)
    if len(np.unique(rows * n + columns)) < len(rows):
        raise ValueError("a precomputed graph must not store an entry twice; make it with tocsr().")
    return rows, columns, graph.data


def _distances(scores: NDArray[Any]) -> NDArray[np.float64]:
    """How far scores (m, k), best first, fall below the best: from 0 to 1."""
    scores = scores.astype(np.float64)
    best = np.maximum(scores[:, :1], 0)
    shares = np.divide(scores, best, out=np.zeros_like(scores), where=best > 0)
    return np.asarray(1 - np.clip(shares, 0, 1))
