"""Servers as processes: one that answers by itself, or several that share an index."""

from __future__ import annotations

import inspect
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.supervisors import Multiprocess

from hybrid_gpu.backends import select_backend
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import load_index
from hybrid_gpu.index.replicas import Replicas
from hybrid_gpu.serve.app import create_app
from hybrid_gpu.serve.counters import Counters
from hybrid_gpu.serve.explorer import PUBLIC, explorer_routes
from hybrid_gpu.serve.settings import TOKEN_VARIABLE, ServerSettings

# How a process that answers learns from the one that started it what to do.
_LAUNCH_VARIABLE = "HYBRID_GPU_SERVE_LAUNCH"
# Connections for each request that may wait: most of them are idle.
_CONNECTIONS_PER_REQUEST = 2
# Seconds beyond the time of a request until a server that stops goes without its answer.
_PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Launch:
    """What a process needs to answer for an index.

    Attributes
    ----------
    folder : str
        Of the index.
    backend : str
        ``"auto"``, ``"numpy"``, ``"cupy"``; several with commas.
    settings : ServerSettings
    counters : str or None
        The folder of the counters that processes share.
    """

    folder: str
    backend: str
    settings: ServerSettings
    counters: str | None = None

    def written(self) -> str:
        """The launch as text, without the token."""
        return json.dumps(asdict(replace(self, settings=replace(self.settings, token=None))))

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Launch:
        """The launch that an environment tells of."""
        told: dict[str, Any] = json.loads(environment[_LAUNCH_VARIABLE])
        settings = told.pop("settings")
        for name in ("allowed_hosts", "cors_origins"):
            settings[name] = tuple(settings[name])
        settings["token"] = environment.get(TOKEN_VARIABLE)
        return cls(**told, settings=ServerSettings(**settings))


def opened_index(folder: str | os.PathLike[str], backend: str) -> DiffusionIndex | Replicas:
    """The index of a folder on a device, or on several that are named with commas."""
    first, *others = backend.split(",")
    if not others:
        return load_index(folder, backend=select_backend(first))
    return Replicas(load_index(folder, backend=select_backend("numpy")), [first, *others])


def launched_app(launch: Launch) -> Starlette:
    """The app of a launch: where a process loads its index, and pages of others come in."""
    index = opened_index(launch.folder, launch.backend)
    counters = None if launch.counters is None else Counters(Path(launch.counters))
    first = index.indexes[0] if isinstance(index, Replicas) else index
    pages = explorer_routes(Collection(first, title=Path(launch.folder).name))
    return create_app(index, launch.settings, routes=pages, public=PUBLIC, counters=counters)


def worker_app() -> Starlette:
    """The app of one of several processes; uvicorn calls it in each of them."""
    return launched_app(Launch.read(os.environ))


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.

    Raises
    ------
    OSError
        If it is taken, or not of this machine; names the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as fault:
        raise OSError(fault.errno, os.strerror(fault.errno or 0), f"{host}:{port}") from fault
    # Connections inherit it. asyncio would set it only where the protocol is named, and without it
    # every answer waits 40 ms for the client's acknowledgement of its first line.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.set_inheritable(True)
    return made


def run(app: Starlette, listening: socket.socket, settings: ServerSettings) -> None:
    """Answer in this process until a signal ends it; what has begun is answered first."""
    config = uvicorn.Config(app, **_options(settings))
    uvicorn.Server(config).run(sockets=[listening])


def run_processes(launch: Launch, listening: socket.socket, processes: int) -> None:
    """Answer in several processes, each with the same files of the index mapped into its memory.

    One that dies is started again. A signal ends all of them.
    """
    with TemporaryDirectory(prefix="hybrid_gpu_serve_") as folder:
        whole = replace(launch, counters=folder)
        os.environ[_LAUNCH_VARIABLE] = whole.written()
        if launch.settings.token is not None:
            os.environ[TOKEN_VARIABLE] = launch.settings.token
        config = uvicorn.Config(
            "hybrid_gpu.serve.running:worker_app",
            factory=True,
            workers=processes,
            **_options(launch.settings),
        )
        # uvicorn before 0.53 wants to be told what each process runs.
        told = inspect.signature(Multiprocess).parameters
        older = {"target": uvicorn.Server(config).run} if "target" in told else {}
        _Processes(config, sockets=[listening], **older).run()


class _Processes(Multiprocess):
    """The processes that answer, and the one that looks after them."""

    def terminate_all(self) -> None:
        # Its own socket first: else connections would still come in, and wait for nobody.
        for listening in self.sockets:
            listening.close()
        super().terminate_all()


def _options(settings: ServerSettings) -> dict[str, Any]:
    """What uvicorn is told."""
    return {
        "log_level": "warning",
        "access_log": False,
        "lifespan": "on",
        "ws": "none",
        "proxy_headers": False,
        "server_header": False,
        "limit_concurrency": _CONNECTIONS_PER_REQUEST * settings.max_waiting,
        "timeout_graceful_shutdown": int(settings.timeout) + _PATIENCE,
    }
