"""Leading eigenpairs of the normalized adjacency, with the figures that tell how good they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.graph import Graph, largest_component, submatrix
from hybrid_gpu.validation import check_count, dtype_name


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """The largest eigenvalues of a graph's adjacency and their eigenvectors.

    Attributes
    ----------
    eigenvalues : float array of shape (r,)
        Descending; Lambda_1 in the paper.
    eigenvectors : float array of shape (n, r)
        Orthonormal columns, zero outside the largest component; U_1 in the paper.
    residuals : float64 host array of shape (r,)
        ``|W u - lambda u|`` of each pair.
    orthogonality : float
        The largest entry of ``|U_1^T U_1 - I|``.
    items : int
        Size of the component that they were computed on.
    """

    eigenvalues: Array
    eigenvectors: Array
    residuals: HostArray
    orthogonality: float
    items: int

    @property
    def rank(self) -> int:
        return int(self.eigenvalues.shape[0])

    def __repr__(self) -> str:
        worst = float(self.residuals.max()) if self.rank else 0.0
        return f"Spectrum(rank {self.rank} of {self.items} items, worst residual {worst:.1e})"


def leading_eigenpairs(
    graph: Graph, *, rank: int, seed: int = 0, backend: str | Backend = "auto"
) -> Spectrum:
    """The ``rank`` largest eigenpairs on the largest connected component, as in the paper.

    Lanczos (``eigsh``) in float64, or a dense decomposition where the rank is a large part of the
    component. Lanczos may miss copies of a repeated eigenvalue inside the component.

    Raises
    ------
    ValueError
        If the component has fewer than ``rank`` items.
    """
    device = select_backend(backend, like=graph.degrees)
    items = largest_component(graph)
    rank = check_count(rank, "rank", low=0, high=items.size)
    xp = device.xp
    dtype = dtype_name(graph.adjacency.data.dtype)
    if rank == 0:
        none = xp.zeros((graph.n, 0), dtype=getattr(xp, dtype), device=device.device)
        return Spectrum(none[0, :], none, np.zeros(0), 0.0, items.size)
    part = _in_float64(submatrix(graph.adjacency, device.asarray(items), device), device)
    # Lanczos needs room beyond the rank; near the full size a dense decomposition is also faster.
    if rank > items.size // 3:
        identity = xp.eye(items.size, dtype=xp.float64, device=device.device)
        values, vectors = xp.linalg.eigh(device.spmm(part, identity))
        values, vectors = xp.flip(values)[:rank], xp.flip(vectors, axis=1)[:, :rank]
    else:
        start = np.random.default_rng(seed).standard_normal(items.size)
        pairs = device.eigsh(part, rank, start)
        values, vectors = pairs.values, pairs.vectors
    errors = device.spmm(part, vectors) - vectors * values
    gram = xp.matmul(vectors.T, vectors) - xp.eye(rank, dtype=xp.float64, device=device.device)
    return Spectrum(
        eigenvalues=xp.astype(values, getattr(xp, dtype)),
        eigenvectors=_embed(xp.astype(vectors, getattr(xp, dtype)), items, graph.n, device),
        residuals=device.to_numpy(xp.sqrt(xp.sum(errors * errors, axis=0))),
        orthogonality=float(xp.max(xp.abs(gram))),
        items=items.size,
    )


def _in_float64(matrix: SparseMatrix, backend: Backend) -> SparseMatrix:
    data = backend.xp.astype(matrix.data, backend.xp.float64)
    return backend.csr(data, matrix.indices, matrix.indptr, matrix.shape)


def _embed(vectors: Array, items: HostArray, n: int, backend: Backend) -> Array:
    """The rows of a component in their places among all n, zeros elsewhere."""
    xp = backend.xp
    source = np.full(n, items.size)
    source[items] = np.arange(items.size)
    zero = xp.zeros((1, vectors.shape[1]), dtype=vectors.dtype, device=backend.device)
    return xp.take(xp.concat([vectors, zero]), backend.asarray(source), axis=0)
