"""The explorer on a server: the files of its page, and what the page asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.live import LiveForm
from hybrid_gpu.explore.page_files import PAGE, as_script, media_type, page_file
from hybrid_gpu.serve.batching import overdue
from hybrid_gpu.serve.bodies import Intake, fields_of
from hybrid_gpu.serve.refusals import Refusal, json_response, refusal_of
from hybrid_gpu.serve.service import Service

PUBLIC = ("/explore", "/explore/page/")
"""What needs no token: the page, which knows nothing of the data."""

# Answers at work at the same time, and those that may wait for them.
_AT_WORK, _MOST_WAITING = 1, 16
_START = as_script("start", {"live": True})


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
    asking = _Asking(LiveForm(collection))
    return [
        Route("/explore", _home),
        Route("/explore/page/", _page),
        Route("/explore/page/data/start.js", _start),
        Route("/explore/page/{name}", _page),
        Route("/explore/api/start", asking.start),
        Route("/explore/api/items", asking.items),
        Route("/explore/api/pictures/{item:int}", asking.picture),
        Route("/explore/api/answer", asking.answer, methods=["POST"]),
    ]


async def _home(request: Request) -> Response:
    return RedirectResponse("/explore/page/")


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
        self._limiter: anyio.CapacityLimiter | None = None

    async def start(self, request: Request) -> Response:
        return json_response(await self._done(request, self._form.start))

    async def items(self, request: Request) -> Response:
        words = request.query_params.get("words", "")
        return json_response(await self._done(request, self._form.items, words))

    async def answer(self, request: Request) -> Response:
        service: Service = request.app.state.service
        deadline = anyio.current_time() + service.settings.timeout
        with Intake(service.settings).place() as place:
            body = await place.read(request, deadline)
        fields = fields_of(body, request.headers.get("content-type", ""), request.query_params)
        return json_response(await self._done(request, self._form.answer, fields))

    async def picture(self, request: Request) -> Response:
        found = await self._done(request, self._form.picture, request.path_params["item"])
        if found is None:
            raise Refusal(404, "There is no such picture.")
        kept = {"Cache-Control": "private, max-age=3600"}
        return Response(found.content, headers=kept, media_type=found.media_type)

    async def _done(self, request: Request, work: Callable[..., Any], *given: Any) -> Any:
        """What some work gives, if there is room and time for it."""
        service: Service = request.app.state.service
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_AT_WORK)
        if self._waiting >= _MOST_WAITING:
            raise Refusal(503, "too many requests are waiting.", "Try again.", retry_after=1)
        self._waiting += 1
        try:
            with anyio.fail_after(service.settings.timeout):
                return await run_sync(work, *given, abandon_on_cancel=True, limiter=self._limiter)
        except TimeoutError:
            raise overdue(begun=True) from None
        except Exception as fault:
            refusal = refusal_of(fault)
            if refusal is None:
                raise
            raise refusal from fault
        finally:
            self._waiting -= 1
