"""The way of a query set through an index: observe, solve, rank, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.backends.protocol import TopK
from hybrid_gpu.diffusion.filters import Filter, PageRank, as_filter
from hybrid_gpu.diffusion.observation import Observation, scatter
from hybrid_gpu.diffusion.solver import (
    Solution,
    Stopping,
    check_alpha_resolved,
    check_stopping,
    not_converged,
)
from hybrid_gpu.graph.neighbors import Neighbors, unit_rows
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking.methods import METHODS, Batch, Method
from hybrid_gpu.ranking.query_expansion import Expansion, expanded
from hybrid_gpu.ranking.top_items import Ranking, Report, refuse_nan, top_items
from hybrid_gpu.validation import (
    check_choice,
    check_count,
    check_item_ids,
    check_kind,
    check_neighbor_lists,
    check_sparsity,
    check_vectors,
    item_bytes,
)

if TYPE_CHECKING:
    from hybrid_gpu.index.diffusion_index import DiffusionIndex

_NAMES = ("auto", *METHODS)
_DEFAULT_SHORTLIST = 75_000
# The graph is read once per step for all columns; beyond this many, that saving is used up.
_LARGEST_BATCH = 128
# Arrays of (n, batch) that are alive at the same time during a search.
ARRAYS_PER_BATCH = 10
# What a query takes beside them at its peak, measured: for each observed or returned item, for each
# item of a shortlist, and, whatever the batch, for each edge of the graph that is cut out for one.
_BYTES_PER_LISTED, _BYTES_PER_SHORTLISTED, _BYTES_PER_CUT_EDGE = 80, 16, 120
# The weight of a query's best result is at least this, far from both ends of float64.
_LEAST_WEIGHT = 2.0**-500


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """What the keywords of ``search``, ``rerank`` and ``search_items`` say.

    ``fill`` is whether items that diffusion did not reach are ranked by their similarity.
    """

    k: int
    metric: str = "cosine"
    method: str = "auto"
    accuracy: str | float | None = None
    steps: int | None = None
    rtol: float | None = None
    filter: Filter | Callable[..., Any] | None = None
    query_neighbors: int | None = None
    shortlist: int | None = None
    sparsity: float = 0.99
    expansion: Expansion = field(default_factory=Expansion)
    batch: int | None = None
    progress: Progress | None = None
    fill: bool = True

    def __post_init__(self) -> None:
        check_choice(self.method, "method", _NAMES)
        check_kind(self.expansion, "expansion", Expansion, "Pass Expansion(neighbors=10, alpha=3).")
        check_sparsity(self.sparsity)


@dataclass(frozen=True, slots=True, eq=False)
class _FirstStage:
    """What the first stage of search found for some queries.

    ``unreached`` (m, n) orders the items that diffusion did not reach; -inf for those that nothing
    speaks for.
    """

    observation: Observation
    queries: Array | None
    similarities: Callable[[], Array]
    unreached: Callable[[], Array]
    shortlist: Callable[[], Array]
    nearest: Callable[[int], Neighbors]


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Items that a query observes, and items of its shortlist."""

    observed: int
    shortlist: int


def search_descriptors(index: DiffusionIndex, queries: Any, options: Options) -> Ranking:
    """Rank the database for query descriptors."""
    backend, items = index.backend, index.required_descriptors("search")
    with backend.annotate("search"):
        vectors = check_vectors(
            queries, "queries", dtype=index.dtype, backend=home_of(queries, backend)
        )
        if vectors.shape[1] != items.shape[1]:
            raise ValueError(
                f"queries must have the index's {items.shape[1]} dimensions; got "
                f"{vectors.shape[1]}."
            )
        found = index.n
        if options.query_neighbors is not None:
            found = min(check_count(options.query_neighbors, "query_neighbors"), index.n)
        kept = _shortlist_size(index, options)

        def first_stage(part: Array) -> _FirstStage:
            units = unit_rows(part, backend)
            similarities = backend.matmul(units, items.T)
            best = backend.top_k(similarities, found)
            refuse_nan(best.scores, backend)
            weights = _powered(best.scores, index.gamma, backend)
            return _FirstStage(
                Observation(best.ids, weights, index.n),
                units,
                lambda: similarities,
                lambda: similarities,
                lambda: backend.top_k(similarities, kept).ids,
                lambda count: _best(similarities, count, backend),
            )

        here = lives_here(queries, backend)
        return _rank(index, first_stage, (vectors,), here, options, _Lengths(found, kept))


