"""The paper's figures from measurements that were made up, so that every number is known."""

from dataclasses import replace

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.index.build import default_groups
from hybrid_gpu.lab import published
from hybrid_gpu.lab.comparison import Measurement, Trial
from hybrid_gpu.lab.experiments import Run, Settings, trials_of
from hybrid_gpu.lab.figures import introduction_of, sections_of

SETTINGS = Settings(
    rank=6,
    spectral_rank=9,
    ranks=(3, 6),
    steps=(1, 5),
    sparsities=(0.5, 0.9),
    shortlists=(0.1, 0.2),
)
QUALITY = {
    "classes": ("mAP", "P@100"),
    "setups": tuple(
        f"{what} {setup}"
        for what in ("mAP", "mP@1", "mP@5", "mP@10")
        for setup in ("easy", "medium", "hard")
    ),
}


def made_up(trial, number, names):
    """Every value of a measurement follows from its number."""
    return Measurement(
        trial=trial,
        quality={name: number + place / 100 for place, name in enumerate(names)},
        agreement=number / 1000,
        milliseconds=3.0 * number,
        diffusion=2.0 * number,
        alone=10.0 * number,
        bytes=1_000_000 * number,
    )


def run_of(name="clouds", distractors=0, protocol="classes"):
    rng = np.random.default_rng(17)
    vectors = rng.standard_normal((300, 5))
    index = hg.build_index(vectors, neighbors=8, basis="none", backend="numpy")
    groups = default_groups(index.layout.graph)
    trials = dict.fromkeys(one for part in trials_of(SETTINGS, index).values() for one in part)
    names = QUALITY[protocol]
    exact = replace(made_up(Trial("temporal", rtol=1e-10), 500, names), alone=None)
    return Run(
        benchmark={
            "name": name,
            "items": 300,
            "distractors": distractors,
            "queries": 7,
            "dimensions": 5,
            "fingerprint": "f",
        },
        settings=SETTINGS,
        machine={},
        backend="numpy",
        eigenvalues=tuple(np.linspace(1, 0.2, 9)),
        groups=groups,
        exact=exact,
        measurements={
            trial: made_up(trial, number, names) for number, trial in enumerate(trials, start=1)
        },
    )


def named(sections, name):
    (one,) = [part for part in sections if part.name == name]
    return one


@pytest.mark.parametrize("protocol", ["classes", "setups"])
def test_every_figure_and_table_is_there_with_whole_rows(protocol):
    sections = sections_of(run_of(protocol=protocol))
    names = [f"figure-{number}" for number in range(1, 6)] + ["table-1", "table-2"]
    assert [part.name for part in sections] == names
    for part in sections:
        assert part.rows
        assert all(row.keys() == part.rows[0].keys() for row in part.rows)
    assert all(part.panels for part in sections[:5])


def test_figure_1_is_the_bound_of_the_paper():
    first = named(sections_of(run_of()), "figure-1")
    assert [row["rank"] for row in first.rows] == list(range(9))
    row = first.rows[3]
    assert row["largest eigenvalue left"] == pytest.approx(0.7)
    condition = 1.99 / (1 - 0.99 * 0.7)
    assert row["condition number"] == pytest.approx(condition)
    root = condition**0.5
    assert row["bound after 5 steps"] == pytest.approx(2 * ((root - 1) / (root + 1)) ** 5)
    contours = first.panels[1]
    assert contours.values.shape == (len(contours.up), len(contours.across))
    assert contours.values[5, 3] == pytest.approx(row["bound after 5 steps"])


def test_curves_go_through_what_was_measured():
    run = run_of()
    panel = named(sections_of(run), "figure-2").panels[0]
    curves = {one.name: one.points for one in panel.series}
    for steps, value in curves["hybrid"]:
        trial = Trial("hybrid", "aggregate", run.groups, int(steps))
        assert value == run.measurements[trial].quality["mAP"]
    assert [steps for steps, _ in curves["hybrid-paper"]] == [0, 1, 5]
    assert [steps for steps, _ in curves["temporal"]] == [1, 5, 20]
    assert len(curves["fsr"]) == len(curves["fsrw"]) == 1
    assert panel.levels == (("exact", 500.0),)


def test_figure_3_has_a_curve_for_each_rank():
    eigen, groups = named(sections_of(run_of()), "figure-3").panels
    assert [one.name for one in eigen.series] == ["r = 0", "r = 3", "r = 6"]
    assert [one.name for one in groups.series] == ["no groups", "2 groups", "4 groups", "9 groups"]
    assert max(steps for one in eigen.series for steps, _ in one.points) == 5


def test_figure_4_compares_two_uses_of_the_same_sparse_vectors():
    fourth = named(sections_of(run_of()), "figure-4")
    told = [(row["method"], row["sparsity"]) for row in fourth.rows]
    assert told == [("shybrid", 0.5), ("shybrid", 0.9), ("hybrid", 0.5), ("hybrid", 0.9)]


def test_figure_5_labels_its_points():
    run = run_of()
    panel = named(sections_of(run), "figure-5").panels[0]
    labels = {one.name: one.labels for one in panel.series}
    assert labels["truncated"] == ("0.03k", "0.06k")
    assert labels["hybrid-paper"] == labels["shybrid"] == ("3", "6")
    assert labels["temporal"] == ("",)
    assert set(labels["hybrid"]) == {"2", "4", "9", str(run.groups)}


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
    assert set(hg.METHODS) - {"precomputed"} <= set(methods)
    assert methods[-1] == "exact"
    assert rows[-1]["mAP"] == 500


@pytest.mark.parametrize(
    ("name", "distractors", "theirs"),
    [
        ("roxford5k", 0, "ROxford"),
        ("ROxford5k", 1_001_001, "ROxford + R1M"),
        ("rparis6k", 0, "RParis"),
        ("R-Paris 6k", 5, "RParis + R1M"),
        ("Fashion-MNIST", 0, None),
    ],
)
def test_benchmarks_of_the_paper_are_known_by_name(name, distractors, theirs):
    assert published.counterpart(name, distractors) == theirs
    assert theirs is None or theirs in published.TABLE_2


def test_the_introduction_tells_the_sizes():
    told = introduction_of(run_of(distractors=40))
    assert "300 items, 40 of them distractors, 7 queries" in told
