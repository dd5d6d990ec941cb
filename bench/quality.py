"""Does a ranking get better by default, on data that nobody tuned for, and as databases grow?

    python bench/registry_sets.py sets
    python bench/quality.py sets            # every set: quality_sets
    python bench/quality.py sets --sizes    # Fashion-MNIST, 500 to 70,000 items: quality_sizes
    python bench/quality.py sets --grid     # neighbors by alpha, sets below 30,000: quality_grid
    python bench/quality.py sets --classes  # with classes cut to a size: quality_classes

200 items of each set are held out as queries, and the rest is the database. Ways to rank it:

- plain: by similarity;
- alpha-qe: query expansion, the usual cheap baseline;
- paper: ``build_index(x, **PAPER)``, 50 neighbors and alpha 0.99;
- default: ``build_index(x)``;
- tuned: by ``tune`` with the labels of the database; with 40 of them; with none.

Means over the queries, in percent, with their intervals of 95 % (bootstrap, BCa). The rule for
neighbors and the default alpha were chosen on other sets and on those that are not marked as held
back; a set that is was looked at once, when both were settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, show
from numpy.typing import NDArray

import hybrid_gpu as hg
from hybrid_gpu import datasets, evaluation

QUERIES, FEW, SEED = 200, 40, 13
# Items that tuning takes as queries; fewer of large sets, where each of them costs more.
SAMPLE, LARGE, SAMPLE_OF_LARGE = 200, 30_000, 64
MEASURES = {
    "mAP": lambda *data: evaluation.per_query(evaluation.mean_average_precision, *data),
    "P@10": lambda *data: evaluation.per_query(evaluation.precision, *data, at=10),
    "nDCG@10": lambda *data: evaluation.per_query(evaluation.ndcg, *data, at=10),
}
HELD_BACK = (
    "digits",
    "Fashion-MNIST",
    "mnist",
    "cifar10",
    "jeopardy",
    "crop",
    "electricdevices",
)
NEIGHBORS, ALPHAS = (5, 10, 15, 20, 30, 50, "auto"), (0.8, 0.9, 0.95, 0.99)
CUT_SETS, CLASS_SIZES, QUERIES_OF_A_CLASS = (
    ("jeopardy", "optdigits", "cifar10"),
    (2, 4, 8, 16, 32, 64, 128),
    5,
)
SIZES = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 70_000)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A database and queries, with their classes."""

    name: str
    items: NDArray[np.float32]
    labels: NDArray[Any]
    queries: NDArray[np.float32]
    query_labels: NDArray[Any]


