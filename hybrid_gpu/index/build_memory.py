"""How much memory a build takes, and whether there is enough of it."""

from __future__ import annotations

import math

import numpy as np

from hybrid_gpu.backends import Backend
from hybrid_gpu.backends.csr_arrays import index_type
from hybrid_gpu.graph.affinity import Graph

_FEWEST_PER_GROUP = 8
# And never more, whatever n: their inverse takes 64 MB in float32.
_MOST_GROUPS = 4000
# What building takes at its peak: measured on 12,000 to 200,000 items with 10 to 50 neighbors,
# most where every edge is mutual; copies of the descriptors.
_BYTES_PER_NEIGHBOR, _COPIES = 125, 1.5
# With the native core, beside lists and graph: for an entry of the graph while groups are made, for
# an item, and for an entry of the dense matrix between the groups.
_GROUPING_BYTES, _ITEM_BYTES, _DENSE_BYTES = 26, 300, 24
# Of two entries of the lists, about one is mutual on real data.
_MUTUAL_PART = 0.5
_LESS = "Take fewer neighbors, or allow the process more memory."


def groups_for(n: int, entries: int) -> int:
    """How many aggregates n items with so many entries of their graph have by default."""
    return max(1, min(n // _FEWEST_PER_GROUP, math.isqrt(2 * entries), _MOST_GROUPS))


def build_bytes(n: int, d: int, neighbors: int, dtype: str) -> int:
    """Bytes that building takes at its peak, beside what the caller holds."""
    descriptors = _COPIES * d * np.dtype(dtype).itemsize
    return round(n * (_BYTES_PER_NEIGHBOR * neighbors + descriptors))


def native_build_bytes(
    n: int, d: int, neighbors: int, dtype: str, entries: float, *, kept: bool = True
) -> int:
    """The same with the native core, for a graph with so many entries per item.

    ``kept``: whether the lists will be a part of the index.
    """
    value = np.dtype(dtype).itemsize
    number = np.dtype(index_type(n, round(n * entries))).itemsize
    lists, graph = neighbors * (4 + value), entries * (number + value)
    edges = lists + neighbors * (4 + 2 * value) + entries * (number + 8)
    # The graph, and lists that are kept, are there in two orders for a moment.
    later = lists + max(graph + entries * _GROUPING_BYTES, 2 * graph + (lists if kept else 0))
    dense = _DENSE_BYTES * groups_for(n, round(n * entries)) ** 2
    return round(n * (max(edges, later) + _ITEM_BYTES + _COPIES * d * value) + dense)


def check_room(n: int, d: int, neighbors: int, backend: Backend, *, dtype: str) -> None:
    """Refuse what cannot fit: in a container, the system would end the process without a word.

    With the native core, how much a build takes depends on the edges, which are not known yet: what
    is usual is asked for, and there is another look when they are.
    """

    def needed_with(d: int) -> int:
        if backend.searches_locally:
            return native_build_bytes(n, d, neighbors, dtype, _MUTUAL_PART * neighbors)
        return build_bytes(n, d, neighbors, dtype)

    needed, available = needed_with(d), backend.available_bytes()
    if needed > available:
        advice = _LESS
        if d and needed_with(0) <= available:
            advice = (
                "Pass keep_descriptors=False: they are read tile by tile then, and not kept, and "
                "the index ranks by rerank and search_items."
            )
        raise MemoryError(
            f"to build an index of {n} items with {neighbors} neighbors each takes about "
            f"{needed / 1e6:.0f} MB more memory; {available / 1e6:.0f} MB are available on "
            f"{backend.name}. {advice}"
        )


def check_room_for_groups(graph: Graph, backend: Backend) -> None:
    """Refuse a graph with more edges than its groups can be made of in the memory there is."""
    if not backend.searches_locally:
        return  # what was asked for before is enough for any edges
    n, entries = graph.n, int(graph.adjacency.data.shape[0])
    needed = entries * _GROUPING_BYTES + _DENSE_BYTES * groups_for(n, entries) ** 2
    available = backend.available_bytes()
    if needed > available:
        raise MemoryError(
            f"to group {n} items with {entries // 2} edges takes about {needed / 1e6:.0f} MB more "
            f"memory; {available / 1e6:.0f} MB are available. {_LESS}"
        )
