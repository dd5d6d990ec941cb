"""The way of a query set through an index: observe, solve, rank, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import TopK
from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.diffusion.solution import Solution, not_converged
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.index.queries import Queries, descriptor_queries, item_queries, list_queries
from hybrid_gpu.ranking.first_stage import (
    FirstStage,
    SimilarItems,
    powered,
)
from hybrid_gpu.ranking.keys import Keys
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.seeds import Seeds
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import (
    LocalFacts,
    Ranked,
    Ranking,
    Report,
    Wanted,
    ranked_solution,
)
from hybrid_gpu.validation import (
    check_count,
)

# The graph is read once per step for all columns; beyond this many, that saving is used up.
_LARGEST_BATCH = 128
# Arrays of (n, batch) that are alive at the same time during a search.
_ARRAYS_PER_BATCH = 10
# What a query takes beside them at its peak, measured: for each observed or returned item, for each
# item of a shortlist, and, whatever the batch, for each edge of the graph that is cut out for one.
BYTES_PER_LISTED, _BYTES_PER_SHORTLISTED, _BYTES_PER_CUT_EDGE = 120, 16, 120


def search_descriptors(state: IndexState, queries: Any, request: Request) -> Ranking:
    """Rank the database for query descriptors (m, d)."""
    with state.backend.annotate("search"):
        return ranked(state, descriptor_queries(state, queries, request), request)


def search_lists(
    state: IndexState, ids: Any, similarities: Any, metric: str, request: Request
) -> Ranking:
    """Rank the database for the results (m, q) of another engine."""
    with state.backend.annotate("search"):
        return ranked(state, list_queries(state, ids, similarities, metric, request), request)


def search_own_items(
    state: IndexState, ids: Any, request: Request, seeds: Seeds | None = None
) -> Ranking:
    """Rank the database for some of its own items (m,), or for sets of them."""
    with state.backend.annotate("search"):
        return ranked(state, item_queries(state, ids, request, seeds), request)


def search_from_outside(
    state: IndexState, ids: Array, neighbors: Neighbors, request: Request
) -> Ranking:
    """Rank the database for some of its items (m,) as if they were not in it.

    Diffusion starts from the items' own lists (m, q) of neighbors, in which they are not. The rest
    is that of a search by descriptors.
    """
    state.required_descriptors("search")
    observed = min(request.query_neighbors or state.n, int(neighbors.ids.shape[1]))

    def first_stage(state: IndexState, part: Array, near: Array, similarities: Array) -> FirstStage:
        backend, xp, items = state.backend, state.backend.xp, state.descriptors
        places = state.numbering.to_places(near[:, :observed], xp)
        weights = powered(similarities[:, :observed], state.gamma, backend)
        queries = xp.take(items, xp.take(state.numbering.places, part), axis=0)
        return SimilarItems(state, queries, observation=Observation(places, weights, state.n))

    arrays = (ids, neighbors.ids, neighbors.similarities)
    queries = Queries(arrays, True, first_stage, observed, request.shortlist)
    with state.backend.annotate("search"):
        return ranked(state, queries, request)


def query_bytes(n: int, dtype: str) -> int:
    """Bytes that a query takes at its peak, beside its lists."""
    return _ARRAYS_PER_BATCH * n * np.dtype(dtype).itemsize


def batch_width(
    state: IndexState, batch: int | None, count: int, *, lists: int = 0, beside: int = 0
) -> int:
    """Queries to solve side by side: what was asked for, or what helps and fits into memory.

    ``lists`` are the bytes of each query's lists, ``beside`` those of all queries together.
    """
    if batch is not None:
        return min(check_count(batch, "batch"), count)
    if count == 1:
        return 1  # whatever memory allows: not worth the time to ask
    column = query_bytes(state.n, state.dtype) + lists
    # Half of it: other threads may search too, and think the same.
    room = state.backend.available_bytes() // 2 - beside
    return max(1, min(_LARGEST_BATCH, count, room // column))


def width_for(state: IndexState, queries: Queries, request: Request) -> int:
    """Queries of a set to solve side by side."""
    lists, beside = BYTES_PER_LISTED * max(queries.observed, request.k), 0
    if request.method.uses_shortlist:
        lists += _BYTES_PER_SHORTLISTED * queries.shortlist
        entries = state.graph.adjacency.data.shape[0]
        beside = _BYTES_PER_CUT_EDGE * entries * min(queries.shortlist, state.n) // state.n
    if request.random_walk:
        # Values beside the scores that they are made into, and residuals measured as such.
        lists += 2 * state.n * np.dtype(state.dtype).itemsize
    if request.limits is not None:
        # Scores that are cut to what is permitted, and what that is: by float32, then by bool.
        value = np.dtype(state.dtype).itemsize
        lists += state.n * (value + 5 * len(queries.limits))
        beside += 2 * state.n
    return batch_width(state, request.batch, queries.count, lists=lists, beside=beside)


def ranked(state: IndexState, queries: Queries, request: Request) -> Ranking:
    """Run all batches of a query set through observe, solve and rank; the device is current."""
    backend, progress, count = state.backend, request.progress, queries.count
    notes = list(state.notes) if request.method.diffuses else []
    if request.limits is not None:
        notes.extend(request.limits.notes)
    done = _Results(queries.here, backend)
    width = width_for(state, queries, request)
    while not _took_all(state, queries, request, width, done):
        # Outside of the function: what it held is free by now, its exception included.
        notes.append(f"out of memory with {width} queries at once: went on with {width // 2}")
        width //= 2
        backend.free_memory()
    if progress:
        progress("search", count, count)
    ranking = done.ranking(request, width, tuple(notes), state.keys)
    if request.stop.insists and done.missed_after is not None:
        raise not_converged(done.missed_after, request.stop.tolerance, result=ranking)
    return ranking


def _took_all(
    state: IndexState, queries: Queries, request: Request, width: int, done: _Results
) -> bool:
    """Rank what is left of a query set; whether memory was enough. What is ranked stays."""
    backend, count = state.backend, queries.count
    try:
        rows = queries.rows(backend) if queries.limits else queries.arrays
        for parts in backend.uploads(rows, done.queries, width):
            if request.progress:
                request.progress("search", done.queries, count)
            done.settle()
            _take_batch(state, queries, parts, request, done)
    except MemoryError as fault:  # CuPy's out-of-memory is one, too
        if width == 1:
            raise MemoryError(
                f"not enough memory on {backend.name} for one query on {state.n} items."
            ) from fault
        return False
    return True


def _take_batch(
    state: IndexState,
    queries: Queries,
    parts: tuple[Array, ...],
    request: Request,
    done: _Results,
) -> None:
    """Rank a batch. A function of its own: nothing of it is kept while the next one is made."""
    backend, given = state.backend, len(queries.arrays)
    with backend.stage("observe", done.times):
        found = queries.first_stage(state, *parts[:given])
        if request.limits is not None:
            permitted = request.limits.permitted(state, parts[given:])
            request = replace(request, permitted=permitted)
    if request.method.rank is not None:
        with backend.stage("solve", done.times):
            done.take(_good_enough(request.method.rank(state, found, request), request, backend))
        return
    with backend.stage("solve", done.times):
        solution = request.method.score(state, found, request)
        if request.degree_correction:
            solution = _degree_corrected(state, solution)
        if request.random_walk:
            solution = replace(solution, values=solution.values * state.roots())
    with backend.stage("rank", done.times):
        unreached = found.unreached if request.fill else None
        wanted = Wanted(request.k, unreached, request.permitted)
        best = ranked_solution(solution, wanted, backend, state.numbering)
        done.take(_good_enough(best, request, backend))


def _good_enough(ranked: Ranked, request: Request, backend: Backend) -> Ranked:
    """A ranking without results whose score is below the least that was asked for."""
    if request.min_score is None:
        return ranked
    xp, best = backend.xp, ranked.best
    # What is beyond the precision of the scores is beyond all of them.
    largest = float(xp.finfo(best.scores.dtype).max)
    good = best.scores >= min(max(request.min_score, -largest), largest)
    scores = xp.where(good, best.scores, xp.full_like(best.scores, -xp.inf))
    ids = xp.where(good, best.ids, -xp.ones_like(best.ids))
    return replace(ranked, best=TopK(scores=scores, ids=ids))


def _degree_corrected(state: IndexState, solution: Solution) -> Solution:
    """Scores divided by the root of the items' degrees."""
    correction = state.graph.degree_correction(state.backend)
    return replace(solution, values=solution.values * correction, filled=0)


