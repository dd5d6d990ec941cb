"""The best routes, against every route there is."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import path, random_affinity, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.graph.routes import HostEdges, best_routes

STEP = 0.9


def edges_of(affinity, names=None):
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend="numpy")
    matrix = graph.adjacency
    names = np.arange(graph.n) if names is None else np.asarray(names)
    return HostEdges(matrix.data, matrix.indices, matrix.indptr, names)


def weight(edges, one, other):
    columns, weights = edges.row(one)
    return dict(zip(columns.tolist(), weights.tolist(), strict=True)).get(other, 0.0)


def all_routes(edges, starts, goal):
    """The value of every route that visits no item twice, by its items."""
    n = len(edges.names)
    values = {}
    others = [one for one in range(n) if one != goal]
    for length in range(n):
        for middle in itertools.permutations(others, length):
            places = (*middle, goal)
            if starts.get(places[0], 0) <= 0:
                continue
            factors = [STEP * weight(edges, a, b) for a, b in itertools.pairwise(places)]
            values[places] = starts[places[0]] * math.prod(factors)
    return {places: value for places, value in values.items() if value > 0}


def small_graph(rng, n=6):
    dense = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.5), 1)
    return sparse.csr_array(dense + dense.T)


def diffused_limits(edges, starts):
    """What diffusion gives each item: the sum over all walks, which no single one exceeds."""
    n = len(edges.names)
    matrix = sparse.csr_array((edges.weights, edges.columns, edges.bounds), shape=(n, n)).toarray()
    observed = np.zeros(n)
    observed[list(starts)] = list(starts.values())
    return np.linalg.solve(np.eye(n) - STEP * matrix, observed)


@pytest.mark.parametrize("seed", range(20, 32))
@pytest.mark.parametrize("limited", [False, True])
def test_routes_are_the_best_of_all_that_exist(seed, limited):
    rng = np.random.default_rng(seed)
    edges = edges_of(small_graph(rng))
    starts = {0: 0.3, 2: 1.7, 5: rng.random()}
    limits = diffused_limits(edges, starts) * (1 + 1e-9) if limited else None
    for goal in range(6):
        every = all_routes(edges, starts, goal)
        best = {}
        for places, value in every.items():
            best[places[0]] = max(value, best.get(places[0], 0))
        found = best_routes(
            edges, starts, goal, step=STEP, count=3, most_visits=1000, limits=limits
        )
        assert not found.cut
        values = [route.value for route in found.found]
        np.testing.assert_allclose(values, sorted(best.values(), reverse=True), rtol=1e-12)
        assert len({route.places[0] for route in found.found}) == len(found.found) == len(best)
        for route in found.found:
            assert route.value == pytest.approx(every[route.places], rel=1e-12)
            factors = [weight(edges, a, b) for a, b in itertools.pairwise(route.places)]
            assert list(route.weights) == factors


def test_an_item_that_is_a_start_is_its_own_route():
    found = best_routes(edges_of(path(3)), {1: 0.5}, 1, step=STEP, most_visits=10)
    (route,) = found.found
    assert (route.places, route.weights, route.value) == ((1,), (), 0.5)


def test_an_edge_may_be_better_than_being_a_start_oneself():
    found = best_routes(edges_of(path(2)), {0: 1.0, 1: 0.1}, 1, step=STEP, most_visits=10)
    assert found.found[0].places == (0, 1)


def test_a_step_of_0_leads_nowhere():
    edges = edges_of(path(3))
    assert best_routes(edges, {0: 1.0}, 2, step=0.0, most_visits=10).found == ()
    (route,) = best_routes(edges, {0: 1.0}, 0, step=0.0, most_visits=10).found
    assert route.places == (0,)


def test_there_is_no_route_from_another_component():
    edges = edges_of(two_cliques())
    assert best_routes(edges, {0: 1.0}, 5, step=STEP, most_visits=99).found == ()
    assert best_routes(edges, {}, 5, step=STEP, most_visits=99).found == ()
    assert best_routes(edges, {5: 0.0}, 5, step=STEP, most_visits=99).found == ()


@pytest.mark.parametrize("names", [[0, 1, 2, 3], [0, 2, 1, 3]])
def test_of_equal_routes_the_one_through_lower_ids_is_shown(names):
    # A square: two ways from corner to corner, of the same value to the last bit.
    square = sparse.csr_array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]])
    (route,) = best_routes(edges_of(square, names), {0: 1.0}, 3, step=STEP, most_visits=99).found
    assert [names[place] for place in route.places] == [0, 1, 3]


def test_of_equal_starts_the_lower_id_comes_first():
    found = best_routes(edges_of(two_cliques()), {3: 1.0, 1: 1.0}, 0, step=STEP, most_visits=99)
    assert found.found[0].places == (1, 0)


def test_search_is_cut_at_the_most_visits_and_says_so(rng):
    edges = edges_of(path(50))
    cut = best_routes(edges, {0: 1.0}, 49, step=STEP, most_visits=10)
    assert (cut.cut, cut.visited, cut.found) == (True, 10, ())
    whole = best_routes(edges, {0: 1.0}, 49, step=STEP, most_visits=1000)
    assert not whole.cut
    assert whole.found[0].places == tuple(range(50))


def test_a_cut_search_shows_what_it_had_found():
    edges = edges_of(path(50))
    cut = best_routes(edges, {48: 1e-9, 0: 1e9}, 49, step=STEP, count=2, most_visits=5)
    assert cut.cut
    assert [route.places for route in cut.found] == [(48, 49)]


def test_limits_save_visits_and_change_no_route(rng):
    edges = edges_of(random_affinity(rng, n=400, degree=4))
    starts = {3: 1.0, 77: 0.4}
    limits = diffused_limits(edges, starts) * (1 + 1e-9)
    saved = 0
    for goal in range(0, 390, 13):
        plain = best_routes(edges, starts, goal, step=STEP, most_visits=10**6)
        guided = best_routes(edges, starts, goal, step=STEP, most_visits=10**6, limits=limits)
        assert [one.places for one in plain.found] == [one.places for one in guided.found]
        assert guided.visited <= plain.visited
        saved += plain.visited - guided.visited
    assert saved > 0


def test_search_ends_when_every_start_is_found(rng):
    edges = edges_of(path(50))
    found = best_routes(edges, {47: 1.0, 3: 0.0}, 49, step=STEP, count=5, most_visits=1000)
    assert [route.places for route in found.found] == [(47, 48, 49)]
    assert found.visited < 10
