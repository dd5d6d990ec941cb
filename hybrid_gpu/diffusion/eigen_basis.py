"""Leading eigenvectors as a basis, in full or in low precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from hybrid_gpu.backends import (
    Array,
    Backend,
    SparseMatrix,
    on_device,
    on_own_device,
    select_backend,
    settled,
)
from hybrid_gpu.backends.generic import over_rows
from hybrid_gpu.backends.protocol import CoarseInverse, Deflated, HostArray, Numbering
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.choices import BackendName, PrecisionName
from hybrid_gpu.diffusion.basis import Deflation, SlowedWalk, host64, inverse_of
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.diffusion.galerkin_basis import SparseEigenBasis, sparse_eigen_basis
from hybrid_gpu.diffusion.sparsity import Sparsity
from hybrid_gpu.diffusion.spectrum import Spectrum, continued_eigenpairs, moved_vectors
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.csr import array_bytes
from hybrid_gpu.validation import check_choice, check_kind, dtype_name

PRECISIONS = ("float32", "float16", "int8")

# Rows that are widened at a time to multiply with eigenvectors of low precision.
_TILE = 16_384


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

    invariant: ClassVar[bool] = True
    crosses: ClassVar[bool] = False
    eigenvalues: Array
    vectors: Array
    scales: Array | None
    residuals: HostArray
    orthogonality: float
    missed: float
    items: int
    adjacency: SparseMatrix
    backend: Backend
    _sparse: Kept[tuple[float, bytes], SparseEigenBasis] = field(default_factory=lambda: Kept(1))
    _norms: Kept[None, Array] = field(default_factory=lambda: Kept(1))

    @property
    def kind(self) -> str:
        return "eigenvectors"

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

    @on_own_device
    def restrict(self, signal: Array) -> Array:
        xp = self.backend.xp
        if self._exact:
            return self.backend.matmul(self.vectors.T, signal)
        shape = (self.rank, signal.shape[1])
        result = xp.zeros(shape, dtype=signal.dtype, device=self.backend.device)
        for start, stop in self._tiles():
            result = result + self.backend.matmul(self._rows(start, stop).T, signal[start:stop, :])
        return self._scaled(result)

    @on_own_device
    def prolong(self, coefficients: Array) -> Array:
        xp = self.backend.xp
        if self._exact:
            return self.backend.matmul(self.vectors, coefficients)
        scaled = self._scaled(coefficients)
        return xp.concat([self.backend.matmul(self._rows(*rows), scaled) for rows in self._tiles()])

    @on_own_device
    def prolong_onto(self, signal: Array, coefficients: Array) -> Array:
        return signal + self.prolong(coefficients)

    def deflation(self, alpha: float) -> Deflation:
        inverse = self.coarse_inverse(alpha)
        return lambda signal: self._deflated(signal, inverse, alpha)

    @on_own_device
    def _deflated(self, signal: Array, inverse: CoarseInverse, alpha: float) -> Deflated:
        """What is left of a signal when its part in the span is solved."""
        restricted = self.restrict(signal)
        coefficients = inverse.alone * restricted
        # Not U Lambda c: vectors of low precision are eigenvectors only nearly.
        change = self.prolong(coefficients)
        return Deflated(
            values=signal - change + alpha * self.backend.spmm(self.adjacency, change),
            coefficients=coefficients,
            restricted=restricted,
            norm=inverse.norm,
        )

    @on_own_device
    def coarse_inverse(self, alpha: float) -> CoarseInverse:
        inverse = inverse_of(self.eigenvalues[:, None], alpha, self.backend)
        return CoarseInverse(None, inverse, 1 / (1 - alpha))

    def kept_inverse(self, alpha: float) -> CoarseInverse | None:
        return None  # a division: nothing to keep

    def keep_inverse(self, alpha: float, together: Array, norm: float) -> None:
        return None

    def kept_walk(self, alpha: float) -> SlowedWalk | None:
        return None

    def keep_walk(self, alpha: float, slowdown: float, together: Array) -> None:
        pass  # no groups, no walk on them

    @on_own_device
    def dense(self) -> Array:
        """The vectors in full precision."""
        if self._exact:
            return self.vectors
        return self.prolong(
            self.backend.xp.eye(self.rank, dtype=self.eigenvalues.dtype, device=self.backend.device)
        )

    @on_own_device
    def row_norms(self) -> Array:
        """The norm of each item's row (n, 1): how much of it the vectors span. Made once."""
        return self._norms.get(None, lambda: settled(self._row_norms, self.backend))

    @on_own_device
    def sparsified(self, sparsity: float, weights: HostArray | None = None) -> SparseEigenBasis:
        """The vectors without their smallest entries; made once and kept.

        ``weights`` (r,), if any, multiply the entries of each vector to find the smallest.
        """

        def make() -> SparseEigenBasis:
            return sparse_eigen_basis(
                self.dense(),
                self.adjacency,
                sparsity=sparsity,
                weights=weights,
                backend=self.backend,
            )

        key = b"" if weights is None else np.asarray(weights, dtype=np.float64).tobytes()
        return self._sparse.get((sparsity, key), lambda: settled(make, self.backend))

    @on_own_device
    def sparsified_for(self, filter: Filter, sparsity: Sparsity) -> SparseEigenBasis:
        """The vectors without the entries that matter least to a filter, or the smallest."""
        weights = sparsity.weights(host64(self.eigenvalues, self.backend), filter)
        return self.sparsified(sparsity.fraction, weights)

    @on_own_device
    def leading(self, rank: int) -> EigenBasis:
        """The first vectors only; the next eigenvalue is known, so that nothing was missed."""
        if rank >= self.rank:
            return self
        values = self.eigenvalues
        return self._with(
            eigenvalues=values[:rank],
            # A copy, because a product with every n-th column of a wider array is far slower.
            vectors=self.backend.xp.asarray(self.vectors[:, :rank], copy=True),
            scales=None if self.scales is None else self.scales[:rank],
            residuals=self.residuals[:rank],
            missed=float(values[rank] - values[rank - 1]) if rank else self.missed,
        )

    @on_own_device
    def renumbered(self, graph: Graph, numbering: Numbering) -> EigenBasis:
        vectors = self.backend.xp.take(self.vectors, numbering.order, axis=0)
        return self._with(vectors=vectors, adjacency=graph.adjacency)

    @on_own_device
    def carried_over(self, graph: Graph, old_places: HostArray) -> EigenBasis:
        """Eigenvectors of the changed graph, computed beginning with these."""
        vectors = moved_vectors(self.dense(), graph, old_places, self.backend)
        spectrum = continued_eigenpairs(graph, vectors, self.backend)
        short: dict[str, PrecisionName] = {"float16": "float16", "int8": "int8"}
        precision = short.get(self.precision, "float32")
        return eigen_basis(spectrum, graph, precision=precision, backend=self.backend)

    def arrays(self) -> Mapping[str, Any]:
        parts = {
            "eigenvalues": self.eigenvalues,
            "vectors": self.vectors,
            "residuals": self.residuals,
        }
        return parts if self.scales is None else {**parts, "scales": self.scales}

    def facts(self) -> dict[str, Any]:
        # JSON has no infinity: a missing figure stands for 'nothing else was there to miss'.
        missed = self.missed if math.isfinite(self.missed) else None
        return {"items": self.items, "orthogonality": self.orthogonality, "missed": missed}

    @classmethod
    def restored(
        cls,
        arrays: Mapping[str, Any],
        facts: Mapping[str, Any],
        adjacency: SparseMatrix,
        backend: Backend,
    ) -> EigenBasis:
        """The basis of what ``arrays`` and ``facts`` gave."""
        return cls(
            eigenvalues=arrays["eigenvalues"],
            vectors=arrays["vectors"],
            scales=arrays.get("scales"),
            residuals=np.asarray(backend.to_numpy(arrays["residuals"])),
            orthogonality=float(facts["orthogonality"]),
            missed=-math.inf if facts["missed"] is None else float(facts["missed"]),
            items=int(facts["items"]),
            adjacency=adjacency,
            backend=backend,
        )

    def _with(self, **changes: Any) -> EigenBasis:
        """The basis with other parts, and nothing kept of this one."""
        return replace(self, **changes, _sparse=Kept(1), _norms=Kept(1))

    def _row_norms(self) -> Array:
        xp, vectors = self.backend.xp, self.dense()
        return xp.sqrt(xp.sum(vectors * vectors, axis=1, keepdims=True))

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
        return f"EigenBasis(rank {self.rank}, {self.precision}, {self.memory / 1e6:.1f} MB)"


@on_device(lambda spectrum: getattr(spectrum, "eigenvectors", None), stays=True)
def eigen_basis(
    spectrum: Spectrum,
    graph: Graph,
    *,
    precision: PrecisionName = "float32",
    backend: BackendName | Backend = "auto",
) -> EigenBasis:
    """The basis of a spectrum.

    Parameters
    ----------
    precision
        ``"float32"`` keeps the eigenvectors as they are; ``"float16"`` and ``"int8"`` (with a
        scale per vector) take a half and a quarter of the memory. Answers stay exact, because
        what the basis misses is left to the solver.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = hg.graph_from_affinity(csr_array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    >>> basis = hg.eigen_basis(hg.leading_eigenpairs(graph, rank=2), graph, precision="int8")
    >>> basis.rank, basis.precision
    (2, 'int8')
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
        largest = spectrum.eigenvalues
        if spectrum.rank:
            largest = over_rows(xp.max, xp.abs(vectors), xp)
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
