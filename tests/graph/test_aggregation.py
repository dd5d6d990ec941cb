"""Groups: within components, bounded, reproducible, and adjacent in the order of the tree."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors

import hybrid_gpu as hg
from hybrid_gpu.graph import aggregation as module
from hybrid_gpu.graph.aggregation import aggregate


def block_diagonal(*blocks):
    return sparse.block_diag([sparse.csr_array(block) for block in blocks], format="csr")


def clique(size):
    return np.ones((size, size)) - np.eye(size)


def path(n, weights=None):
    weights = np.ones(n - 1) if weights is None else weights
    return sparse.csr_array(sparse.diags_array([weights, weights], offsets=[-1, 1]))


def complete_bipartite(left, right):
    return np.block(
        [
            [np.zeros((left, left)), np.ones((left, right))],
            [np.ones((right, left)), np.zeros((right, right))],
        ]
    )


def star(leaves):
    return complete_bipartite(1, leaves)


def random_affinity(n, degree, seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, n, (2, n * degree))
    one = sparse.coo_array((rng.random(n * degree) + 0.1, (rows, columns)), shape=(n, n)).tocsr()
    both = sparse.csr_array(one + one.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return both


GRAPHS = {
    "path": path(97),
    "rising path": path(97, np.arange(1.0, 97.0)),
    "complete": sparse.csr_array(clique(40)),
    "bipartite": sparse.csr_array(complete_bipartite(17, 23)),
    "star": sparse.csr_array(star(60)),
    "random": random_affinity(150, 3, seed=5),
    "components": block_diagonal(
        clique(30), clique(2), [[0]], path(25).toarray(), [[0]], clique(2), clique(5), [[0]]
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request, backend):
    return hg.graph_from_affinity(GRAPHS[request.param], backend=backend)


@pytest.mark.parametrize("groups", [1, 4, 12, 1000])
@pytest.mark.parametrize("largest", [None, 3, 9])
def test_groups_stay_within_components_and_bounds(graph, groups, largest, backend):
    result = aggregate(graph, groups=groups, largest=largest, seed=7, backend=backend)
    connected = np.bincount(graph.components)[graph.components] > 1
    assert np.array_equal(result.labels >= 0, connected)
    assert np.array_equal(np.unique(result.labels[connected]), np.arange(result.count))
    pairs = np.unique(np.stack([result.labels, graph.components])[:, connected], axis=1)
    assert pairs.shape[1] == result.count
    bound = 4 * -(-int(connected.sum()) // groups) if largest is None else largest
    assert result.sizes.max() <= bound
    sizes = np.bincount(graph.components)
    for component in np.flatnonzero((sizes > 1) & (sizes <= bound)):
        assert np.unique(result.labels[graph.components == component]).size == 1


@pytest.mark.parametrize("groups", [4, 12])
def test_order_lists_groups_one_after_the_other(graph, groups, backend):
    result = aggregate(graph, groups=groups, seed=7, backend=backend)
    assert np.array_equal(np.sort(result.order), np.arange(graph.n))
    along = result.labels[result.order]
    grouped = along[along >= 0]
    assert np.all(np.diff(grouped) >= 0)
    assert np.all(along[grouped.size :] == -1)
    components = graph.components[result.order]
    assert np.sum(np.diff(components) != 0) + 1 == np.unique(components).size


def test_divided_groups_come_first_and_the_rest_are_whole_components(graph, backend):
    result = aggregate(graph, groups=5, largest=8, seed=7, backend=backend)
    sizes = np.bincount(graph.components)
    for group in range(result.count):
        component = graph.components[result.labels == group]
        assert (component.size == sizes[component[0]]) == (group >= result.divided)


def test_number_of_groups_is_met_where_the_graph_allows_it(backend):
    # Forty pairs beside it are groups as they are, and do not count.
    pairs = [sparse.csr_array(clique(2))] * 40
    affinity = block_diagonal(random_affinity(3000, 6, seed=5), *pairs)
    graph = hg.graph_from_affinity(affinity, backend=backend)
    for groups in (10, 37, 100, 750):
        result = aggregate(graph, groups=groups, seed=7, backend=backend)
        assert result.divided == groups
        assert result.count == groups + 40


def test_progress_counts_the_merges_of_what_is_not_a_group_yet(backend):
    # 30 and 25 items that are too many for one group; three components that are groups already.
    graph = hg.graph_from_affinity(GRAPHS["components"], backend=backend)
    stages = []
    aggregate(
        graph,
        groups=7,
        largest=8,
        seed=7,
        progress=lambda *stage: stages.append(stage),
        backend=backend,
    )
    assert stages[0] == ("aggregate", 0, 55 - 7)
    done = [stage[1] for stage in stages]
    assert np.all(np.diff(done) >= 0)
    assert stages[-1][1] == stages[-1][2] == done[-1]


@pytest.mark.parametrize(
    "wrong", [{"groups": 0}, {"groups": 2.5}, {"largest": 0}, {"seed": -1}, {"seed": 1.5}]
)
def test_wrong_arguments_are_refused(wrong, backend):
    graph = hg.graph_from_affinity(path(9), backend=backend)
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        aggregate(graph, **{"groups": 3, "seed": 0, "backend": backend, **wrong})


def test_a_seed_may_be_zero(backend):
    graph = hg.graph_from_affinity(path(90), backend=backend)
    assert aggregate(graph, groups=9, seed=0, backend=backend).count == 9


def test_the_finest_level_has_the_affinity_again(backend):
    affinity = random_affinity(80, 3, seed=5)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    connected = np.bincount(graph.components)[graph.components] > 1
    parent = module._small_components(graph.components, connected, 1)
    level = module._finest(graph, parent, backend)
    items = np.flatnonzero(connected)
    assert np.all(level.low < level.high)
    weights = affinity.toarray()[items[level.low], items[level.high]]
    np.testing.assert_allclose(level.weights, weights, rtol=1e-6)
    assert level.low.size == graph.edges
    np.testing.assert_allclose(level.volumes, affinity.sum(axis=1)[items], rtol=1e-6)
    assert level.sizes.tolist() == [1] * items.size


def test_same_seed_gives_the_same_groups(graph, backend):
    one, other = (aggregate(graph, groups=6, seed=9, backend=backend) for _ in range(2))
    assert np.array_equal(one.labels, other.labels)
    assert np.array_equal(one.order, other.order)


def test_two_cliques_joined_by_a_weak_edge_are_two_groups(backend):
    affinity = block_diagonal(clique(16), clique(16)).tolil()
    affinity[3, 20] = affinity[20, 3] = 0.01
    graph = hg.graph_from_affinity(affinity.tocsr(), backend=backend)
    labels = aggregate(graph, groups=2, largest=16, seed=7, backend=backend).labels
    assert np.unique(labels[:16]).size == np.unique(labels[16:]).size == 1
    assert labels[0] != labels[31]


def test_isolated_items_alone_make_no_group(backend):
    graph = hg.graph_from_affinity(sparse.csr_array((4, 4)), backend=backend)
    result = aggregate(graph, groups=2, seed=7, backend=backend)
    assert result.count == 0
    assert result.labels.tolist() == [-1] * 4
    assert result.order.tolist() == [0, 1, 2, 3]


def test_equal_weights_halve_a_long_path_in_few_passes(backend):
    graph = hg.graph_from_affinity(path(20_000), backend=backend)
    stages = []
    aggregate(
        graph, groups=2500, seed=7, backend=backend, progress=lambda *stage: stages.append(stage)
    )
    assert len(stages) <= 6
    assert stages[0] == ("aggregate", 0, 17_500)
    assert stages[-1] == ("aggregate", 17_500, 17_500)
    assert {stage[2] for stage in stages} == {17_500}
    assert np.all(np.diff([stage[1] for stage in stages]) > 0)


@pytest.fixture
def rounds(monkeypatch):
    """One entry for every round of matching, and for every pass that attaches leftovers."""
    taken, heaviest = [], module._heaviest

    def counted(priority, count):
        taken.append(priority.size)
        return heaviest(priority, count)

    monkeypatch.setattr(module, "_heaviest", counted)
    return taken


def test_weights_that_rise_along_a_path_do_not_stall(backend, rounds):
    # The normalized weights rise too: by weight alone, a pass would match one pair a round.
    slope = 0.4 * (1 - np.arange(399) / 400)
    weights = np.exp(np.cumsum(slope) - 40)
    graph = hg.graph_from_affinity(path(400, weights), backend=backend)
    result = aggregate(graph, groups=50, seed=7, backend=backend)
    assert result.divided == 50
    assert len(rounds) <= 60


def test_stars_are_groups_after_one_pass(backend):
    # Each hub pairs with one leaf; the other leaves have no partner, and join that pair.
    star_of_stars = sparse.lil_array(block_diagonal(*[star(30)] * 20))
    star_of_stars[0, ::31] = star_of_stars[::31, 0] = 0.1
    star_of_stars[0, 0] = 0
    graph = hg.graph_from_affinity(star_of_stars.tocsr(), backend=backend)
    stages = []
    result = aggregate(
        graph,
        groups=20,
        largest=31,
        seed=7,
        backend=backend,
        progress=lambda *stage: stages.append(stage),
    )
    assert np.array_equal(result.labels[::31], result.labels[5::31])
    assert result.sizes.tolist() == [31] * 20
    assert len(stages) <= 3


def test_groups_of_a_path_too_long_for_whole_weights_are_intervals(backend):
    # Two names of 17 bits leave 30 for the weight of an edge, one fewer than it has.
    n, groups = 200_000, 5_000
    graph = hg.graph_from_affinity(path(n), backend=backend)
    result = aggregate(graph, groups=groups, seed=7, backend=backend)
    assert result.count == groups
    assert np.count_nonzero(np.diff(result.labels)) == groups - 1
    assert result.sizes.max() <= 4 * n / groups


def level_of(affinity, sizes=None):
    """The level of an affinity, and its edges' strengths, all different."""
    matrix = sparse.csr_array(affinity)
    upper = sparse.coo_array(sparse.triu(matrix, 1))
    volumes = 1 + np.asarray(matrix.sum(axis=1), np.float64)
    sizes = np.ones(matrix.shape[0], np.int64) if sizes is None else sizes
    level = module._Level(
        upper.row.astype(np.int32),
        upper.col.astype(np.int32),
        upper.data.astype(np.float32),
        volumes,
        sizes,
    )
    strength = level.weights / np.sqrt(volumes[level.low] * volumes[level.high])
    return level, strength


