"""Peers for personalized PageRank: forward push in C, as the textbook has it, PyG, torch-ppr."""

from __future__ import annotations

import ctypes
import logging
import queue
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from peer_problem import (
    TOP,
    Numbers,
    Problem,
    Solver,
    matrix_bytes,
    side_by_side,
)
from scipy.sparse.csgraph import reverse_cuthill_mckee

# One item of ``forward_push.c``.
ITEM = np.dtype(
    [("residual", np.float32), ("score", np.float32), ("limit", np.float32), ("waits", np.int32)]
)


@cache
def compiled() -> Any:
    """``forward_push.c``, by the system's C compiler, for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "forward_push.so"
        source = Path(__file__).with_name("forward_push.c")
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o"]
        subprocess.run([*command, str(library)], check=True)
        push = ctypes.CDLL(str(library)).forward_push
    array, number = ctypes.c_void_p, ctypes.c_int32
    push.argtypes = [
        *(array, array, array, number, ctypes.c_float),
        *(array, array, number, number),
        *(array, array, array, array, array, array),
    ]
    push.restype = ctypes.c_int64
    return push


class Pushing:
    """What one thread needs to answer queries: items of its own and room for the answer."""

    def __init__(self, adjacency: Any, limits: NDArray[np.float32], alpha: float) -> None:
        n = adjacency.shape[0]
        types = [part.dtype for part in (adjacency.indptr, adjacency.indices, adjacency.data)]
        if types != [np.int32, np.int32, np.float32]:
            raise TypeError(f"forward_push.c takes int32, int32 and float32; got {types}.")
        self.adjacency, self.alpha = adjacency, alpha
        self.items = np.zeros(n, ITEM)
        self.items["limit"] = limits
        self.queue, self.seen = np.empty(n, np.int32), np.empty(n, np.int32)
        self.scores = np.empty(TOP, np.float32)

    def __call__(
        self, ids: NDArray[np.int32], weights: NDArray[np.float32], all_scores: Any = None
    ) -> NDArray[np.int32]:
        """The best items of an observation; all scores go to ``all_scores`` (n,), zero before."""
        best = np.empty(TOP, np.int32)
        matrix = self.adjacency
        compiled()(
            *(part.ctypes.data for part in (matrix.indptr, matrix.indices, matrix.data)),
            *(matrix.shape[0], self.alpha),
            *(ids.ctypes.data, weights.ctypes.data, ids.size, TOP),
            *(part.ctypes.data for part in (self.items, self.queue, self.seen, self.scores, best)),
            None if all_scores is None else all_scores.ctypes.data,
        )
        return best


def forward_push(problem: Problem, adjacency: Any, *, eps: float, threads: int) -> Solver:
    """Push until ``r(u) <= eps d(u)`` for all items, where the observation has a mass of 1."""
    # Neighbors close together in memory: a third more edges per second.
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    place = np.empty(problem.n, np.int32)
    place[order] = np.arange(problem.n)
    near = sparse.csr_array(adjacency[order][:, order])
    roots = np.sqrt(problem.read("degrees"))[order]
    ids = place[problem.read("ids")]
    weights = problem.read("similarities") ** problem.gamma
    mass = (weights * roots[ids]).sum(axis=1, keepdims=True)
    starts = (weights / mass).astype(np.float32)
    compiled()
    idle: queue.SimpleQueue[Pushing] = queue.SimpleQueue()
    for _ in range(threads):
        idle.put(Pushing(near, (eps * roots).astype(np.float32), problem.alpha))

    def answer(number: int, all_scores: Any = None) -> NDArray[np.int32]:
        pushing = idle.get()
        try:
            return pushing(ids[number], starts[number], all_scores)
        finally:
            idle.put(pushing)

    def top(numbers: Numbers) -> NDArray[np.int64]:
        with ThreadPoolExecutor(threads) as pool:
            best = np.stack(list(pool.map(answer, numbers)))
        return np.where(best < 0, -1, order[best])

    def scores(numbers: Numbers) -> NDArray[Any]:
        found = np.zeros((len(numbers), problem.n), np.float32)
        for row, number in zip(found, numbers, strict=True):
            answer(number, row)
        return found[:, place] * mass[numbers]

    kept = matrix_bytes(near) + threads * problem.n * (ITEM.itemsize + 8) + 2 * order.nbytes
    return Solver(top, scores, kept)


def pyg(problem: Problem, affinity: Any, *, eps: float) -> Solver:
    """PyG's push from every observed item, put together as the walk is linear.

    It knows no weights of edges: these are walks on the graph with all weights 1.
    """
    import torch
    from torch_geometric import EdgeIndex
    from torch_geometric.utils import get_ppr

    n, ids = problem.n, problem.read("ids")
    weights = problem.read("similarities") ** problem.gamma
    degrees = np.diff(affinity.indptr)
    rows = np.repeat(np.arange(n), degrees)
    pairs = torch.from_numpy(np.stack([rows, affinity.indices]).astype(np.int64))
    # Told that it is sorted, it does not sort all edges for every batch.
    edges = EdgeIndex(pairs, sparse_size=(n, n), sort_order="row")
    options = {"alpha": 1 - problem.alpha, "eps": eps, "num_nodes": n}
    # Its first call compiles.
    get_ppr(EdgeIndex([[0, 1], [1, 0]]), target=torch.tensor([0]), **options | {"num_nodes": 2})

    def walked(numbers: Numbers) -> Any:
        """Scores as a sparse matrix (m, n)."""
        targets, places = np.unique(ids[numbers], return_inverse=True)
        pair, values = get_ppr(edges, target=torch.from_numpy(targets), **options)
        start = np.searchsorted(targets, pair[0].numpy())
        shape = (targets.size, n)
        walks = sparse.csr_array((values.numpy(), (start, pair[1].numpy())), shape=shape)
        restart = weights[numbers] * np.sqrt(degrees[ids[numbers]])
        indptr = np.arange(0, restart.size + 1, ids.shape[1])
        observed = sparse.csr_array(
            (restart.ravel(), places.ravel(), indptr), shape=(len(numbers), targets.size)
        )
        found = sparse.csr_array(observed @ walks)
        found.data /= np.sqrt(degrees[found.indices])
        return found

    def top(numbers: Numbers) -> NDArray[np.int64]:
        found = walked(numbers)
        best = np.full((len(numbers), TOP), -1, np.int64)
        for row, start, end in zip(best, found.indptr[:-1], found.indptr[1:], strict=True):
            order = np.argsort(-found.data[start:end], kind="stable")[:TOP]
            row[: order.size] = found.indices[start:end][order]
        return best

    kept = pairs.numpy().nbytes + matrix_bytes(affinity)
    return Solver(top, lambda numbers: walked(numbers).toarray(), kept)


def torch_ppr(problem: Problem, affinity: Any, *, steps: int) -> Solver:
    import torch
    from torch_ppr import page_rank

    # It warns when it stops after the steps that it was given.
    logging.getLogger("torch_ppr").setLevel(logging.ERROR)
    degrees = problem.read("degrees")
    # Columns sum to 1: the walk leaves an item by its column.
    walk = affinity.astype(np.float32)
    walk.data = (affinity.data / degrees[affinity.indices]).astype(np.float32)
    parts = (torch.from_numpy(part) for part in (walk.indptr, walk.indices, walk.data))
    matrix = torch.sparse_csr_tensor(*parts, walk.shape)
    roots = np.sqrt(degrees)[:, None]

    def solve(columns: NDArray[Any]) -> NDArray[Any]:
        restart = roots * columns
        mass = restart.sum(axis=0)
        start = torch.from_numpy((restart / mass).astype(np.float32))
        found = page_rank(
            adj=matrix, x0=start, alpha=1 - problem.alpha, max_iter=steps, epsilon=0.0
        )
        return found.numpy().T * mass / roots

    return side_by_side(problem, solve, matrix_bytes(walk))
