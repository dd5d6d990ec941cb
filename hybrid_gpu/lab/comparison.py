"""Ways to rank, measured on the same queries: how well, how fast, and with how much memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid_gpu import evaluation
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.choices import NeighborCount
from hybrid_gpu.diffusion.sparsity import Sparsity
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import build_index, with_basis
from hybrid_gpu.lab.benchmark import Benchmark
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.top_items import Report

_DEPTH = 100
# Each time is the best of a few runs, and of a few more while they have not taken this long.
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 3, 8, 0.25
# Queries that are timed: as many as are solved side by side at most, and a few one by one.
_TIMED_TOGETHER, _TIMED_ALONE = 128, 5


@dataclass(frozen=True, slots=True)
class Trial:
    """A ranking method and all settings that its answers depend on.

    Attributes
    ----------
    method : str
        One of ``hybrid_gpu.METHODS``.
    basis : str
        The basis of its index: ``"none"``, ``"aggregate"``, ``"eigen"`` or ``"sparse-eigen"``.
    rank : int or None
        Number of groups or eigenvectors in the basis.
    steps : int or None
        None for methods without steps, and for solving to ``rtol``.
    sparsity : float or None
        Part of the entries that is dropped, for ``shybrid`` and for a sparse basis.
    threshold : str
        How these entries are chosen, as in ``Sparsity``.
    shortlist : int or None
        Items that ``truncated`` solves on.
    rtol : float or None
        Relative residual to solve to.
    augmented : bool
        Whether the database was augmented by its own neighbors.
    """

    method: str
    basis: str = "none"
    rank: int | None = None
    steps: int | None = None
    sparsity: float | None = None
    shortlist: int | None = None
    rtol: float | None = None
    augmented: bool = False
    threshold: str = "entries"

    @property
    def dropped(self) -> Sparsity:
        """Which entries of eigenvectors are dropped, where any are."""
        return Sparsity(0.99 if self.sparsity is None else self.sparsity, self.threshold)

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of ``search``."""
        settings = {name: getattr(self, name) for name in ("method", "steps", "shortlist", "rtol")}
        if self.sparsity is not None and METHODS[self.method].uses_sparsity:
            settings["sparsity"] = self.dropped
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Quality, time and memory of one trial.

    Attributes
    ----------
    trial : Trial
    quality : mapping of str to float
        The figures of the benchmark's protocol, in percent.
    agreement : float
        The part of the exact top 100 that is in the trial's top 100, averaged over queries.
    milliseconds : float
        Time per query in a batch: first stage, diffusion and the top 100.
    diffusion : float
        Milliseconds of that time that are diffusion; the paper reports these.
    alone : float or None
        Milliseconds of diffusion for a query on its own; None if that was not measured.
    bytes : int
        Memory kept beyond the descriptors: the graph, and the basis if the method needs it.
    """

    trial: Trial
    quality: Mapping[str, float]
    agreement: float
    milliseconds: float
    diffusion: float
    alone: float | None
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class MethodComparison:
    """Measurements of every method.

    Attributes
    ----------
    index : DiffusionIndex
        With the default basis.
    measurements : mapping of str to Measurement
        By the name of the method; ``"exact"`` is the last one.
    """

    index: DiffusionIndex
    measurements: Mapping[str, Measurement]


def compare_methods(
    benchmark: Benchmark,
    *,
    rank: int,
    neighbors: NeighborCount = "auto",
    progress: ProgressOption = None,
) -> MethodComparison:
    """Rank a whole database for the queries of a benchmark, by every method.

    Parameters
    ----------
    rank
        Eigenvectors, for the methods that need them; the others use aggregates.
    neighbors
        Nearest neighbors of each item, as in ``build_index``.
    """
    progress = as_progress(progress)
    vectors = benchmark.descriptors
    index = build_index(vectors, neighbors=neighbors, progress=progress)
    indexes = {
        "auto": index,
        "eigen": with_basis(index, "eigen", rank=rank, progress=progress),
        "stored": index.precompute(keep=min(1000, index.n), progress=progress),
    }
    precise = build_index(
        vectors,
        neighbors=int(index.state.origin.neighbors or 1),
        basis="none",
        dtype="float64",
        backend=index.backend,
    )
    exact, best = solve_exactly(precise, benchmark)
    measured = {}
    for place, method in enumerate(METHODS.values()):
        if progress:
            progress("comparing methods", place, len(METHODS))
        kind = "eigen" if method.needs_eigenvectors else "auto"
        basis_index = indexes["stored" if method.needs_columns else kind]
        trial = Trial(method.name, shortlist=max(1, index.n // 4))
        measured[method.name] = measure(trial, basis_index, benchmark, best)
    return MethodComparison(index, {**measured, "exact": exact})


def solve_exactly(precise: DiffusionIndex, benchmark: Benchmark) -> tuple[Measurement, HostArray]:
    """The exact solution, by conjugate gradients to a residual of 1e-10, and its top 100.

    Parameters
    ----------
    precise
        An index in float64. It is searched once, and the time is that of a full ranking.
    """
    trial = Trial("temporal", rtol=1e-10)
    whole = precise.search(benchmark.queries, k=precise.n, **trial.options)
    scale = 1000 / len(benchmark.queries)
    seconds = whole.report.seconds["solve"]
    measured = Measurement(
        trial=trial,
        quality=quality(benchmark, whole.ids),
        agreement=1.0,
        milliseconds=scale * whole.report.total_seconds,
        diffusion=scale * seconds,
        alone=None,
        bytes=kept_bytes(precise, trial),
    )
    return measured, np.ascontiguousarray(whole.ids[:, :_DEPTH])


def measure(
    trial: Trial, index: DiffusionIndex, benchmark: Benchmark, exact: HostArray
) -> Measurement:
    """Rank the whole database for every query of a benchmark, and time the top 100.

    Parameters
    ----------
    trial
        The method and its settings.
    index
        With the basis that the trial names.
    exact : int array of shape (m, 100)
        The exact top items, from ``solve_exactly``.
    """
    whole = index.search(benchmark.queries, k=index.n, **trial.options)
    together = benchmark.queries[:_TIMED_TOGETHER]
    total, diffusion = _best_times(index, together, trial)
    _, alone = _best_times(index, benchmark.queries[:_TIMED_ALONE], trial, batch=1)
    return Measurement(
        trial=trial,
        quality=quality(benchmark, whole.ids),
        agreement=evaluation.agreement(whole.ids[:, : exact.shape[1]], exact),
        milliseconds=total,
        diffusion=diffusion,
        alone=alone,
        bytes=kept_bytes(index, trial),
    )


def quality(benchmark: Benchmark, ids: HostArray) -> dict[str, float]:
    """The figures of a benchmark's protocol for full rankings of its database, in percent."""
    if benchmark.ground_truth is not None:
        scores = evaluation.revisited_protocol(ids, benchmark.ground_truth)
        setups = {"easy": scores.easy, "medium": scores.medium, "hard": scores.hard}
        figures = {f"mAP {name}": setup.mean_average_precision for name, setup in setups.items()}
        for name, setup in setups.items():
            figures |= {f"mP@{depth} {name}": part for depth, part in setup.precision_at.items()}
    else:
        depth = min(_DEPTH, ids.shape[1])
        labels, query_labels = benchmark.labels, benchmark.query_labels
        figures = {
            "mAP": evaluation.mean_average_precision(ids, labels, query_labels),
            f"P@{depth}": evaluation.precision(ids, labels, query_labels, at=depth),
        }
    return {name: 100 * value for name, value in figures.items()}


