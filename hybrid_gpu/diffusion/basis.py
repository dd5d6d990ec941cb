"""What a solver deflates: a few vectors that span the slow part of diffusion.

Whatever the vectors Z are, deflated conjugate gradients converge to the exact solution; good ones
only make it faster. Two kinds are made here. Eigenvectors of the adjacency (``EigenBasis``) stay in
place under diffusion, so that they are projected out once and never seen again. Any other vectors,
sparse or dense (``GalerkinBasis``), are projected out in every step, through the small matrix
``E = Z^T (I - alpha W) Z``. Aggregates are the cheapest of the latter: one vector per group of
items, one number per item.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.spectrum import Spectrum
from hybrid_gpu.graph.affinity import Graph, array_bytes, csr_from_sorted
from hybrid_gpu.graph.aggregation import Aggregation
from hybrid_gpu.validation import (
    check_choice,
    check_kind,
    check_sparsity,
    dtype_name,
    item_bytes,
    shown,
)

PRECISIONS = ("float32", "float16", "int8")

# Rows that are widened at a time to multiply with eigenvectors of low precision.
_TILE = 16_384
# Columns of the basis that are multiplied at a time to find how the basis couples to itself.
_BLOCK = 256

# In float64, with those that LAPACK takes.
_ARRAYS_PER_INVERSE = 6


@dataclass(frozen=True, slots=True, eq=False)
class CoarseSolve:
    """The inverse of ``E = Z^T (I - alpha W) Z``: called with ``Z^T v`` (r, m), gives E^-1 of it.

    Attributes
    ----------
    together : float array of shape (s, s), or None
        The inverse for the first s vectors; None if there are none that couple.
    alone : float array of shape (r - s, 1)
        The inverses for the others, each by itself.
    norm : float
        Not less than the largest eigenvalue of the inverse: how far it raises rounding.
    """

    together: Array | None
    alone: Array
    norm: float
    backend: Backend

    def __call__(self, coefficients: Array) -> Array:
        if self.together is None:
            return self.alone * coefficients
        s = self.together.shape[0]
        first = self.backend.matmul(self.together, coefficients[:s, :])
        return self.backend.xp.concat([first, self.alone * coefficients[s:, :]])


class Basis(Protocol):
    """Vectors Z of shape (n, r), as a solver uses them."""

    @property
    def kind(self) -> str:
        """What the vectors are, in a word or two."""

    @property
    def rank(self) -> int:
        """Number of vectors, r."""

    @property
    def memory(self) -> int:
        """Bytes."""

    @property
    def invariant(self) -> bool:
        """Whether diffusion maps the span of the vectors onto itself, as with eigenvectors."""

    @property
    def crosses(self) -> bool:
        """Whether a vector may reach across components, where diffusion never goes."""

    def restrict(self, signal: Array) -> Array:
        """``Z^T v``: coefficients (r, m) of the columns of a signal (n, m)."""

    def prolong(self, coefficients: Array) -> Array:
        """``Z c``: the signal (n, m) of coefficients (r, m)."""

    def without_image(self, signal: Array, coefficients: Array, alpha: float) -> Array:
        """``v - (I - alpha W) Z c`` for a signal v (n, m); may be written over the signal."""

    def coarse_solve(self, alpha: float) -> CoarseSolve:
        """The inverse of ``E = Z^T (I - alpha W) Z``."""


@dataclass(frozen=True, slots=True, eq=False)
class EigenBasis:
    """Leading eigenvectors, the U_1 of the paper, in full or in low precision.

    Attributes
    ----------
    eigenvalues : float array of shape (r,)
    vectors : array of shape (n, r)
        float32 or float64, float16, or int8.
    scales : float array of shape (r,), or None
        What a unit of each int8 column stands for.
    residuals, orthogonality, missed, items
        The certificate of the ``Spectrum`` that they came from.
    """

    eigenvalues: Array
    vectors: Array
    scales: Array | None
    residuals: HostArray
    orthogonality: float
    missed: float
    items: int
    adjacency: SparseMatrix
    backend: Backend

    @property
    def kind(self) -> str:
        return "eigenvectors"

    @property
    def invariant(self) -> bool:
        return True

    @property
    def crosses(self) -> bool:
        return False

    @property
    def precision(self) -> str:
        """``"float32"``, ``"float64"``, ``"float16"`` or ``"int8"``."""
        return dtype_name(self.vectors.dtype)

    @property
    def rank(self) -> int:
        return int(self.eigenvalues.shape[0])

    @property
    def memory(self) -> int:
        scales = 0 if self.scales is None else array_bytes(self.scales)
        return array_bytes(self.eigenvalues) + array_bytes(self.vectors) + scales

    def restrict(self, signal: Array) -> Array:
        xp = self.backend.xp
        if self._exact:
            return self.backend.matmul(self.vectors.T, signal)
        shape = (self.rank, signal.shape[1])
        result = xp.zeros(shape, dtype=signal.dtype, device=self.backend.device)
        for start, stop in self._tiles():
            result = result + self.backend.matmul(self._rows(start, stop).T, signal[start:stop, :])
        return self._scaled(result)

    def prolong(self, coefficients: Array) -> Array:
        xp = self.backend.xp
        if self._exact:
            return self.backend.matmul(self.vectors, coefficients)
        scaled = self._scaled(coefficients)
        return xp.concat([self.backend.matmul(self._rows(*rows), scaled) for rows in self._tiles()])

    def without_image(self, signal: Array, coefficients: Array, alpha: float) -> Array:
        # Not U Lambda c: vectors of low precision are eigenvectors only nearly.
        change = self.prolong(coefficients)
        return signal - change + alpha * self.backend.spmm(self.adjacency, change)

    def coarse_solve(self, alpha: float) -> CoarseSolve:
        inverse = _inverse_of(self.eigenvalues[:, None], alpha, self.backend)
        return CoarseSolve(None, inverse, 1 / (1 - alpha), self.backend)

    def dense(self) -> Array:
        """The vectors in full precision."""
        if self._exact:
            return self.vectors
        return self.prolong(
            self.backend.xp.eye(self.rank, dtype=self.eigenvalues.dtype, device=self.backend.device)
        )

    @property
    def _exact(self) -> bool:
        return bool(self.vectors.dtype == self.eigenvalues.dtype)

    def _tiles(self) -> list[tuple[int, int]]:
        n = self.vectors.shape[0]
        return [(start, min(start + _TILE, n)) for start in range(0, n, _TILE)]

    def _rows(self, start: int, stop: int) -> Array:
        return self.backend.xp.astype(self.vectors[start:stop, :], self.eigenvalues.dtype)

    def _scaled(self, coefficients: Array) -> Array:
        return coefficients if self.scales is None else self.scales[:, None] * coefficients

    def __repr__(self) -> str:
        return f"EigenBasis(rank {self.rank}, {self.precision}, {_size(self)})"


@dataclass(frozen=True, slots=True, eq=False)
class GalerkinBasis:
    """Any vectors, with the small matrices that tell how diffusion couples them.

    Attributes
    ----------
    vectors, transposed : sparse matrices (n, r) and (r, n), or dense arrays
        Z by items and by vectors.
    spread : sparse matrix of shape (n, 2 r), or None
        Z and ``W Z`` side by side, where they are sparse: one product with it is ``(I - alpha W) Z
        c`` for any alpha. None: W is applied when it is needed.
    gram : array of shape (s, s), or None
        ``Z^T Z`` of the first s vectors; None if they are orthonormal.
    coupling : array or sparse matrix of shape (s, s)
        ``Z^T W Z`` of the first s vectors.
    alone : array of shape (r - s, 1)
        The diagonal of ``Z^T W Z`` for the other vectors, which couple to nothing else and have
        unit length: those of whole components, where it is 1.
    """

    kind: str
    vectors: Any
    transposed: Any
    spread: SparseMatrix | None
    gram: Array | None
    coupling: Any
    alone: Array
    adjacency: SparseMatrix
    backend: Backend
    _solvers: dict[float, CoarseSolve] = field(default_factory=dict)

    @property
    def invariant(self) -> bool:
        return False

    @property
    def crosses(self) -> bool:
        return self.kind.startswith("given")

    @property
    def rank(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def memory(self) -> int:
        # The inverse that searching needs is dense, and stands beside the coupling.
        inverse = self.coupling.shape[0] ** 2 * item_bytes(self.alone)
        small = inverse + _bytes(self.gram) + _bytes(self.coupling) + array_bytes(self.alone)
        large = _bytes(self.vectors) + _bytes(self.spread)
        if hasattr(self.vectors, "indptr"):  # dense vectors are transposed without a copy
            large += _bytes(self.transposed)
        return int(small + large)

    def restrict(self, signal: Array) -> Array:
        return self._times(self.transposed, signal)

    def prolong(self, coefficients: Array) -> Array:
        return self._times(self.vectors, coefficients)

    def without_image(self, signal: Array, coefficients: Array, alpha: float) -> Array:
        if self.spread is None:
            change = self.prolong(coefficients)
            return signal - change + alpha * self.backend.spmm(self.adjacency, change)
        both = self.backend.xp.concat([coefficients, -alpha * coefficients])
        return self.backend.subtract_spmm(signal, self.spread, both)

    def coarse_solve(self, alpha: float) -> CoarseSolve:
        made = self._solvers.get(alpha)
        if made is None:
            # Another thread may want another alpha meanwhile: what is kept need not be ours.
            made = self._coarse_solve(alpha)
            self._solvers.clear()
            self._solvers[alpha] = made
        return made

    def _coarse_solve(self, alpha: float) -> CoarseSolve:
        """The inverse of E, or its pseudo-inverse where the vectors depend on each other."""
        dtype, backend = dtype_name(self.alone.dtype), self.backend
        _check_memory(self.coupling.shape[0])
        # On the host in float64, once: E is small, and vectors that depend on each other must be
        # told from rounding.
        small = -alpha * _on_host(self.coupling, backend)
        if self.gram is None:
            # Orthonormal vectors: E has no eigenvalue below 1 - alpha.
            inverse, norm = np.linalg.inv(np.eye(len(small)) + small), 1 / (1 - alpha)
        else:
            epsilon = float(backend.xp.finfo(self.alone.dtype).eps)
            inverse, norm = _pseudo_inverse(small + backend.to_numpy(self.gram), epsilon)
        together = backend.asarray((inverse + inverse.T) / 2, dtype)
        return CoarseSolve(together, _inverse_of(self.alone, alpha, backend), norm, backend)

    def _times(self, matrix: Any, dense: Array) -> Array:
        if hasattr(matrix, "indptr"):
            return self.backend.spmm(matrix, dense)
        return self.backend.matmul(matrix, dense)

    def __repr__(self) -> str:
        return f"GalerkinBasis({self.kind}, rank {self.rank}, {_size(self)})"


def eigen_basis(
    spectrum: Spectrum,
    graph: Graph,
    *,
    precision: str = "float32",
    backend: str | Backend = "auto",
) -> EigenBasis:
    """The basis of a spectrum.

    Parameters
    ----------
    precision
        ``"float32"`` keeps the eigenvectors as they are; ``"float16"`` and ``"int8"`` (with a
        scale per vector) take a half and a quarter of the memory. Answers stay exact, because
        what the basis misses is left to the solver.
    """
    check_kind(spectrum, "spectrum", Spectrum, "Make one with leading_eigenpairs.")
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=spectrum.eigenvectors)
    xp = device.xp
    check_choice(precision, "precision", PRECISIONS)
    vectors, scales = spectrum.eigenvectors, None
    if precision == "float16":
        if not hasattr(xp, "float16"):
            raise ValueError(
                f"backend {device.name!r} has no float16. Use precision='int8' or 'float32'."
            )
        vectors = xp.astype(vectors, xp.float16)
    elif precision == "int8":
        largest = xp.max(xp.abs(vectors), axis=0) if spectrum.rank else spectrum.eigenvalues
        scales = xp.where(largest > 0, largest, xp.ones_like(largest)) / 127
        vectors = xp.astype(xp.round(vectors / scales), xp.int8)
    return EigenBasis(
        spectrum.eigenvalues,
        vectors,
        scales,
        spectrum.residuals,
        spectrum.orthogonality,
        spectrum.missed,
        spectrum.items,
        graph.adjacency,
        device,
    )


def sparse_eigen_basis(
    eigenvectors: Array,
    graph: Graph,
    *,
    sparsity: float = 0.99,
    backend: str | Backend = "auto",
) -> GalerkinBasis:
    """A basis of the largest entries of the eigenvectors.

    Parameters
    ----------
    eigenvectors : float array of shape (n, r)
        U_1 in the paper.
    sparsity
        The fraction of all entries, the smallest ones, that become zero, in [0, 1); 0.99 in the
        paper.
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=eigenvectors)
    xp = device.xp
    sparsity = check_sparsity(sparsity)
    _check_basis_shape(eigenvectors, "eigenvectors", graph.n)
    n, r = eigenvectors.shape
    flat = xp.reshape(eigenvectors, (-1,))
    count = n * r - int(sparsity * (n * r))
    kept = xp.sort(device.top_k(xp.abs(flat)[None, :], count).ids[0, :]) if r else flat[:0]
    kept = xp.astype(kept, xp.int64)
    data, rows, columns = xp.take(flat, kept), kept // max(r, 1), kept % max(r, 1)
    vectors, transposed = _both_ways(data, rows, columns, (n, r), device)
    return _coupled_by_products("sparse eigenvectors", vectors, transposed, graph, device)


