"""A check for new GPU servers: does the GPU compute what the CPU computes?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hybrid_gpu.backends import Backend, select_backend
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.step_records import Course, Standing
from hybrid_gpu.choices import BasisName
from hybrid_gpu.diffusion.aggregate_basis import aggregate_basis
from hybrid_gpu.diffusion.local import effort_for, local_problem
from hybrid_gpu.graph.affinity import numbering_of, reciprocal_graph
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import build_index
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.validation import check_dtype

# For sums of a few hundred terms; the two sides add them in different orders.
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}
RUNS = 3  # the fastest counts


@dataclass(frozen=True, slots=True)
class Check:
    """One operation in one precision, on the host and on the device.

    Attributes
    ----------
    operation, dtype : str
    difference : float
        The largest difference, relative to the largest value.
    tolerance : float
        The largest difference that counts as agreement.
    host_ms, device_ms : float
        Milliseconds of the fastest of three runs, the first of which may compile.
    """

    operation: str
    dtype: str
    difference: float
    tolerance: float
    host_ms: float
    device_ms: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance  # NaN agrees with nothing


def selfcheck(
    backend: str | Backend = "auto", *, size: int = 20_000, progress: ProgressOption = None
) -> tuple[Check, ...]:
    """Compare every backend operation, and every ranking method, with the NumPy backend.

    Parameters
    ----------
    backend
        The backend to check.
    size
        Items of the test graph. A small graph checks the same code in less time.
    """
    progress = as_progress(progress)
    device = select_backend(backend)
    host = NumpyBackend()
    cases = [
        (name, dtype, run)
        for dtype in TOLERANCE
        for name, run in (*_operations(dtype, size), *_searches(dtype, min(size, 4000)))
    ]
    checks = []
    for number, (name, dtype, run) in enumerate(cases):
        if progress:
            progress("selfcheck", number, len(cases))
        expected, host_ms = _timed(run, host)
        computed, device_ms = _timed(run, device)
        difference = _difference(computed, expected)
        checks.append(Check(name, dtype, difference, TOLERANCE[dtype], host_ms, device_ms))
    if progress:
        progress("selfcheck", len(cases), len(cases))
    return tuple(checks)


def _timed(run: Callable[[Backend], list[Any]], backend: Backend) -> tuple[list[HostArray], float]:
    """The arrays that a function computes on a backend, and the milliseconds of its fastest run."""
    fastest = float("inf")
    values: list[Any] = []
    for _ in range(RUNS):
        start = time.perf_counter()
        values = run(backend)
        backend.synchronize()
        seconds = time.perf_counter() - start
        fastest = min(fastest, seconds)
    arrays = [
        value if isinstance(value, np.ndarray) else backend.to_numpy(value) for value in values
    ]
    return arrays, 1e3 * fastest


def _difference(computed: list[HostArray], expected: list[HostArray]) -> float:
    """The largest difference between arrays, relative to the largest value of each."""
    worst = 0.0
    for array, right in zip(computed, expected, strict=True):
        if array.shape != right.shape:
            return float("inf")
        if array.size:
            scale = float(np.max(np.abs(right[np.isfinite(right)]), initial=1e-30))
            # Equal infinities have no difference.
            unequal = array != right
            gap = np.abs(array[unequal].astype(float) - right[unequal].astype(float))
            worst = max(worst, float(np.max(gap, initial=0.0)) / scale)
    return worst


def _operations(dtype: str, n: int) -> Iterator[tuple[str, Callable[[Backend], list[Any]]]]:
    """Every operation of the protocol by name, as a function that runs it on a backend."""
    rng = np.random.default_rng(97)
    row_lengths = rng.integers(0, 50, n)
    indptr = np.concatenate([[0], np.cumsum(row_lengths)]).astype(np.int32)
    indices = rng.integers(0, n, indptr[-1]).astype(np.int32)
    data = (rng.random(indptr[-1]) / 50).astype(dtype)
    # Columns in each row ascend, as cuSPARSE expects; repeated ones are within the rules.
    rows = np.repeat(np.arange(n), row_lengths)
    indices = indices[np.lexsort((indices, rows))]
    dense = {m: rng.standard_normal((n, m)).astype(dtype) for m in (1, 7, 64)}
    small = rng.standard_normal((64, n)).astype(dtype)
    step = rng.random(64)
    ids = rng.integers(-1, n, (n, 20))
    similarities = rng.random((n, 20)).astype(dtype)

    order = rng.permutation(n)
    groups = rng.integers(0, 16, n)

    def csr(b: Backend) -> Any:
        return b.csr(b.asarray(data), b.asarray(indices), b.asarray(indptr), (n, n))

    def spmm(m: int, b: Backend) -> list[Any]:
        return [b.spmm(csr(b), b.asarray(dense[m]))]

    def update(b: Backend) -> list[Any]:
        solution, residual, direction, product = (b.asarray(dense[64].copy()) for _ in range(4))
        record = b.cg_update(solution, residual, direction, product, b.asarray(step))
        return _fields(record, "solution", "residual", "squared_norm")

    def standing(b: Backend) -> Standing:
        # Some columns are at their targets already, and some begin anew.
        squared, target = b.asarray(step), b.asarray(step * (np.arange(64) % 3))
        return Standing(squared, b.asarray(2 * step), target, b.asarray(np.arange(64) % 2 == 0))

    def pace(b: Backend) -> list[Any]:
        product = b.laplacian_step(csr(b), b.asarray(dense[64]), 0.99)
        return _fields(b.cg_pace(product, standing(b), 0.01), "step", "moving")

    def advance(b: Backend) -> list[Any]:
        product = b.laplacian_step(csr(b), b.asarray(dense[64]), 0.99)
        solution, residual, direction = (b.asarray(dense[64].copy()) for _ in range(3))
        course = Course(solution, residual, direction, standing(b))
        moves = b.cg_pace(product, course.standing, 0.01)
        after = b.cg_advance(course, product.values, moves, stop_early=True)
        told = _fields(after.standing, "squared", "length", "target", "fresh")
        return [*_fields(after, "solution", "residual", "direction"), *told]

    def turn(b: Backend) -> list[Any]:
        moving = b.asarray(np.arange(64) % 5 > 0)
        record = b.cg_turn(b.asarray(step / 2), standing(b), moving, stop_early=True)
        told = _fields(record.standing, "squared", "length", "target", "fresh")
        return [record.ratio, *told]

    def deflate(b: Backend) -> list[Any]:
        lists = Neighbors(b.asarray(ids), b.asarray(similarities))
        graph = reciprocal_graph(lists, dtype=dtype, backend=b)
        basis = aggregate_basis(graph, groups, backend=b)
        record = basis.deflation(0.99)(b.asarray(dense[64].copy()))
        return _fields(record, "values", "coefficients", "share", "rounding")

    def reordered(b: Backend) -> list[Any]:
        lists = Neighbors(b.asarray(ids), b.asarray(similarities))
        graph = reciprocal_graph(lists, dtype=dtype, backend=b)
        moved = b.reordered(graph.adjacency, numbering_of(order, b))
        return _fields(moved, "data", "indices", "indptr")

    def local_search(b: Backend) -> list[Any]:
        lists = Neighbors(b.asarray(ids), b.asarray(similarities))
        graph = reciprocal_graph(lists, dtype=dtype, backend=b)
        basis = aggregate_basis(graph, groups, backend=b)
        problem = local_problem(graph, basis, b.asarray(order), 0.9, b)
        # Until every item that can be reached is visited: a rule that stops earlier may be met a
        # round earlier on one side.
        effort = replace(effort_for(n, 0.9, n), tolerance=TOLERANCE[dtype] / 10, rounds=n)
        places, weights = b.asarray(ids[:8, :5]), b.asarray(similarities[:8, :5])
        return [b.local_search(problem, places, weights, 20, effort).scores]

    for m in dense:
        yield f"spmm, {m} columns", partial(spmm, m)
    yield (
        "subtract_spmm",
        lambda b: [
            b.subtract_spmm(b.asarray(dense[64].copy()), csr(b), b.asarray(dense[64].copy()))
        ],
    )
    yield (
        "laplacian_step",
        lambda b: _fields(
            b.laplacian_step(csr(b), b.asarray(dense[64]), 0.99), "values", "curvature"
        ),
    )
    yield "reordered", reordered
    yield "matmul", lambda b: [b.matmul(b.asarray(small), b.asarray(dense[7]))]
    yield "column_dots", lambda b: [b.column_dots(b.asarray(dense[7]), b.asarray(dense[7]))]
    yield "longest_row", lambda b: [np.array([b.longest_row(csr(b))])]
    yield "cg_pace", pace
    yield "cg_update", update
    yield "cg_turn", turn
    yield "cg_advance", advance
    yield (
        "add_spmm",
        lambda b: [b.add_spmm(b.asarray(dense[64].copy()), csr(b), b.asarray(dense[64].copy()))],
    )
    yield "deflate", deflate
    yield "local_search", local_search
    yield (
        "cg_direction",
        lambda b: [
            b.cg_direction(
                b.asarray(dense[64].copy()), b.asarray(dense[64].copy()), b.asarray(step)
            )
        ],
    )
    yield "top_k", lambda b: _fields(b.top_k(b.asarray(small), 100), "scores", "ids")
    yield (
        "top_k of columns",
        lambda b: _fields(b.top_k(b.asarray(dense[64]).T, 100), "scores", "ids"),
    )
    yield (
        "top_k by a numbering",
        lambda b: _fields(
            b.top_k(b.asarray(dense[64]).T, 100, numbering_of(order, b)), "scores", "ids"
        ),
    )
    rows = dense[64]

    def largest_products(b: Backend) -> list[Any]:
        given = b.asarray(rows)
        return _fields(b.largest_products(given, given, 9), "scores", "ids")

    yield "largest_products", largest_products
    yield "place", lambda b: [b.place(b.asarray(ids[:64]), b.asarray(similarities[:64]), n)]
    yield (
        "mutual_edges",
        lambda b: _fields(
            b.mutual_edges(b.asarray(ids), b.asarray(similarities)), "indptr", "indices", "data"
        ),
    )
    yield (
        "uploads and downloads",
        lambda b: [b.download(part)() for (part,) in b.uploads((small,), 0, 17)],
    )


def _searches(dtype: str, n: int) -> Iterator[tuple[str, Callable[[Backend], list[Any]]]]:
    """Searches by every method, by name; each builds and searches an index on a backend."""
    rng = np.random.default_rng(101)
    centers = rng.standard_normal((max(2, n // 100), 16))
    vectors = centers[rng.integers(0, len(centers), n)] + 0.6 * rng.standard_normal((n, 16))
    # A solve for every query on its own shortlist takes long: few of them for a small check.
    count = min(32, max(4, n // 100))
    queries = vectors[:count] + 0.1 * rng.standard_normal((count, 16))
    indexes: dict[tuple[str, str], DiffusionIndex] = {}

    def index_on(b: Backend, basis: BasisName) -> DiffusionIndex:
        if (b.name, basis) not in indexes:
            index = build_index(
                vectors,
                neighbors=10,
                basis=basis,
                rank=10,
                knn="exact",
                dtype=check_dtype(dtype),
                backend=b,
            )
            indexes[b.name, basis] = index.precompute(keep=50) if basis == "eigen" else index
        return indexes[b.name, basis]

    def scores(method: str, basis: BasisName, b: Backend) -> list[Any]:
        # Only the scores: the last bit decides the order of items that tie.
        # A fixed number of steps: to an accuracy, one side may stop a step earlier.
        options: dict[str, Any] = {"method": method, "steps": 5, "shortlist": n // 4}
        return [index_on(b, basis).search(queries, k=20, **options).scores]

    for method, kind in METHODS.items():
        if kind.rank is None:  # local searches are among the operations
            yield f"search, {method}", partial(scores, method, "eigen")
    yield "search, hybrid, aggregates", partial(scores, "hybrid", "aggregate")


def _fields(record: Any, *names: str) -> list[Any]:
    return [getattr(record, name) for name in names]
