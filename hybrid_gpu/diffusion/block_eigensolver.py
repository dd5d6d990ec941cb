"""The block eigensolver: subspace iteration with a Chebyshev filter and Rayleigh-Ritz.

Single-vector Lanczos misses copies of a repeated eigenvalue without a word; a block that is wider
than the multiplicity does not. Everything here works on one connected component.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix
from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.backends.protocol import Eigenpairs, HostArray
from hybrid_gpu.backends.threads import single_threaded_blas
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.csr import row_numbers
from hybrid_gpu.progress import Progress
from hybrid_gpu.validation import dtype_name

_ROUNDS_AT_MOST = 100
# Columns beyond the rank, as a part of it: they make the gap that convergence lives on.
_GUARD = 0.2
# The first filter works on random columns, about which nothing is known yet.
_FIRST_CUT, _FIRST_DEGREE = 0.7, 16
_DEGREES = (6, 60)
# How much the filter may raise the first eigenvector over the last: beyond it, rounding errors
# along the first ones drown the others.
_LARGEST_GAIN = {"float32": 1e6, "float64": 1e12}
# float32 takes 0.6 of the time of float64 and got to residuals of 4e-6 (Fashion-MNIST, rank 400).
_SINGLE_TOLERANCE = 1e-5
# Tiles: columns that stay in a CPU's cache together, rows that are widened to float64 together.
TILE_COLUMNS, _TILE_ROWS = 64, 8192


@dataclass(frozen=True, slots=True, eq=False)
class EigenRequest:
    """What is asked of the block solver.

    ``keep_interrupted`` is whether Ctrl-C ends it with the pairs that have converged.
    """

    rank: int
    tolerance: float
    rng: np.random.Generator
    progress: Progress | None
    keep_interrupted: bool


@dataclass(frozen=True, slots=True, eq=False)
class ComponentMatrix:
    """The adjacency of the component, reordered, with room for a shift on its diagonal."""

    data: Array
    indices: Array
    indptr: Array
    diagonal: Array
    size: int


def operator_of(graph: Graph, order: HostArray, backend: Backend) -> ComponentMatrix:
    """The rows and columns of ``order``, a whole component, in that order."""
    xp = backend.xp
    t = order.size
    host_places = np.full(graph.n, -1)
    host_places[order] = np.arange(t)
    places = backend.asarray(host_places)
    rows = xp.take(places, row_numbers(graph.adjacency, backend))
    columns = xp.take(places, xp.astype(graph.adjacency.indices, xp.int64))
    inside = rows >= 0
    own = xp.arange(t, dtype=xp.int64, device=backend.device)
    zeros = xp.zeros((t,), dtype=graph.adjacency.data.dtype, device=backend.device)
    rows = xp.concat([rows[inside], own])
    columns = xp.concat([columns[inside], own])
    data = xp.concat([graph.adjacency.data[inside], zeros])
    by_row = xp.argsort(rows * t + columns)
    rows, columns = xp.take(rows, by_row), xp.take(columns, by_row)
    matrix = csr_from_sorted(xp.take(data, by_row), rows, columns, (t, t), backend)
    # Not rows == columns: a self-loop stands there too, and the shift is taken once.
    added = by_row >= data.shape[0] - t
    return ComponentMatrix(matrix.data, matrix.indices, matrix.indptr, added, t)


def shifted(
    operator: ComponentMatrix, scale: float, shift: float, dtype: str, backend: Backend
) -> SparseMatrix:
    """``scale * (W - shift I)`` as one matrix: a product with it needs no further pass."""
    xp = backend.xp
    data = scale * xp.astype(operator.data, xp.float64)
    data = xp.where(operator.diagonal, data - scale * shift, data)
    data = xp.astype(data, getattr(xp, dtype))
    return backend.csr(data, operator.indices, operator.indptr, (operator.size, operator.size))


def dense_eigenpairs(operator: ComponentMatrix, backend: Backend) -> Eigenpairs:
    """All eigenpairs, by a dense decomposition."""
    xp = backend.xp
    matrix = shifted(operator, 1.0, 0.0, "float64", backend)
    identity = xp.eye(operator.size, dtype=xp.float64, device=backend.device)
    values, vectors = _decomposed(backend.spmm(matrix, identity), backend)
    return Eigenpairs(values=xp.flip(values), vectors=xp.flip(vectors, axis=1))


def no_pairs(operator: ComponentMatrix, backend: Backend) -> Eigenpairs:
    """Eigenpairs of rank 0."""
    xp = backend.xp
    vectors = xp.zeros((operator.size, 0), dtype=operator.data.dtype, device=backend.device)
    return Eigenpairs(values=vectors[0, :], vectors=vectors)


@dataclass(frozen=True, slots=True, eq=False)
class RitzPairs:
    """The best approximations to eigenpairs in a subspace; values and residuals on the host."""

    values: HostArray
    vectors: Array
    residuals: HostArray


@dataclass(frozen=True, slots=True, eq=False)
class _NextFilter:
    """The next filter: it damps [-1, cut], and leaves the first ``settled`` columns alone."""

    cut: float
    degree: int
    settled: int


def block_eigenpairs(
    operator: ComponentMatrix,
    known: Array,
    request: EigenRequest,
    backend: Backend,
) -> tuple[Eigenpairs, int]:
    """Subspace iteration with a Chebyshev filter, and the number of pairs that it got to.

    Every round raises the columns' parts above ``cut`` over those in [-1, cut], and takes the best
    approximations to eigenpairs from what they span. That number is the rank, whether all of them
    have converged or the rounds are over, or, if they are to be kept, the number that had
    converged at Ctrl-C.
    """
    xp, rank, tolerance = backend.xp, request.rank, request.tolerance
    dtype = "float32" if tolerance >= _SINGLE_TOLERANCE else "float64"
    matrix = shifted(operator, 1.0, 0.0, dtype, backend)
    columns = xp.astype(known[:, : min(rank, known.shape[1])], getattr(xp, dtype))
    width = min(operator.size, rank + max(16, int(_GUARD * rank)))
    following = _NextFilter(_FIRST_CUT, _FIRST_DEGREE, settled=columns.shape[1])
    values, converged = np.zeros(0), 0
    try:
        for _ in range(_ROUNDS_AT_MOST):
            random = _random_columns(columns, width, request.rng, backend)
            moving = xp.concat([columns[:, following.settled :], random], axis=1)
            moving = filtered(operator, moving, following.cut, following.degree, backend)
            fixed = columns[:, : following.settled]
            ritz = rayleigh_ritz(matrix, xp.concat([fixed, moving], axis=1), backend)
            values, columns = ritz.values, ritz.vectors
            converged = _leading_below(ritz.residuals[:rank], tolerance)
            if request.progress:
                request.progress("spectrum", converged, rank)
            if converged == rank:
                break
            following = _next_filter(ritz, rank, tolerance, dtype)
    except KeyboardInterrupt:
        if converged == 0 or not request.keep_interrupted:
            raise
        return Eigenpairs(backend.asarray(values), columns), converged
    return Eigenpairs(backend.asarray(values), columns), min(rank, values.size)


def _random_columns(
    columns: Array, width: int, rng: np.random.Generator, backend: Backend
) -> Array:
    """As many unit columns as are missing to the width."""
    n, present = columns.shape
    random = rng.standard_normal((n, width - present)) / math.sqrt(n)
    return backend.asarray(random, dtype_name(columns.dtype))


def _next_filter(ritz: RitzPairs, rank: int, tolerance: float, dtype: str) -> _NextFilter:
    """A filter long enough to bring the worst pair well below the tolerance."""
    if ritz.values.size < rank:
        return _NextFilter(_FIRST_CUT, _FIRST_DEGREE, 0)
    last = float(ritz.values[rank - 1])
    # Without a gap between the rank and the block (a repeated eigenvalue), nothing would grow.
    cut = min(float(ritz.values[-1]), last - 0.005 * (1 + last))
    excess = float(ritz.residuals[:rank].max()) / (0.1 * tolerance)
    rise = growth(last, cut)
    degree = min(
        math.log(excess) / rise,
        math.log(_LARGEST_GAIN[dtype]) / (growth(1.0, cut) - rise + 1e-3),
    )
    # Pairs this good need no filter: what they leave of themselves cannot disturb the others.
    settled = _leading_below(ritz.residuals[:rank], 0.1 * tolerance)
    return _NextFilter(cut, int(min(max(degree, _DEGREES[0]), _DEGREES[1])), settled)


def _leading_below(residuals: HostArray, tolerance: float) -> int:
    """How many residuals, counted from the first, are within the tolerance."""
    above = np.flatnonzero(~(residuals <= tolerance))  # a NaN is not within anything
    return int(above[0]) if above.size else int(residuals.size)


def growth(value: float, cut: float) -> float:
    """How fast a Chebyshev filter that damps [-1, cut] grows at ``value`` with its degree."""
    return math.acosh(max(1.0, (2 * value + 1 - cut) / (1 + cut)))


def filtered(
    operator: ComponentMatrix, columns: Array, cut: float, degree: int, backend: Backend
) -> Array:
    """``T_degree(W)`` of the columns, with T stretched to be at most 1 on [-1, cut]."""
    xp = backend.xp
    center, radius = (cut - 1) / 2, (cut + 1) / 2
    matrix = shifted(operator, 2 / radius, center, dtype_name(columns.dtype), backend)
    tiles = []
    for tile in tiles_of(columns.shape[1], TILE_COLUMNS):
        before = xp.asarray(columns[:, tile], copy=True)
        now = backend.spmm(matrix, before) / 2
        for _ in range(degree - 1):
            after = backend.spmm(matrix, now)
            after -= before
            before, now = now, after
        lengths = xp.sqrt(backend.column_dots(now, now))
        tiles.append(now / xp.astype(lengths, now.dtype))
    return xp.concat(tiles, axis=1)


def rayleigh_ritz(
    matrix: SparseMatrix, columns: Array, backend: Backend, *, floor: float | None = None
) -> RitzPairs:
    """Ritz pairs of the span of the columns, largest value first.

    Directions in which all columns are shorter than ``floor`` are left out; without it, only those
    that rounding cannot tell from zero.
    """
    xp = backend.xp
    columns, whitening = _well_conditioned(columns, floor, backend)
    inner = gram_matrix(columns, backend.spmm(matrix, columns), dtype_name(columns.dtype), backend)
    inner = backend.matmul(whitening.T, backend.matmul(inner, whitening))
    values, rotation = _decomposed((inner + inner.T) / 2, backend)
    values, rotation = xp.flip(values), xp.flip(backend.matmul(whitening, rotation), axis=1)
    vectors = backend.matmul(columns, xp.astype(rotation, columns.dtype))
    errors = backend.spmm(matrix, vectors)
    errors -= vectors * xp.astype(values, columns.dtype)
    residuals = xp.sqrt(backend.column_dots(errors, errors))
    return RitzPairs(backend.to_numpy(values), vectors, backend.to_numpy(residuals))


def _well_conditioned(columns: Array, floor: float | None, backend: Backend) -> tuple[Array, Array]:
    """Columns with the same span, and the matrix of small size that makes them orthonormal."""
    xp = backend.xp
    precision = float(xp.finfo(columns.dtype).eps)
    for _ in range(4):
        # Squares cost half of the digits: float64 keeps those of float32 columns.
        gram = gram_matrix(columns, columns, "float64", backend)
        scales, directions = _decomposed(gram, backend)
        least = (4 * precision if floor is None else floor) ** 2 * scales[-1]
        # Ascending: those that stay are the last ones.
        kept = slice(int(xp.sum(xp.astype(scales <= least, xp.int64))), None)
        whitening = directions[:, kept] / xp.sqrt(scales[kept])
        if bool(scales[0] > math.sqrt(precision) * scales[-1]):
            break
        # One large eigenvalue took over all columns: once more, with what is left of them.
        columns = backend.matmul(columns, xp.astype(whitening, columns.dtype))
        whitening = xp.eye(columns.shape[1], dtype=xp.float64, device=backend.device)
    return columns, whitening


def gram_matrix(left: Array, right: Array, dtype: str, backend: Backend) -> Array:
    """``left^T right``: tiles of rows multiplied in the given precision, added up in float64."""
    xp = backend.xp
    total = xp.zeros((left.shape[1], right.shape[1]), dtype=xp.float64, device=backend.device)
    for rows in tiles_of(left.shape[0], _TILE_ROWS):
        first = xp.astype(left[rows, :], getattr(xp, dtype), copy=False)
        # The very same operand twice: BLAS then computes one triangle only.
        second = (
            first if right is left else xp.astype(right[rows, :], getattr(xp, dtype), copy=False)
        )
        total += xp.astype(backend.matmul(first.T, second), xp.float64)
    return total


def _decomposed(matrix: Array, backend: Backend) -> tuple[Array, Array]:
    """Eigenvalues of a symmetric matrix, the smallest first, and its eigenvectors."""
    # BLAS on one thread: a fork while it has several would leave this process waiting for ever.
    with single_threaded_blas():
        values, vectors = backend.xp.linalg.eigh(matrix)
    return values, vectors


def tiles_of(length: int, tile: int) -> list[slice]:
    """A length, cut into slices of a tile each."""
    return [slice(first, min(first + tile, length)) for first in range(0, length, tile)]
