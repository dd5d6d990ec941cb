"""The reciprocal k-NN graph of a database and its symmetrically normalized adjacency."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import (
    Array,
    Backend,
    SparseMatrix,
    on_device,
    on_own_device,
    select_backend,
)
from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.backends.protocol import Numbering
from hybrid_gpu.choices import BackendName, DtypeName
from hybrid_gpu.errors import warn_caller
from hybrid_gpu.graph.csr import array_bytes, matrix_bytes, row_numbers, row_tiles
from hybrid_gpu.graph.edge_lists import EdgeList, added_up
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.result_lists import check_neighbor_lists
from hybrid_gpu.validation import (
    check_dtype,
    check_kind,
    check_positive,
    dtype_name,
)

# Weights beyond 2 to this power, or below 2 to its negative, are scaled: sums of them shall stay
# within float32, whose range ends at 126.
_LARGEST_EXPONENT = 100
# Weights that are changed at a time.
_TILE_ENTRIES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A weighted undirected graph, ready for diffusion.

    Attributes
    ----------
    adjacency : sparse matrix of shape (n, n)
        The symmetrically normalized adjacency (calligraphic W in the paper): eigenvalues in
        [-1, 1], an empty row for an isolated item. Its diagonal is zero, but for the self-loops of
        a graph of the user's own.
    degrees : float array of shape (n,)
        Row sums of the affinity before normalization; 0 for an isolated item. If the largest weight
        is beyond 2**100 or the smallest below 2**-100, weights are divided by a power of two
        first: the normalized adjacency does not change by it.
    components : int32 host array of shape (n,)
        The connected component of each item.
    """

    adjacency: SparseMatrix
    degrees: Array
    components: NDArray[np.int32]

    @property
    def n(self) -> int:
        """Number of items."""
        return self.adjacency.shape[0]

    @property
    def dtype(self) -> DtypeName:
        """``"float32"`` or ``"float64"``."""
        return check_dtype(self.degrees.dtype)

    @property
    def edges(self) -> int:
        """Number of undirected edges; a self-loop is half of one."""
        return int(self.adjacency.data.shape[0]) // 2

    @property
    def isolated(self) -> int:
        """Number of items without a neighbor."""
        return int(np.sum(np.bincount(self.components) == 1))

    @on_own_device
    def degree_correction(self, backend: Backend) -> Array:
        """One over the root of each degree over the mean one, (n, 1); 1 for isolated items."""
        xp = backend.xp
        degrees = xp.astype(self.degrees, xp.float64)
        joined = degrees > 0
        mean = xp.sum(degrees) / xp.clip(xp.sum(xp.astype(joined, xp.float64)), min=1.0)
        ratios = xp.where(joined, degrees, mean) / xp.where(mean > 0, mean, xp.ones_like(mean))
        roots = xp.sqrt(xp.where(ratios > 0, ratios, xp.ones_like(ratios)))
        return xp.astype(1 / roots, self.degrees.dtype)[:, None]

    @property
    def memory(self) -> int:
        """Bytes of the adjacency, the degrees and the labels."""
        return matrix_bytes(self.adjacency) + array_bytes(self.degrees) + self.components.nbytes

    def __repr__(self) -> str:
        count = int(self.components.max()) + 1
        return (
            f"Graph({self.n} items, {self.edges} edges, {count} components, "
            f"{self.isolated} isolated)"
        )


