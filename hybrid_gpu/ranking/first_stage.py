"""What the first stage of search found: by our own descriptors, or in somebody else's lists.

A first stage knows a batch of m queries. Whatever it gives is numbered by places.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.generic import power_of_two
from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.ranking.query_expansion import expanded
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import nan_error

# The weight of a query's best result is at least this, far from both ends of float64.
_LEAST_WEIGHT = 2.0**-500


class FirstStage(ABC):
    """Some queries, and what is known of the items for them before any diffusion.

    Attributes
    ----------
    observation : Observation
        The results that diffusion starts from.
    scale : float64 array of shape (m, 1)
        How large each observation is: a power of two.
    weights : float array of shape (m, q)
        The weights of the observation over its scale: the largest of each query is 1 to 2.
    queries : float array of shape (m, d), or None
        Unit query vectors; None if the first stage was somebody else's.
    """

    def __init__(
        self, state: IndexState, observation: Observation, queries: Array | None = None
    ) -> None:
        self._state, self.observation, self.queries = state, observation, queries
        xp = state.backend.xp
        sizes = xp.abs(xp.astype(observation.weights, xp.float64))
        self.scale = power_of_two(xp.max(sizes, axis=1, keepdims=True), xp)
        self.weights = xp.astype(observation.weights / self.scale, state.graph.degrees.dtype)

    def reachable(self) -> Array:
        """Whether diffusion can get to each item (n, m): something was observed beside it."""
        backend, xp, places = self._state.backend, self._state.backend.xp, self.observation.ids
        labels = self._state.graph.components
        known = xp.where(places < 0, xp.zeros_like(places), places)
        component = backend.asarray(labels.astype("int64"))
        observed = xp.reshape(xp.take(component, xp.reshape(known, (-1,))), places.shape)
        observed = xp.where(places < 0, places, observed)
        weights = backend.place(observed, xp.abs(self.weights), int(labels.max()) + 1)
        return xp.take(weights > 0, component, axis=0)

    @abstractmethod
    def similarities(self) -> Array:
        """Cosine of every query and item (m, n); 0 for items that somebody's lists do not have."""

    @abstractmethod
    def unreached(self) -> Array:
        """What orders the items that diffusion did not reach (m, n); -inf where nothing does."""

    @abstractmethod
    def shortlist(self, size: int) -> Array:
        """The items (m, t) that ``truncated`` keeps for each query; -1 for none."""

    @abstractmethod
    def nearest(self, count: int) -> Neighbors:
        """The nearest items of each query."""


class SimilarItems(FirstStage):
    """Similarity of query vectors to the descriptors of the index.

    Parameters
    ----------
    queries : float array of shape (m, d)
        Unit vectors.
    observation
        What diffusion starts from, if that is not the most similar items.
    observed
        How many of these it is.
    """

    def __init__(
        self,
        state: IndexState,
        queries: Array,
        *,
        observation: Observation | None = None,
        observed: int = 0,
    ) -> None:
        self._similarities: Array | None = None
        if observation is None:
            self._similarities = _cosines(state, queries)
            best = state.backend.top_k(self._similarities, observed, state.numbering)
            if bool(state.backend.xp.any(state.backend.xp.isnan(best.scores))):
                raise nan_error()
            weights = powered(best.scores, state.gamma, state.backend)
            observation = Observation(best.ids, weights, state.n)
        super().__init__(state, observation, queries)

    def similarities(self) -> Array:
        if self._similarities is None:
            self._similarities = _cosines(self._state, self.queries)
        return self._similarities

    def unreached(self) -> Array:
        return self.similarities()

    def shortlist(self, size: int) -> Array:
        return self._best(size).ids

    def nearest(self, count: int) -> Neighbors:
        best = self._best(min(count, self._state.n))
        return Neighbors(best.ids, best.scores)

    def _best(self, count: int) -> Any:
        state = self._state
        return state.backend.top_k(self.similarities(), count, state.numbering)


