"""Questions that arrive together are solved together, and each client gets its own answer.

One thread solves; while it does, questions wait in groups of those that can be solved together.
Whenever the thread is free, it takes what is there from the group whose turn it is: nothing waits
for company, and a busy server has the largest batches. Everything but the solving runs on the event
loop, so that there is no lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

import numpy as np

from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.index.queries import Queries
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.serve.answers import RankedRows, joined, rows_of
from hybrid_gpu.serve.questions import Question
from hybrid_gpu.serve.refusals import Refusal
from hybrid_gpu.serve.settings import ServerSettings

Solve = Callable[[Queries, Request], Ranking]
Outcome = RankedRows | Exception
_LOG = logging.getLogger("hybrid_gpu.serve")


class Waiting:
    """A question in the queue, and who waits for its answer."""

    __slots__ = ("_parts", "deadline", "future", "question", "taken")

    def __init__(self, question: Question, deadline: float, future: asyncio.Future[RankedRows]):
        self.question, self.deadline, self.future = question, deadline, future
        self.taken = 0
        self._parts: dict[int, RankedRows] = {}

    @property
    def left(self) -> int:
        """Queries that no batch has taken yet."""
        return self.question.count - self.taken

    def give(self, start: int, outcome: Outcome) -> None:
        """Take the answer to some queries; the client gets it with the last of them."""
        if self.future.done():
            return  # nobody waits any more
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
            return
        self._parts[start] = outcome
        if sum(len(part.ids) for part in self._parts.values()) == self.question.count:
            self.future.set_result(joined([self._parts[start] for start in sorted(self._parts)]))


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Queries of one question that a batch has taken."""

    waiting: Waiting
    start: int
    stop: int

    @property
    def queries(self) -> Queries:
        whole = self.waiting.question.queries
        if self.stop - self.start == whole.count:
            return whole
        return whole.part(self.start, self.stop)


@dataclass(frozen=True, slots=True, eq=False)
class _SolvedBatch:
    """The answers to the pieces of a batch, and how long they took."""

    outcomes: list[Outcome]
    seconds: float


