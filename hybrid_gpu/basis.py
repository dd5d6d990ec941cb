"""The small part of the spectrum that a solver keeps at hand: dense or sparse eigenvectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.graph import array_bytes, csr_from_sorted
from hybrid_gpu.spectrum import Spectrum
from hybrid_gpu.validation import check_number


class Basis(Protocol):
    """Vectors (n, r) with an eigenvalue each, as a solver uses them."""

    @property
    def eigenvalues(self) -> Array: ...

    @property
    def memory(self) -> int:
        """Bytes."""

    def restrict(self, signal: Array) -> Array:
        """``U^T v``: coefficients (r, m) of the columns of a signal (n, m)."""

    def prolong(self, coefficients: Array) -> Array:
        """``U c``: the signal (n, m) of coefficients (r, m)."""


@dataclass(frozen=True, slots=True, eq=False)
class EigenBasis:
    """Dense eigenvectors, the U_1 of the paper."""

    eigenvalues: Array
    vectors: Array
    backend: Backend

    @property
    def memory(self) -> int:
        return array_bytes(self.eigenvalues) + array_bytes(self.vectors)

    def restrict(self, signal: Array) -> Array:
        return self.backend.xp.matmul(self.vectors.T, signal)

    def prolong(self, coefficients: Array) -> Array:
        return self.backend.xp.matmul(self.vectors, coefficients)

    def __repr__(self) -> str:
        return f"EigenBasis(rank {self.eigenvalues.shape[0]}, {self.memory / 1e6:.1f} MB)"


@dataclass(frozen=True, slots=True, eq=False)
class SparseEigenBasis:
    """Eigenvectors of which only the largest entries are kept, by rows and by columns."""

    eigenvalues: Array
    vectors: SparseMatrix
    transposed: SparseMatrix
    backend: Backend

    @property
    def memory(self) -> int:
        matrices = (self.vectors, self.transposed)
        arrays = [part for one in matrices for part in (one.data, one.indices, one.indptr)]
        return array_bytes(self.eigenvalues) + sum(array_bytes(part) for part in arrays)

    def restrict(self, signal: Array) -> Array:
        return self.backend.spmm(self.transposed, signal)

    def prolong(self, coefficients: Array) -> Array:
        return self.backend.spmm(self.vectors, coefficients)

    def __repr__(self) -> str:
        return f"SparseEigenBasis(rank {self.eigenvalues.shape[0]}, {self.memory / 1e6:.1f} MB)"


def eigen_basis(spectrum: Spectrum, *, backend: str | Backend = "auto") -> EigenBasis:
    """The dense basis of a spectrum."""
    device = select_backend(backend, like=spectrum.eigenvectors)
    return EigenBasis(spectrum.eigenvalues, spectrum.eigenvectors, device)


def sparse_eigen_basis(
    spectrum: Spectrum, *, sparsity: float = 0.99, backend: str | Backend = "auto"
) -> SparseEigenBasis:
    """The basis of SHybrid: the smallest entries of U_1 set to zero.

    Parameters
    ----------
    sparsity
        The fraction of all entries that become zero, in [0, 1); 0.99 in the paper.
    """
    device = select_backend(backend, like=spectrum.eigenvectors)
    xp = device.xp
    sparsity = check_number(sparsity, "sparsity")
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must lie in [0, 1); got {sparsity}. The paper uses 0.99.")
    n, r = spectrum.eigenvectors.shape
    flat = xp.reshape(spectrum.eigenvectors, (-1,))
    count = n * r - int(sparsity * n * r)
    kept = xp.sort(device.top_k(xp.abs(flat)[None, :], count).ids[0, :]) if r else flat[:0]
    kept = xp.astype(kept, xp.int64)
    data, rows, columns = xp.take(flat, kept), kept // max(r, 1), kept % max(r, 1)
    turned = xp.argsort(columns * n + rows)
    return SparseEigenBasis(
        eigenvalues=spectrum.eigenvalues,
        vectors=csr_from_sorted(data, rows, columns, (n, r), device),
        transposed=csr_from_sorted(
            xp.take(data, turned), xp.take(columns, turned), xp.take(rows, turned), (r, n), device
        ),
        backend=device,
    )
