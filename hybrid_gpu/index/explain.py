"""Why an item is ranked where it is: what each hit gave to its score, and along which edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.choices import ArrayInput, MetricName
from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.graph.routes import Route, best_routes
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.queries import descriptor_queries, item_queries, list_queries
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.first_stage import FirstStage, OwnItems
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.seeds import seeds_of
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.validation import check_count, check_item_ids, check_kind, is_bool, shown

# Residuals of the two systems: what the precision of the scores allows for.
_ACCURACY = {"float32": 1e-6, "float64": 1e-12}
# A bound on the error above this part of the score is told.
_ROUGH = 0.01
_QUERY_FORMS = (
    "a vector (d,), an item of the index, a dict of items and weights, or ids with similarities="
)


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """An item that diffusion started from.

    Attributes
    ----------
    id : int
    key : int or str
        The user's own name of it; the id if the index has no keys.
    similarity : float
        Of the query and the item; its own weight where no similarity is known.
    weight : float
        Its weight in the observation: the similarity to the power of ``index.gamma``.
    contribution, share : float
        What came from it, in units of the score, and as a part of the score.
    """

    id: int
    key: Any
    similarity: float
    weight: float
    contribution: float
    share: float

    def __repr__(self) -> str:
        return f"Hit({self.key!r}, {100 * self.share:.1f} % of the score)"


@dataclass(frozen=True, slots=True, eq=False)
class GraphPath:
    """A chain of edges from a hit to the item, and what came along it.

    Attributes
    ----------
    ids : tuple of int
        The items on it: the hit first, the item last. One item if it is a hit itself.
    keys : tuple
        The user's own names of them; the ids if the index has no keys.
    weights : tuple of float
        The weight of each edge in the normalized graph: what a step along it passes on.
    affinities : tuple of float
        The weight of each edge before that: the similarity to the power of ``index.gamma``, or
        what the user's own graph says.
    contribution, share : float
        ``(1 - alpha) * weight of the hit * product of alpha * weights``, and its part of the score.
        Longer walks that turn back on the way are not in it.
    """

    ids: tuple[int, ...]
    keys: tuple[Any, ...]
    weights: tuple[float, ...]
    affinities: tuple[float, ...]
    contribution: float
    share: float

    def __repr__(self) -> str:
        return f"GraphPath({_drawn(self.keys)}, {100 * self.share:.1f} % of the score)"


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Why an item is ranked where it is.

    Attributes
    ----------
    id : int
        The item.
    key : int or str
        The user's own name of it; the id if the index has no keys.
    similarity : float or None
        Of the query and the item; None if it is not known.
    plain_rank : int or None
        Its place by similarity alone, from 1; None if it has none.
    score : float
        What diffusion gives it: the sum of ``contribution`` over the hits.
    rank : int or None
        Its place by diffusion, from 1, items that diffusion does not reach by their similarity;
        None if nothing is known of it.
    reached : bool
        Whether edges lead from a hit to the item.
    hits : tuple of Hit
        What diffusion started from, in the order of the first stage.
    paths : tuple of GraphPath
        The paths that carried most of the score, each from another hit, the best first.
    alpha : float
    error : float
        A bound on the error of the score: the solver stops at a residual.
    notes : tuple of str
        What a user may want to know: that the item is not reached, that the search for paths was
        cut, that the score is small beside its error.
    """

    id: int
    key: Any
    similarity: float | None
    plain_rank: int | None
    score: float
    rank: int | None
    reached: bool
    hits: tuple[Hit, ...]
    paths: tuple[GraphPath, ...]
    alpha: float
    error: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ranks = f"{self.rank or 'no rank'} by diffusion, {self.plain_rank or 'none'} by similarity"
        why = "not reached by diffusion"
        if self.paths:
            best = self.paths[0]
            why = f"{100 * best.share:.0f} % of its score along {_drawn(best.keys)}"
        return f"Explanation({self.key!r}: {ranks}; {why})"