def greedy_pairs(level, strength, bound):
    """Edges from the strongest down, if both ends are free and fit together."""
    leaders, free = np.arange(level.nodes), np.ones(level.nodes, bool)
    for edge in np.argsort(-strength):
        low, high = level.low[edge], level.high[edge]
        if free[low] and free[high] and level.sizes[low] + level.sizes[high] <= bound:
            leaders[high] = low
            free[low] = free[high] = False
    return leaders


def attached_one_by_one(level, strength, leaders, merges, bound):
    """Each leftover at the pair of its strongest edge; a pair takes the strongest that fit."""
    leaders = leaders.copy()
    paired = np.bincount(leaders, minlength=level.nodes)[leaders] == 2
    merges -= paired.sum() // 2
    room = bound - np.bincount(leaders, weights=level.sizes, minlength=level.nodes)
    choices = {}
    for edge in np.argsort(-strength):
        for one, other in ((level.low, level.high), (level.high, level.low)):
            loose, pair = one[edge], leaders[other[edge]]
            if not paired[loose] and paired[other[edge]]:
                if level.sizes[loose] <= room[pair] and loose not in choices:
                    choices[loose] = pair
    # In the order of strength, as they were chosen. What did not fit still takes its room.
    filled, joined = dict.fromkeys(choices.values(), 0), []
    for loose, pair in choices.items():
        filled[pair] += level.sizes[loose]
        if filled[pair] <= room[pair]:
            joined.append((loose, pair))
    for loose, pair in joined[: max(merges, 0)]:
        leaders[loose] = pair
    return leaders