def aggregate_basis(
    graph: Graph, groups: Aggregation | Any, *, backend: str | Backend = "auto"
) -> GalerkinBasis:
    """A basis of groups: one vector per group, the root of the degree inside and 0 outside.

    Parameters
    ----------
    groups : Aggregation, or int array of shape (n,)
        The groups of ``aggregate``, or any labels from 0 up, such as the cells of an inverted
        file; -1 for items that belong to none. A label in several components of the graph is a
        group in each of them.
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
    couplings = _couplings_of_groups(graph, labels, _group_weights(labels, degrees), device)
    # Groups that couple to no other are solved by a division: they are numbered last.
    coupled = np.unique(couplings.groups[couplings.groups != couplings.others])
    count = int(labels.max(initial=-1)) + 1
    number = np.empty(count, np.int64)
    number[np.argsort(~np.isin(np.arange(count), coupled), kind="stable")] = np.arange(count)
    labels[inside] = number[labels[inside]]
    weights = _group_weights(labels, degrees)
    couplings = _couplings_of_groups(graph, labels, weights, device)
    return _basis_of_groups(graph, labels, weights, couplings, coupled.size, device)


@dataclass(frozen=True, slots=True, eq=False)
class _Couplings:
    """``W Z`` (rows, columns, values) in row order, and ``Z^T W Z`` (groups, others, strengths)."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    groups: NDArray[np.int64]
    others: NDArray[np.int64]
    strengths: NDArray[np.float64]


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
    host, matrix = backend.to_numpy, graph.adjacency
    count = int(labels.max(initial=-1)) + 1
    rows = np.repeat(np.arange(graph.n), np.diff(host(matrix.indptr)))
    columns = host(matrix.indices)
    values = host(matrix.data).astype(np.float64) * weights[columns]
    rows, columns, values = _added_up(rows, labels[columns], values, count)
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
) -> GalerkinBasis:
    """The basis of groups of which the first ``divided`` couple to each other."""
    dtype = dtype_name(graph.degrees.dtype)
    shape = (graph.n, int(labels.max(initial=-1)) + 1)
    inside = np.flatnonzero(labels >= 0)
    vectors, transposed = _both_ways(
        backend.asarray(weights[inside], dtype),
        backend.asarray(inside),
        backend.asarray(labels[inside]),
        shape,
        backend,
    )
    small = couplings.groups < divided
    alone = np.zeros(shape[1] - divided)
    alone[couplings.groups[~small] - divided] = couplings.strengths[~small]
    return GalerkinBasis(
        kind="aggregates",
        vectors=vectors,
        transposed=transposed,
        spread=_side_by_side(labels, weights, couplings, dtype, backend),
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
    dtype: str,
    backend: Backend,
) -> SparseMatrix:
    """Z and ``W Z`` as one sparse matrix: groups of an item, then those of its neighbors."""
    inside, count = np.flatnonzero(labels >= 0), int(labels.max(initial=-1)) + 1
    rows = np.concatenate([inside, couplings.rows])
    columns = np.concatenate([labels[inside], couplings.columns + count])
    values = np.concatenate([weights[inside], couplings.values])
    order = np.argsort(rows, kind="stable")
    return csr_from_sorted(
        backend.asarray(values[order], dtype),
        backend.asarray(rows[order]),
        backend.asarray(columns[order]),
        (labels.size, 2 * count),
        backend,
    )


