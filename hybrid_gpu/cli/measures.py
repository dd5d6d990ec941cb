"""``evaluate``: how good a ranking is, how sure that is, and whether it beats another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from hybrid_gpu import evaluation
from hybrid_gpu.cli.common import Json, make_table, print_json, progress_bars
from hybrid_gpu.evaluation.averages import mean_of
from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.ground_truth import load_ground_truth

# Each measure by labels and by lists.
_WHOLE = {
    "mAP": (evaluation.mean_average_precision, evaluation.mean_average_precision_of_lists),
    "MRR": (evaluation.mean_reciprocal_rank, evaluation.mean_reciprocal_rank_of_lists),
}
_PRECISION = (evaluation.precision, evaluation.precision_of_lists)
_NDCG = (evaluation.ndcg, evaluation.ndcg_of_lists)
_SUCCESS = (evaluation.success, evaluation.success_of_lists)


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
    gains: Annotated[
        Path | None, typer.Option(help="JSON: what each relevant item is worth, for ndcg.")
    ] = None,
    ground_truth: Annotated[
        Path | None,
        typer.Option(help="Revisited Oxford/Paris: .pkl, .mat or .json; needs full rankings."),
    ] = None,
    exact: Annotated[Path | None, typer.Option(help="An exact ranking to compare with.")] = None,
    ignore: Annotated[
        Path | None,
        typer.Option(help="Junk: ids for each query that do not count, as .json lists or .npy."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another ranking of the same queries, to be beaten.")
    ] = None,
    at: Annotated[
        list[int] | None,
        typer.Option(help="Depth of the measures that have one; repeatable."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
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
    if gains is not None and relevant is None:
        raise ValueError("--gains are those of relevant items: give --relevant too.")
    if ignore is not None and labels is None and relevant is None:
        raise ValueError("--ignore goes with --labels or --relevant.")
    ids = load_array(ranking, name="ids")
    with progress_bars() as progress:
        progress("evaluating", 0, 1)
        truth = _Truth(
            labels=_read(labels, load_array),
            query_labels=_read(query_labels, load_array),
            relevant=_read(relevant, relevant_lists),
            gains=_read(gains, _gain_lists),
            judged=_read(ground_truth, lambda path: load_ground_truth(path).queries),
            exact=_read(exact, lambda path: load_array(path, name="ids")),
            junk=_read(ignore, _junk),
        )
        found = _measure(ids, truth, at)
        intervals = {name: _interval(value, confidence) for name, value in found.values.items()}
        rival = None if against is None else load_array(against, name="ids")
        beaten = None if rival is None else _beaten(found, _measure(rival, truth, at), confidence)
    if as_json:
        _print_as_json(ids, found, intervals, beaten, confidence)
        return
    typer.echo(f"{ids.shape[0]} queries, top {ids.shape[1]}")
    heading = f"{100 * confidence:g} % interval"
    if found.setups:
        _print_setups(found.setups, intervals, heading)
    if found.figures:
        _print_figures(found.figures, intervals, heading)
    if beaten is not None:
        _print_comparisons(beaten, heading)


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    """What rankings are measured by; None where it was not given."""

    labels: Any
    query_labels: Any
    relevant: Any
    gains: Any
    judged: Any
    exact: Any
    junk: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """The values of each query by measure, their means, and the setups of a ground truth."""

    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    setups: dict[str, dict[str, Any]] = field(default_factory=dict)


def _read(path: Path | None, reader: Callable[[Path], Any]) -> Any:
    return None if path is None else reader(path)


def _measure(ids: NDArray[Any], truth: _Truth, at: list[int] | None) -> _Measured:
    values: dict[str, NDArray[np.float64]] = {}
    if truth.labels is not None or truth.relevant is not None:
        values |= _by_relevance(ids, truth, at)
    if truth.exact is not None:
        values |= _agreements(ids, truth.exact, at)
    found = _Measured(dict(values), {name: mean_of(value) for name, value in values.items()})
    if truth.judged is not None:
        scores = evaluation.revisited_protocol(ids, truth.judged, at or (1, 5, 10))
        for name in ("easy", "medium", "hard"):
            score = getattr(scores, name)
            found.setups[name] = _cells(score)
            found.values[f"{name} mAP"] = score.average_precisions
    return found


def _by_relevance(
    ids: NDArray[Any], truth: _Truth, at: list[int] | None
) -> dict[str, NDArray[np.float64]]:
    """The values of each query by labels or by lists."""
    by_labels = truth.labels is not None
    data = (truth.labels, truth.query_labels) if by_labels else (truth.relevant,)

    def values(measures: tuple[Any, Any], **options: Any) -> NDArray[np.float64]:
        measure = measures[0] if by_labels else measures[1]
        return evaluation.per_query(measure, ids, *data, ignore=truth.junk, **options)

    found = {name: values(measures) for name, measures in _WHOLE.items()}
    for depth in at or ():
        found[f"precision@{depth}"] = values(_PRECISION, at=depth)
    depths = _depths(at, _shortest(ids, truth.junk))
    lists = _items_of_classes(*data) if by_labels else truth.relevant
    for depth in depths:
        found[f"recall@{depth}"] = evaluation.per_query(
            evaluation.recall, ids, lists, at=depth, ignore=truth.junk
        )
    worth = {} if truth.gains is None else {"gains": truth.gains}
    found |= {f"ndcg@{depth}": values(_NDCG, at=depth, **worth) for depth in depths}
    return found | {f"success@{depth}": values(_SUCCESS, at=depth) for depth in depths}


def _shortest(ids: NDArray[Any], junk: Any) -> int:
    """How many results every ranking has beside its junk."""
    if junk is None:
        return int(ids.shape[1])
    pairs = zip(ids, junk, strict=True)
    shortest = min(int(np.count_nonzero(~np.isin(line, items))) for line, items in pairs)
    if not shortest:
        raise ValueError("a ranking holds nothing but ignored items: rank more items.")
    return shortest


def _cells(score: evaluation.Score) -> dict[str, Any]:
    """The figures of a setup; None where no query has a positive."""
    values = {"mAP": score.mean_average_precision}
    values |= {f"mP@{depth}": value for depth, value in score.precision_at.items()}
    # JSON has no NaN.
    cells = {key: value if score.queries else None for key, value in values.items()}
    return cells | {"queries": score.queries}


def _interval(values: NDArray[np.float64], confidence: float) -> evaluation.Interval | None:
    """None where fewer than two queries count: they do not tell how values vary."""
    if np.count_nonzero(~np.isnan(values)) < 2:
        return None
    return evaluation.bootstrap(values, confidence=confidence)


def _beaten(
    found: _Measured, rival: _Measured, confidence: float
) -> dict[str, evaluation.Comparison]:
    """Comparisons by every measure that both rankings have and that two queries tell."""
    return {
        name: evaluation.compare(values, rival.values[name], confidence=confidence)
        for name, values in found.values.items()
        if name in rival.values and np.count_nonzero(~np.isnan(values)) > 1
    }


def _print_as_json(
    ids: NDArray[Any],
    found: _Measured,
    intervals: Mapping[str, evaluation.Interval | None],
    beaten: Mapping[str, evaluation.Comparison] | None,
    confidence: float,
) -> None:
    bounds = {
        name: interval and [interval.low, interval.high] for name, interval in intervals.items()
    }
    compared = (
        None
        if beaten is None
        else {
            name: {
                "difference": comparison.difference.mean,
                "interval": [comparison.difference.low, comparison.difference.high],
                "wins": comparison.wins,
                "losses": comparison.losses,
                "ties": comparison.ties,
                "p_value": comparison.p_value,
            }
            for name, comparison in beaten.items()
        }
    )
    print_json(
        queries=ids.shape[0],
        k=ids.shape[1],
        **found.figures,
        **found.setups,
        confidence=confidence,
        intervals=bounds,
        **({} if compared is None else {"against": compared}),
    )


def _print_setups(
    setups: Mapping[str, Mapping[str, Any]],
    intervals: Mapping[str, evaluation.Interval | None],
    heading: str,
) -> None:
    table = make_table("", *(name.capitalize() for name in setups))
    for key in setups["easy"]:
        values = [figures[key] for figures in setups.values()]
        shown = [str(value) if key == "queries" else _percent(value) for value in values]
        table.add_row(key, *shown)
        if key == "mAP":
            table.add_row(heading, *(_bounds(intervals[f"{name} mAP"]) for name in setups))
    Console().print(table)


def _print_figures(
    figures: Mapping[str, float],
    intervals: Mapping[str, evaluation.Interval | None],
    heading: str,
) -> None:
    table = make_table("", "mean", heading)
    for name, value in figures.items():
        table.add_row(name, _percent(value), _bounds(intervals[name]))
    Console().print(table)


def _print_comparisons(beaten: Mapping[str, evaluation.Comparison], heading: str) -> None:
    table = make_table("", "difference", heading, "won/lost/tied", "p")
    for name, comparison in beaten.items():
        difference = comparison.difference
        table.add_row(
            name,
            f"{100 * difference.mean:+.2f}",
            f"{100 * difference.low:+.2f} to {100 * difference.high:+.2f}",
            f"{comparison.wins}/{comparison.losses}/{comparison.ties}",
            f"{comparison.p_value:.2g}",
        )
    Console().print(table)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f} %"


def _bounds(interval: evaluation.Interval | None) -> str:
    if interval is None:
        return "none"
    return f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"


def _items_of_classes(labels: NDArray[Any], query_labels: NDArray[Any]) -> list[NDArray[Any]]:
    # One array for each class, shared by its queries: lists of their own could fill the memory.
    items = {label: np.flatnonzero(labels == label) for label in np.unique(query_labels)}
    return [items[label] for label in query_labels]


def relevant_lists(path: Path) -> list[list[int]]:
    """The lists of ids of a JSON file."""
    lists = _from_json(path)
    if not isinstance(lists, list) or not all(_is_id_list(line) for line in lists):
        raise ValueError(f"{path}: expected a list of lists of ids, one for each query.")
    return lists


def _gain_lists(path: Path) -> list[list[float]]:
    lists = _from_json(path)
    if not isinstance(lists, list) or not all(_is_gain_list(line) for line in lists):
        raise ValueError(f"{path}: expected a list of lists of numbers, one for each query.")
    return lists


def _junk(path: Path) -> Any:
    return relevant_lists(path) if path.suffix.lower() == ".json" else load_array(path)


def _from_json(path: Path) -> Any:
    if not path.is_file():
        reason = "a folder, not a JSON file" if path.is_dir() else "no such file"
        raise ValueError(f"{path}: {reason}.")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{path}: not JSON, or damaged ({fault}).") from fault


def _is_id_list(line: Any) -> bool:
    return isinstance(line, list) and all(
        type(item) is int and -(2**63) <= item < 2**63 for item in line
    )


def _is_gain_list(line: Any) -> bool:
    return isinstance(line, list) and all(
        type(gain) is float or (type(gain) is int and abs(gain) < 2**63) for gain in line
    )


def _agreements(
    ids: NDArray[Any], exact: NDArray[Any], at: list[int] | None
) -> dict[str, NDArray[np.float64]]:
    shorter = min(lists.shape[-1] for lists in (ids, exact))
    return {
        f"agreement@{depth}": evaluation.per_query(evaluation.agreement, ids, exact, at=depth)
        for depth in _depths(at, shorter)
    }


def _depths(at: list[int] | None, longest: int) -> Iterable[int]:
    return at or sorted({min(depth, longest) for depth in (1, 10, 100)})