def task_of(name: str, vectors: Any, labels: Any, most: int | None = None) -> Task:
    """A set with some of its items held out as queries."""
    order = np.random.default_rng(SEED).permutation(len(vectors))[:most]
    asked, rest = np.split(order, [min(QUERIES, len(order) // 4)])
    vectors = np.asarray(vectors, np.float32)
    return Task(name, vectors[rest], labels[rest], vectors[asked], labels[asked])


def tasks(folder: Path, fashion: Path | None) -> Iterator[Task]:
    """All sets, the smaller ones first."""
    digits = datasets.digits()
    yield task_of("digits", digits.descriptors, digits.labels)
    for path in sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_size):
        with np.load(path, allow_pickle=False) as arrays:
            yield task_of(path.stem, arrays["x"], arrays["y"])
    yield task_of("Fashion-MNIST", *whole_fashion(fashion))


def whole_fashion(folder: Path | None) -> tuple[Any, Any]:
    """All 70,000 items of Fashion-MNIST."""
    split = datasets.fashion_mnist(folder)
    vectors = np.concatenate([split.database.descriptors, split.queries.descriptors])
    return vectors, np.concatenate([split.database.labels, split.queries.labels])


def settings_of(task: Task, tuned: bool) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The keywords of a build and of a search, for every way to rank."""
    paper = {**hg.PAPER, "neighbors": min(hg.PAPER["neighbors"], len(task.items) - 1)}
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({}, {"method": "nn"}),
        "alpha-qe": ({}, {"method": "alpha-qe"}),
        "paper": (paper, {}),
        "default": ({}, {}),
    }
    if not tuned:
        return ways
    codes = np.unique(task.labels, return_inverse=True)[1]
    few = np.full(codes.size, -1)
    known = np.random.default_rng(SEED).choice(codes.size, min(FEW, codes.size), replace=False)
    few[known] = codes[known]
    for name, labels in (("tuned", codes), ("tuned, 40 labels", few), ("tuned, no labels", None)):
        sample = SAMPLE if codes.size <= LARGE else SAMPLE_OF_LARGE
        tuning = hg.tune(task.items, labels, sample=sample, progress=told(f"{task.name} {name}"))
        # The default is chosen anew where it was not beaten.
        best = tuning.best
        ways[name] = ({}, {}) if best == tuning.default else (best.build, best.search)
    return ways


def told(name: str) -> Any:
    """Progress in a line that a terminal overwrites."""
    return lambda stage, done, total: print(f"\r{name}: {stage} {done}/{total}   ", end="")


def measured(task: Task, tuned: bool) -> dict[str, Any]:
    """The values of every query by every way and measure, and what was built."""
    values: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in MEASURES}
    built: dict[str, Any] = {}
    # One k-NN search for all of them; what is built is what build_index(items) builds.
    lists = hg.nearest_neighbors(task.items, k=min(50, len(task.items) - 1))
    for way, (build, search) in settings_of(task, tuned).items():
        index = hg.build_index_from_neighbors(
            lists.ids, lists.similarities, descriptors=task.items, **build
        )
        ids = index.search(task.queries, k=index.n, **search).ids
        for name, measure in MEASURES.items():
            values[name][way] = measure(ids, task.labels, task.query_labels)
        graph = index.state.graph
        built[way] = {
            **build,
            **search,
            "neighbors": index.state.origin.neighbors,
            "isolated": graph.isolated / graph.n,
            "components": int(graph.components.max()) + 1,
        }
    return {"values": values, "built": built}


def figure(values: NDArray[np.float64], sign: str = "") -> str:
    """A mean in percent with its interval."""
    interval = evaluation.bootstrap(100 * values)
    mean, low, high = (
        format(value, f"{sign}.1f") for value in (interval.mean, interval.low, interval.high)
    )
    return f"{mean} ({low} to {high})"


def rows_of(task: Task, found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each measure."""
    rows = []
    for measure, values in found["values"].items():
        row: dict[str, Any] = {
            "data": task.name + (" (held back)" if task.name in HELD_BACK else ""),
            "measure": measure,
            "items": len(task.items),
            "k": found["built"]["default"]["neighbors"],
            **{way: figure(one) for way, one in values.items()},
            "default over plain": figure(values["default"] - values["plain"], "+"),
        }
        if "tuned" in values:
            row["tuned over default"] = figure(values["tuned"] - values["default"], "+")
        rows.append(row)
    return rows


def means_of(found: dict[str, Any]) -> dict[str, Any]:
    """Numbers beside the cells, for those who calculate with them."""
    means = {
        measure: {way: float(100 * np.nanmean(one)) for way, one in values.items()}
        for measure, values in found["values"].items()
    }
    pairs = {}
    for name, (first, second) in {
        "default over plain": ("default", "plain"),
        "tuned over default": ("tuned", "default"),
        "tuned, 40 labels over default": ("tuned, 40 labels", "default"),
        "tuned, no labels over default": ("tuned, no labels", "default"),
    }.items():
        values = found["values"]["mAP"]
        if first in values:
            interval = evaluation.bootstrap(100 * (values[first] - values[second]))
            pairs[name] = [interval.mean, interval.low, interval.high]
    return {"means": means, "pairs": pairs, "built": found["built"]}


def grid_gains(task: Task) -> dict[tuple[Any, float], float]:
    """What each number of neighbors and alpha gains over plain search, in points of mAP."""
    gains = {}
    lists = hg.nearest_neighbors(task.items, k=min(50, len(task.items) - 1))
    for count in NEIGHBORS:
        neighbors = min(count, len(task.items) - 1) if isinstance(count, int) else count
        index = hg.build_index_from_neighbors(
            lists.ids, lists.similarities, neighbors=neighbors, descriptors=task.items
        )

        def value(**options: Any) -> float:
            ids = index.search(task.queries, k=index.n, **options).ids  # noqa: B023
            return 100 * evaluation.mean_average_precision(ids, task.labels, task.query_labels)

        plain = value(method="nn")
        gains |= {(count, alpha): value(alpha=alpha) - plain for alpha in ALPHAS}
    return gains


def grid(work: Iterator[Task]) -> None:
    """Record the gains over all sets: their mean, the worst, and how many lost over a point."""
    details = {}
    for task in work:
        if len(task.items) <= LARGE:
            details[task.name] = grid_gains(task)
            print(task.name)
    rows = []
    for count in NEIGHBORS:
        row: dict[str, Any] = {"neighbors": str(count)}
        for alpha in ALPHAS:
            gains = np.array([found[count, alpha] for found in details.values()])
            lost = int(np.count_nonzero(gains < -1))
            row[f"alpha {alpha}"] = f"{gains.mean():+.1f}, {gains.min():+.1f}, {lost}"
        rows.append(row)
    show("gain in mAP: mean, worst, sets that lost over a point", rows)
    told = {
        name: {f"{count} {alpha}": gain for (count, alpha), gain in found.items()}
        for name, found in details.items()
    }
    settings = {"sets": len(details), "queries": QUERIES}
    print(record("quality_grid", settings, rows, details=told))


def cut_task(name: str, vectors: Any, labels: Any, size: int) -> Task:
    """A set with so many items of each class, and five more of each as queries."""
    rng = np.random.default_rng(SEED)
    asked, rest = [], []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        asked.append(members[:QUERIES_OF_A_CLASS])
        rest.append(members[QUERIES_OF_A_CLASS : QUERIES_OF_A_CLASS + size])
    queries, items = np.concatenate(asked), np.concatenate(rest)
    return Task(name, vectors[items], labels[items], vectors[queries], labels[queries])


def classes(folder: Path) -> None:
    """Record what diffusion gains over plain search where classes are small."""
    rows = []
    for name in CUT_SETS:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
            vectors, labels = arrays["x"], arrays["y"]
        for size in CLASS_SIZES:
            task = cut_task(name, vectors, labels, size)
            found = measured(task, tuned=False)
            values = found["values"]["mAP"]
            rows.append(
                {
                    "data": name,
                    "items of a class": size,
                    "items": len(task.items),
                    "k": found["built"]["default"]["neighbors"],
                    "plain": figure(values["plain"]),
                    "default": figure(values["default"]),
                    "default over plain": figure(values["default"] - values["plain"], "+"),
                    "paper over plain": figure(values["paper"] - values["plain"], "+"),
                }
            )
    show("mAP where classes are small", rows)
    print(record("quality_classes", {"queries of a class": QUERIES_OF_A_CLASS}, rows))


def main(
    folder: Annotated[Path, typer.Argument(help="Sets made by registry_sets.py.")],
    fashion: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST.")] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Grow one set instead.")] = False,
    by_classes: Annotated[bool, typer.Option("--classes", help="Small classes instead.")] = False,
    by_grid: Annotated[bool, typer.Option("--grid", help="Neighbors by alpha instead.")] = False,
) -> None:
    if by_classes:
        classes(folder)
        return
    if by_grid:
        grid(tasks(folder, fashion))
        return
    rows, details = [], {}
    if sizes:
        vectors, labels = whole_fashion(fashion)
        work: Any = (task_of(f"{most}", vectors, labels, most) for most in SIZES)
    else:
        work = tasks(folder, fashion)
    for task in work:
        found = measured(task, tuned=not sizes)
        rows += rows_of(task, found)
        details[task.name] = means_of(found)
        print(f"\r{task.name:<60}")
        show(task.name, rows[-len(MEASURES) :])
    question = "quality_sizes" if sizes else "quality_sets"
    if sizes:
        rows = [{key: value for key, value in row.items() if key != "data"} for row in rows]
    print(record(question, {"queries": QUERIES}, rows, details=details))


if __name__ == "__main__":
    typer.run(main)
