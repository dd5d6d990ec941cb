"""Charts: what is drawn where, in which look, and that matplotlib stays optional."""

from __future__ import annotations

import pickle
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from conftest import needs_python_311

from hybrid_gpu.lab.chart_panels import Contours, Panel, Series
from hybrid_gpu.lab.charts import chart, drawn

NAN = float("nan")
TEMPORAL = Series("temporal", ((1, 46.8), (2, NAN), (5, 56.8), (9, np.inf), (20, 61.6)))
HYBRID = Series("hybrid", ((2, 59.9), (5, 63.4)), labels=("r = 2", ""), joined=False)


def _panel(*series, **options):
    return Panel("by time", "time (s)", "mAP", series, **options)


def _contours(levels=(0.5, 2.0), **changes):
    """Values that grow from 0 to 3 across, alike in every row."""
    across, up = (0.0, 1.0, 2.0, 3.0), (1.0, 2.0, 3.0)
    values = {"across": across, "up": up, "values": np.tile(across, (3, 1)), "levels": levels}
    return Contours("bound", "rank", "iteration", **(values | changes))


def _lines(axes):
    return {line.get_label(): line for line in axes.lines}


def _texts(axes):
    return [text.get_text() for text in axes.texts]


def test_chart_is_a_white_picture_nine_inches_wide(tmp_path):
    chart([_panel(TEMPORAL), _panel(HYBRID)], path=tmp_path / "two.png")
    content = (tmp_path / "two.png").read_bytes()
    # The header of a PNG: signature, length, name, then the width.
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 9 * 150
    assert [path.name for path in tmp_path.iterdir()] == ["two.png"]