def grouped(leaders):
    return np.unique(leaders, return_inverse=True)[1]


@pytest.mark.parametrize("seed", [5, 6, 7, 8])
@pytest.mark.parametrize("bound", [3, 5, 9, 1000])
def test_one_pass_is_greedy_matching_and_then_leftovers_one_by_one(seed, bound, monkeypatch):
    monkeypatch.setattr(module, "_ROUNDS_BY_WEIGHT", 1000)
    rng = np.random.default_rng(seed)
    level, strength = level_of(random_affinity(90, 2, seed), sizes=rng.integers(1, 4, 90))
    pairs = greedy_pairs(level, strength, bound)
    matched = int(np.sum(pairs != np.arange(90)))
    for merges in (90, matched + 4, matched + 1, matched):
        expected = attached_one_by_one(level, strength, pairs, merges, bound)
        assert np.any(expected != pairs) or bound < 5 or merges == matched
        merged = module._merged(level, merges, bound, np.random.default_rng(seed))
        assert np.array_equal(merged, grouped(expected))


def test_a_pass_that_may_merge_few_merges_the_strongest():
    level, strength = level_of(random_affinity(90, 2, seed=5))
    pairs = greedy_pairs(level, strength, 1000)
    for merges in (1, 2, 5):
        merged = module._merged(level, merges, 1000, np.random.default_rng(7))
        assert merged.max() + 1 == 90 - merges
    # The strongest edge of all is stronger than those beside it: it is in every first round.
    edge = np.argmax(strength)
    merged = module._merged(level, 1, 1000, np.random.default_rng(7))
    assert merged[level.low[edge]] == merged[level.high[edge]]
    assert np.any(pairs != np.arange(90))


def test_strength_is_the_weight_over_the_roots_of_both_volumes():
    # Item 0 has a heavy edge to a hub and a light one to a small item: 3 / 10 beats 1 / sqrt(20),
    # but 3 / 100 would not beat 1 / 20; and 2.1 / 10 does not beat it, though 2.1 is more than 1.
    for weight, partner in ((3.0, 1), (2.1, 2)):
        level = module._Level(
            np.array([0, 0], np.int32),
            np.array([1, 2], np.int32),
            np.array([weight, 1.0], np.float32),
            np.array([4.0, 100.0, 20.0]),
            np.ones(3, np.int64),
        )
        merged = module._merged(level, 1, 3, np.random.default_rng(7))
        assert merged[0] == merged[partner]
        assert merged.max() == 1


