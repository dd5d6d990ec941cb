"""Groups: within components, bounded, reproducible, and adjacent in the order of the tree."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse

import hybrid_gpu as hg
from hybrid_gpu.aggregation import aggregate


def block_diagonal(*blocks):
    return sparse.csr_array(sparse.block_diag(blocks))


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
    graph = hg.graph_from_affinity(random_affinity(3000, 6, seed=5), backend=backend)
    for groups in (10, 37, 100, 750):
        result = aggregate(graph, groups=groups, seed=7, backend=backend)
        assert result.divided == groups


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
    assert stages[-1][1] == stages[-1][2] == 17_500


def test_weights_that_rise_along_a_path_do_not_stall(backend):
    graph = hg.graph_from_affinity(path(20_000, np.linspace(1, 2, 19_999)), backend=backend)
    result = aggregate(graph, groups=2500, seed=7, backend=backend)
    assert result.divided == 2500


def test_tree_order_brings_neighbors_together(backend):
    rng = np.random.default_rng(5)
    shuffled = rng.permutation(4000)
    line = path(4000).tocsr()[shuffled][:, shuffled]
    graph = hg.graph_from_affinity(sparse.csr_array(line), backend=backend)
    order = aggregate(graph, groups=125, seed=7, backend=backend).order
    place = np.argsort(order)
    edges = line.tocoo()
    assert np.median(np.abs(place[edges.row] - place[edges.col])) <= 4
