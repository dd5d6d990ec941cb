"""Groups of strongly connected items, by repeated heavy-edge matching of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import Backend, on_device, select_backend
from hybrid_gpu.choices import BackendName
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.edge_loops import edge_loops
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.validation import check_count, check_kind

# Weights that rise along a chain match one pair a round: after so many rounds, chance decides.
_ROUNDS_BY_WEIGHT = 6
# The largest group over the mean: room for the leftovers that matching attaches. On
# Fashion-MNIST, anything from 2 to 5 gives the same quality.
_LARGEST_OVER_MEAN = 4
_LOW_HALF = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Aggregation:
    """The items of a graph in groups, and in the order in which they were merged.

    Attributes
    ----------
    labels : int32 host array of shape (n,)
        The group of each item, numbered along ``order``; -1 for an isolated item.
    order : int64 host array of shape (n,)
        The items as leaves of the tree of merges: each group, each pair of groups that merges next,
        and so on up to the component, stands together. Isolated items come last.
    count : int
        Number of groups.
    divided : int
        How many of them, the first ones, share a component with others; each of the rest is a
        whole component, so that its row of a coarse system is diagonal.
    """

    labels: NDArray[np.int32]
    order: NDArray[np.int64]
    count: int
    divided: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of items of each group, of shape (count,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.count)

    def __repr__(self) -> str:
        sizes = self.sizes
        grouped, largest = int(sizes.sum()), int(sizes.max(initial=0))
        return f"Aggregation({grouped} items in {self.count} groups, the largest of {largest})"


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """A graph of groups: every edge once, ``low < high``, with the affinity between its ends.

    ``volumes`` are the nodes' summed degrees, ``sizes`` their items.
    """

    low: NDArray[np.int32]
    high: NDArray[np.int32]
    weights: NDArray[np.float32]
    volumes: NDArray[np.float64]
    sizes: NDArray[np.int64]

    @property
    def nodes(self) -> int:
        return int(self.sizes.size)


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def aggregate(
    graph: Graph,
    *,
    groups: int,
    largest: int | None = None,
    seed: int = 0,
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> Aggregation:
    """About ``groups`` groups of items with heavy edges inside, each within one component.

    Parameters
    ----------
    groups
        Where to stop, not counting the groups that are whole components. There are more if more
        components are too large for one group, or if ``largest`` forbids further merges.
    largest
        Items that one group may hold; four times the mean if None. A component that fits into a
        group is one.
    seed
        Decides between edges of equal weight.
    progress
        Called as ``progress("aggregate", done, total)`` with the number of merges.

    Notes
    -----
    Runs on the host. Every pass matches nodes in pairs along their heaviest edges, joins those that
    found no partner to a neighbor's pair, and adds up the edges between the pairs.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
    >>> graph = hg.reciprocal_graph(hg.nearest_neighbors(items, k=2))
    >>> hg.aggregate(graph, groups=2).labels.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    progress = as_progress(progress)
    groups = check_count(groups, "groups")
    connected = np.diff(device.to_numpy(graph.adjacency.indptr)) > 0
    total = int(np.sum(connected))
    bound = _LARGEST_OVER_MEAN * -(-total // groups)
    if largest is not None:
        bound = check_count(largest, "largest")
    rng = np.random.default_rng(check_count(seed, "seed", low=0))

    parents = [_small_components(graph.components, connected, bound)]
    level = _finest(graph, parents[0], device)
    # Only a whole component is left without an edge.
    joined = np.zeros(level.nodes, bool)
    joined[level.low] = joined[level.high] = True
    whole = level.nodes - int(np.sum(joined))
    start = level.nodes
    while whole + groups < level.nodes:
        if progress:
            progress("aggregate", start - level.nodes, start - whole - groups)
        merges = level.nodes - whole - groups
        parent = _merged(level, merges, bound, rng)
        if int(parent.max()) + 1 == level.nodes:
            parent = _siblings(level, merges, bound)
        if int(parent.max()) + 1 == level.nodes:
            break
        parents.append(parent)
        level = _coarsened(level, parent)
    if progress:
        progress("aggregate", start - level.nodes, start - level.nodes)
    count, depth = level.nodes, len(parents)

    # The groups are made; how they stand beside each other is told by merging on, without bound.
    while level.low.size:
        parents.append(_merged(level, level.nodes, total, rng))
        level = _coarsened(level, parents[-1])
    return _from_tree(parents, depth, count, count - whole)


def _small_components(
    components: NDArray[np.int32], connected: NDArray[np.bool_], bound: int
) -> NDArray[np.int64]:
    """The first merge: the items of each component that fits into one group; -1 if isolated."""
    n = components.size
    whole = np.bincount(components)[components] <= bound
    # Whole components are numbered behind all other nodes, and stay there through every merge.
    leaders = np.where(whole, n + components, np.arange(n))
    parent = np.full(n, -1)
    parent[connected] = _numbered(leaders[connected], 2 * n)
    return parent


def _numbered(names: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Names below ``most`` as numbers without gaps, in the order of the names."""
    # With marks, not by np.unique: to sort takes ten times as long.
    used = np.zeros(most, bool)
    used[names] = True
    return np.take(np.cumsum(used) - 1, names)


def _finest(graph: Graph, parent: NDArray[np.int64], backend: Backend) -> _Level:
    """The graph that the first merge leaves: no two of its edges have the same ends."""
    matrix = graph.adjacency
    nodes = parent.astype(np.int32)
    low = np.repeat(nodes, np.diff(backend.to_numpy(matrix.indptr)))
    high = np.take(nodes, backend.to_numpy(matrix.indices))
    upper = low < high
    low, high = low[upper], high[upper]
    inside = parent >= 0
    degrees = backend.to_numpy(graph.degrees).astype(np.float64)
    volumes = np.bincount(parent[inside], weights=degrees[inside]).astype(np.float64)
    roots = np.sqrt(volumes).astype(np.float32)
    weights = backend.to_numpy(matrix.data)[upper].astype(np.float32)
    weights *= np.take(roots, low) * np.take(roots, high)
    return _Level(low, high, weights, volumes, np.bincount(parent[inside]))


def _merged(level: _Level, merges: int, bound: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The node of the next level that each node goes to, after at most so many merges."""
    # Affinity alone lets heavy nodes grow heavier. Fashion-MNIST, n/32 groups, 100 queries: the
    # mean error after 5 deflated steps is 0.023 with the normalized one, 0.025 with the affinity.
    roots = (1 / np.sqrt(level.volumes)).astype(np.float32)
    names = rng.permutation(level.nodes).astype(np.uint32)
    # Any two edges of a node differ in the low half, so that every round has a winner.
    priority = edge_loops().priorities(level.low, level.high, level.weights, roots, names)
    leaders = _matched(level, priority, merges, bound)
    _attach(level, priority, leaders, merges, bound)
    return _numbered(leaders, level.nodes)


def _matched(
    level: _Level, priority: NDArray[np.uint64], merges: int, bound: int
) -> NDArray[np.int64]:
    """The lower node of the pair of each node: repeatedly, edges heavier than all beside them."""
    leaders = np.arange(level.nodes)
    free = np.ones(level.nodes, bool)
    loops = edge_loops()
    low, high, priority = loops.fitting(level.low, level.high, priority, level.sizes, bound)
    rounds = 0
    while merges > 0 and low.size:
        if rounds == _ROUNDS_BY_WEIGHT:
            priority &= _LOW_HALF
        pairs = loops.best_pairs(low, high, priority, level.nodes)
        pairs = pairs[_heaviest(priority[pairs], merges)]
        leaders[high[pairs]] = low[pairs]
        free[low[pairs]] = free[high[pairs]] = False
        low, high, priority = loops.free(low, high, priority, free)
        merges -= pairs.size
        rounds += 1
    return leaders


def _attach(
    level: _Level, priority: NDArray[np.uint64], leaders: NDArray[np.int64], merges: int, bound: int
) -> None:
    """Join nodes that found no partner to the pair at their heaviest edge, where there is room."""
    paired = np.bincount(leaders, minlength=level.nodes)[leaders] == 2
    merges -= int(np.sum(paired)) // 2
    if merges <= 0:
        return
    edges = edge_loops().loose(level.low, level.high, paired)
    low, high, priority = level.low[edges], level.high[edges], priority[edges]
    outside = paired[high]
    loose, pair = np.where(outside, low, high), leaders[np.where(outside, high, low)]
    room = bound - np.bincount(leaders, weights=level.sizes, minlength=level.nodes)
    priority[level.sizes[loose] > room[pair]] = 0
    best = np.zeros(level.nodes, np.uint64)
    np.maximum.at(best, loose, priority)
    chosen = np.flatnonzero((priority == best[loose]) & (priority > 0))
    # A pair takes the heaviest of those that chose it, as long as they fit in.
    chosen = chosen[np.lexsort((~priority[chosen], pair[chosen]))]
    loose, pair, priority = loose[chosen], pair[chosen], priority[chosen]
    filled = np.cumsum(level.sizes[loose])
    first = np.searchsorted(pair, pair)
    filled -= filled[first] - level.sizes[loose[first]]
    fits = np.flatnonzero(filled <= room[pair])
    fits = fits[_heaviest(priority[fits], merges)]
    leaders[loose[fits]] = pair[fits]


def _heaviest(priority: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Positions of the ``count`` largest, or of all if there are no more."""
    if priority.size <= count:
        return np.arange(priority.size)
    return np.argsort(~priority, kind="stable")[:count]


def _siblings(level: _Level, merges: int, bound: int) -> NDArray[np.int64]:
    """The next level where no edge can be merged: nodes join those with the same best neighbor.

    The neighbors of a hub know only the hub, whose group is full: left alone, each would be a
    group of its own.
    """
    sources = np.concatenate((level.low, level.high))
    targets = np.concatenate((level.high, level.low))
    best = np.full(level.nodes, -1)
    order = np.argsort(np.concatenate((level.weights, level.weights)), kind="stable")
    best[sources[order]] = targets[order]  # the heaviest comes last
    half = max(1, bound // 2)
    nodes = np.flatnonzero((best >= 0) & (level.sizes <= half))
    nodes = nodes[np.argsort(best[nodes], kind="stable")]
    filled = np.cumsum(level.sizes[nodes]) - level.sizes[nodes]
    first = np.searchsorted(best[nodes], best[nodes])
    # Pieces of half a bound at most, and what begins inside of one: together no more than a bound.
    piece = (filled - filled[first]) // half
    new = np.diff(best[nodes], prepend=-2) != 0
    new[1:] |= np.diff(piece) != 0
    leader = nodes[np.maximum.accumulate(np.where(new, np.arange(nodes.size), 0))]
    followers = np.flatnonzero(~new)[:merges]
    leaders = np.arange(level.nodes)
    leaders[nodes[followers]] = leader[followers]
    return _numbered(leaders, level.nodes)


def _coarsened(level: _Level, parent: NDArray[np.int64]) -> _Level:
    """The graph of the merged nodes, with parallel edges added up."""
    sizes = np.bincount(parent, weights=level.sizes).astype(np.int64)
    width = max(1, (sizes.size - 1).bit_length())
    low, high, weights = edge_loops().added_up(
        level.low, level.high, level.weights, parent, width, min(31, 64 - 2 * width)
    )
    volumes = np.bincount(parent, weights=level.volumes).astype(np.float64)
    return _Level(low, high, weights, volumes, sizes)


def _from_tree(
    parents: list[NDArray[np.int64]], depth: int, count: int, divided: int
) -> Aggregation:
    """Read the groups, made by the first ``depth`` merges, and the order of the leaves."""
    labels = parents[0]
    for parent in parents[1:depth]:
        labels = np.where(labels < 0, -1, parent[labels])
    place = np.arange(int(parents[-1].max(initial=-1)) + 1)
    for parent in reversed(parents):
        key = np.full(parent.size, place.size)
        key[parent >= 0] = place[parent[parent >= 0]]
        order = np.argsort(key, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
    along = labels[order]
    along[along >= 0] = np.cumsum(np.diff(along[along >= 0], prepend=along[:1]) != 0)
    numbered = np.empty(labels.size, np.int32)
    numbered[order] = along
    return Aggregation(labels=numbered, order=order, count=count, divided=divided)
