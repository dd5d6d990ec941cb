"""The command that answers query sets in many files: ``batch``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from hybrid_gpu.cli.common import IndexFolder, Json, Width, make_table, print_json, progress_bars
from hybrid_gpu.cli.searches import (
    Accuracy,
    Allowed,
    Alpha,
    Corrected,
    Excluded,
    ExpansionAlpha,
    ExpansionNeighbors,
    LeastScore,
    MethodName,
    Metric,
    Observed,
    Steps,
    Tolerance,
    accuracy_of,
)
from hybrid_gpu.distributed.engines import ENGINES
from hybrid_gpu.distributed.files_job import EngineName, rerank_files
from hybrid_gpu.distributed.reranker import Reranker
from hybrid_gpu.distributed.summary import FilesReport
from hybrid_gpu.files.item_lists import load_items
from hybrid_gpu.index.facts import index_facts
from hybrid_gpu.ranking.query_expansion import Expansion

_EXPANSION = Expansion()
_ERRORS_SHOWN = 20


def batch(
    index: IndexFolder,
    queries: Annotated[
        list[Path],
        typer.Argument(
            metavar="QUERIES...",
            help="Files of queries, .npy, .npz or Parquet, or folders of them.",
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the answers; of an earlier run, too.")
    ],
    k: Annotated[int, typer.Option("--k", "-k", help="Results per query.")] = 100,
    method: MethodName = "auto",
    accuracy: Accuracy = None,
    steps: Steps = None,
    rtol: Tolerance = None,
    alpha: Alpha = None,
    degree_correction: Corrected = False,
    query_neighbors: Observed = 5,
    expansion_neighbors: ExpansionNeighbors = _EXPANSION.neighbors,
    expansion_alpha: ExpansionAlpha = _EXPANSION.alpha,
    metric: Metric = "cosine",
    allowed: Allowed = None,
    exclude: Excluded = None,
    min_score: LeastScore = None,
    width: Width = None,
    descriptors: Annotated[
        str | None,
        typer.Option(help="Column of descriptors, or 'x*' for a column of each dimension."),
    ] = None,
    lists: Annotated[
        str | None, typer.Option(help="Columns of ids and similarities: ids,similarities.")
    ] = None,
    engine: Annotated[str, typer.Option(help=f"Who does it: {', '.join(ENGINES)}.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes; they share the cores.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler or a Ray cluster.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for a Dask scheduler that comes late.")
    ] = 60.0,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each process; its share if not given.")
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", help="auto, numpy or cupy: a GPU for each process.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Answer query sets in many files; go on where an earlier run stopped.

    Each file of queries gets a file of answers. A file that fails does not stop the others; the
    exit code is 1 then.
    """
    text = index_facts(index).keys == "text"
    options: dict[str, Any] = {
        "k": k,
        "method": method,
        "accuracy": accuracy_of(accuracy),
        "steps": steps,
        "rtol": rtol,
        "alpha": alpha,
        "degree_correction": degree_correction,
        "query_neighbors": None if query_neighbors == 0 else query_neighbors,
        "expansion": Expansion(expansion_neighbors, expansion_alpha),
        "metric": metric,
        "allowed": None if allowed is None else load_items(allowed, text=text),
        "exclude": None if exclude is None else load_items(exclude, text=text),
        "min_score": min_score,
        "batch": width,
        "descriptors": descriptors,
        "lists": None if lists is None else lists.split(","),
        "backend": backend,
        "threads": threads,
    }
    with progress_bars() as progress:
        report = rerank_files(
            Reranker(index, **options),
            queries,
            output,
            engine=cast(EngineName, engine),
            workers=workers,
            scheduler=scheduler,
            patience=patience,
            progress=progress,
        )
    if as_json:
        print_json(
            **{name: len(report.of(name)) for name in ("done", "kept", "failed", "left")},
            queries=report.queries,
            seconds=report.seconds,
            queries_per_second=report.queries_per_second,
            engine=report.engine,
            workers=report.workers,
            output=report.folder,
            shards=[dataclasses.asdict(shard) for shard in report.shards],
        )
    else:
        _show(report)
    if not report.complete:
        raise typer.Exit(1)


def _show(report: FilesReport) -> None:
    """What came out, for a person."""
    if report.slowest():
        table = make_table("slowest files", "queries", "seconds", "queries per second")
        for shard in report.slowest():
            rate = shard.queries / shard.seconds if shard.seconds else 0.0
            cells = f"{shard.queries:,}", f"{shard.seconds:.2f}", f"{rate:,.0f}"
            table.add_row(escape(_plain(Path(shard.input).name)), *cells)
        Console().print(table)
    typer.echo(
        f"{report.queries:,} queries in {len(report.of('done'))} files: {report.seconds:.1f} s, "
        f"{report.queries_per_second:,.0f} queries per second by {report.workers} "
        f"{'process' if report.workers == 1 else 'processes'} ({report.engine})."
    )
    if report.of("kept"):
        typer.echo(f"{len(report.of('kept'))} files had been answered before.")
    missed = sum(shard.missed for shard in report.shards)
    if missed:
        typer.echo(f"Note: {missed:,} queries missed their accuracy.")
    typer.echo(_plain(f"Answers and manifest.jsonl are in {report.folder}."))
    for shard in report.failed[:_ERRORS_SHOWN]:
        typer.echo(_plain(f"failed: {shard.input}: {shard.error}"), err=True)
    more = len(report.failed) - _ERRORS_SHOWN
    if more > 0:
        typer.echo(f"and {more} more failed; --json tells all.", err=True)
    if report.of("left"):
        left = len(report.of("left"))
        typer.echo(f"{left} files were not begun. Run again to go on.", err=True)


def _plain(text: str) -> str:
    """Text that any terminal takes: names of files may be no text, or hold commands for it."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
