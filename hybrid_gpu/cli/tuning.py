"""``tune``: which graph, alpha and method rank a database best."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid_gpu.cli.common import Device, Json, check_writable, print_json, progress_bars
from hybrid_gpu.cli.measures import relevant_lists
from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.lab import plots
from hybrid_gpu.lab.examples import MEASURES
from hybrid_gpu.lab.tuning import Tuning
from hybrid_gpu.lab.tuning import tune as tune_settings


def tune(
    descriptors: Annotated[
        Path, typer.Argument(metavar="DESCRIPTORS", help="Array of shape (n, d), .npy or .npz.")
    ],
    *,
    labels: Annotated[
        Path | None,
        typer.Option(help="Class of every item; -1 or '' where it is not known. Dozens suffice."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Instead of labels: items (m,), or descriptors (m, d).")
    ] = None,
    relevant: Annotated[
        Path | None, typer.Option(help="JSON: a list of relevant ids for each query.")
    ] = None,
    measure: Annotated[str, typer.Option(help=f"One of {', '.join(MEASURES)}.")] = "mAP",
    sample: Annotated[int, typer.Option(help="Items that serve as queries, at most.")] = 200,
    knn: Annotated[
        str, typer.Option(help="k-NN search: auto, exact, faiss, cuvs or a FAISS factory.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="Type of numbers: float32 or float64.")] = "float32",
    plot: Annotated[Path | None, typer.Option(help="File of a picture, .png or .svg.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Choose neighbors, gamma, alpha and method by labels, by lists, or by the data alone."""
    if plot is not None:
        check_writable(plot)
        plots.check_picture(plot)
    vectors = load_array(descriptors)
    words: dict[str, Any] = {"dtype": dtype, "backend": backend}  # the library checks them
    with progress_bars() as progress:
        found = tune_settings(
            vectors,
            None if labels is None else load_array(labels),
            queries=None if queries is None else load_array(queries),
            relevant=None if relevant is None else relevant_lists(relevant),
            measure=measure,
            sample=sample,
            knn=knn,
            seed=seed,
            progress=progress,
            **words,
        )
    if plot is not None:
        found.plot(plot)
    if as_json:
        print_json(**_plain(found), picture=None if plot is None else str(plot))
        return
    typer.echo(repr(found))
    typer.echo(f"\nThe same from the command line:\n{_command(found, descriptors)}")
    if plot is not None:
        typer.echo(f"Picture: {plot}")


def _plain(found: Tuning) -> dict[str, Any]:
    return {
        "measure": found.measure,
        "source": found.source,
        "best": asdict(found.best),
        "default": asdict(found.default),
        "expected": asdict(found.expected),
        "by_default": asdict(found.by_default),
        "settings": [asdict(row) for row in found.rows],
    }


def _command(found: Tuning, descriptors: Path) -> str:
    """The commands that build and search an index in the best way."""
    best, graph, how = found.best, "", ""
    fixed = "".join(f" --{name} {shlex.quote(value)}" for name, value in found.fixed.items())
    if best != found.default:
        graph = "".join(f" --{name} {value:g}" for name, value in best.build.items())
        how = f" --method {best.method}" if not best.build else ""
        how += " --degree-correction" if best.degree_correction else ""
    return (
        f"hybrid-gpu build {shlex.quote(str(descriptors))} my-index{fixed}{graph}\n"
        f"hybrid-gpu search my-index queries.npy{how}"
    )
