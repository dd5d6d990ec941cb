"""Choosing the graph, the restart parameter and the method by queries whose answers are known."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid_gpu import evaluation
from hybrid_gpu.backends import Array, Backend, on_device, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.choices import BackendName, DtypeName, MethodName
from hybrid_gpu.diffusion.filters import DEFAULT_ALPHA
from hybrid_gpu.evaluation import Interval
from hybrid_gpu.graph.neighbor_count import chosen_count, measured_recall, widest_choice
from hybrid_gpu.graph.neighbors import (
    Neighbors,
    check_engine,
    is_approximate,
    neighbors_of_units,
)
from hybrid_gpu.graph.vectors import vectors_of
from hybrid_gpu.index.build import BasisChoice, Settings, state_from_lists
from hybrid_gpu.index.build_memory import check_room
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import PAPER
from hybrid_gpu.index.search import search_from_outside
from hybrid_gpu.lab.examples import (
    Examples,
    check_depth,
    check_measure,
    halved_examples,
    labeled_examples,
    listed_examples,
)
from hybrid_gpu.lab.plots import Panel, Series, chart
from hybrid_gpu.progress import Progress, ProgressOption, as_progress
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.state import Origin
from hybrid_gpu.validation import (
    check_alpha,
    check_count,
    check_dtype,
    check_positive,
    check_sequence,
)

# Entries of rankings that are held together: 8 bytes of id and of score each, and some copies.
_MOST_ENTRIES = 1 << 24
_SHOWN = 5
# Worlds of flipped signs that tell how good luck is, and how many of them a gain must beat.
_WORLDS, _SURE = 400, 0.95


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to build and to search an index.

    ``nn`` and ``alpha-qe`` know no graph: all but the method is None for them.
    """

    method: str
    neighbors: int | None = None
    gamma: float | None = None
    alpha: float | None = None
    degree_correction: bool | None = None

    @property
    def build(self) -> dict[str, Any]:
        """The keywords of ``build_index``."""
        graph = {"neighbors": self.neighbors, "gamma": self.gamma, "alpha": self.alpha}
        return {name: value for name, value in graph.items() if value is not None}

    @property
    def search(self) -> dict[str, Any]:
        """The keywords of ``search``."""
        how: dict[str, Any] = {} if self.build else {"method": self.method}
        return how | ({"degree_correction": True} if self.degree_correction else {})


