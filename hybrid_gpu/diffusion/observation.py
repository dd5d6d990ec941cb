"""What a query says about the database: a few items, each with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybrid_gpu.backends import Array, Backend, on_device, select_backend
from hybrid_gpu.choices import BackendName, DtypeName, MetricName
from hybrid_gpu.list_order import best_first_lists
from hybrid_gpu.result_lists import check_neighbor_lists
from hybrid_gpu.validation import check_count, check_dtype, check_positive


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The observations of m queries; each is a sparse vector y over n items in the paper.

    Attributes
    ----------
    ids : int64 array of shape (m, q)
        Observed items; -1 for none.
    weights : float array of shape (m, q)
        Their weights; the weights of a repeated id add up.
    n : int
        Number of database items.
    """

    ids: Array
    weights: Array
    n: int

    @property
    def queries(self) -> int:
        return int(self.ids.shape[0])

    def dense(self, backend: Backend) -> Array:
        """The observations as the columns of one row-major (n, m) array."""
        return backend.place(self.ids, self.weights, self.n)

    def __repr__(self) -> str:
        return f"Observation({self.queries} queries on {self.n} items)"


@on_device(lambda ids: ids, stays=False)
def observe(
    ids: Any,
    similarities: Any,
    n: int,
    *,
    gamma: float = 3.0,
    query_neighbors: int | None = 5,
    metric: MetricName = "cosine",
    dtype: DtypeName = "float32",
    backend: BackendName | Backend = "auto",
) -> Observation:
    """The observation of first-stage results: each item weighs ``(similarity)_+ ** gamma``.

    Parameters
    ----------
    ids, similarities : arrays of shape (m, q)
        Results of any search engine, with raw cosine similarities. Ids of -1 are
        skipped; repeated ids add up; negative cosines weigh nothing.
    n
        Number of database items.
    gamma
        The exponent of the graph's edges.
    query_neighbors
        Only so many results of each query are used, the most similar ones: 5 in the paper; None
        for all. Ids of -1 do not count.
    metric
        What ``similarities`` are; see ``DiffusionIndex.rerank``.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> observation = hg.observe([[7, 2]], [[0.5, -0.1]], n=10)
    >>> observation.weights.tolist()
    [[0.125, 0.0]]
    """
    device = select_backend(backend, like=ids)
    gamma = check_positive(gamma, "gamma")
    checked_ids, values = check_neighbor_lists(
        ids,
        similarities,
        check_count(n, "n"),
        metric=metric,
        dtype=check_dtype(dtype),
        backend=device,
    )
    if query_neighbors is not None:
        checked_ids, values = best_first_lists(checked_ids, values, device.xp)
        count = min(check_count(query_neighbors, "query_neighbors"), values.shape[1])
        checked_ids, values = checked_ids[:, :count], values[:, :count]
    return Observation(ids=checked_ids, weights=device.xp.clip(values, min=0) ** gamma, n=n)