@on_device(lambda neighbors: getattr(neighbors, "ids", None), stays=True)
def reciprocal_graph(
    neighbors: Neighbors,
    *,
    gamma: float = 3.0,
    dtype: str = "float32",
    backend: BackendName | Backend = "auto",
) -> Graph:
    """The graph that joins two items if each is among the other's nearest neighbors.

    Parameters
    ----------
    neighbors
        The lists of all n items, in order. Ids of -1, an item's own id and repeated ids are
        skipped.
    gamma
        An edge weighs ``similarity ** gamma``; the paper takes 3. Similarities that are not
        positive give no edge. Only ratios of weights count, so that the largest may have any size;
        but a large exponent may leave some too small beside it.

    Warns
    -----
    UserWarning
        If all weights of an item are too small beside the largest one for the dtype, which leaves
        it without an edge.

    Notes
    -----
    The two lists of an edge may disagree about its similarity (rounding, approximate engines): the
    mean of the two is taken, so that the matrix is symmetric to the last bit.

    Examples
    --------
    The last item lists the first, which does not list it:

    >>> import hybrid_gpu as hg
    >>> lists = hg.nearest_neighbors([[5.0, 0], [5, 1], [4, -4]], k=1)
    >>> lists.ids.tolist()
    [[1], [0], [0]]
    >>> hg.reciprocal_graph(lists)
    Graph(3 items, 1 edges, 2 components, 1 isolated)
    """
    check_kind(neighbors, "neighbors", Neighbors, "Make them with nearest_neighbors.")
    device = select_backend(backend, like=neighbors.ids)
    xp = device.xp
    gamma = check_positive(gamma, "gamma")
    ids, n = neighbors.ids, neighbors.ids.shape[0]
    lowest, highest = (int(end(ids)) if ids.shape[1] else -1 for end in (xp.min, xp.max))
    if lowest < -1 or highest >= n:
        raise ValueError(
            f"neighbors must list items of 0 to {n - 1}, or -1 for none; got ids from {lowest} to "
            f"{highest}. There must be one list for each item."
        )
    edges = device.mutual_edges(ids, neighbors.similarities)
    _raise_to_power(edges.data, gamma, xp)
    return _graph_of_affinity(edges, dtype=check_dtype(dtype), backend=device)


@on_device(lambda affinity: getattr(affinity, "data", None), stays=False)
def graph_from_affinity(
    affinity: Any, *, dtype: DtypeName = "float32", backend: BackendName | Backend = "auto"
) -> Graph:
    """The graph of the user's own sparse affinity matrix, without its diagonal, normalized.

    Parameters
    ----------
    affinity : sparse matrix of shape (n, n)
        SciPy or CuPy, any format: symmetric, non-negative, finite. The diagonal is left out; the
        other entries are weights as they are, raised to no power.

    Raises
    ------
    ValueError
        If it is not square, symmetric to rounding, non-negative and finite.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = hg.graph_from_affinity(csr_array([[0, 1, 0], [1, 0, 2], [0, 2, 0]]))
    >>> graph.degrees.tolist()
    [1.0, 3.0, 2.0]
    """
    if not hasattr(affinity, "tocoo"):
        raise TypeError(
            f"affinity must be a sparse matrix; got {type(affinity).__name__}. "
            "Convert it with scipy.sparse.csr_array(affinity)."
        )
    if len(affinity.shape) != 2 or affinity.shape[0] != affinity.shape[1]:
        raise ValueError(f"affinity must be square (n, n); got shape {affinity.shape}.")
    n = int(affinity.shape[0])
    if n == 0:
        raise ValueError("affinity must have at least one item; got shape (0, 0).")
    name = dtype_name(affinity.dtype)
    if not name.startswith(("float", "int", "uint", "bool")) or name == "float16":
        raise TypeError(f"affinity must hold real numbers; got dtype {name}.")
    triplets = affinity.tocsr().tocoo()  # to CSR and back adds up repeated entries
    device = select_backend(backend, like=triplets.data)
    xp = device.xp
    rows = device.asarray(triplets.row, "int64")
    columns = device.asarray(triplets.col, "int64")
    weights = device.asarray(triplets.data, "float64")
    if not bool(xp.all(xp.isfinite(weights))):
        raise ValueError("affinity must be finite; got NaN or infinity among its entries.")
    if not bool(xp.all(weights >= 0)):
        raise ValueError(
            f"affinity must be non-negative; got {float(xp.min(weights)):.6g}. "
            "Clip it with affinity.data.clip(min=0, out=affinity.data)."
        )
    off_diagonal = (rows != columns) & (weights > 0)
    rows, columns, weights = rows[off_diagonal], columns[off_diagonal], weights[off_diagonal]
    _bring_in_range(weights, xp)
    forward = xp.argsort(rows * n + columns)
    backward = xp.argsort(columns * n + rows)
    there, back = xp.take(weights, forward), xp.take(weights, backward)
    same_pattern = bool(xp.all(xp.take(rows, forward) == xp.take(columns, backward))) and bool(
        xp.all(xp.take(columns, forward) == xp.take(rows, backward))
    )
    # The slack is the rounding of float32 weights that were computed once in each direction.
    if not same_pattern or not bool(xp.all(xp.abs(there - back) <= 1e-5 * xp.maximum(there, back))):
        raise ValueError(
            "affinity must be symmetric; entries (i, j) and (j, i) differ. Make it so with "
            "(affinity + affinity.T) / 2, or affinity.minimum(affinity.T) for mutual edges only."
        )
    ends = xp.take(rows, forward), xp.take(columns, forward)
    symmetric = csr_from_sorted((there + back) / 2, *ends, (n, n), device)
    return _graph_of_affinity(symmetric, dtype=check_dtype(dtype), backend=device)


