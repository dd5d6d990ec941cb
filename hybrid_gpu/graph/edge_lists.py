"""Edges of other libraries' graphs: networkx, igraph, or a plain list of pairs, checked.

Neither library is imported: a graph is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.other_arrays import as_array, readable
from hybrid_gpu.validation import check_count, is_bool, refuse_masked, shown

_TAKEN = "a sparse matrix, a graph of networkx or igraph, or an edge list of shape (e, 2)"
_NO_LISTS = (str, bytes, dict, set, frozenset)
# The attribute that is looked for where nobody names one, and what stands for none.
_DEFAULT, _NONE = "weight", object()
_WEIGHTLESS = "weights=None for edges that all weigh 1"


@dataclass(frozen=True, slots=True, eq=False)
class EdgeList:
    """The edges of an undirected graph, on the host, as they came.

    Attributes
    ----------
    ends : int64 array of shape (e, 2)
        The two items of each edge; pairs may come again, in either order, and then add up.
    weights : float64 array of shape (e,)
        Finite and not negative.
    n : int
        Number of items.
    names : list or None
        What the items are called; None if that is their number.
    loop : float
        How often the weight of a self-loop counts: a walk of igraph finds both of its ends at the
        item and takes it twice, one of networkx once.
    """

    ends: NDArray[np.int64]
    weights: NDArray[np.float64]
    n: int
    names: list[Any] | None = None
    loop: float = 1.0


def is_networkx(graph: Any) -> bool:
    """Whether an object is a graph of networkx, or does what one does."""
    return all(hasattr(graph, name) for name in ("is_directed", "nodes", "edges", "adjacency"))


def is_igraph(graph: Any) -> bool:
    """Whether an object is a graph of igraph, or does what one does."""
    return all(hasattr(graph, name) for name in ("is_directed", "get_edgelist", "vs", "es"))


def edges_of_networkx(graph: Any, weights: Any) -> EdgeList:
    """The edges of a networkx graph; ``weights`` is the name of their attribute, or None."""
    if graph.is_directed():
        raise _directed("networkx", "G.to_undirected()")
    if weights is not None and not isinstance(weights, str):
        raise TypeError(
            f"weights must be the name of an edge attribute of networkx; got {shown(weights)}. "
            f"Pass weights='weight', or {_WEIGHTLESS}."
        )
    names = list(graph.nodes)
    numbers = {name: number for number, name in enumerate(names)}
    plain = weights is None
    edges = list(graph.edges() if plain else graph.edges(data=weights, default=_NONE))
    if edges and weights not in (None, _DEFAULT) and all(edge[2] is _NONE for edge in edges):
        raise ValueError(
            f"weights must name an attribute of the edges; no edge has {weights!r}. Pass "
            f"{_WEIGHTLESS}."
        )
    ends = np.array([(numbers[edge[0]], numbers[edge[1]]) for edge in edges], np.int64)
    values = [1 if plain or edge[2] is _NONE else edge[2] for edge in edges]
    return EdgeList(
        ends.reshape(-1, 2), _checked_weights(values, len(edges)), len(names), _keyable(names)
    )


def edges_of_igraph(graph: Any, weights: Any) -> EdgeList:
    """The edges of an igraph graph; ``weights`` as igraph takes them: a name, numbers or None."""
    if graph.is_directed():
        raise _directed("igraph", "g.as_undirected(mode='each')")
    ends = np.array(graph.get_edgelist(), np.int64).reshape(-1, 2)
    if isinstance(weights, str):
        known = weights in graph.es.attributes()
        if not known and weights != _DEFAULT:
            raise ValueError(
                f"weights must name an attribute of the edges, which have "
                f"{graph.es.attributes()}; got {weights!r}. Pass {_WEIGHTLESS}."
            )
        weights = graph.es[weights] if known else None
    values = _checked_weights(np.ones(len(ends)) if weights is None else weights, len(ends))
    names = list(graph.vs["name"]) if "name" in graph.vs.attributes() else None
    known_names = None if names is None else _keyable(names)
    if known_names is not None and len(set(known_names)) < len(known_names):
        raise ValueError(
            "names of igraph's vertices must be different to be keys; some are the same. Pass "
            "keys= of your own, or take them away with del g.vs['name']."
        )
    return EdgeList(ends, values, graph.vcount(), known_names, loop=2.0)


def edges_of_pairs(pairs: Any, weights: Any, n: int | None) -> EdgeList:
    """The edges of an array (e, 2) of ids, with weights (e,); items from 0 to n - 1."""
    ends = pair_array(pairs)
    if ends.dtype.kind not in "iu" and ends.size:
        raise TypeError(
            f"an edge list must hold integers, the ids of the items; got dtype {ends.dtype}. "
            "Names go with keys=, the names of all items: keys=np.unique(edges)."
        )
    low, high = (int(ends.min()), int(ends.max())) if ends.size else (0, -1)
    count = min(high + 1, 2**63 - 1) if n is None else check_count(n, "n")
    if count < 1:
        raise ValueError("an edge list without edges does not tell how many items there are: n=.")
    if low < 0 or high >= count:
        raise ValueError(
            f"an edge list must hold ids from 0 to {count - 1}; got {low} to {high}. Pass n= for "
            "more items than the edges name, or keys= for names of your own."
        )
    ends = ends.astype(np.int64)
    loops = int(np.count_nonzero(ends[:, 0] == ends[:, 1]))
    if loops:
        # One library counts them once, another one twice: nobody can tell what is meant.
        raise ValueError(
            f"an edge list must not hold self-loops; got {loops}. Take them out with "
            "edges[edges[:, 0] != edges[:, 1]]; those of a networkx or igraph graph count as there."
        )
    if isinstance(weights, str) and weights != _DEFAULT:
        raise ValueError(
            f"weights of an edge list must be numbers, one for each edge: it has no attribute "
            f"{weights!r}. Pass weights=[...], or {_WEIGHTLESS}."
        )
    given = np.ones(len(ends)) if weights is None or isinstance(weights, str) else weights
    return EdgeList(ends, _checked_weights(given, len(ends)), count)


def pair_array(pairs: Any) -> HostArray:
    """Pairs of anything as an array (e, 2)."""
    # Of a table, whose iterator would give columns, the rows.
    table = hasattr(pairs, "__array__") or type(pairs).__name__ == "LazyFrame"
    listed = isinstance(pairs, Iterable) and not isinstance(pairs, _NO_LISTS)
    if not table and not listed:
        raise TypeError(f"a graph must be {_TAKEN}; got {shown(pairs)}.")
    refuse_masked(pairs, "an edge list", "-1")
    plain = not table and not hasattr(pairs, "dtype") and not hasattr(pairs, "__dlpack__")
    try:
        array = as_array(list(pairs)) if plain else np.asarray(host_copy(readable(pairs)))
    except ValueError:  # rows of different lengths
        raise ValueError(
            "an edge list must have shape (e, 2); got rows of another length."
        ) from None
    if array.size == 0:
        return np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(
            f"an edge list must have shape (e, 2); got {array.shape}.{_shape_hint(array)}"
        )
    return array


def _shape_hint(array: HostArray) -> str:
    """What may be meant by an array of another shape than (e, 2)."""
    if array.ndim != 2:
        return ""
    rows, columns = array.shape
    if rows == columns:
        return " A matrix goes in as scipy.sparse.csr_array(matrix)."
    hint = " Weights go apart: edges[:, :2], weights=edges[:, 2]." if columns == 3 else ""
    if rows == 2 and array.dtype.kind in "iu":
        hint += " Edges in columns, as in an edge_index of PyG, go in as edges.T."
    return hint


def added_up(edges: EdgeList) -> tuple[HostArray, HostArray, HostArray]:
    """Rows, columns and weights of both directions of every edge once, by row and then column."""
    low, high = edges.ends.min(axis=1), edges.ends.max(axis=1)
    weights = np.where(low == high, edges.loop * edges.weights, edges.weights)
    some = weights > 0
    pairs, places = np.unique(low[some] * edges.n + high[some], return_inverse=True)
    sums = np.bincount(places, weights=weights[some], minlength=len(pairs))
    low, high = np.divmod(pairs, edges.n)
    other = low != high
    rows, columns = np.concatenate([low, high[other]]), np.concatenate([high, low[other]])
    order = np.lexsort((columns, rows))
    return rows[order], columns[order], np.concatenate([sums, sums[other]])[order]


def refuse_weights(weights: Any, n: int | None) -> None:
    """Refuse weights and a number of items beside a matrix, which has both."""
    named = isinstance(weights, str)
    if n is not None or not (weights == _DEFAULT if named else weights is None):
        raise ValueError("weights and n go with an edge list: a matrix has both of them already.")


def _directed(library: str, line: str) -> ValueError:
    return ValueError(
        f"the {library} graph is directed, and diffusion is on undirected ones. Pass {line}, in "
        "which each edge leads both ways."
    )


def _keyable(names: list[Any]) -> list[Any] | None:
    """Names that can be keys: all strings, or all integers that do not just count the items."""
    if all(isinstance(name, str) for name in names):
        return names
    whole = all(isinstance(name, (int, np.integer)) and not is_bool(name) for name in names)
    return names if whole and names != list(range(len(names))) else None


def _checked_weights(weights: Any, count: int) -> NDArray[np.float64]:
    """A weight for each edge: finite and not negative."""
    refuse_masked(weights, "weights", "0")
    given = host_copy(weights) if hasattr(weights, "dtype") else weights
    try:
        values = np.asarray(given if hasattr(given, "dtype") else list(given))
        if values.dtype.kind not in "fiub":
            raise TypeError
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"weights must be numbers, one for each edge; got {shown(weights)}."
        ) from None
    if values.shape != (count,):
        raise ValueError(
            f"weights must be one for each of the {count} edges; got shape {values.shape}."
        )
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if wrong.size:
        raise ValueError(
            f"weights must be finite and not negative; that of edge {wrong[0]} is "
            f"{values[wrong[0]]:.6g}. Clip them, or leave these edges out."
        )
    return values
