"""Entry point of the native core for local searches: one query on each thread."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hybrid_gpu.backends.csr_matrix import CsrMatrix
from hybrid_gpu.backends.local_records import LocalAnswer, LocalEffort, LocalProblem
from hybrid_gpu.backends.native import INTEGER, POINTER, REAL, Core, address
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import for_each, thread_count

_SEARCH = (POINTER,) * 3 + (INTEGER,) * 3 + (POINTER,) * 2 + (INTEGER,) + (POINTER,) * 3
# Entries of a row that there is room for: more than a reciprocal graph has on average.
_ENTRIES_PER_ITEM = 32
_REALS = 13  # arrays of numbers by item, as in local.c
# Memory of a query that saw more items than these, or as large a part of the entries, goes back to
# the system: ``plan`` counts on it.
KEPT_ROOM = 1 << 16


class _IndexFields(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, INTEGER) for name in ("items", "groups", "coupled")),
        *((name, POINTER) for name in ("indptr", "indices", "weights")),
        *((name, POINTER) for name in ("spread_indptr", "spread_groups", "spread_weights")),
        *((name, POINTER) for name in ("together", "alone", "roots", "order")),
    ]


class _SettingsFields(ctypes.Structure):
    _fields_: ClassVar = [
        *(
            (name, REAL)
            for name in ("alpha", "tolerance", "push", "growth", "drift", "calm", "gap")
        ),
        *(
            (name, INTEGER)
            for name in ("spare", "changes", "few", "watched", "fewest", "steps", "rounds")
        ),
        ("rooted", INTEGER),
    ]


class _MemoryFields(ctypes.Structure):
    _fields_: ClassVar = [
        ("room", INTEGER),
        ("entries", INTEGER),
        *((name, POINTER) for name in ("place", "node", "row", "member", "queue", "start")),
        *((name, POINTER) for name in ("column", "weight", "inner_start", "inner")),
        *((name, POINTER) for name in ("inner_weight", "reals", "best")),
        *((name, POINTER) for name in ("coefficients", "sums")),
    ]


_REPORT = np.dtype(
    [
        (name, np.int64)
        for name in ("found", "settled", "rounds", "visited", "steps", "seen", "entries")
    ]
    + [("residual", np.float64)]
)


class Memories:
    """Memory of threads, kept from search to search: to clear n places costs more than a query.

    There is room for more items than nearly all queries see. What no query has written to yet takes
    addresses only: operating systems give memory page by page, when it is first written to.
    """

    def __init__(self) -> None:
        self._free: deque[tuple[tuple[Any, ...], _MemoryFields, list[HostArray]]] = deque(maxlen=16)
        self._places: deque[HostArray] = deque(maxlen=16)

    def take(self, n: int, groups: int, room: int, entries: int, like: str) -> Any:
        """Memory of these sizes: what was given back, or new."""
        sizes = (n, groups, room, entries, like)
        kept = _taken(self._free, lambda one: one[0] == sizes)
        if kept is not None:
            return kept
        places = _taken(self._places, lambda one: one.size == n)
        arrays: list[HostArray] = [
            np.full(n, -1, np.int32) if places is None else places,
            *(np.empty(room, np.int32) for _ in range(4)),
            np.empty(room + 1, np.int64),
            np.empty(entries, np.int32),
            np.empty(entries, like),
            np.empty(room + 1, np.int64),
            np.empty(entries, np.int32),
            np.empty(entries, like),
            np.empty((_REALS, room), like),
            np.empty(room, np.uint8),
            np.empty(groups, like),
            np.zeros(groups, like),
        ]
        return sizes, _MemoryFields(room, entries, *(array.ctypes.data for array in arrays)), arrays

    def give_back(self, memory: Any, seen: int, entries: int) -> None:
        """Keep memory for the next query, as it was found; of one that took so much, its places."""
        (_, _, room, most, _), _, arrays = memory
        if seen <= KEPT_ROOM and entries * room <= most * KEPT_ROOM:
            self._free.append(memory)
        else:
            self._places.append(arrays[0])


def _taken(kept: deque[Any], fits: Callable[[Any], bool]) -> Any:
    """The first of what is kept that fits, taken out; what is before it is dropped."""
    for _ in range(len(kept)):
        try:
            one = kept.popleft()
        except IndexError:  # another thread was faster
            break
        if fits(one):
            return one
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """The library, and memory for the threads that call it."""

    core: Core
    memories: Memories


def entry_room(room: int, n: int, entries: int) -> int:
    """Entries of rows that there is room for beside so many items, in a graph of n items."""
    # Of dense graphs, a few thousand rows would not fit: queries would end there, and not settle.
    return room * max(_ENTRIES_PER_ITEM, -(-entries // n))


def suits(problem: LocalProblem) -> bool:
    """Whether the native core can read a problem: matrices of the same kinds, few enough items."""
    adjacency, spread = problem.adjacency, problem.spread
    assert isinstance(adjacency, CsrMatrix)
    assert isinstance(spread, CsrMatrix)
    index = adjacency.indices.dtype
    alike = {adjacency.indptr.dtype, spread.indices.dtype, spread.indptr.dtype} == {index}
    known = adjacency.data.dtype.name in ("float32", "float64") and index.name in ("int32", "int64")
    return known and alike and adjacency.shape[0] < 2**31 and adjacency.sound and spread.sound


def searched(
    native: Native,
    problem: LocalProblem,
    places: HostArray,
    weights: HostArray,
    k: int,
    effort: LocalEffort,
) -> LocalAnswer:
    """The best ``k`` items for observations (m, q)."""
    core, memories = native.core, native.memories
    adjacency, spread = problem.adjacency, problem.spread
    n, (m, width), like = adjacency.shape[0], places.shape, adjacency.data.dtype.name
    groups = spread.shape[1] // 2
    if places.size and (int(places.min()) < -1 or int(places.max()) >= n):
        raise ValueError(f"places must be from -1 to {n - 1}; got others.")
    index = _index_of(problem, n, groups, like)
    settings = _SettingsFields(
        problem.alpha,
        effort.tolerance,
        effort.push,
        effort.growth,
        effort.drift,
        effort.calm,
        effort.gap,
        effort.spare,
        effort.changes,
        effort.few,
        effort.watched,
        effort.fewest,
        effort.steps,
        effort.rounds,
        int(effort.rooted),
    )
    best, scores = np.full((m, k), -1, np.int64), np.zeros((m, k), like)
    reports = np.zeros(m, _REPORT)
    room = max(effort.room, width)
    entries = entry_room(room, n, adjacency.indices.size)
    call = core.function("hg_local_search", _SEARCH, adjacency.data, adjacency.indices)
    observed = address(places, "places", "int64", (m, width))
    values = address(weights, "weights", like, (m, width))

    def answer(query: int) -> None:
        memory = memories.take(n, groups, room, entries, like)
        call(
            ctypes.addressof(index),
            ctypes.addressof(settings),
            ctypes.addressof(memory[1]),
            query,
            query + 1,
            width,
            observed,
            values,
            k,
            best.ctypes.data,
            scores.ctypes.data,
            reports.ctypes.data,
        )
        memories.give_back(memory, int(reports["seen"][query]), int(reports["entries"][query]))

    if m > 1 and thread_count() > 1:
        for_each(answer, range(m))
    else:
        for query in range(m):
            answer(query)
    return LocalAnswer(
        places=best,
        scores=scores,
        found=reports["found"].copy(),
        settled=reports["settled"] == 1,
        rounds=reports["rounds"].copy(),
        visited=reports["visited"].copy(),
        steps=reports["steps"].copy(),
        residuals=reports["residual"].copy(),
    )


def _index_of(problem: LocalProblem, n: int, groups: int, like: str) -> _IndexFields:
    """The addresses of a problem's arrays, each of them checked."""
    adjacency, spread, inverse = problem.adjacency, problem.spread, problem.inverse
    coupled = 0 if inverse.together is None else inverse.together.shape[0]
    short = adjacency.indices.dtype.name
    pointers = []
    for matrix in (adjacency, spread):
        entries = matrix.indices.shape
        pointers += [
            address(matrix.indptr, "indptr", short, (n + 1,)),
            address(matrix.indices, "indices", short, entries),
            address(matrix.data, "data", like, entries),
        ]
    together = inverse.together
    pointers.append(
        0 if together is None else address(together, "inverse", like, (coupled, coupled))
    )
    pointers.append(address(inverse.alone, "inverse", like, (groups - coupled, 1)))
    pointers.append(address(problem.roots, "roots", like, (n,)))
    pointers.append(address(problem.order, "order", "int64", (n,)))
    return _IndexFields(n, groups, coupled, *pointers)
