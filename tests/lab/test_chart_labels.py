"""Labels of a chart: beside what they name, off everything else, and inside of the axes."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid_gpu.lab.chart_labels import LabelRoom


@pytest.fixture
def axes():
    """Axes from 0 to 1 in both directions, 300 points wide and high."""
    from matplotlib.figure import Figure

    figure = Figure((5, 5), dpi=144)
    axes = figure.add_axes((1 / 12, 1 / 12, 300 / 360, 300 / 360))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return axes


def _boxes(axes):
    """Where the texts really are, in points from the lower left corner of the axes."""
    start = np.array([30.0, 30.0])
    extents = [text.get_window_extent().get_points() * 72 / 144 - start for text in axes.texts]
    return [(*low, *high) for low, high in extents]


def _overlap(first, second):
    sides = [min(first[k + 2], second[k + 2]) - max(first[k], second[k]) for k in (0, 1)]
    return min(sides) > 0


def test_text_stands_above_a_lonely_mark(axes):
    room = LabelRoom(axes)
    room.occupy(np.array([[0.5, 0.5]]), joined=False)
    room.write_beside("r = 2", np.array([0.5, 0.5]), "#808080")
    ((left, low, right, _),) = _boxes(axes)
    assert (left + right) / 2 == pytest.approx(150, abs=1)
    assert 151 < low < 160


@pytest.mark.parametrize("x", [0.0, 1.0])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_text_of_a_corner_stays_inside(axes, x, y):
    room = LabelRoom(axes)
    room.write_beside("corner", np.array([x, y]), "#808080")
    ((left, low, right, high),) = _boxes(axes)
    assert left >= 0
    assert low >= 0
    assert right <= 300
    assert high <= 300


def test_labels_keep_off_marks_and_off_each_other(axes):
    # A tower with a floor every 10 points: there is room beside it, and none above or below.
    points = np.array([[0.5, 0.3 + floor / 30] for floor in range(8)])
    room = LabelRoom(axes)
    room.occupy(points, joined=False)
    for place, point in enumerate(points):
        room.write_beside(str(100 + place), point, "#808080")
    boxes = _boxes(axes)
    marks = [(x - 2, y - 2, x + 2, y + 2) for x, y in 300 * points]
    assert len(boxes) == 8
    assert not any(_overlap(box, mark) for box in boxes for mark in marks)
    assert sum(_overlap(box, other) for box in boxes for other in boxes) == 8  # each with itself


def test_labels_of_one_spot_stand_around_it(axes):
    room = LabelRoom(axes)
    for text in ("one", "two", "three", "four"):
        room.write_beside(text, np.array([0.5, 0.5]), "#808080")
    boxes = _boxes(axes)
    assert sum(_overlap(box, other) for box in boxes for other in boxes) == 4  # each with itself


@pytest.mark.parametrize("joined", [True, False])
def test_only_a_line_that_is_drawn_is_kept_clear(axes, joined):
    # Straight up through the spot above the middle mark, which is the first choice.
    points = np.array([[0.5, 0.5], [0.5, 0.9]])
    room = LabelRoom(axes)
    room.occupy(points, joined=joined)
    room.write_beside("a", points[0], "#808080")
    ((_, low, _, _),) = _boxes(axes)
    assert bool(low > 150) == (not joined)


@pytest.mark.parametrize("level", [True, False])
def test_name_of_a_dashed_line_stands_at_its_free_end(axes, level):
    along, beside = (0, 1) if level else (1, 0)
    far_end = np.full((40, 2), 0.5)
    far_end[:, along] = np.linspace(0.6, 1, 40)
    room = LabelRoom(axes)
    room.write_along("first", 0.5, "#808080", level=level)
    for shift in (-0.02, 0.02):
        far_end[:, beside] = 0.5 + shift
        room.occupy(far_end, joined=False)
    room.write_along("second", 0.5, "#808080", level=level)
    first, second = _boxes(axes)
    assert 290 < first[along + 2] < 300
    assert 0 < second[along] < 10
    for box in (first, second):
        # Close to the line, and not on it.
        assert box[beside] > 150
        assert box[beside] < 155
        # Written along the line: longer than high.
        assert box[along + 2] - box[along] > box[beside + 2] - box[beside]


def test_small_letters_are_darker_than_their_mark(axes):
    LabelRoom(axes).write_beside("a", np.array([0.5, 0.5]), "#64c8ff")
    # 72 percent of 100, 200 and 255.
    assert axes.texts[0].get_color() == "#4890b8"
