"""Any vectors as a basis: sparse eigenvectors, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from hybrid_gpu.backends import (
    Array,
    Backend,
    SparseMatrix,
    on_device,
    on_own_device,
    select_backend,
    settled,
)
from hybrid_gpu.backends.protocol import CoarseInverse, HostArray, Numbering
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.choices import BackendName
from hybrid_gpu.diffusion.any_matrix import both_ways, dense_on_host, rows_taken, times
from hybrid_gpu.diffusion.basis import (
    Deflation,
    SlowedWalk,
    check_vectors_of,
    inverse_of,
    part_bytes,
)
from hybrid_gpu.diffusion.coarse_inverse import check_room_for_inverse, inverted
from hybrid_gpu.diffusion.spectrum import continued_eigenpairs, moved_vectors
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.csr import array_bytes
from hybrid_gpu.validation import check_kind, check_sparsity, dtype_name, item_bytes, shown

# Columns of the basis that are multiplied at a time to find how the basis couples to itself.
_BLOCK = 256
# Inverses to keep, each for an alpha.
_INVERSES = 4

B = TypeVar("B", bound="GalerkinBasis")


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
    weights : array of shape (r,), or None
        By what the entries of eigenvectors were multiplied to find the smallest of all; None:
        they were compared as they are.
    """

    invariant: ClassVar[bool] = False
    crosses: ClassVar[bool] = True
    vectors: Any
    transposed: Any
    spread: SparseMatrix | None
    gram: Array | None
    coupling: Any
    alone: Array
    adjacency: SparseMatrix
    backend: Backend
    inverses: Kept[float, CoarseInverse] = field(default_factory=lambda: Kept(_INVERSES))
    weights: Array | None = None

    @property
    def kind(self) -> str:
        return "given, sparse" if hasattr(self.vectors, "indptr") else "given, dense"

    @property
    def rank(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def memory(self) -> int:
        # The inverse that searching needs is dense, and stands beside the coupling.
        inverse = self.coupling.shape[0] ** 2 * item_bytes(self.alone)
        small = inverse + part_bytes(self.gram) + part_bytes(self.coupling)
        large = part_bytes(self.vectors) + part_bytes(self.spread)
        if hasattr(self.vectors, "indptr"):  # dense vectors are transposed without a copy
            large += part_bytes(self.transposed)
        return int(small + large + array_bytes(self.alone))

    @on_own_device
    def restrict(self, signal: Array) -> Array:
        return times(self.transposed, signal, self.backend)

    @on_own_device
    def prolong(self, coefficients: Array) -> Array:
        return times(self.vectors, coefficients, self.backend)

    @on_own_device
    def prolong_onto(self, signal: Array, coefficients: Array) -> Array:
        if hasattr(self.vectors, "indptr"):
            return self.backend.add_spmm(signal, self.vectors, coefficients)
        return signal + times(self.vectors, coefficients, self.backend)

    def deflation(self, alpha: float) -> Deflation:
        return partial(
            self.backend.deflate, vectors=self, inverse=self.coarse_inverse(alpha), alpha=alpha
        )

    @on_own_device
    def coarse_inverse(self, alpha: float) -> CoarseInverse:
        return self.inverses.get(
            alpha, lambda: settled(lambda: self._inverted(alpha), self.backend)
        )

    def kept_inverse(self, alpha: float) -> CoarseInverse | None:
        return self.inverses.find(alpha)

    @on_own_device
    def keep_inverse(self, alpha: float, together: Array, norm: float) -> None:
        alone = inverse_of(self.alone, alpha, self.backend)
        self.inverses.get(alpha, lambda: CoarseInverse(together, alone, norm))

    def kept_walk(self, alpha: float) -> SlowedWalk | None:
        return None

    def keep_walk(self, alpha: float, slowdown: float, together: Array) -> None:
        pass  # no groups, no walk on them

    @on_own_device
    def renumbered(self: B, graph: Graph, numbering: Numbering) -> B:
        vectors, transposed = rows_taken(self.vectors, self.rank, numbering, self.backend)
        spread = self.spread
        if spread is not None:
            spread = rows_taken(spread, 2 * self.rank, numbering, self.backend)[0]
        # What couples the vectors does not depend on how items are numbered, nor do its inverses.
        return replace(
            self,
            vectors=vectors,
            transposed=transposed,
            spread=spread,
            adjacency=graph.adjacency,
        )

    @on_own_device
    def carried_over(self, graph: Graph, old_places: HostArray) -> GalerkinBasis:
        return given_basis(graph, self._moved(graph, old_places), backend=self.backend)

    def arrays(self) -> Mapping[str, Any]:
        names = ("vectors", "spread", "gram", "coupling", "alone", "weights")
        parts = {name: getattr(self, name) for name in names}
        if hasattr(self.vectors, "indptr"):  # dense: a view of the vectors
            parts["transposed"] = self.transposed
        return {name: part for name, part in parts.items() if part is not None}

    def facts(self) -> dict[str, Any]:
        return {}

    @classmethod
    def restored(
        cls: type[B],
        arrays: Mapping[str, Any],
        facts: Mapping[str, Any],
        adjacency: SparseMatrix,
        backend: Backend,
    ) -> B:
        """The basis of what ``arrays`` and ``facts`` gave."""
        vectors, transposed = arrays["vectors"], arrays.get("transposed")
        return cls(
            vectors=vectors,
            transposed=vectors.T if transposed is None else transposed,
            spread=arrays.get("spread"),
            gram=arrays.get("gram"),
            coupling=arrays["coupling"],
            alone=arrays["alone"],
            adjacency=adjacency,
            backend=backend,
            weights=arrays.get("weights"),
        )

    def _moved(self, graph: Graph, old_places: HostArray) -> HostArray:
        """The vectors (n, r) where the items of a changed graph stand."""
        identity = self.backend.xp.eye(
            self.rank, dtype=graph.degrees.dtype, device=self.backend.device
        )
        return moved_vectors(self.prolong(identity), graph, old_places, self.backend)

    def _inverted(self, alpha: float) -> CoarseInverse:
        """The inverse of E, or its pseudo-inverse where the vectors depend on each other."""
        backend = self.backend
        check_room_for_inverse(self.coupling.shape[0], orthonormal=self.gram is None)
        # On the host in float64, once: E is small, and vectors that depend on each other must be
        # told from rounding.
        coupling = dense_on_host(self.coupling, backend)
        gram = None if self.gram is None else backend.to_numpy(self.gram)
        together, norm = inverted(coupling, gram, alpha, dtype_name(self.alone.dtype))
        alone = inverse_of(self.alone, alpha, backend)
        return CoarseInverse(backend.asarray(together), alone, norm)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, rank {self.rank}, {self.memory / 1e6:.1f} MB)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SparseEigenBasis(GalerkinBasis):
    """The largest entries of eigenvectors."""

    crosses: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        return "sparse eigenvectors"

    @on_own_device
    def carried_over(self, graph: Graph, old_places: HostArray) -> SparseEigenBasis:
        """The largest entries of eigenvectors of the changed graph, as many as before."""
        kept = int(self.vectors.data.shape[0]) / max(1, self.vectors.shape[0] * self.rank)
        spectrum = continued_eigenpairs(graph, self._moved(graph, old_places), self.backend)
        return sparse_eigen_basis(
            spectrum.eigenvectors,
            graph.adjacency,
            sparsity=1 - kept,
            weights=None if self.weights is None else self.weights[: spectrum.rank],
            backend=self.backend,
        )