class _Results:
    """What the batches gave so far, on its way to where the queries came from.

    ``missed_after`` are the steps after which some query had not reached its tolerance; None if
    every one has.
    """

    def __init__(self, here: bool, backend: Backend) -> None:
        self.queries = 0
        self.times: dict[str, list[Callable[[], float]]] = {
            "observe": [],
            "solve": [],
            "rank": [],
        }
        self.missed_after: int | None = None
        self._here, self._backend = here, backend
        self._parts: list[tuple[Callable[[], Array], ...]] = []
        self._residuals: list[Callable[[], Array]] = []
        self._local: list[tuple[Callable[[], Array], ...]] = []
        self._steps = 0
        self._truncation: float | None = None
        self._resolved = True

    def settle(self) -> None:
        """Have the results of the last batch at home: what they held on the device goes back.

        So does pinned memory: the results of a large query set may be too many for either. And
        what is left behind in a block of CuPy's pool keeps all of it from the next batch.
        """
        for arrived in (
            *(self._parts[-1] if self._parts else ()),
            *(self._local[-1] if self._local else ()),
            *self._residuals[-1:],
        ):
            arrived()

    def take(self, batch: Ranked) -> None:
        """Start to bring a batch's results home; nothing waits for them yet."""
        # All of it or nothing: memory may run out in between, and the batch is taken again.
        facts = batch.local
        parts = (self._sent(batch.best.ids), self._sent(batch.best.scores))
        if facts is not None:
            facts_of = (facts.settled, facts.rounds, facts.visited)
            self._local.append(tuple(self._sent(fact) for fact in facts_of))
        if batch.residuals is not None:
            self._residuals.append(self._sent(batch.residuals))
        self._parts.append(parts)
        self._steps = max(self._steps, batch.steps)
        self._truncation = batch.truncation
        self._resolved = self._resolved and batch.resolved
        if not batch.converged:
            self.missed_after = batch.steps
        self.queries += int(batch.best.ids.shape[0])

    def ranking(
        self, request: Request, width: int, notes: tuple[str, ...], keys: Keys | None
    ) -> Ranking:
        """All batches as one."""
        join = self._backend.xp.concat if self._here else np.concatenate
        ids, scores = (join([part() for part in parts]) for parts in zip(*self._parts, strict=True))
        parts = [part() for part in self._residuals]
        residuals, accuracy = (join(parts), request.stop.tolerance) if parts else (None, None)
        if residuals is None and self.missed_after is not None and self._truncation is not None:
            notes += (
                f"the expansion of the filter may be off by {self._truncation:.1e}, above the "
                f"accuracy {request.stop.tolerance:g}",
            )
        if accuracy is not None:
            notes += missed_note(residuals, accuracy, self._backend.xp if self._here else np)
        if not self._resolved:
            notes += unresolved_note(request.k, str(scores.dtype))
        facts = [join([part() for part in parts]) for parts in zip(*self._local, strict=True)]
        local = LocalFacts(*facts) if facts else None
        if local is not None:
            notes += unsettled_note(local.settled, self._backend.xp if self._here else np)
        report = Report(
            method=request.method.name,
            steps=self._steps,
            residuals=residuals,
            accuracy=accuracy,
            truncation=self._truncation,
            seconds={label: sum(one() for one in times) for label, times in self.times.items()},
            backend=self._backend.name,
            batch=width,
            notes=notes,
            local=local,
        )
        return Ranking(ids=ids, scores=scores, report=report, known=keys)

    def _sent(self, values: Array) -> Callable[[], Array]:
        return (lambda: values) if self._here else self._backend.download(values)


def unsettled_note(settled: Array, xp: Any) -> tuple[str, ...]:
    """A note if some queries of a local search were left to ``hybrid``."""
    left = int(xp.sum(xp.astype(~settled, xp.int64)))
    if not left:
        return ()
    return (f"{left} of {settled.shape[0]} queries did not settle locally: hybrid solved them",)


def unresolved_note(k: int, dtype: str) -> tuple[str, ...]:
    """The note that some rankings are longer than their scores are known."""
    advice = ", or build the index with dtype='float64'" if dtype.endswith("float32") else ""
    return (
        f"in some queries, scores at the end of the best {k} are below the error that rounding "
        f"leaves: ask for fewer items{advice}",
    )


def missed_note(residuals: Array, accuracy: float, xp: Any) -> tuple[str, ...]:
    """A note if some queries did not reach their accuracy."""
    missed = int(xp.sum(xp.astype(residuals > accuracy, xp.int64)))
    if not missed:
        return ()
    return (
        f"{missed} of {residuals.shape[0]} queries missed the accuracy {accuracy:g}; the worst "
        f"residual is {float(xp.max(residuals)):.1e}",
    )
