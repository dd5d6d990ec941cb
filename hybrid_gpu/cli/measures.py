"""``evaluate``: how good a ranking is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from hybrid_gpu import evaluation
from hybrid_gpu.cli.common import Json, make_table, print_json, print_pairs, progress_bars
from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.ground_truth import load_ground_truth


def evaluate(
    ranking: Annotated[
        Path, typer.Argument(metavar="RANKING", help="Output of search, or ids as .npy.")
    ],
    *,
    labels: Annotated[Path | None, typer.Option(help="Class of every item.")] = None,
    query_labels: Annotated[Path | None, typer.Option(help="Class of every query.")] = None,
    relevant: Annotated[
        Path | None, typer.Option(help="JSON: a list of relevant ids for each query.")
    ] = None,
    ground_truth: Annotated[
        Path | None,
        typer.Option(help="Revisited Oxford/Paris: .pkl, .mat or .json; needs full rankings."),
    ] = None,
    exact: Annotated[Path | None, typer.Option(help="An exact ranking to compare with.")] = None,
    at: Annotated[
        list[int] | None,
        typer.Option(help="Depth of precision, recall and agreement; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a ranking by labels, relevant items, a ground truth, or an exact ranking."""
    if (labels is None) != (query_labels is None):
        raise ValueError("--labels and --query-labels go together.")
    if sum(path is not None for path in (labels, relevant, ground_truth)) > 1:
        raise ValueError("give one of --labels, --relevant and --ground-truth.")
    if labels is None and relevant is None and ground_truth is None and exact is None:
        raise ValueError("nothing to compare with: give --labels and --query-labels, "
                         "--relevant, --ground-truth, or --exact.")  # fmt: skip
    ids = load_array(ranking, name="ids")
    figures: dict[str, float] = {}
    setups: dict[str, dict[str, Any]] = {}
    with progress_bars() as progress:
        progress("evaluating", 0, 1)
        if labels is not None and query_labels is not None:
            figures |= _by_labels(ids, load_array(labels), load_array(query_labels), at)
        if relevant is not None:
            lists = _relevant_lists(relevant)
            figures["mAP"] = evaluation.mean_average_precision_of_lists(ids, lists)
            figures |= _recalls(ids, lists, at)
        if ground_truth is not None:
            setups = _by_ground_truth(ids, ground_truth, at)
        if exact is not None:
            figures |= _agreements(ids, load_array(exact, name="ids"), at)
    if as_json:
        print_json(queries=ids.shape[0], k=ids.shape[1], **figures, **setups)
        return
    typer.echo(f"{ids.shape[0]} queries, top {ids.shape[1]}")
    if setups:
        _print_setups(setups)
    if figures:
        print_pairs({name: _percent(value) for name, value in figures.items()})


def _by_labels(
    ids: NDArray[Any], labels: NDArray[Any], query_labels: NDArray[Any], at: list[int] | None
) -> dict[str, float]:
    figures = {"mAP": evaluation.mean_average_precision(ids, labels, query_labels)}
    for depth in at or ():
        precision = evaluation.precision(ids, labels, query_labels, at=depth)
        figures[f"precision@{depth}"] = precision
    return figures | _recalls(ids, _items_of_classes(labels, query_labels), at)


def _by_ground_truth(
    ids: NDArray[Any], path: Path, at: list[int] | None
) -> dict[str, dict[str, Any]]:
    """The figures of each setup; None where no query has a positive."""
    queries = load_ground_truth(path).queries
    scores = evaluation.revisited_protocol(ids, queries, at or (1, 5, 10))
    setups = {}
    for name in ("easy", "medium", "hard"):
        score = getattr(scores, name)
        values = {"mAP": score.mean_average_precision}
        values |= {f"mP@{depth}": value for depth, value in score.precision_at.items()}
        # JSON has no NaN.
        cells = {key: value if score.queries else None for key, value in values.items()}
        setups[name] = cells | {"queries": score.queries}
    return setups


def _print_setups(setups: dict[str, dict[str, Any]]) -> None:
    table = make_table("", *(name.capitalize() for name in setups))
    for key in setups["easy"]:
        values = [figures[key] for figures in setups.values()]
        shown = [str(value) if key == "queries" else _percent(value) for value in values]
        table.add_row(key, *shown)
    Console().print(table)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f} %"


def _items_of_classes(labels: NDArray[Any], query_labels: NDArray[Any]) -> list[NDArray[Any]]:
    # One array for each class, shared by its queries: lists of their own could fill the memory.
    items = {label: np.flatnonzero(labels == label) for label in np.unique(query_labels)}
    return [items[label] for label in query_labels]


def _relevant_lists(path: Path) -> list[list[int]]:
    if not path.is_file():
        reason = "a folder, not a JSON file" if path.is_dir() else "no such file"
        raise ValueError(f"{path}: {reason}.")
    try:
        lists = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{path}: not JSON, or damaged ({fault}).") from fault
    if not isinstance(lists, list) or not all(_is_id_list(line) for line in lists):
        raise ValueError(f"{path}: expected a list of lists of ids, one for each query.")
    return lists


def _is_id_list(line: Any) -> bool:
    return isinstance(line, list) and all(
        type(item) is int and -(2**63) <= item < 2**63 for item in line
    )


def _recalls(ids: NDArray[Any], relevant: Sequence[Any], at: list[int] | None) -> dict[str, float]:
    depths = _depths(at, ids.shape[1])
    return {f"recall@{depth}": evaluation.recall(ids, relevant, at=depth) for depth in depths}


def _agreements(ids: NDArray[Any], exact: NDArray[Any], at: list[int] | None) -> dict[str, float]:
    shorter = min(lists.shape[-1] for lists in (ids, exact))
    return {
        f"agreement@{depth}": evaluation.agreement(ids, exact, at=depth)
        for depth in _depths(at, shorter)
    }


def _depths(at: list[int] | None, longest: int) -> Iterable[int]:
    return at or sorted({min(depth, longest) for depth in (1, 10, 100)})
