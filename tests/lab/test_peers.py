"""The comparison with other libraries, on graphs small enough for a dense solve."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sparse

import hybrid_gpu as hg
from hybrid_gpu import reference

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import peer_solvers
import peers

# What peers warn of is their own affair.
pytestmark = pytest.mark.filterwarnings("ignore")

QUERIES = np.arange(3)


def ring_with_chords(n=150, seed=61):
    """A connected graph of random weights: a ring, and twice as many edges across it."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([np.arange(n), rng.integers(0, n, 2 * n)])
    columns = np.concatenate([(np.arange(n) + 1) % n, rng.integers(0, n, 2 * n)])
    one = sparse.csr_array((rng.random(rows.size) + 0.1, (rows, columns)), shape=(n, n))
    both = sparse.csr_array(one + one.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return both


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    rng = np.random.default_rng(67)
    ids = np.stack([rng.choice(150, 5, replace=False) for _ in QUERIES])
    folder = tmp_path_factory.mktemp("problem")
    made = peer_solvers.Problem.write(folder, ring_with_chords(), ids, 0.5 + rng.random((3, 5)) / 2)
    assert peers.solved(made) < 1e-11
    return made


def diffused(problem):
    """The dense solution of every query."""
    system = np.eye(problem.n) - problem.alpha * problem.matrix("float64").toarray()
    observation = problem.observations()
    right = np.stack([observation(number) for number in QUERIES], axis=1)
    return (1 - problem.alpha) * np.linalg.solve(system, right).T


def test_pagerank_maps_to_diffusion_and_back():
    affinity = ring_with_chords()
    degrees = affinity.sum(axis=1)
    y = np.random.default_rng(71).random(150)
    restart, mass = peer_solvers.to_pagerank(y, degrees)
    walk = affinity.toarray() / degrees  # columns sum to 1
    p = 0.01 * np.linalg.solve(np.eye(150) - 0.99 * walk, restart)
    assert p.sum() == pytest.approx(1)
    x = reference.exact(reference.normalize(affinity), y, 0.99)
    np.testing.assert_allclose(peer_solvers.from_pagerank(p, degrees, mass), x, rtol=1e-9)


def test_restart_follows_the_root_of_the_degrees():
    restart, mass = peer_solvers.to_pagerank(np.array([1.0, 1.0, 0.0]), np.array([1.0, 4.0, 3.0]))
    np.testing.assert_allclose(restart, [1 / 3, 2 / 3, 0])
    assert mass == pytest.approx(3)


CONVERGED = {
    "ours, temporal": (
        "hybrid_gpu",
        "graph float32",
        "ours",
        {"method": "temporal", "steps": 150},
        1e-4,
    ),
    "ours, one at a time": (
        "hybrid_gpu",
        "graph float32",
        "ours",
        {"method": "hybrid", "steps": 15, "basis": "aggregate", "batch": 1},
        1e-4,
    ),
    "ours, to a tolerance": (
        "hybrid_gpu",
        "graph float64",
        "ours",
        {"method": "hybrid", "rtol": 1e-10, "basis": "aggregate"},
        1e-8,
    ),
    "paper": ("hybrid_gpu", "graph float32", "paper", {"rank": 4, "steps": 150}, 1e-4),
    "cg": ("scipy", "float64", "scipy_cg", {"steps": 150, "threads": 1}, 1e-9),
    "cg on threads": ("scipy", "float64", "scipy_cg", {"steps": 150, "threads": 2}, 1e-9),
    "cg in float32": ("scipy", "float32", "scipy_cg", {"steps": 150, "threads": 1}, 1e-4),
    "piteration": (
        "sknetwork",
        "affinity",
        "scikit_network",
        {"solver": "piteration", "n_iter": 3000, "tol": 0, "threads": 2},
        1e-9,
    ),
    # Inside, SciPy's solver stops at its own relative tolerance of 1e-5.
    "bicgstab": (
        "sknetwork",
        "affinity",
        "scikit_network",
        {"solver": "bicgstab", "tol": 1e-12, "threads": 2},
        1e-2,
    ),
    # PyGSP estimates the end of the spectrum from a random start, now and then a little low; what
    # lies beyond grows with the order.
    "Chebyshev": ("pygsp", "affinity", "pygsp", {"order": 80}, 1e-3),
    "multigrid": ("pyamg", "float64", "pyamg", {"rtol": 1e-12, "threads": 2}, 1e-9),
    "prpack": ("igraph", "affinity", "igraph", {}, 1e-6),
    "torch": ("torch", "float32", "torch", {"steps": 2000}, 1e-3),
    "torch-ppr": ("torch_ppr", "affinity", "torch_ppr", {"steps": 2000}, 1e-3),
    "push": ("numpy", "float32", "forward_push", {"eps": 1e-8, "threads": 2}, 1e-3),
}


@pytest.mark.parametrize("name", CONVERGED)
def test_peer_reaches_the_dense_solution(name, problem):
    package, load, setup, options, tolerance = CONVERGED[name]
    pytest.importorskip(package)
    if setup == "paper" or options.get("threads", 1) > 1:
        pytest.importorskip("threadpoolctl")
    kind, _, values = load.rpartition(" ")
    loaded = (problem.graph if kind == "graph" else problem.matrix)(values)
    solver = getattr(peer_solvers, setup)(problem, loaded, **options)
    exact = diffused(problem)
    error = np.linalg.norm(solver.scores(QUERIES) - exact, axis=1)
    assert np.all(error <= tolerance * np.linalg.norm(exact, axis=1))
    best = np.argsort(-exact, axis=1)[:, :10]
    np.testing.assert_array_equal(solver.top(QUERIES[1:])[:, :10], best[1:])


def test_a_local_row_ranks_as_the_dense_solution_does(problem):
    for batch in (None, 1):
        options = {"method": "local", "basis": "aggregate", "batch": batch}
        solver = peer_solvers.ours(problem, problem.graph(), **options)
        assert solver.scores is None
        best = np.argsort(-diffused(problem), axis=1)[:, :10]
        np.testing.assert_array_equal(solver.top(QUERIES)[:, :10], best)


def assert_pushed(found, problem, eps):
    """Scores of a push: never above the exact ones, and below by what residuals can make up.

    Residuals are at most eps times the degrees, and diffusion keeps the root of the degrees.
    """
    observation, roots = problem.observations(), np.sqrt(problem.read("degrees"))
    for scores, exact, number in zip(found, diffused(problem), QUERIES, strict=True):
        mass = (roots * observation(number)).sum()
        assert np.all(scores <= exact * (1 + 1e-5))
        assert np.all(exact - scores <= eps * mass * roots + 1e-5 * exact)


def test_push_leaves_no_more_than_its_limit_to_any_item(problem):
    solver = peer_solvers.forward_push(problem, problem.matrix("float32"), eps=1e-3, threads=1)
    first = solver.scores(QUERIES)
    assert_pushed(first, problem, 1e-3)
    # A thread's items are as they were: the same again.
    np.testing.assert_array_equal(solver.scores(QUERIES), first)


def test_push_says_where_it_saw_fewer_items_than_are_asked_for(problem):
    solver = peer_solvers.forward_push(problem, problem.matrix("float32"), eps=1.0, threads=1)
    ids, similarities = problem.read("ids"), problem.read("similarities")
    expected = np.take_along_axis(ids, np.argsort(-similarities, axis=1), axis=1)
    found = solver.top(QUERIES)
    np.testing.assert_array_equal(found[:, :5], expected)
    assert np.all(found[:, 5:] == -1)


def test_pyg_walks_on_the_graph_without_weights(problem, tmp_path):
    pytest.importorskip("torch_geometric")
    pytest.importorskip("numba")
    affinity = ring_with_chords()
    affinity.data[:] = 1
    parts = problem.read("ids"), problem.read("similarities")
    plain = peer_solvers.Problem.write(tmp_path, affinity, *parts)
    # It gets the weights too, and does not look at them. Smaller limits take it minutes.
    solver = peer_solvers.pyg(problem, problem.matrix("affinity"), eps=1e-4)
    found = solver.scores(QUERIES)
    assert_pushed(found, plain, 1e-4)
    best = np.argsort(-found, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(solver.top(QUERIES)[:, :10], best)


def test_an_optional_peer_that_is_absent_is_skipped_with_the_reason():
    way = peer_solvers.Way("walks", ("numpy", "no_such_package"), None, None)
    assert peers.missing(way) == "walks: skipped, no no_such_package"
    assert peers.missing(peer_solvers.Way("walks", ("numpy",), None, None)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("way", peer_solvers.ways(rank=4), ids=lambda way: way.name)
def test_every_way_of_the_table_is_measured(way, problem):
    for package in way.packages:
        pytest.importorskip(package)
    if "one per core" in way.name:
        pytest.importorskip("threadpoolctl")
    row = peers.measured(way, problem, seconds=0.02)
    assert tuple(row) == peers.COLUMNS
    # Walks that know no weights answer another question, not quite another one.
    other = "edges without weights" in way.name
    assert row["agreement@100"] > (0.6 if other else 0.9)
    if "hybrid_gpu local" in way.name:
        assert row["relative error"] is None
    elif not other:
        assert row["relative error"] < 0.2
    assert 1 <= row["queries"] <= 3
    assert row["queries per second"] * row["ms per query"] == pytest.approx(1000)


def test_a_side_by_side_peer_ranks_by_its_columns(problem):
    # Scores that are the observation itself: the observed items come first, by their weight.
    solver = peer_solvers.side_by_side(problem, lambda columns: columns, 0)
    ids, similarities = problem.read("ids"), problem.read("similarities")
    expected = np.take_along_axis(ids, np.argsort(-similarities, axis=1), axis=1)
    np.testing.assert_array_equal(solver.top(QUERIES)[:, :5], expected)
    np.testing.assert_allclose(
        np.take_along_axis(solver.scores(QUERIES), ids, axis=1), similarities**3
    )


def test_affinity_is_that_of_the_reference():
    vectors = np.random.default_rng(73).standard_normal((80, 6))
    lists = hg.nearest_neighbors(vectors, k=9, knn="exact", dtype="float64", backend="numpy")
    affinity = peers.affinity_of(np.asarray(lists.ids), np.asarray(lists.similarities))
    expected = reference.affinity_matrix(vectors, 9).toarray()
    np.testing.assert_allclose(affinity.toarray(), expected, atol=1e-12)


def test_an_edge_weighs_the_cube_of_the_mean_of_its_two_similarities():
    # Items 0 and 1 list each other, at 0.8 and 0.6; 1 lists 2 at a similarity that gives no edge.
    ids = np.array([[1, 3], [0, 2], [0, 1], [1, 2]])
    similarities = np.array([[0.8, 0.3], [0.6, -0.2], [0.5, 0.4], [0.9, 0.9]])
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = 0.7**3
    np.testing.assert_allclose(peers.affinity_of(ids, similarities).toarray(), expected)


def test_queries_see_the_nearest_items_of_the_largest_component(tmp_path):
    # Two rings of lists that never meet; the smaller one is left out and its ids close up.
    small, large = 8, 30
    around = np.array([1, -1, 2, -2, 3, -3])
    ids = np.concatenate(
        [
            (np.arange(small)[:, None] + around) % small,
            small + (np.arange(large)[:, None] + around) % large,
        ]
    )
    similarities = np.tile(np.array([0.9, 0.9, 0.8, 0.8, 0.7, 0.7]), (small + large, 1))
    similarities[:small] /= 2
    # One item lists a stranger first, which does not list it.
    ids[small + 4] = [2, small + 5, small + 3, small + 6, small + 2, small + 7]
    problem = peers.posed({"ids": ids, "similarities": similarities}, large, tmp_path)
    assert problem.n == large
    seen = {tuple(row) for row in problem.read("ids").tolist()}
    assert (5, 3, 6, 2, 7) in seen
    assert (1, large - 1, 2, large - 2, 3) in seen
    row = problem.read("ids").tolist().index([5, 3, 6, 2, 7])
    np.testing.assert_allclose(problem.read("similarities")[row], [0.9, 0.8, 0.8, 0.7, 0.7])


def test_accuracy_is_judged_against_the_exact_scores(problem):
    exact = diffused(problem)
    best = np.argsort(-exact, axis=1, kind="stable")[:, :100]
    half = peer_solvers.Solver(None, lambda numbers: exact[numbers] / 2, 0)
    agreement, error = peers._accuracy(best, half, problem)
    assert agreement == 1
    assert error == pytest.approx(0.5)
    worst = np.argsort(exact, axis=1, kind="stable")[:, :100]  # 150 items: 50 are in both
    assert peers._accuracy(worst, half, problem)[0] == pytest.approx(0.5)


def test_slow_ways_are_timed_on_few_queries():
    sizes = []

    def top(numbers):
        sizes.append(len(numbers))
        return numbers[:, None]

    solver = peer_solvers.Solver(top, None, 0)
    peers._timing(solver, 10, seconds=1e9)
    assert sizes == [1, 10, 10, 10]
    sizes.clear()
    found = peers._timing(solver, 10, seconds=0)[1]
    assert sizes == [1, 1]
    assert len(found) == 1


def test_a_way_that_fails_says_why(tmp_path):
    sent = []
    peers.work(0, 4, tmp_path / "nothing", 0.1, SimpleNamespace(send=sent.append))
    assert sent[0].startswith("does not run: FileNotFoundError")


def test_a_way_that_takes_too_long_gets_a_line_that_says_so(problem):
    row = peers.row_of(0, 4, problem.folder, 0.1, limit=0)
    assert tuple(row) == ("way", *peers.COLUMNS)
    assert row["way"].endswith("(not done after 0 s)")
    assert row["ms per query"] is None