@on_device(lambda eigenvectors: eigenvectors, stays=True)
def sparse_eigen_basis(
    eigenvectors: Array,
    graph: Graph | SparseMatrix,
    *,
    sparsity: float = 0.99,
    weights: Any = None,
    backend: BackendName | Backend = "auto",
) -> SparseEigenBasis:
    """A basis of the largest entries of the eigenvectors.

    Parameters
    ----------
    eigenvectors : float array of shape (n, r)
        U_1 in the paper.
    graph
        The graph that they belong to, or its normalized adjacency.
    sparsity
        The fraction of all entries, the smallest ones, that become zero, in [0, 1); 0.99 in the
        paper.
    weights : float array of shape (r,), optional
        The entries of each vector are multiplied by its weight to find the smallest; those that
        stay are not. ``hg.Sparsity(threshold="filtered")`` stands for the roots of g(Lambda_1).

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = hg.graph_from_affinity(csr_array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    >>> spectrum = hg.leading_eigenpairs(graph, rank=2)
    >>> hg.sparse_eigen_basis(spectrum.eigenvectors, graph, sparsity=0.5).vectors.data.shape
    (3,)
    """
    adjacency: Any = getattr(graph, "adjacency", graph)
    if not hasattr(adjacency, "indptr"):
        check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=eigenvectors)
    xp = device.xp
    sparsity = check_sparsity(sparsity)
    check_vectors_of(eigenvectors, "eigenvectors", adjacency.shape[0])
    n, r = eigenvectors.shape
    sizes = xp.abs(eigenvectors)
    if weights is not None:
        weights = _checked_weights(weights, r, dtype_name(eigenvectors.dtype), device)
        sizes = sizes * weights
    flat, sizes = xp.reshape(eigenvectors, (-1,)), xp.reshape(sizes, (1, -1))
    count = n * r - int(sparsity * (n * r))
    kept = xp.sort(device.top_k(sizes, count).ids[0, :]) if r else flat[:0]
    kept = xp.astype(kept, xp.int64)
    data, rows, columns = xp.take(flat, kept), kept // max(r, 1), kept % max(r, 1)
    vectors, transposed = both_ways(data, rows, columns, (n, r), device)
    made = _coupled(SparseEigenBasis, vectors, transposed, adjacency, device)
    return made if weights is None else replace(made, weights=weights)


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def given_basis(
    graph: Graph, vectors: Any, *, backend: BackendName | Backend = "auto"
) -> GalerkinBasis:
    """The user's own vectors: an array or a sparse matrix of shape (n, r).

    Vectors that depend on each other are allowed: the solver works on what they span.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = hg.graph_from_affinity(csr_array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    >>> hg.given_basis(graph, graph.degrees[:, None]).rank
    1
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    dtype = dtype_name(graph.degrees.dtype)
    check_vectors_of(vectors, "basis", graph.n)
    if hasattr(vectors, "tocoo"):
        entries = vectors.tocsr().tocoo()
        data = device.asarray(entries.data, dtype)
        _check_values(data, device)
        rows = device.asarray(entries.row, "int64")
        columns = device.asarray(entries.col, "int64")
        order = device.xp.argsort(rows * vectors.shape[1] + columns)
        take = device.xp.take
        by_items, by_vectors = both_ways(
            take(data, order), take(rows, order), take(columns, order), vectors.shape, device
        )
        return _coupled(GalerkinBasis, by_items, by_vectors, graph.adjacency, device)
    dense = device.asarray(vectors, dtype)
    _check_values(dense, device)
    return _coupled(GalerkinBasis, dense, dense.T, graph.adjacency, device)


def _checked_weights(weights: Any, r: int, dtype: str, backend: Backend) -> Array:
    """One finite weight for each of r vectors, none negative."""
    shape = tuple(getattr(weights, "shape", ()))
    if shape != (r,):
        raise ValueError(f"weights must be an array of shape ({r},); got {shown(weights)}.")
    xp, checked = backend.xp, backend.asarray(weights, dtype)
    if not bool(xp.all(xp.isfinite(checked) & (checked >= 0))):
        raise ValueError("weights must be finite and not negative; got others.")
    return checked


def _check_values(values: Array, backend: Backend) -> None:
    xp = backend.xp
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError("basis must be finite; got NaN or infinity.")


def _coupled(
    made: type[B], vectors: Any, transposed: Any, adjacency: SparseMatrix, backend: Backend
) -> B:
    """A basis whose small matrices are found by multiplying blocks of its own vectors."""
    xp, r = backend.xp, vectors.shape[1]
    dtype = adjacency.data.dtype
    identity = xp.eye(r, dtype=dtype, device=backend.device)
    gram = coupling = identity  # of no vectors: an empty matrix
    blocks = []
    for start in range(0, r, _BLOCK):
        block = times(vectors, identity[:, start : min(start + _BLOCK, r)], backend)
        image = backend.spmm(adjacency, block)
        blocks.append([times(transposed, part, backend) for part in (block, image)])
    if blocks:
        gram, coupling = (xp.concat(parts, axis=1) for parts in zip(*blocks, strict=True))
    if not bool(xp.all(xp.isfinite(gram))):
        raise ValueError(
            f"basis must have vectors whose squares {dtype_name(dtype)} can hold; got entries that "
            "are too large. Divide each vector by its norm."
        )
    return made(
        vectors=vectors,
        transposed=transposed,
        spread=None,
        gram=gram,
        coupling=coupling,
        alone=xp.zeros((0, 1), dtype=dtype, device=backend.device),
        adjacency=adjacency,
        backend=backend,
    )
