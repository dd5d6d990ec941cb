"""Choosing a method, a basis, its rank and the number of steps by measuring what they give."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybrid_gpu.backends import Backend
from hybrid_gpu.backends.csr_arrays import index_type
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.choices import BackendName, BasisName, MethodName
from hybrid_gpu.diffusion.local import ROOMS, most_room
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.evaluation import agreement
from hybrid_gpu.graph.affinity import Graph, largest_component
from hybrid_gpu.graph.csr import array_bytes
from hybrid_gpu.index.build_memory import build_bytes, native_build_bytes
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import index_of_graph, with_basis
from hybrid_gpu.index.precompute import column_maker, column_request
from hybrid_gpu.index.search import BYTES_PER_LISTED, batch_width, query_bytes
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.validation import (
    check_count,
    check_dtype,
    check_kind,
    check_number,
    check_sequence,
)

_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
_ITEMS_PER_GROUP = (128, 64, 32, 16)
_LOCAL: MethodName = "local"
# Of a local search, for each item that it sees: entries of rows at least, and other numbers.
_LOCAL_ENTRIES, _LOCAL_NUMBERS = 32, 13
# Of anything that is counted: more than any machine has room for.
_MOST = 2**48


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to answer queries, and what it was measured to give.

    Attributes
    ----------
    basis : str
        ``"none"``, ``"aggregate"`` or ``"eigen"``, as ``build_index`` takes it.
    rank, steps : int
        For ``local``, which takes as many steps as it needs, the most that a query took.
    agreement : float
        The part of the exact top results that it found, on average.
    milliseconds : float
        Per query, in a batch of the sample's size.
    bytes : int
        Memory of the basis, and of what a local search keeps beside it.
    build_seconds : float
        Time to make both.
    method : str
        ``"hybrid"`` or ``"local"``, as a search takes it.
    """

    basis: str
    rank: int
    steps: int
    agreement: float
    milliseconds: float
    bytes: int
    build_seconds: float
    method: str = "hybrid"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that was measured, and the cheapest way to the target.

    Attributes
    ----------
    candidates : tuple of Candidate
        For every basis, the first number of steps that reached the target, or the best it did;
        and a local search with the groups that an index has by default.
    best : Candidate or None
        The fastest that reaches the target within the memory; None if nothing does.
    target : float
    """

    candidates: tuple[Candidate, ...]
    best: Candidate | None
    target: float

    def __repr__(self) -> str:
        lines = [
            f"{'':2}{'method':<8}{'basis':<10}{'rank':>7}{'steps':>7}{'agreement':>11}{'ms/query':>10}"
            f"{'basis MB':>10}{'build s':>9}"
        ]
        lines += [
            f"{'* ' if way is self.best else '  '}{way.method:<8}{way.basis:<10}{way.rank:>7}"
            f"{way.steps:>7}"
            f"{way.agreement:>11.3f}{way.milliseconds:>10.3f}{way.bytes / 1e6:>10.1f}"
            f"{way.build_seconds:>9.2f}"
            for way in self.candidates
        ]
        verdict = "* the fastest that reaches" if self.best else "nothing reaches"
        return "\n".join([*lines, f"{verdict} {self.target:g}"])


@dataclass(frozen=True, slots=True)
class Estimate:
    """What storing the columns will take: seconds of work, and bytes of memory or disk."""

    seconds: float
    bytes: int

    def __repr__(self) -> str:
        return f"Estimate({self.seconds / 60:.1f} minutes, {self.bytes / 1e6:.0f} MB)"


def estimate_precompute(
    index: DiffusionIndex, *, keep: int = 1000, rtol: float | None = None, batch: int | None = None
) -> Estimate:
    """What ``index.precompute`` will take, by the time of one batch.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
    >>> hg.estimate_precompute(index, keep=2).bytes  # an id and a score, two for each of four
    64
    """
    check_kind(index, "index", DiffusionIndex, "Make one with build_index.")
    keep = check_count(keep, "keep", high=index.n)
    width = batch_width(index.state, batch, index.n)
    # Items spread over the database: neighbors in it may all be of one easy kind.
    items = np.linspace(0, index.n - 1, width).astype(np.int64)
    request = column_request(index.state, keep, rtol, width)
    start = time.perf_counter()
    column_maker(index.state, request)(items)
    seconds = (time.perf_counter() - start) * index.n / width
    return Estimate(seconds, index.n * keep * (4 + np.dtype(index.dtype).itemsize))


def predicted_bytes(
    n: int,
    *,
    entries: float = 25.0,
    dimensions: int = 0,
    neighbors: int = 0,
    groups: int = 0,
    coupled: float = 8.0,
    cells: float = 20.0,
    batch: int = 128,
    k: int = 100,
    threads: int = 1,
    dtype: str = "float32",
) -> dict[str, int]:
    """Memory that an index of n items will take, part by part, and what making and asking it take.

    ``build`` is the peak of ``build_index`` beside the caller's descriptors, ``native build`` that
    on a CPU with the native core, and ``search`` that of a batch beside the index. ``local`` is
    what a local search takes in its place on a CPU with the native core, most of it kept for the
    next; the other parts are the index.

    Parameters
    ----------
    entries
        Graph entries per item: twice its edges over its items; about half of ``neighbors`` on real
        data, because few neighbors are mutual.
    dimensions
        Of the descriptors; 0 if they are not kept, as with ``keep_descriptors=False``.
    neighbors
        Length of the k-NN lists; 0 if they are not kept.
    groups
        Groups that couple to others; 0 for no basis.
    coupled
        Groups that an item has neighbors in, on average.
    cells
        Groups that a group couples to, on average.
    batch
        Queries solved side by side.
    k
        Results for each of them.
    threads
        Threads that search locally.

    Notes
    -----
    On a GPU, tests hold builds and searches to ``build`` and ``search`` by a limit of memory. What
    CUDA and its libraries take for themselves comes on top: nobody has measured it yet. So does
    FAISS's own copy of the descriptors, and the stored columns of ``precompute``.

    Examples
    --------
    A million descriptors of 128 numbers, in gigabytes:

    >>> import hybrid_gpu as hg
    >>> parts = hg.predicted_bytes(1_000_000, dimensions=128, neighbors=20, groups=2000)
    >>> {part: round(parts[part] / 1e9, 2) for part in ("graph", "descriptors", "basis")}
    {'graph': 0.23, 'descriptors': 0.51, 'basis': 0.11}
    """
    dtype = check_dtype(dtype)
    value = np.dtype(dtype).itemsize
    count = check_count(n, "n", high=_MOST)
    dimensions = check_count(dimensions, "dimensions", low=0, high=_MOST)
    neighbors = check_count(neighbors, "neighbors", low=0, high=_MOST)
    groups = check_count(groups, "groups", low=0, high=_MOST)
    batch = check_count(batch, "batch", low=0, high=_MOST)
    k = min(check_count(k, "k", low=0, high=_MOST), count)
    threads = check_count(threads, "threads", high=_MOST)
    for name, number in (("entries", entries), ("coupled", coupled), ("cells", cells)):
        if not 0 <= check_number(number, name) <= _MOST:
            raise ValueError(f"{name} must lie in [0, 2**48]; got {number}.")
    lists, results, basis = neighbors or round(2 * entries), batch * BYTES_PER_LISTED * k, 0.0
    # Of an entry's column and a row's beginning.
    number = np.dtype(index_type(count, round(count * entries))).itemsize
    if groups:
        vectors = 2 * count * (value + 4) + 4 * (count + groups)
        # The inverse of the coarse matrix is dense; its entries before that are few.
        small = groups**2 * value + groups * (cells * (value + 4) + 4)
        basis = vectors + count * ((1 + coupled) * (value + number) + number) + small
    return {
        "graph": round(count * (entries * (value + number) + number + value + 4 + 16)),
        "descriptors": count * dimensions * value,
        "neighbors": count * neighbors * (4 + value),
        "basis": round(basis),
        "build": build_bytes(count, dimensions, lists, dtype),
        "native build": native_build_bytes(
            count, dimensions, lists, dtype, entries, kept=neighbors > 0
        ),
        "search": batch * query_bytes(count, dtype) + results,
        "local": _local_bytes(count, entries, groups, threads, value) + results,
    }


def _local_bytes(n: int, entries: float, groups: int, threads: int, value: int) -> int:
    """The slowed walk and the roots, and the memory of each thread that is kept between queries."""
    room = min(ROOMS[0], most_room(n))
    row = 2 * max(_LOCAL_ENTRIES, math.ceil(entries)) * (4 + value)
    thread = 4 * n + room * (_LOCAL_NUMBERS * value + row + 33) + 16 + 2 * groups * value
    return groups**2 * value + n * value + threads * thread


def plan(
    index: DiffusionIndex | Graph,
    *,
    target: float = 0.99,
    memory: int | None = None,
    k: int = 100,
    queries: int = 64,
    eigenvectors: Sequence[int] = (100,),
    seed: int = 0,
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> Plan:
    """The cheapest method, basis, rank and number of steps that rank as the exact solution does.

    Parameters
    ----------
    index
        An index, or a graph.
    target
        The part of the exact top ``k`` to find, on average over a sample of the items as queries.
    memory
        The most bytes that a basis may take.
    queries
        Size of the sample.
    eigenvectors
        Ranks of eigenvector bases to try; they take minutes on large graphs. () for none.

    Returns
    -------
    Plan
        Print it for a table.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
    >>> index = hg.build_index(items, neighbors=2, alpha=0.9)
    >>> found = hg.plan(index, k=2, queries=4, eigenvectors=())
    >>> found.best.basis, found.best.agreement
    ('none', 1.0)
    """
    check_kind(index, "index", (DiffusionIndex, Graph), "Make one with build_index.")
    progress = as_progress(progress)
    seed = check_count(seed, "seed", low=0)
    if memory is not None:
        memory = check_count(memory, "memory", low=0)
    eigenvectors = check_sequence(eigenvectors, "eigenvectors", "(100,), or () for none")
    target = check_number(target, "target")
    if not 0 < target <= 1:
        raise ValueError(f"target must lie in (0, 1]; got {target}.")
    if isinstance(index, Graph):
        index = index_of_graph(index, seed=seed, backend=backend)
    k = check_count(k, "k", high=index.n)
    count = min(check_count(queries, "queries"), index.n)
    items = np.random.default_rng(seed).choice(index.n, count, replace=False)
    index = DiffusionIndex(replace(index.state, keys=None))  # items are asked for by ids
    bare = DiffusionIndex(replace(index.state, basis=None, columns=None))
    sample = _Sample(items, _exact(bare, items, k), k)
    ways = list(_ways(index, eigenvectors))
    candidates = []
    for number, way in enumerate(ways):
        if progress:
            progress("plan", number, len(ways))
        start = time.perf_counter()
        tried = with_basis(bare, way.basis, rank=way.rank, seed=seed)
        if way.method == _LOCAL:
            tried.state.local_problem(tried.alpha)
        seconds = time.perf_counter() - start
        candidates.append(_measured(tried, way, seconds, sample, target))
    if progress:
        progress("plan", len(ways), len(ways))
    fitting = [
        candidate
        for candidate in candidates
        if candidate.agreement >= target and (memory is None or candidate.bytes <= memory)
    ]
    best = min(fitting, key=lambda candidate: candidate.milliseconds, default=None)
    return Plan(tuple(candidates), best, target)


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Items that serve as queries, and the ids (m, k) of their exact results."""

    items: HostArray
    exact: HostArray
    k: int