def kept_bytes(index: DiffusionIndex, trial: Trial) -> int:
    """Bytes that a method keeps beyond the descriptors."""
    return METHODS[trial.method].kept_bytes(index.state, trial.dropped)


def with_leading(index: DiffusionIndex, rank: int) -> DiffusionIndex:
    """An index of eigenvectors with only the first ``rank`` of them."""
    basis = index.state.required_eigenvectors().leading(rank)
    return DiffusionIndex(replace(index.state, basis=basis))


def _best_times(
    index: DiffusionIndex, queries: HostArray, trial: Trial, batch: int | None = None
) -> tuple[float, float]:
    """Milliseconds per query of the fastest of a few warm runs: all of it, and diffusion alone."""
    settings: dict[str, Any] = {**trial.options, "k": min(_DEPTH, index.n), "batch": batch}
    index.search(queries[:1], **settings)
    reports: list[Report] = []
    # Short runs are repeated more often: other work on the machine disturbs them most.
    while len(reports) < _FEWEST_RUNS or (
        len(reports) < _MOST_RUNS and sum(report.total_seconds for report in reports) < _SECONDS
    ):
        reports.append(index.search(queries, **settings).report)
    best = min(reports, key=lambda report: report.total_seconds)
    scale = 1000 / len(queries)
    return scale * best.total_seconds, scale * best.seconds["solve"]