class GivenLists(FirstStage):
    """The results of another engine.

    Parameters
    ----------
    places : int64 array of shape (m, q)
        Results of each query, best first; -1 for none.
    cosines : float array of shape (m, q)
        Their similarities.
    observed
        How many of them diffusion starts from.
    """

    def __init__(self, state: IndexState, places: Array, cosines: Array, observed: int) -> None:
        self._places, self._cosines = places, cosines
        # Not xp.clip: with CuPy, its bounds are copied from the host, which waits for the device.
        self._positive = state.backend.xp.maximum(cosines, state.backend.xp.zeros_like(cosines))
        self._hits = Neighbors(places[:, :observed], self._positive[:, :observed])
        weights = powered(self._hits.similarities, state.gamma, state.backend)
        super().__init__(state, Observation(self._hits.ids, weights, state.n))

    def similarities(self) -> Array:
        return self._means(self._positive, self._times_listed())

    def unreached(self) -> Array:
        """What is listed comes first, by its cosine; the rest by the cosine to the hits' mean.

        The mean, each hit weighted as in the observation, stands for the query that is not known.
        """
        state, backend, xp = self._state, self._state.backend, self._state.backend.xp
        items = state.descriptors
        times = self._times_listed()
        means = self._means(self._cosines, times)
        levels = self._means(_levels(self._places, means, xp), times)
        rest = xp.full(means.shape, -xp.inf, dtype=means.dtype, device=backend.device)
        if items is not None:
            shape = (self._places.shape[0], items.shape[1])
            origin = xp.zeros(shape, dtype=items.dtype, device=backend.device)
            queries = expanded(origin, items, self._hits, state.gamma, backend)
            known = xp.max(xp.abs(queries), axis=1, keepdims=True) > 0
            rest = xp.where(known, backend.matmul(queries, items.T), rest)
        # Cosines lie in [-1, 1]: 3 lifts every listed item above all others. Levels in the list,
        # not cosines, of which 3 would leave no digit beyond the seventh in float32.
        return xp.where(times > 0, 3 + levels, rest)

    def _times_listed(self) -> Array:
        """How often each item is listed, (m, n)."""
        ones = self._state.backend.xp.ones_like(self._cosines)
        return self._state.backend.place(self._places, ones, self._state.n).T

    def _means(self, values: Array, times: Array) -> Array:
        """Values (m, q) of the lists as (m, n): the mean of each listed item, 0 elsewhere."""
        sums = self._state.backend.place(self._places, values, self._state.n).T
        return sums / self._state.backend.xp.clip(times, min=1)

    def shortlist(self, size: int) -> Array:
        return self._places

    def nearest(self, count: int) -> Neighbors:
        count = min(count, self._places.shape[1])
        return Neighbors(self._places[:, :count], self._cosines[:, :count])


class OwnItems(FirstStage):
    """Items of an index without descriptors as queries: they are known to be like themselves."""

    def similarities(self) -> Array:
        observation = self.observation
        return self._state.backend.place(observation.ids, observation.weights, observation.n).T

    def unreached(self) -> Array:
        xp, shape = self._state.backend.xp, (self.observation.queries, self._state.n)
        device = self._state.backend.device
        return xp.full(shape, -xp.inf, dtype=self.weights.dtype, device=device)

    def shortlist(self, size: int) -> Array:
        state = self._state
        return state.backend.top_k(self.similarities(), size, state.numbering).ids

    def nearest(self, count: int) -> Neighbors:
        observation = self.observation
        count = min(count, observation.ids.shape[1])
        return Neighbors(observation.ids[:, :count], observation.weights[:, :count])


def _cosines(state: IndexState, queries: Array) -> Array:
    """The cosines (m, n) of unit queries and all items."""
    assert state.descriptors is not None, "checked before any search"
    return state.backend.matmul(queries, state.descriptors.T)


def powered(similarities: Array, gamma: float, backend: Backend) -> Array:
    """The weights of first-stage results, ``similarity ** gamma``; 0 for negative ones."""
    xp = backend.xp
    # In float64: the third power of a small cosine leaves the range of float32.
    values = xp.astype(similarities, xp.float64)
    positive = xp.maximum(values, xp.zeros_like(values))
    largest = xp.max(positive, axis=1, keepdims=True)
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    # Large powers leave that of float64, too: what ranks are the ratios to the best result.
    unit = xp.maximum(largest**gamma, xp.full_like(largest, _LEAST_WEIGHT))
    return (positive / largest) ** gamma * unit


def _levels(places: Array, means: Array, xp: Any) -> Array:
    """The level of every entry of the lists (m, q) among the values of its list, the least first.

    Entries of the same value share a level.
    """
    values = xp.take_along_axis(means, xp.clip(places, min=0), axis=1)
    order = xp.argsort(values, axis=1)
    ascending = xp.take_along_axis(values, order, axis=1)
    rises = xp.astype(ascending[:, 1:] > ascending[:, :-1], values.dtype)
    levels = xp.cumulative_sum(rises, axis=1, include_initial=True)
    return xp.take_along_axis(levels, xp.argsort(order, axis=1), axis=1)
