"""The ASGI app of an index: its pages, and where others are added."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.replicas import Replicas
from hybrid_gpu.serve.counters import PAGES, Counters
from hybrid_gpu.serve.description import described, page
from hybrid_gpu.serve.guards import Guard
from hybrid_gpu.serve.openapi import document
from hybrid_gpu.serve.questions import FIELDS
from hybrid_gpu.serve.refusals import MEANINGS, Refusal, json_response
from hybrid_gpu.serve.service import Service
from hybrid_gpu.serve.settings import ServerSettings

# Pages that tell nothing of the data, and need no token.
_PUBLIC = ("/", "/healthz", "/readyz")


def create_app(
    index: DiffusionIndex | Replicas,
    settings: ServerSettings | None = None,
    *,
    routes: Sequence[BaseRoute] = (),
    public: Sequence[str] = (),
    counters: Counters | None = None,
) -> Starlette:
    """The ASGI app of an index, for uvicorn or any other server of ASGI.

    Parameters
    ----------
    index
        It is warmed up when the server starts.
    settings
        Limits, token and hosts; None: those for one machine.
    routes
        Pages beside the app's own, such as ``Route("/hello", hello)``; their functions find the
        ``Service`` at ``request.app.state.service``, and refuse by raising a ``Refusal``. A
        ``DescribedRoute`` is in the OpenAPI document too.
    public
        Which of these pages need no token; ``"/page/"`` stands for all below it.
    counters
        Those that several processes share; None: new ones.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from hybrid_gpu.serve.app import create_app
    >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
    >>> app = create_app(index)  # uvicorn.run(app)
    >>> [route.path for route in app.routes][:3]
    ['/search', '/rerank', '/search_items']
    """
    chosen = ServerSettings() if settings is None else settings
    service = Service(index, chosen, counters)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    def count(path: str, status: int, seconds: float) -> None:
        name = path.removeprefix("/")
        service.counters.request(name if name in PAGES else "other", status, seconds)
        service.gauges()

    guard = Middleware(Guard, settings=chosen, public=(*_PUBLIC, *public), count=count)
    app = Starlette(
        routes=[*routes, *_searches(service), *_pages(service, routes)],
        middleware=[guard],
        lifespan=lifespan,
        exception_handlers={Refusal: _refused, HTTPException: _not_found},
    )
    app.state.service = service
    return app


def _searches(service: Service) -> list[Route]:
    def answering(endpoint: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return partial(service.answer, endpoint)

    return [Route(f"/{name}", answering(name), methods=["POST"]) for name in FIELDS]


def _pages(service: Service, added: Sequence[BaseRoute]) -> list[Route]:
    async def health(request: Request) -> Response:
        return json_response({"alive": True})

    async def readiness(request: Request) -> Response:
        if not service.ready:
            raise Refusal(503, "the index is warming up.", "Try again soon.", retry_after=1)
        return json_response({"ready": True})

    async def info(request: Request) -> Response:
        return json_response(described(service.state, service.settings))

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(
            service.counters.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    whole = document(service.state, service.settings, added)

    async def openapi(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return json_response({**whole, "servers": [{"url": root}]} if root else whole)

    async def docs(request: Request) -> Response:
        return HTMLResponse(page(whole))

    async def home(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/docs")

    return [
        Route("/info", info),
        Route("/healthz", health),
        Route("/readyz", readiness),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        Route("/", home),
    ]


async def _refused(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, Refusal)
    return fault.response


async def _not_found(request: Request, fault: Exception) -> Response:
    """What Starlette itself refuses: pages that are not there, and methods that they lack."""
    assert isinstance(fault, HTTPException)
    error = MEANINGS.get(fault.status_code, "The request is wrong.")
    answer = Refusal(fault.status_code, error, "See /docs.").response
    answer.headers.update(fault.headers or {})
    return answer