def search_results(index: DiffusionIndex, ids: Any, similarities: Any, options: Options) -> Ranking:
    """Rank the database for the results of another engine."""
    backend = index.backend
    with backend.annotate("search"):
        lists, values = check_neighbor_lists(
            ids,
            similarities,
            index.n,
            metric=options.metric,
            dtype=index.dtype,
            backend=home_of(ids, backend),
        )
        count = lists.shape[1]
        if options.query_neighbors is not None:
            count = min(check_count(options.query_neighbors, "query_neighbors"), count)

        def first_stage(part_ids: Array, part_values: Array) -> _FirstStage:
            positive = backend.xp.clip(part_values, min=0)
            hits = Neighbors(part_ids[:, :count], positive[:, :count])
            return _FirstStage(
                Observation(hits.ids, _powered(hits.similarities, index.gamma, backend), index.n),
                None,
                lambda: _listed(part_ids, positive, index.n, backend)[0],
                lambda: _behind_lists(index, part_ids, part_values, hits),
                lambda: part_ids,
                lambda count: _first(part_ids, part_values, count),
            )

        here, lengths = lives_here(ids, backend), _Lengths(count, lists.shape[1])
        return _rank(index, first_stage, (lists, values), here, options, lengths)


def search_own_items(index: DiffusionIndex, ids: Any, options: Options) -> Ranking:
    """Rank the database for some of its own items."""
    backend, xp, vectors = index.backend, index.backend.xp, index.descriptors
    with backend.annotate("search"):
        items = check_item_ids(ids, index.n, backend=home_of(ids, backend))
        kept = _shortlist_size(index, options)

        def first_stage(part: Array) -> _FirstStage:
            itself = part[:, None]
            ones = xp.ones(itself.shape, dtype=getattr(xp, index.dtype), device=backend.device)
            hits = Neighbors(itself, ones)
            if vectors is None:
                queries = None
                products = _once(lambda: scatter(itself, ones, index.n, backend).T)
            else:
                queries = xp.take(vectors, part, axis=0)
                products = _once(lambda: backend.matmul(queries, vectors.T))
            return _FirstStage(
                Observation(itself, ones, index.n),
                queries,
                products,
                (lambda: _behind_lists(index, itself, ones, hits)) if vectors is None else products,
                lambda: backend.top_k(products(), kept).ids,
                lambda count: _best(products(), count, backend),
            )

        here = lives_here(ids, backend)
        return _rank(index, first_stage, (items,), here, options, _Lengths(1, kept))


def home_of(values: Any, backend: Backend) -> Backend:
    """Where an array is checked: where it lives, so that a large query set is not moved at once."""
    return backend if lives_here(values, backend) else select_backend("numpy")


def lives_here(values: Any, backend: Backend) -> bool:
    """Whether an array is on the backend's device, so that results stay there too."""
    if array_api_compat.is_array_api_obj(values):
        if array_api_compat.array_namespace(values) is backend.xp:
            return True
    kind = values.__dlpack_device__()[0] if hasattr(values, "__dlpack_device__") else 1
    return int(kind) != 1


