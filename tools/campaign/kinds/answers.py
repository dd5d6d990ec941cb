"""Random graphs and queries against dense float64 algebra, which shares no code with the library.

Write W for the normalized adjacency, y for an observation, u for the unit roundoff of the dtype.
A diffused x solves ``(I - alpha W) x = (1 - alpha) y``; its residual is relative to the right side,
so that the error is at most ``residual * |y|``. Rounding W and y to the dtype, and products with
them, move both by no more than ``slack = (8 + 2 sqrt(n)) u / (1 - alpha)``: the rows of W have at
most n entries, whose rounding errors add up like a walk, and the system is worse conditioned by
1 / (1 - alpha) than its data. Methods that solve no system have a bound of their own below.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Failure, Kind, Tally
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array  # noqa: TID251 (users bring their graphs in this form)

import hybrid_gpu as hg

Matrix = NDArray[np.float64]

_QUERIES = 64
_ALPHAS = (0.0, 0.5, 0.8, 0.95, 0.99, 0.999, 0.9999, 0.999999)
_GAMMA = 3.0
# The best similarity of a query, and the largest entry of an observation.
_SIMILARITIES, _SCALES = (1.0, 1.0, 1e-3, 1e-7), (1e-30, 1e-15, 1.0, 1e15, 1e30)
# Roundings of eigenvectors, by how they are kept.
_ROUNDED = {"float16": 2.0**-11, "int8": 2.0**-7}
# Eigenvalues that are nearer to each other do not tell their eigenvectors apart.
_GAP = 0.02


# Graphs


def _clique(n: int) -> Matrix:
    return np.ones((n, n)) - np.eye(n)


def _cycle(n: int) -> Matrix:
    ring = np.roll(np.eye(n), 1, axis=1)
    return np.maximum(ring, ring.T) * (1 - np.eye(n))


def _path(n: int) -> Matrix:
    return np.eye(n, k=1) + np.eye(n, k=-1)


def _bipartite(n: int, left: int) -> Matrix:
    side = np.arange(n) < left
    return (side[:, None] != side[None, :]).astype(np.float64)


def _random(rng: np.random.Generator, n: int) -> Matrix:
    chosen = rng.random((n, n)) < rng.uniform(1, 8) / n
    return np.asarray((chosen | chosen.T) * (1.0 - np.eye(n)))


def _mutual(rng: np.random.Generator, n: int) -> Matrix:
    """Mutual nearest neighbors of clustered points, some of them there several times."""
    centers = rng.standard_normal((max(1, n // 20), 6)) * 2
    points = centers[rng.integers(0, len(centers), n)] + rng.standard_normal((n, 6))
    if rng.random() < 0.5:
        points[rng.integers(0, n, n // 3)] = points[rng.integers(0, n, n // 3)]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    cosines = points @ points.T
    np.fill_diagonal(cosines, -np.inf)
    k = int(rng.integers(1, min(12, n)))
    listed = np.zeros((n, n), bool)
    np.put_along_axis(listed, np.argsort(-cosines, axis=1)[:, :k], True, axis=1)
    return np.where(listed & listed.T, np.maximum(cosines, 0), 0) ** 3


def _many_components(rng: np.random.Generator, n: int) -> Matrix:
    """Isolated items, pairs, cliques, cycles and paths beside each other."""
    whole, first = np.zeros((n, n)), 0
    makers: tuple[Callable[[int], Matrix], ...] = (_clique, _cycle, _path)
    largest = int(rng.choice([3, 8, 70]))
    while first < n:
        size = min(int(rng.integers(1, largest + 1)), n - first)
        part = makers[int(rng.integers(0, 3))](size)
        whole[first : first + size, first : first + size] = part
        first += size
    return whole


def _affinity(rng: np.random.Generator) -> tuple[str, Matrix]:
    """A name and a symmetric, non-negative matrix with an empty diagonal."""
    n = (
        int(np.exp(rng.uniform(0, np.log(300))))
        if rng.random() < 0.5
        else int(rng.integers(2, 301))
    )
    weak = 10.0 ** -rng.integers(1, 8)
    shapes: dict[str, Callable[[], Matrix]] = {
        "empty": lambda: np.zeros((n, n)),
        "clique": lambda: _clique(n),
        "path": lambda: _path(n),
        "pairs": lambda: _path(n) * np.where(np.arange(n) % 2, weak, 1.0),
        "cycle": lambda: _cycle(n),
        "star": lambda: _bipartite(n, 1),
        "bipartite": lambda: _bipartite(n, int(rng.integers(1, max(2, n)))),
        "random": lambda: _random(rng, n),
        "mutual": lambda: _mutual(rng, n) if n > 2 else _path(n),
        "components": lambda: _many_components(rng, n),
    }
    odds = np.array([1, 2, 3, 2, 3, 2, 3, 6, 8, 8])
    shape = str(rng.choice(list(shapes), p=odds / odds.sum()))
    weights = str(rng.choice(["equal", "uniform", "skewed", "tiny", "huge", "mixed"]))
    factor = {
        "equal": lambda: np.ones((n, n)),
        "uniform": lambda: rng.random((n, n)) + 0.05,
        "skewed": lambda: rng.lognormal(0, 3, (n, n)),
        "tiny": lambda: 1e-30 * (rng.random((n, n)) + 0.5),
        "huge": lambda: 1e30 * (rng.random((n, n)) + 0.5),
        "mixed": lambda: 10.0 ** rng.integers(-30, 31, (n, n)),
    }[weights]()
    upper = np.triu(shapes[shape]() * factor, 1)
    order = rng.permutation(n)
    whole = (upper + upper.T)[np.ix_(order, order)]
    return f"{weights} {shape} of {n}", whole


def _normalized(affinity: Matrix) -> Matrix:
    degrees = affinity.sum(axis=1)
    roots = np.sqrt(np.where(degrees > 0, degrees, 1.0))
    return affinity / roots[:, None] / roots[None, :]


def _components(affinity: Matrix) -> NDArray[np.int64]:
    labels = np.arange(len(affinity))
    joined = (affinity > 0) | np.eye(len(affinity), dtype=bool)
    while True:
        lowest = np.where(joined, labels[None, :], len(labels)).min(axis=1)
        if np.array_equal(lowest, labels):
            return labels
        labels = lowest


# What is known about a graph, and what was asked of it


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    """A graph in float64: its normalized adjacency with all eigenpairs, and its components.

    ``operator`` is ``(1 - alpha) (I - alpha W)^-1``.
    """

    name: str
    affinity: Matrix
    adjacency: Matrix
    values: Matrix
    vectors: Matrix
    operator: Matrix
    components: NDArray[np.int64]
    dtype: str
    alpha: float

    @property
    def n(self) -> int:
        return len(self.affinity)

    @property
    def unit(self) -> float:
        return float(np.finfo(self.dtype).eps) / 2

    @property
    def slack(self) -> float:
        return float((8 + 2 * np.sqrt(self.n)) * self.unit / (1 - self.alpha))

    def filtered(self, gain: Callable[[Matrix], Matrix], right: Matrix) -> Matrix:
        return self.vectors @ (gain(self.values)[:, None] * (self.vectors.T @ right))

    def diffused(self, right: Matrix) -> Matrix:
        return self.operator @ right

    def residual(self, values: Matrix, right: Matrix) -> Matrix:
        """Relative residuals of the diffusion system, one for each column."""
        left = (1 - self.alpha) * right - values + self.alpha * (self.adjacency @ values)
        return np.linalg.norm(left, axis=0) / ((1 - self.alpha) * _lengths(right))


@dataclass(frozen=True, slots=True, eq=False)
class _Questions:
    """First-stage lists, and the observations (n, m) that they mean."""

    ids: NDArray[np.int64]
    similarities: Matrix
    right: Matrix


def _lengths(columns: Matrix) -> Matrix:
    lengths = np.linalg.norm(columns, axis=0)
    return np.where(lengths > 0, lengths, 1.0)


def _questions(rng: np.random.Generator, n: int, dtype: str) -> _Questions:
    """Lists of one to five results: sometimes padded, repeated, or far below 1."""
    count = int(rng.integers(1, 6))
    ids = rng.integers(0, n, (_QUERIES, count))
    if rng.random() < 0.3:
        ids[rng.random(ids.shape) < 0.2] = -1
    largest = float(rng.choice(_SIMILARITIES))
    similarities = largest * np.sort(rng.uniform(0.1, 1, ids.shape), axis=1)[:, ::-1]
    # The library gets the same numbers, so that they are not among what is compared.
    similarities = similarities.astype(dtype).astype(np.float64)
    right = np.zeros((n, _QUERIES))
    queries, places = np.nonzero(ids >= 0)
    np.add.at(right, (ids[queries, places], queries), similarities[queries, places] ** _GAMMA)
    return _Questions(ids, similarities, right)


# Checks: each yields a sentence for every promise broken


def _scores(ids: Any, scores: Any, n: int) -> Matrix:
    """The scores (n, m) that a ranking gives the items; 0 where it does not name one."""
    values = np.zeros((n, len(ids)))
    queries, places = np.nonzero(ids >= 0)
    values[ids[queries, places], queries] = scores[queries, places]
    return values


def _is_ranking(truth: _Truth, asked: _Questions, ids: Any, scores: Any) -> Iterator[str]:
    n = truth.n
    named = ids >= 0
    if np.any(ids >= n) or np.any(ids < -1):
        yield "ids out of range"
        return
    padded = np.where(named, ids, n + np.arange(ids.shape[1]))
    if np.any(np.diff(np.sort(padded, axis=1), axis=1) == 0):
        yield "an id twice"
    if not np.all(np.isfinite(scores[named])):
        yield "scores that are not finite"
    if np.any(scores[~named] != -np.inf):
        yield "-1 without -inf"
    with np.errstate(invalid="ignore"):
        # Scores that are nothing but rounding may stand in any order.
        noise = truth.unit * np.max(np.abs(scores), axis=1, where=named, initial=0)
        if np.any(np.diff(scores, axis=1) > noise[:, None]):
            yield "scores that rise"
    # Nothing but the list and its components can be known to an index of a graph alone.
    reach = np.zeros((n, len(ids)), bool)
    queries, places = np.nonzero(asked.ids >= 0)
    seen = truth.components[asked.ids[queries, places]]
    for query, component in set(zip(queries.tolist(), seen.tolist(), strict=True)):
        reach[truth.components == component, query] = True
    rows, columns = np.nonzero(named)
    invented = ~reach[ids[rows, columns], rows]
    if np.any(invented):
        yield f"{np.unique(rows[invented]).size} queries with invented ids"


def _is_near(exact: Matrix, allowed: Matrix, values: Matrix) -> Iterator[str]:
    """Errors are within what is allowed (m,)."""
    error = np.linalg.norm(values - exact, axis=0)
    worst = int(np.argmax(np.where(np.isfinite(error), error - allowed, np.inf)))
    if not error[worst] <= allowed[worst]:
        yield f"error {error[worst]:.1e}, allowed {allowed[worst]:.1e}"


def _is_in_order(exact: Matrix, allowed: Matrix, ids: Any) -> Iterator[str]:
    """Items stand in their exact order, where they differ by more than the errors allowed."""
    along = np.take_along_axis(exact.T, np.maximum(ids, 0), axis=1)
    along = np.where(ids >= 0, along, -np.inf)
    # The best that comes later must not be better than what stands here by twice the error.
    later = np.maximum.accumulate(along[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(invalid="ignore"):
        wrong = later - along > 2 * allowed[:, None]
    if np.any(wrong):
        yield f"{np.unique(np.nonzero(wrong)[0]).size} queries out of order"


def _tells_residual(
    truth: _Truth, asked: _Questions, values: Matrix, told: Any, rtol: float | None
) -> Iterator[str]:
    """What is reported is the residual of the scores; ``rtol`` was reached."""
    if told is None or len(told) != _QUERIES:
        yield "no residual for each query"
        return
    true = truth.residual(values, asked.right)
    sized = np.maximum(1, np.linalg.norm(values, axis=0) / _lengths(asked.right))
    gap = np.abs(np.asarray(told) - true) / sized
    worst = int(np.argmax(np.where(np.isfinite(gap), gap, np.inf)))
    if not gap[worst] <= truth.slack + 1e-3 * true[worst]:
        yield f"reported residual {told[worst]:.2e}, true {true[worst]:.2e}"
    if rtol is not None and not np.max(told) <= rtol * (1 + 4 * truth.unit):
        yield f"converged to {rtol:g} with residual {np.max(told):.1e}"


def _few_steps_bound(alpha: float, steps: int) -> float:
    """Of conjugate gradients' residual, in terms of the condition number."""
    root = np.sqrt((1 + alpha) / (1 - alpha))
    return float(2 * root * ((root - 1) / (root + 1)) ** steps)


