"""The command ``serve``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid_gpu.cli.common import Devices, IndexFolder
from hybrid_gpu.errors import install_line
from hybrid_gpu.serve.settings import LOOPBACK, MEBIBYTE, TOKEN_VARIABLE, ServerSettings

_ANY_ADDRESS = ("0.0.0.0", "::", "")
_OWN_ADDRESS = ("localhost", "127.0.0.1", "::1")

Host = Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all of the machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")]
Processes = Annotated[int, typer.Option(min=1, help="Processes that answer; the index is shared.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"File with the token that clients must send; or set {TOKEN_VARIABLE}."),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(help="Another name by which clients call the server; * for any. Repeatable."),
]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(help="A web site whose pages may read answers. Repeatable."),
]
MaxBody = Annotated[float, typer.Option(min=0.001, help="MiB of a request's body.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")]
Batch = Annotated[int, typer.Option(min=1, help="The most queries that are solved together.")]
Batching = Annotated[
    bool, typer.Option(help="Solve requests together that arrive at the same time.")
]
Threads = Annotated[int, typer.Option(min=1, help="Batches at work at the same time.")]


def serve(
    index: IndexFolder,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    processes: Processes = 1,
    token_file: TokenFile = None,
    allowed_host: AllowedHost = None,
    cors_origin: CorsOrigin = None,
    max_body: MaxBody = 16.0,
    max_queries: Annotated[int, typer.Option(min=1, help="Queries of a request.")] = 1024,
    max_k: Annotated[int, typer.Option(min=1, help="Results of a query.")] = 1000,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait.")] = 256,
    timeout: Timeout = 30.0,
    batch: Batch = 64,
    batching: Batching = True,
    threads: Threads = 1,
    backend: Devices = "auto",
) -> None:
    """Answer searches over HTTP, for programs and for the explorer (docs/serving.md)."""
    running = _running()
    token = _token(token_file)
    chosen = ServerSettings(
        max_body=int(max_body * MEBIBYTE),
        max_queries=max_queries,
        max_k=max_k,
        max_waiting=max_waiting,
        timeout=timeout,
        batch=batch,
        batching=batching,
        threads=threads,
        token=token,
        allowed_hosts=_hosts(host, allowed_host or []),
        cors_origins=tuple(cors_origin or ()),
    )
    launch = running.Launch(os.path.abspath(index), backend, chosen)
    with running.bound(host, port) as listening:
        # Several processes open the index anew: this one only finds out if they can.
        app = running.launched_app(launch) if processes == 1 else None
        items = len(running.opened_index(launch.folder, backend) if app is None else _index(app))
        shown = f"[{host}]" if ":" in host else host
        where = f"http://{shown}:{listening.getsockname()[1]}"
        typer.echo(f"{items} items at {where}; what can be asked: {where}/docs", err=True)
        if token is None and host not in _OWN_ADDRESS:
            typer.echo("warning: no token: whoever reaches this address can search.", err=True)
        if app is None:
            running.run_processes(launch, listening, processes)
        else:
            running.run(app, listening, chosen)


def _index(app: Any) -> Any:
    return app.state.service.index


def _running() -> Any:
    """The module that runs servers, which needs the packages of an extra."""
    try:
        from hybrid_gpu.serve import running
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"serve needs Starlette and uvicorn; {install_line('serve')}"
        ) from missing
    return running


def _token(file: Path | None) -> str | None:
    """The token of a file, or of the environment; None if there is none."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{file}: holds no token.")
    return token


def _hosts(host: str, more: list[str]) -> tuple[str, ...]:
    """The names by which clients may call the server."""
    own = () if host in _ANY_ADDRESS else (f"[{host}]" if ":" in host else host,)
    return tuple(dict.fromkeys(name.lower() for name in (*LOOPBACK, *own, *more)))
