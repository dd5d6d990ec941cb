"""What every hit of a query gave to some items, and the paths that carried most of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.graph.routes import Route, best_routes
from hybrid_gpu.index.explanations import Explanation, GraphPath, Hit
from hybrid_gpu.ranking.first_stage import FirstStage, OwnItems
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.state import IndexState

# A bound on the error above this part of the score is told.
_ROUGH = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class SolvedQuery:
    """A query and some items, solved; everything on the host and by places.

    Attributes
    ----------
    items : int64 array of shape (m,)
    hits : dict
        The weights of the hits, over ``scale``; hits of weight 0 are among them.
    scores : float64 array of shape (n,)
        Of the query, over ``scale``.
    columns : float64 array of shape (hits, m)
        What each hit would give to each item if its weight were 1.
    similar, fallback : float64 arrays of shape (n,)
        Similarities, and what orders items that are not reached.
    listed : set of int or None
        The items whose similarity is known; None for all.
    limits : float64 array of shape (n,)
        What no path from a hit to each item exceeds.
    correction : float64 array of shape (n,)
        What scores are multiplied with at the end.
    errors : float64 array of shape (m,)
        Bounds on the error of each item's score, over ``scale``.
    """

    state: IndexState
    alpha: float
    scale: float
    items: NDArray[np.int64]
    hits: Mapping[int, float]
    scores: NDArray[np.float64]
    columns: NDArray[np.float64]
    similar: NDArray[np.float64]
    fallback: NDArray[np.float64]
    listed: frozenset[int] | None
    limits: NDArray[np.float64]
    correction: NDArray[np.float64]
    errors: NDArray[np.float64]

    def explanation(self, number: int, count: int, most_visits: int) -> Explanation:
        """The explanation of one of the items."""
        place = int(self.items[number])
        known = self.listed is None or place in self.listed
        labels = self.state.graph.components
        reached = any(weight and labels[hit] == labels[place] for hit, weight in self.hits.items())
        gain = self.scale * float(self.correction[place])
        parts = np.array(list(self.hits.values())) * self.columns[:, number] * gain
        score, error = float(np.sum(parts)), gain * float(self.errors[number])
        one = Explanation(
            id=int(self._names[place]),
            key=self._keys([place])[0],
            similarity=float(self.similar[place]) if known else None,
            plain_rank=self._plain_rank(place) if known else None,
            score=score,
            rank=self._rank(place),
            reached=reached,
            hits=self._hits(parts, score),
            paths=(),
            alpha=self.alpha,
            error=error if reached else 0.0,
            notes=() if reached else ("diffusion does not reach it: no edges lead from a hit",),
        )
        return self._with_paths(one, place, count, most_visits) if reached else one

    @property
    def _names(self) -> NDArray[np.int64]:
        return self.state.host_edges().names

    def _keys(self, places: Sequence[int]) -> tuple[Any, ...]:
        ids = self._names[np.asarray(places, np.int64)]
        keys = ids if self.state.keys is None else self.state.keys.of(ids)
        return tuple(keys.tolist())

    def _hits(self, parts: NDArray[np.float64], score: float) -> tuple[Hit, ...]:
        keys, places = self._keys(list(self.hits)), list(self.hits)
        return tuple(
            Hit(
                id=int(self._names[place]),
                key=key,
                similarity=float(self.similar[place]),
                weight=self.hits[place] * self.scale,
                contribution=float(part),
                share=float(part) / score if score else 0.0,
            )
            for place, key, part in zip(places, keys, parts, strict=True)
        )

    def _with_paths(
        self, one: Explanation, place: int, count: int, most_visits: int
    ) -> Explanation:
        """The explanation with the paths that carried most."""
        labels = self.state.graph.components
        joined = {hit: weight for hit, weight in self.hits.items() if labels[hit] == labels[place]}
        starts = {hit: abs(weight) for hit, weight in joined.items() if weight}
        routes = best_routes(
            self.state.host_edges(),
            starts,
            place,
            step=self.alpha,
            count=count,
            most_visits=most_visits,
            limits=self.limits,
        )
        notes = []
        if routes.cut:
            notes.append(
                f"the search for paths was cut after {routes.visited} items: there may be better "
                "ones"
            )
        if one.error > _ROUGH * abs(one.score):
            notes.append(f"the score is small: its error is up to {one.error:.1g}")
        gain = (1 - self.alpha) * self.scale * float(self.correction[place])
        paths = tuple(self._path(route, gain, one.score) for route in routes.found)
        return replace(one, paths=paths, notes=tuple(notes))

    def _path(self, route: Route, gain: float, score: float) -> GraphPath:
        roots = np.sqrt(self._degrees(route.places))
        sign = 1 if self.hits[route.places[0]] > 0 else -1
        contribution = sign * gain * route.value
        return GraphPath(
            ids=tuple(self._names[list(route.places)].tolist()),
            keys=self._keys(route.places),
            weights=route.weights,
            affinities=tuple((roots[:-1] * roots[1:] * route.weights).tolist()),
            contribution=contribution,
            share=contribution / score if score else 0.0,
        )

    def _degrees(self, places: Sequence[int]) -> NDArray[np.float64]:
        state = self.state
        with state.backend.annotate("explain"):
            chosen = state.backend.asarray(np.asarray(places, np.int64))
            degrees = state.backend.xp.take(state.graph.degrees, chosen)
            return np.asarray(state.backend.to_numpy(degrees), np.float64)

    def _plain_rank(self, place: int) -> int:
        some: Any = slice(None) if self.listed is None else sorted(self.listed)
        return 1 + _before(
            self.similar[some], self._names[some], self.similar[place], self._names[place]
        )

    def _rank(self, place: int) -> int | None:
        """Positive scores, then zeros by what orders them, then negative scores, as in a search."""
        values, names = self.scores * self.correction, self._names
        own, name = values[place], names[place]
        zeros = (values == 0) & (self.fallback > -np.inf)
        if own > 0:
            return 1 + _before(values, names, own, name)
        if own == 0:
            if not zeros[place]:
                return None
            level = _before(self.fallback[zeros], names[zeros], self.fallback[place], name)
            return 1 + int(np.sum(values > 0)) + level
        below = values < 0
        return (
            1
            + int(np.sum(values > 0) + np.sum(zeros))
            + _before(values[below], names[below], own, name)
        )


def _before(values: Any, names: Any, own: Any, name: Any) -> int:
    """How many come before an item: larger values, and equal ones of a lower id."""
    return int(np.sum((values > own) | ((values == own) & (names < name))))


def solved_query(
    state: IndexState, found: FirstStage, places: Any, request: Request
) -> SolvedQuery:
    """Solve for the query, and for the hits or for the items, each as if it were the query."""
    backend, xp, score = state.backend, state.backend.xp, request.method.score
    alpha = request.filter.resolvent
    assert alpha is not None, "explain takes an alpha, and no other filter"
    items, hits = _host(places, state)[:, 0].astype(np.int64), _hit_weights(state, found)
    forward = sizes = score(state, found, request)
    if request.signed:
        # Of the weights without their signs: what bounds the size of every path.
        plain = replace(found.observation, weights=xp.abs(found.observation.weights))
        sizes = score(state, OwnItems(state, plain), request)
    weights = np.array(list(hits.values()))
    columns, errors = _columns(state, np.array(list(hits), np.int64), items, request)
    listed = None
    if found.queries is None:
        listed = frozenset(_host(found.nearest(state.n).ids, state)[0].astype(int).tolist()) - {-1}
    slack = _error(sizes, float(np.linalg.norm(weights)))
    return SolvedQuery(
        state=state,
        alpha=alpha,
        scale=float(_host(found.scale, state)[0, 0]),
        items=items,
        hits=hits,
        scores=_host(forward.values, state)[:, 0],
        columns=columns,
        similar=_host(found.similarities(), state)[0],
        fallback=_host(found.unreached(), state)[0],
        listed=listed,
        limits=(_host(sizes.values, state)[:, 0] + slack) / (1 - alpha),
        correction=_host(state.graph.degree_correction(backend), state)[:, 0]
        if request.degree_correction
        else np.ones(state.n),
        errors=np.abs(weights) @ errors,
    )


def _hit_weights(state: IndexState, found: FirstStage) -> dict[int, float]:
    """The weights of the observed places; those of one that comes twice add up."""
    hits: dict[int, float] = {}
    places = _host(found.observation.ids, state)[0].astype(int).tolist()
    for place, weight in zip(places, _host(found.weights, state)[0].tolist(), strict=True):
        if place >= 0:
            hits[place] = hits.get(place, 0.0) + weight
    return hits


def _columns(
    state: IndexState, hits: NDArray[np.int64], items: NDArray[np.int64], request: Request
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each hit of weight 1 gives to each item (hits, items), and bounds on the errors."""
    backend, xp = state.backend, state.backend.xp
    # The graph is symmetric: an item gives to a hit what the hit gives to it. The fewer are solved.
    by_hit = len(hits) <= len(items)
    sources, targets = (hits, items) if by_hit else (items, hits)
    places = backend.asarray(sources[:, None])
    ones = xp.ones(places.shape, dtype=getattr(xp, state.dtype), device=backend.device)
    unit = OwnItems(state, Observation(places, ones, state.n))
    solution = request.method.score(state, unit, request)
    # The true values are not negative; what is below zero is left of the solver's steps.
    given = np.maximum(_host(solution.values, state)[targets, :], 0.0)
    errors = np.broadcast_to(_host(solution.residuals, state), given.shape)
    return (given.T, errors.T) if by_hit else (given, errors)


def _error(solution: Any, norm: float) -> float:
    """A bound on the error of every score of a solution, over its scale."""
    # The residual is relative to 1 - alpha times the observation, and the eigenvalues of the system
    # are 1 - alpha or more: the two cancel.
    return float(solution.residuals[0]) * norm


def _host(values: Any, state: IndexState) -> NDArray[np.float64]:
    return np.asarray(state.backend.to_numpy(values), np.float64)
