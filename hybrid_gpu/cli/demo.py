"""``demo``: every method on handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import rich.filesize
import typer
from rich.console import Console

from hybrid_gpu.cli.common import (
    Json,
    NeighborCount,
    check_writable,
    make_table,
    neighbor_count,
    print_json,
    progress_bars,
)
from hybrid_gpu.cli.exploring import EXPLORER_LINE
from hybrid_gpu.cli.pictures import draw_results
from hybrid_gpu.datasets import Benchmark, benchmark_of, digits, split_queries
from hybrid_gpu.explore.collection import DEMO_QUERIES, DEMO_SEED
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.lab import plots
from hybrid_gpu.lab.comparison import Measurement, MethodComparison, compare_methods
from hybrid_gpu.validation import check_count

_DEMO_PICTURE = Path("hybrid-gpu-demo.png")


def demo(
    queries: Annotated[int, typer.Option(help="Digits held out as queries.")] = DEMO_QUERIES,
    neighbors: NeighborCount = "auto",
    rank: Annotated[int, typer.Option(help="Eigenvectors to keep.")] = 100,
    plot: Annotated[
        Path | None, typer.Option(help=f"File of the picture; {_DEMO_PICTURE}.")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    as_json: Json = False,
) -> None:
    """Compare every method on handwritten digits; takes seconds."""
    if plot is not None and no_plot:
        raise ValueError("give --plot or --no-plot, not both.")
    if not no_plot:
        check_writable(plot or _DEMO_PICTURE)
    if plot is not None:
        plots.check_picture(plot)
    count = neighbor_count(neighbors)
    data = digits()
    split = split_queries(data, check_count(queries, "queries", high=data.n - 1), DEMO_SEED)
    benchmark = benchmark_of(split, queries=queries, seed=DEMO_SEED)
    with progress_bars() as progress:
        comparison = compare_methods(benchmark, neighbors=count, rank=rank, progress=progress)
    if not as_json:
        _print_comparison(comparison, benchmark)
    # Unless the user asked for a picture, a missing matplotlib is no fault.
    picture = None
    if not no_plot:
        picture = _draw(comparison.index, benchmark, plot or _DEMO_PICTURE)
    if as_json:
        print_json(
            items=benchmark.n,
            queries=benchmark.m,
            methods=[_plain(name, entry) for name, entry in comparison.measurements.items()],
            picture=None if picture is None else str(picture),
        )
        return
    if picture is not None:
        typer.echo(f"Picture: {picture}")
    typer.echo("Next, your own data: hybrid-gpu build descriptors.npy my-index")
    typer.echo(f"Or see why: {EXPLORER_LINE}")


def _plain(name: str, measurement: Measurement) -> dict[str, Any]:
    return {
        "method": name,
        "mean_average_precision": measurement.quality["mAP"] / 100,
        "milliseconds_per_query": measurement.milliseconds,
        "memory_bytes": measurement.bytes,
        "agreement_at_100": measurement.agreement,
    }


def _print_comparison(comparison: MethodComparison, benchmark: Benchmark) -> None:
    """Print a table of all methods."""
    typer.echo(
        f"Handwritten digits: {benchmark.n} images, {benchmark.m} held-out queries, "
        f"{comparison.index.backend.name}."
    )
    table = make_table("method", "mAP %", "ms/query", "memory", "agreement@100")
    for name, measurement in comparison.measurements.items():
        if name == "exact":
            table.add_section()
        table.add_row(
            name,
            f"{measurement.quality['mAP']:.1f}",
            f"{measurement.milliseconds:.2f}",
            rich.filesize.decimal(measurement.bytes),
            f"{measurement.agreement:.3f}",
        )
    Console().print(table)


def _draw(index: DiffusionIndex, benchmark: Benchmark, path: Path) -> Path | None:
    """Draw the picture; None, and a hint, if matplotlib is missing."""
    try:
        draw_results(index, benchmark, path)
    except ImportError:
        typer.echo(f"For a picture of it, {plots.INSTALL}", err=True)
        return None
    return path
