"""Commands that rank: ``search`` and ``rerank``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from hybrid_gpu.cli.common import (
    Devices,
    IndexFolder,
    Json,
    Width,
    check_writable,
    make_table,
    open_replicas,
    print_json,
    progress_bars,
)
from hybrid_gpu.files.array_files import array_names, load_array
from hybrid_gpu.files.item_lists import load_items
from hybrid_gpu.files.writing import replacing
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.replicas import Replicas
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.validation import METRICS

_DEFAULT_K = 100


def _check_output(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in ("", ".npz"):
        raise ValueError(
            f"{path}: ids and scores are written as .npz, not {path.suffix}. Name a file such as "
            f"{path.with_suffix('.npz').name}."
        )
    return check_writable(path)


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", callback=_check_output, help="Write ids and scores, .npz."),
]
Results = Annotated[
    int | None, typer.Option("--k", "-k", help="Results per query; 100, or all if fewer.")
]
MethodName = Annotated[str, typer.Option("--method", help=f"Method: auto, {', '.join(METHODS)}.")]
Accuracy = Annotated[
    str | None,
    typer.Option(help="Residual at which a query stops: a number, or 'ranking' (3e-3 or less)."),
]
Steps = Annotated[
    int | None, typer.Option(help="Solver steps; with --accuracy or --rtol, at most as many.")
]
Tolerance = Annotated[
    float | None,
    typer.Option("--rtol", help="Like --accuracy, but it is an error not to reach it."),
]
Alpha = Annotated[
    float | None, typer.Option(help="Another restart parameter than the index was built with.")
]
Corrected = Annotated[
    bool,
    typer.Option("--degree-correction", help="Divide scores by the root of the items' degrees."),
]
Observed = Annotated[
    int, typer.Option("--query-neighbors", help="Items that diffusion starts from; 0: all.")
]
ExpansionNeighbors = Annotated[int, typer.Option(help="Neighbors that alpha-qe adds to a query.")]
ExpansionAlpha = Annotated[float, typer.Option(help="Exponent of their similarities.")]
Metric = Annotated[
    str, typer.Option("--metric", help=f"What SIMILARITIES are: {', '.join(METRICS)}.")
]
_ITEMS = "a mask or ids (keys, if the index has some) as .npy, or text with one a line."
Allowed = Annotated[Path | None, typer.Option(help=f"Items that results may be: {_ITEMS}")]
Excluded = Annotated[Path | None, typer.Option(help="Items that results may not be, likewise.")]
LeastScore = Annotated[float | None, typer.Option(help="Leave out results that score less.")]
_EXPANSION = Expansion()


def search(
    index: IndexFolder,
    queries: Annotated[
        Path, typer.Argument(metavar="QUERIES", help="Array of shape (m, d), .npy or .npz.")
    ],
    *,
    output: Output = None,
    k: Results = None,
    method: MethodName = "auto",
    accuracy: Accuracy = None,
    steps: Steps = None,
    rtol: Tolerance = None,
    alpha: Alpha = None,
    degree_correction: Corrected = False,
    query_neighbors: Observed = 5,
    expansion_neighbors: ExpansionNeighbors = _EXPANSION.neighbors,
    expansion_alpha: ExpansionAlpha = _EXPANSION.alpha,
    allowed: Allowed = None,
    exclude: Excluded = None,
    min_score: LeastScore = None,
    batch: Width = None,
    backend: Devices = "auto",
    as_json: Json = False,
) -> None:
    """Rank the database for query descriptors."""
    vectors = load_array(queries)
    with progress_bars() as progress:
        opened = open_replicas(index, backend, progress)
        settings = _settings(
            opened,
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            alpha=alpha,
            degree_correction=degree_correction,
            query_neighbors=query_neighbors,
            expansion=Expansion(expansion_neighbors, expansion_alpha),
            allowed=allowed,
            exclude=exclude,
            min_score=min_score,
            batch=batch,
        )
        ranking = opened.search(vectors, **settings, progress=progress)
    _deliver(ranking, output, as_json)


def rerank(
    index: IndexFolder,
    ids: Annotated[
        Path, typer.Argument(metavar="IDS", help="Ids of each query's results, shape (m, q).")
    ],
    similarities: Annotated[
        Path,
        typer.Argument(metavar="SIMILARITIES", help="Their cosines, or --metric; shape (m, q)."),
    ],
    *,
    output: Output = None,
    metric: Metric = "cosine",
    k: Results = None,
    method: MethodName = "auto",
    accuracy: Accuracy = None,
    steps: Steps = None,
    rtol: Tolerance = None,
    alpha: Alpha = None,
    degree_correction: Corrected = False,
    query_neighbors: Observed = 5,
    expansion_neighbors: ExpansionNeighbors = _EXPANSION.neighbors,
    expansion_alpha: ExpansionAlpha = _EXPANSION.alpha,
    allowed: Allowed = None,
    exclude: Excluded = None,
    min_score: LeastScore = None,
    batch: Width = None,
    backend: Devices = "auto",
    as_json: Json = False,
) -> None:
    """Rank the database for the results of another search engine.

    The output of search --method nn serves as both arguments too.
    """
    values = load_array(similarities, name="scores")
    with progress_bars() as progress:
        opened = open_replicas(index, backend, progress)
        settings = _settings(
            opened,
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            alpha=alpha,
            degree_correction=degree_correction,
            query_neighbors=query_neighbors,
            expansion=Expansion(expansion_neighbors, expansion_alpha),
            allowed=allowed,
            exclude=exclude,
            min_score=min_score,
            batch=batch,
        )
        settings["metric"] = metric
        lists = _given_ids(opened, ids)
        ranking = opened.rerank(lists, values, **settings, progress=progress)
    _deliver(ranking, output, as_json)


def _settings(
    index: DiffusionIndex | Replicas,
    *,
    k: int | None,
    method: str,
    accuracy: str | None,
    steps: int | None,
    rtol: float | None,
    alpha: float | None,
    degree_correction: bool,
    query_neighbors: int,
    expansion: Expansion,
    allowed: Path | None,
    exclude: Path | None,
    min_score: float | None,
    batch: int | None,
) -> dict[str, Any]:
    """The options of the command line as keywords of the library's search."""
    return {
        "k": min(_DEFAULT_K, index.n) if k is None else k,
        "method": method,
        "accuracy": accuracy_of(accuracy),
        "steps": steps,
        "rtol": rtol,
        "alpha": alpha,
        "degree_correction": degree_correction,
        "query_neighbors": None if query_neighbors == 0 else query_neighbors,
        "expansion": expansion,
        "allowed": _items(index, allowed),
        "exclude": _items(index, exclude),
        "min_score": min_score,
        "batch": batch,
    }