@dataclass(frozen=True, slots=True)
class Row:
    """What a setting was measured to give.

    Attributes
    ----------
    setting : Setting
    value : float
        The measure, averaged over the queries.
    gain : float
        Its difference to the default setting's.
    error : float
        The standard error of that difference, which is paired by queries.
    """

    setting: Setting
    value: float
    gain: float
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """Everything that was measured, and what to take. Print it for a table.

    Attributes
    ----------
    best : Setting
        What to take: ``index = build_index(descriptors, **tuning.best.build)``, and then
        ``index.search(queries, **tuning.best.search)``. It is the setting with the largest
        gain over the default that luck does not explain; the default if there is none.
    default : Setting
        What ``build_index`` and ``search`` do if nothing is said.
    rows : tuple of Row
        All settings, the best value first.
    measure, source : str
        What was measured, on which queries.
    expected : Interval
        What the best setting may give for other queries: each part of the queries was judged by
        the setting that the other parts chose.
    by_default : Interval
        The same for the default setting.
    fixed : mapping of str to str
        What was not chosen but given: ``knn`` and ``dtype``, where they are not the default.
    """

    best: Setting
    default: Setting
    rows: tuple[Row, ...]
    measure: str
    source: str
    expected: Interval
    by_default: Interval
    fixed: Mapping[str, str]

    def row(self, setting: Setting) -> Row:
        """The row of a setting."""
        return next(row for row in self.rows if row.setting == setting)

    @property
    def code(self) -> str:
        """The lines of Python that build and search an index in the best way."""
        options: list[dict[str, Any]] = [dict(self.fixed), {}]
        if self.best != self.default:
            options = [{**self.fixed, **self.best.build}, self.best.search]
        graph, how = (
            "".join(f", {name}={value!r}" for name, value in part.items()) for part in options
        )
        return f"index = hg.build_index(descriptors{graph})\nranking = index.search(queries{how})"

    def __repr__(self) -> str:
        shown = [row for row in self.rows if row.setting.neighbors is None]
        shown += [self.row(self.default), *self.rows[:_SHOWN], self.row(self.best)]
        head = f"{'':2}{'method':<10}{'neighbors':>10}{'gamma':>7}{'alpha':>7}{'corrected':>11}"
        lines = [f"{head}{self.measure:>9}{'gain':>9}"]
        lines += [self._line(row) for row in dict.fromkeys(shown)]
        lines += [
            f"{len(self.rows)} settings, {self.source}. d: the default, *: the one to take.",
            f"{self.measure} for other queries: {_told(self.expected)}; by default "
            f"{_told(self.by_default)}.",
            self.code,
        ]
        return "\n".join(lines)

    def _line(self, row: Row) -> str:
        way = row.setting
        mark = "*" if way == self.best else "d" if way == self.default else ""
        graph = f"{'':>35}"
        if way.neighbors is not None:
            corrected = "yes" if way.degree_correction else "no"
            graph = f"{way.neighbors:>10}{way.gamma:>7g}{way.alpha:>7g}{corrected:>11}"
        return f"{mark:2}{way.method:<10}{graph}{row.value:>9.3f}{row.gain:>+9.3f}"

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the measure by the number of neighbors, a line for each alpha, to .png or .svg."""
        graphs = [row for row in self.rows if row.setting.neighbors is not None]
        plain = [(row.setting.method, row.value) for row in self.rows if row not in graphs]
        panels = []
        for corrected in sorted({row.setting.degree_correction or False for row in graphs}):
            chosen = [row for row in graphs if row.setting.degree_correction == corrected]
            title = "scores over the root of the degree" if corrected else "scores as they are"
            panels.append(
                Panel(title, "neighbors", self.measure, tuple(_series(chosen)), levels=(*plain,))
            )
        note = "Each point: the best of all gamma. Dashed: without diffusion."
        chart(panels, path=path, title=f"{self.measure}, {self.source}", note=note)


def _told(interval: Interval) -> str:
    return f"{interval.mean:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _series(rows: Sequence[Row]) -> Iterator[Series]:
    """A line for each alpha: the best value of each number of neighbors."""
    for alpha in sorted({row.setting.alpha or 0.0 for row in rows}):
        best: dict[int, float] = {}
        for row in rows:
            if row.setting.alpha == alpha:
                count = row.setting.neighbors or 0
                best[count] = max(row.value, best.get(count, 0.0))
        yield Series(f"alpha {alpha:g}", tuple((float(k), best[k]) for k in sorted(best)))


@on_device(lambda descriptors: descriptors, stays=False)
def tune(
    descriptors: Any,
    labels: Any = None,
    *,
    queries: Any = None,
    relevant: Any = None,
    measure: str = "mAP",
    neighbors: Sequence[int] = (5, 10, 15, 20, 30, 50),
    gammas: Sequence[float] = (1.0, 3.0, 5.0),
    alphas: Sequence[float] = (0.8, 0.9, 0.95, 0.99),
    sample: int = 200,
    folds: int = 5,
    knn: str = "auto",
    dtype: DtypeName = "float32",
    seed: int = 0,
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> Tuning:
    """Choose neighbors, gamma, alpha, the degree correction and the method for a database.

    One k-NN search serves all settings. Items that serve as queries are left in the graph, but
    not among their own answers.

    Parameters
    ----------
    descriptors : float array of shape (n, d)
        The database.
    labels : array of shape (n,), optional
        A class for each item, -1, NaN, None or '' where it is not known: some dozen labels are
        enough to begin with. Only labeled items are judged.
    queries : int array of shape (m,), or float array of shape (m, d), optional
        Instead of labels: items, or descriptors of queries from outside ...
    relevant : sequence of m collections of ids
        ... and the items that each of them should find.
    measure
        ``"mAP"``, ``"P@10"``, ``"nDCG@10"`` or ``"MRR"``.
    neighbors, gammas, alphas
        What to try, beside the default.
    sample
        The most items that serve as queries.
    folds
        Parts of the queries for cross-validation.
    knn, dtype, seed, progress, backend
        As in ``build_index``.

    Without labels and lists, the dimensions are turned at random and halved: an index of one half
    is asked for the ten items nearest to a query in the other half. That tells a graph that blurs
    from one that does not; but it prefers whatever is close to plain similarity, and so only the
    number of neighbors is chosen by it. Labels are worth more; ``docs/choosing.md`` has figures.

    Returns
    -------
    Tuning

    Raises
    ------
    ValueError
        If there are both labels and lists, or too few queries with a relevant item.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> from hybrid_gpu import datasets
    >>> digits = datasets.digits()
    >>> x, labels = digits.descriptors[:300], digits.labels[:300]
    >>> tuning = hg.tune(x, labels, neighbors=(10,), gammas=(), alphas=())
    >>> tuning.best.method
    'hybrid'
    >>> index = hg.build_index(x, **tuning.best.build)
    """
    device = select_backend(backend, like=descriptors)
    told = as_progress(progress)
    check_engine(knn, device)
    dtype = check_dtype(dtype)
    measure, sample = check_measure(measure), check_count(sample, "sample", low=2)
    seed, folds = check_count(seed, "seed", low=0), check_count(folds, "folds", low=2)
    if (queries is None) != (relevant is None):
        raise ValueError("queries and relevant go together: give both, or labels, or neither.")
    if labels is not None and relevant is not None:
        raise ValueError("give labels, or queries and relevant, not both.")
    vectors = vectors_of(descriptors, "descriptors", dtype=dtype, backend=device)
    n, d = vectors.shape
    if n < 3:
        raise ValueError(f"descriptors must have at least three items to be tuned; got {n}.")
    grid = _Grid(
        [
            check_count(count, "neighbors")
            for count in check_sequence(neighbors, "neighbors", "(10, 50)")
        ],
        [check_positive(gamma, "gammas") for gamma in check_sequence(gammas, "gammas", "(1, 3)")],
        [check_alpha(alpha) for alpha in check_sequence(alphas, "alphas", "(0.9, 0.99)")],
    )
    for alpha, gamma in itertools.product(grid.alphas, grid.gammas or [PAPER["gamma"]]):
        Settings(alpha, gamma, dtype)  # refuses what cannot be solved, before hours of work
    units = vectors.units()
    whole, unlabeled = units, labels is None and relevant is None
    if labels is not None:
        examples = labeled_examples(labels, units, sample, seed, device)
    elif relevant is not None:
        examples = listed_examples(queries, relevant, units, sample, seed, device)
    else:
        units, examples = halved_examples(units, sample, seed, device)
        grid = _Grid(grid.neighbors, [], [])
    check_depth(measure, examples, n)
    width = min(n - 1, max([*grid.neighbors, widest_choice(n)]))
    check_room(n, d, width, device, dtype=dtype)

    def searched(vectors: Array, width: int) -> Neighbors:
        return neighbors_of_units(vectors, None, width, knn=knn, progress=told, backend=device)

    lists = searched(units, width)
    # The default is that of the whole descriptors, which takes a search of its own.
    count = chosen_count(searched(whole, widest_choice(n)) if unlabeled else lists, device)
    if is_approximate(knn):
        measured_recall(lists, units, knn, device)
    default = Setting("hybrid", count, PAPER["gamma"], DEFAULT_ALPHA, False)
    values = _measured(_Ground(units, lists, examples, measure, device), grid, default, told)
    if unlabeled:
        # What is near in the other half is what plain similarity finds best.
        values = {way: value for way, value in values.items() if way.degree_correction is False}
    fixed = {"knn": knn, "dtype": dtype}
    fixed = {name: value for name, value in fixed.items() if value not in ("auto", "float32")}
    found = _tuning(values, default, measure, examples.source, folds, seed)
    return replace(found, fixed=fixed)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """What is tried, beside the default."""

    neighbors: list[int]
    gammas: list[float]
    alphas: list[float]


@dataclass(frozen=True, slots=True, eq=False)
class _Ground:
    """What every setting is measured on."""

    units: Array
    lists: Neighbors
    examples: Examples
    measure: str
    backend: Backend

    def index(self, neighbors: int, gamma: float) -> DiffusionIndex:
        settings = Settings(DEFAULT_ALPHA, gamma, check_dtype(self.units.dtype))
        # With the basis that a user gets: how far few steps reach depends on it.
        lists, choice = self.lists.cut(neighbors), BasisChoice()
        return DiffusionIndex(
            state_from_lists(lists, Origin(neighbors), self.units, settings, choice, self.backend)
        )

    def parts(self) -> Iterator[Examples]:
        """The queries, as many at a time as memory allows."""
        width = max(1, _MOST_ENTRIES // int(self.units.shape[0]))
        for start in range(0, self.examples.count, width):
            yield self.examples.part(slice(start, min(start + width, self.examples.count)))

    def plain(self, index: DiffusionIndex, method: MethodName) -> HostArray:
        """The values of every query by a method that knows no graph."""
        host, found = self.backend.to_numpy, []
        for part in self.parts():
            ids = host(index.search(part.vectors, k=index.n, method=method).ids)
            found.append(part.values(ids, self.measure))
        return np.concatenate(found)

    def diffused(self, index: DiffusionIndex, alpha: float) -> tuple[HostArray, HostArray]:
        """The values of every query by diffusion, and those after degree correction."""
        backend, xp = self.backend, self.backend.xp
        correction = backend.to_numpy(index.graph.degree_correction(backend))[:, 0]
        as_they_are, corrected = [], []
        for part in self.parts():
            if part.items is None:
                ranking = index.search(part.vectors, k=index.n, alpha=alpha)
            else:
                items = backend.asarray(part.items)
                near = Neighbors(
                    xp.take(self.lists.ids, items, axis=0),
                    xp.take(self.lists.similarities, items, axis=0),
                )
                request = requested(index.state, k=index.n, alpha=alpha, query_neighbors=5)
                ranking = search_from_outside(index.state, items, near, request)
            ids, scores = backend.to_numpy(ranking.ids), backend.to_numpy(ranking.scores)
            as_they_are.append(part.values(ids, self.measure))
            # Equal scores keep their order: top-k gives ties to the lower place.
            moved = backend.asarray(scores * correction[ids])
            order = backend.to_numpy(backend.top_k(moved, index.n).ids)
            corrected.append(part.values(np.take_along_axis(ids, order, axis=1), self.measure))
        return np.concatenate(as_they_are), np.concatenate(corrected)


def _measured(
    trial: _Ground, grid: _Grid, default: Setting, progress: Progress | None
) -> dict[Setting, HostArray]:
    """The value of every setting for every query."""
    most = int(trial.lists.ids.shape[1])
    assert default.neighbors is not None
    assert default.gamma is not None
    counts = sorted({min(count, most) for count in grid.neighbors} | {default.neighbors})
    graphs = [(k, gamma) for k in counts for gamma in sorted({*grid.gammas, default.gamma})]
    alphas = sorted({*grid.alphas, DEFAULT_ALPHA})
    values: dict[Setting, HostArray] = {}
    for number, (count, gamma) in enumerate(graphs):
        index = trial.index(count, gamma)
        if not values:
            for method in ("nn", "alpha-qe"):
                values[Setting(method)] = trial.plain(index, method)
        for place, alpha in enumerate(alphas):
            if progress:
                progress("tuning", number * len(alphas) + place, len(graphs) * len(alphas))
            found = trial.diffused(index, alpha)
            for corrected, result in zip((False, True), found, strict=True):
                values[Setting("hybrid", count, gamma, alpha, corrected)] = result
    if progress:
        progress("tuning", len(graphs) * len(alphas), len(graphs) * len(alphas))
    return values


def _tuning(
    values: dict[Setting, HostArray],
    default: Setting,
    measure: str,
    source: str,
    folds: int,
    seed: int,
) -> Tuning:
    """The record of all that was measured, with the choice and what it may give."""
    settings = list(values)
    table = np.stack([values[setting] for setting in settings])
    standard = settings.index(default)
    gains = table - table[standard]
    m = table.shape[1]
    turn = np.random.default_rng(seed).permutation(m) % min(folds, m)
    honest = np.empty(m)
    for fold in range(min(folds, m)):
        inside = turn == fold
        honest[inside] = table[_chosen(gains[:, ~inside], standard, seed), inside]
    rows = [
        Row(setting, float(line.mean()), float(gain.mean()), _error(gain))
        for setting, line, gain in zip(settings, table, gains, strict=True)
    ]
    return Tuning(
        best=settings[_chosen(gains, standard, seed)],
        default=default,
        rows=tuple(sorted(rows, key=lambda row: -row.value)),
        measure=measure,
        source=source,
        expected=evaluation.bootstrap(honest, seed=seed),
        by_default=evaluation.bootstrap(values[default], seed=seed),
        fixed={},
    )


def _chosen(gains: HostArray, default: int, seed: int) -> int:
    """The setting with the largest gain over the default that luck does not explain.

    The best of a hundred settings is best by luck, too. How good luck is, is seen by flipping the
    signs of all gains of a query together, at random: a setting must beat the best of all settings
    in 19 of 20 such worlds, in which none is better than the default (Westfall and Young, 1993).
    """
    m = gains.shape[1]
    if m < 2:
        return default
    flips = np.random.default_rng(seed).choice((-1.0, 1.0), (m, _WORLDS))
    threshold = np.quantile(np.max(_sureness(gains, flips), axis=0), _SURE)
    sure = _sureness(gains, np.ones((m, 1)))[:, 0] > threshold
    if not sure.any():
        return default
    return int(np.argmax(np.where(sure, gains.mean(axis=1), -np.inf)))


def _sureness(gains: HostArray, flips: HostArray) -> HostArray:
    """Mean gains over their standard errors, for each column of signs."""
    m = gains.shape[1]
    means = gains @ flips / m
    squares = np.mean(gains**2, axis=1, keepdims=True)
    errors = np.sqrt(np.maximum(squares - means**2, 0) / (m - 1))
    # A setting that ranks as the default does has neither a gain nor an error.
    return np.asarray(means / np.maximum(errors, 1e-12))


def _error(gains: HostArray) -> float:
    """The standard error of a mean."""
    m = gains.size
    return float(gains.std(ddof=1) / np.sqrt(m)) if m > 1 else 0.0
