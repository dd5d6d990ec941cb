"""Curves and panels, from made-up measurements."""

from __future__ import annotations

import math
from dataclasses import replace

from made_up_runs import run_of

from hybrid_gpu.lab.curves import MEMORY, STEPS, TIME_ALONE, curve_of, panel_of, quality_axis


def test_curve_meets_all_conditions_in_the_order_of_its_axis():
    run = run_of()
    curve = curve_of(run, method="hybrid-paper", rank=(3, 6), steps=(0, 1))
    trials = [(point.trial.steps, point.trial.rank) for point in curve]
    assert trials == [(0, 3), (0, 6), (1, 3), (1, 6)]
    assert {point.trial.method for point in curve} == {"hybrid-paper"}
    assert curve_of(run, method="hybrid-paper", rank=99) == []


def test_panel_has_a_series_for_each_curve_that_has_points():
    run = run_of()
    curves = {"temporal": curve_of(run, method="temporal"), "none": [], "fsr": [run.exact]}
    panel = panel_of(curves, "title", across=STEPS, up=quality_axis("mAP"), label=repr)
    assert [series.name for series in panel.series] == ["temporal", "fsr"]
    assert [series.joined for series in panel.series] == [True, False]
    assert panel.series[0].points == tuple(
        (point.trial.steps, point.quality["mAP"]) for point in curves["temporal"]
    )
    assert panel.series[1].labels == (repr(run.exact),)
    assert (panel.x, panel.y, panel.log_x, panel.log_y) == ("steps", "mAP", False, False)


def test_axes_of_time_and_memory_are_logarithmic_and_skip_what_was_not_measured():
    run = run_of()
    unmeasured = replace(run.exact, alone=None)
    panel = panel_of({"exact": [unmeasured]}, "", across=TIME_ALONE, up=MEMORY)
    assert (panel.log_x, panel.log_y) == (True, True)
    ((x, y),) = panel.series[0].points
    assert math.isnan(x)
    assert y == run.exact.bytes / 1e6
