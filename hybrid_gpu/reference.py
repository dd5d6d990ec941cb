"""The paper as it is written: one query at a time, float64, SciPy, up to four CPU threads.

This is the oracle of the tests and the CPU reference of the benchmarks: slow, plain, and short
enough to be checked against the paper by eye. It shares no code with the rest of the library.
Symbols are the paper's: ``W`` affinity, ``S`` its normalized form (calligraphic W), ``U1`` and
``L1`` leading eigenvectors and eigenvalues, ``y`` observation, ``x`` ranking vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, cg, eigsh

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def affinity_matrix(vectors: Matrix, k: int, gamma: float = 3.0) -> Any:
    """W: ``(v^T z)_+ ^ gamma`` between reciprocal k nearest neighbors, zero diagonal."""
    n = len(vectors)
    similarity = unit(vectors) @ unit(vectors).T
    np.fill_diagonal(similarity, -np.inf)
    lists = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    chosen = np.zeros((n, n), dtype=bool)
    np.put_along_axis(chosen, lists, True, axis=1)
    weight = np.where(chosen & chosen.T, np.maximum(similarity, 0), 0) ** gamma
    return sparse.csr_array((weight + weight.T) / 2)


def unit(vectors: Matrix) -> Matrix:
    """Rows at unit length; zero rows stay zero."""
    vectors = np.asarray(vectors, dtype=np.float64)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


def normalize(W: Any) -> Any:
    """``D^-1/2 W D^-1/2``, section 3."""
    degree = W.sum(axis=1)
    root = np.sqrt(np.where(degree > 0, degree, np.inf))
    return sparse.csr_array(sparse.diags_array(1 / root) @ W @ sparse.diags_array(1 / root))


def leading_eigenpairs(S: Any, r: int) -> tuple[Vector, Matrix]:
    """L1 and U1 on the largest connected component, zero rows elsewhere."""
    labels = connected_components(S, directed=False)[1]
    items = np.flatnonzero(labels == np.argmax(np.bincount(labels)))
    part = S[items][:, items]
    if r > len(items) // 3:  # too many for Lanczos
        values, vectors = np.linalg.eigh(part.toarray())
    else:
        start = np.random.default_rng(7).standard_normal(len(items))
        values, vectors = eigsh(part, k=r, which="LA", v0=start)
    order = np.argsort(-values)[:r]
    U1 = np.zeros((S.shape[0], r))
    U1[items] = vectors[:, order]
    return values[order], U1


def observation(similarity: Vector, neighbors: int = 5, gamma: float = 3.0) -> Vector:
    """y: the query's nearest items with their similarities, section 3."""
    nearest = np.argsort(-similarity, kind="stable")[:neighbors]
    y = np.zeros(len(similarity))
    y[nearest] = np.maximum(similarity[nearest], 0) ** gamma
    return y


def transfer(x: Vector, alpha: float) -> Vector:
    """h_alpha, eq. (transfer)."""
    return (1 - alpha) / (1 - alpha * x)


def exact(S: Any, y: Vector, alpha: float) -> Vector:
    """The solution of eq. (temporal) by a direct solver."""
    laplacian = (sparse.eye_array(len(y)) - alpha * S) / (1 - alpha)
    return np.asarray(sparse.linalg.spsolve(sparse.csc_array(laplacian), y))


def temporal(S: Any, y: Vector, alpha: float, steps: int) -> Vector:
    """Conjugate gradients on ``L_alpha(S) x = y``, eq. (temporal)."""
    return _cg(lambda z: (z - alpha * (S @ z)) / (1 - alpha), y, steps)


def truncated(W: Any, y: Vector, shortlist: NDArray[np.int64], alpha: float, steps: int) -> Vector:
    """Temporal filtering on rows and columns of a shortlist, re-normalized, section 3.1."""
    x = np.zeros(len(y))
    x[shortlist] = temporal(normalize(W[shortlist][:, shortlist]), y[shortlist], alpha, steps)
    return x


def spectral(L1: Vector, U1: Matrix, y: Vector, alpha: float) -> Vector:
    """FSR, eq. (spectral) with the leading eigenpairs."""
    return np.asarray(U1 @ (transfer(L1, alpha) * (U1.T @ y)))


def spectral_weighted(
    L1: Vector, U1: Matrix, y: Vector, similarity: Vector, alpha: float, gamma: float = 3.0
) -> Vector:
    """FSRw, in our reading: similarity where the rows of U1 are short."""
    weight = np.linalg.norm(U1, axis=1)
    fallback = np.maximum(similarity, 0) ** gamma
    return np.asarray(weight * spectral(L1, U1, y, alpha) / (1 - alpha) + (1 - weight) * fallback)


def spectral_on_similarity(
    L1: Vector, U1: Matrix, y: Vector, similarity: Vector, alpha: float, gamma: float = 3.0
) -> Vector:
    """Theorem 1 with h_alpha(0) I for h_alpha(S - U1 L1 U1^T), on all similarities for y there."""
    g = transfer(L1, alpha) - (1 - alpha)
    return np.asarray(U1 @ (g * (U1.T @ y)) + (1 - alpha) * np.maximum(similarity, 0) ** gamma)


def hybrid(S: Any, L1: Vector, U1: Any, y: Vector, alpha: float, steps: int) -> Vector:
    """``x = x^s + x^t``, eqs. (hybrid), (h-spectral), (h-temporal), with the mapping (box)."""
    g = transfer(L1, alpha) - (1 - alpha)
    x_spectral = U1 @ (g * (U1.T @ y))
    x_temporal = _cg(
        lambda z: (z - alpha * (S @ z - U1 @ (L1 * (U1.T @ z)))) / (1 - alpha), y, steps
    )
    return np.asarray(x_spectral + x_temporal)


def sparsify(U1: Matrix, sparsity: float = 0.99, weights: Vector | None = None) -> Any:
    """U1 with its smallest values set to zero, for SHybrid; or those of U1 times ``weights``."""
    sizes = np.abs(U1) if weights is None else np.abs(U1 * weights)
    dropped = np.argsort(-sizes, axis=None, kind="stable")[U1.size - int(sparsity * U1.size) :]
    kept = U1.copy()
    kept.flat[dropped] = 0
    return sparse.csr_array(kept)


def for_each_query(
    rank: Callable[[Vector], Vector], observations: Iterable[Vector], threads: int = 4
) -> list[Vector]:
    """One query after the other on each of up to four threads, as the paper was timed."""
    with ThreadPoolExecutor(min(threads, 4)) as pool:
        return list(pool.map(rank, observations))


def _cg(apply: Callable[[Vector], Vector], y: Vector, steps: int) -> Vector:
    operator = LinearOperator((len(y), len(y)), matvec=apply, dtype=np.float64)
    # A tolerance at rounding level: all steps are taken, and an exact solution does not divide 0/0.
    return np.asarray(cg(operator, y, rtol=1e-15, maxiter=steps)[0])
