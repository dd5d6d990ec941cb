"""``paper``: the experiments of the paper, on the user's data or on public data."""

from __future__ import annotations

import datetime
import importlib.util
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from hybrid_gpu import datasets
from hybrid_gpu.cli.common import (
    Device,
    Json,
    make_table,
    print_json,
    progress_bars,
    refuse_inside_index,
)
from hybrid_gpu.cli.pictures import draw_results
from hybrid_gpu.lab import plots
from hybrid_gpu.lab.benchmark import Benchmark
from hybrid_gpu.lab.experiments import Run, base_index, run_experiments
from hybrid_gpu.lab.figures import introduction_of, sections_of
from hybrid_gpu.lab.report import write_report
from hybrid_gpu.lab.report_pages import load_templates
from hybrid_gpu.lab.report_sections import ReportSection
from hybrid_gpu.lab.trials import ExperimentSettings
from hybrid_gpu.lab.wording import cell_text
from hybrid_gpu.validation import check_count

_DEFAULT = ExperimentSettings()
_QUERIES, _QUICK_QUERIES, _QUICK_ITEMS = 500, 100, 10_000
_NAMES = ("fashion-mnist", "mnist", "digits")
_GRID = "results.png"


def paper(
    data: Annotated[
        str,
        typer.Argument(
            metavar="[DATA]",
            help=f"{', '.join(_NAMES)}, or a folder of descriptors, queries and labels.",
        ),
    ] = "fashion-mnist",
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for measurements and report.")
    ] = Path("hybrid-gpu-paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer items and measurements: under 3 minutes.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the four IDX files of (fashion-)mnist.")
    ] = None,
    descriptors: Annotated[
        Path | None, typer.Option(help="Revisited Oxford or Paris: .mat or .npy.")
    ] = None,
    query_descriptors: Annotated[
        Path | None, typer.Option(help="Its queries, if they are in a file of their own.")
    ] = None,
    ground_truth: Annotated[
        Path | None, typer.Option(help="Its ground truth: .pkl, .mat or .json.")
    ] = None,
    distractors: Annotated[
        Path | None, typer.Option(help="Descriptors to append as distractors.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(help=f"Queries to sample from a test set; {_QUERIES}.")
    ] = None,
    neighbors: Annotated[
        int, typer.Option(help="Nearest neighbors of each item.")
    ] = _DEFAULT.neighbors,
    rank: Annotated[int, typer.Option(help="Eigenvectors of hybrid methods.")] = _DEFAULT.rank,
    spectral_rank: Annotated[
        int, typer.Option(help="Eigenvectors of spectral methods; 5000 in the paper.")
    ] = _DEFAULT.spectral_rank,
    knn: Annotated[
        str, typer.Option(help="k-NN search: auto, exact, faiss, cuvs or a FAISS factory.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the sample of queries.")] = 5,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the measurements of an earlier run.")
    ] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Run the paper's experiments and write a report of them.

    Call it again after an interruption, and it continues where it was.
    """
    # Faults show before the work, not after it.
    _check_output(output)
    if not no_plots and importlib.util.find_spec("matplotlib") is None:
        raise ImportError(f"pictures need matplotlib; pass --no-plots, or {plots.INSTALL}")
    load_templates()
    if (descriptors is None) != (ground_truth is None):
        raise ValueError("--descriptors and --ground-truth go together.")
    if descriptors is not None and ground_truth is not None:
        benchmark = datasets.revisited(
            descriptors, ground_truth, queries=query_descriptors, distractors=distractors
        )
    else:
        if queries is not None:
            check_count(queries, "queries")
        benchmark = _labeled(data, folder, queries, _QUICK_QUERIES if quick else _QUERIES, seed)
        if distractors is not None:
            extra = datasets.load_array(distractors)
            benchmark = datasets.with_distractors(benchmark, extra)
    settings = replace(
        _DEFAULT, neighbors=neighbors, rank=rank, spectral_rank=spectral_rank, knn=knn
    )
    if quick:
        benchmark, settings = _smaller(benchmark, _QUICK_ITEMS, seed), settings.quick()
    with progress_bars() as progress:
        run = run_experiments(
            benchmark,
            output / "run",
            settings=settings,
            restart=restart,
            progress=progress,
            backend=backend,
        )
        sections = sections_of(run)
        if not no_plots and benchmark.image_shape is not None and benchmark.labels is not None:
            index = base_index(benchmark, output / "run", backend=run.backend, progress=progress)
            draw_results(index, benchmark, output / _GRID)
            # On the first page, with the table of the result.
            sections[0] = replace(sections[0], image=_GRID)
        report = write_report(
            output,
            title=f"The paper's experiments on {benchmark.name}",
            introduction=introduction_of(run),
            sections=sections,
            facts=_facts(run),
            draw=not no_plots,
        )
    if as_json:
        print_json(report=str(report.html), run=run.to_json())
        return
    _print_methods(run, sections[0])
    typer.echo(f"Report: {report.html}\n{report.markdown.name}, tables and pictures are beside it.")


def _check_output(folder: Path) -> None:
    """Refuse a folder with other files than a report of ours, which would be replaced."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{folder}: not a folder; a report is a folder of files.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "run" / "run.json").is_file():
        raise ValueError(
            f"{folder}: holds other things than a report of ours; choose a new or empty folder."
        )
    refuse_inside_index(folder)


