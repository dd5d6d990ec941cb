"""The ways of diffusion that ``bench/peers.py`` compares: this library and its peers.

Every way gets the graph ready-made (the affinity A or its normalized form W, in memory), is set up
once, and then answers queries, each as the library's documentation says for a query set: side by
side where it can, else one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from common import scores_by_item
from numpy.typing import NDArray
from scipy.sparse.linalg import cg

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.index.build import BasisChoice, Settings, state_from_graph

TOP = 100
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Vector = NDArray[np.float64]
Numbers = NDArray[np.int64]


def to_pagerank(observation: Vector, degrees: Vector) -> tuple[Vector, float]:
    """Restart probabilities (n,) for an observation y (n,), and the mass that they leave out.

    Diffusion is ``x = (1 - a) (I - a W)^-1 y`` with ``W = D^-1/2 A D^-1/2``. PageRank walks along
    ``P = A D^-1``, whose columns sum to 1: ``p = (1 - a) (I - a P)^-1 s`` with s summing to 1. Now
    ``P = D^1/2 W D^-1/2``, so ``(I - a W)^-1 = D^-1/2 (I - a P)^-1 D^1/2``, and therefore
    ``x = D^-1/2 c p`` if ``s = D^1/2 y / c`` with ``c = sum(D^1/2 y)``.
    All degrees must be positive: libraries differ in what a walk does where no edge leaves.
    """
    restart = np.sqrt(degrees) * observation
    mass = float(restart.sum())
    return restart / mass, mass


def from_pagerank(probabilities: Vector, degrees: Vector, mass: float) -> Vector:
    """The diffused observation x (n,) of the PageRank p (n,): ``c D^-1/2 p``, see above."""
    return mass * probabilities / np.sqrt(degrees)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A connected graph and queries on it, in a folder: nobody reads more of it than he needs."""

    folder: Path
    alpha: float = 0.99
    gamma: float = 3.0

    @classmethod
    def write(cls, folder: Path, affinity: Any, ids: Any, similarities: Any) -> Problem:
        degrees = affinity.sum(axis=1)
        adjacency = reference.normalize(affinity)
        adjacency.sort_indices()
        affinity.sort_indices()
        arrays = {
            "affinity": affinity.data,
            "float64": adjacency.data,
            "float32": adjacency.data.astype(np.float32),
            "indices": affinity.indices.astype(np.int32),
            "indptr": affinity.indptr.astype(np.int32),
            "degrees": degrees,
            "ids": ids,
            "similarities": similarities,
        }
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        return cls(folder)

    def read(self, name: str) -> NDArray[Any]:
        return np.load(self.folder / f"{name}.npy", allow_pickle=False)

    @property
    def n(self) -> int:
        return len(np.load(self.folder / "degrees.npy", mmap_mode="r"))

    def matrix(self, values: str) -> sparse.csr_matrix:
        """``"affinity"`` is A; ``"float64"`` and ``"float32"`` are W in that precision."""
        parts = (self.read(values), self.read("indices"), self.read("indptr"))
        # The older of SciPy's two classes: not every peer takes the newer one.
        return sparse.csr_matrix(parts, shape=(self.n, self.n))

    def graph(self, values: str = "float32") -> hg.Graph:
        """W as this library's graph, in the precision ``values``."""
        parts = (self.read(values), self.read("indices"), self.read("indptr"))
        adjacency = hg.select_backend("numpy").csr(*parts, (self.n, self.n))
        components = np.zeros(self.n, np.int32)
        return hg.Graph(adjacency, self.read("degrees").astype(values), components)

    def observations(self) -> Callable[[int], Vector]:
        """The dense observation (n,) of a query, by its number."""
        n, ids, weights = self.n, self.read("ids"), self.read("similarities") ** self.gamma

        def observation(number: int) -> Vector:
            y = np.zeros(n)
            np.add.at(y, ids[number], weights[number])
            return y

        return observation


