"""Does it rank better on real data, and what does it cost? The paper's experiments, recorded.

    python bench/paper_experiments.py [--folder DIR] [--queries 500] [--work DIR]

What ``hybrid-gpu paper`` measures on Fashion-MNIST: all 70,000 pictures, of which a seeded sample
of the test set are the queries and the others the database; classes say what is relevant. The
whole run is recorded, so that ``bench/report.py`` can draw its figures and fill its tables.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from common import record, show

from hybrid_gpu import datasets
from hybrid_gpu.lab.experiments import ExperimentSettings, run_experiments
from hybrid_gpu.lab.figures import sections_of

SEED = 5


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
    queries: Annotated[int, typer.Option(help="Pictures of the test set.")] = 500,
    spectral_rank: Annotated[int, typer.Option(help="Rank of FSR and FSRw.")] = 1000,
    work: Annotated[
        Path | None, typer.Option(help="Where a run that is interrupted goes on.")
    ] = None,
) -> None:
    benchmark = datasets.benchmark_of(datasets.fashion_mnist(folder), queries=queries, seed=SEED)
    settings = ExperimentSettings(spectral_rank=spectral_rank)
    with tempfile.TemporaryDirectory() as scratch:
        place = work or Path(scratch) / "run"
        run = run_experiments(benchmark, place, settings=settings, backend="numpy", progress=tell)
    tables = {part.name: part.rows for part in sections_of(run) if part.name.startswith("table")}
    told = {"items": benchmark.n, "queries": benchmark.m, "neighbors": settings.neighbors}
    show(benchmark.name, tables["table-2"])
    print(record("paper_experiments", told, tables["table-2"], run=run.to_json()))


def tell(stage: str, done: int, total: int) -> None:
    if stage == "measuring":
        print(f"{done} of {total}", end="\r", flush=True)


if __name__ == "__main__":
    typer.run(main)
