"""Tables of the paper, from made-up measurements."""

import json
from dataclasses import replace

import pytest
from made_up_runs import named, run_of

import hybrid_gpu as hg
from hybrid_gpu.lab.comparison import Trial
from hybrid_gpu.lab.experiments import Run
from hybrid_gpu.lab.figures import sections_of


def test_table_1_holds_each_method_against_temporal():
    run = run_of()
    rows = {row["method"]: row for row in named(sections_of(run), "table-1").rows}
    names = ["temporal", "truncated", "fsrw", "shybrid", "hybrid, eigenvectors", "hybrid"]
    assert list(rows) == names
    base = run.measurements[Trial("temporal", steps=20)]
    ours = run.measurements[Trial("hybrid", "aggregate", run.groups, 5)]
    assert rows["hybrid"]["time / temporal"] == pytest.approx(ours.alone / base.alone)
    assert rows["hybrid"]["memory / temporal"] == pytest.approx(ours.bytes / base.bytes)
    assert rows["hybrid"]["paper: time / temporal"] is None
    assert rows["shybrid"]["paper: time / temporal"] == pytest.approx(0.9 / 2.8)
    assert rows["fsrw"]["paper: memory / temporal"] == pytest.approx(35_606 / 205)
    # The paper's mAP says nothing about other data.
    assert "paper: mAP" not in rows["temporal"]


def test_the_papers_own_data_bring_its_own_figures():
    run = run_of("roxford5k", distractors=100, protocol="setups")
    sections = sections_of(run)
    rows = {row["method"]: row for row in named(sections, "table-2").rows}
    assert (rows["shybrid"]["paper: medium"], rows["shybrid"]["paper: hard"]) == (62.6, 34.4)
    assert rows["nn, augmented database"]["paper: medium"] is None
    assert rows["hybrid"]["paper: medium"] is None
    curve = named(sections, "figure-2").rows
    assert [row["paper: mAP"] for row in curve if row["method"] == "temporal"] == [
        None,
        56.81,
        61.58,
    ]
    assert named(sections, "table-1").rows[0]["paper: mAP"] == 61.6


def test_table_2_has_every_method_and_the_exact_solution():
    rows = named(sections_of(run_of()), "table-2").rows
    methods = [row["method"] for row in rows]
    assert set(hg.METHODS) - {"precomputed", "local"} <= set(methods)
    assert methods[-1] == "exact"
    assert rows[-1]["mAP"] == 500


def with_scores(run, **scores):
    """A run whose methods have these mAP, the paper's settings of each."""
    changed = {
        trial: replace(one, quality={**one.quality, "mAP": scores[name]})
        for trial, one in run.measurements.items()
        for name in [trial.method.replace("-", "_") + trial.threshold.removeprefix("entries")]
        if name in scores
    }
    return replace(run, measurements={**run.measurements, **changed})


def test_low_figures_of_fsrw_and_shybrid_are_explained_by_what_was_measured():
    usual = {"nn": 40.0, "fsr": 50.0, "hybrid_paper": 60.0}
    low = with_scores(
        run_of(), **usual, fsrw=42.0, fsr_similarity=51.5, shybrid=30.0, shybridfiltered=55.0
    )
    text = named(sections_of(low), "table-2").notes
    assert "FSRw has a mAP of 42.0, FSR one of 50.0." in text
    assert "similarity alone (nn) has 40.0" in text
    assert "left out: 51.5" in text
    assert "SHybrid keeps 0.6 of 6 entries per item" in text
    sparse = {
        threshold: low.measurements[
            Trial("shybrid", "eigen", 6, 5, sparsity=0.9, threshold=threshold)
        ].agreement
        for threshold in ("entries", "filtered")
    }
    assert f"shybrid 30.0 ({sparse['entries']:.3f})" in text
    assert f"shybrid, filtered 55.0 ({sparse['filtered']:.3f})." in text
    assert "Beside Table 2 stands why" in named(sections_of(low), "table-1").text
    fair = with_scores(run_of(), **usual, fsrw=49.5, shybrid=59.5, shybridfiltered=59.5)
    text = named(sections_of(fair), "table-2").notes
    assert "FSRw" not in text
    assert "SHybrid" not in text
    assert "Beside Table 2" not in named(sections_of(fair), "table-1").text


def test_runs_of_before_a_method_was_there_can_still_be_shown():
    run = run_of()
    old = {
        trial: one
        for trial, one in run.measurements.items()
        if trial.method != "fsr-similarity" and trial.threshold == "entries"
    }
    sections = sections_of(replace(run, measurements=old))
    methods = [row["method"] for row in named(sections, "table-2").rows]
    assert {"fsr-similarity", "shybrid, filtered"}.isdisjoint(methods)
    assert {"fsrw", "shybrid"} <= set(methods)
    assert {row["method"] for row in named(sections, "figure-4").rows} == {"shybrid", "hybrid"}
    low = replace(
        run, measurements=with_scores(replace(run, measurements=old), shybrid=-5.0).measurements
    )
    notes = named(sections_of(low), "table-2").notes
    assert "shybrid -5.0" in notes
    assert "filtered" not in notes.lower()


def test_components_are_counted_by_their_size():
    run = replace(run_of(), components=((1, 40), (2, 3), (7, 1), (10, 2), (11, 1), (216, 1)))
    first, second, *_ = sections_of(run)
    assert (first.name, second.name) == ("table-2", "components")
    assert "has 48 components. The largest one holds 216 of 300 items; 40 items are" in second.text
    assert [tuple(row.values()) for row in second.rows] == [
        ("1", 40, 40, pytest.approx(40 / 3)),
        ("2 to 10", 6, 33, pytest.approx(11)),
        ("11", 1, 11, pytest.approx(11 / 3)),
        ("216", 1, 216, pytest.approx(72)),
    ]


def test_a_connected_graph_is_called_so():
    part = named(sections_of(replace(run_of(), components=((300, 1),))), "components")
    assert part.text.endswith("is connected: one component holds all 300 items.")
    assert [row["components"] for row in part.rows] == [1]


def test_components_of_a_run_come_back_from_its_json():
    run = replace(run_of(), components=((1, 40), (260, 1)))
    plain = json.loads(json.dumps(run.to_json()))
    assert Run.from_json(plain).components == run.components
    del plain["components"]  # as runs of before were recorded
    assert Run.from_json(plain).components == ()
    assert "components" not in {part.name for part in sections_of(Run.from_json(plain))}
