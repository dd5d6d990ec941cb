"""Measurements of a run, chosen and turned into curves, rows and axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_gpu.lab import published
from hybrid_gpu.lab.chart_panels import Panel, Series
from hybrid_gpu.lab.comparison import Measurement
from hybrid_gpu.lab.experiments import Run


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """What one axis of a panel shows.

    Attributes
    ----------
    label : str
        What stands beside the axis.
    number : callable
        Gives the position of a measurement on the axis; NaN for one that is not drawn.
    log : bool
    """

    label: str
    number: Callable[[Measurement], float]
    log: bool = False


STEPS = Axis("steps", lambda measurement: float(measurement.trial.steps or 0))
SPARSITY = Axis("sparsity", lambda measurement: float(measurement.trial.sparsity or 0))
SHORTLIST = Axis("shortlist", lambda measurement: float(measurement.trial.shortlist or 0))
AGREEMENT = Axis("agreement with exact", lambda measurement: measurement.agreement)
TIME_IN_BATCH = Axis("ms per query", lambda measurement: measurement.diffusion, log=True)
TIME_ALONE = Axis(
    "ms per query, alone",
    lambda measurement: float("nan") if measurement.alone is None else measurement.alone,
    log=True,
)
MEMORY = Axis("memory (MB)", lambda measurement: measurement.bytes / 1e6, log=True)


def quality_axis(score: str) -> Axis:
    """The axis of one quality figure, such as ``"mAP"``."""
    return Axis(score, lambda measurement: measurement.quality[score])


def panel_of(
    curves: Mapping[str, Sequence[Measurement]],
    title: str,
    *,
    across: Axis,
    up: Axis,
    levels: tuple[tuple[str, float], ...] = (),
    label: Callable[[Measurement], str] | None = None,
    joined: bool = True,
) -> Panel:
    """A panel with one series for each curve; curves without a measurement are left out.

    Parameters
    ----------
    curves : mapping of str to sequence of Measurement
    title
        Stands above the panel.
    across, up
        The horizontal and the vertical axis.
    levels
        Dashed horizontal lines, (name, value) each.
    label
        Gives the text beside a point; None for no texts.
    joined
        False draws marks without lines. A single point never has a line.
    """
    series = tuple(
        Series(
            name,
            tuple((across.number(point), up.number(point)) for point in curve),
            labels=tuple(label(point) for point in curve) if label else (),
            joined=joined and len(curve) > 1,
        )
        for name, curve in curves.items()
        if curve
    )
    return Panel(
        title, across.label, up.label, series, log_x=across.log, log_y=up.log, levels=levels
    )


def curve_of(run: Run, *, along: Axis = STEPS, **conditions: Any) -> list[Measurement]:
    """The measurements whose trials meet some conditions, in the order of an axis.

    Parameters
    ----------
    run
    along
        Measurements at the same place on this axis are ordered by rank.
    **conditions
        A field of ``Trial`` and the value that it must have; a tuple lists several values.
    """
    allowed = {
        field: value if isinstance(value, tuple) else (value,)
        for field, value in conditions.items()
    }
    curve = [
        measurement
        for trial, measurement in run.measurements.items()
        if all(getattr(trial, field) in values for field, values in allowed.items())
    ]
    return sorted(curve, key=lambda point: (along.number(point), point.trial.rank or 0))


def numbers_of_groups(run: Run) -> list[int]:
    """How many aggregates the graph has, for each of the group sizes in the settings."""
    return [max(1, run.benchmark["items"] // size) for size in run.settings.items_per_group]


def published_as(run: Run) -> str | None:
    """The name that the paper gives to the benchmark of a run; None if it has no such benchmark."""
    return published.counterpart(run.benchmark["name"], run.benchmark["distractors"])


def score_of(run: Run) -> str:
    """The quality that figures show: mAP, in the Medium setup if there are several setups."""
    return "mAP" if "mAP" in run.exact.quality else "mAP medium"


def size_cells(measurement: Measurement) -> dict[str, Any]:
    """The cells of a row that give the rank and the number of steps."""
    return {"rank": measurement.trial.rank, "steps": measurement.trial.steps}


def cost_cells(measurement: Measurement, score: str) -> dict[str, Any]:
    """The cells of a row that give quality, time and memory."""
    return {
        score: measurement.quality[score],
        "agreement@100": measurement.agreement,
        "ms in a batch": measurement.diffusion,
        "ms alone": measurement.alone,
        "MB": measurement.bytes / 1e6,
    }
