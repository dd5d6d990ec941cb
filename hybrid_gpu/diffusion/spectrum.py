"""Leading eigenpairs of the normalized adjacency, with a certificate of what they are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import Eigenpairs, HostArray
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.graph.affinity import Graph, csr_from_sorted, largest_component, row_numbers
from hybrid_gpu.graph.aggregation import aggregate
from hybrid_gpu.progress import Progress
from hybrid_gpu.validation import check_choice, check_count, check_kind, check_positive, dtype_name

# What a basis needs in single precision; in double, errors of fsr stay below 1e-6 or so.
_DEFAULT_TOLERANCE = {"float32": 1e-3, "float64": 1e-8}
# Below this size a dense decomposition is faster than any iteration.
_DENSE_ITEMS = 600
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
_TILE_COLUMNS, _TILE_ROWS = 64, 8192
# The search for what was missed: columns, the longest filter, its largest gain, and rounds.
_PROBE_COLUMNS, _PROBE_DEGREE, _PROBE_GAIN, _PROBE_ROUNDS = 16, 12, 1e3, 5


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
    missed : float
        The largest eigenvalue that a search among the vectors orthogonal to U_1 came upon, minus
        the smallest one kept: positive if an eigenpair was left out. -inf if there is no other.
    items : int
        Size of the component that they were computed on.
    """

    eigenvalues: Array
    eigenvectors: Array
    residuals: HostArray
    orthogonality: float
    missed: float
    items: int

    @property
    def rank(self) -> int:
        """Number of eigenpairs."""
        return int(self.eigenvalues.shape[0])

    def holds(self, tolerance: float) -> bool:
        """Whether residuals, orthogonality and completeness are all within the tolerance."""
        worst = float(self.residuals.max(initial=0.0))
        return max(worst, self.orthogonality, self.missed) <= tolerance

    def __repr__(self) -> str:
        worst = float(self.residuals.max(initial=0.0))
        return (
            f"Spectrum(rank {self.rank} of {self.items} items, worst residual {worst:.1e}, "
            f"missed {self.missed:+.1e})"
        )


