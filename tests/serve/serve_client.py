"""An app at work inside the test: asked as over HTTP, without a socket."""

from __future__ import annotations

import io
from contextlib import ExitStack

import httpx
import numpy as np
from anyio.from_thread import start_blocking_portal

from hybrid_gpu.serve.app import create_app
from hybrid_gpu.serve.settings import ServerSettings

NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"


class LiveApp:
    """The app of an index on an event loop of its own thread."""

    def __init__(self, index, settings=None, **options):
        self.app = create_app(index, settings or ServerSettings(), **options)
        self.service = self.app.state.service

    def __enter__(self):
        with ExitStack() as stack:
            self.portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self.portal.wrap_async_context_manager(self.service.running()))
            transport = httpx.ASGITransport(self.app)
            client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
            self.client = stack.enter_context(self.portal.wrap_async_context_manager(client))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *fault):
        return self._stack.__exit__(*fault)

    def ask(self, method, path, **options):
        async def asked():
            return await self.client.request(method, path, **options)

        return self.portal.call(asked)

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, fields=None, **options):
        if fields is not None:
            options["json"] = fields
        return self.ask("POST", path, **options)

    def post_bytes(self, path, body, kind=NPY, **headers):
        return self.ask("POST", path, content=body, headers={"Content-Type": kind, **headers})


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def planted(n=60, d=8, seed=29):
    """Vectors of three groups, and queries near them."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((3, d))
    items = centers[np.arange(n) % 3] + 0.3 * rng.standard_normal((n, d))
    queries = centers[np.arange(9) % 3] + 0.3 * rng.standard_normal((9, d))
    return items.astype(np.float32), queries.astype(np.float32)