@dataclass(frozen=True, slots=True, eq=False)
class Solver:
    """A way that is set up.

    ``top`` maps numbers of queries (m,) to the ids (m, TOP) of their best items, ``scores`` to all
    scores (m, n). ``memory`` are the bytes kept to answer queries; None if only the process tells.
    """

    top: Callable[[Numbers], NDArray[np.int64]]
    scores: Callable[[Numbers], NDArray[Any]]
    memory: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One line of the comparison: what to import, what to read, and how to set it up."""

    name: str
    package: str
    load: Callable[[Problem], Any]
    setup: Callable[[Problem, Any], Solver]


def best_items(scores: Vector) -> NDArray[np.int64]:
    """The TOP best items, best first."""
    best = np.argpartition(scores, scores.size - TOP)[-TOP:]
    return best[np.argsort(-scores[best], kind="stable")]


def matrix_bytes(*matrices: Any) -> int:
    return sum(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes for part in matrices)


def one_by_one(
    problem: Problem, solve: Callable[[Vector], Vector], memory: int | None, threads: int = 1
) -> Solver:
    """A peer that answers one query at a time, on some threads at once if it lets others run."""
    observation = problem.observations()

    def each(work: Callable[[int], Any], numbers: Numbers) -> list[Any]:
        if threads == 1:
            return [work(number) for number in numbers]
        with _one_blas_thread(), ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, numbers))

    def best(number: int) -> NDArray[np.int64]:
        return best_items(solve(observation(number)))

    return Solver(
        lambda numbers: np.stack(each(best, numbers)),
        lambda numbers: np.stack(each(lambda number: solve(observation(number)), numbers)),
        memory,
    )


def _one_blas_thread() -> Any:
    """Products on one thread each, where every core has a query: threads of threads are slower."""
    # Without it these peers would be many times slower than they are: better no figure than that.
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)


def side_by_side(
    problem: Problem, solve: Callable[[NDArray[Any]], NDArray[Any]], memory: int
) -> Solver:
    """A peer that answers the columns of a matrix (n, m) at once, as many as take 512 MB."""
    observation = problem.observations()
    width = max(1, int(512e6 / (8 * problem.n)))

    def chunks(numbers: Numbers) -> Iterator[NDArray[Any]]:
        for start in range(0, len(numbers), width):
            chosen = numbers[start : start + width]
            columns = np.stack([observation(number) for number in chosen], axis=1)
            yield np.ascontiguousarray(solve(columns).T)

    return Solver(
        lambda numbers: np.stack([best_items(row) for rows in chunks(numbers) for row in rows]),
        lambda numbers: np.concatenate(list(chunks(numbers))),
        memory,
    )


def scipy_cg(problem: Problem, adjacency: Any, *, steps: int, threads: int) -> Solver:
    alpha = problem.alpha
    system = sparse.csr_matrix(sparse.eye_array(problem.n) - alpha * adjacency)

    def solve(y: Vector) -> Vector:
        return cg(system, (1 - alpha) * y, rtol=1e-15, maxiter=steps)[0]

    return one_by_one(problem, solve, matrix_bytes(system), threads)


def paper(problem: Problem, graph: hg.Graph, *, rank: int, steps: int) -> Solver:
    """The paper's equations in float64, up to four queries at once, as the paper was timed.

    Its eigenvectors are made by this library, several times faster than by SciPy's ARPACK.
    """
    adjacency = problem.matrix("float64")
    spectrum = hg.leading_eigenpairs(graph, rank=rank, tolerance=1e-3, backend="numpy")
    values = np.asarray(spectrum.eigenvalues, np.float64)
    vectors = np.asarray(spectrum.eigenvectors, np.float64)

    def solve(y: Vector) -> Vector:
        return reference.hybrid(adjacency, values, vectors, y, problem.alpha, steps)

    memory = matrix_bytes(adjacency) + vectors.nbytes + values.nbytes
    return one_by_one(problem, solve, memory, min(CORES, 4))


def scikit_network(problem: Problem, affinity: Any, *, threads: int, **options: Any) -> Solver:
    from sknetwork.ranking import PageRank

    degrees = problem.read("degrees")

    def solve(y: Vector) -> Vector:
        restart, mass = to_pagerank(y, degrees)
        ranked = PageRank(damping_factor=problem.alpha, **options).fit(affinity, weights=restart)
        return from_pagerank(ranked.scores_, degrees, mass)

    return one_by_one(problem, solve, matrix_bytes(affinity), threads)


def pygsp(problem: Problem, affinity: Any, *, order: int) -> Solver:
    from pygsp import filters, graphs

    alpha = problem.alpha
    graph = graphs.Graph(affinity, lap_type="normalized")
    graph.estimate_lmax()
    diffusion = filters.Filter(graph, lambda x: (1 - alpha) / (1 - alpha * (1 - x)))

    def solve(columns: NDArray[Any]) -> NDArray[Any]:
        # A last axis of length 1 tells one column from the features of one signal.
        values = diffusion.filter(columns[:, :, None], method="chebyshev", order=order)
        return values.reshape(columns.shape)

    return side_by_side(problem, solve, matrix_bytes(graph.W, graph.L.tocsr()))


def pyamg(problem: Problem, adjacency: Any, *, threads: int, **stop: Any) -> Solver:
    from pyamg import smoothed_aggregation_solver

    alpha = problem.alpha
    system = sparse.csr_matrix(sparse.eye_array(problem.n) - alpha * adjacency)
    # What diffusion damps least: the root of the degrees, an eigenvector of W.
    slow = np.sqrt(problem.read("degrees"))[:, None]
    levels = smoothed_aggregation_solver(system, B=slow, symmetry="symmetric", max_coarse=500)
    preconditioner = levels.aspreconditioner(cycle="V")

    def solve(y: Vector) -> Vector:
        return cg(system, (1 - alpha) * y, M=preconditioner, **stop)[0]

    kept = [
        getattr(level, name) for level in levels.levels for name in "APR" if hasattr(level, name)
    ]
    memory = sum(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes for part in kept)
    return one_by_one(problem, solve, memory, threads)


def igraph(problem: Problem, affinity: Any) -> Solver:
    from igraph import Graph

    degrees = problem.read("degrees")
    upper = sparse.triu(affinity, format="coo")
    graph = Graph(n=problem.n, edges=np.stack([upper.row, upper.col], axis=1))
    graph.es["weight"] = upper.data.tolist()

    def solve(y: Vector) -> Vector:
        restart, mass = to_pagerank(y, degrees)
        values = graph.personalized_pagerank(
            damping=problem.alpha,
            reset=restart.tolist(),
            weights="weight",
            implementation="prpack",
        )
        return from_pagerank(np.array(values), degrees, mass)

    return one_by_one(problem, solve, None)


def torch(problem: Problem, adjacency: Any, *, steps: int) -> Solver:
    import torch as framework

    alpha, shape = problem.alpha, adjacency.shape
    parts = (adjacency.indptr, adjacency.indices, adjacency.data)
    matrix = framework.sparse_csr_tensor(*(framework.from_numpy(part) for part in parts), shape)

    def solve(columns: NDArray[Any]) -> NDArray[Any]:
        # From the observation itself, which is closer to the answer than 1 - alpha of it.
        values = framework.from_numpy(columns.astype(np.float32))
        start = (1 - alpha) * values
        for _ in range(steps):
            values = alpha * (matrix @ values) + start
        return values.numpy()

    return side_by_side(problem, solve, matrix_bytes(adjacency))


def ours(
    problem: Problem,
    graph: hg.Graph,
    *,
    method: str,
    steps: int | None = None,
    rtol: float | None = None,
    basis: str = "none",
    rank: int | None = None,
    batch: int | None = None,
) -> Solver:
    backend = hg.select_backend("numpy")
    # With the inverse of the coarse system, which is made once: part of the setup.
    settings = Settings(problem.alpha, problem.gamma, graph.dtype)
    choice = BasisChoice(basis, rank=rank)
    index = hg.DiffusionIndex(state_from_graph(graph, None, None, settings, choice, backend))
    ids, similarities = problem.read("ids"), problem.read("similarities")

    def ranked(numbers: Numbers, k: int) -> hg.Ranking:
        seen = ids[numbers], similarities[numbers]
        return index.rerank(*seen, k=k, method=method, steps=steps, rtol=rtol, batch=batch)

    def scores(numbers: Numbers) -> NDArray[Any]:
        return scores_by_item(ranked(numbers, index.n), index.n)

    return Solver(lambda numbers: ranked(numbers, TOP).ids, scores, sum(index.memory.values()))


def ways(rank: int) -> list[Way]:
    """All lines of the comparison; ``rank`` is the number of eigenvectors where they are used."""

    def way(
        name: str, package: str, load: str, setup: Callable[..., Solver], **options: Any
    ) -> Way:
        kind, _, values = load.rpartition(" ")
        read = partial(Problem.graph if kind == "graph" else Problem.matrix, values=values)
        return Way(name, package, read, partial(setup, **options))

    def own(name: str, values: str = "float32", **options: Any) -> Way:
        return way(f"hybrid_gpu {name}", "hybrid_gpu", f"graph {values}", ours, **options)

    def cg_steps(steps: int) -> Iterator[Way]:
        name, task = f"SciPy cg, {steps} steps", ("scipy", "float64", scipy_cg)
        yield way(f"{name}, one at a time", *task, steps=steps, threads=1)
        yield way(f"{name}, one per core", *task, steps=steps, threads=CORES)

    def network(name: str, **options: Any) -> Way:
        task = ("sknetwork", "affinity", scikit_network)
        return way(f"scikit-network {name}, one per core", *task, threads=CORES, **options)

    def multigrid(name: str, **stop: Any) -> Way:
        task = ("pyamg", "float64", pyamg)
        return way(f"PyAMG and SciPy cg, {name}, one per core", *task, threads=CORES, **stop)

    groups = {"method": "hybrid", "basis": "aggregate"}
    eigen = {"rank": rank, "steps": 5}
    return [
        own("temporal, 20 steps", method="temporal", steps=20),
        own("hybrid, aggregates, 5 steps", steps=5, **groups),
        own("hybrid, aggregates, 10 steps", steps=10, **groups),
        own("hybrid, aggregates, 25 steps", steps=25, **groups),
        own("hybrid, aggregates, float64, rtol 1e-7", "float64", rtol=1e-7, **groups),
        own("hybrid, aggregates, float64, rtol 1e-13", "float64", rtol=1e-13, **groups),
        own("hybrid, aggregates, 5 steps, one at a time", steps=5, batch=1, **groups),
        own(f"hybrid, {rank} eigenvectors, 5 steps", method="hybrid", basis="eigen", **eigen),
        way(
            f"the paper's hybrid, {rank} eigenvectors, 5 steps, one per core",
            *("hybrid_gpu", "graph float32", paper),
            **eigen,
        ),
        *cg_steps(20),
        *cg_steps(50),
        network("piteration, 100 iterations", solver="piteration", n_iter=100, tol=0),
        network("piteration, 500 iterations", solver="piteration", n_iter=500, tol=0),
        network("bicgstab, tol 1e-6", solver="bicgstab", tol=1e-6),
        way("PyGSP Chebyshev, order 30, batches", "pygsp", "affinity", pygsp, order=30),
        way("PyGSP Chebyshev, order 100, batches", "pygsp", "affinity", pygsp, order=100),
        multigrid("2 steps", rtol=1e-15, maxiter=2),
        multigrid("rtol 1e-6", rtol=1e-6),
        way("igraph prpack, one at a time", "igraph", "affinity", igraph),
        way("torch CSR, 100 products, batches", "torch", "float32", torch, steps=100),
    ]