def graph_from_edges(edges: EdgeList, *, dtype: DtypeName, backend: Backend) -> Graph:
    """The graph of an edge list; edges between the same items add up, and self-loops stay."""
    if edges.n == 0:
        raise ValueError("the graph must have at least one item; got none.")
    rows, columns, weights = (backend.asarray(part) for part in added_up(edges))
    affinity = csr_from_sorted(weights, rows, columns, (edges.n, edges.n), backend)
    return _graph_of_affinity(affinity, dtype=dtype, backend=backend)


def neighbors_from_lists(
    ids: Any,
    similarities: Any,
    *,
    metric: str = "cosine",
    dtype: str = "float32",
    backend: BackendName | Backend = "auto",
) -> Neighbors:
    """The lists of the user's own search engine, one per item and in order, checked.

    Ids of -1 stand for 'nothing found', and those of 32 bits stay so; similarities become cosines,
    not yet raised to any power.
    """
    device = select_backend(backend, like=ids)
    checked_ids, checked = check_neighbor_lists(
        ids,
        similarities,
        None,
        metric=metric,
        dtype=check_dtype(dtype),
        narrow=True,
        backend=device,
    )
    return Neighbors(ids=checked_ids, similarities=checked)


def numbering_of(order: Any, backend: Backend) -> Numbering:
    """The numbering in which the item at place p is ``order[p]``, a permutation (n,)."""
    order = backend.asarray(order, "int64")
    return Numbering(order, backend.xp.astype(backend.xp.argsort(order), backend.xp.int64))


def renumbered(graph: Graph, numbering: Numbering, backend: Backend) -> Graph:
    """The same graph, with the item ``numbering.order[p]`` at place p."""
    return Graph(
        adjacency=backend.reordered(graph.adjacency, numbering),
        degrees=backend.xp.take(graph.degrees, numbering.order),
        components=graph.components[backend.to_numpy(numbering.order)],
    )


def normalized(
    affinity: SparseMatrix, degrees: Array, dtype: str, backend: Backend
) -> SparseMatrix:
    """A symmetric matrix with each entry over the square roots of the degrees of both ends."""
    xp = backend.xp
    positive = degrees > 0
    inverse_root = xp.where(
        positive, 1 / xp.sqrt(xp.where(positive, degrees, xp.ones_like(degrees))), degrees
    )
    kind = getattr(xp, dtype)
    values = xp.empty(affinity.data.shape, dtype=kind, device=backend.device)
    for rows, entries in row_tiles(affinity, backend):
        bounds = affinity.indptr[rows.start : rows.stop + 1]
        lengths = xp.astype(bounds[1:] - bounds[:-1], xp.int64)
        own = xp.repeat(inverse_root[rows], lengths)
        others = xp.take(inverse_root, affinity.indices[entries])
        # The two are multiplied first: a product in any other order would not be symmetric.
        values[entries] = xp.astype(affinity.data[entries] * (own * others), kind)
    return backend.csr(values, affinity.indices, affinity.indptr, affinity.shape)