@pytest.mark.parametrize(("nodes", "digits"), [(2, 23), (50, 23), (70_000, 22), (300_000, 18)])
def test_edges_between_groups_add_up_as_far_as_their_names_leave_bits(nodes, digits):
    rng = np.random.default_rng(11)
    ends = rng.integers(0, 2 * nodes, (2, 1000))
    # Many parallel edges, and the first and the last node, whose names use all their bits.
    ends[:, :200] = rng.integers(2 * nodes - min(8, 2 * nodes), 2 * nodes, (2, 200))
    ends = ends[:, ends[0] != ends[1]]
    low, high = np.unique(np.sort(ends, axis=0), axis=1).astype(np.int32, order="C")
    weights = rng.lognormal(0, 8, low.size).astype(np.float32)
    sizes = rng.integers(1, 5, 2 * nodes)
    volumes = rng.random(2 * nodes)
    parent = np.concatenate([rng.permutation(nodes), rng.permutation(nodes)])
    coarse = module._coarsened(module._Level(low, high, weights, volumes, sizes), parent)
    groups = sparse.csr_array(
        (np.ones(2 * nodes), (np.arange(2 * nodes), parent)), shape=(2 * nodes, nodes)
    )
    one_way = sparse.csr_array((weights.astype(float), (low, high)), shape=(2 * nodes,) * 2)
    both = groups.T @ (one_way + one_way.T) @ groups
    expected = sparse.coo_array(sparse.triu(both, 1))
    order = np.lexsort((expected.col, expected.row))
    assert np.array_equal(coarse.low, expected.row[order])
    assert np.array_equal(coarse.high, expected.col[order])
    np.testing.assert_allclose(coarse.weights, expected.data[order], rtol=2.0 ** (1 - digits))
    assert np.array_equal(coarse.sizes, groups.T @ sizes)
    np.testing.assert_allclose(coarse.volumes, groups.T @ volumes, rtol=1e-12)


def test_five_steps_with_groups_are_nearer_than_with_random_groups_of_the_same_sizes(backend):
    rng = np.random.default_rng(13)
    vectors = clustered_vectors(rng, n=900, d=6, clusters=12)
    found = hg.nearest_neighbors(vectors, k=8, knn="exact", dtype="float64", backend=backend)
    graph = hg.reciprocal_graph(found, dtype="float64", backend=backend)
    groups = aggregate(graph, groups=60, seed=7, backend=backend)
    ones = backend.asarray(np.eye(900)[:, ::45])
    far = hg.PageRank(0.99)
    solved = hg.diffuse(graph, ones, filter=far, rtol=1e-10, backend=backend)
    exact = backend.to_numpy(solved.values)

    def error(labels):
        basis = hg.aggregate_basis(graph, labels, backend=backend)
        found = hg.diffuse(graph, ones, filter=far, basis=basis, steps=5, backend=backend)
        gap = np.linalg.norm(backend.to_numpy(found.values) - exact, axis=0)
        return np.mean(gap / np.linalg.norm(exact, axis=0))

    shuffled = groups.labels.copy()
    inside = shuffled >= 0
    shuffled[inside] = rng.permutation(shuffled[inside])
    assert error(groups.labels) < 0.035
    assert error(groups.labels) < error(shuffled) / 10


def test_tree_order_brings_neighbors_together(backend):
    rng = np.random.default_rng(5)
    shuffled = rng.permutation(4000)
    line = path(4000).tocsr()[shuffled][:, shuffled]
    graph = hg.graph_from_affinity(sparse.csr_array(line), backend=backend)
    order = aggregate(graph, groups=125, seed=7, backend=backend).order
    place = np.argsort(order)
    edges = line.tocoo()
    assert np.median(np.abs(place[edges.row] - place[edges.col])) <= 4


@pytest.mark.parametrize("leaves", [400, 3000])
def test_leaves_of_a_hub_share_groups(backend, leaves):
    edges = (np.ones(leaves), (np.zeros(leaves, np.int64), np.arange(1, leaves + 1)))
    star = sparse.csr_array(edges, shape=(leaves + 1, leaves + 1))
    graph = hg.graph_from_affinity(sparse.csr_array(star + star.T), backend=backend)
    groups = hg.aggregate(graph, groups=20, backend=backend)
    assert groups.count <= 40
    assert groups.sizes.sum() == leaves + 1
    # Four times the mean, as for any other graph.
    assert groups.sizes.max() <= 4 * -(-(leaves + 1) // 20)
