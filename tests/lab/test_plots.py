"""Pictures of rankings: what is drawn where, and that matplotlib stays optional."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hybrid_gpu.lab import canvas, chart_panels, charts, plots
from hybrid_gpu.lab.plots import ranking_grid


def _draw(path, **changes):
    """Two queries in a database of six one-coloured pictures, of classes 0 and 1 in turn."""
    values = {
        "before_ids": [[0, 1, 2, 3], [1, 0, 3, 2]],
        "after_ids": [[0, 2, 4, 1], [1, 3, 5, 0]],
        "labels": np.arange(6) % 2,
        "query_labels": [0, 1],
    }
    images = np.repeat(np.arange(6.0), 16).reshape(6, 4, 4)
    ranking_grid(images, images[:2], path=path, **(values | changes))


def _frame(axes):
    side = axes.spines["left"]
    return side.get_edgecolor(), side.get_linestyle()


def test_picture_is_a_png_of_some_size(tmp_path):
    _draw(tmp_path / "grid.png", title="two queries", results=1)
    content = (tmp_path / "grid.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5000


def test_every_query_and_every_result_is_drawn(tmp_path, figures):
    _draw(tmp_path / "grid.png", results=3)
    assert len(figures[0].axes) == 2 * (1 + 2 * 3)


def test_results_beyond_the_ranking_are_not_asked_for(tmp_path, figures):
    _draw(tmp_path / "grid.png", results=50)
    assert len(figures[0].axes) == 2 * (1 + 2 * 4)


def test_right_and_wrong_differ_in_colour_and_without_it(tmp_path, figures):
    _draw(tmp_path / "grid.png", query_labels=[0, 1])
    # The first query, its four results by similarity (right, wrong, right, wrong), ...
    right, wrong, again, _ = figures[0].axes[1:5]
    assert _frame(right) == _frame(again)
    assert _frame(right)[0] != _frame(wrong)[0]
    assert _frame(right)[1] != _frame(wrong)[1]
    assert not right.lines
    assert wrong.lines


def test_results_stand_in_the_order_of_the_ranking(tmp_path, figures):
    _draw(tmp_path / "grid.png")
    shown = [int(axes.images[0].get_array()[0, 0]) for axes in figures[0].axes]
    assert shown == [0, *(0, 1, 2, 3), *(0, 2, 4, 1), 1, *(1, 0, 3, 2), *(1, 3, 5, 0)]


def test_rows_count_the_right_results(tmp_path, figures):
    _draw(tmp_path / "grid.png")
    texts = [text.get_text() for text in figures[0].texts]
    assert "similarity\n2 of 4 right" in texts
    assert "diffusion\n3 of 4 right" in texts


def test_other_endings_name_other_formats(tmp_path):
    _draw(tmp_path / "grid.svg", results=1)
    assert b"<svg" in (tmp_path / "grid.svg").read_bytes()


def test_file_without_an_ending_is_a_png_of_that_name(tmp_path):
    _draw(tmp_path / "grid", results=1)
    assert (tmp_path / "grid").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["grid"]


def test_missing_matplotlib_is_told_with_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install -e \"\.\[plots\]\""):
        _draw(tmp_path / "grid.png")


@pytest.mark.parametrize("name", ["before_ids", "after_ids", "query_labels"])
def test_parts_of_other_queries_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} must have one row for each of the 2 queries"):
        _draw(tmp_path / "grid.png", **{name: np.zeros((3, 4), int)})


def test_no_query_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one query"):
        ranking_grid(
            np.zeros((6, 4, 4)),
            np.zeros((0, 4, 4)),
            before_ids=np.zeros((0, 3), int),
            after_ids=np.zeros((0, 3), int),
            labels=np.zeros(6),
            query_labels=np.zeros(0),
            path=tmp_path / "grid.png",
        )


def test_nothing_found_is_not_drawn(tmp_path, figures):
    _draw(tmp_path / "grid.png", before_ids=[[0, 1, -1, -1], [1, 0, 3, 2]])
    assert len(figures[0].axes) == 2 * (1 + 2 * 4) - 2
    assert "similarity\n1 of 2 right" in [text.get_text() for text in figures[0].texts]


def test_pictures_keep_their_proportions(tmp_path, figures):
    images = np.zeros((6, 4, 8))
    ranking_grid(
        images,
        images[:1],
        before_ids=[[0]],
        after_ids=[[1]],
        labels=np.zeros(6),
        query_labels=[0],
        path=tmp_path / "grid.png",
    )
    figures[0].draw_without_rendering()
    box = figures[0].axes[1].get_window_extent()
    assert box.width == pytest.approx(2 * box.height)


def test_charts_are_at_hand_too():
    assert plots.INSTALL is canvas.INSTALL
    assert plots.chart is charts.chart
    for name in ("Contours", "Panel", "Series"):
        assert getattr(plots, name) is getattr(chart_panels, name)
    assert set(plots.__all__) == {"INSTALL", "Contours", "Panel", "Series", "chart", "ranking_grid"}