def test_failed_drawing_leaves_the_old_picture(tmp_path, monkeypatch):
    import matplotlib.figure

    def half(self, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    (tmp_path / "one.png").write_bytes(b"old")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        chart([_panel(TEMPORAL)], path=tmp_path / "one.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_points_that_are_not_finite_are_skipped(tmp_path, figures):
    chart([_panel(TEMPORAL)], path=tmp_path / "one.png")
    line = _lines(figures[0].axes[0])["temporal"]
    assert line.get_xydata().tolist() == [[1, 46.8], [5, 56.8], [20, 61.6]]


def test_points_without_a_place_on_a_log_axis_are_skipped_with_their_labels(tmp_path, figures):
    series = Series("hybrid", ((0, 1), (10, 2), (1000, 3)), labels=("a", "b", "c"))
    panel = _panel(series, log_x=True, levels=(("below", -1.0),), edges=(("none", 0.0),))
    chart([panel], path=tmp_path / "one.png")
    axes = figures[0].axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_yscale() == "linear"
    assert _lines(axes)["hybrid"].get_xdata().tolist() == [10, 1000]
    assert sorted(_texts(axes)) == ["b", "below", "c"]


def test_unjoined_series_has_marks_only(tmp_path, figures):
    chart([_panel(TEMPORAL, HYBRID)], path=tmp_path / "one.png")
    lines = _lines(figures[0].axes[0])
    assert lines["hybrid"].get_linestyle() == "None"
    assert lines["temporal"].get_linestyle() == "-"


def test_series_looks_alike_in_all_panels_and_unlike_others(tmp_path, figures):
    names = ["temporal", "hybrid", "shybrid", *(f"r = {rank}" for rank in range(0, 4000, 100))]
    series = [Series(name, ((0, 1), (1, 2))) for name in names]
    chart([_panel(*series), _panel(*reversed(series))], path=tmp_path / "two.png")
    looks = [
        {
            name: (line.get_color(), line.get_marker(), line.get_linestyle())
            for name, line in _lines(axes).items()
        }
        for axes in figures[0].axes
    ]
    assert looks[0] == looks[1]
    assert len(set(looks[0].values())) == len(names)


def test_methods_have_the_same_look_in_every_chart(tmp_path, figures):
    other = Series("another", ((0, 1),))
    chart([_panel(TEMPORAL, HYBRID)], path=tmp_path / "one.png")
    chart([_panel(other, HYBRID)], path=tmp_path / "two.png")
    chart([_panel(Series("hybrid, r = 400", ((0, 1),)))], path=tmp_path / "three.png")
    first, second, third = (_lines(figure.axes[0]) for figure in figures)
    assert first["hybrid"].get_color() == second["hybrid"].get_color()
    assert first["hybrid"].get_marker() == second["hybrid"].get_marker()
    assert third["hybrid, r = 400"].get_color() == first["hybrid"].get_color()
    assert second["another"].get_color() != second["hybrid"].get_color()


def test_methods_differ_in_their_marks_and_in_their_colours(tmp_path, figures):
    names = ["temporal", "truncated", "fsr", "fsrw", "hybrid-paper", "shybrid", "hybrid"]
    names += ["nn", "alpha-qe"]
    chart([_panel(*(Series(name, ((0, 1),)) for name in names))], path=tmp_path / "one.png")
    lines = _lines(figures[0].axes[0]).values()
    assert len({line.get_marker() for line in lines}) == len(names)
    assert len({line.get_color() for line in lines}) == len(names)


def test_all_panels_share_one_legend(tmp_path, figures):
    nameless = Series("", ((0, 1),))
    panels = [_panel(TEMPORAL, nameless), _panel(TEMPORAL, HYBRID)]
    chart(panels, path=tmp_path / "two.png")
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["temporal", "hybrid"]
    assert not any(axes.get_legend() for axes in figures[0].axes)


def test_legend_takes_the_place_that_is_left(tmp_path, figures):
    chart([_panel(TEMPORAL)] * 3, path=tmp_path / "three.png")
    assert not figures[0].legends
    assert [axes.get_legend() is not None for axes in figures[0].axes] == [False] * 3 + [True]


def test_dashed_lines_carry_their_names(tmp_path, figures):
    panel = _panel(TEMPORAL, levels=(("exact", 58.0),), edges=(("limit", 7.0),))
    chart([panel], path=tmp_path / "one.png")
    axes = figures[0].axes[0]
    level, edge = [line for line in axes.lines if line.get_label() != "temporal"]
    assert list(level.get_ydata()) == [58.0, 58.0]
    assert list(edge.get_xdata()) == [7.0, 7.0]
    assert _texts(axes) == ["exact", "limit"]


def test_labels_keep_off_marks_and_off_each_other(tmp_path, figures):
    # A tower with a floor every 10 points: there is room beside it, and none above or below.
    points = (*((1.0, float(floor)) for floor in range(8)), (0.0, 15.0), (2.0, 0.0))
    series = Series("hybrid", points, labels=tuple(str(100 + n) for n in range(10)), joined=False)
    chart([_panel(series)], path=tmp_path / "one.png")
    axes = figures[0].axes[0]
    figures[0].draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    marks = axes.transData.transform(points)
    assert len(boxes) == 10
    assert not any(box.contains(*mark) for box in boxes for mark in marks)
    assert sum(box.count_overlaps(boxes) for box in boxes) == 10  # each with itself
    inside = axes.get_window_extent()
    assert all(inside.contains(*corner) for box in boxes for corner in box.corners())


def test_contours_run_where_the_value_is_the_level(tmp_path, figures):
    chart([_contours()], path=tmp_path / "one.png")
    (lines,) = figures[0].axes[0].collections
    assert lines.levels.tolist() == [0.5, 2.0]
    for level, path in zip((0.5, 2.0), lines.get_paths(), strict=True):
        assert np.allclose(path.vertices[:, 0], level)
    assert sorted(_texts(figures[0].axes[0])) == ["0.5", "2"]


def test_levels_out_of_range_are_left_out(tmp_path, figures):
    holes = np.tile((0.0, 1.0, NAN, 3.0), (3, 1))
    chart([_contours((7.0, 0.5, -1.0), values=holes)], path=tmp_path / "one.png")
    assert figures[0].axes[0].collections[0].levels.tolist() == [0.5]


@pytest.mark.parametrize(
    "panel", [_contours((7.0,)), _panel(), _panel(Series("temporal", ((NAN, 1),)), log_y=True)]
)
def test_panel_without_anything_says_so(tmp_path, figures, panel):
    chart([panel], path=tmp_path / "one.png")
    assert _texts(figures[0].axes[0]) == ["nothing to draw"]


def test_axes_count_whole_numbers_in_whole_steps(tmp_path, figures):
    chart([_panel(Series("temporal", ((1, 0.5), (3, 0.7))))], path=tmp_path / "one.png")
    ticks = figures[0].axes[0].get_xticks()
    assert np.all(ticks == np.round(ticks))


@needs_python_311
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1e-5, 1e7, {"10⁻⁵", "0.1", "1,000", "10⁷"}),
        (15, 70, {"20", "50"}),
    ],
)
def test_log_axes_are_written_in_plain_numbers(tmp_path, figures, low, high, expected):
    chart([_panel(Series("nn", ((0, low), (1, high))), log_y=True)], path=tmp_path / "one.png")
    figures[0].draw_without_rendering()
    written = {text.get_text() for text in figures[0].axes[0].get_yticklabels()}
    assert expected <= written
    assert not any("$" in text for text in written)


