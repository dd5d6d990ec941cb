"""Why an item is ranked where it is: what each hit gave to its score, and along which edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.choices import ArrayInput, MetricName
from hybrid_gpu.index.contributions import solved_query
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.explanations import Explanation
from hybrid_gpu.index.queries import descriptor_queries, item_queries, list_queries
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.first_stage import FirstStage
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.seeds import seeds_of
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.validation import check_count, check_item_ids, check_kind, is_bool, shown

# Residuals of the systems: what the precision of the scores allows for.
_ACCURACY = {"float32": 1e-6, "float64": 1e-12}
_QUERY_FORMS = (
    "a vector (d,), an item of the index, a dict of items and weights, or ids with similarities="
)


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
        solved = solved_query(state, found, places, request)
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
