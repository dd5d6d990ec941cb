"""A query set cut into parts, which several devices answer, and their answers as one ranking."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hybrid_gpu.backends import Backend
from hybrid_gpu.diffusion.solution import not_converged
from hybrid_gpu.errors import ConvergenceError, ReplicaError
from hybrid_gpu.index.queries import Queries
from hybrid_gpu.index.search import missed_note, ranked, width_for
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import Ranking, Report


def answered(states: Sequence[IndexState], queries: Queries, request: Request) -> Ranking:
    """Rank the database for queries of the host, by the same index on several devices."""
    width = min(width_for(state, queries, request) for state in states)
    parts = _Parts(queries, request, _bounds(queries.count, width, len(states)))
    parts.spread(states)
    whole = _merged(parts.answers, states)
    missed = [answer.ranking.report.steps for answer in parts.answers if answer.missed]
    if missed:
        raise not_converged(max(missed), request.stop.tolerance, result=whole)
    return whole


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """The ranking of a part, the number of the replica that made it, and if a query missed rtol."""

    ranking: Ranking
    replica: int
    missed: bool


class _Parts:
    """A query set in parts, which devices take one by one until there are none left."""

    def __init__(
        self, queries: Queries, request: Request, bounds: Sequence[tuple[int, int]]
    ) -> None:
        self._queries, self._request = queries, replace(request, progress=None)
        self._progress, self._done = request.progress, 0
        self._waiting = deque(enumerate(bounds))
        self._answers: list[_Answer | None] = [None] * len(bounds)
        self._one_at_a_time = threading.Lock()

    @property
    def answers(self) -> list[_Answer]:
        """What came back, in the order of the queries."""
        return [answer for answer in self._answers if answer is not None]

    def spread(self, states: Sequence[IndexState]) -> None:
        """Let every device answer, each on a thread of its own; the caller's is the first one's."""
        self._tell(0)
        replicas: list[Future[None]] = []
        with ThreadPoolExecutor(len(states), thread_name_prefix="hybrid_gpu_replica") as pool:
            try:
                # RuntimeError: the interpreter is ending, or the system gives no more threads. The
                # caller alone is enough then.
                with suppress(RuntimeError):
                    replicas.extend(
                        pool.submit(self._take_all, states[number], number)
                        for number in range(1, min(len(states), len(self._answers)))
                    )
                self._take_all(states[0], 0)
                for replica in replicas:
                    replica.result()
            except BaseException:
                self._waiting.clear()  # Ctrl-C while waiting: nobody begins anything more
                raise

    def _take_all(self, state: IndexState, number: int) -> None:
        """Answer one waiting part after the other on a device, until none is left."""
        request = self._request
        try:
            while True:
                try:
                    place, (start, stop) = self._waiting.popleft()
                except IndexError:
                    return
                with named(state.backend, f"failed on queries {start} to {stop - 1}"):
                    answer = self._answered(state, number, self._queries.part(start, stop), request)
                # Halved for lack of memory, or a part as large as any that comes: go on with it.
                request = replace(request, batch=answer.ranking.report.batch)
                self._answers[place] = answer
                self._tell(stop - start)
        except BaseException:
            self._waiting.clear()  # the others stop after the parts they are at
            raise

    def _answered(self, state: IndexState, number: int, part: Queries, request: Request) -> _Answer:
        try:
            with state.backend.annotate("search"):
                return _Answer(ranked(state, part, request), number, missed=False)
        except ConvergenceError as miss:
            return _Answer(miss.result, number, missed=True)

    def _tell(self, more: int) -> None:
        with self._one_at_a_time:
            self._done += more
            if self._progress:
                self._progress("search", self._done, self._queries.count)


def _bounds(count: int, width: int, devices: int) -> list[tuple[int, int]]:
    """Rows of parts of at most ``width``: as many parts for each device, the larger ones first."""
    rounds = -(-count // (width * devices))
    parts = min(count, rounds * devices)
    size, larger = divmod(count, parts)
    starts = [number * size + min(number, larger) for number in range(parts + 1)]
    return list(pairwise(starts))


def _merged(answers: Sequence[_Answer], states: Sequence[IndexState]) -> Ranking:
    """The rankings of consecutive parts as one."""
    rankings = [answer.ranking for answer in answers]
    reports, first = [ranking.report for ranking in rankings], rankings[0].report
    seconds: dict[int, dict[str, float]] = {}
    for answer in answers:
        spent = seconds.setdefault(answer.replica, {})
        for stage, time in answer.ranking.report.seconds.items():
            spent[stage] = spent.get(stage, 0.0) + time
    residuals = None
    if first.residuals is not None:
        residuals = np.concatenate([report.residuals for report in reports])
    truncations = [report.truncation for report in reports if report.truncation is not None]
    report = replace(
        first,
        steps=max(report.steps for report in reports),
        residuals=residuals,
        truncation=max(truncations, default=None),
        seconds=max(seconds.values(), key=lambda spent: sum(spent.values())),
        backend=device_names([states[number] for number in sorted(seconds)]),
        batch=max(report.batch for report in reports),
        notes=_merged_notes(reports) + _note(residuals, first.accuracy),
    )
    return Ranking(
        ids=np.concatenate([ranking.ids for ranking in rankings]),
        scores=np.concatenate([ranking.scores for ranking in rankings]),
        report=report,
        known=states[0].keys,
    )


def _merged_notes(reports: Sequence[Report]) -> tuple[str, ...]:
    """What was noted, once each; with its device if another one did not note it."""
    noted: dict[str, dict[str, None]] = {}
    for report in reports:
        # How many queries missed the accuracy is counted anew, over the whole set.
        for note in report.notes:
            if note not in _note(report.residuals, report.accuracy):
                noted.setdefault(note, {})[report.backend] = None
    everyone = {report.backend for report in reports}
    return tuple(
        note if set(devices) == everyone else f"{', '.join(devices)}: {note}"
        for note, devices in noted.items()
    )


def _note(residuals: Any, accuracy: float | None) -> tuple[str, ...]:
    return () if accuracy is None else missed_note(residuals, accuracy, np)


def device_names(states: Sequence[IndexState]) -> str:
    """Where states are: ``"cupy:0,cupy:1"``."""
    return ",".join(state.backend.name for state in states)


@contextmanager
def named(backend: Backend, what: str) -> Iterator[None]:
    """Say which device an error comes from; what is wrong with a request is none of a device."""
    try:
        yield
    except (ValueError, TypeError):
        raise
    except Exception as fault:
        text = f"{type(fault).__name__}: {fault}".rstrip(".: ")
        raise ReplicaError(
            f"{backend.name} {what}: {text}. Leave this device out, or try it alone with "
            f"index.to({backend.name!r}).",
            backend=backend.name,
        ) from fault
