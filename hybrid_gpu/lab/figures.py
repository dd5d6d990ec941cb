"""The paper's figures and tables, made from measurements: rows to print and panels to draw."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.diffusion.filters import condition_number, error_bounds
from hybrid_gpu.diffusion.sparsity import THRESHOLDS
from hybrid_gpu.lab import published
from hybrid_gpu.lab.chart_panels import Contours, Panel, Series
from hybrid_gpu.lab.comparison import Measurement, Trial
from hybrid_gpu.lab.curves import (
    AGREEMENT,
    MEMORY,
    SHORTLIST,
    SPARSITY,
    STEPS,
    TIME_ALONE,
    TIME_IN_BATCH,
    Axis,
    cost_cells,
    curve_of,
    numbers_of_groups,
    panel_of,
    published_as,
    quality_axis,
    score_of,
    size_cells,
)
from hybrid_gpu.lab.experiments import Run
from hybrid_gpu.lab.report_sections import ReportSection
from hybrid_gpu.lab.tables import components, table_1, table_2

# What is added to the name of a method that drops entries, by how they are compared.
_BY = {"entries": "", "filtered": ", filtered"}
_BOUND_STEPS = tuple(range(21))
_BOUND_LEVELS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)


def sections_of(run: Run) -> list[ReportSection]:
    """The result, what the graph is like, and the other figures and tables, as in the paper."""
    makers = (_figure_1, _figure_2, _figure_3, _figure_4, _figure_5, table_1)
    graph = [components(run)] if run.components else []
    return [table_2(run), *graph, *(make(run) for make in makers)]


def introduction_of(run: Run) -> str:
    """The first paragraph of a report: the data, the settings, and the result."""
    facts, settings, score = run.benchmark, run.settings, score_of(run)
    plain = run.measurements[Trial("nn")]
    ours = run.measurements[Trial("hybrid", "aggregate", run.groups, 5)]
    distractors = f", {facts['distractors']:,} of them distractors" if facts["distractors"] else ""
    return (
        f"The experiments of the paper on {facts['name']}: {facts['items']:,} items{distractors}, "
        f"{facts['queries']:,} queries, {facts['dimensions']:,} dimensions; graph of "
        f"{settings.neighbors} reciprocal neighbors, similarity to the power {settings.gamma:g}, "
        f"alpha {settings.alpha:g}, observations of 5 items. {score}: {plain.quality[score]:.1f} "
        f"by similarity alone (nn), {run.exact.quality[score]:.1f} by exact diffusion, "
        f"{ours.quality[score]:.1f} by 5 steps of 'hybrid'."
    )


def _figure_1(run: Run) -> ReportSection:
    """The spectrum, and the bound on the error that follows from it."""
    values = run.eigenvalues
    bounds = error_bounds(values, alpha=run.settings.alpha, steps=_BOUND_STEPS)
    rows = tuple(
        {
            "rank": rank,
            "largest eigenvalue left": values[rank],
            "condition number": condition_number(
                run.settings.alpha, largest=min(values[rank], 1.0)
            ),
            **{f"bound after {count} steps": bounds[rank, count] for count in (1, 2, 3, 5, 10, 20)},
        }
        for rank in range(len(values))
    )
    order = tuple(range(1, len(values) + 1))
    spectrum = Panel(
        "(a) spectrum",
        "order j",
        "eigenvalue",
        (Series("", tuple(zip(map(float, order), values, strict=True))),),
        edges=((f"rank {run.settings.rank}", run.settings.rank),),
    )
    contours = Contours(
        "(b) bound on the relative error",
        "rank r (space)",
        "steps (time)",
        across=tuple(float(rank) for rank in range(len(values))),
        up=tuple(float(count) for count in _BOUND_STEPS),
        values=np.ascontiguousarray(bounds.T),
        levels=_BOUND_LEVELS,
    )
    text = (
        f"The {len(values):,} leading eigenvalues of the normalized adjacency on its largest "
        "component, and the upper bound on the relative error of conjugate gradients when the "
        "first r of them are removed. The smallest eigenvalue is taken as -1, which is safe."
    )
    return ReportSection(
        "figure-1", "Figure 1: spectrum and bound", text, rows, (spectrum, contours), shown=False
    )


def _figure_2(run: Run) -> ReportSection:
    """Quality and agreement with the exact solution, against steps and against time."""
    rank, score = run.settings.rank, score_of(run)
    sparsity = run.settings.sparsities[-1]
    curves = {
        "temporal": curve_of(run, method="temporal"),
        "hybrid-paper": curve_of(run, method="hybrid-paper", rank=rank),
        "shybrid": curve_of(
            run, method="shybrid", rank=rank, sparsity=sparsity, threshold="entries"
        ),
        "hybrid, eigenvectors": curve_of(run, method="hybrid", basis="eigen", rank=rank),
        "hybrid": curve_of(run, method="hybrid", basis="aggregate", rank=run.groups),
        **{name: curve_of(run, method=name) for name in ("fsr", "fsrw", "fsr-similarity")},
    }
    same_benchmark = published_as(run) == "ROxford + R1M"
    rows = []
    for name, curve in curves.items():
        for measurement in curve:
            row = {"method": name, **size_cells(measurement), **cost_cells(measurement, score)}
            if same_benchmark:
                steps = measurement.trial.steps or 0
                paper_map, paper_time = published.FIGURE_2.get(name, {}).get(steps, (None, None))
                row |= {"paper: mAP": paper_map, "paper: s": paper_time}
            rows.append(row)
    level, quality = (("exact", run.exact.quality[score]),), quality_axis(score)
    panels = (
        panel_of(curves, "against steps", across=STEPS, up=quality, levels=level),
        panel_of(
            curves, "against time, in a batch", across=TIME_IN_BATCH, up=quality, levels=level
        ),
        panel_of(curves, "the exact top 100, against steps", across=STEPS, up=AGREEMENT),
        panel_of(curves, "the exact top 100, against time", across=TIME_IN_BATCH, up=AGREEMENT),
    )
    text = (
        f"Rank {rank} for the hybrid methods, {sparsity:.0%} of the entries "
        f"dropped for SHybrid, rank {run.settings.spectral_rank:,} for the FSR methods, "
        f"{run.groups:,} groups for 'hybrid', which needs no eigenvectors. At 0 steps only the "
        "spectral (or coarse) part is there. The lower panels show what class labels hide: how "
        "close each method is to the solution that it approximates."
    )
    title = f"Figure 2: {score} against steps and time"
    return ReportSection("figure-2", title, text, tuple(rows), panels, shown=False)


def _figure_3(run: Run) -> ReportSection:
    """Quality against steps, for several numbers of eigenvectors and of groups."""
    score, most_steps = score_of(run), 5
    few = tuple(count for count in (0, *run.settings.steps) if count <= most_steps)
    plain = curve_of(run, method="temporal", steps=few)
    by_rank = {"r = 0": plain} | {
        f"r = {rank}": curve_of(run, method="hybrid-paper", basis="eigen", rank=rank, steps=few)
        for rank in run.settings.ranks
    }
    by_groups = {"no groups": plain} | {
        f"{groups:,} groups": curve_of(
            run, method="hybrid", basis="aggregate", rank=groups, steps=few
        )
        for groups in numbers_of_groups(run)
    }
    rows = [
        {"method": method, **size_cells(measurement), **cost_cells(measurement, score)}
        for method, curves in (("hybrid-paper", by_rank), ("hybrid", by_groups))
        for curve in curves.values()
        for measurement in curve
        if measurement.trial.method == method
    ]
    level, quality = (("exact", run.exact.quality[score]),), quality_axis(score)
    panels = (
        panel_of(by_rank, "eigenvectors", across=STEPS, up=quality, levels=level),
        panel_of(by_groups, "aggregates", across=STEPS, up=quality, levels=level),
    )
    text = (
        "More eigenvectors need fewer steps, as in the paper. Groups of neighboring items do the "
        "same without any eigenvector."
    )
    return ReportSection(
        "figure-3", "Figure 3: rank against steps", text, tuple(rows), panels, shown=False
    )


def _figure_4(run: Run) -> ReportSection:
    """Quality and agreement when small entries of the eigenvectors are dropped."""
    rank, score = run.settings.rank, score_of(run)
    whole = run.measurements[Trial("hybrid-paper", "eigen", rank, 5)]
    curves = {
        name + _BY[threshold]: curve_of(
            run, along=SPARSITY, method=name, basis=basis, rank=rank, steps=5, threshold=threshold
        )
        for name, basis in (("shybrid", "eigen"), ("hybrid", "sparse-eigen"))
        for threshold in THRESHOLDS
    }
    rows = [
        {
            "method": name,
            "sparsity": measurement.trial.sparsity,
            **cost_cells(measurement, score),
        }
        for name, curve in curves.items()
        for measurement in curve
    ]
    panels = (
        panel_of(
            curves,
            score,
            across=SPARSITY,
            up=quality_axis(score),
            levels=(("nothing dropped", whole.quality[score]),),
        ),
        panel_of(
            curves,
            "the exact top 100",
            across=SPARSITY,
            up=AGREEMENT,
            levels=(("nothing dropped", whole.agreement),),
        ),
    )
    text = (
        f"The smallest entries of {rank} eigenvectors are dropped, 5 steps. SHybrid then solves "
        "another system; 'hybrid' deflates with the same sparse vectors and goes on towards "
        "the exact solution. 'Filtered' drops the smallest entries of the vectors as the spectral "
        "part weighs them, which spares the slowest vectors."
    )
    return ReportSection("figure-4", "Figure 4: sparsification", text, tuple(rows), panels)


def _figure_5(run: Run) -> ReportSection:
    """Time, memory and quality of every method, each against the other two."""
    score = score_of(run)
    ranks = tuple(rank for rank in run.settings.ranks if rank <= run.settings.rank)
    sparsity = run.settings.sparsities[-1]
    groups = (*numbers_of_groups(run), run.groups)
    clouds: dict[str, list[Measurement]] = {
        "temporal": [run.measurements[Trial("temporal", steps=20)]],
        "truncated": curve_of(run, along=SHORTLIST, method="truncated"),
        "fsrw": curve_of(run, method="fsrw"),
        "hybrid-paper": curve_of(run, method="hybrid-paper", steps=5, rank=ranks),
        "shybrid": curve_of(
            run, method="shybrid", sparsity=sparsity, threshold="entries", steps=5, rank=ranks
        ),
        "hybrid": curve_of(run, method="hybrid", basis="aggregate", steps=5, rank=groups),
    }
    rows = [
        {
            "method": name,
            "shortlist": measurement.trial.shortlist,
            **size_cells(measurement),
            **cost_cells(measurement, score),
        }
        for name, cloud in clouds.items()
        for measurement in cloud
    ]

    def panel(title: str, across: Axis, up: Axis) -> Panel:
        return panel_of(clouds, title, across=across, up=up, joined=False, label=_size_label)

    quality = quality_axis(score)
    panels = (
        panel(f"{score} and time", TIME_ALONE, quality),
        panel("memory and time", TIME_ALONE, MEMORY),
        panel(f"memory and {score}", quality, MEMORY),
    )
    text = (
        "Labels are ranks, numbers of groups, and shortlists in thousands. Temporal and truncated "
        "take 20 steps, the hybrid methods 5."
    )
    title = f"Figure 5: time, memory and {score}"
    return ReportSection("figure-5", title, text, tuple(rows), panels, columns=3)


def _size_label(measurement: Measurement) -> str:
    trial = measurement.trial
    if trial.shortlist is not None:
        return f"{trial.shortlist / 1000:.3g}k"
    return "" if trial.rank is None else str(trial.rank)
