"""The problem that ``bench/peers.py`` poses, and what every way of solving it is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

import hybrid_gpu as hg
from hybrid_gpu import reference

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
    scores (m, n); None if only the best items have any. ``memory`` are the bytes kept to answer
    queries; None if only the process tells.
    """

    top: Callable[[Numbers], NDArray[np.int64]]
    scores: Callable[[Numbers], NDArray[Any]] | None
    memory: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One line of the comparison: what to import, what to read, and how to set it up."""

    name: str
    packages: tuple[str, ...]
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