# Ways to ask


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """One call, and what its answer is held against.

    ``exact`` (n, m) is the answer in float64, ``allowed`` (m,) the error, None for what the
    reported residual allows. ``system`` says whether the answer solves the diffusion system,
    ``tells`` whether the residual of that system is reported although another one is solved.
    """

    name: str
    index: Any
    options: dict[str, Any]
    exact: Matrix
    allowed: Matrix | None = None
    system: bool = False
    tells: bool = False


def _asked(truth: _Truth, asked: _Questions, way: _Way) -> Iterator[str]:
    """Ask once, and yield what is wrong with the answer."""
    rtol = way.options.get("rtol")
    try:
        found = way.index.rerank(
            asked.ids, asked.similarities.astype(truth.dtype), k=truth.n, **way.options
        )
        missed = False
    except hg.ConvergenceError as error:
        found, missed = error.result, True
    report, told = found.report, found.report.residuals
    values = _scores(found.ids, np.where(found.ids >= 0, found.scores, 0), truth.n)
    yield from _is_ranking(truth, asked, found.ids, found.scores)
    right = _lengths(asked.right) * np.any(asked.right, axis=0)
    allowed = way.allowed
    if way.system and "filter" not in way.options:
        yield from _tells_residual(truth, asked, values, told, None if missed else rtol)
        if told is not None:
            allowed = (np.asarray(told) + truth.slack) * right
        if missed and rtol >= 10 * truth.slack:
            yield f"rtol {rtol:g} missed after {report.steps} steps: {np.max(told):.1e}"
        if report.accuracy is not None and np.max(told) > max(report.accuracy, 10 * truth.slack):
            yield f"residual {np.max(told):.1e} after {report.steps} steps, for {report.accuracy}"
        if "steps" in way.options and told is not None:
            # Steps begin with what rounded eigenvectors leave of the slowest mode.
            rounded = max(_ROUNDED.get(word, 0.0) for word in way.name.split())
            begin = 1 + rounded / (1 - truth.alpha)
            bound = begin * _few_steps_bound(truth.alpha, way.options["steps"]) + truth.slack
            if not np.max(told) <= bound:
                yield f"residual {np.max(told):.1e} after {report.steps} steps: bound {bound:.1e}"
    elif "filter" in way.options:
        if report.truncation is None:
            yield "no truncation reported"
            return
        rounding = (16 + 2 * np.sqrt(truth.n) + report.steps) * truth.unit
        # The oracle's own eigenvectors are right to n roundings of float64.
        rounding += truth.n * 2.0**-53
        allowed = (report.truncation + rounding * _GAIN_AT_MOST) * right
    elif way.tells:
        yield from _tells_residual(truth, asked, values, told, None)
    assert allowed is not None
    yield from _is_near(way.exact, allowed, values)
    yield from _is_in_order(way.exact, allowed, found.ids)


