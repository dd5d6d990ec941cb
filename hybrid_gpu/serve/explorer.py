"""The explorer on a server: the files of its page, and what the page asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.live import LiveForm
from hybrid_gpu.explore.page_files import PAGE, as_script, media_type, page_file
from hybrid_gpu.explore.pictures import Picture
from hybrid_gpu.serve.batching import overdue
from hybrid_gpu.serve.bodies import fields_of
from hybrid_gpu.serve.explorer_openapi import operations
from hybrid_gpu.serve.openapi import DescribedRoute
from hybrid_gpu.serve.questions import limit_alpha
from hybrid_gpu.serve.refusals import Refusal, json_response, refusal_of
from hybrid_gpu.serve.service import Service

PUBLIC = ("/explore", "/explore/page/")
"""What needs no token: the page, which knows nothing of the data."""

# Answers at work at the same time, and those that may wait for them.
_AT_WORK, _MOST_WAITING = 1, 16
_START = as_script("start", {"live": True})
_LOG = logging.getLogger("hybrid_gpu.serve")


def explorer_routes(collection: Collection) -> list[BaseRoute]:
    """The pages of the explorer, for ``create_app(index, routes=…, public=PUBLIC)``.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from hybrid_gpu.explore.collection import Collection
    >>> from hybrid_gpu.serve.app import create_app
    >>> from hybrid_gpu.serve.explorer import PUBLIC, explorer_routes
    >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
    >>> pages = explorer_routes(Collection(index, texts=["red", "rose", "blue", "sky"]))
    >>> app = create_app(index, routes=pages, public=PUBLIC)  # uvicorn.run(app)
    >>> app.routes[0].path
    '/explore'
    """
    form = LiveForm(collection)
    asking, told = _Asking(form), operations(collection.index.state, form.methods)
    return [
        Route("/explore", _home),
        Route("/explore/page/", _page),
        Route("/explore/page/data/start.js", _start),
        Route("/explore/page/{name}", _page),
        DescribedRoute("/explore/api/start", asking.start, told["start"]),
        DescribedRoute("/explore/api/items", asking.items, told["items"]),
        DescribedRoute("/explore/api/pictures/{item}", asking.picture, told["pictures"]),
        DescribedRoute("/explore/api/answer", asking.answer, told["answer"], methods=["POST"]),
    ]


async def _home(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/explore/page/")


async def _start(request: Request) -> Response:
    return Response(_START, media_type="text/javascript")


async def _page(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in PAGE:
        raise Refusal(404, "There is no such page.", "See /explore.")
    return Response(page_file(name), media_type=media_type(name))


class _Asking:
    """What a page asks, answered beside the event loop, a few at a time."""

    def __init__(self, form: LiveForm) -> None:
        self._form = form
        self._waiting = 0
        # Threads of its own: one whose client has given up is still at work, and keeps its place.
        self._pool = ThreadPoolExecutor(_AT_WORK, thread_name_prefix="hybrid_gpu_explore")

    async def start(self, request: Request) -> Response:
        return json_response(await self._done(request, self._form.start))

    async def items(self, request: Request) -> Response:
        words = request.query_params.get("words", "")
        return json_response(await self._done(request, self._form.items, words))

    async def answer(self, request: Request) -> Response:
        service: Service = request.app.state.service
        deadline = anyio.current_time() + service.settings.timeout
        kind, parameters = request.headers.get("content-type", ""), request.query_params
        with service.intake.place() as place:
            body = await place.read(request, deadline)

            def answered() -> dict[str, Any]:
                fields = fields_of(body, kind, parameters)
                return self._answered(fields, service)

            return json_response(await self._done(request, answered, deadline=deadline))

    async def picture(self, request: Request) -> Response:
        number = request.path_params["item"]
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise _no_picture()
        found = await self._done(request, self._picture, int(number))
        kept = {"Cache-Control": "private, max-age=3600"}
        return Response(found.content, headers=kept, media_type=found.media_type)

    def _answered(self, fields: Mapping[str, Any], service: Service) -> dict[str, Any]:
        limit_alpha(fields.get("alpha"), service.state, service.settings)
        return self._form.answer(fields)

    def _picture(self, item: int) -> Picture:
        try:
            found = self._form.picture(item)
        except (OSError, ValueError):  # they name the file, which is nobody's business
            _LOG.warning("the picture of item %d cannot be read", item, exc_info=True)
            raise _no_picture() from None
        if found is None:
            raise _no_picture()
        return found

    async def _done(
        self,
        request: Request,
        work: Callable[..., Any],
        *given: Any,
        deadline: float | None = None,
    ) -> Any:
        """What some work gives, if there is room and time for it."""
        service: Service = request.app.state.service
        if self._waiting >= _MOST_WAITING:
            raise Refusal(503, "too many requests are waiting.", "Try again.", retry_after=1)
        now = anyio.current_time()
        seconds = service.settings.timeout if deadline is None else deadline - now
        self._waiting += 1
        job = self._pool.submit(work, *given)
        try:
            with anyio.fail_after(seconds):
                return await asyncio.wrap_future(job)
        except TimeoutError:
            raise overdue(begun=not job.cancel()) from None
        except Exception as fault:
            refusal = refusal_of(fault)
            if refusal is None:
                raise
            raise refusal from fault
        finally:
            self._waiting -= 1


def _no_picture() -> Refusal:
    return Refusal(404, "There is no such picture.")