class Batcher:
    """The queue of a server, and the threads that empty it.

    Parameters
    ----------
    solve
        Ranks the database for a query set.
    settings
    observe
        Told of every batch: how many queries, and how many seconds.
    changed
        Called whenever ``waiting`` is another number.
    """

    def __init__(
        self,
        solve: Solve,
        settings: ServerSettings,
        observe: Callable[[int, float], None] = lambda queries, seconds: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._solve, self._settings, self._observe = solve, settings, observe
        self._changed = changed
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="hybrid_gpu_serve")
        self._groups: OrderedDict[object, deque[Waiting]] = OrderedDict()
        self._jobs: set[asyncio.Future[_SolvedBatch]] = set()
        self._stopping = self._woken = False
        self._seconds_per_query = 0.0
        self.waiting = 0
        self.waiting_queries = 0

    def submit(self, question: Question, deadline: float) -> asyncio.Future[RankedRows]:
        """Put a question into the queue; cancel what it returns if nobody waits any more.

        At the deadline it is refused, whether or not it has begun.

        Raises
        ------
        Refusal
            If the queue is full, or the server stops.
        """
        if self._stopping:
            raise Refusal(503, "the server is stopping.", "Ask another one.", retry_after=1)
        if self.waiting >= self._settings.max_waiting:
            raise self.busy()
        loop = asyncio.get_running_loop()
        waiting = Waiting(question, deadline, loop.create_future())
        self.waiting += 1
        self.waiting_queries += question.count
        alarm = loop.call_at(deadline, self._wanted, waiting)
        waiting.future.add_done_callback(partial(self._leave, question.count, alarm))
        group = question.group if self._settings.batching else object()
        self._groups.setdefault(group, deque()).append(waiting)
        self._changed()
        self._wake(loop)
        return waiting.future

    def busy(self) -> Refusal:
        """What a client is told when the queue is full."""
        seconds = min(60, int(self.waiting_queries * self._seconds_per_query) + 1)
        return Refusal(
            503, "too many requests are waiting.", "Try again later.", retry_after=seconds
        )

    async def run(self, work: Callable[[], None]) -> None:
        """Run something else on a thread that solves: what it makes is ready for the questions."""
        await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def close(self) -> None:
        """Refuse what has not begun, and wait for what has."""
        self._stopping = True
        for group in self._groups.values():
            for waiting in group:
                waiting.give(0, Refusal(503, "the server is stopping.", retry_after=1))
        self._groups.clear()
        while self._jobs:
            await asyncio.wait(set(self._jobs))
        self._pool.shutdown(wait=True)

    def _leave(
        self, queries: int, alarm: asyncio.TimerHandle, future: asyncio.Future[RankedRows]
    ) -> None:
        alarm.cancel()
        self.waiting -= 1
        self.waiting_queries -= queries
        self._changed()

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        # At the end of this round of the loop: what has arrived by then comes along.
        if not self._woken:
            self._woken = True
            loop.call_soon(self._start)

    def _start(self) -> None:
        """Give every free thread a batch."""
        self._woken = False
        loop = asyncio.get_running_loop()
        while len(self._jobs) < self._settings.threads:
            pieces = self._taken()
            if not pieces:
                return
            job = loop.run_in_executor(self._pool, self._solved, pieces)
            self._jobs.add(job)
            job.add_done_callback(partial(self._deliver, pieces))

    def _taken(self) -> list[_Piece]:
        """A batch of the group whose turn it is; of every question in it a fair part."""
        while self._groups:
            name, group = self._groups.popitem(last=False)
            alive = deque(waiting for waiting in group if self._wanted(waiting))
            pieces: list[_Piece] = []
            room = self._settings.batch
            while room and alive:
                waiting = alive.popleft()
                # With many questions behind it, a large one gives way, and goes to the end.
                count = min(waiting.left, max(1, room // (len(alive) + 1)))
                pieces.append(_Piece(waiting, waiting.taken, waiting.taken + count))
                waiting.taken += count
                room -= count
                if waiting.left:
                    alive.append(waiting)
            if alive:
                self._groups[name] = alive
            if pieces:
                return _merged_pieces(pieces)
        return []

    def _wanted(self, waiting: Waiting) -> bool:
        """Whether somebody still waits for a question; no work is begun for nobody.

        If its time is over, that is told.
        """
        if waiting.future.done():
            return False
        if asyncio.get_running_loop().time() < waiting.deadline:
            return True
        waiting.give(0, overdue(begun=waiting.taken > 0))
        return False

    def _solved(self, pieces: Sequence[_Piece]) -> _SolvedBatch:
        """The answer to each piece of a batch, on a thread that solves."""
        start = monotonic()
        try:
            outcomes = self._together(pieces)
        except Exception as fault:
            outcomes = [fault]
            if len(pieces) > 1:
                # One of them is to blame, or all: each fails or is answered by itself.
                _LOG.warning("a batch of %d requests failed; each is solved alone", len(pieces))
                outcomes = [self._alone(piece) for piece in pieces]
        return _SolvedBatch(outcomes, monotonic() - start)

    def _alone(self, piece: _Piece) -> Outcome:
        try:
            return self._together([piece])[0]
        except Exception as fault:
            return fault

    def _together(self, pieces: Sequence[_Piece]) -> list[Outcome]:
        request = pieces[0].waiting.question.request
        missed: ConvergenceError | None = None
        try:
            ranking = self._solve(_joined_queries([piece.queries for piece in pieces]), request)
        except ConvergenceError as fault:
            missed, ranking = fault, fault.result
        outcomes: list[Outcome] = []
        first = 0
        for piece in pieces:
            rows = rows_of(ranking, first, first + piece.stop - piece.start)
            first += piece.stop - piece.start
            outcomes.append(missed if missed is not None and rows.missed else rows)
        return outcomes

    def _deliver(self, pieces: Sequence[_Piece], job: asyncio.Future[_SolvedBatch]) -> None:
        """Hand out the answers of a batch, and begin the next one."""
        self._jobs.discard(job)
        solved = job.result()
        count = sum(piece.stop - piece.start for piece in pieces)
        self._observe(count, solved.seconds)
        self._seconds_per_query += 0.2 * (solved.seconds / count - self._seconds_per_query)
        for piece, outcome in zip(pieces, solved.outcomes, strict=True):
            piece.waiting.give(piece.start, outcome)
        self._wake(asyncio.get_running_loop())


def overdue(*, begun: bool) -> Refusal:
    """What a client is told whose time is over."""
    if begun:
        return Refusal(504, "the answer took too long.", "Ask for fewer queries, or a smaller k.")
    return Refusal(503, "the server was too busy.", "Try again later.", retry_after=1)


def _merged_pieces(pieces: Sequence[_Piece]) -> list[_Piece]:
    """The pieces of a batch, with those of the same question that follow each other as one."""
    whole: dict[int, _Piece] = {}
    for piece in pieces:
        before = whole.get(id(piece.waiting))
        start = piece.start if before is None else before.start
        whole[id(piece.waiting)] = _Piece(piece.waiting, start, piece.stop)
    return list(whole.values())


def _joined_queries(parts: Sequence[Queries]) -> Queries:
    """The queries of questions of one group, one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    arrays = zip(*(part.arrays for part in parts), strict=True)
    limits = zip(*(part.limits for part in parts), strict=True)
    return replace(
        first,
        arrays=tuple(np.concatenate(some) for some in arrays),
        limits=tuple(np.concatenate(some) for some in limits),
    )
