"""A server's inside: the index, the queue in front of it, and the counters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import time
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.queries import Queries
from hybrid_gpu.index.replicas import Replicas
from hybrid_gpu.index.search import ranked
from hybrid_gpu.index.spreading import answered
from hybrid_gpu.ranking.request import Request as Asked
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.serve.answers import RankedRows, encoded, negotiated, notes_of
from hybrid_gpu.serve.batching import Batcher
from hybrid_gpu.serve.bodies import Intake, fields_of
from hybrid_gpu.serve.counters import Counters
from hybrid_gpu.serve.questions import Question, question_of
from hybrid_gpu.serve.refusals import Refusal, failed, refusal_of
from hybrid_gpu.serve.settings import ServerSettings

_LOG = logging.getLogger("hybrid_gpu.serve")
# Larger bodies and answers are read and written beside the event loop, which serves the others.
_LARGE_BODY, _LARGE_ANSWER = 1 << 16, 1 << 14


class Service:
    """What the pages of a server share.

    Attributes
    ----------
    index : DiffusionIndex or Replicas
    settings : ServerSettings
    counters : Counters
    intake : Intake
        The room for bodies, also for those of added pages.
    ready : bool
        Whether the index is warm.
    """

    def __init__(
        self,
        index: DiffusionIndex | Replicas,
        settings: ServerSettings,
        counters: Counters | None = None,
    ) -> None:
        self.index, self.settings = index, settings
        indexes = index.indexes if isinstance(index, Replicas) else (index,)
        self._states = [one.state for one in indexes]
        self.state = self._states[0]
        self.counters = Counters() if counters is None else counters
        self.intake = Intake(settings)
        self.batcher = Batcher(self._solved, settings, self.counters.batch, self.gauges)
        self.ready = False
        self._reading: anyio.CapacityLimiter | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The time from the start of the server to its end; the index is warmed up meanwhile."""
        self.counters.set("start_time_seconds", time())
        self.counters.set("processes", 1)
        warming = asyncio.create_task(self._warm_up())
        try:
            yield
        finally:
            warming.cancel()
            with suppress(asyncio.CancelledError):
                await warming
            await self.batcher.close()

    async def answer(self, endpoint: str, request: Request) -> Response:
        """The answer to a search of any kind."""
        deadline = anyio.current_time() + self.settings.timeout
        form = negotiated(request.headers.get("accept"))
        if self.batcher.waiting >= self.settings.max_waiting:
            raise self.batcher.busy()  # before anything is read
        with self.intake.place() as place:
            body = await place.read(request, deadline)
            question = await self._question(endpoint, request, body)
            del body
            rows = await self._rows(question, deadline, request)
        self.counters.add("queries_total", question.count)
        notes, keys = notes_of(rows, question, self.state), self.state.keys
        if rows.ids.size > _LARGE_ANSWER:
            content = await run_sync(encoded, rows, notes, keys, form)
        else:
            content = encoded(rows, notes, keys, form)
        return Response(content, media_type=form)

    def gauges(self) -> None:
        """Bring up to date what the counters tell of now, for whichever process is asked."""
        self.counters.set("waiting_requests", self.batcher.waiting)
        self.counters.set("body_bytes", self.intake.held)

    async def _question(self, endpoint: str, request: Request, body: bytes) -> Question:
        kind, parameters = request.headers.get("content-type", ""), request.query_params

        def made() -> Question:
            fields = fields_of(body, kind, parameters)
            return question_of(endpoint, fields, self.state, self.settings)

        try:
            if len(body) <= _LARGE_BODY:
                return made()
            if self._reading is None:
                self._reading = anyio.CapacityLimiter(1)
            # One at a time: what is made of hostile JSON takes twenty times its bytes.
            question: Question = await run_sync(made, limiter=self._reading)
            return question
        except Exception as fault:
            raise _told(fault) from fault

    async def _rows(self, question: Question, deadline: float, request: Request) -> RankedRows:
        """Wait for an answer, as long as the client does."""
        future = self.batcher.submit(question, deadline)
        leaving = asyncio.ensure_future(_departure(request))
        try:
            both: set[asyncio.Future[Any]] = {future, leaving}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            raise Refusal(499, "the client went away.")
        except Exception as fault:
            raise _told(fault) from fault
        finally:
            future.cancel()  # if nobody waits any more, what has not begun never will
            leaving.cancel()

    async def _warm_up(self) -> None:
        try:
            await self.batcher.run(self.index.warm_up)
        except Exception:
            _LOG.exception("the index could not be warmed up")
            return
        self.ready = True
        self.counters.set("ready", 1)

    def _solved(self, queries: Queries, request: Asked) -> Ranking:
        if len(self._states) > 1:
            return answered(self._states, queries, request)
        with self.state.backend.annotate("search"):
            return ranked(self.state, queries, request)


async def _departure(request: Request) -> None:
    """Wait until the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told(fault: Exception) -> Refusal:
    """What a client is told of a fault; one of the server goes to its log."""
    refusal = refusal_of(fault)
    if refusal is None:
        _LOG.error("a search failed", exc_info=fault)
        return failed()
    return refusal