def batch_width(
    index: DiffusionIndex, batch: int | None, count: int, *, lists: int = 0, beside: int = 0
) -> int:
    """Queries to solve side by side: what was asked for, or what helps and fits into memory.

    ``lists`` are the bytes of each query's lists, ``beside`` those of all queries together.
    """
    if batch is not None:
        return min(check_count(batch, "batch"), count)
    if count == 1:
        return 1  # whatever memory allows: not worth the time to ask
    column = ARRAYS_PER_BATCH * index.n * item_bytes(index.layout.graph.degrees) + lists
    # Half of it: other threads may search too, and think the same.
    room = index.backend.available_bytes() // 2 - beside
    return max(1, min(_LARGEST_BATCH, count, room // column))


def _rank(
    index: DiffusionIndex,
    first_stage: Callable[..., _FirstStage],
    arrays: tuple[Array, ...],
    here: bool,
    options: Options,
    lengths: _Lengths,
) -> Ranking:
    """Run all batches through observe, solve and rank."""
    backend, progress, count = index.backend, options.progress, arrays[0].shape[0]
    method = _method(index, options.method)
    k = min(check_count(options.k, "k"), index.n)
    filter, stop = _filter_and_stopping(index, method, options)
    lists = _BYTES_PER_LISTED * max(lengths.observed, k)
    beside = 0
    if method.name == "truncated":
        lists += _BYTES_PER_SHORTLISTED * lengths.shortlist
        entries = index.layout.graph.adjacency.data.shape[0]
        beside = _BYTES_PER_CUT_EDGE * entries * min(lengths.shortlist, index.n) // index.n
    width = batch_width(index, options.batch, count, lists=lists, beside=beside)
    done, notes = _Results(here, backend), []
    while done.queries < count:
        try:
            for parts in backend.uploads(arrays, done.queries, width):
                if progress:
                    progress("search", done.queries, count)
                with _stage("observe", done.seconds, backend):
                    found = first_stage(*parts)
                with _stage("solve", done.seconds, backend):
                    batch = _batch(index, found, filter, stop, options)
                    solution = method.score(batch)
                with _stage("rank", done.seconds, backend):
                    best = top_items(
                        solution.values,
                        k=k,
                        similarities=found.unreached if options.fill else None,
                        backend=backend,
                    )
                    done.take(_unscaled(best, solution, backend), solution)
        except MemoryError as fault:
            # CuPy's out-of-memory is a MemoryError too. What is ranked so far stays.
            if width == 1:
                raise MemoryError(
                    f"not enough memory on {backend.name} for one query on {index.n} items."
                ) from fault
            notes.append(f"out of memory with {width} queries at once: went on with {width // 2}")
            width //= 2
            backend.free_memory()
    if progress:
        progress("search", count, count)
    ranking = done.ranking(method.name, stop.tolerance, width, tuple(notes))
    if stop.insists and done.missed is not None:
        raise not_converged(done.missed, stop.tolerance, result=ranking)
    return ranking


def _unscaled(best: TopK, solution: Solution, backend: Backend) -> TopK:
    """The best items with their scores in the units of the observation."""
    if solution.scale is None:
        return best
    # Not before they are ranked: tiny scores would all become zero.
    scores = backend.xp.astype(best.scores * solution.scale, best.scores.dtype)
    return TopK(scores=scores, ids=best.ids)


class _Results:
    """What the batches gave so far, on its way to where the queries came from."""

    def __init__(self, here: bool, backend: Backend) -> None:
        self.queries = 0
        self.seconds = {"observe": 0.0, "solve": 0.0, "rank": 0.0}
        self.missed: Solution | None = None
        self._here, self._backend = here, backend
        self._parts: list[tuple[Callable[[], Array], ...]] = []
        self._residuals: list[Callable[[], Array]] = []
        self._steps = 0
        self._truncation: float | None = None

    def take(self, best: TopK, solution: Solution) -> None:
        """Start to bring a batch's results home; nothing waits for them yet."""
        self._parts.append((self._sent(best.ids), self._sent(best.scores)))
        if solution.residuals is not None:
            self._residuals.append(self._sent(solution.residuals))
        self._steps = max(self._steps, solution.steps)
        self._truncation = solution.truncation
        if not solution.converged:
            self.missed = Solution(None, None, solution.steps, converged=False)
        self.queries += int(best.ids.shape[0])

    def ranking(
        self, method: str, accuracy: float | None, width: int, notes: tuple[str, ...]
    ) -> Ranking:
        """All batches as one."""
        join = self._backend.xp.concat if self._here else np.concatenate
        ids, scores = (join([part() for part in parts]) for parts in zip(*self._parts, strict=True))
        parts = [part() for part in self._residuals]
        residuals = join(parts) if parts else None
        if residuals is None:
            accuracy = None
        elif accuracy is not None:
            notes += _missed(residuals, accuracy, self._backend.xp if self._here else np)
        report = Report(
            method=method,
            steps=self._steps,
            residuals=residuals,
            accuracy=accuracy,
            truncation=self._truncation,
            seconds=self.seconds,
            backend=self._backend.name,
            batch=width,
            notes=notes,
        )
        return Ranking(ids=ids, scores=scores, report=report)

    def _sent(self, values: Array) -> Callable[[], Array]:
        return (lambda: values) if self._here else self._backend.download(values)


def _missed(residuals: Array, accuracy: float, xp: Any) -> tuple[str, ...]:
    """A note if some queries did not reach their accuracy."""
    missed = int(xp.sum(xp.astype(residuals > accuracy, xp.int64)))
    if not missed:
        return ()
    return (
        f"{missed} of {residuals.shape[0]} queries missed the accuracy {accuracy:g}; the worst "
        f"residual is {float(xp.max(residuals)):.1e}",
    )


def _filter_and_stopping(
    index: DiffusionIndex, method: Method, options: Options
) -> tuple[Filter, Stopping]:
    filter = PageRank(index.alpha) if options.filter is None else as_filter(options.filter)
    if method.name == "precomputed":
        if filter != PageRank(index.required_columns().alpha):
            raise ValueError(
                f"the stored columns are those of PageRank({index.required_columns().alpha}); got "
                f"filter {filter!r}. Call precompute again, or use another method."
            )
    check_alpha_resolved(filter, index.dtype)
    stop = check_stopping(
        filter,
        steps=options.steps,
        rtol=options.rtol,
        accuracy=options.accuracy,
        default=method.steps,
    )
    if stop.tolerance is not None and not method.exact and isinstance(filter, PageRank):
        raise ValueError(
            f"method {method.name!r} takes steps={method.steps} or another number, and neither "
            "rtol nor accuracy: its steps solve a system of the paper's own, whose solution is "
            "the diffusion only if the eigenvectors are exact. Use method='hybrid' for an accuracy."
        )
    return filter, stop


def _batch(
    index: DiffusionIndex,
    found: _FirstStage,
    filter: Filter,
    stop: Stopping,
    options: Options,
) -> Batch:
    return Batch(
        layout=index.layout,
        basis=index.basis,
        descriptors=index.descriptors,
        observation=found.observation,
        queries=found.queries,
        similarities=found.similarities,
        shortlist=found.shortlist,
        nearest=found.nearest,
        expansion=options.expansion,
        eigenvectors=index.required_eigenvectors,
        sparse_eigenvectors=lambda: index.sparse_eigenvectors(options.sparsity),
        columns=index.required_columns,
        gamma=index.gamma,
        filter=filter,
        stop=stop,
        backend=index.backend,
    )


def _method(index: DiffusionIndex, name: str) -> Method:
    """The method of a name; what it needs is asked for now, not after hours of work."""
    method = METHODS["hybrid" if name == "auto" else name]
    if method.needs_eigenvectors:
        index.required_eigenvectors()
    if method.needs_descriptors:
        index.required_descriptors(f"method {name!r}")
    return method


def _listed(ids: Array, values: Array, n: int, backend: Backend) -> tuple[Array, Array]:
    """Lists (m, q) as (m, n): the mean value of each listed item, 0 elsewhere; which are listed."""
    xp = backend.xp
    times = scatter(ids, xp.ones_like(values), n, backend).T
    means = scatter(ids, values, n, backend).T / xp.clip(times, min=1)
    return means, times > 0


def _behind_lists(index: DiffusionIndex, ids: Array, values: Array, hits: Neighbors) -> Array:
    """How unreached items come for the lists (m, q) of another engine: an array (m, n).

    What is listed comes first, by its cosine; then, if there are descriptors, the rest by the
    cosine to the weighted mean of the hits, which stands for the query.
    """
    backend, xp, items = index.backend, index.backend.xp, index.descriptors
    means, listed = _listed(ids, values, index.n, backend)
    places, _ = _listed(ids, _places(ids, means, xp), index.n, backend)
    rest = xp.full(means.shape, -xp.inf, dtype=means.dtype, device=backend.device)
    if items is not None:
        origin = xp.zeros((ids.shape[0], items.shape[1]), dtype=items.dtype, device=backend.device)
        queries = expanded(origin, items, hits.ids, hits.similarities, index.gamma, backend)
        known = xp.max(xp.abs(queries), axis=1, keepdims=True) > 0
        rest = xp.where(known, xp.matmul(queries, items.T), rest)
    # Cosines lie in [-1, 1]: 3 lifts every listed item above all others. Places in the list, not
    # cosines, of which 3 would leave no digit beyond the seventh in float32.
    return xp.where(listed, 3 + places, rest)


def _places(ids: Array, means: Array, xp: Any) -> Array:
    """The place of every entry of the lists (m, q) among the values of its list, the least first.

    Entries of the same value share a place.
    """
    values = xp.take_along_axis(means, xp.clip(ids, min=0), axis=1)
    order = xp.argsort(values, axis=1)
    ascending = xp.take_along_axis(values, order, axis=1)
    rises = xp.astype(ascending[:, 1:] > ascending[:, :-1], values.dtype)
    places = xp.cumulative_sum(rises, axis=1, include_initial=True)
    return xp.take_along_axis(places, xp.argsort(order, axis=1), axis=1)


def _first(ids: Array, similarities: Array, count: int) -> Neighbors:
    count = min(count, ids.shape[1])
    return Neighbors(ids[:, :count], similarities[:, :count])


def _best(similarities: Array, count: int, backend: Backend) -> Neighbors:
    best = backend.top_k(similarities, min(count, similarities.shape[1]))
    return Neighbors(best.ids, best.scores)


def _shortlist_size(index: DiffusionIndex, options: Options) -> int:
    if options.shortlist is None:
        return min(_DEFAULT_SHORTLIST, index.n)
    return check_count(options.shortlist, "shortlist", high=index.n)


@contextmanager
def _stage(label: str, seconds: dict[str, float], backend: Backend) -> Iterator[None]:
    start = time.perf_counter()
    with backend.annotate(label):
        yield
    backend.synchronize()
    seconds[label] += time.perf_counter() - start


def _powered(similarities: Array, gamma: float, backend: Backend) -> Array:
    """The weights of first-stage results, ``similarity ** gamma``; 0 for negative ones."""
    xp = backend.xp
    # In float64: the third power of a small cosine leaves the range of float32.
    positive = xp.clip(xp.astype(similarities, xp.float64), min=0)
    largest = xp.max(positive, axis=1, keepdims=True)
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    # Large powers leave that of float64, too: what ranks are the ratios to the best result.
    unit = xp.clip(largest**gamma, min=_LEAST_WEIGHT)
    return (positive / largest) ** gamma * unit


def _once(make: Callable[[], Array]) -> Callable[[], Array]:
    """The same value at every call, made at the first."""
    made: list[Array] = []

    def value() -> Array:
        if not made:
            made.append(make())
        return made[0]

    return value