def given_basis(graph: Graph, vectors: Any, *, backend: str | Backend = "auto") -> GalerkinBasis:
    """The user's own vectors: an array or a sparse matrix of shape (n, r).

    Vectors that depend on each other are allowed: the solver works on what they span.
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    dtype = dtype_name(graph.degrees.dtype)
    _check_basis_shape(vectors, "basis", graph.n)
    if hasattr(vectors, "tocoo"):
        entries = vectors.tocsr().tocoo()
        data = device.asarray(entries.data, dtype)
        _check_basis(data, device)
        rows = device.asarray(entries.row, "int64")
        columns = device.asarray(entries.col, "int64")
        order = device.xp.argsort(rows * vectors.shape[1] + columns)
        take = device.xp.take
        both = _both_ways(
            take(data, order), take(rows, order), take(columns, order), vectors.shape, device
        )
        return _coupled_by_products("given, sparse", *both, graph, device)
    dense = device.asarray(vectors, dtype)
    _check_basis(dense, device)
    return _coupled_by_products("given, dense", dense, dense.T, graph, device)


def _check_basis_shape(vectors: Any, what: str, n: int) -> None:
    shape = getattr(vectors, "shape", None)
    if shape is None or not dtype_name(vectors.dtype).startswith(("float", "int", "uint", "bool")):
        raise TypeError(f"{what} must be an array of real numbers; got {shown(vectors)}.")
    if len(shape) != 2 or shape[0] != n:
        raise ValueError(f"{what} must have shape (n, r) with n = {n}; got {tuple(shape)}.")


def _check_basis(values: Array, backend: Backend) -> None:
    xp = backend.xp
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError("basis must be finite; got NaN or infinity.")


def _checked_labels(groups: Any, n: int) -> NDArray[np.int64]:
    labels = np.asarray(groups)
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be integers of shape ({n},); got {labels.dtype} of shape {labels.shape}."
        )
    if labels.size and labels.min() < -1:
        raise ValueError(f"labels must be at least -1 (no group); got {labels.min()}.")
    return labels.astype(np.int64)


def _coupled_by_products(
    kind: str, vectors: Any, transposed: Any, graph: Graph, backend: Backend
) -> GalerkinBasis:
    """A basis whose small matrices are found by multiplying blocks of its own vectors."""
    xp = backend.xp
    r = vectors.shape[1]
    dtype = graph.degrees.dtype
    empty = xp.zeros((0, 0), dtype=dtype, device=backend.device)
    draft = GalerkinBasis(
        kind, vectors, transposed, None, empty, empty, empty, graph.adjacency, backend
    )
    gram, coupling = [], []
    identity = xp.eye(r, dtype=dtype, device=backend.device)
    for start in range(0, r, _BLOCK):
        block = draft.prolong(identity[:, start : min(start + _BLOCK, r)])
        gram.append(draft.restrict(block))
        coupling.append(draft.restrict(backend.spmm(graph.adjacency, block)))
    return GalerkinBasis(
        kind=kind,
        vectors=vectors,
        transposed=transposed,
        spread=None,
        gram=xp.concat(gram, axis=1) if gram else empty,
        coupling=xp.concat(coupling, axis=1) if coupling else empty,
        alone=xp.zeros((0, 1), dtype=dtype, device=backend.device),
        adjacency=graph.adjacency,
        backend=backend,
    )


def _both_ways(
    data: Array, rows: Array, columns: Array, shape: tuple[int, int], backend: Backend
) -> tuple[SparseMatrix, SparseMatrix]:
    """A sparse matrix from entries in row order, and its transpose."""
    xp = backend.xp
    turned = xp.argsort(columns * shape[0] + rows)
    return (
        csr_from_sorted(data, rows, columns, shape, backend),
        csr_from_sorted(
            xp.take(data, turned),
            xp.take(columns, turned),
            xp.take(rows, turned),
            (shape[1], shape[0]),
            backend,
        ),
    )


def _on_host(matrix: Any, backend: Backend) -> HostArray:
    """A small matrix, sparse or not, as a dense float64 array of the host."""
    if not hasattr(matrix, "indptr"):
        return backend.to_numpy(matrix).astype(np.float64)
    indptr = backend.to_numpy(matrix.indptr)
    result = np.zeros(matrix.shape)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(indptr))
    result[rows, backend.to_numpy(matrix.indices)] = backend.to_numpy(matrix.data)
    return result


def host64(values: Array, backend: Backend) -> HostArray:
    """A small array on the host, in float64."""
    return backend.to_numpy(values).astype(np.float64)


def _pseudo_inverse(matrix: HostArray, epsilon: float) -> tuple[HostArray, float]:
    """The inverse of a symmetric matrix where it is not rounding, and its largest eigenvalue."""
    if len(matrix) == 0:
        return matrix, 0.0
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    kept = values > values[-1] * epsilon * values.size
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, 1 / float(values[0]) if values.size else 0.0


def _inverse_of(eigenvalues: Array, alpha: float, backend: Backend) -> Array:
    """``1 / (1 - alpha x)``, computed in float64."""
    # In float32, 1 - alpha has lost digits; and rounding may have put an eigenvalue above 1.
    exact = 1 / (1 - alpha * np.minimum(host64(eigenvalues, backend), 1.0))
    return backend.asarray(exact, dtype_name(eigenvalues.dtype))


def _check_memory(size: int) -> None:
    """Refuse an inverse that cannot fit: in a container, the system would end the process."""
    needed, available = _ARRAYS_PER_INVERSE * 8 * size**2, available_host_bytes()
    if needed > available:
        raise MemoryError(
            f"to invert the system of {size} basis vectors takes about {needed / 1e6:.0f} MB; "
            f"{available / 1e6:.0f} MB are available. Build with a smaller rank, or allow the "
            "process more memory."
        )


def _bytes(part: Any) -> int:
    if part is None:
        return 0
    if hasattr(part, "indptr"):
        return sum(array_bytes(one) for one in (part.data, part.indices, part.indptr))
    return array_bytes(part)


def _size(basis: Basis) -> str:
    return f"{basis.memory / 1e6:.1f} MB"
