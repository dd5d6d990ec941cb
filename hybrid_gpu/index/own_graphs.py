"""The user's own graph, in any of its forms, as the graph and the keys of an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybrid_gpu.backends import Backend
from hybrid_gpu.choices import DtypeName
from hybrid_gpu.graph.affinity import Graph, graph_from_affinity, graph_from_edges
from hybrid_gpu.graph.edge_lists import (
    EdgeList,
    edges_of_igraph,
    edges_of_networkx,
    edges_of_pairs,
    is_igraph,
    is_networkx,
    pair_array,
    refuse_weights,
)
from hybrid_gpu.ranking.keys import Keys, as_keys, optional_keys
from hybrid_gpu.validation import check_count


@dataclass(frozen=True, slots=True, eq=False)
class NamedGraph:
    """A graph, and the keys of its items if they have any."""

    graph: Graph
    keys: Keys | None


def named_graph(
    given: Any,
    *,
    weights: Any,
    n: int | None,
    keys: Any,
    dtype: DtypeName,
    backend: Backend,
) -> NamedGraph:
    """The graph of a sparse matrix, of networkx, of igraph, or of an edge list."""
    if hasattr(given, "tocoo"):
        refuse_weights(weights, n)
        graph = graph_from_affinity(given, dtype=dtype, backend=backend)
        return NamedGraph(graph, optional_keys(keys, graph.n))
    edges, known = _edges_and_keys(given, weights, n, keys)
    return NamedGraph(graph_from_edges(edges, dtype=dtype, backend=backend), known)


def _edges_and_keys(
    given: Any, weights: Any, n: int | None, keys: Any
) -> tuple[EdgeList, Keys | None]:
    """The edges of anything but a matrix, and the keys of its items."""
    reader = next((read for knows, read in _LIBRARIES if knows(given)), None)
    if reader is not None:
        edges = reader(given, weights)
        if n is not None and check_count(n, "n") != edges.n:
            raise ValueError(f"n goes with an edge list; the graph has {edges.n} items, not {n}.")
        return edges, optional_keys(edges.names if keys is None else keys, edges.n)
    if keys is None:
        return edges_of_pairs(given, weights, n), None
    # Names of all items: those without an edge are told by nothing else.
    known = as_keys(keys, None if n is None else check_count(n, "n"))
    pairs = known.ids_of(pair_array(given), "an edge list")
    return edges_of_pairs(pairs, weights, len(known)), known


_LIBRARIES = ((is_networkx, edges_of_networkx), (is_igraph, edges_of_igraph))
