"""Personalized PageRank: the scores of igraph, of networkx, and of a dense solve."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import random_affinity

import hybrid_gpu as hg
from hybrid_gpu.diffusion.diffuse import diffused
from hybrid_gpu.diffusion.solution import Stopping

N, ALPHA = 60, 0.85
SETS = [{3: 1.0, 8: 2.0, 40: 0.5}, {0: 7.0}, {58: 1.0, 2: 3.0}, {59: 4.0}]  # 55 to 59 are isolated
WALK = {"normalization": "random-walk"}
EXACT = {"accuracy": 1e-11, **WALK}


def walk(affinity, reset, alpha=ALPHA):
    """Where a walk is in the long run, which begins anew where it finds no edge."""
    affinity = np.asarray(affinity, float)
    reset = np.asarray(reset, float) / np.sum(reset)
    degrees = affinity.sum(axis=1)
    steps = np.where(degrees[:, None] > 0, affinity / np.maximum(degrees, 1e-300)[:, None], reset)
    return (1 - alpha) * np.linalg.solve(np.eye(len(reset)) - alpha * steps.T, reset)


def resets(sets, n=N):
    rows = np.zeros((len(sets), n))
    for row, items in zip(rows, sets, strict=True):
        row[list(items)] = list(items.values())
    return rows


def by_item(ranking, n=N):
    """Scores (m, n) by item; 0 for what no walk gets to."""
    scores = np.zeros((len(ranking.ids), n + 1))
    np.put_along_axis(scores, np.asarray(ranking.ids), np.asarray(ranking.scores), axis=1)
    return scores[:, :n]


def build(affinity, backend, **options):
    options = {"alpha": ALPHA, "dtype": "float64", "backend": backend, **options}
    return hg.build_index_from_graph(affinity, **options)


@pytest.fixture
def affinity(rng):
    return random_affinity(rng, n=N)


@pytest.fixture
def expected(affinity):
    return np.array([walk(affinity.toarray(), row) for row in resets(SETS)])


@pytest.mark.parametrize("method", ["auto", "hybrid", "temporal"])
def test_scores_are_those_of_a_walk(backend, affinity, expected, method):
    found = build(affinity, backend).search_items(SETS, k=N, method=method, **EXACT)
    np.testing.assert_allclose(by_item(found), expected, atol=1e-10)
    np.testing.assert_allclose(by_item(found).sum(axis=1), 1)
    for ids, scores in zip(found.ids, expected, strict=True):
        np.testing.assert_array_equal(np.diff(scores[ids[ids >= 0]]) <= 1e-10, True)
    assert np.all(found.report.residuals < 1e-10)


def test_weights_beyond_any_sum_of_them_are_taken(backend, affinity):
    index = build(affinity, backend)
    small, large = ({3: 1.0, 8: 2.0, 40: 1.5}, {3: 0.5e308, 8: 1e308, 40: 0.75e308})
    found = by_item(index.search_items([large], k=N, **EXACT))
    expected = walk(affinity.toarray(), resets([small])[0])
    np.testing.assert_allclose(found[0], expected, atol=1e-10)


@pytest.mark.parametrize("method", ["fsr", "hybrid-paper", "shybrid", "precomputed"])
def test_other_methods_scale_what_they_have(backend, affinity, expected, method):
    index = build(affinity, backend, basis="eigen", rank=50, tolerance=1e-10)
    options = {"steps": 200} if method in ("hybrid-paper", "shybrid") else {}
    if method == "precomputed":
        index = index.precompute(keep=N, rtol=1e-11)
    found = by_item(index.search_items(SETS[:2], k=N, method=method, **options, **WALK))
    # fsr and the sparse eigenvectors are no more than near.
    limit = {"precomputed": 1e-9, "hybrid-paper": 1e-6}.get(method, 0.1)
    np.testing.assert_allclose(found, expected[:2], atol=limit)


def test_local_search_ranks_by_the_scores_of_the_walk(backend, rng):
    # Hubs: with other degrees than their neighbors', the two normalizations differ in most ranks.
    n, hubs = 1500, 20
    pairs = np.unique(np.sort(rng.integers(0, n, (3 * n, 2)), axis=1), axis=0)
    spokes = np.stack([rng.integers(0, hubs, 2 * n), rng.integers(hubs, n, 2 * n)], axis=1)
    pairs = np.concatenate([pairs, spokes])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    index = hg.build_index_from_graph(pairs, n=n, alpha=ALPHA, backend=backend)
    seeds = [[5, 300], [700], [1400, 30, 31]]
    exact = index.search_items(seeds, k=10, method="temporal", steps=60, **WALK)
    other = index.search_items(seeds, k=10, method="temporal", steps=60)
    found = index.search_items(seeds, k=10, method="local", **WALK)
    np.testing.assert_array_equal(found.ids, exact.ids)
    np.testing.assert_allclose(found.scores, exact.scores, rtol=2e-3)
    assert np.mean(found.ids == other.ids) < 0.9
    assert np.all(found.report.local.settled)


def hub_graph(n, seed):
    """Edges of passages that hold 8 phrases each, a few of which are in very many of them."""
    rng = np.random.default_rng(seed)
    passages = n // 3
    phrases = passages + ((n - passages) * rng.random((passages, 8)) ** 3).astype(np.int64)
    return np.stack([np.repeat(np.arange(passages), 8), phrases.ravel()], axis=1)


@pytest.mark.parametrize("seed", [7, 29])
def test_what_a_local_search_calls_settled_is_right_beside_hubs(seed):
    # Half of what comes to a hub is from items that no local search visits: it called 41 of 128
    # such queries settled, and 16 of them had more than one wrong item among 100.
    n, seeds = 30_000, np.random.default_rng(seed + 1).integers(10_000, 30_000, (48, 3))
    index = hg.build_index_from_graph(hub_graph(n, seed), n=n, alpha=ALPHA, backend="numpy")
    exact = index.search_items(seeds, k=100, method="hybrid", accuracy=1e-5, **WALK)
    found = index.search_items(seeds, k=100, method="local", **WALK)
    settled = np.asarray(found.report.local.settled)
    agreement = [np.isin(a, b).mean() for a, b in zip(found.ids, exact.ids, strict=True)]
    assert np.all(np.asarray(agreement)[settled] >= 0.99)
    # And ``auto`` does not try what would be in vain.
    assert index.search_items(seeds[:2], k=100, **WALK).report.method == "hybrid"


def test_walks_without_hubs_are_searched_locally(rng):
    n = 24_000
    near = np.arange(n)[:, None] + rng.integers(1, 40, (n, 6))
    edges = np.stack([np.repeat(np.arange(n), 6), near.ravel() % n], axis=1)
    index = hg.build_index_from_graph(edges, n=n, alpha=ALPHA, backend="numpy")
    if not index.state.backend.searches_locally:
        pytest.skip("without the native core, auto takes hybrid")
    seeds = rng.integers(0, n, (32, 3))
    exact = index.search_items(seeds, k=100, method="hybrid", accuracy=1e-5, **WALK)
    found = index.search_items(seeds, k=100, **WALK)
    assert found.report.method == "local"
    assert np.all(found.report.local.settled)
    agreement = [np.isin(a, b).mean() for a, b in zip(found.ids, exact.ids, strict=True)]
    assert np.mean(np.asarray(agreement) >= 0.99) >= 0.99


def test_a_local_search_for_few_allowed_items_is_solved_whole(backend, affinity, expected):
    index, allowed = build(affinity, backend), [2, 8, 10, 40]
    found = index.search_items(SETS[:3], k=5, method="local", allowed=allowed, **WALK)
    assert not np.any(found.report.local.settled)
    for ids, scores, exact in zip(found.ids, found.scores, expected, strict=False):
        assert ids[:4].tolist() == sorted(allowed, key=lambda item: -exact[item])
        np.testing.assert_allclose(scores[:4], exact[ids[:4]], rtol=0.02)


def test_limits_thresholds_batches_replicas_and_files(backend, affinity, expected, tmp_path):
    index = build(affinity, backend, keys=[f"node {i}" for i in range(N)])
    named = [{f"node {i}": weight for i, weight in one.items()} for one in SETS]
    index.save(tmp_path / "index")
    opened = hg.load_index(tmp_path / "index", backend=backend)
    least, exclude = 0.01, [list(one) for one in named]
    for one in (index, opened, hg.Replicas(index, [backend, backend])):
        found = one.search_items(named, k=N, batch=3, exclude=exclude, min_score=least, **EXACT)
        closed = expected.copy()
        closed[resets(SETS) > 0] = 0
        np.testing.assert_allclose(by_item(found), np.where(closed >= least, closed, 0), atol=1e-10)


def test_one_item_is_a_set_of_one_and_weights_have_no_unit(backend, affinity):
    index = build(affinity, backend)
    one = by_item(index.search_items([4, 7], k=N, **EXACT))
    for same in ([[4], [7]], [{4: 1e-300}, {7: 1e300}], [[4, 4, -1], [7, -1, -1]]):
        np.testing.assert_allclose(by_item(index.search_items(same, k=N, **EXACT)), one, atol=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.99])
def test_alpha_is_the_damping(backend, affinity, alpha):
    found = build(affinity, backend).search_items(SETS, k=N, alpha=alpha, **EXACT)
    expected = [walk(affinity.toarray(), row, alpha) for row in resets(SETS)]
    np.testing.assert_allclose(by_item(found), expected, atol=1e-9)


def test_a_graph_without_any_edge_gives_back_the_reset(backend):
    index = build(sparse.csr_array((4, 4)), backend)
    found = index.search_items([{1: 1.0, 3: 3.0}], k=4, **EXACT)
    np.testing.assert_allclose(by_item(found, 4), [[0, 0.25, 0, 0.75]])


def test_huge_ratios_of_weights(backend):
    # A chain of weights from 1e-9 to 1e9: degrees that differ by nearly as much.
    weights = 10.0 ** np.arange(-9, 10, 2)
    n = len(weights) + 1
    affinity = sparse.diags_array([weights, weights], offsets=[-1, 1]).tocsr()
    found = build(affinity, backend).search_items([{0: 1.0, n - 1: 1.0}, {4: 1.0}], k=n, **EXACT)
    exact = [walk(affinity.toarray(), row) for row in resets([{0: 1, n - 1: 1}, {4: 1}], n)]
    np.testing.assert_allclose(by_item(found, n), exact, atol=1e-9)


def test_residuals_are_those_of_the_walk(backend, affinity):
    index = build(affinity, backend)
    found = index.search_items(SETS, k=N, method="temporal", steps=4, **WALK)
    dense, degrees = affinity.toarray(), affinity.sum(axis=1)
    step = dense / np.where(degrees > 0, degrees, 1)
    for row, reset in enumerate(resets(SETS)):
        scores, reset = by_item(found)[row], reset / reset.sum()
        lost = 1 - ALPHA * np.sum(reset[degrees == 0])
        left = (1 - ALPHA) * reset / lost - (scores - ALPHA * step @ scores)
        relative = np.linalg.norm(left) / np.linalg.norm((1 - ALPHA) * reset / lost)
        assert found.report.residuals[row] == pytest.approx(relative, rel=1e-6, abs=1e-12)


def test_a_hub_beside_a_leaf_is_as_exact_as_the_leaf(backend):
    # In the symmetric system a hub's own share is small: an accuracy beside that says little of it.
    star = [(0, leaf) for leaf in range(1, 400)] + [(400, 401), (401, 402)]
    index = hg.build_index_from_graph(star, alpha=ALPHA, dtype="float64", backend=backend)
    found = index.search_items(
        [{0: 1.0, 402: 1.0}], k=403, method="temporal", accuracy=1e-4, **WALK
    )
    affinity = np.zeros((403, 403))
    for one, other in star:
        affinity[one, other] = affinity[other, one] = 1
    exact = walk(affinity, resets([{0: 1.0, 402: 1.0}], 403)[0])
    assert np.linalg.norm(by_item(found, 403)[0] - exact) < 1e-4


def heavy_and_light():
    """A small clique of heavy edges and a path of light ones: roots from 0.1 to 5."""
    affinity = np.zeros((126, 126))
    affinity[:6, :6] = 1e3 * (1 - np.eye(6))
    for item in range(5, 125):
        affinity[item, item + 1] = affinity[item + 1, item] = 1
    return sparse.csr_array(affinity)


@pytest.mark.parametrize("seed", [5, 80])
def test_an_accuracy_is_reached_in_the_units_of_the_walk(backend, seed):
    index = build(heavy_and_light(), backend, basis="none")
    for accuracy in (1e-3, 1e-7):
        found = index.search_items([{seed: 1.0, 3: 0.5}], k=126, rtol=accuracy, **WALK)
        assert found.report.residuals[0] <= accuracy


@pytest.mark.parametrize("seed", [5, 80])
def test_the_ranking_is_told_apart_by_the_scores_of_the_walk(backend, seed):
    index = build(heavy_and_light(), backend, basis="none")
    found = index.search_items([[seed]], k=12, method="hybrid", **WALK)
    # As in hybrid's rule: the residual is small beside the last of the best scores.
    left = found.report.residuals[0] * (1 - ALPHA)
    assert left <= 0.005 * np.sqrt(12) * found.scores[0, -1] * 1.001


@pytest.mark.parametrize("size", [100.0, 0.01])
def test_roots_that_are_all_the_same_change_no_step(backend, affinity, rng, size):
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    observed = backend.asarray(rng.random((N, 3)))
    roots = backend.asarray(np.full((N, 1), size))
    for stop in (Stopping(None, 1e-6), Stopping(None, 1e-3, best=9), Stopping(7, None)):
        plain, rooted = (
            diffused(graph.adjacency, observed, None, hg.PageRank(0.9), stop, backend, roots=some)
            for some in (None, roots)
        )
        assert rooted.steps == plain.steps
        assert rooted.converged
        values = [backend.to_numpy(one.values) for one in (rooted, plain)]
        np.testing.assert_allclose(*values, rtol=1e-12)


def test_filters_of_any_kind_add_up_to_one(backend, affinity):
    index = build(affinity, backend)
    found = by_item(index.search_items(SETS, k=N, filter=hg.HeatKernel(3), **WALK))
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-4)
    with pytest.raises(ValueError, match="keeps nothing of a random walk"):
        index.search_items(SETS, filter=lambda frequency: 1 - frequency, **WALK)


def test_descriptors_order_what_no_walk_gets_to(backend, affinity, rng):
    vectors, heavy = (
        rng.standard_normal((N, 4)),
        sparse.diags_array(np.where(np.arange(N) == 3, 1e4, 1)),
    )
    index = build(heavy @ affinity @ heavy, backend, descriptors=vectors)
    found = index.search_items([59], k=N, **WALK)
    cosines = vectors @ vectors[59] / np.linalg.norm(vectors, axis=1)
    cosines[59] = np.inf
    np.testing.assert_array_equal(found.ids[0], np.argsort(-cosines))
    # The mean of a set has the user's weights, whatever the degrees.
    both = index.search_items([{59: 1.0, 3: 2.0}], k=N, **WALK).ids[0]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = units @ (units[59] + 2 * units[3])
    others = [55, 56, 57, 58]  # no walk gets to them
    assert both[-4:].tolist() == sorted(others, key=lambda item: -likeness[item])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "nn"}, "method 'nn' has no scores of a random walk"),
        ({"method": "truncated"}, "Use method='hybrid', 'temporal', 'local' or 'precomputed'"),
        ({"degree_correction": True}, "Leave one of them out"),
        ({"weights": [[1.0, -1.0]]}, "got negative ones. Use normalization='symmetric'"),
        ({"weights": [[0.0, 0.0]]}, "an item of some weight"),
        ({"normalization": "rw"}, "normalization must be one of symmetric, random-walk; got 'rw'"),
    ],
)
def test_what_is_no_walk_is_refused(affinity, options, words):
    index = build(affinity, "numpy")
    with pytest.raises(ValueError, match=words):
        index.search_items([[3, 4]], **{**WALK, **options})


def library_graphs(rng):
    """An igraph graph with hubs, loops, multi-edges, components and isolated vertices."""
    igraph = pytest.importorskip("igraph")
    n = 300
    edges = np.concatenate([rng.integers(0, 140, (500, 2)), rng.integers(140, 290, (400, 2))])
    edges = np.concatenate([edges, [(3, 3), (150, 150), (295, 295), (7, 8), (8, 7)]])
    weights = rng.random(len(edges)) * 10.0 ** rng.integers(-2, 3, len(edges))
    graph = igraph.Graph(n=n, edges=edges.tolist(), edge_attrs={"weight": weights.tolist()})
    return graph, n


def seeds_of(rng, n):
    sets = [dict(zip(rng.choice(n, 9, replace=False).tolist(), rng.random(9), strict=True))]
    return [*sets, {295: 1.0}, {296: 1.0, 3: 0.5}, {297: 2.0}, {3: 1, 150: 1, 299: 0.1}]


def test_scores_and_rankings_are_igraph_s(backend, rng):
    graph, n = library_graphs(rng)
    index = build(graph, backend)
    sets = seeds_of(rng, n)
    found = index.search_items(sets, k=n, **EXACT)
    for row, reset in enumerate(resets(sets, n)):
        exact = np.array(
            graph.personalized_pagerank(damping=ALPHA, reset=reset.tolist(), weights="weight")
        )
        np.testing.assert_allclose(by_item(found, n)[row], exact, atol=1e-9)
        ids = found.ids[row][found.ids[row] >= 0]
        # Equal scores of igraph differ in their last digits.
        assert np.all(np.diff(exact[ids]) <= 1e-10)
        assert np.all(np.delete(exact, ids) < 1e-12)


def test_scores_are_networkx_s(backend, rng):
    networkx = pytest.importorskip("networkx")
    graph, n = library_graphs(rng)
    pairs, weights = graph.get_edgelist(), graph.es["weight"]
    for kind in (networkx.MultiGraph, networkx.Graph):
        other = kind()
        other.add_nodes_from(range(n))
        other.add_weighted_edges_from((*pair, w) for pair, w in zip(pairs, weights, strict=True))
        sets = seeds_of(rng, n)
        found = by_item(build(other, backend).search_items(sets, k=n, **EXACT), n)
        for row, items in enumerate(sets):
            exact = networkx.pagerank(
                other, alpha=ALPHA, personalization=items, tol=1e-13, max_iter=10_000
            )
            np.testing.assert_allclose(found[row], [exact[item] for item in range(n)], atol=1e-9)
