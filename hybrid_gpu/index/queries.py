"""Query sets as they come in: descriptors, lists of another engine, items of the index itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.backends.numpy_backend import is_on_host
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.graph.vectors import unit_rows
from hybrid_gpu.list_order import best_first_lists
from hybrid_gpu.ranking.first_stage import FirstStage, GivenLists, OwnItems, SimilarItems
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.seeds import Seeds
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.walks import restart_weights
from hybrid_gpu.result_lists import batched, check_neighbor_lists
from hybrid_gpu.validation import check_item_ids, check_vectors


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """A query set as it came in, checked.

    Attributes
    ----------
    arrays : tuple of arrays
        What is known of the queries, row by row; on the host or on the device.
    here : bool
        Whether they came from the index's device, so that the results stay there.
    first_stage : callable
        From a state and a slice of the arrays, on its device, to what is found for it.
    observed, shortlist : int
        Items that a query observes, and items of its shortlist.
    limits : tuple of arrays
        What is said of the items that each query may have, row by row; on the host.
    count : int
        Number of queries.
    """

    arrays: tuple[Array, ...]
    here: bool
    first_stage: Callable[..., FirstStage]
    observed: int
    shortlist: int
    limits: tuple[HostArray, ...] = ()
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", int(self.arrays[0].shape[0]))

    def part(self, start: int, stop: int) -> Queries:
        """The queries from one row to another."""
        arrays, limits = (
            tuple(array[start:stop, ...] for array in some) for some in (self.arrays, self.limits)
        )
        return replace(self, arrays=arrays, limits=limits)

    def rows(self, backend: Backend) -> tuple[Array, ...]:
        """All that goes to the device row by row: arrays, then limits; all on the same side."""
        if not self.here:
            return *self.arrays, *self.limits
        return *self.arrays, *(backend.asarray(limit) for limit in self.limits)


def descriptor_queries(state: IndexState, queries: Any, request: Request) -> Queries:
    """Descriptors (m, d) as a query set of an index."""
    items = state.descriptors
    if items is None:
        items = state.required_descriptors("search")  # says what to do without them
    home = home_of(queries, state.backend)
    vectors = check_vectors(queries, "queries", dtype=state.dtype, backend=home)
    if vectors.shape[1] != items.shape[1]:
        raise ValueError(
            f"queries must have the index's {items.shape[1]} dimensions; got {vectors.shape[1]}."
        )
    observed = min(request.query_neighbors or state.n, state.n)

    def first_stage(state: IndexState, part: Array) -> FirstStage:
        return SimilarItems(state, unit_rows(part, state.backend), observed=observed)

    here = lives_here(queries, state.backend)
    return _limited(Queries((vectors,), here, first_stage, observed, request.shortlist), request)


def list_queries(
    state: IndexState, ids: Any, similarities: Any, metric: str, request: Request
) -> Queries:
    """The results (m, q) of another engine as a query set of an index."""
    home, here = home_of(ids, state.backend), lives_here(ids, state.backend)
    ids, similarities = batched(ids, similarities)
    if state.keys is not None:
        ids, similarities = state.keys.ids_of_lists(ids, similarities, metric)
    lists, values = check_neighbor_lists(
        ids, similarities, state.n, metric=metric, dtype=state.dtype, backend=home
    )
    # The first of them are what is seen of the query.
    lists, values = best_first_lists(lists, values, home.xp)
    length = lists.shape[1]
    observed = min(request.query_neighbors or length, length)

    def first_stage(state: IndexState, part_ids: Array, part_values: Array) -> FirstStage:
        places = state.numbering.to_places(part_ids, state.backend.xp)
        return GivenLists(state, places, part_values, observed)

    return _limited(Queries((lists, values), here, first_stage, observed, length), request)


def item_queries(
    state: IndexState, ids: Any, request: Request, seeds: Seeds | None = None
) -> Queries:
    """Items (m,) of an index as a query set of it, or sets of them."""
    if seeds is not None:
        return _seed_queries(ids, seeds, request, state.backend)
    home, here = home_of(ids, state.backend), lives_here(ids, state.backend)
    if state.keys is not None:
        ids = state.keys.ids_of(ids, "ids")
    items = check_item_ids(ids, state.n, backend=home)

    def first_stage(state: IndexState, part: Array) -> FirstStage:
        xp, device, descriptors = state.backend.xp, state.backend.device, state.descriptors
        places = state.numbering.to_places(part[:, None], xp)
        ones = xp.ones(places.shape, dtype=getattr(xp, state.dtype), device=device)
        observation = _observed(state, places, ones, request)
        if descriptors is None:
            return OwnItems(state, observation)
        queries = xp.take(descriptors, places[:, 0], axis=0)
        return SimilarItems(state, queries, observation=observation)

    return _limited(Queries((items,), here, first_stage, 1, request.shortlist), request)


def _seed_queries(ids: Any, seeds: Seeds, request: Request, backend: Backend) -> Queries:
    """Sets of weighted items; their weighted mean stands for a query where similarity is asked."""

    def first_stage(state: IndexState, part: Array, weights: Array) -> FirstStage:
        xp, backend, descriptors = state.backend.xp, state.backend, state.descriptors
        places = state.numbering.to_places(part, xp)
        observation = _observed(state, places, weights, request)
        if descriptors is None:
            return OwnItems(state, observation)
        sums = _weighted_sums(descriptors, Observation(places, weights, state.n), xp)
        return SimilarItems(state, unit_rows(sums, backend), observation=observation)

    here, arrays = lives_here(ids, backend), (seeds.ids, seeds.weights)
    if here:
        arrays = tuple(backend.asarray(array) for array in arrays)
    width = int(seeds.ids.shape[1])
    return _limited(Queries(arrays, here, first_stage, width, request.shortlist), request)


def _observed(state: IndexState, places: Array, weights: Array, request: Request) -> Observation:
    """Weighted items (m, q) as observations, in the normalization that was asked for."""
    if request.random_walk:
        weights = restart_weights(state, places, weights, request.filter)
    return Observation(places, weights, state.n)


def _weighted_sums(items: Array, observation: Observation, xp: Any) -> Array:
    """The sum (m, d) of the observed items of each query, each times its weight."""
    # One of each query at a time: all of them together may be many times the batch.
    places = xp.where(observation.ids < 0, xp.zeros_like(observation.ids), observation.ids)
    weights = xp.astype(observation.weights, items.dtype)
    sums = xp.take(items, places[:, 0], axis=0) * weights[:, :1]
    for number in range(1, places.shape[1]):
        one = xp.take(items, places[:, number], axis=0)
        sums = sums + one * weights[:, number : number + 1]
    return sums


def _limited(queries: Queries, request: Request) -> Queries:
    """A query set with what its request says of the items that each query may have."""
    if request.limits is None:
        return queries
    request.limits.check_rows(queries.count)
    return replace(queries, limits=request.limits.arrays)


def home_of(values: Any, backend: Backend) -> Backend:
    """Where an array is checked: where it lives, so that a large query set is not moved at once."""
    return backend if lives_here(values, backend) else select_backend("numpy")


def lives_here(values: Any, backend: Backend) -> bool:
    """Whether an array is one of the backend's library, or on any GPU: results stay there too."""
    if array_api_compat.is_array_api_obj(values):
        if array_api_compat.array_namespace(values) is backend.xp:
            return True
    return not is_on_host(values)