def leading_eigenpairs(
    graph: Graph,
    *,
    rank: int,
    engine: str = "block",
    tolerance: float | None = None,
    start: Spectrum | None = None,
    seed: int = 0,
    on_failure: str = "raise",
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> Spectrum:
    """The ``rank`` largest eigenpairs on the largest connected component, as in the paper.

    Parameters
    ----------
    engine
        ``"block"``: subspace iteration with a Chebyshev filter, which finds repeated eigenvalues.
        ``"lanczos"``: ``eigsh`` of SciPy or CuPy in float64, which may miss copies of them and then
        fails the certificate. Small components, and ranks above a third of the component, are
        decomposed densely.
    tolerance
        The largest residual, departure from orthogonality, and missed eigenvalue to accept; None:
        1e-3 for a graph in float32, 1e-8 for one in float64.
    start
        Eigenpairs of the same graph, of a smaller rank or a larger tolerance, to begin with.
    on_failure
        ``"raise"``, or ``"keep"``: return a spectrum that misses the tolerance all the same, and
        after Ctrl-C the pairs that had converged. Pass them as ``start`` to go on.
    progress
        Called as ``progress("spectrum", done, rank)`` with the number of converged pairs.

    Returns
    -------
    Spectrum
        With fewer than ``rank`` pairs only if Ctrl-C came and ``on_failure="keep"``.

    Raises
    ------
    ConvergenceError
        If the certificate does not hold; its ``result`` is the ``Spectrum``.
    KeyboardInterrupt
        After Ctrl-C, unless ``on_failure="keep"`` and some pairs had converged.
    ValueError
        If the component has fewer than ``rank`` items.
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    engine = check_choice(engine, "engine", ("block", "lanczos"))
    on_failure = check_choice(on_failure, "on_failure", ("raise", "keep"))
    if tolerance is None:
        tolerance = _DEFAULT_TOLERANCE[dtype_name(graph.degrees.dtype)]
    tolerance = check_positive(tolerance, "tolerance")
    items = largest_component(graph)
    rank = check_count(rank, "rank", low=0, high=items.size)
    rng = np.random.default_rng(check_count(seed, "seed", low=0))
    # In the order of the aggregation tree, a sparse product takes a third of the time or less.
    tree = aggregate(graph, groups=max(1, graph.n // 32), seed=seed, backend=device).order
    order = tree[graph.components[tree] == graph.components[items[0]]]
    operator = _operator(graph, order, device)
    done = rank
    if rank == 0:
        pairs = _no_pairs(operator, device)
    elif items.size <= _DENSE_ITEMS or rank > items.size // 3:
        pairs = _dense(operator, device)
    elif engine == "lanczos":
        matrix = _shifted(operator, 1.0, 0.0, "float64", device)
        pairs = device.eigsh(matrix, rank, rng.standard_normal(items.size))
    else:
        known = _no_pairs(operator, device).vectors
        if start is not None:
            known = device.xp.take(start.eigenvectors, device.asarray(order), axis=0)
        keep = on_failure == "keep"
        pairs, done = _block_iteration(
            operator, known, rank, tolerance, rng, progress, device, keep_interrupted=keep
        )
    spectrum = _certified(graph, operator, order, pairs, done, rng, device)
    if on_failure == "raise" and not spectrum.holds(tolerance):
        raise ConvergenceError(
            f"the eigenpairs miss tolerance={tolerance:g}: worst residual "
            f"{spectrum.residuals.max():.1e}, orthogonality {spectrum.orthogonality:.1e}, missed "
            f"eigenvalue {spectrum.missed:+.1e}. Use engine='block', a larger tolerance, or a "
            "graph of dtype='float64'. They are in the error's .result.",
            result=spectrum,
        )
    return spectrum


@dataclass(frozen=True, slots=True, eq=False)
class _Operator:
    """The adjacency of the component, reordered, with room for a shift on its diagonal."""

    data: Array
    indices: Array
    indptr: Array
    diagonal: Array
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class _RitzPairs:
    """The best approximations to eigenpairs in a subspace; values and residuals on the host."""

    values: HostArray
    vectors: Array
    residuals: HostArray


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The next filter: it damps [-1, cut], and leaves the first ``settled`` columns alone."""

    cut: float
    degree: int
    settled: int


def _operator(graph: Graph, order: HostArray, backend: Backend) -> _Operator:
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
    return _Operator(matrix.data, matrix.indices, matrix.indptr, rows == columns, t)


def _shifted(
    operator: _Operator, scale: float, shift: float, dtype: str, backend: Backend
) -> SparseMatrix:
    """``scale * (W - shift I)`` as one matrix: a product with it needs no further pass."""
    xp = backend.xp
    data = scale * xp.astype(operator.data, xp.float64)
    data = xp.where(operator.diagonal, data - scale * shift, data)
    data = xp.astype(data, getattr(xp, dtype))
    return backend.csr(data, operator.indices, operator.indptr, (operator.size, operator.size))


def _dense(operator: _Operator, backend: Backend) -> Eigenpairs:
    xp = backend.xp
    matrix = _shifted(operator, 1.0, 0.0, "float64", backend)
    identity = xp.eye(operator.size, dtype=xp.float64, device=backend.device)
    values, vectors = xp.linalg.eigh(backend.spmm(matrix, identity))
    return Eigenpairs(values=xp.flip(values), vectors=xp.flip(vectors, axis=1))


def _no_pairs(operator: _Operator, backend: Backend) -> Eigenpairs:
    xp = backend.xp
    vectors = xp.zeros((operator.size, 0), dtype=operator.data.dtype, device=backend.device)
    return Eigenpairs(values=vectors[0, :], vectors=vectors)


def _block_iteration(
    operator: _Operator,
    known: Array,
    rank: int,
    tolerance: float,
    rng: np.random.Generator,
    progress: Progress | None,
    backend: Backend,
    *,
    keep_interrupted: bool,
) -> tuple[Eigenpairs, int]:
    """Subspace iteration with a Chebyshev filter, and the number of pairs that it got to.

    Every round raises the columns' parts above ``cut`` over those in [-1, cut], and takes the best
    approximations to eigenpairs from what they span. That number is the rank, whether all of them
    have converged or the rounds are over, or, if they are to be kept, the number that had
    converged at Ctrl-C.
    """
    xp = backend.xp
    dtype = "float32" if tolerance >= _SINGLE_TOLERANCE else "float64"
    matrix = _shifted(operator, 1.0, 0.0, dtype, backend)
    columns = xp.astype(known[:, : min(rank, known.shape[1])], getattr(xp, dtype))
    width = min(operator.size, rank + max(16, int(_GUARD * rank)))
    plan = _Plan(_FIRST_CUT, _FIRST_DEGREE, settled=columns.shape[1])
    values, converged = np.zeros(0), 0
    try:
        for _ in range(_ROUNDS_AT_MOST):
            moving = xp.concat(
                [columns[:, plan.settled :], _random_columns(columns, width, rng, backend)], axis=1
            )
            moving = _filtered(operator, moving, plan.cut, plan.degree, backend)
            fixed = columns[:, : plan.settled]
            ritz = _rayleigh_ritz(matrix, xp.concat([fixed, moving], axis=1), backend)
            values, columns = ritz.values, ritz.vectors
            converged = _leading_below(ritz.residuals[:rank], tolerance)
            if progress:
                progress("spectrum", converged, rank)
            if converged == rank:
                break
            plan = _plan(ritz, rank, tolerance, dtype)
    except KeyboardInterrupt:
        if converged == 0 or not keep_interrupted:
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


def _plan(ritz: _RitzPairs, rank: int, tolerance: float, dtype: str) -> _Plan:
    """A filter long enough to bring the worst pair well below the tolerance."""
    if ritz.values.size < rank:
        return _Plan(_FIRST_CUT, _FIRST_DEGREE, 0)
    last = float(ritz.values[rank - 1])
    # Without a gap between the rank and the block (a repeated eigenvalue), nothing would grow.
    cut = min(float(ritz.values[-1]), last - 0.005 * (1 + last))
    excess = float(ritz.residuals[:rank].max()) / (0.1 * tolerance)
    growth = _growth(last, cut)
    degree = min(
        math.log(excess) / growth,
        math.log(_LARGEST_GAIN[dtype]) / (_growth(1.0, cut) - growth + 1e-3),
    )
    # Pairs this good need no filter: what they leave of themselves cannot disturb the others.
    settled = _leading_below(ritz.residuals[:rank], 0.1 * tolerance)
    return _Plan(cut, int(min(max(degree, _DEGREES[0]), _DEGREES[1])), settled)


def _leading_below(residuals: HostArray, tolerance: float) -> int:
    """How many residuals, counted from the first, are within the tolerance."""
    above = np.flatnonzero(~(residuals <= tolerance))  # a NaN is not within anything
    return int(above[0]) if above.size else int(residuals.size)


def _growth(value: float, cut: float) -> float:
    """How fast a Chebyshev filter that damps [-1, cut] grows at ``value`` with its degree."""
    return math.acosh(max(1.0, (2 * value + 1 - cut) / (1 + cut)))


def _filtered(
    operator: _Operator, columns: Array, cut: float, degree: int, backend: Backend
) -> Array:
    """``T_degree(W)`` of the columns, with T stretched to be at most 1 on [-1, cut]."""
    xp = backend.xp
    center, radius = (cut - 1) / 2, (cut + 1) / 2
    matrix = _shifted(operator, 2 / radius, center, dtype_name(columns.dtype), backend)
    tiles = []
    for tile in _tiles(columns.shape[1], _TILE_COLUMNS):
        before = xp.asarray(columns[:, tile], copy=True)
        now = backend.spmm(matrix, before) / 2
        for _ in range(degree - 1):
            after = backend.spmm(matrix, now)
            after -= before
            before, now = now, after
        tiles.append(now / xp.sqrt(xp.sum(now * now, axis=0)))
    return xp.concat(tiles, axis=1)


def _rayleigh_ritz(
    matrix: SparseMatrix, columns: Array, backend: Backend, *, floor: float | None = None
) -> _RitzPairs:
    """Ritz pairs of the span of the columns, largest value first.

    Directions in which all columns are shorter than ``floor`` are left out; without it, only those
    that rounding cannot tell from zero.
    """
    xp = backend.xp
    columns, whitening = _well_conditioned(columns, floor, backend)
    inner = _gram(columns, backend.spmm(matrix, columns), dtype_name(columns.dtype), backend)
    inner = xp.matmul(whitening.T, xp.matmul(inner, whitening))
    values, rotation = xp.linalg.eigh((inner + inner.T) / 2)
    values, rotation = xp.flip(values), xp.flip(xp.matmul(whitening, rotation), axis=1)
    vectors = xp.matmul(columns, xp.astype(rotation, columns.dtype))
    errors = backend.spmm(matrix, vectors)
    errors -= vectors * xp.astype(values, columns.dtype)
    residuals = xp.sqrt(xp.sum(errors * errors, axis=0, dtype=xp.float64))
    return _RitzPairs(backend.to_numpy(values), vectors, backend.to_numpy(residuals))


def _well_conditioned(columns: Array, floor: float | None, backend: Backend) -> tuple[Array, Array]:
    """Columns with the same span, and the matrix of small size that makes them orthonormal."""
    xp = backend.xp
    precision = float(xp.finfo(columns.dtype).eps)
    for _ in range(4):
        # Squares cost half of the digits: float64 keeps those of float32 columns.
        scales, directions = xp.linalg.eigh(_gram(columns, columns, "float64", backend))
        least = (4 * precision if floor is None else floor) ** 2 * scales[-1]
        # Ascending: those that stay are the last ones.
        kept = slice(int(xp.sum(xp.astype(scales <= least, xp.int64))), None)
        whitening = directions[:, kept] / xp.sqrt(scales[kept])
        if bool(scales[0] > math.sqrt(precision) * scales[-1]):
            break
        # One large eigenvalue took over all columns: once more, with what is left of them.
        columns = xp.matmul(columns, xp.astype(whitening, columns.dtype))
        whitening = xp.eye(columns.shape[1], dtype=xp.float64, device=backend.device)
    return columns, whitening


def _gram(left: Array, right: Array, dtype: str, backend: Backend) -> Array:
    """``left^T right``: tiles of rows multiplied in the given precision, added up in float64."""
    xp = backend.xp
    total = xp.zeros((left.shape[1], right.shape[1]), dtype=xp.float64, device=backend.device)
    for rows in _tiles(left.shape[0], _TILE_ROWS):
        one = xp.astype(left[rows, :], getattr(xp, dtype), copy=False)
        # The very same operand twice: BLAS then computes one triangle only.
        other = one if right is left else xp.astype(right[rows, :], getattr(xp, dtype), copy=False)
        total += xp.astype(xp.matmul(one.T, other), xp.float64)
    return total


def _tiles(length: int, tile: int) -> list[slice]:
    return [slice(first, min(first + tile, length)) for first in range(0, length, tile)]


def _certified(
    graph: Graph,
    operator: _Operator,
    order: HostArray,
    pairs: Eigenpairs,
    rank: int,
    rng: np.random.Generator,
    backend: Backend,
) -> Spectrum:
    """The first ``rank`` pairs as the caller gets them, and the certificate of just these."""
    xp = backend.xp
    target = graph.adjacency.data.dtype
    every = xp.astype(pairs.values, xp.float64)
    values = xp.astype(xp.astype(every[:rank], target), xp.float64)
    vectors = xp.astype(pairs.vectors[:, :rank], target)
    gram = _gram(vectors, vectors, "float64", backend)
    gram -= xp.eye(rank, dtype=xp.float64, device=backend.device)
    if rank in (0, order.size):
        missed = -math.inf
    elif every.shape[0] == order.size:
        missed = float(every[rank] - every[rank - 1])
    else:
        missed = _probe(operator, vectors, float(every[rank - 1]), rng, backend)
    return Spectrum(
        eigenvalues=xp.astype(values, target),
        eigenvectors=_embed(vectors, order, graph.n, backend),
        residuals=_residuals(operator, values, vectors, backend),
        orthogonality=float(xp.max(xp.abs(gram))) if rank else 0.0,
        missed=missed,
        items=order.size,
    )


def _residuals(operator: _Operator, values: Array, vectors: Array, backend: Backend) -> HostArray:
    """``|W u - lambda u|`` in float64, a tile of columns at a time."""
    xp = backend.xp
    matrix = _shifted(operator, 1.0, 0.0, "float64", backend)
    norms = [xp.zeros((0,), dtype=xp.float64, device=backend.device)]
    for tile in _tiles(vectors.shape[1], _TILE_COLUMNS):
        wide = xp.astype(vectors[:, tile], xp.float64)
        errors = backend.spmm(matrix, wide) - wide * values[tile]
        norms.append(xp.sqrt(xp.sum(errors * errors, axis=0)))
    return backend.to_numpy(xp.concat(norms))


def _probe(
    operator: _Operator,
    vectors: Array,
    smallest: float,
    rng: np.random.Generator,
    backend: Backend,
) -> float:
    """The largest Ritz value of random columns, filtered and kept orthogonal, over ``smallest``.

    A vector that was left out starts as one part in sqrt(n) of the columns and grows with the
    filter; one that lies above ``smallest`` by less than about 0.01 may escape.
    """
    xp = backend.xp
    dtype = dtype_name(vectors.dtype)
    # Just below the smallest kept value: the filter then damps all but the vectors in question.
    cut = smallest - 0.02 * (1 + smallest)
    # The kept vectors are not exact: a longer filter would raise what they leave of themselves.
    degree = int(min(max(math.log(_PROBE_GAIN) / _growth(1.0, cut), 2), _PROBE_DEGREE))
    count = min(_PROBE_COLUMNS, operator.size - vectors.shape[1])
    columns = backend.asarray(rng.standard_normal((operator.size, count)), dtype)
    found = []
    for _ in range(_PROBE_DEGREE * _PROBE_ROUNDS // degree):
        columns = _without(_filtered(operator, columns, cut, degree, backend), vectors, xp)
        found.append(columns)
    matrix = _shifted(operator, 1.0, 0.0, dtype, backend)
    # Rounds may repeat each other, and their tiny differences point anywhere, also to kept vectors.
    found = xp.concat(found[-_PROBE_ROUNDS:], axis=1)
    ritz = _rayleigh_ritz(matrix, found, backend, floor=1e-3)
    return float(ritz.values[0]) - smallest


def _without(columns: Array, vectors: Array, xp: Any) -> Array:
    """The part of the columns that is orthogonal to the vectors, at unit length."""
    # Twice: what is left may be small beside what was taken out, and its rounding errors.
    for _ in range(2):
        columns = columns - xp.matmul(vectors, xp.matmul(vectors.T, columns))
        columns = columns / xp.sqrt(xp.sum(columns * columns, axis=0))
    return columns


def _embed(vectors: Array, order: HostArray, n: int, backend: Backend) -> Array:
    """The rows of a component in their places among all n, zeros elsewhere."""
    xp = backend.xp
    source = np.full(n, order.size)
    source[order] = np.arange(order.size)
    zero = xp.zeros((1, vectors.shape[1]), dtype=vectors.dtype, device=backend.device)
    return xp.take(xp.concat([vectors, zero]), backend.asarray(source), axis=0)
