"""The drawing of a graph: the same every time, inside its frame, nothing covered."""

import numpy as np
import pytest

from hybrid_gpu.explore.layout import APART, HEIGHT, WIDTH, layout


def random_edges(rng, n):
    tree = [(i, int(rng.integers(0, i))) for i in range(1, n)]
    more = [tuple(map(int, rng.choice(n, 2, replace=False))) for _ in range(n)] if n > 1 else []
    return tree + more


@pytest.mark.parametrize("n", [1, 2, 3, 12, 40])
def test_items_lie_in_the_frame_and_apart(rng, n):
    places = layout(n, random_edges(rng, n))
    assert places.shape == (n, 2)
    assert np.all(places >= 0)
    assert np.all(places <= [WIDTH, HEIGHT])
    between = np.linalg.norm(places[:, None] - places[None], axis=2) + 1e9 * np.eye(n)
    assert between.min() > APART - 3


def test_the_same_graph_always_looks_the_same(rng):
    edges = random_edges(rng, 20)
    np.testing.assert_array_equal(layout(20, edges), layout(20, edges))


def test_a_path_is_drawn_from_left_to_right():
    places = layout(6, [(i, i + 1) for i in range(5)])
    assert np.all(np.diff(places[:, 0]) > 100)
    assert np.ptp(places[:, 1]) < 100


def test_groups_without_an_edge_between_them_lie_apart():
    clique = [(i, j) for i in range(4) for j in range(i)]
    places = layout(8, [*clique, *((i + 4, j + 4) for i, j in clique)]).astype(float)
    inside = np.linalg.norm(places[:4] - places[:4].mean(0), axis=1).mean()
    between = np.linalg.norm(places[:4].mean(0) - places[4:].mean(0))
    assert between > 1.5 * inside


def test_no_items_and_no_edges_are_fine():
    assert layout(0, []).shape == (0, 2)
    assert len({tuple(place) for place in layout(7, []).tolist()}) == 7
