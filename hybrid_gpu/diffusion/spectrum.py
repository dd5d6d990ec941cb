"""Leading eigenpairs of the normalized adjacency, with a certificate of what they are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, on_device, select_backend
from hybrid_gpu.backends.protocol import Eigenpairs, HostArray
from hybrid_gpu.choices import BackendName
from hybrid_gpu.diffusion.block_eigensolver import (
    TILE_COLUMNS,
    ComponentMatrix,
    EigenRequest,
    block_eigenpairs,
    dense_eigenpairs,
    filtered,
    gram_matrix,
    growth,
    no_pairs,
    operator_of,
    rayleigh_ritz,
    shifted,
    tiles_of,
)
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.graph.affinity import Graph, largest_component
from hybrid_gpu.graph.aggregation import aggregate
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.validation import (
    check_choice,
    check_count,
    check_kind,
    check_positive,
    dtype_name,
    shown,
)

# What a basis needs in single precision; in double, errors of fsr stay below 1e-6 or so.
_DEFAULT_TOLERANCE = {"float32": 1e-3, "float64": 1e-8}
# Below this size a dense decomposition is faster than any iteration.
_DENSE_ITEMS = 600
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


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def leading_eigenpairs(
    graph: Graph,
    *,
    rank: int,
    engine: str = "block",
    tolerance: float | None = None,
    start: Spectrum | None = None,
    order: Any = None,
    seed: int = 0,
    on_failure: str = "raise",
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
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
    order : int array of shape (n,), optional
        The items in an order in which neighbors are close; None: found by ``aggregate``.
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

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = hg.graph_from_affinity(csr_array([[0, 1, 1], [1, 0, 1], [1, 1, 0]]))
    >>> spectrum = hg.leading_eigenpairs(graph, rank=2)
    >>> print(spectrum.eigenvalues.round(3), spectrum.holds(1e-3))
    [ 1.  -0.5] True
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    progress = as_progress(progress)
    engine = check_choice(engine, "engine", ("block", "lanczos"))
    on_failure = check_choice(on_failure, "on_failure", ("raise", "keep"))
    if tolerance is None:
        tolerance = _DEFAULT_TOLERANCE[dtype_name(graph.degrees.dtype)]
    tolerance = check_positive(tolerance, "tolerance")
    if start is not None:
        check_kind(start, "start", Spectrum, "Pass what leading_eigenpairs gave before.")
    items = largest_component(graph)
    rank = check_count(rank, "rank", low=0, high=items.size)
    rng = np.random.default_rng(check_count(seed, "seed", low=0))
    if order is None:
        # In the order of the aggregation tree, a sparse product takes a third of the time or less.
        order = aggregate(graph, groups=max(1, graph.n // 32), seed=seed, backend=device).order
    order = _checked_order(order, graph.n)
    order = order[graph.components[order] == graph.components[items[0]]]
    operator = operator_of(graph, order, device)
    done = rank
    if rank == 0:
        pairs = no_pairs(operator, device)
    elif items.size <= _DENSE_ITEMS or rank > items.size // 3:
        pairs = dense_eigenpairs(operator, device)
    elif engine == "lanczos":
        matrix = shifted(operator, 1.0, 0.0, "float64", device)
        pairs = device.eigsh(matrix, rank, rng.standard_normal(items.size))
    else:
        known = no_pairs(operator, device).vectors
        if start is not None:
            known = device.xp.take(start.eigenvectors, device.asarray(order), axis=0)
        request = EigenRequest(rank, tolerance, rng, progress, on_failure == "keep")
        pairs, done = block_eigenpairs(operator, known, request, device)
    spectrum = _certified(graph, operator, order, _Candidates(pairs, done, rng), device)
    if on_failure == "raise" and not spectrum.holds(tolerance):
        raise ConvergenceError(
            f"the eigenpairs miss tolerance={tolerance:g}: worst residual "
            f"{spectrum.residuals.max():.1e}, orthogonality {spectrum.orthogonality:.1e}, missed "
            f"eigenvalue {spectrum.missed:+.1e}. Use engine='block', a larger tolerance, or a "
            "graph of dtype='float64'. They are in the error's .result.",
            result=spectrum,
        )
    return spectrum


def _checked_order(order: Any, n: int) -> HostArray:
    places = np.asarray(order)
    whole = places.shape == (n,) and places.dtype.kind in "iu"
    if not whole or not np.array_equal(np.sort(places), np.arange(n)):
        raise ValueError(
            f"order must hold each of the {n} items once; got {shown(order)}. Pass "
            "aggregate(graph, groups=...).order, or None."
        )
    return places


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """Eigenpairs, how many of them are to be kept, and the chance that looks for missed ones."""

    pairs: Eigenpairs
    rank: int
    rng: np.random.Generator


def _certified(
    graph: Graph, operator: ComponentMatrix, order: HostArray, found: _Candidates, backend: Backend
) -> Spectrum:
    """The pairs to keep as the caller gets them, and the certificate of just these."""
    xp, pairs, rank = backend.xp, found.pairs, found.rank
    target = graph.adjacency.data.dtype
    every = xp.astype(pairs.values, xp.float64)
    values = xp.astype(xp.astype(every[:rank], target), xp.float64)
    vectors = xp.astype(pairs.vectors[:, :rank], target)
    gram = gram_matrix(vectors, vectors, "float64", backend)
    gram -= xp.eye(rank, dtype=xp.float64, device=backend.device)
    if rank in (0, order.size):
        missed = -math.inf
    elif every.shape[0] == order.size:
        missed = float(every[rank] - every[rank - 1])
    else:
        missed = _probe(operator, vectors, float(every[rank - 1]), found.rng, backend)
    return Spectrum(
        eigenvalues=xp.astype(values, target),
        eigenvectors=_embed(vectors, order, graph.n, backend),
        residuals=_residuals(operator, values, vectors, backend),
        orthogonality=float(xp.max(xp.abs(gram))) if rank else 0.0,
        missed=missed,
        items=order.size,
    )


def _residuals(
    operator: ComponentMatrix, values: Array, vectors: Array, backend: Backend
) -> HostArray:
    """``|W u - lambda u|`` in float64, a tile of columns at a time."""
    xp = backend.xp
    matrix = shifted(operator, 1.0, 0.0, "float64", backend)
    norms = [xp.zeros((0,), dtype=xp.float64, device=backend.device)]
    for tile in tiles_of(vectors.shape[1], TILE_COLUMNS):
        wide = xp.astype(vectors[:, tile], xp.float64)
        errors = backend.spmm(matrix, wide) - wide * values[tile]
        norms.append(xp.sqrt(backend.column_dots(errors, errors)))
    return backend.to_numpy(xp.concat(norms))


def _probe(
    operator: ComponentMatrix,
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
    degree = int(min(max(math.log(_PROBE_GAIN) / growth(1.0, cut), 2), _PROBE_DEGREE))
    count = min(_PROBE_COLUMNS, operator.size - vectors.shape[1])
    columns = backend.asarray(rng.standard_normal((operator.size, count)), dtype)
    found = []
    for _ in range(_PROBE_DEGREE * _PROBE_ROUNDS // degree):
        columns = _without(filtered(operator, columns, cut, degree, backend), vectors, backend)
        found.append(columns)
    matrix = shifted(operator, 1.0, 0.0, dtype, backend)
    # Rounds may repeat each other, and their tiny differences point anywhere, also to kept vectors.
    found = xp.concat(found[-_PROBE_ROUNDS:], axis=1)
    ritz = rayleigh_ritz(matrix, found, backend, floor=1e-3)
    return float(ritz.values[0]) - smallest


def _without(columns: Array, vectors: Array, backend: Backend) -> Array:
    """The part of the columns that is orthogonal to the vectors, at unit length."""
    xp = backend.xp
    # Twice: what is left may be small beside what was taken out, and its rounding errors.
    for _ in range(2):
        along = backend.matmul(vectors.T, columns)
        columns = columns - backend.matmul(vectors, along)
        lengths = xp.sqrt(backend.column_dots(columns, columns))
        columns = columns / xp.astype(lengths, columns.dtype)
    return columns


def _embed(vectors: Array, order: HostArray, n: int, backend: Backend) -> Array:
    """The rows of a component in their places among all n, zeros elsewhere."""
    xp = backend.xp
    source = np.full(n, order.size)
    source[order] = np.arange(order.size)
    zero = xp.zeros((1, vectors.shape[1]), dtype=vectors.dtype, device=backend.device)
    return xp.take(xp.concat([vectors, zero]), backend.asarray(source), axis=0)


def moved_vectors(
    vectors: Array, graph: Graph, old_places: HostArray, backend: Backend
) -> HostArray:
    """Vectors (n, r) where the items of a changed graph stand.

    ``old_places`` (n,) is -1 for new items, which take what one step of diffusion gives them.
    """
    old = backend.to_numpy(vectors)
    moved = np.concatenate([old, np.zeros((1, old.shape[1]), old.dtype)])[old_places]
    fresh = old_places < 0
    spread = backend.spmm(graph.adjacency, backend.asarray(moved))
    moved[fresh] = backend.to_numpy(spread)[fresh]
    return moved


def continued_eigenpairs(graph: Graph, vectors: HostArray, backend: Backend) -> Spectrum:
    """As many eigenpairs as there are vectors (n, r), which they begin with.

    The graph is one of an index, whose items lie close to their neighbors already.
    """
    rank = min(vectors.shape[1], largest_component(graph).size)
    nothing = np.zeros(0)
    start = Spectrum(nothing, backend.asarray(vectors), nothing, 0.0, 0.0, graph.n)
    order = np.arange(graph.n)
    return leading_eigenpairs(graph, rank=rank, start=start, order=order, backend=backend)
