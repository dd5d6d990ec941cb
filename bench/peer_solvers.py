"""The ways of diffusion that ``bench/peers.py`` compares: this library and its peers.

Every way gets the graph ready-made (the affinity A or its normalized form W, in memory), is set up
once, and then answers queries, each as the library's documentation says for a query set: side by
side where it can, else one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sparse
from common import scores_by_item
from numpy.typing import NDArray
from peer_problem import (
    CORES,
    TOP,
    Numbers,
    Problem,
    Solver,
    Vector,
    Way,
    from_pagerank,
    matrix_bytes,
    one_by_one,
    side_by_side,
    to_pagerank,
)
from push_solvers import forward_push, pyg, torch_ppr
from scipy.sparse.linalg import cg

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.index.build import BasisChoice, Settings, state_from_graph


def scipy_cg(problem: Problem, adjacency: Any, *, steps: int, threads: int) -> Solver:
    """In the precision of the adjacency: SciPy keeps to that of the system and the right side."""
    alpha, dtype = problem.alpha, adjacency.dtype
    system = sparse.csr_matrix(sparse.eye_array(problem.n, dtype=dtype) - alpha * adjacency)

    def solve(y: Vector) -> Vector:
        right_side = ((1 - alpha) * y).astype(dtype)
        return cg(system, right_side, rtol=1e-15, maxiter=steps)[0]

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
    state = state_from_graph(graph, None, None, settings, choice, backend)
    if method == "local":
        state.local_problem(problem.alpha)  # made once, on small graphs not before it is needed
    index = hg.DiffusionIndex(state)
    ids, similarities = problem.read("ids"), problem.read("similarities")

    def ranked(numbers: Numbers, k: int) -> hg.Ranking:
        seen = ids[numbers], similarities[numbers]
        return index.rerank(*seen, k=k, method=method, steps=steps, rtol=rtol, batch=batch)

    def scores(numbers: Numbers) -> NDArray[Any]:
        return scores_by_item(ranked(numbers, index.n), index.n)

    return Solver(
        lambda numbers: ranked(numbers, TOP).ids,
        # A local search knows the scores of the best items only.
        None if method == "local" else scores,
        sum(index.memory.values()),
    )


def ways(rank: int) -> list[Way]:
    """All lines of the comparison; ``rank`` is the number of eigenvectors where they are used."""

    def way(
        name: str, packages: str, load: str, setup: Callable[..., Solver], **options: Any
    ) -> Way:
        kind, _, values = load.rpartition(" ")
        read = partial(Problem.graph if kind == "graph" else Problem.matrix, values=values)
        return Way(name, tuple(packages.split()), read, partial(setup, **options))

    def own(name: str, values: str = "float32", **options: Any) -> Way:
        return way(f"hybrid_gpu {name}", "hybrid_gpu", f"graph {values}", ours, **options)

    def cg_steps(steps: int) -> Iterator[Way]:
        name, task = f"SciPy cg, {steps} steps", ("scipy", "float64", scipy_cg)
        yield way(f"{name}, one at a time", *task, steps=steps, threads=1)
        yield way(f"{name}, one per core", *task, steps=steps, threads=CORES)
        single = ("scipy", "float32", scipy_cg)
        yield way(f"{name}, float32, one per core", *single, steps=steps, threads=CORES)

    def push(eps: float) -> Way:
        name = f"textbook forward push in C, eps {eps:.0e}, one per core"
        return way(name, "numpy", "float32", forward_push, eps=eps, threads=CORES)

    def pyg_push(eps: float) -> Way:
        name = f"PyG get_ppr, eps {eps:.0e}, edges without weights, batches"
        return way(name, "torch_geometric numba", "affinity", pyg, eps=eps)

    def network(name: str, **options: Any) -> Way:
        task = ("sknetwork", "affinity", scikit_network)
        return way(f"scikit-network {name}, one per core", *task, threads=CORES, **options)

    def multigrid(name: str, **stop: Any) -> Way:
        task = ("pyamg", "float64", pyamg)
        return way(f"PyAMG and SciPy cg, {name}, one per core", *task, threads=CORES, **stop)

    groups = {"method": "hybrid", "basis": "aggregate"}
    local = {"method": "local", "basis": "aggregate"}
    eigen = {"rank": rank, "steps": 5}
    return [
        own("local", **local),
        own("local, one at a time", batch=1, **local),
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
        way("torch-ppr, 100 iterations, batches", "torch_ppr", "affinity", torch_ppr, steps=100),
        *(push(eps) for eps in (1e-4, 1e-5, 1e-6)),
        *(pyg_push(eps) for eps in (1e-4, 1e-5)),
    ]
