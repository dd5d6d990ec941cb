"""Rankings by local search: most queries visit a few thousand items, and the rest is solved whole.

A query that did not settle in all the room there is for it is solved by ``hybrid``. What becomes of
a query does not depend on the others.

A search with limits asks for more items than k, as many for each query, of which the permitted ones
are kept; queries with too few of them are solved whole.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.local_records import LocalAnswer
from hybrid_gpu.backends.protocol import TopK
from hybrid_gpu.diffusion.diffuse import diffused
from hybrid_gpu.diffusion.local import ROOMS, effort_for, items_around, most_room
from hybrid_gpu.diffusion.solution import Solution
from hybrid_gpu.ranking.first_stage import FirstStage
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import LocalFacts, Ranked, Wanted, best_items

# Rankings of more than this part of all items are solved whole in less time, longer ones were not
# measured (``bench/local_or_hybrid.py``, ``bench/latency.py``).
_PART_OF_ITEMS, _MOST_RANKED = 200, 1000
# A walk that has to visit more than this part of all items is solved whole in less time.
_PART_OF_WALK = 16
# With limits, so many times as many items are asked for as are expected to do.
_SPARE = 2


def worth_local(state: IndexState, request: Request) -> bool:
    """Whether ``auto`` takes ``local``: by the index and what is asked, never by the batch."""
    # What is closed to a query might be in its ranking: so many more are asked for.
    closed = 0 if request.limits is None else request.limits.closed
    return (
        state.local
        and request.k + closed <= min(state.n // _PART_OF_ITEMS, _MOST_RANKED)
        and request.stop.at_ranking
        and request.filter.resolvent is not None
        and not request.degree_correction
        and not request.signed
        and not (request.random_walk and _PART_OF_WALK * items_around(state.hub()) > state.n)
    )


def check_local(state: IndexState, request: Request) -> None:
    """Refuse what a local search cannot do, with what to do instead."""
    state.required_groups()
    if request.filter.resolvent is None:
        raise ValueError(
            f"method 'local' diffuses by PageRank; got filter {request.filter!r}. Use "
            "method='hybrid' for other filters."
        )
    if request.degree_correction:
        raise ValueError(
            "method 'local' visits the items with the best scores, not those with the best ones "
            "after a correction. Leave degree_correction out, or use method='hybrid'."
        )
    if request.signed:
        raise ValueError(
            "method 'local' goes where scores are high, and takes no negative weights. Use "
            "method='hybrid'."
        )
    if not request.stop.at_ranking:
        raise ValueError(
            "method 'local' stops when the ranking is right, and takes neither steps nor rtol nor "
            "another accuracy than 'ranking'. Leave them out, or use method='hybrid'."
        )


def local_ranking(state: IndexState, first_stage: FirstStage, request: Request) -> Ranked:
    """The best items of a batch, by local search where that settles."""
    backend, xp = state.backend, state.backend.xp
    wide = _asked(state, request)
    if wide is None:
        return _whole_ranking(state, first_stage, request)
    answer = _searched(state, first_stage, request, wide)
    if request.permitted is not None:
        answer = _permitted(answer, request.permitted, request.k, xp)
    best = TopK(scores=answer.scores, ids=state.numbering.to_ids(answer.places, xp))
    steps, converged, resolved = int(xp.max(answer.steps)), True, True
    # Diffusion reaches fewer than k items of small components: the rest is filled up.
    (short,) = xp.nonzero(answer.settled & (answer.found < request.k))
    if short.shape[0]:
        places, scores = (xp.take(part, short, axis=0) for part in (answer.places, answer.scores))
        reached = backend.place(places, scores, state.n)
        best = _replaced(best, short, _best_of(state, first_stage, request, reached, short), xp)
    (missed,) = xp.nonzero(~answer.settled)
    if missed.shape[0]:
        solved = _solved(state, first_stage, request, missed)
        steps, converged, resolved = max(steps, solved.steps), solved.converged, solved.resolved
        whole = _best_of(state, first_stage, request, solved.values, missed)
        best = _replaced(best, missed, whole, xp)
    scores = xp.astype(best.scores * first_stage.scale, best.scores.dtype)
    return Ranked(
        best=TopK(scores=scores, ids=best.ids),
        residuals=None,
        steps=steps,
        converged=converged,
        resolved=resolved,
        local=LocalFacts(answer.settled, answer.rounds, answer.visited),
    )


def _asked(state: IndexState, request: Request) -> int | None:
    """How many items a local search is asked for; None if it would be too many.

    With limits, so many that k are left for sure, or else that k are to be expected.
    """
    if request.limits is None:
        return request.k
    closed = request.limits.closed
    if request.k + closed <= min(_MOST_RANKED, state.n):
        return request.k + closed
    expected = _SPARE * request.k * state.n // max(1, state.n - closed)
    return expected if expected <= min(_MOST_RANKED, state.n) else None


def _permitted(answer: LocalAnswer, permitted: Array, k: int, xp: Any) -> LocalAnswer:
    """The best k of an answer that are permitted; settled if these are k, or there are no more."""
    count, wide = answer.places.shape
    rows = xp.broadcast_to(permitted.T, (count, permitted.shape[0]))
    known = answer.places >= 0
    kept = known & xp.take_along_axis(rows, xp.clip(answer.places, min=0), axis=1)
    order = xp.argsort(xp.astype(~kept, xp.int64), axis=1, stable=True)[:, :k]
    places = xp.where(kept, answer.places, -xp.ones_like(answer.places))
    scores = xp.where(kept, answer.scores, xp.zeros_like(answer.scores))
    found = xp.sum(xp.astype(kept, xp.int64), axis=1)
    enough = (found >= k) | (answer.found < wide)
    return replace(
        answer,
        places=xp.take_along_axis(places, order, axis=1),
        scores=xp.take_along_axis(scores, order, axis=1),
        found=xp.clip(found, max=k),
        settled=answer.settled & enough,
    )


def _whole_ranking(state: IndexState, first_stage: FirstStage, request: Request) -> Ranked:
    """The best items of a batch, every query solved on the whole graph."""
    xp, device = state.backend.xp, state.backend.device
    every = xp.arange(first_stage.observation.queries, dtype=xp.int64, device=device)
    solved = _solved(state, first_stage, request, every)
    best = _best_of(state, first_stage, request, solved.values, every)
    scores = xp.astype(best.scores * first_stage.scale, best.scores.dtype)
    nowhere = xp.zeros_like(every)
    return Ranked(
        best=TopK(scores=scores, ids=best.ids),
        residuals=None,
        steps=solved.steps,
        converged=solved.converged,
        resolved=solved.resolved,
        local=LocalFacts(nowhere > 0, nowhere, nowhere),
    )


def _searched(
    state: IndexState, first_stage: FirstStage, request: Request, wide: int
) -> LocalAnswer:
    """The best ``wide`` items of a batch, in more and more room, or in all of it."""
    xp, alpha = state.backend.xp, request.filter.resolvent
    assert alpha is not None, "checked before any search"
    problem = state.local_problem(alpha)
    places, weights = first_stage.observation.ids, first_stage.weights
    answer: LocalAnswer | None = None
    numbers = xp.arange(places.shape[0], dtype=xp.int64, device=state.backend.device)
    most, hub = most_room(state.n), state.hub() if request.random_walk else None
    # The native core takes of its room what a query needs, and goes on where it is: it begins with
    # the largest. Array operations take it for all queries at once, and begin again.
    for room in ROOMS[-1:] if state.backend.searches_locally else ROOMS:
        some, values = (xp.take(part, numbers, axis=0) for part in (places, weights))
        effort = effort_for(wide, alpha, min(room, most), kept=request.k, hub=hub)
        again = state.backend.local_search(problem, some, values, wide, effort)
        answer = again if answer is None else _joined(answer, numbers, again, xp)
        (numbers,) = xp.nonzero(~answer.settled)
        if numbers.shape[0] == 0 or room >= most:
            break
    assert answer is not None
    return answer


def _solved(state: IndexState, first_stage: FirstStage, request: Request, rows: Array) -> Solution:
    """The diffusion of some of the queries on the whole graph."""
    take, backend = state.backend.xp.take, state.backend
    places = take(first_stage.observation.ids, rows, axis=0)
    weights = take(first_stage.weights, rows, axis=0)
    right_side = backend.place(places, weights, state.n)
    watched = None
    if request.permitted is not None:
        watched = take(request.permitted & first_stage.reachable(), rows, axis=1)
    roots = state.roots() if request.random_walk else None
    solution = diffused(
        state.graph.adjacency,
        right_side,
        state.basis,
        request.filter,
        request.stop,
        backend,
        watched=watched,
        roots=roots,
    )
    return solution if roots is None else replace(solution, values=solution.values * roots)


def _permitted_to(request: Request, rows: Array, xp: Any) -> Array | None:
    """What is permitted to some of the queries."""
    permitted = request.permitted
    if permitted is None or permitted.shape[1] == 1:
        return permitted
    return xp.take(permitted, rows, axis=1)


def _best_of(
    state: IndexState, first_stage: FirstStage, request: Request, scores: Array, rows: Array
) -> TopK:
    """The best items by the scores (n, s) of some of the queries, by the user's ids."""
    xp = state.backend.xp
    similar = (lambda: xp.take(first_stage.unreached(), rows, axis=0)) if request.fill else None
    wanted = Wanted(request.k, similar, _permitted_to(request, rows, xp))
    return best_items(scores, wanted, state.backend, state.numbering)


def _replaced(best: TopK, rows: Array, others: TopK, xp: Any) -> TopK:
    """The same with other rows at some places."""
    return TopK(
        scores=_with_rows(best.scores, rows, others.scores, xp),
        ids=_with_rows(best.ids, rows, others.ids, xp),
    )


def _joined(answer: LocalAnswer, rows: Array, again: LocalAnswer, xp: Any) -> LocalAnswer:
    """An answer with other answers to some of its queries."""
    parts = {
        part.name: _with_rows(getattr(answer, part.name), rows, getattr(again, part.name), xp)
        for part in fields(answer)
    }
    return LocalAnswer(**parts)


def _with_rows(values: Array, rows: Array, others: Array, xp: Any) -> Array:
    """An array with others in the place of some of its rows, which are numbered upward."""
    count = values.shape[0]
    every = xp.arange(count, dtype=xp.int64, device=rows.device)
    # Where each row stands among the others, if it is one of them.
    place = xp.searchsorted(rows, every)
    known = xp.take(rows, xp.clip(place, max=rows.shape[0] - 1)) == every
    chosen = xp.where(known, count + place, every)
    return xp.take(xp.concat([values, others]), chosen, axis=0)
