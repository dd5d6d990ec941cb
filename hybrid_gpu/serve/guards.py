"""Who may ask: the name by which a server is called, its token, and the pages of other servers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybrid_gpu.serve.refusals import Refusal, failed, printable, refusal_of
from hybrid_gpu.serve.settings import ServerSettings

_LOG = logging.getLogger("hybrid_gpu.serve")
# For every answer: no page may be guessed to be of another type, framed, or kept by a proxy.
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """The outermost part of the app: checks every request, and answers every fault.

    Parameters
    ----------
    app
    settings
    public : collection of str
        Pages that need no token. One that ends in ``/`` stands for all below it.
    count
        Told of every request: its path, status and seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServerSettings,
        public: tuple[str, ...],
        count: Callable[[str, int, float], None],
    ) -> None:
        self._app, self._settings, self._public, self._count = app, settings, public, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, path = monotonic(), 499, own_path(scope)
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        shared = origin if origin in self._settings.cors_origins else ""

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = MutableHeaders(scope=message)
                for name, value in _SAFE.items():
                    added.setdefault(name, value)
                if shared:
                    added["Access-Control-Allow-Origin"] = shared
                    added.add_vary_header("Origin")
            await send(message)

        try:
            await self._answered(scope, receive, watched, headers, shared)
        except Exception as fault:
            refusal = refusal_of(fault) if isinstance(fault, Refusal) else None
            if refusal is None:
                _LOG.exception("a request failed")
                refusal = failed()
            if status != 499:
                raise  # the answer has begun: the server can only cut it short
            await refusal.response(scope, receive, watched)
        finally:
            self._count(path, status, monotonic() - start)

    async def _answered(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, shared: str
    ) -> None:
        self._check_host(headers)
        asked = headers.get("access-control-request-method")
        if shared and scope["method"] == "OPTIONS" and asked is not None:
            await send({"type": "http.response.start", "status": 204, "headers": _PREFLIGHT})
            await send({"type": "http.response.body", "body": b""})
            return
        if not self._is_public(own_path(scope)):
            self._check_token(headers)
        await self._app(scope, receive, send)

    def _is_public(self, path: str) -> bool:
        return any(
            path.startswith(page) if page.endswith("/") and page != "/" else path == page
            for page in self._public
        )

    def _check_host(self, headers: Headers) -> None:
        """Refuse other names: a web page may have its own name lead here (DNS rebinding)."""
        hosts = headers.getlist("host")
        allowed = self._settings.allowed_hosts
        if "*" in allowed or (len(hosts) == 1 and _without_port(hosts[0]) in allowed):
            return
        raise Refusal(
            421,
            f"this server is not called {printable(', '.join(hosts)) or 'nothing'!r}.",
            "Start it with --allowed-host and the name that clients use.",
        )

    def _check_token(self, headers: Headers) -> None:
        token = self._settings.token
        if token is None:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        # In constant time: how long it takes tells nothing of the token.
        same = hmac.compare_digest(given.strip().encode(), token.encode())
        if kind.lower() != "bearer" or not same:
            raise Refusal(
                401,
                "this server needs a token.",
                "Send the header 'Authorization: Bearer TOKEN'.",
            )


_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
]


def own_path(scope: Scope) -> str:
    """The path of a request below the one at which the app is mounted, as its routes see it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    rest = path.removeprefix(root)
    return rest if rest == "" or rest.startswith("/") else path


def _without_port(host: str) -> str:
    """The name of a Host header, without the port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and port.isascii() else host.lower()