FRESH_PROCESS = """
import pickle, sys
from hybrid_gpu.lab.charts import drawn
panels = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(drawn(panels, formats=["svg"])["svg"])
assert "matplotlib.pyplot" not in sys.modules
"""


def test_svg_is_the_same_in_every_process_and_needs_no_pyplot():
    panels = [_panel(TEMPORAL), _contours()]
    command = [sys.executable, "-c", FRESH_PROCESS]
    done = subprocess.run(command, check=True, capture_output=True, input=pickle.dumps(panels))
    assert done.stdout == drawn(panels, formats=["svg"])["svg"]


def test_svg_holds_text_as_text_in_a_generic_font():
    panel = Panel("title", "across", "up", (Series("a <name> & $1$", ((1, 2),), labels=("p",)),))
    svg = drawn([panel], formats=["svg"], title="all", note="small")["svg"]
    texts = [node.text for node in ElementTree.fromstring(svg).iter() if node.text]
    for expected in ("title", "across", "up", "a <name> & $1$", "p", "all", "small"):
        assert expected in texts
    assert b"sans-serif" in svg
    assert b"DejaVu" not in svg
    assert b"date" not in svg.lower()


def test_one_format_does_not_change_the_next():
    panels = [_panel(TEMPORAL, HYBRID)]
    together = drawn(panels)
    assert list(together) == ["png", "svg"]
    assert drawn(panels, formats=["svg"])["svg"] == together["svg"]


def test_settings_of_matplotlib_neither_change_nor_count():
    import matplotlib

    expected = drawn([_panel(TEMPORAL)], formats=["svg"])
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        assert drawn([_panel(TEMPORAL)], formats=["svg"]) == expected
        assert dict(matplotlib.rcParams) == before


def test_chart_without_matplotlib_tells_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install -e \"\.\[plots\]\""):
        chart([_panel(TEMPORAL)], path=tmp_path / "one.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("panels", "name", "message"),
    [
        ([], "a.png", "at least one panel"),
        ([_panel(TEMPORAL)], "a.gif", r"must end in .png or .svg; got .*a\.gif"),
        ([_panel(Series("nn", ((1, 2),), labels=("a", "b")))], "a.png", "labels of 'nn' must be"),
        ([_contours(values=np.zeros((4, 3)))], "a.png", r"shape \(3, 4\); got \(4, 3\)"),
        ([_contours(up=(1.0,), values=np.zeros((1, 4)))], "a.png", "at least 2 rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, panels, name, message):
    with pytest.raises(ValueError, match=message):
        chart(panels, path=tmp_path / name)


def test_control_characters_never_reach_a_picture():
    panel = Panel("a\x00\ud800b", "x", "y", (Series("n\x01", ((1, 2),), labels=("l\x02",)),))
    ElementTree.fromstring(drawn([panel], formats=["svg"], title="t\x03", note="n\x04")["svg"])


def test_records_print_on_one_line():
    assert repr(TEMPORAL) == "Series('temporal', 5 points)"
    assert repr(_panel(TEMPORAL, HYBRID)) == "Panel('by time', 2 series)"
    assert repr(_contours()) == "Contours('bound', 3 by 4, 2 levels)"
