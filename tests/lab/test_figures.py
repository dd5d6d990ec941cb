"""The paper's figures from measurements that were made up, so that every number is known."""

import pytest
from made_up_runs import named, run_of

from hybrid_gpu.lab.comparison import Trial
from hybrid_gpu.lab.figures import introduction_of, sections_of


@pytest.mark.parametrize("protocol", ["classes", "setups"])
def test_every_figure_and_table_is_there_with_whole_rows(protocol):
    sections = sections_of(run_of(protocol=protocol))
    names = ["table-2", *(f"figure-{number}" for number in range(1, 6)), "table-1"]
    assert [part.name for part in sections] == names
    for part in sections:
        assert part.rows
        assert all(row.keys() == part.rows[0].keys() for row in part.rows)
    assert all(part.panels for part in sections[1:6])


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
    assert all(len(curves[name]) == 1 for name in ("fsr", "fsrw", "fsr-similarity"))
    assert [steps for steps, _ in curves["shybrid"]] == [0, 1, 5]
    assert panel.levels == (("exact", 500.0),)


def test_figure_3_has_a_curve_for_each_rank():
    eigen, groups = named(sections_of(run_of()), "figure-3").panels
    assert [one.name for one in eigen.series] == ["r = 0", "r = 3", "r = 6"]
    assert [one.name for one in groups.series] == ["no groups", "2 groups", "4 groups", "9 groups"]
    assert max(steps for one in eigen.series for steps, _ in one.points) == 5


def test_figure_4_compares_two_uses_of_the_same_sparse_vectors_and_two_thresholds():
    run = run_of()
    fourth = named(sections_of(run), "figure-4")
    told = [(row["method"], row["sparsity"]) for row in fourth.rows]
    names = ["shybrid", "shybrid, filtered", "hybrid", "hybrid, filtered"]
    assert told == [(name, part) for name in names for part in (0.5, 0.9)]
    for row in fourth.rows:
        method, _, filtered = row["method"].partition(", ")
        trial = Trial(
            method,
            "eigen" if method == "shybrid" else "sparse-eigen",
            6,
            5,
            sparsity=row["sparsity"],
            threshold=filtered or "entries",
        )
        assert row["mAP"] == run.measurements[trial].quality["mAP"]


def test_figure_5_labels_its_points():
    run = run_of()
    panel = named(sections_of(run), "figure-5").panels[0]
    labels = {one.name: one.labels for one in panel.series}
    assert labels["truncated"] == ("0.03k", "0.06k")
    assert labels["hybrid-paper"] == labels["shybrid"] == ("3", "6")
    assert labels["temporal"] == ("",)
    assert set(labels["hybrid"]) == {"2", "4", "9", str(run.groups)}


def test_the_introduction_tells_the_sizes():
    told = introduction_of(run_of(distractors=40))
    assert "300 items, 40 of them distractors, 7 queries" in told


def test_the_introduction_tells_the_result():
    run = run_of()
    values = [
        one.quality["mAP"]
        for one in (
            run.measurements[Trial("nn")],
            run.exact,
            run.measurements[Trial("hybrid", "aggregate", run.groups, 5)],
        )
    ]
    told = "mAP: {:.1f} by similarity alone (nn), {:.1f} by exact diffusion, {:.1f} by 5 steps of"
    assert told.format(*values) in introduction_of(run)
