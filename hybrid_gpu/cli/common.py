"""What the commands share: faults, options, tables and progress."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import rich.progress
import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

import hybrid_gpu
from hybrid_gpu.backends import select_backend
from hybrid_gpu.choices import NeighborCount as CheckedCount
from hybrid_gpu.errors import HybridGpuError
from hybrid_gpu.graph.neighbor_count import AUTO
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import load_index
from hybrid_gpu.index.replicas import Replicas
from hybrid_gpu.index.storage import is_ours
from hybrid_gpu.progress import Progress

_USER_FAULTS = (
    ValueError,
    TypeError,
    HybridGpuError,
    OSError,
    ImportError,
    MemoryError,
    RecursionError,
    OverflowError,
)
# The parent of BadParameter is every kind of wrong usage; typer gives it no public name.
_USAGE_FAULT: Any = typer.BadParameter.__base__

IndexFolder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[str, typer.Option("--backend", help="auto, numpy or cupy.")]
Devices = Annotated[
    str, typer.Option("--backend", help="auto, numpy or cupy; several GPUs: cupy:0,cupy:1.")
]
NEIGHBORS: Any = typer.Option(help="Nearest neighbors of each item, or auto, from the data.")
NeighborCount = Annotated[str, NEIGHBORS]
Width = Annotated[int | None, typer.Option("--batch", help="Queries solved at the same time.")]


class _Commands(TyperGroup):
    """The group of all commands; turns faults into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # The reader of our output went away: typer ends quietly.
        except _USAGE_FAULT as fault:
            message = fault.format_message().rstrip(".")
            # The name of a command that does not exist is not among the known ones.
            command = ["hybrid-gpu", ctx.invoked_subcommand or "", "--help"]
            self._refuse(f"{message}. See {' '.join(filter(None, command))}.", fault)
        except _USER_FAULTS as fault:
            # Python's own MemoryError has no message.
            silent = "not enough memory" if isinstance(fault, MemoryError) else type(fault).__name__
            self._refuse(" ".join(_wording(fault).split()) or silent, fault)
        except KeyboardInterrupt as stop:
            typer.echo("interrupted.", err=True)
            raise typer.Exit(130) from stop

    def _refuse(self, message: str, fault: Exception) -> NoReturn:
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2) from fault


def _wording(fault: Exception) -> str:
    """The message of a fault; for one of the system, the file and the reason without a number."""
    if isinstance(fault, OSError) and fault.filename is not None and fault.strerror:
        return f"{os.fsdecode(fault.filename)}: {fault.strerror}."
    return str(fault)


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"hybrid-gpu {hybrid_gpu.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Re-rank vector search by diffusion on a k-NN graph."""


def refuse_inside_index(path: Path) -> None:
    """Refuse a path inside the folder of an index: with a foreign file, it could not be saved."""
    above = Path(os.path.realpath(path.parent))
    for folder in (above, *above.parents):
        if is_ours(folder):
            raise ValueError(
                f"{path}: {folder} is an index, and holds its own files only; name another folder."
            )


def check_writable(path: Path | None) -> Path | None:
    """Refuse an output file that cannot be written, before the work for it begins."""
    if path is not None and path.is_dir():
        raise ValueError(f"{path}: a folder; name a file.")
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}.")
    # The file is replaced, not written to: a device or a link would be lost.
    if path is not None and os.path.lexists(path):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError(f"{path}: not a plain file; name another one.")
    if path is not None:
        refuse_inside_index(path)
    return path


def open_index(path: Path, backend: str, progress: Progress) -> DiffusionIndex:
    """Load the index of a folder, and report that as a stage of progress."""
    progress("opening", 0, 1)
    index = load_index(path, backend=select_backend(backend))
    progress("opening", 1, 1)
    return index


def open_replicas(path: Path, backends: str, progress: Progress) -> DiffusionIndex | Replicas:
    """Load the index of a folder onto a device, or onto several that are named with commas."""
    first, *others = backends.split(",")
    if not others:
        return open_index(path, first, progress)
    return Replicas(open_index(path, "numpy", progress), [first, *others])


def neighbor_count(neighbors: str) -> CheckedCount:
    """The number of neighbors that was typed, or ``"auto"``."""
    if neighbors == AUTO:
        return "auto"
    if not re.fullmatch("[0-9]{1,18}", neighbors):
        raise ValueError(f"--neighbors must be a number or auto; got {neighbors!r}.")
    return int(neighbors)


def make_table(*headings: str) -> Table:
    """An empty table: the first column is aligned left, the others right."""
    table = Table()
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print names and their values, one pair per line."""
    table = make_table("", "")
    table.show_header = False
    for name, value in pairs.items():
        table.add_row(name.replace("_", " "), value)
    Console().print(table)


def print_json(**values: Any) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(values))


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A callback that draws progress bars on stderr; it does nothing if that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    tasks: dict[str, rich.progress.TaskID] = {}
    with rich.progress.Progress(console=Console(stderr=True), transient=True) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            # A stage of one step has no progress to show: without a total, its bar pulses.
            bar_total = total if total > 1 or done == total else None
            bars.update(tasks[stage], completed=done, total=bar_total)

        yield show
