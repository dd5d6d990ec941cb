"""The paper's tables, made from the measurements of a run."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_gpu.lab import published
from hybrid_gpu.lab.comparison import Measurement, Trial
from hybrid_gpu.lab.curves import published_as, score_of, size_cells
from hybrid_gpu.lab.experiments import Run
from hybrid_gpu.lab.report_sections import Section


def table_1(run: Run) -> Section:
    """Quality, time and memory of the methods, each beside temporal filtering."""
    score = score_of(run)
    methods = _tabled(
        run, ("temporal", "truncated", "fsrw", "shybrid", "hybrid, eigenvectors", "hybrid")
    )
    base = methods["temporal"]
    same_benchmark = published_as(run) == "ROxford + R1M"
    _, paper_base_time, paper_base_memory = published.TABLE_1["temporal"]
    rows = []
    for name, measurement in methods.items():
        paper_map, paper_time, paper_memory = published.TABLE_1.get(name, (None, None, None))
        row = {
            "method": name,
            **size_cells(measurement),
            score: measurement.quality[score],
            **({"paper: mAP": paper_map} if same_benchmark else {}),
            "agreement@100": measurement.agreement,
            "ms alone": measurement.alone,
            "ms in a batch": measurement.diffusion,
            "MB": measurement.bytes / 1e6,
            "time / temporal": _ratio(measurement.alone, base.alone),
            "paper: time / temporal": _ratio(paper_time, paper_base_time),
            "memory / temporal": measurement.bytes / base.bytes,
            "paper: memory / temporal": _ratio(paper_memory, paper_base_memory),
        }
        rows.append(row)
    text = (
        "Temporal and truncated take 20 steps, SHybrid and hybrid 5. The paper's columns are its "
        "Table 1 on ROxford + R1M. Its seconds are those of MATLAB on a million items, so they "
        "cannot be compared directly: each method is compared with temporal filtering in the same "
        "run."
    )
    return Section("table-1", "Table 1: quality, time and memory", text, tuple(rows))


def table_2(run: Run) -> Section:
    """Every method, with all quality figures of the benchmark's protocol."""
    scores = tuple(name for name in run.exact.quality if not name.startswith(("mP@1 ", "mP@5 ")))
    paper = published.TABLE_2.get(published_as(run) or "", {})
    rows = []
    for name, measurement in _all_methods(run).items():
        row = {"method": name, **size_cells(measurement)}
        trial = measurement.trial
        medium, hard = (None, None) if trial.augmented else paper.get(trial.method, (None, None))
        paper_scores = {"mAP medium": medium, "mAP hard": hard}
        for score in scores:
            row[score] = measurement.quality[score]
            if paper and score in paper_scores:
                row[f"paper: {score.removeprefix('mAP ')}"] = paper_scores[score]
        row |= {
            "agreement@100": measurement.agreement,
            "ms per query": measurement.milliseconds,
            "of it diffusion": measurement.diffusion,
            "MB": measurement.bytes / 1e6,
        }
        rows.append(row)
    text = (
        "All methods. 'ms per query' is everything in a batch: the first stage, diffusion, and the "
        "top 100; for the exact solution, a full ranking in float64."
    )
    return Section("table-2", "Table 2: all methods", text, tuple(rows))


def _all_methods(run: Run) -> dict[str, Measurement]:
    names = ("temporal", "truncated", "fsr", "fsrw", "hybrid-paper", "shybrid")
    return {
        "nn": run.measurements[Trial("nn")],
        "alpha-qe": run.measurements[Trial("alpha-qe")],
        "nn, augmented database": run.measurements[Trial("nn", augmented=True)],
        **_tabled(run, (*names, "hybrid, eigenvectors", "hybrid")),
        "hybrid, 10 steps": run.measurements[Trial("hybrid", "aggregate", run.groups, 10)],
        "exact": run.exact,
    }


def _tabled(run: Run, names: Sequence[str]) -> dict[str, Measurement]:
    """The trial of each of these methods that the tables show."""
    settings, n = run.settings, run.benchmark["items"]
    part = settings.shortlists[min(1, len(settings.shortlists) - 1)]
    sparsity = settings.sparsities[-1]
    trials = {
        "temporal": Trial("temporal", steps=20),
        "truncated": Trial("truncated", steps=20, shortlist=max(1, round(part * n))),
        "fsr": Trial("fsr", "eigen", settings.spectral_rank),
        "fsrw": Trial("fsrw", "eigen", settings.spectral_rank),
        "hybrid-paper": Trial("hybrid-paper", "eigen", settings.rank, 5),
        "shybrid": Trial("shybrid", "eigen", settings.rank, 5, sparsity=sparsity),
        "hybrid, eigenvectors": Trial("hybrid", "eigen", settings.rank, 5),
        "hybrid": Trial("hybrid", "aggregate", run.groups, 5),
    }
    return {name: run.measurements[trials[name]] for name in names}


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