def _items(index: DiffusionIndex | Replicas, path: Path | None) -> Any:
    """The items of a file, as the index names them."""
    if path is None:
        return None
    return load_items(path, text=index.keys is not None and index.keys.dtype == object)


def _given_ids(index: DiffusionIndex | Replicas, path: Path) -> Any:
    """The results of another engine, or those that ``_deliver`` wrote, by keys if it has some."""
    if index.keys is None or "keys" not in array_names(path):
        return load_array(path, name="ids")
    keys = load_array(path, name="keys")
    if keys.dtype.kind != "U":
        return keys
    keys = keys.astype(object)
    keys[load_array(path, name="ids") < 0] = None
    return keys


def accuracy_of(option: str | None) -> str | float | None:
    """The option as a number if it is one; the library checks other texts."""
    if option is None:
        return None
    try:
        return float(option)
    except ValueError:
        return option


def _deliver(ranking: Ranking, output: Path | None, as_json: bool) -> None:
    """Write a ranking to its file, or show it."""
    if output is not None:
        arrays: dict[str, Any] = {"ids": ranking.ids, "scores": ranking.scores}
        if ranking.known is not None:
            # Strings of one width, as NumPy has them: pickled ones would not be read again.
            keys = ranking.keys
            text = ranking.known.text
            arrays["keys"] = np.where(ranking.ids < 0, "", keys).astype("U") if text else keys
        with replacing(output) as file:
            np.savez(file, **arrays)
    m, k = ranking.ids.shape
    if as_json:
        where: dict[str, Any] = {"output": str(output)}
        if output is None:
            # JSON has no infinity: null beside an id of -1.
            scores = [
                [None if item < 0 else float(score) for item, score in zip(*line, strict=True)]
                for line in zip(ranking.ids, ranking.scores, strict=True)
            ]
            where = {"ids": ranking.ids.tolist(), "scores": scores}
            if ranking.known is not None:
                where["keys"] = ranking.keys.tolist()
        print_json(queries=m, k=k, report=_report(ranking), **where)
        return
    if output is None:
        _print_first_results(ranking)
    report = ranking.report
    reached = ""
    if report.residuals is not None:
        reached = f"residuals up to {np.max(report.residuals):.1e}, "
    typer.echo(
        f"{m} queries, top {k} by {report.method}: {report.steps} steps, {reached}"
        f"{ranking.report.total_seconds:.3f} s on {report.backend}."
    )
    for note in report.notes:
        typer.echo(f"Note: {note}.")
    typer.echo("Keep all of it with --output FILE.npz." if output is None else f"Wrote {output}.")


def _report(ranking: Ranking) -> dict[str, Any]:
    report = ranking.report
    return {
        "method": report.method,
        "steps": report.steps,
        "accuracy": report.accuracy,
        "notes": list(report.notes),
        "worst_residual": None if report.residuals is None else float(np.max(report.residuals)),
        "seconds": dict(report.seconds),
        "backend": report.backend,
        "batch": report.batch,
    }


def _print_first_results(ranking: Ranking, *, queries: int = 5, results: int = 5) -> None:
    ids, keys, scores = (
        part[:queries, :results] for part in (ranking.ids, ranking.keys, ranking.scores)
    )
    table = make_table("query", *(f"{place + 1}." for place in range(ids.shape[1])))
    for query, lines in enumerate(zip(ids, keys, scores, strict=True)):
        results_of = zip(*lines, strict=True)
        cells = [f"{key}\n{score:.4g}" if item >= 0 else "-" for item, key, score in results_of]
        table.add_row(str(query), *map(escape, cells))
    table.caption = f"{'id' if ranking.known is None else 'key'}, and its score below"
    Console().print(table)
