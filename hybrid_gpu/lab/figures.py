"""The paper's figures and tables, made from measurements: rows to print and panels to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybrid_gpu.diffusion.filters import condition_number, error_bounds
from hybrid_gpu.lab import published
from hybrid_gpu.lab.comparison import Measurement, Trial
from hybrid_gpu.lab.experiments import Run
from hybrid_gpu.lab.plots import Contours, Panel, Series
from hybrid_gpu.lab.report import Section

_BOUND_STEPS = tuple(range(21))
_BOUND_LEVELS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)


def sections_of(run: Run) -> list[Section]:
    """Every figure and table of the paper, in its order."""
    makers = (_figure_1, _figure_2, _figure_3, _figure_4, _figure_5, _table_1, _table_2)
    return [make(run) for make in makers]


def introduction_of(run: Run) -> str:
    """What was measured, on what, and how to read it."""
    known, settings = run.benchmark, run.settings
    distractors = f", {known['distractors']:,} of them distractors" if known["distractors"] else ""
    return (
        f"The experiments of the paper on {known['name']}: {known['items']:,} items{distractors}, "
        f"{known['queries']:,} queries, {known['dimensions']:,} dimensions; graph of "
        f"{settings.neighbors} reciprocal neighbors, similarity to the power {settings.gamma:g}, "
        f"alpha {settings.alpha:g}, observations of 5 items.\n\n"
        "Rankings hold every item, best first. Items with equal scores are ordered by their "
        "similarity to the query, then by id: nothing ties at random. Times are the fastest of "
        "three warm runs: 'in a batch' solves up to 128 queries side by side, 'alone' one at a "
        "time, which is how the paper measured; both are diffusion only, without the first stage. "
        "Memory is what is kept beyond the descriptors. 'Exact' is the solution of the linear "
        "system in float64 to a residual of 1e-10, and agreement is the part of its top 100 that "
        "a method also returns."
    )


def _figure_1(run: Run) -> Section:
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
    return Section(
        "figure-1", "Figure 1: spectrum and bound", text, rows, (spectrum, contours), shown=False
    )


def _figure_2(run: Run) -> Section:
    rank, score = run.settings.rank, _score(run)
    wanted = {
        "temporal": lambda one: one.method == "temporal",
        "hybrid-paper": lambda one: one.method == "hybrid-paper" and one.rank == rank,
        "shybrid": lambda one: _is_shybrid(one, run) and one.rank == rank,
        "hybrid, eigenvectors": lambda one: _is(one, "hybrid", "eigen", rank),
        "hybrid": lambda one: _is(one, "hybrid", "aggregate", run.groups),
        "fsr": lambda one: one.method == "fsr",
        "fsrw": lambda one: one.method == "fsrw",
    }
    curves = {name: _chosen(run, keep) for name, keep in wanted.items()}
    theirs = _published(run) == "ROxford + R1M"
    rows = []
    for name, curve in curves.items():
        for one in curve:
            steps = one.trial.steps or 0
            row = {"method": name, **_settings_of(one), **_costs(one, score)}
            if theirs:
                told = published.FIGURE_2.get(name, {}).get(steps)
                row |= {
                    "paper: mAP": None if told is None else told[0],
                    "paper: s": None if told is None else told[1],
                }
            rows.append(row)
    level = (("exact", run.exact.quality[score]),)
    panels = (
        _panel(curves, "against steps", "steps", score, _steps, _quality(score), levels=level),
        _panel(
            curves,
            "against time, in a batch",
            "ms per query",
            score,
            _diffusion,
            _quality(score),
            levels=level,
            log_x=True,
        ),
        _panel(
            curves,
            "the exact top 100, against steps",
            "steps",
            "agreement with exact",
            _steps,
            _agreement,
        ),
        _panel(
            curves,
            "the exact top 100, against time",
            "ms per query",
            "agreement with exact",
            _diffusion,
            _agreement,
            log_x=True,
        ),
    )
    text = (
        f"Rank {rank} for the hybrid methods, {run.settings.sparsities[-1]:.0%} of the entries "
        f"dropped for SHybrid, rank {run.settings.spectral_rank:,} for FSR and FSRw, "
        f"{run.groups:,} groups for 'hybrid', which needs no eigenvectors. At 0 steps only the "
        "spectral (or coarse) part is there. The lower panels show what class labels hide: how "
        "close each method is to the solution that it approximates."
    )
    return Section(
        "figure-2",
        f"Figure 2: {score} against steps and time",
        text,
        tuple(rows),
        panels,
        shown=False,
    )


def _figure_3(run: Run) -> Section:
    score = _score(run)
    most = max((count for count in run.settings.steps if count <= 5), default=5)
    few = [one for one in run.measurements.values() if (one.trial.steps or 0) <= most]
    plain = sorted((one for one in few if one.trial.method == "temporal"), key=_steps)
    curves = {"r = 0": plain}
    for rank in run.settings.ranks:
        curves[f"r = {rank}"] = sorted(
            (one for one in few if _is(one.trial, "hybrid-paper", "eigen", rank)), key=_steps
        )
    grouped = {"no groups": plain}
    for groups in _groupings(run):
        grouped[f"{groups:,} groups"] = sorted(
            (one for one in few if _is(one.trial, "hybrid", "aggregate", groups)), key=_steps
        )
    rows = [
        {"method": method, **_settings_of(one), **_costs(one, score)}
        for method, part in (("hybrid-paper", curves), ("hybrid", grouped))
        for curve in part.values()
        for one in curve
        if one.trial.method == method
    ]
    level = (("exact", run.exact.quality[score]),)
    panels = (
        _panel(curves, "eigenvectors", "steps", score, _steps, _quality(score), levels=level),
        _panel(grouped, "aggregates", "steps", score, _steps, _quality(score), levels=level),
    )
    text = (
        "More eigenvectors need fewer steps, as in the paper. Groups of neighboring items do the "
        "same without any eigenvector."
    )
    return Section(
        "figure-3", "Figure 3: rank against steps", text, tuple(rows), panels, shown=False
    )


def _figure_4(run: Run) -> Section:
    rank, score = run.settings.rank, _score(run)
    whole = run.measurements[Trial("hybrid-paper", "eigen", rank, 5)]
    sparse = {
        "shybrid": _chosen(
            run, lambda one: _is(one, "shybrid", "eigen", rank) and one.steps == 5, _sparsity
        ),
        "hybrid": _chosen(run, lambda one: one.basis == "sparse-eigen", _sparsity),
    }
    rows = [
        {"method": name, "sparsity": one.trial.sparsity, **_costs(one, score)}
        for name, curve in sparse.items()
        for one in curve
    ]
    level = (("nothing dropped", whole.quality[score]),)
    panels = (
        _panel(sparse, score, "sparsity", score, _sparsity, _quality(score), levels=level),
        _panel(
            sparse,
            "the exact top 100",
            "sparsity",
            "agreement with exact",
            _sparsity,
            _agreement,
            levels=(("nothing dropped", whole.agreement),),
        ),
    )
    text = (
        f"The smallest entries of {rank} eigenvectors are dropped, 5 steps. SHybrid solves "
        "another system then; 'hybrid' deflates with the same sparse vectors and goes on towards "
        "the exact solution."
    )
    return Section("figure-4", "Figure 4: sparsification", text, tuple(rows), panels)


def _figure_5(run: Run) -> Section:
    score, ranks = _score(run), [one for one in run.settings.ranks if one <= run.settings.rank]
    groups = [n for n in _groupings(run) if n != run.groups]
    clouds: dict[str, list[Measurement]] = {
        "temporal": [run.measurements[Trial("temporal", steps=20)]],
        "truncated": _chosen(run, lambda one: one.method == "truncated", _shortlist),
        "fsrw": _chosen(run, lambda one: one.method == "fsrw"),
        "hybrid-paper": _chosen(
            run, lambda one: one.method == "hybrid-paper" and one.steps == 5 and one.rank in ranks
        ),
        "shybrid": _chosen(
            run, lambda one: _is_shybrid(one, run) and one.steps == 5 and one.rank in ranks
        ),
        "hybrid": _chosen(
            run,
            lambda one: (
                one.method == "hybrid"
                and one.basis == "aggregate"
                and one.steps == 5
                and one.rank in (*groups, run.groups)
            ),
        ),
    }
    rows = [
        {
            "method": name,
            "shortlist": one.trial.shortlist,
            **_settings_of(one),
            **_costs(one, score),
        }
        for name, cloud in clouds.items()
        for one in cloud
    ]
    time, memory = "ms per query, alone", "memory (MB)"

    def panel(title: str, x: str, y: str, across: _Number, up: _Number, log_x: bool) -> Panel:
        return _panel(
            clouds,
            title,
            x,
            y,
            across,
            up,
            log_x=log_x,
            log_y=y == memory,
            joined=False,
            label=_size_label,
        )

    panels = (
        panel(f"{score} and time", time, score, _alone, _quality(score), True),
        panel("memory and time", time, memory, _alone, _megabytes, True),
        panel(f"memory and {score}", score, memory, _quality(score), _megabytes, False),
    )
    text = (
        "Labels are ranks, numbers of groups, and shortlists in thousands. Temporal and truncated "
        "take 20 steps, the hybrid methods 5."
    )
    return Section(
        "figure-5", f"Figure 5: time, memory and {score}", text, tuple(rows), panels, columns=3
    )


def _table_1(run: Run) -> Section:
    score = _score(run)
    chosen = _tabled(
        run, ("temporal", "truncated", "fsrw", "shybrid", "hybrid, eigenvectors", "hybrid")
    )
    base = chosen["temporal"]
    told = published.TABLE_1
    same = _published(run) == "ROxford + R1M"
    rows = []
    for name, one in chosen.items():
        theirs = told.get(name)
        row = {
            "method": name,
            **_settings_of(one),
            score: one.quality[score],
            **({"paper: mAP": theirs and theirs[0]} if same else {}),
            "agreement@100": one.agreement,
            "ms alone": one.alone,
            "ms in a batch": one.diffusion,
            "MB": one.bytes / 1e6,
            "time / temporal": _ratio(one.alone, base.alone),
            "paper: time / temporal": theirs and theirs[1] / told["temporal"][1],
            "memory / temporal": one.bytes / base.bytes,
            "paper: memory / temporal": theirs and theirs[2] / told["temporal"][2],
        }
        rows.append(row)
    text = (
        "Temporal and truncated take 20 steps, SHybrid and hybrid 5. The paper's columns are its "
        "Table 1 on ROxford + R1M: seconds in MATLAB and a million items are another world, so "
        "what is compared is each method with temporal filtering in the same run."
    )
    return Section("table-1", "Table 1: quality, time and memory", text, tuple(rows))


def _table_2(run: Run) -> Section:
    names = tuple(one for one in run.exact.quality if not one.startswith(("mP@1 ", "mP@5 ")))
    theirs = published.TABLE_2.get(_published(run) or "", {})
    rows = []
    for name, one in _all_methods(run).items():
        row = {"method": name, **_settings_of(one)}
        for part in names:
            row[part] = one.quality[part]
            if theirs and part in ("mAP medium", "mAP hard"):
                told = theirs.get(one.trial.method) if not one.trial.augmented else None
                row[f"paper: {part[4:]}"] = told and told[part == "mAP hard"]
        row |= {
            "agreement@100": one.agreement,
            "ms per query": one.milliseconds,
            "of it diffusion": one.diffusion,
            "MB": one.bytes / 1e6,
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
    """The one trial of each method that the tables show."""
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


_Number = Callable[[Measurement], float]


def _panel(
    curves: Mapping[str, Sequence[Measurement]],
    title: str,
    x: str,
    y: str,
    across: _Number,
    up: _Number,
    *,
    label: Callable[[Measurement], str] | None = None,
    joined: bool = True,
    **style: Any,
) -> Panel:
    series = tuple(
        Series(
            name,
            tuple((across(one), up(one)) for one in curve),
            labels=tuple(label(one) for one in curve) if label else (),
            joined=joined and len(curve) > 1,
        )
        for name, curve in curves.items()
        if curve
    )
    return Panel(title, x, y, series, **style)


def _chosen(
    run: Run, keep: Callable[[Trial], bool], order: _Number | None = None
) -> list[Measurement]:
    kept = [one for one in run.measurements.values() if keep(one.trial)]
    kept.sort(key=lambda one: one.trial.rank or 0)
    return sorted(kept, key=order or _steps)


def _is(trial: Trial, method: str, basis: str, rank: int) -> bool:
    return (trial.method, trial.basis, trial.rank) == (method, basis, rank)


def _is_shybrid(trial: Trial, run: Run) -> bool:
    return trial.method == "shybrid" and trial.sparsity == run.settings.sparsities[-1]


def _groupings(run: Run) -> list[int]:
    return [max(1, run.benchmark["items"] // size) for size in run.settings.items_per_group]


def _published(run: Run) -> str | None:
    return published.counterpart(run.benchmark["name"], run.benchmark["distractors"])


def _score(run: Run) -> str:
    """What the figures show: mAP, in the Medium setup where there are several."""
    return "mAP" if "mAP" in run.exact.quality else "mAP medium"


def _settings_of(one: Measurement) -> dict[str, Any]:
    return {"rank": one.trial.rank, "steps": one.trial.steps}


def _costs(one: Measurement, score: str) -> dict[str, Any]:
    return {
        score: one.quality[score],
        "agreement@100": one.agreement,
        "ms in a batch": one.diffusion,
        "ms alone": one.alone,
        "MB": one.bytes / 1e6,
    }


def _size_label(one: Measurement) -> str:
    if one.trial.shortlist is not None:
        return f"{one.trial.shortlist / 1000:.3g}k"
    return "" if one.trial.rank is None else str(one.trial.rank)


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _quality(score: str) -> _Number:
    return lambda one: one.quality[score]


def _steps(one: Measurement) -> float:
    return float(one.trial.steps or 0)


def _sparsity(one: Measurement) -> float:
    return float(one.trial.sparsity or 0)


def _diffusion(one: Measurement) -> float:
    return one.diffusion


def _alone(one: Measurement) -> float:
    return float("nan") if one.alone is None else one.alone


def _agreement(one: Measurement) -> float:
    return one.agreement


def _shortlist(one: Measurement) -> float:
    return float(one.trial.shortlist or 0)


def _megabytes(one: Measurement) -> float:
    return one.bytes / 1e6