@dataclass(frozen=True, slots=True)
class _Way:
    """What is tried: a basis of a rank, None for its default, and a method."""

    basis: BasisName
    rank: int | None
    method: MethodName = "hybrid"


def _ways(index: DiffusionIndex, eigenvectors: Sequence[int]) -> Iterator[_Way]:
    yield _Way("none", None)
    for items in _ITEMS_PER_GROUP:
        if index.n // items >= 2:
            yield _Way("aggregate", index.n // items)
    component = largest_component(index.state.graph).size
    for rank in eigenvectors:
        yield _Way("eigen", min(check_count(rank, "eigenvectors"), component))
    if index.n // _ITEMS_PER_GROUP[-1] >= 2:
        yield _Way("aggregate", None, _LOCAL)


def _measured(
    index: DiffusionIndex, way: _Way, build_seconds: float, sample: _Sample, target: float
) -> Candidate:
    """The fewest steps that reach the target, or the most that were tried; of local, its own."""
    tried: Sequence[int | None] = (None,) if way.method == _LOCAL else _STEPS
    for steps in tried:
        ranking = _ranked(index, sample, way.method, steps)
        reached = agreement(ranking.ids, sample.exact)
        if reached >= target:
            break
    # Timed apart, warm.
    ranking = _ranked(index, sample, way.method, steps)
    seconds = ranking.report.seconds["solve"] + ranking.report.seconds["rank"]
    return Candidate(
        basis=way.basis,
        rank=0 if index.state.basis is None else index.state.basis.rank,
        steps=ranking.report.steps if steps is None else steps,
        agreement=reached,
        milliseconds=1e3 * seconds / sample.items.size,
        bytes=index.memory["basis"] + (_kept_bytes(index) if way.method == _LOCAL else 0),
        build_seconds=build_seconds,
        method=way.method,
    )


def _kept_bytes(index: DiffusionIndex) -> int:
    """What a local search keeps beside the basis: the slowed walk on the groups, and roots."""
    problem = index.state.local_problem(index.alpha)
    together, alone = problem.inverse.together, problem.inverse.alone
    walk = array_bytes(alone) + (0 if together is None else array_bytes(together))
    return walk + array_bytes(problem.roots)


def _ranked(
    index: DiffusionIndex, sample: _Sample, method: MethodName, steps: int | None
) -> Ranking:
    return index.search_items(sample.items, k=sample.k, method=method, steps=steps)


def _exact(index: DiffusionIndex, items: HostArray, k: int) -> HostArray:
    try:
        return np.asarray(index.search_items(items, k=k, method="temporal", rtol=1e-5).ids)
    except ConvergenceError as missed:
        # Rounding in float32 may stop just above: far below what moves an item in a ranking.
        return np.asarray(missed.result.ids)