def _bases(rng: np.random.Generator, truth: _Truth) -> dict[str, dict[str, Any]]:
    n = truth.n
    largest = int(np.bincount(truth.components).max())
    # Few eigenvectors are often told apart, many hardly ever.
    rank = int(rng.integers(1, 1 + (largest if rng.random() < 0.5 else min(largest, 4))))
    every: dict[str, dict[str, Any]] = {
        "auto": {"basis": "auto"},
        "groups": {"basis": "aggregate", "rank": int(rng.integers(1, n + 1))},
        "eigen": {"basis": "eigen", "rank": rank},
        "float16": {"basis": "eigen", "rank": rank, "precision": "float16"},
        "int8": {"basis": "eigen", "rank": rank, "precision": "int8"},
        "sparse-eigen": {"basis": "sparse-eigen", "rank": rank, "sparsity": float(rng.random())},
        "none": {"basis": "none"},
        "labels": {"basis": rng.integers(-1, max(1, n // 3), n)},
        "vectors": {"basis": rng.standard_normal((n, int(rng.integers(1, min(n, 9) + 1))))},
    }
    # Eigenvectors always: several methods need them.
    others = [name for name in every if name != "eigen"]
    return {name: every[name] for name in ("eigen", *rng.choice(others, 2, replace=False))}


def _polynomial(rng: np.random.Generator) -> tuple[Any, Callable[[Matrix], Matrix]]:
    weights = rng.uniform(-1, 1, int(rng.integers(1, 8)))
    weights /= np.abs(weights).sum()
    return hg.Polynomial(tuple(weights)), np.polynomial.Polynomial(weights)


def _filters(rng: np.random.Generator) -> tuple[str, Any, Callable[[Matrix], Matrix]]:
    time = float(10 ** rng.uniform(-1, 2))
    polynomial, gain = _polynomial(rng)
    sharp = float(rng.uniform(0.5, 6))
    ways = (
        ("heat", hg.HeatKernel(time), lambda x: np.exp(time * (x - 1))),
        ("polynomial", polynomial, gain),
        ("custom", lambda x: 1 / (1 + np.exp(-sharp * x)), lambda x: 1 / (1 + np.exp(-sharp * x))),
    )
    return ways[int(rng.integers(0, 3))]


# No filter above exceeds it.
_GAIN_AT_MOST = 1.0


def _solver_ways(
    rng: np.random.Generator, truth: _Truth, indexes: dict[str, Any], asked: _Questions
) -> Iterator[_Way]:
    """Temporal and hybrid, by steps, by tolerance, and as they come."""
    exact = truth.diffused(asked.right)
    reachable = 10 * truth.slack
    for name, index in indexes.items():
        for method in ("hybrid", "temporal")[: 2 if name == "eigen" else 1]:
            steps = int(rng.choice([0, 1, 3, 5, 15, 60, 200]))
            rtol = float(min(1.0, max(reachable, 10 ** rng.uniform(-10, -2))))
            for options in ({"steps": steps}, {"rtol": rtol}, {}):
                yield _Way(
                    f"{method} on {name} {options or ''}".strip(),
                    index,
                    {"method": method, **options},
                    exact,
                    system=True,
                )
    label, filter, gain = _filters(rng)
    exact = truth.filtered(gain, asked.right)
    for name, index in indexes.items():
        options = {"method": "hybrid", "filter": filter}
        if rng.random() < 0.5:
            options["rtol"] = float(10 ** rng.uniform(-9, -3))
        yield _Way(f"{label} filter on {name} {options.get('rtol', '')}", index, options, exact)


@dataclass(frozen=True, slots=True, eq=False)
class _Leading:
    """The leading eigenpairs on the largest component: ``values`` (r,), ``vectors`` (n, r).

    ``turned`` is what rounding may do to what is made of them, relative to the observation:
    vectors turn by rounding over the gap below the last value, gains change by that over 1 - alpha.
    """

    values: Matrix
    vectors: Matrix
    turned: float


def _leading(truth: _Truth, rank: int) -> _Leading | None:
    """None where there is more than one such set: equal components, or an equal next value."""
    sizes = np.bincount(truth.components)
    if np.sum(sizes == sizes.max()) > 1:
        return None
    items = np.flatnonzero(truth.components == np.argmax(sizes))
    values, inside = eigh(truth.adjacency[np.ix_(items, items)], driver="ev")
    values, inside = values[::-1], inside[:, ::-1]
    gap = values[rank - 1] - values[rank] if rank < len(items) else 1.0
    if gap < _GAP:
        return None
    vectors = np.zeros((truth.n, rank))
    vectors[items] = inside[:, :rank]
    turned = (8 + np.sqrt(truth.n)) * truth.unit / gap + truth.slack
    return _Leading(values[:rank], vectors, float(turned))


def _spectral_ways(truth: _Truth, index: Any, asked: _Questions, pairs: _Leading) -> Iterator[_Way]:
    """FSR, FSR mixed with similarity by the norms of the eigenvectors' rows, and laid upon it."""
    alpha, lengths = truth.alpha, _lengths(asked.right)
    gains = (1 - alpha) / (1 - alpha * pairs.values)
    spectral = pairs.vectors @ (gains[:, None] * (pairs.vectors.T @ asked.right))
    yield _Way("fsr", index, {"method": "fsr"}, spectral, pairs.turned * lengths)
    rows = np.linalg.norm(pairs.vectors, axis=1)[:, None]
    found = np.zeros_like(asked.right)
    queries, places = np.nonzero(asked.ids >= 0)
    # An item that is listed several times has the mean of its similarities.
    times = np.zeros_like(found)
    np.add.at(times, (asked.ids[queries, places], queries), 1)
    np.add.at(found, (asked.ids[queries, places], queries), asked.similarities[queries, places])
    found /= np.maximum(times, 1)
    mixed = rows * spectral / (1 - alpha) + (1 - rows) * found**_GAMMA
    # The root of a row's square, next to 0, halves its digits.
    within = pairs.turned / (1 - alpha) + 4 * np.sqrt(pairs.turned)
    allowed = within * np.maximum(lengths, _lengths(found**_GAMMA))
    yield _Way("fsrw", index, {"method": "fsrw"}, mixed, allowed)
    excess = (gains - (1 - alpha))[:, None]
    below = pairs.vectors @ (excess * (pairs.vectors.T @ asked.right)) + (1 - alpha) * found**_GAMMA
    allowed = pairs.turned * np.maximum(lengths, _lengths(found**_GAMMA))
    yield _Way("fsr-similarity", index, {"method": "fsr-similarity"}, below, allowed)


def _paper_ways(
    truth: _Truth, index: Any, asked: _Questions, pairs: _Leading, rng: np.random.Generator
) -> Iterator[_Way]:
    """The paper's hybrid, as it is and sparsified, after its five steps or more than enough."""
    alpha, right, steps = truth.alpha, asked.right, int(rng.choice([5, 400]))
    if alpha > 0.99 or truth.slack > 1e-2:
        return
    within = 20 * pairs.turned + _few_steps_bound(alpha, steps)
    allowed = within * _lengths(right) / (1 - alpha)
    options = {"method": "hybrid-paper", "steps": steps}
    yield _Way("hybrid-paper", index, options, truth.diffused(right), allowed, tells=True)
    values, vectors = pairs.values, pairs.vectors
    if len(values) == 1 or np.min(-np.diff(values)) < _GAP or values[-1] < 0:
        return  # single eigenvectors are not determined, or the paper's system is not definite
    sparsity = float(rng.uniform(0.2, 0.95))
    flat = np.sort(np.abs(vectors), axis=None)
    cut = int(sparsity * flat.size)
    if cut == 0 or flat[cut] - flat[cut - 1] < 1e-4 * flat[cut]:
        return  # which of two equal entries is dropped is anybody's choice
    kept = np.where(np.abs(vectors) >= flat[cut], vectors, 0)
    system = np.eye(truth.n) - alpha * truth.adjacency + alpha * (kept * values) @ kept.T
    excess = ((1 - alpha) / (1 - alpha * values) - (1 - alpha))[:, None]
    exact = kept @ (excess * (kept.T @ right)) + (1 - alpha) * np.linalg.solve(system, right)
    within += 20 * (8 + np.sqrt(truth.n)) * truth.unit / _GAP
    allowed = 2 * within * _lengths(right) / (1 - alpha)
    options = {"method": "shybrid", "sparsity": sparsity, "steps": steps}
    yield _Way("shybrid", index, options, exact, allowed, tells=True)


def _stored_way(truth: _Truth, index: Any, asked: _Questions, rng: np.random.Generator) -> _Way:
    """Stored columns, all entries of them."""
    rtol = float(min(1.0, max(10 * truth.slack, 10 ** rng.uniform(-9, -3))))
    stored = index.precompute(keep=truth.n, rtol=rtol)
    # Each column has its own error, of which a kept score can only be the smaller.
    allowed = (2 * rtol + truth.slack) * np.sum(asked.right, axis=0)
    options = {"method": "precomputed"}
    return _Way(f"precomputed {rtol:.0e}", stored, options, truth.diffused(asked.right), allowed)


def _truncated_ways(truth: _Truth, index: Any, asked: _Questions) -> Iterator[_Way]:
    """The graph of the listed items alone, normalized anew."""
    if truth.adjacency[truth.affinity > 0].min(initial=1) < np.finfo(truth.dtype).tiny:
        return  # an edge that is nothing beside others cannot come back without them
    exact = np.zeros_like(asked.right)
    for query, line in enumerate(asked.ids):
        items = np.unique(line[line >= 0])
        part = _normalized(truth.affinity[np.ix_(items, items)])
        system = np.eye(items.size) - truth.alpha * part
        right = (1 - truth.alpha) * asked.right[items, query]
        exact[items, query] = np.linalg.solve(system, right)
    # Five items or fewer: 20 steps are more than their systems have eigenvalues.
    allowed = 4 * truth.slack * _lengths(asked.right)
    yield _Way("truncated", index, {"method": "truncated", "steps": 20}, exact, allowed)


def _batches(
    truth: _Truth, index: Any, asked: _Questions, rng: np.random.Generator
) -> Iterator[str]:
    """The same queries in batches of other widths."""
    reachable = min(1.0, max(1e-4, 10 * truth.slack))
    options = {"steps": 5} if rng.random() < 0.5 else {"rtol": reachable}
    found = []
    for batch in (int(rng.integers(1, 9)), int(rng.integers(9, 40)), _QUERIES):
        try:
            one = index.rerank(
                asked.ids, asked.similarities.astype(truth.dtype), k=truth.n, batch=batch, **options
            )
        except hg.ConvergenceError as error:
            one = error.result
        finite = np.where(one.ids >= 0, one.scores, 0)
        found.append(_scores(one.ids, finite, truth.n))
    table = {"float32": 2e-5, "float64": 1e-10}[truth.dtype]
    within = max(4 * truth.slack, table) + 2 * options.get("rtol", 0.0)
    allowed = within * _lengths(asked.right)
    for one in found[:2]:
        for sentence in _is_near(found[2], allowed, one):
            yield f"depends on its batch: {sentence}"


def _scaled(
    truth: _Truth, index: Any, asked: _Questions, rng: np.random.Generator
) -> Iterator[str]:
    """Observations of any size through ``diffuse``."""
    scale = float(rng.choice(_SCALES))
    largest = asked.right.max()
    right = asked.right / (largest if largest > 0 else 1.0) * scale
    rtol = min(1.0, max(1e-4, 10 * truth.slack))
    graph = index.graph
    try:
        found = hg.diffuse(
            graph, right.astype(truth.dtype), filter=hg.PageRank(truth.alpha), rtol=rtol
        )
    except hg.ConvergenceError as error:
        found = error.result
        if truth.alpha <= 0.99:
            yield f"scale {scale:g}: rtol {rtol:g} missed"
    told = np.asarray(found.residuals)
    allowed = (told + truth.slack) * np.linalg.norm(right, axis=0)
    for sentence in _is_near(truth.diffused(right), allowed, np.asarray(found.values, np.float64)):
        yield f"scale {scale:g}: {sentence}"


# A trial


def _truth(rng: np.random.Generator) -> _Truth:
    name, affinity = _affinity(rng)
    adjacency = _normalized(affinity)
    # The default driver loses half of the digits where weights differ by many orders.
    values, vectors = eigh(adjacency, driver="ev")
    alpha = float(rng.choice(_ALPHAS))
    if rng.random() < 0.3:
        alpha = float(rng.uniform(0, 1))
    dtype = str(rng.choice(["float32", "float64"]))
    operator = (1 - alpha) * np.linalg.inv(np.eye(len(adjacency)) - alpha * adjacency)
    parts = _components(affinity)
    return _Truth(name, affinity, adjacency, values, vectors, operator, parts, dtype, alpha)


def _indexes(rng: np.random.Generator, truth: _Truth) -> Iterator[tuple[str, Any]]:
    matrix = csr_array(truth.affinity)
    options = {"alpha": truth.alpha, "gamma": _GAMMA, "dtype": truth.dtype}
    first = None
    for name, basis in _bases(rng, truth).items():
        if first is None:
            first = hg.build_index_from_graph(matrix, **options, **basis)
            yield name, first
        else:
            yield name, hg.with_basis(first, **basis)


def _trial(seed: int, folder: Path) -> Tally:
    """One graph, a few bases, every method that has an exact counterpart."""
    rng = np.random.default_rng(seed)
    truth = _truth(rng)
    failures: list[Failure] = []
    tried = 0

    def note(what: str, sentences: Iterator[str]) -> None:
        try:
            found = [Failure("wrong", f"{about}: {what}: {sentence}") for sentence in sentences]
            failures.extend(found)
        except Exception as error:
            told = f"{about}: {what}: {type(error).__name__}: {error}"
            failures.append(Failure("foreign error", told[:300]))

    about = f"{truth.name}, {truth.dtype}, alpha {truth.alpha:g}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indexes = dict(_indexes(rng, truth))
        plain = indexes["eigen"]
        pairs = _leading(truth, plain.basis.rank)
        for _ in range(2):
            asked = _questions(rng, truth.n, truth.dtype)
            ways = [
                *_solver_ways(rng, truth, indexes, asked),
                *_truncated_ways(truth, plain, asked),
            ]
            if pairs is not None:
                ways += _spectral_ways(truth, plain, asked, pairs)
                ways += _paper_ways(truth, plain, asked, pairs, rng)
            if truth.n <= 64:
                ways.append(_stored_way(truth, plain, asked, rng))
            for way in ways:
                note(way.name, _asked(truth, asked, way))
            chosen = str(rng.choice(list(indexes)))
            note(f"hybrid on {chosen}", _batches(truth, indexes[chosen], asked, rng))
            note("diffuse", _scaled(truth, plain, asked, rng))
            tried += _QUERIES * (len(ways) + 4)
    return Tally(tried, tuple(failures))


KINDS = (
    Kind(
        name="answers",
        promise="Every answer is the dense float64 solution within what its report tells, in "
        "whatever batch it comes.",
        unit="answers",
        short=30_000,
        long=1_000_000,
        trial=_trial,
    ),
)
