"""Groups of items as a basis: one vector per group, one number per item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

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
from hybrid_gpu.backends.protocol import CoarseInverse, HostArray
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.choices import BackendName
from hybrid_gpu.diffusion.any_matrix import both_ways
from hybrid_gpu.diffusion.basis import SlowedWalk, inverse_of
from hybrid_gpu.diffusion.galerkin_basis import GalerkinBasis
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.aggregation import Aggregation
from hybrid_gpu.graph.csr import row_numbers
from hybrid_gpu.validation import check_kind, dtype_name

# Rounds in which items without a group look for one among their neighbors.
_ROUNDS = 4
# Walks to keep, each for an alpha.
_WALKS = 2
# Rows of the graph whose entries are added up at a time.
_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AggregateBasis(GalerkinBasis):
    """One vector per group: the root of the degree inside, 0 outside, unit length.

    Attributes
    ----------
    walks : Kept
        Slowed walks on the groups, by alpha; ``diffusion/local.py`` makes them.
    """

    crosses: ClassVar[bool] = False
    walks: Kept[float, SlowedWalk] = field(default_factory=lambda: Kept(_WALKS))

    @property
    def kind(self) -> str:
        return "aggregates"

    def slowed_walk(self, alpha: float, slowdown: float) -> SlowedWalk:
        """The walk on the groups at a pace; made anew."""
        resolvent, scale = slowed(alpha, slowdown)
        inverse = self._inverted(resolvent)
        return SlowedWalk(slowdown, scaled_inverse(inverse, scale))

    def kept_walk(self, alpha: float) -> SlowedWalk | None:
        return self.walks.find(alpha)

    @on_own_device
    def keep_walk(self, alpha: float, slowdown: float, together: Array) -> None:
        resolvent, scale = slowed(alpha, slowdown)
        alone = scale * inverse_of(self.alone, resolvent, self.backend)
        inverse = CoarseInverse(together, alone, scale / (1 - resolvent))
        self.walks.get(alpha, lambda: SlowedWalk(slowdown, inverse))

    def carried_over(self, graph: Graph, old_places: HostArray) -> AggregateBasis:
        """The same groups, which new items join where their heaviest edge leads."""
        # Every row has its one entry in the column of its group.
        indptr = self.backend.to_numpy(self.vectors.indptr)
        groups = np.full(indptr.size, -1)
        groups[:-1][np.diff(indptr) > 0] = self.backend.to_numpy(self.vectors.indices)
        labels = groups[old_places]  # the last entry, -1, is for new items
        return aggregate_basis(graph, _joined(labels, graph, self.backend), backend=self.backend)


def slowed(alpha: float, slowdown: float) -> tuple[float, float]:
    """The alpha at which a walk on the groups is that of another alpha, slowed; and its scale.

    ``(1 - a) I + a / s (I - C) = (I - b C) / scale`` with ``b = a / (a + s (1 - a))``.
    """
    scale = 1 / (1 - alpha + alpha / slowdown)
    return alpha / slowdown * scale, scale


def scaled_inverse(inverse: CoarseInverse, scale: float) -> CoarseInverse:
    """An inverse times a number."""
    together = None if inverse.together is None else scale * inverse.together
    return CoarseInverse(together, scale * inverse.alone, scale * inverse.norm)


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def aggregate_basis(
    graph: Graph, groups: Aggregation | Any, *, backend: BackendName | Backend = "auto"
) -> AggregateBasis:
    """A basis of groups: one vector per group, the root of the degree inside and 0 outside.

    Parameters
    ----------
    groups : Aggregation, or int array of shape (n,)
        The groups of ``aggregate``, or any labels from 0 up, such as the cells of an inverted
        file; -1 for items that belong to none. A label in several components of the graph is a
        group in each of them.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
    >>> graph = hg.reciprocal_graph(hg.nearest_neighbors(items, k=2))
    >>> basis = hg.aggregate_basis(graph, [0, 0, 0, 1, 1, 1])
    >>> basis.kind, basis.rank
    ('aggregates', 2)
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    if isinstance(groups, Aggregation):
        labels: NDArray[np.int64] = groups.labels.astype(np.int64)
    else:
        labels = _checked_labels(groups, graph.n)
    degrees = device.to_numpy(graph.degrees).astype(np.float64)
    inside = (labels >= 0) & (degrees > 0)
    # Groups of isolated items only have no vector: the others are numbered without them.
    labels = np.where(inside, labels, -1)
    labels[inside] = np.unique(labels[inside], return_inverse=True)[1]
    # A group across components would hand scores to items that diffusion cannot reach.
    parts = labels[inside] * graph.n + graph.components[inside]
    labels[inside] = np.unique(parts, return_inverse=True)[1]
    weights = _group_weights(labels, degrees)
    couplings = _couplings_of_groups(graph, labels, weights, device)
    # Groups that couple to no other are solved by a division: they are numbered last.
    count = int(labels.max(initial=-1)) + 1
    coupled = np.unique(couplings.groups[couplings.groups != couplings.others])
    number = np.empty(count, np.int64)
    number[np.argsort(~np.isin(np.arange(count), coupled), kind="stable")] = np.arange(count)
    labels[inside] = number[labels[inside]]
    return _basis_of_groups(
        graph, labels, weights, couplings.renumbered(number), coupled.size, device
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Couplings:
    """``W Z`` (rows, columns, values) in row order, and ``Z^T W Z`` (groups, others, strengths)."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    groups: NDArray[np.int64]
    others: NDArray[np.int64]
    strengths: NDArray[np.float64]

    def renumbered(self, number: NDArray[np.int64]) -> _Couplings:
        """The same with group g called ``number[g]``."""
        groups = number[self.groups]
        order = np.argsort(groups, kind="stable")
        return _Couplings(
            rows=self.rows,
            columns=number[self.columns],
            values=self.values,
            groups=groups[order],
            others=number[self.others][order],
            strengths=self.strengths[order],
        )


def _group_weights(labels: NDArray[np.int64], degrees: HostArray) -> HostArray:
    """The one entry of each item: the root of its degree, so that every vector has unit length."""
    inside = labels >= 0
    lengths = np.sqrt(np.bincount(labels[inside], weights=degrees[inside]))
    weights = np.zeros(labels.size)
    weights[inside] = np.sqrt(degrees[inside]) / lengths[labels[inside]]
    return weights


def _couplings_of_groups(
    graph: Graph, labels: NDArray[np.int64], weights: HostArray, backend: Backend
) -> _Couplings:
    """How the vectors of groups look after one product with the adjacency."""
    host, matrix = backend.to_numpy, graph.adjacency
    count = int(labels.max(initial=-1)) + 1
    indptr, indices, data = host(matrix.indptr), host(matrix.indices), host(matrix.data)
    parts = []
    # Some rows at a time: what lies between them and their sums is far larger than both.
    for start in range(0, graph.n, _ROWS):
        bounds = indptr[start : start + _ROWS + 1]
        rows = np.repeat(np.arange(start, start + bounds.size - 1), np.diff(bounds))
        columns = indices[bounds[0] : bounds[-1]]
        values = data[bounds[0] : bounds[-1]] * weights[columns]
        parts.append(_added_up(rows, labels[columns], values, count))
    rows, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    groups, others, strengths = _added_up(labels[rows], columns, weights[rows] * values, count)
    return _Couplings(rows, columns, values, groups, others, strengths)


def _added_up(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: HostArray, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], HostArray]:
    """Entries in row order, those of the same place as one; entries of no group are left out."""
    known = (rows >= 0) & (columns >= 0)
    names, values = (rows * count + columns)[known], values[known]
    order = np.argsort(names, kind="stable")
    names, values = names[order], values[order]
    first = np.flatnonzero(np.diff(names, prepend=-1))
    sums = np.add.reduceat(values, first) if first.size else values
    rows, columns = np.divmod(names[first], max(count, 1))
    return rows, columns, sums


def _basis_of_groups(
    graph: Graph,
    labels: NDArray[np.int64],
    weights: HostArray,
    couplings: _Couplings,
    divided: int,
    backend: Backend,
) -> AggregateBasis:
    """The basis of groups of which the first ``divided`` couple to each other."""
    dtype = dtype_name(graph.degrees.dtype)
    shape = (graph.n, int(labels.max(initial=-1)) + 1)
    inside = np.flatnonzero(labels >= 0)
    vectors, transposed = both_ways(
        backend.asarray(weights[inside], dtype),
        backend.asarray(inside),
        backend.asarray(labels[inside]),
        shape,
        backend,
    )
    small = couplings.groups < divided
    alone = np.zeros(shape[1] - divided)
    alone[couplings.groups[~small] - divided] = couplings.strengths[~small]
    return AggregateBasis(
        vectors=vectors,
        transposed=transposed,
        spread=_side_by_side(labels, weights, couplings, graph, backend),
        gram=None,
        coupling=csr_from_sorted(
            backend.asarray(couplings.strengths[small], dtype),
            backend.asarray(couplings.groups[small]),
            backend.asarray(couplings.others[small]),
            (divided, divided),
            backend,
        ),
        alone=backend.asarray(alone[:, None], dtype),
        adjacency=graph.adjacency,
        backend=backend,
    )


def _side_by_side(
    labels: NDArray[np.int64],
    weights: HostArray,
    couplings: _Couplings,
    graph: Graph,
    backend: Backend,
) -> SparseMatrix:
    """Z and ``W Z`` as one sparse matrix: groups of an item, then those of its neighbors.

    Its indices are of the graph's own kind: the native core reads both matrices in one loop.
    """
    inside, count = np.flatnonzero(labels >= 0), int(labels.max(initial=-1)) + 1
    rows = np.concatenate([inside, couplings.rows])
    columns = np.concatenate([labels[inside], couplings.columns + count])
    values = np.concatenate([weights[inside], couplings.values])
    order = np.argsort(rows, kind="stable")
    return csr_from_sorted(
        backend.asarray(values[order], graph.dtype),
        backend.asarray(rows[order]),
        backend.asarray(columns[order]),
        (labels.size, 2 * count),
        backend,
        wide=dtype_name(graph.adjacency.indices.dtype) == "int64",
    )


def _checked_labels(groups: Any, n: int) -> NDArray[np.int64]:
    labels = np.asarray(groups)
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be integers of shape ({n},); got {labels.dtype} of shape {labels.shape}."
        )
    if labels.size and labels.min() < -1:
        raise ValueError(f"labels must be at least -1 (no group); got {labels.min()}.")
    return labels.astype(np.int64)


def _joined(labels: HostArray, graph: Graph, backend: Backend) -> HostArray:
    """Labels in which connected items without a group joined that of their heaviest neighbor."""
    host, matrix = backend.to_numpy, graph.adjacency
    rows, columns = host(row_numbers(matrix, backend)), host(matrix.indices)
    weights = host(matrix.data)
    labels = labels.copy()
    for _ in range(_ROUNDS):
        usable = (labels[rows] < 0) & (labels[columns] >= 0)
        if not usable.any():
            break
        row, column, weight = rows[usable], columns[usable], weights[usable]
        best = np.lexsort((weight, row))  # the heaviest of each row comes last
        labels[row[best]] = labels[column[best]]
    # What is still out of reach becomes a group with what it is joined to.
    lonely = (labels < 0) & (np.diff(host(matrix.indptr)) > 0)
    components = graph.components[lonely]
    labels[lonely] = labels.max(initial=-1) + 1 + np.unique(components, return_inverse=True)[1]
    return labels
