"""The answer to a query as a page shows it: both rankings, what moved, why, and the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.explore.collection import LONGEST_TEXT, Collection, cut
from hybrid_gpu.explore.layout import layout
from hybrid_gpu.explore.pictures import Picture
from hybrid_gpu.index.explain import Asked, explain_items
from hybrid_gpu.index.explanations import Explanation
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.top_items import Ranking

MOST_RESULTS = 50
_PATHS = 3
_MOST_VISITS = 20_000
# Items of a drawing: more cannot be told apart.
_MOST_DRAWN = 40
_LONGEST_TITLE = 200
# Methods whose scores are those that are explained; others have scores of their own.
_DIFFUSION = ("temporal", "hybrid", "local", "precomputed")


@dataclass(frozen=True, slots=True, eq=False)
class PageQuestion:
    """A query that a page asks.

    Attributes
    ----------
    item : int or None
        The item that is the query, or None.
    vector : float array of shape (d,), or None
        The vector that is the query, or None.
    label : str
        What the page calls a vector.
    text : str or None
    picture : Picture or None
        How the page shows a vector.
    k : int
    method : str
    alpha : float or None
    query_neighbors : int
    allowed : sequence of int or None
        The items that results may be; None for all.
    """

    item: int | None = None
    vector: Any = None
    label: str = "a vector"
    text: str | None = None
    picture: Picture | None = None
    k: int = 20
    method: str = "auto"
    alpha: float | None = None
    query_neighbors: int = 5
    allowed: Sequence[int] | None = None


def answer(collection: Collection, question: PageQuestion) -> dict[str, Any]:
    """Everything that a page shows for a query, in types of JSON.

    Ranks do not count the query itself, if that is an item.
    """
    plain = _ranked(collection, question, "nn")
    diffused = _ranked(collection, question, question.method)
    shown = list(dict.fromkeys([*_found(diffused), *_found(plain)]))
    own = [] if question.item is None else [question.item]
    every = _explained(collection, question, [*own, *shown])
    itself = every[0] if own else None
    reasons = {one.id: one for one in every[len(own) :]}
    drawing = _drawing(collection, _found(diffused), question, reasons, every)
    named = {*own, *shown, *(node[0] for node in drawing["nodes"] if node[0] >= 0)}
    for one in every:
        named.update(hit.id for hit in one.hits)
        named.update(item for path in one.paths for item in path.ids)
    return {
        "query": {"item": question.item, **described_query(collection, question)},
        "settings": {
            "alpha": every[0].alpha if every else question.alpha or collection.index.alpha,
            "method": diffused.report.method,
            "exact": diffused.report.method in _DIFFUSION,
            "k": question.k,
        },
        "plain": _rows(plain),
        "diffused": _rows(diffused),
        "why": {str(item): _why(one, itself) for item, one in reasons.items()},
        "graph": drawing,
        "items": {str(item): described(collection, item) for item in sorted(named)},
        "notes": list(diffused.report.notes),
    }


def described(collection: Collection, item: int) -> dict[str, Any]:
    """How an item looks; its picture is a file that has its number."""
    about: dict[str, Any] = {"label": collection.label(item)}
    text = collection.text(item)
    if text is not None:
        about["text"] = text
    return about


def moved_up(found: dict[str, Any]) -> float:
    """How much diffusion changed the first results of an answer: places gained, each up to 100."""
    gained = 0
    for place, (item, _) in enumerate(found["diffused"][:10], 1):
        before = found["why"][str(item)]["plainRank"]
        gained += 0 if before is None else min(100, max(0, before - place))
    return gained


def described_query(collection: Collection, question: PageQuestion) -> dict[str, Any]:
    """How a query looks, but for its picture."""
    if question.item is not None:
        return described(collection, question.item)
    about = {"label": cut(question.label, _LONGEST_TITLE)}
    return about if question.text is None else {**about, "text": cut(question.text, LONGEST_TEXT)}


def _ranked(collection: Collection, question: PageQuestion, method: Any) -> Ranking:
    index = collection.index
    options: dict[str, Any] = {"k": min(question.k, index.n), "method": method}
    if METHODS.get(method) is None or METHODS[method].diffuses:
        options["alpha"] = question.alpha
    if question.allowed is not None:
        options["allowed"] = [collection.key(item) for item in question.allowed]
    if question.item is None:
        neighbors = question.query_neighbors
        return index.search([question.vector], query_neighbors=neighbors, **options)
    key = collection.key(question.item)
    return index.search_items([key], exclude=[key], **options)


def _found(ranking: Ranking) -> list[int]:
    return [int(item) for item in ranking.ids[0] if item >= 0]


def _rows(ranking: Ranking) -> list[list[Any]]:
    pairs = zip(ranking.ids[0].tolist(), ranking.scores[0].tolist(), strict=True)
    return [[item, _short(score)] for item, score in pairs if item >= 0]


def _explained(
    collection: Collection, question: PageQuestion, items: Sequence[int]
) -> list[Explanation]:
    if not items:
        return []
    query = question.vector if question.item is None else collection.key(question.item)
    asked = Asked(query, alpha=question.alpha, query_neighbors=question.query_neighbors)
    keys = [collection.key(item) for item in items]
    return explain_items(collection.index, asked, keys, paths=_PATHS, most_visits=_MOST_VISITS)


def _why(one: Explanation, itself: Explanation | None) -> dict[str, Any]:
    """Why an item is where it is; ranks without that of the query itself."""
    plain, rank = one.plain_rank, one.rank
    if itself is not None:
        plain = _without(plain, itself.plain_rank)
        rank = _without(rank, itself.rank)
    return {
        "plainRank": plain,
        "similarity": None if one.similarity is None else _short(one.similarity),
        "rank": rank,
        "score": _short(one.score),
        "reached": one.reached,
        "hits": [[hit.id, _short(hit.similarity), _short(hit.share)] for hit in one.hits],
        "paths": [
            {
                "items": list(path.ids),
                "weights": [_short(weight) for weight in path.weights],
                "share": _short(path.share),
            }
            for path in one.paths
        ],
        "notes": list(one.notes),
    }


def _without(rank: int | None, own: int | None) -> int | None:
    return rank if rank is None or own is None or own > rank else rank - 1


def _drawing(
    collection: Collection,
    results: Sequence[int],
    question: PageQuestion,
    reasons: dict[int, Explanation],
    every: Sequence[Explanation],
) -> dict[str, Any]:
    """The query, its hits, the results, and what lies on their paths; with their edges."""
    hits = [hit.id for hit in every[0].hits if hit.weight > 0] if every else []
    first = -1 if question.item is None else question.item
    nodes = dict.fromkeys([first, *hits])
    for item in results:
        paths = reasons[item].paths[:1]
        more = [item, *(one for path in paths for one in path.ids)]
        if len(nodes.keys() | set(more)) > _MOST_DRAWN:
            break
        nodes.update(dict.fromkeys(more))
    ids = list(nodes)
    edges = _edges(collection, ids)
    if first < 0:
        edges += [[0, ids.index(hit), 0.0] for hit in hits]
    places = layout(len(ids), [edge[:2] for edge in edges])
    return {
        "nodes": [[item, *map(int, place)] for item, place in zip(ids, places, strict=True)],
        "edges": edges,
    }


def _edges(collection: Collection, ids: Sequence[int]) -> list[list[Any]]:
    """The edges of the graph among some items, by their numbers in the list, with weights."""
    state = collection.index.state
    host = state.host_edges()
    known = np.array([item for item in ids if item >= 0], np.int64)
    number = {item: place for place, item in enumerate(ids)}
    with state.backend.annotate("explore"):
        asked = state.backend.asarray(known[None, :])
        places = state.backend.to_numpy(state.numbering.to_places(asked, state.backend.xp))[0]
    edges = []
    for item, place in zip(known.tolist(), places.tolist(), strict=True):
        columns, weights = host.row(place)
        for other, weight in zip(host.names[columns].tolist(), weights.tolist(), strict=True):
            if item < other and other in number:
                edges.append([number[item], number[other], _short(weight)])
    return edges


def _short(value: float) -> float:
    """Four digits: what a page shows, and no more."""
    return float(f"{value:.4g}")