def largest_component(graph: Graph) -> NDArray[np.int64]:
    """Ids of the items of the largest connected component, ascending."""
    label = int(np.argmax(np.bincount(graph.components)))
    return np.flatnonzero(graph.components == label)


def _raise_to_power(similarities: Array, gamma: float, xp: Any) -> None:
    """Positive similarities to a power, over that of the largest if this one is out of range."""
    if similarities.shape[0] == 0:
        return
    largest = float(xp.max(similarities))
    if abs(gamma * math.log2(largest)) <= _LARGEST_EXPONENT:
        largest = 1.0
    for part in _tiles(similarities):
        similarities[part] = (similarities[part] / largest) ** gamma


def _bring_in_range(weights: Array, xp: Any) -> None:
    """Divide weights by a power of two if float32 would not hold them or their sums."""
    smallest = min(
        (float(xp.min(_positive(weights[part], xp))) for part in _tiles(weights)), default=math.inf
    )
    if smallest == math.inf:
        return
    low, high = (math.frexp(end)[1] for end in (smallest, float(xp.max(weights))))
    if low >= -_LARGEST_EXPONENT and high <= _LARGEST_EXPONENT:
        return
    # As many orders above 1 as below it, if the sums of the largest allow for that.
    exponent = max((low + high) // 2, high - _LARGEST_EXPONENT)
    # In two steps: the inverse of the smallest numbers is infinite.
    half = exponent // 2
    for part in _tiles(weights):
        weights[part] = weights[part] * 2.0**-half * 2.0 ** (half - exponent)


def _positive(weights: Array, xp: Any) -> Array:
    """Weights, with infinity in the place of those that are not above 0."""
    return xp.where(weights > 0, weights, xp.full_like(weights, math.inf))


def _tiles(values: Array) -> Iterator[slice]:
    """Parts of a (count,) array that is changed in its place: a second one would be large."""
    for start in range(0, values.shape[0], _TILE_ENTRIES):
        yield slice(start, min(start + _TILE_ENTRIES, values.shape[0]))


def _graph_of_affinity(affinity: SparseMatrix, *, dtype: DtypeName, backend: Backend) -> Graph:
    """The graph of a symmetric matrix in float64, whose weights are brought into range here."""
    xp, n = backend.xp, affinity.shape[0]
    _bring_in_range(affinity.data, xp)
    affinity = _without_the_smallest(affinity, dtype, backend)
    ones = xp.ones((n, 1), dtype=xp.float64, device=backend.device)
    degrees = backend.spmm(affinity, ones)[:, 0]
    adjacency = normalized(affinity, degrees, dtype, backend)
    return Graph(
        adjacency=adjacency,
        degrees=xp.astype(degrees, getattr(xp, dtype)),
        components=backend.connected_components(adjacency),
    )


def _without_the_smallest(affinity: SparseMatrix, dtype: str, backend: Backend) -> SparseMatrix:
    """The matrix without entries that are too small for a precision; tells of items they leave."""
    xp, n = backend.xp, affinity.shape[0]
    # The smallest normal number is the least whose inverse root has a square in range.
    least = float(xp.finfo(getattr(xp, dtype)).smallest_normal)
    if affinity.data.shape[0] == 0 or float(xp.min(affinity.data)) >= least:
        return affinity
    some, rows = affinity.data >= least, row_numbers(affinity, backend)
    before = xp.unique_values(rows).shape[0]
    rows = rows[some]
    _tell_of_lost_items(before - xp.unique_values(rows).shape[0], n, dtype)
    return csr_from_sorted(
        affinity.data[some], rows, affinity.indices[some], affinity.shape, backend
    )


def _tell_of_lost_items(count: int, n: int, dtype: str) -> None:
    if count:
        advice = " or dtype='float64'" if dtype == "float32" else ""
        warn_caller(
            f"{count} of {n} items are left without an edge: beside the largest weight, theirs are "
            f"too small for {dtype}. Take a smaller gamma{advice}, or weights that differ less."
        )
