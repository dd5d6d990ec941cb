"""The experiments of the paper, measured on any benchmark.

A run has a folder. Every measurement is appended to ``measurements.jsonl`` at once, and the results
of long computations are kept in ``work``, so that an interrupted run can continue.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.files.writing import replacing
from hybrid_gpu.graph.affinity import largest_component
from hybrid_gpu.graph.neighbors import check_knn
from hybrid_gpu.graph.vectors import unit_rows
from hybrid_gpu.index.build import default_groups
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import (
    build_index,
    build_index_from_neighbors,
    load_index,
    with_basis,
)
from hybrid_gpu.index.storage import has_index
from hybrid_gpu.lab.benchmark import Benchmark
from hybrid_gpu.lab.comparison import Measurement, Trial, measure, solve_exactly, with_leading
from hybrid_gpu.lab.runlog import (
    EIGENVECTORS,
    EXACT,
    GRAPH,
    WORK,
    RunLog,
    header_of,
    measurement_of,
    restart_run,
)
from hybrid_gpu.lab.trials import ExperimentSettings, trials_of
from hybrid_gpu.progress import Progress, ProgressOption, as_progress
from hybrid_gpu.ranking.query_expansion import Expansion, augment_database
from hybrid_gpu.validation import check_count, check_vectors

# Components up to this size can be decomposed densely in about a minute.
_DENSE_ITEMS = 7000


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Everything that a run measured.

    Attributes
    ----------
    benchmark : mapping
        Its name and sizes.
    settings : ExperimentSettings
        As they were used: ranks are cut to the number of eigenvectors that the graph has.
    machine : mapping of str to str
        Processor, cores, versions.
    backend : str
        Name of the backend that it ran on.
    eigenvalues : tuple of float
        The leading ones, descending.
    groups : int
        Number of aggregates that ``hybrid`` has by default.
    exact : Measurement
        The exact solution.
    measurements : mapping of Trial to Measurement
    components : tuple of (size, count)
        How many components of each size the graph has, the smallest first; empty in runs that
        did not tell.
    """

    benchmark: Mapping[str, Any]
    settings: ExperimentSettings
    machine: Mapping[str, Any]
    backend: str
    eigenvalues: tuple[float, ...]
    groups: int
    exact: Measurement
    measurements: Mapping[Trial, Measurement]
    components: tuple[tuple[int, int], ...] = ()

    def __repr__(self) -> str:
        return f"Run({self.benchmark['name']}, {len(self.measurements)} measurements)"

    def to_json(self) -> dict[str, Any]:
        """The run as plain values, which ``from_json`` reads."""
        return {
            "benchmark": dict(self.benchmark),
            "settings": asdict(self.settings),
            "machine": dict(self.machine),
            "backend": self.backend,
            "eigenvalues": list(self.eigenvalues),
            "groups": self.groups,
            "exact": asdict(self.exact),
            "measurements": [asdict(entry) for entry in self.measurements.values()],
            "components": [list(pair) for pair in self.components],
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Run:
        """A run from plain values."""
        measurements = [measurement_of(entry) for entry in plain["measurements"]]
        return cls(
            benchmark=plain["benchmark"],
            settings=_settings(plain["settings"]),
            machine=plain["machine"],
            backend=plain["backend"],
            eigenvalues=tuple(plain["eigenvalues"]),
            groups=plain["groups"],
            exact=measurement_of(plain["exact"]),
            measurements={entry.trial: entry for entry in measurements},
            components=tuple((size, count) for size, count in plain.get("components", ())),
        )


def run_experiments(
    benchmark: Benchmark,
    folder: str | os.PathLike[str],
    *,
    settings: ExperimentSettings | None = None,
    restart: bool = False,
    progress: ProgressOption = None,
    backend: str | Backend = "auto",
) -> Run:
    """Measure everything that the paper's figures and tables show, on a benchmark.

    Parameters
    ----------
    folder
        Folder of the run; it is made if it is not there. An unfinished run of the same benchmark
        and settings is continued.
    settings
        ``ExperimentSettings()`` by default.
    restart
        Remove the measurements of an earlier run from the folder; files of the user stay.
    progress
        Called as ``progress(stage, done, total)``.

    Raises
    ------
    ValueError
        If the folder holds a run of something else, or other files.
    """
    progress = as_progress(progress)
    place = Path(folder)
    settings = ExperimentSettings() if settings is None else settings
    device = select_backend(backend)
    # Before anything is written: a run that cannot begin leaves no folder behind.
    _check_input(benchmark, settings, device)
    header = header_of(benchmark, asdict(settings), device.name)
    if restart:
        restart_run(place, header)
    log = RunLog.open(place, header)
    base = _base_index(benchmark, settings, place / WORK, progress, device)
    settings = _fitting(settings, base)
    eigen = _eigen_index(base, settings, place / WORK, progress)
    exact, best = _exact(log, base, benchmark, place / WORK, progress)
    indexes = _Indexes(base, eigen, benchmark, settings)
    trials = _by_index(trials_of(settings, base))
    for done, trial in enumerate(trials):
        if progress:
            progress("measuring", done, len(trials))
        if trial not in log.measurements:
            log.put(measure(trial, indexes.index_for(trial), benchmark, best))
    if progress:
        progress("measuring", len(trials), len(trials))
    values = base.backend.to_numpy(eigen.state.required_eigenvectors().eigenvalues)
    return Run(
        benchmark=log.header["benchmark"],
        settings=settings,
        machine=log.header["machine"],
        backend=device.name,
        eigenvalues=tuple(float(value) for value in values),
        groups=default_groups(base.state.graph),
        exact=exact,
        measurements={trial: log.measurements[trial] for trial in trials},
        components=_component_sizes(base),
    )


def _component_sizes(index: DiffusionIndex) -> tuple[tuple[int, int], ...]:
    """How many components of each size the graph of an index has."""
    sizes, counts = np.unique(np.bincount(index.state.graph.components), return_counts=True)
    return tuple((int(size), int(count)) for size, count in zip(sizes, counts, strict=True))


def _check_input(benchmark: Benchmark, settings: ExperimentSettings, device: Backend) -> None:
    """Refuse a benchmark that cannot be ranked, or settings that do not fit it."""
    check_count(settings.neighbors, "neighbors", high=benchmark.n - 1)
    for what, vectors in (("descriptors", benchmark.descriptors), ("queries", benchmark.queries)):
        check_vectors(vectors, what, dtype="float32", backend=select_backend("numpy"))
    check_knn(settings.knn, benchmark.descriptors.shape[1], device)
    labels, query_labels = benchmark.labels, benchmark.query_labels
    if labels is not None and query_labels is not None and not np.isin(query_labels, labels).any():
        raise ValueError(
            "no query has a relevant item: no item has the label of a query. Do labels and "
            "query_labels belong together?"
        )


def _by_index(trials: Mapping[str, Sequence[Trial]]) -> list[Trial]:
    """Every trial once; those of one index follow each other, so that each index is made once."""
    distinct = dict.fromkeys(trial for group in trials.values() for trial in group)
    return sorted(
        distinct,
        key=lambda trial: (
            trial.augmented,
            trial.basis,
            trial.rank or 0,
            trial.sparsity or 0,
            trial.threshold,
        ),
    )


def base_index(
    benchmark: Benchmark,
    folder: str | os.PathLike[str],
    *,
    progress: ProgressOption = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """The index that a finished run was measured with, with the default basis."""
    progress = as_progress(progress)
    bare = _base_index(
        benchmark, ExperimentSettings(), Path(folder) / WORK, progress, select_backend(backend)
    )
    return with_basis(bare, "auto", progress=progress)


class _Indexes:
    """Makes the index of each trial when it is needed, and keeps the last one."""

    def __init__(
        self,
        base: DiffusionIndex,
        eigen: DiffusionIndex,
        benchmark: Benchmark,
        settings: ExperimentSettings,
    ) -> None:
        self._base, self._eigen = base, eigen
        self._benchmark, self._settings = benchmark, settings
        self._kept: tuple[object, DiffusionIndex] | None = None

    def index_for(self, trial: Trial) -> DiffusionIndex:
        """The index of a trial."""
        key = (trial.augmented, trial.basis, trial.rank)
        if trial.basis == "sparse-eigen":
            key = (*key, trial.dropped)  # type: ignore[assignment]
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # frees the last one before the next is made
            self._kept = (key, self._made(trial))
        return self._kept[1]

    def _made(self, trial: Trial) -> DiffusionIndex:
        """A new index with the basis, or the augmented database, of a trial."""
        seed = self._settings.seed
        if trial.augmented:
            base, few = self._base, Expansion()
            few = replace(few, neighbors=min(few.neighbors, base.n - 1))
            lists = base.neighbors
            if lists is not None and lists.ids.shape[1] < few.neighbors:
                lists = None
            assert base.descriptors is not None, "trials that augment ask for them"
            vectors = augment_database(
                base.descriptors, expansion=few, lists=lists, backend=base.backend
            )
            return _with_descriptors(base, vectors)
        if trial.basis == "none":
            return self._base
        if trial.basis == "aggregate":
            return with_basis(self._base, "aggregate", rank=trial.rank, seed=seed)
        assert trial.rank is not None
        leading = with_leading(self._eigen, trial.rank)
        if trial.basis == "eigen":
            return leading
        vectors = leading.state.required_eigenvectors()
        basis = vectors.sparsified_for(leading.state.filter, trial.dropped)
        return DiffusionIndex(replace(leading.state, basis=basis))


def _base_index(
    benchmark: Benchmark,
    settings: ExperimentSettings,
    work: Path,
    progress: Progress | None,
    device: Backend,
) -> DiffusionIndex:
    """The index without a basis, built or loaded; its lists and graph are saved in ``work``."""
    folder = work / GRAPH
    if has_index(folder):
        index = load_index(folder, backend=device)
    else:
        index = build_index(
            benchmark.descriptors,
            neighbors=settings.neighbors,
            gamma=settings.gamma,
            alpha=settings.alpha,
            basis="none",
            knn=settings.knn,
            seed=settings.seed,
            progress=progress,
            backend=device,
        )
        # Descriptors are not saved: the user has them, and they may be large.
        DiffusionIndex(replace(index.state, descriptors=None)).save(folder)
    if index.state.descriptors is not None:
        return index
    vectors = check_vectors(
        benchmark.descriptors, "descriptors", dtype=index.dtype, backend=index.backend
    )
    return _with_descriptors(index, unit_rows(vectors, index.backend))


def _with_descriptors(index: DiffusionIndex, units: Array) -> DiffusionIndex:
    """The same index with other unit descriptors (n, d), in the order of the ids."""
    descriptors = index.backend.xp.take(units, index.state.numbering.order, axis=0)
    return DiffusionIndex(replace(index.state, descriptors=descriptors))


def _eigen_index(
    base: DiffusionIndex, settings: ExperimentSettings, work: Path, progress: Progress | None
) -> DiffusionIndex:
    """The index with as many eigenvectors as any trial needs."""
    folder = work / EIGENVECTORS
    rank = max(settings.spectral_rank, settings.rank, *settings.ranks)
    if has_index(folder):
        stored = load_index(folder, backend=base.backend)
        assert stored.basis is not None, "it was stored for its basis"
        return with_basis(base, stored.basis)
    index = with_basis(base, "eigen", rank=rank, seed=settings.seed, progress=progress)
    DiffusionIndex(replace(index.state, descriptors=None, neighbors=None)).save(folder)
    return index


def _exact(
    log: RunLog, base: DiffusionIndex, benchmark: Benchmark, work: Path, progress: Progress | None
) -> tuple[Measurement, HostArray]:
    """The exact solution, measured or loaded, and its top 100 items for every query."""
    path = work / EXACT
    if log.exact is not None and path.is_file():
        return log.exact, np.load(path, allow_pickle=False)
    if progress:
        progress("exact solution", 0, 1)
    lists, device = base.neighbors, base.backend
    assert lists is not None
    precise = build_index_from_neighbors(
        lists.ids,
        device.xp.clip(lists.similarities, min=0),
        neighbors=int(lists.ids.shape[1]),
        descriptors=benchmark.descriptors,
        gamma=base.gamma,
        alpha=base.alpha,
        basis="none",
        keep_neighbors=False,
        dtype="float64",
        backend=device,
    )
    measured, best = solve_exactly(precise, benchmark)
    with replacing(path) as file:
        np.save(file, best, allow_pickle=False)
    log.put_exact(measured)
    if progress:
        progress("exact solution", 1, 1)
    return measured, best


def _fitting(settings: ExperimentSettings, base: DiffusionIndex) -> ExperimentSettings:
    """The settings, with ranks no larger than the graph's largest component allows."""
    size = largest_component(base.state.graph).size
    # Above a third of the component the decomposition is dense: hours, if the component is large.
    most = max(1, size - 1 if size <= _DENSE_ITEMS else size // 3)
    return replace(
        settings,
        rank=min(settings.rank, most),
        spectral_rank=min(settings.spectral_rank, most),
        ranks=tuple(dict.fromkeys(min(rank, most) for rank in settings.ranks)),
    )


def _settings(plain: Mapping[str, Any]) -> ExperimentSettings:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    }
    return ExperimentSettings(**values)
