"""Every method on the same queries: how well it ranks, how fast, and with how much memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybrid_gpu import evaluation
from hybrid_gpu.building import build_index, with_basis
from hybrid_gpu.datasets import Split
from hybrid_gpu.index import DiffusionIndex
from hybrid_gpu.methods import METHODS, Method
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking import Ranking

_RUNS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """What one method was measured to give."""

    method: str
    mean_average_precision: float
    milliseconds_per_query: float
    memory_bytes: int
    agreement_at_100: float


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """One line for each method, and a last one for the exact solution; ``index`` is the default."""

    index: DiffusionIndex
    lines: tuple[Line, ...]


def compare_methods(
    split: Split, *, neighbors: int, rank: int, progress: Progress | None = None
) -> Comparison:
    """Rank a split's whole database for its held-out queries, by every method.

    Parameters
    ----------
    neighbors
        Nearest neighbors of each item, for the graph.
    rank
        Eigenvectors, for the methods that need them; the others use aggregates.
    """
    vectors = split.database.descriptors
    index = build_index(vectors, neighbors=neighbors, progress=progress)
    indexes = {
        "auto": index,
        "eigen": with_basis(index, "eigen", rank=rank, progress=progress),
        "stored": index.precompute(keep=min(1000, index.n), progress=progress),
    }
    precise = build_index(
        vectors, neighbors=neighbors, basis="none", dtype="float64", backend=index.backend
    )
    exact = _timed(precise, split, "temporal", rtol=1e-10)
    lines = []
    for place, method in enumerate(METHODS.values()):
        if progress:
            progress("comparing methods", place, len(METHODS))
        used = indexes[_kind(method)]
        ranking = _timed(used, split, method.name)
        lines.append(_line(method.name, ranking, exact, split, _memory(used, method)))
    lines.append(_line("exact", exact, exact, split, precise.memory["graph"]))
    return Comparison(index, tuple(lines))


def _kind(method: Method) -> str:
    if method.needs_eigenvectors:
        return "eigen"
    return "stored" if method.name == "precomputed" else "auto"


def _timed(
    index: DiffusionIndex, split: Split, method: str, *, rtol: float | None = None
) -> Ranking:
    """The fastest of a few full rankings, after a run that leaves everything warm."""
    queries, n = split.queries.descriptors, index.n
    settings: dict[str, Any] = {"k": n, "method": method, "shortlist": max(1, n // 4), "rtol": rtol}
    index.search(queries[:8], **settings)
    runs = [index.search(queries, **settings) for _ in range(_RUNS)]
    return min(runs, key=lambda ranking: ranking.report.total_seconds)


def _line(method: str, ranking: Ranking, exact: Ranking, split: Split, memory: int) -> Line:
    return Line(
        method=method,
        mean_average_precision=evaluation.mean_average_precision(
            ranking.ids, split.database.labels, split.queries.labels
        ),
        milliseconds_per_query=1000 * ranking.report.total_seconds / split.queries.n,
        memory_bytes=memory,
        agreement_at_100=evaluation.agreement(
            ranking.ids, exact.ids, at=min(100, split.database.n)
        ),
    )


def _memory(index: DiffusionIndex, method: Method) -> int:
    """Bytes that a method keeps beyond the descriptors: a solver keeps the graph."""
    graph = index.memory["graph"] if method.steps else 0
    if method.name == "shybrid":
        return graph + index.sparse_eigenvectors(0.99).memory
    if method.name == "precomputed":
        return index.memory["columns"]
    needs_basis = method.needs_eigenvectors or method.name == "hybrid"
    return graph + (index.memory["basis"] if needs_basis else 0)
