"""Local search in array operations: what a dense solve of the whole graph gives, found nearby."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import TOLERANCE, clustered_vectors, dense, path, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.backends import native_local, threads
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.local_records import LocalEffort, LocalProblem
from hybrid_gpu.backends.local_search import search_locally
from hybrid_gpu.backends.native import native_core
from hybrid_gpu.backends.native_backend import NativeBackend
from hybrid_gpu.backends.protocol import CoarseInverse
from hybrid_gpu.diffusion.local import ROOMS

EFFORT = LocalEffort(
    tolerance=5e-4,
    push=0.01,
    growth=0.5,
    drift=0.01,
    calm=0.002,
    gap=1,
    spare=0,
    changes=1,
    few=0,
    watched=100,
    fewest=100,
    steps=100,
    rounds=12,
    room=32768,
)
# The ranking counts as still in any case.
STILL = replace(EFFORT, drift=1e9, calm=1e9, changes=10**9, watched=30, fewest=30)
ALPHAS = (0.5, 0.9, 0.99, 0.999)


def problem_of(graph, backend, alpha, *, groups=12, order=None):
    """The problem of a graph; groups are a number of them, or labels."""
    labels = (
        hg.aggregate(graph, groups=groups, backend=backend) if isinstance(groups, int) else groups
    )
    basis = hg.aggregate_basis(graph, labels, backend=backend)
    degrees = backend.to_numpy(graph.degrees)
    return LocalProblem(
        adjacency=graph.adjacency,
        spread=basis.spread,
        inverse=basis.coarse_inverse(alpha),
        roots=backend.asarray(np.sqrt(degrees / degrees.mean()).astype(degrees.dtype)),
        order=backend.asarray(np.arange(graph.n) if order is None else np.asarray(order)),
        alpha=alpha,
    )


def clusters(backend, rng, alpha, dtype="float64", n=300):
    """Items around a few centers, two pairs far from everything, and five isolated items."""
    near = hg.reciprocal_graph(
        hg.nearest_neighbors(clustered_vectors(rng, n).astype("float32"), k=8, backend="numpy")
    )
    weights = sparse.csr_array(
        (near.adjacency.data, near.adjacency.indices, near.adjacency.indptr), near.adjacency.shape
    )
    pair = np.array([[0, 1.0], [1, 0]])
    whole = sparse.csr_array(sparse.block_diag([weights, pair, pair, np.zeros((5, 5))]))
    graph = hg.graph_from_affinity(whole, dtype=dtype, backend=backend)
    return problem_of(graph, backend, alpha), graph


def grid(backend, alpha, height=18, width=30):
    """Items of one component that no push covers."""
    one, other = sparse.eye_array(height), sparse.eye_array(width)
    affinity = sparse.kron(path(height), other) + sparse.kron(one, path(width))
    graph = hg.graph_from_affinity(sparse.csr_array(affinity), dtype="float64", backend=backend)
    return problem_of(graph, backend, alpha), graph


def observations(rng, n, m=6, width=5, dtype="float64"):
    return rng.integers(0, n, (m, width)), rng.random((m, width)).astype(dtype) + 0.1


def own_search(backend, *given):
    return backend.local_search(*given)


def searched(backend, problem, places, weights, k, effort, search=own_search):
    """The answer, with its arrays on the host."""
    arrays = backend.asarray(places), backend.asarray(weights)
    return on_host(backend, search(backend, problem, *arrays, k, effort))


def on_host(backend, answer):
    names = [field.name for field in fields(answer)]
    return type(answer)(**{name: backend.to_numpy(getattr(answer, name)) for name in names})


def exact_scores(backend, problem, places, weights):
    """The scores (m, n) by a dense solve in float64, and the lengths (m,) of the observations."""
    adjacency = dense(backend, problem.adjacency).astype("float64")
    n, observed = len(adjacency), np.zeros((len(places), len(adjacency)))
    for row, (items, values) in enumerate(zip(places, weights, strict=True)):
        known = items >= 0
        np.add.at(observed[row], items[known], values[known])
    scores = np.linalg.solve(np.eye(n) - problem.alpha * adjacency, observed.T).T
    return (1 - problem.alpha) * scores, np.linalg.norm(observed, axis=1)


def error_bound(problem, dtype, effort, lengths):
    """How far scores of whole components may be from the exact ones, of shape (m, 1).

    A residual of ``tolerance`` times the observation is an error of at most 1 / (1 - alpha) times
    that in the solution, and scores are 1 - alpha of the solution. Rounding in the scores, a few
    units of their last place, is a residual too.
    """
    rounding = 4 * np.finfo(dtype).eps / (1 - problem.alpha)
    return (effort.tolerance + rounding) * lengths[:, None]


def check_answer(answer, exact, bound, k):
    """Scores are right within the bound, and no item that is left out belongs among the best."""
    for row, (places, scores) in enumerate(zip(answer.places, answer.scores, strict=True)):
        found, margin = answer.found[row], bound[row, 0]
        assert np.all(places[found:] == -1)
        assert np.all(scores[found:] == 0)
        assert found == min(k, np.sum(exact[row] > 0))
        assert len(set(places[:found])) == found
        np.testing.assert_allclose(scores[:found], exact[row][places[:found]], rtol=0, atol=margin)
        assert np.all(np.diff(scores[:found]) <= 0)
        others = np.delete(exact[row], places[:found])
        assert others.max(initial=0) <= exact[row][places[:found]].min() + 2 * margin


@pytest.mark.parametrize("alpha", ALPHAS)
def test_scores_are_those_of_a_dense_solve(backend, rng, dtype, alpha):
    problem, graph = clusters(backend, rng, alpha, dtype)
    places, weights = observations(rng, graph.n, dtype=dtype)
    # As many are watched as there are items: only whole components settle.
    effort = replace(EFFORT, watched=graph.n, steps=1000)
    answer = searched(backend, problem, places, weights, 40, effort)
    exact, lengths = exact_scores(backend, problem, places, weights)
    assert answer.settled.all()
    assert np.all(answer.residuals <= effort.tolerance)
    assert answer.scores.dtype == dtype
    check_answer(answer, exact, error_bound(problem, dtype, effort, lengths), 40)
    np.testing.assert_array_equal(answer.visited, np.sum(exact > 0, axis=1))


def test_rooted_scores_of_whole_components_are_those_of_a_dense_solve(backend, rng, dtype):
    problem, graph = clusters(backend, rng, 0.9, dtype)
    places, weights = observations(rng, graph.n, dtype=dtype)
    effort = replace(EFFORT, watched=graph.n, steps=1000, rooted=True)
    answer = searched(backend, problem, places, weights, 40, effort)
    exact, lengths = exact_scores(backend, problem, places, weights)
    roots = backend.to_numpy(problem.roots)
    assert answer.settled.all()
    bound = error_bound(problem, dtype, effort, lengths) * roots.max()
    told = np.where(roots > 0, exact * roots, 0)
    # An item without an edge has a root of 0 here, and is found all the same.
    answer = replace(answer, found=np.minimum(answer.found, np.sum(told > 0, axis=1)))
    check_answer(answer, told, bound, 40)


def test_rooted_search_finds_hubs_that_have_small_scores(backend, rng, dtype):
    # A grid, some of whose items have heavy edges to a neighbor: much arrives there and stays.
    height, width = 40, 50
    affinity = sparse.kron(path(height), sparse.eye_array(width))
    affinity = sparse.csr_array(affinity + sparse.kron(sparse.eye_array(height), path(width)))
    heavy = np.where(np.arange(height * width) % 9 == 0, 30.0, 1.0)
    scale = sparse.diags_array(heavy)
    graph = hg.graph_from_affinity(scale @ affinity @ scale, dtype=dtype, backend=backend)
    problem = problem_of(graph, backend, 0.9, groups=60)
    places, weights = observations(rng, graph.n, 6, 3, dtype)
    exact, _ = exact_scores(backend, problem, places, weights)
    told = exact * backend.to_numpy(problem.roots)
    effort = replace(EFFORT, watched=20, fewest=20, gap=0, rooted=True)
    answer = searched(backend, problem, places, weights, 20, effort)
    assert answer.settled.all()
    assert answer.visited.mean() < graph.n / 2
    for row in range(6):
        best = np.argsort(-told[row])[:20]
        assert len(set(answer.places[row]) & set(best)) >= 19
        assert len(set(best) & set(np.argsort(-exact[row])[:20])) < 19
        np.testing.assert_allclose(answer.scores[row], told[row][answer.places[row]], rtol=0.1)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-8])
def test_tolerance_is_kept(backend, rng, tolerance):
    problem, graph = clusters(backend, rng, 0.99)
    places, weights = observations(rng, graph.n)
    effort = replace(EFFORT, watched=graph.n, tolerance=tolerance)
    answer = searched(backend, problem, places, weights, 40, effort)
    exact, lengths = exact_scores(backend, problem, places, weights)
    assert answer.settled.all()
    check_answer(answer, exact, error_bound(problem, "float64", effort, lengths), 40)


@pytest.mark.parametrize("alpha", [0.9, 0.99])
def test_few_items_are_visited_for_the_best_of_many(backend, rng, dtype, alpha):
    x = clustered_vectors(rng, 1500, d=6, clusters=15).astype(dtype)
    graph = hg.reciprocal_graph(hg.nearest_neighbors(x, k=10, backend=backend), backend=backend)
    problem = problem_of(graph, backend, alpha, groups=40)
    places, weights = observations(rng, graph.n, 6, 3, dtype)
    effort = replace(EFFORT, watched=20, fewest=20, gap=0)
    answer = searched(backend, problem, places, weights, 20, effort)
    exact, _ = exact_scores(backend, problem, places, weights)
    assert answer.settled.all()
    assert np.all(answer.rounds <= effort.rounds)
    assert answer.visited.mean() < graph.n / 2
    for row in range(6):
        best = np.sort(exact[row])[::-1]
        # The rule lets scores around the last move by 1 % against each other.
        assert exact[row][answer.places[row]].min() >= 0.97 * best[19]
        assert len(set(answer.places[row]) & set(np.argsort(-exact[row])[:20])) >= 18
        # All of a query's scores are off in the same direction: what comes from far is a guess.
        np.testing.assert_allclose(answer.scores[row], best[:20], rtol=0.1)


def test_best_end_where_the_component_ends(backend, rng):
    problem, graph = clusters(backend, rng, 0.9)
    first = graph.n - 9  # two pairs and five isolated items
    places = np.array([[first, -1], [first + 1, first + 2], [graph.n - 1, -1]])
    weights = np.array([[1.0, 7], [1, 0.5], [2, 7]])
    answer = searched(backend, problem, places, weights, 6, EFFORT)
    assert answer.found.tolist() == [2, 4, 1]
    assert answer.settled.all()
    near, far = 1 / (1 + 0.9), 0.9 / (1 + 0.9)  # of a pair, by hand
    np.testing.assert_array_equal(answer.places[0], [first, first + 1, -1, -1, -1, -1])
    np.testing.assert_allclose(answer.scores[0, :2], [near, far], atol=EFFORT.tolerance)
    assert set(answer.places[1, :4]) == {first, first + 1, first + 2, first + 3}
    np.testing.assert_array_equal(answer.places[2], [graph.n - 1, -1, -1, -1, -1, -1])
    np.testing.assert_allclose(answer.scores[2], [0.2, 0, 0, 0, 0, 0], rtol=1e-12)


def test_ties_go_to_the_lower_id(backend, dtype):
    graph = hg.graph_from_affinity(two_cliques(6), dtype=dtype, backend=backend)
    order = np.array([3, 9, 4, 1, 8, 6, 0, 2, 5, 7, 10, 11])
    problem = problem_of(graph, backend, 0.9, groups=np.repeat([0, 1], 6), order=order)
    answer = searched(backend, problem, np.array([[0]]), np.ones((1, 1), dtype), 4, EFFORT)
    # All others of the clique have the same score: 3 has the id 1, 2 has 4, 5 has 6.
    np.testing.assert_array_equal(answer.places, [[0, 3, 2, 5]])
    assert np.ptp(answer.scores[0, 1:]) == 0


def test_repeated_places_add_up_and_places_of_none_do_not_count(backend, rng, dtype):
    problem, _ = clusters(backend, rng, 0.9, dtype)
    places = np.array([[7, -1, 7, 9, 7], [7, 9, -1, -1, -1]])
    weights = np.array([[0.5, 9, 0.25, 1, 0.25], [1, 1, 3, 4, 5]], dtype)
    answer = searched(backend, problem, places, weights, 30, EFFORT)
    whole = np.array([[7, 9]]), np.ones((1, 2), dtype)
    exact, _ = exact_scores(backend, problem, *whole)
    for row in range(2):
        np.testing.assert_allclose(
            answer.scores[row], exact[0][answer.places[row]], atol=3 * EFFORT.tolerance
        )
    # A repeated place is pushed at another threshold: the answers agree as far as they are exact.
    assert len(set(answer.places[0]) & set(answer.places[1])) >= 28


def test_observations_may_be_negative(backend, rng):
    problem, graph = clusters(backend, rng, 0.9)
    places, weights = observations(rng, graph.n)
    weights[:, ::2] *= -1
    effort = replace(EFFORT, watched=graph.n)
    answer = searched(backend, problem, places, weights, 10, effort)
    exact, lengths = exact_scores(backend, problem, places, weights)
    bound = error_bound(problem, "float64", effort, lengths)
    for row in np.flatnonzero(answer.settled):
        found = answer.found[row]
        expected = exact[row][answer.places[row, :found]]
        np.testing.assert_allclose(answer.scores[row, :found], expected, atol=bound[row, 0])


def test_queries_that_observe_nothing_are_settled(backend, rng, dtype):
    problem, _ = clusters(backend, rng, 0.9, dtype)
    places = np.array([[-1, -1], [4, 9], [5, 5]])
    weights = np.array([[1, 1], [0, 0], [1, -1]], dtype)
    answer = searched(backend, problem, places, weights, 3, EFFORT)
    np.testing.assert_array_equal(answer.places, np.full((3, 3), -1))
    assert answer.scores.dtype == dtype
    assert not answer.scores.any()
    assert answer.settled.all()
    for name in ("found", "rounds", "visited", "steps", "residuals"):
        assert not getattr(answer, name).any()
    mixed = searched(backend, problem, places, np.ones((3, 2), dtype), 3, EFFORT)
    assert mixed.found.tolist() == [0, 3, 3]


@pytest.mark.parametrize(("m", "width"), [(0, 4), (3, 0), (0, 0)])
def test_no_observations(backend, rng, m, width):
    problem, _ = clusters(backend, rng, 0.9)
    answer = searched(backend, problem, np.zeros((m, width), int), np.zeros((m, width)), 3, EFFORT)
    assert answer.places.shape == answer.scores.shape == (m, 3)
    assert answer.settled.shape == (m,)
    assert answer.settled.all()


@pytest.mark.parametrize("room", [1, 12, 60])
def test_query_without_room_is_not_settled(backend, rng, room):
    problem, graph = grid(backend, 0.99)
    places, weights = observations(rng, graph.n, m=5)
    places[-1], weights[-1] = -1, 0
    effort = replace(EFFORT, room=room)
    answer = searched(backend, problem, places, weights, 10, effort)
    assert answer.settled.tolist() == [False] * 4 + [True]
    assert np.all(answer.visited <= max(room, 5))
    for row in range(4):
        found = answer.found[row]
        assert found == min(10, answer.visited[row])
        assert np.all(answer.places[row, found:] == -1)
        assert np.all(answer.places[row, :found] >= 0)
    assert np.isfinite(answer.scores).all()
    assert room <= 12 or np.any(answer.found > 0)


@pytest.mark.parametrize("alpha", [0.9, 0.99])
def test_room_for_all_items_is_enough(backend, rng, alpha):
    problem, graph = grid(backend, alpha)
    places, weights = observations(rng, graph.n)
    effort = replace(EFFORT, room=graph.n, watched=graph.n)
    answer = searched(
        backend, problem, places, weights, graph.n, effort, type(backend).local_search
    )
    assert np.all(answer.settled)
    assert np.all(answer.visited == graph.n)
    exact, lengths = exact_scores(backend, problem, places, weights)
    check_answer(answer, exact, error_bound(problem, "float64", effort, lengths), graph.n)


@pytest.mark.parametrize("share", [0.0, 1e-320])
def test_shares_may_vanish(backend, rng, share):
    # Of many items whose share in their group is nothing, or too little to be told from nothing.
    problem, graph = grid(backend, 0.9)
    problem = problem_of(graph, backend, 0.9, groups=np.zeros(graph.n, int))
    spread = problem.spread
    data = backend.to_numpy(spread.data) * 0 + share
    spread = backend.csr(backend.asarray(data), spread.indices, spread.indptr, spread.shape)
    problem = replace(problem, spread=spread)
    places, weights = observations(rng, graph.n)
    effort = replace(EFFORT, watched=graph.n)
    answer = searched(
        backend, problem, places, weights, graph.n, effort, type(backend).local_search
    )
    exact, lengths = exact_scores(backend, problem, places, weights)
    check_answer(answer, exact, error_bound(problem, "float64", effort, lengths), graph.n)


def test_query_with_room_is_not_touched_by_one_without(backend, rng):
    problem, graph = clusters(backend, rng, 0.99)
    places, weights = observations(rng, graph.n - 9, m=2)
    places[1] = graph.n - 6  # one of a pair
    effort = replace(EFFORT, room=12)
    answer = searched(backend, problem, places, weights, 5, effort)
    alone = searched(backend, problem, places[1:], weights[1:], 5, effort)
    assert answer.settled.tolist() == [False, True]
    assert answer.places[1].tolist() == [graph.n - 6, graph.n - 7, -1, -1, -1]
    np.testing.assert_array_equal(alone.scores[0], answer.scores[1])


def test_query_without_rounds_is_not_settled(backend, rng):
    problem, graph = grid(backend, 0.99)
    places, weights = observations(rng, graph.n)
    answer = searched(backend, problem, places, weights, 10, replace(EFFORT, rounds=1))
    assert not answer.settled.any()
    assert np.all(answer.rounds == 1)
    assert np.all(answer.found == 10)
    assert np.all(answer.residuals <= EFFORT.tolerance)


def test_query_without_steps_is_not_settled(backend, rng):
    problem, graph = grid(backend, 0.99)
    places, weights = observations(rng, graph.n)
    effort = replace(EFFORT, steps=1, tolerance=1e-7)
    answer = searched(backend, problem, places, weights, 10, effort)
    assert not answer.settled.any()
    assert np.all(answer.residuals > effort.tolerance)
    assert np.all(answer.steps <= answer.rounds + 4)  # whole components are tried again


def test_query_finds_alone_what_it_finds_among_others(backend, rng, dtype):
    problem, graph = clusters(backend, rng, 0.99, dtype)
    places, weights = observations(rng, graph.n, 20, dtype=dtype)
    effort = replace(EFFORT, watched=30, fewest=30)
    batch = searched(backend, problem, places, weights, 10, effort)
    # In float32, rounding may decide after which step a query is at its goal: the answers are then
    # as near to each other as both are to that of their system. In float64, rounding is all.
    lengths = exact_scores(backend, problem, places, weights)[1]
    margins = {
        "float32": 2 * error_bound(problem, dtype, effort, lengths)[:, 0],
        "float64": 10 * TOLERANCE[dtype] * lengths,
    }[dtype]
    for row in (3, 19):
        some = slice(row, row + 1)
        alone = searched(backend, problem, places[some], weights[some], 10, effort)
        assert alone.settled[0] == batch.settled[row]
        assert dtype == "float32" or alone.visited[0] == batch.visited[row]
        np.testing.assert_allclose(alone.scores[0], batch.scores[row], rtol=0, atol=margins[row])


def test_batch_is_cut_where_memory_is_short(backend, rng, monkeypatch):
    problem, graph = clusters(backend, rng, 0.9)
    places, weights = observations(rng, graph.n)
    whole = searched(backend, problem, places, weights, 10, EFFORT)
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: 1)
    parts = searched(backend, problem, places, weights, 10, EFFORT)
    np.testing.assert_array_equal(parts.visited, whole.visited)
    np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-9)


@pytest.mark.parametrize("search", [search_locally, own_search])
def test_items_without_a_group_are_searched_too(backend, rng, search):
    affinity = path(60)
    graph = hg.graph_from_affinity(affinity, backend=backend, dtype="float64")
    labels = np.arange(60) // 10
    labels[::3] = -1
    effort = replace(EFFORT, watched=60, fewest=60)
    for groups in (labels, np.full(60, -1)):
        problem = problem_of(graph, backend, 0.9, groups=groups)
        places, weights = observations(rng, 60)
        answer = searched(backend, problem, places, weights, 60, effort, search)
        exact, lengths = exact_scores(backend, problem, places, weights)
        assert answer.settled.all()
        check_answer(answer, exact, error_bound(problem, "float64", effort, lengths), 60)


def test_places_that_do_not_exist_are_refused(backend, rng):
    problem, graph = clusters(backend, rng, 0.9)
    for wrong in (graph.n, -2):
        with pytest.raises(ValueError, match=f"places must be from -1 to {graph.n - 1}"):
            searched(backend, problem, np.array([[0, wrong]]), np.ones((1, 2)), 3, EFFORT)


def test_every_backend_searches(backend, rng, dtype):
    problem, graph = clusters(backend, rng, 0.9, dtype)
    places, weights = observations(rng, graph.n, dtype=dtype)
    effort = replace(EFFORT, watched=graph.n)
    answer = searched(backend, problem, places, weights, 10, effort, own_search)
    exact, lengths = exact_scores(backend, problem, places, weights)
    check_answer(answer, exact, error_bound(problem, dtype, effort, lengths), 10)


def test_no_array_is_as_large_as_all_items_of_all_queries():
    cliques, m = 50_000, 64
    n = 4 * cliques
    own = np.repeat(4 * np.arange(cliques), 16).reshape(n, 4)
    columns = (own + np.arange(4)).ravel()
    others = columns != np.repeat(np.arange(n), 4)
    backend = hg.backends.numpy_backend.NumpyBackend()
    problem = LocalProblem(
        adjacency=backend.csr(
            np.full(3 * n, 1 / 3), columns[others], np.arange(0, 3 * n + 1, 3), (n, n)
        ),
        spread=backend.csr(np.zeros(0), np.zeros(0, int), np.zeros(n + 1, int), (n, 2)),
        inverse=CoarseInverse(None, np.ones((1, 1)), 1.0),
        roots=np.ones(n),
        order=np.arange(n),
        alpha=0.9,
    )
    places = 4 * np.arange(m)[:, None]
    tracemalloc.start()
    answer = search_locally(backend, problem, places, np.ones((m, 1)), 4, EFFORT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.settled.all()
    np.testing.assert_array_equal(np.sort(answer.places, axis=1), places + np.arange(4))
    assert peak < m * n / 4


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
def test_native_answers_have_the_same_bits_for_any_number_of_threads(rng, dtype, monkeypatch):
    backend = NativeBackend(native_core())
    problem, graph = clusters(backend, rng, 0.99, dtype, n=1500)
    places, weights = observations(rng, graph.n, 20, dtype=dtype)
    answers = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        threads._pool.cache_clear()
        answers.append(backend.local_search(problem, places, weights, 20, EFFORT))
    threads._pool.cache_clear()
    for answer in answers[1:]:
        for field in fields(answer):
            one, other = getattr(answers[0], field.name), getattr(answer, field.name)
            np.testing.assert_array_equal(one, other, err_msg=field.name)


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
@pytest.mark.parametrize("alpha", [0.9, 0.99])
def test_native_core_and_array_operations_agree(rng, dtype, alpha):
    backend = NativeBackend(native_core())
    problem, graph = clusters(backend, rng, alpha, dtype, n=1500)
    places, weights = observations(rng, graph.n, 20, dtype=dtype)
    native = backend.local_search(problem, places, weights, 20, EFFORT)
    ours = GenericBackend.local_search(backend, problem, places, weights, 20, EFFORT)
    np.testing.assert_array_equal(ours.settled, native.settled)
    np.testing.assert_array_equal(ours.found, native.found)
    exact, lengths = exact_scores(backend, problem, places, weights)
    # Each of the two is within the tolerance of its own system, and these have other boundaries.
    margin = 4 * error_bound(problem, dtype, EFFORT, lengths)
    for row in np.flatnonzero(native.settled):
        found = native.found[row]
        np.testing.assert_allclose(ours.scores[row], native.scores[row], atol=margin[row, 0])
        # Items that only one of the two has are near ties of the last one.
        last = exact[row][native.places[row, :found]].min()
        apart = set(ours.places[row, :found]) ^ set(native.places[row, :found])
        assert all(abs(exact[row][item] - last) <= margin[row, 0] for item in apart)


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
@pytest.mark.parametrize(
    "effort",
    [
        EFFORT,
        # What is predicted outside decides.
        STILL,
        replace(STILL, push=0.1, growth=0.05),
        # The last one asked for may be close to the next.
        replace(EFFORT, drift=0.05, gap=3),
        # More than there are around: their neighbors come in the same round.
        replace(EFFORT, push=0.5, growth=20.0),
        # None of the best may be new, however little scores move.
        replace(EFFORT, changes=0, drift=0, calm=1e9),
        # Whoever is predicted above the last of the best comes in, however slowly T grows.
        replace(STILL, push=0.5, growth=0.001),
        # Scores move together more than against each other.
        replace(EFFORT, drift=0.003, calm=0, gap=0),
        # Some of the best may be new.
        replace(EFFORT, drift=1e9, calm=-1.0, gap=0, few=4),
        # Items rank by their scores times their roots.
        replace(EFFORT, rooted=True),
        replace(STILL, push=0.5, growth=0.001, rooted=True),
    ],
    ids=[
        *("as usual", "always still", "slow", "close", "rings", "none new", "rivals", "together"),
        *("few new", "rooted", "rooted rivals"),
    ],
)
@pytest.mark.parametrize("signs", [False, True])
def test_native_core_and_array_operations_go_equally_far(rng, effort, signs):
    backend = NativeBackend(native_core())
    x = clustered_vectors(rng, 2500, d=6, clusters=15).astype("float32")
    graph = hg.reciprocal_graph(hg.nearest_neighbors(x, k=10, backend=backend), backend=backend)
    problem = problem_of(graph, backend, 0.97, groups=50)
    places, weights = observations(rng, graph.n, 30, dtype="float32")
    if signs:
        weights[:, 0] *= -0.5
    native = backend.local_search(problem, places, weights, 20, effort)
    ours = GenericBackend.local_search(backend, problem, places, weights, 20, effort)
    # The order of pushes differs, and with it some rounds; the rule does not.
    for name in ("rounds", "visited", "steps"):
        assert abs(getattr(ours, name).sum() / getattr(native, name).sum() - 1) < 0.15


@pytest.mark.parametrize("fewest", [150, 260])
def test_the_rule_is_met_by_no_fewer_items(backend, rng, fewest):
    problem, graph = grid(backend, 0.9, height=30, width=40)
    places, weights = observations(rng, graph.n)
    effort = replace(STILL, fewest=fewest, push=0.5)
    answer = searched(backend, problem, places, weights, 10, effort)
    assert answer.settled.all()
    assert np.all(answer.visited >= fewest)
    # The round before the first that counts is reached in one step, not by growth of half.
    assert np.all(answer.rounds <= 4)


def test_small_components_are_solved_beside_their_best_scores(backend, rng, dtype):
    # The best are in a component whose observation is a thousandth of the other's.
    blocks = [np.ones((4, 4)) - np.eye(4), rng.uniform(0.1, 1, (40, 40))]
    blocks[1] = np.triu(blocks[1], 1) + np.triu(blocks[1], 1).T
    graph = hg.graph_from_affinity(
        sparse.block_diag([sparse.csr_array(block) for block in blocks], format="csr"),
        dtype=dtype,
        backend=backend,
    )
    problem = problem_of(graph, backend, 0.9, groups=6)
    places, weights = np.array([[0, 9]]), np.array([[1, 1e-3]], dtype)
    answer = searched(backend, problem, places, weights, 12, EFFORT)
    exact, _ = exact_scores(backend, problem, places, weights)
    assert answer.settled.all()
    np.testing.assert_array_equal(np.sort(answer.places[0]), np.sort(np.argsort(-exact[0])[:12]))
    np.testing.assert_allclose(answer.scores[0], np.sort(exact[0])[::-1][:12], rtol=1e-3)


def test_what_rounding_hides_is_not_settled(backend):
    # On a path, scores fall by a factor with every item: far below the rounding of float32.
    n = 60
    ones = np.ones(n - 1)
    line = sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))
    graph = hg.graph_from_affinity(line, dtype="float32", backend=backend)
    problem = problem_of(graph, backend, 0.5)
    effort = replace(EFFORT, watched=n)
    answer = searched(backend, problem, np.array([[n // 2]]), np.ones((1, 1), "f4"), 50, effort)
    assert not answer.settled.any()
    near = searched(backend, problem, np.array([[n // 2]]), np.ones((1, 1), "f4"), 8, effort)
    assert near.settled.all()


def test_equal_scores_at_the_border_are_no_reason_to_go_on(backend, rng):
    # Every item has a twin, and the last one asked for is beside its own.
    x = np.repeat(clustered_vectors(rng, 300, d=6, clusters=5), 2, axis=0).astype("float32")
    graph = hg.reciprocal_graph(hg.nearest_neighbors(x, k=12, backend=backend), backend=backend)
    problem = problem_of(graph, backend, 0.9, groups=20)
    places, weights = np.arange(0, 600, 50)[:, None], np.ones((12, 1), "f4")
    effort = replace(STILL, gap=1e9, calm=-1.0, watched=40, fewest=40)
    twins = searched(
        backend,
        problem,
        np.concatenate([places, places + 1], axis=1),
        np.ones((12, 2), "f4"),
        9,
        effort,
    )
    alone = searched(backend, problem, places, weights, 10, replace(effort, gap=0))
    assert twins.settled.sum() > 6
    assert alone.settled.all()


@pytest.mark.parametrize(("k", "spare"), [(5, 0), (30, 2), (60, 0)])
def test_gaps_are_measured_by_what_scores_moved_in_the_last_round(backend, rng, k, spare):
    problem, graph = grid(backend, 0.9, height=30, width=40)
    watched, settled = 60, 0
    usual = replace(STILL, watched=watched, fewest=150, push=0.5, calm=-1.0, few=10**9)
    endless = replace(usual, drift=-1.0)
    for places, weights in zip(*observations(rng, graph.n, m=7), strict=True):
        given = backend, problem, places[None], weights[None]
        first = searched(*given, k, replace(usual, gap=0, spare=spare))
        number = int(first.rounds[0])
        before, now = (
            searched(*given, graph.n, replace(endless, rounds=rounds))
            for rounds in (number - 1, number)
        )
        scores, last = now.scores[0], now.scores[0, watched - 1]
        older = dict(zip(before.places[0, : before.found[0]], before.scores[0], strict=False))
        moved = [
            score - older[place]
            for place, score in zip(now.places[0], scores, strict=True)
            if place in older and 0.7 * last <= score <= 1.5 * last
        ]
        gap = float(scores[k - 1 - spare] - scores[k + spare])
        if not first.settled[0] or gap < 1e-3 * last:  # near ties: what is told is rounded
            continue
        limit = gap / float(np.std(moved))
        settled += 1
        # Further apart than so many times what scores moved, or not.
        for part, expected in ((0.8, True), (1.25, False)):
            effort = replace(usual, gap=part * limit, spare=spare, rounds=number)
            assert searched(*given, k, effort).settled[0] == expected
    assert settled > 2


@pytest.mark.parametrize(("k", "settles"), [(1, False), (2, True), (4, True), (5, False)])
def test_ranks_that_are_equal_by_symmetry_may_change_places(backend, k, settles):
    # Around the middle of a grid: one item, its four neighbors, and then the next.
    problem, graph = grid(backend, 0.9, height=31, width=31)
    places, weights = np.array([[graph.n // 2]]), np.ones((1, 1))
    # Nothing but scores that are near each other keeps a query going.
    effort = replace(STILL, gap=1e9, calm=-1.0, few=10**9, fewest=150, push=0.5, rounds=5)
    found = searched(backend, problem, places, weights, k, effort)
    assert found.visited[0] < graph.n
    assert found.settled[0] == settles


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
def test_more_room_than_a_query_needs_changes_no_bit(rng, dtype):
    backend = NativeBackend(native_core())
    problem, graph = clusters(backend, rng, 0.97, dtype, n=3000)
    places, weights = observations(rng, graph.n, 20, dtype=dtype)
    small, large = (
        backend.local_search(problem, places, weights, 20, replace(EFFORT, room=room))
        for room in (1200, 3000)
    )
    assert 0 < small.settled.sum() < 20
    for field in fields(small):
        one, other = getattr(small, field.name), getattr(large, field.name)
        np.testing.assert_array_equal(one[small.settled], other[small.settled], field.name)


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
def test_memory_of_queries_that_went_far_is_given_back(rng, monkeypatch):
    backend = NativeBackend(native_core())
    problem, graph = grid(backend, 0.9)
    places, weights = observations(rng, graph.n, m=1)

    def kept(most):
        monkeypatch.setattr(native_local, "KEPT_ROOM", most)
        backend.local_search(problem, places, weights, 10, replace(EFFORT, room=graph.n))
        return len(backend._local.memories._free)

    assert [kept(graph.n), kept(100), kept(graph.n)] == [1, 0, 1]


@pytest.mark.parametrize(("seen", "entries", "kept"), [(4, 20, 1), (5, 20, 0), (4, 21, 0)])
def test_memory_is_kept_up_to_its_items_and_their_part_of_the_entries(
    monkeypatch, seen, entries, kept
):
    monkeypatch.setattr(native_local, "KEPT_ROOM", 4)
    memories = native_local.Memories()
    memories.give_back(memories.take(10, 2, 8, 40, "float32"), seen, entries)
    assert len(memories._free) == kept


def test_places_of_items_are_kept_whatever_a_query_saw(monkeypatch):
    monkeypatch.setattr(native_local, "KEPT_ROOM", 4)
    memories = native_local.Memories()
    taken = memories.take(10, 2, 8, 40, "float32")
    memories.give_back(taken, 7, 40)
    _, fields_, arrays = memories.take(10, 3, 9, 60, "float64")
    assert arrays[0] is taken[2][0]
    assert fields_.place == arrays[0].ctypes.data
    assert all(one is not other for one in arrays[1:] for other in taken[2])
    # Nobody else gets them as long as they are in use, nor a graph of another size.
    assert memories.take(10, 2, 8, 40, "float32")[2][0] is not arrays[0]
    memories.give_back(((11, 3, 9, 60, "float64"), fields_, arrays), 7, 60)
    assert memories.take(12, 3, 9, 60, "float64")[2][0].size == 12


def test_memory_is_kept_for_the_first_of_the_rooms():
    assert ROOMS[0] == native_local.KEPT_ROOM


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
def test_rows_longer_than_there_is_room_for_are_not_settled(rng):
    backend = NativeBackend(native_core())
    whole = rng.uniform(0.5, 1, (300, 300))
    whole = np.triu(whole, 1) + np.triu(whole, 1).T
    # Most items have two neighbors, and there is room for rows of 32; these have 299.
    mixed = sparse.csr_array(sparse.block_diag([whole, path(4000)]))
    graph = hg.graph_from_affinity(mixed, backend=backend)
    problem = problem_of(graph, backend, 0.9)
    places, weights = observations(rng, 300, dtype="float32")
    answer = backend.local_search(problem, places, weights, 10, replace(EFFORT, room=300))
    assert not answer.settled.any()
    assert np.all(answer.visited <= 32)


def test_dense_graphs_have_room_for_their_rows(backend, rng):
    whole = rng.uniform(0.5, 1, (300, 300))
    whole = np.triu(whole, 1) + np.triu(whole, 1).T
    graph = hg.graph_from_affinity(sparse.csr_array(whole), dtype="float64", backend=backend)
    problem = problem_of(graph, backend, 0.9)
    places, weights = observations(rng, graph.n)
    answer = searched(backend, problem, places, weights, 10, replace(EFFORT, room=300))
    exact, _ = exact_scores(backend, problem, places, weights)
    assert answer.settled.all()
    np.testing.assert_allclose(answer.scores[:, 0], exact.max(axis=1), rtol=1e-3)


def test_who_has_seen_most_of_a_graph_goes_on_to_all_of_it(backend, rng):
    # A random graph has no near and far: half of it is seen from some ten items.
    edges = rng.integers(0, 400, (2, 2400))
    weights = sparse.csr_array((rng.uniform(0.5, 1, 2400), edges), (400, 400))
    whole = sparse.csr_array(weights + weights.T)
    whole.setdiag(0)
    graph = hg.graph_from_affinity(whole, dtype="float64", backend=backend)
    problem = problem_of(graph, backend, 0.97)
    places, weights = observations(rng, graph.n, m=10)
    answer = searched(backend, problem, places, weights, 40, STILL)
    exact, _ = exact_scores(backend, problem, places, weights)
    assert answer.settled.all()
    assert np.all(answer.visited == np.sum(exact > 0, axis=1))
    for found, scores in zip(answer.places, exact, strict=True):
        assert set(found.tolist()) == set(np.argsort(-scores)[:40].tolist())


def test_few_changes_of_the_best_count_as_none(backend, rng):
    problem, graph = grid(backend, 0.97)
    places, weights = observations(rng, graph.n, m=12)
    # Scores may move as they like; only changes of the best keep a query going, or their number.
    strict = replace(EFFORT, drift=1e9, calm=-1.0, gap=0, growth=0.2, push=0.2)
    none, some = (
        searched(backend, problem, places, weights, 100, replace(strict, few=few)) for few in (0, 5)
    )
    assert none.settled.all()
    assert some.settled.all()
    assert np.all(some.rounds <= none.rounds)
    assert some.rounds.sum() < none.rounds.sum()


def test_whole_components_get_more_steps_than_a_round(backend, rng):
    problem, graph = grid(backend, 0.99)
    places, weights = observations(rng, graph.n)
    effort = replace(EFFORT, watched=graph.n, steps=15)
    answer = searched(backend, problem, places, weights, 40, effort)
    assert answer.settled.all()
    assert np.any(answer.steps > 15 * (answer.rounds + 1))


@pytest.mark.parametrize("watched", [20, 40, 60])
def test_steep_scores_are_right_or_not_settled(backend, dtype, watched):
    # On a path, the scores around rank 20 are 1e-6 of the observation, around rank 60 1e-17.
    ones = np.ones(99)
    line = sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))
    graph = hg.graph_from_affinity(line, dtype=dtype, backend=backend)
    problem = problem_of(graph, backend, 0.5)
    places, weights = np.array([[50]]), np.ones((1, 1), dtype)
    effort = replace(STILL, watched=watched, fewest=watched)
    answer = searched(backend, problem, places, weights, watched, effort)
    exact, _ = exact_scores(backend, problem, places, weights)
    # Rounding hides them in float32, and nothing that moves tells.
    assert answer.settled[0] == (dtype == "float64" and watched < 60)
    if answer.settled[0]:
        best = np.sort(exact[0])[::-1][:watched]
        np.testing.assert_allclose(answer.scores[0], best, rtol=0.02)