def _labeled(
    data: str, folder: Path | None, queries: int | None, default: int, seed: int
) -> Benchmark:
    """A benchmark with labels, by the name of a data set or from a folder."""
    check_count(seed, "seed", low=0)
    if data in ("fashion-mnist", "mnist"):
        load = datasets.fashion_mnist if data == "fashion-mnist" else datasets.mnist
        try:
            split = load(folder)
        except FileNotFoundError as missing:
            raise FileNotFoundError(
                f"{missing} Or try it on data that come with the package: hybrid-gpu paper digits"
            ) from missing
        return datasets.benchmark_of(split, queries=queries or default, seed=seed)
    if folder is not None:
        raise ValueError(f"--folder is for fashion-mnist and mnist; got {data!r} with it.")
    if data == "digits":
        digits = datasets.digits()
        split = datasets.split_queries(digits, queries or min(default, digits.n // 4), seed)
        return datasets.benchmark_of(split, queries=split.queries.n, seed=seed)
    if not Path(data).is_dir():
        raise ValueError(f"DATA must be one of {', '.join(_NAMES)}, or a folder; got {data!r}.")
    return datasets.load_folder(data)


def _smaller(benchmark: Benchmark, items: int, seed: int) -> Benchmark:
    """A benchmark with fewer items; one with a ground truth loses distractors only."""
    if benchmark.n <= items:
        return benchmark
    own_items = benchmark.n - benchmark.distractors
    if benchmark.ground_truth is not None or own_items <= items:
        kept = np.arange(max(own_items, items))
        distractors = max(0, items - own_items)
    else:
        kept = np.sort(np.random.default_rng(seed).permutation(own_items)[:items])
        distractors = 0
    return replace(
        benchmark,
        descriptors=benchmark.descriptors[kept],
        labels=None if benchmark.labels is None else benchmark.labels[kept],
        distractors=distractors,
    )


def _facts(run: Run) -> dict[str, str]:
    machine = run.machine
    return {
        "benchmark": str(run.benchmark["name"]),
        "fingerprint": str(run.benchmark["fingerprint"]),
        "backend": run.backend,
        "machine": f"{machine['processor']}, {machine['cores']} cores, {machine['system']}",
        "versions": ", ".join(
            f"{name} {machine[name]}" for name in ("hybrid-gpu", "python", "numpy", "scipy")
        ),
        "settings": repr(run.settings),
        "written": datetime.date.today().isoformat(),
    }


def _print_methods(run: Run, methods: ReportSection) -> None:
    """Print the first table of the report, with the columns that fit into a terminal."""
    facts = run.benchmark
    typer.echo(f"{facts['name']}: {facts['items']:,} items, {facts['queries']:,} queries.")
    scores = [
        name for name in ("mAP", "P@100", "mAP medium", "mAP hard") if name in methods.rows[0]
    ]
    headings = {name: name.removeprefix("mAP ") for name in scores}
    headings |= {"agreement@100": "agreement", "ms per query": "ms", "MB": "MB"}
    table = make_table("method", *headings.values())
    for row in methods.rows:
        table.add_row(row["method"], *(cell_text(row[name]) for name in headings))
    Console().print(table)