def explain(
    index: DiffusionIndex,
    query: ArrayInput | Mapping[Any, float] | str | int,
    item: str | int,
    *,
    similarities: ArrayInput | None = None,
    metric: MetricName = "cosine",
    alpha: float | None = None,
    degree_correction: bool = False,
    query_neighbors: int | None = 5,
    paths: int = 1,
    most_visits: int = 100_000,
) -> Explanation:
    """Why an item is ranked where it is for a query.

    The score of diffusion is a sum over all walks along edges from a hit to the item. What each
    hit gave is computed by a solve, and adds up to the score. The path is the walk that gave most:
    the chain of the largest product, found by a search that proves it.

    Parameters
    ----------
    query
        A vector (d,), as one of ``search``; an item, as one of ``search_items``, or a dict of items
        and weights; or the ids of another engine's results, best first, with ``similarities``, as
        those of ``rerank``. Keys, if the index has keys.
    item
        The item to explain: its id, or its key if the index has keys.
    similarities, metric
        What the other engine says of the ids, as in ``rerank``.
    alpha, degree_correction, query_neighbors
        As in ``search``.
    paths
        Paths to show, each from another hit.
    most_visits
        The most items that the search for paths looks at; ``notes`` tell if it was cut there.

    Returns
    -------
    Explanation

    Notes
    -----
    Scores and ranks are those of diffusion solved as far as the precision allows. A search stops
    earlier, so that ranks of items whose scores are close to each other may differ there.

    Examples
    --------
    Three items in a row: the last one has no edge to the first, and its score came by the second.

    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = csr_array([[0, 1.0, 0], [1, 0, 1], [0, 1, 0]])
    >>> index = hg.build_index_from_graph(graph, alpha=0.9, keys=["a", "b", "c"])
    >>> hg.explain(index, "a", "c")
    Explanation('c': 3 by diffusion, none by similarity; 19 % of its score along 'a' → 'b' → 'c')
    """
    check_kind(index, "index", DiffusionIndex, "Pass one made by build_index or load_index.")
    if not isinstance(item, (str, int, np.integer)) or is_bool(item):
        raise TypeError(f"item must be one item of the index; got {shown(item)}.")
    asked = Asked(query, similarities, metric, alpha, degree_correction, query_neighbors)
    (one,) = explain_items(index, asked, [item], paths=paths, most_visits=most_visits)
    return one


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A query as users write it, and how it is diffused; see ``explain``."""

    query: Any
    similarities: Any = None
    metric: str = "cosine"
    alpha: float | None = None
    degree_correction: bool = False
    query_neighbors: int | None = 5


def explain_items(
    index: DiffusionIndex,
    asked: Asked,
    items: Sequence[Any],
    *,
    paths: int = 1,
    most_visits: int = 100_000,
) -> list[Explanation]:
    """``explain`` for several items of one query, which are solved side by side."""
    state = index.state
    check_count(paths, "paths")
    check_count(most_visits, "most_visits")
    ids = state.keys.ids_of(items, "item") if state.keys is not None else items
    with state.backend.annotate("explain"):
        checked = check_item_ids(ids, state.n, backend=state.backend)
        places = state.numbering.to_places(checked[:, None], state.backend.xp)
        seeds = seeds_of(state, [asked.query], None) if isinstance(asked.query, Mapping) else None
        request = requested(
            state,
            k=1,
            method="hybrid",
            accuracy=_ACCURACY[state.dtype],
            alpha=asked.alpha,
            degree_correction=asked.degree_correction,
            query_neighbors=asked.query_neighbors,
            signed=seeds is not None and seeds.signed,
        )
        found = _first_stage(state, asked, request, seeds)
        solved = _solved(state, found, places, request)
    return [solved.explanation(column, paths, most_visits) for column in range(len(ids))]


def _first_stage(state: IndexState, asked: Asked, request: Request, seeds: Any) -> FirstStage:
    """What is known of the items for the query before diffusion."""
    query: Any = asked.query
    if seeds is not None:
        queries = item_queries(state, [query], request, seeds)
    elif asked.similarities is not None:
        ids, values = _row(query, "query"), _row(asked.similarities, "similarities")
        queries = list_queries(state, ids, values, asked.metric, request)
    elif isinstance(query, (str, int, np.integer)) and not is_bool(query):
        queries = item_queries(state, [query], request)
    else:
        queries = descriptor_queries(state, _row(query, "query"), request)
    return queries.first_stage(state, *map(state.backend.asarray, queries.arrays))


def _row(values: Any, what: str) -> Any:
    """One row (1, q) of what a user gives as (q,) or (1, q), on the host."""
    plain = isinstance(values, (list, tuple)) and any(isinstance(one, str) for one in values)
    array = np.asarray(values, dtype=object) if plain else np.asarray(host_copy(values))
    if array.ndim == 1:
        return array[None, :]
    if array.ndim == 2 and array.shape[0] == 1:
        return array
    raise ValueError(f"{what} must be {_QUERY_FORMS}; got {shown(values)}.")


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
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
        starts = {hit: abs(weight) for hit, weight in self.hits.items() if weight}
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


def _solved(state: IndexState, found: FirstStage, places: Any, request: Request) -> _Solved:
    """Solve for the query, and for each item as if it were the query: the graph is symmetric."""
    backend, xp, score = state.backend, state.backend.xp, request.method.score
    alpha = request.filter.resolvent
    assert alpha is not None, "explain takes an alpha, and no other filter"
    ones = xp.ones(places.shape, dtype=getattr(xp, state.dtype), device=backend.device)
    observed = Observation(places, ones, state.n)
    forward, adjoint = (
        score(state, found, request),
        score(state, OwnItems(state, observed), request),
    )
    weights = _host(found.weights, state)[0]
    sizes = forward
    if request.signed:
        # Of the weights without their signs: what bounds the size of every path.
        plain = replace(found.observation, weights=xp.abs(found.observation.weights))
        sizes = score(state, OwnItems(state, plain), request)
    hits: dict[int, float] = {}
    for hit, weight in zip(_host(found.observation.ids, state)[0].tolist(), weights, strict=True):
        if hit >= 0:
            hits[int(hit)] = hits.get(int(hit), 0.0) + float(weight)
    norm = float(np.linalg.norm(list(hits.values())))
    scores, columns = _host(forward.values, state)[:, 0], _host(adjoint.values, state)
    # The true values are not negative; what is below zero is left of the solver's steps.
    columns = np.maximum(columns[list(hits), :], 0.0)
    listed = None
    if found.queries is None:
        listed = frozenset(_host(found.nearest(state.n).ids, state)[0].astype(int).tolist()) - {-1}
    return _Solved(
        state=state,
        alpha=alpha,
        scale=float(_host(found.scale, state)[0, 0]),
        items=_host(places, state)[:, 0].astype(np.int64),
        hits=hits,
        scores=scores,
        columns=columns,
        similar=_host(found.similarities(), state)[0],
        fallback=_host(found.unreached(), state)[0],
        listed=listed,
        limits=(_host(sizes.values, state)[:, 0] + _error(sizes, norm)) / (1 - alpha),
        correction=_host(state.graph.degree_correction(backend), state)[:, 0]
        if request.degree_correction
        else np.ones(state.n),
        errors=np.asarray(_host(adjoint.residuals, state)) * norm,
    )


def _error(solution: Any, norm: float) -> float:
    """A bound on the error of every score of a solution, over its scale."""
    # The residual is relative to 1 - alpha times the observation, and the eigenvalues of the system
    # are 1 - alpha or more: the two cancel.
    return float(solution.residuals[0]) * norm


def _host(values: Any, state: IndexState) -> NDArray[np.float64]:
    return np.asarray(state.backend.to_numpy(values), np.float64)


def _drawn(keys: Sequence[Any]) -> str:
    return " → ".join(shown(key) for key in keys)
