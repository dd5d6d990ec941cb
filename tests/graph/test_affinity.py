from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, dense, path, random_affinity, two_cliques

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.backends.csr_arrays import csr_from_sorted
from hybrid_gpu.graph.affinity import (
    largest_component,
    neighbors_from_lists,
    numbering_of,
    renumbered,
)
from hybrid_gpu.graph.csr import row_numbers, submatrix


def graph_of_lists(backend, ids, similarities, **options):
    neighbors = neighbors_from_lists(np.array(ids), np.array(similarities), backend=backend)
    return hg.reciprocal_graph(neighbors, backend=backend, **options)


def affinity_of(backend, graph):
    root = np.sqrt(backend.to_numpy(graph.degrees))
    return dense(backend, graph.adjacency) * np.outer(root, root)


@pytest.mark.parametrize("k", [3, 8])
def test_graph_is_the_paper_s(backend, rng, dtype, tolerance, k):
    vectors = clustered_vectors(rng)
    neighbors = hg.nearest_neighbors(vectors, k=k, knn="exact", dtype=dtype, backend=backend)
    graph = hg.reciprocal_graph(neighbors, gamma=3, dtype=dtype, backend=backend)
    expected = reference.normalize(reference.affinity_matrix(vectors, k)).toarray()
    np.testing.assert_allclose(dense(backend, graph.adjacency), expected, atol=tolerance)


def test_adjacency_is_symmetric_to_the_bit_with_zero_diagonal_and_spectrum_in_the_unit_interval(
    backend, rng, dtype
):
    vectors = clustered_vectors(rng)
    index = hg.build_index(vectors, neighbors=6, basis="none", dtype=dtype, backend=backend)
    matrix = dense(backend, index.graph.adjacency)
    assert matrix.dtype == dtype
    np.testing.assert_array_equal(matrix, matrix.T)
    assert not np.any(np.diag(matrix))
    assert np.all(matrix >= 0)
    values = np.linalg.eigvalsh(matrix.astype("float64"))
    assert values.max() == pytest.approx(1, abs=1e-6)
    assert values.min() >= -1 - 1e-6


def test_only_mutual_neighbors_are_joined(backend):
    # 0 and 1 list each other, 2 lists 0 in vain.
    graph = graph_of_lists(backend, [[1], [0], [0]], [[0.5], [0.5], [0.9]])
    assert graph.edges == 1
    assert graph.isolated == 1
    np.testing.assert_allclose(affinity_of(backend, graph)[0, 1], 0.5**3, rtol=1e-6)


def test_lists_that_disagree_meet_in_the_middle(backend):
    graph = graph_of_lists(backend, [[1], [0]], [[0.4], [0.6]], gamma=1.0)
    np.testing.assert_allclose(affinity_of(backend, graph)[0, 1], 0.5, rtol=1e-6)


def test_padding_own_id_and_repeated_ids_are_skipped(backend):
    graph = graph_of_lists(
        backend,
        [[0, 1, 1, -1], [1, 0, -1, -1], [2, 2, -1, -1]],
        [[1.0, 0.5, 0.5, np.nan], [1.0, 0.5, -7.0, np.inf], [1, 1, 0, 0]],
    )
    assert graph.edges == 1
    np.testing.assert_allclose(affinity_of(backend, graph)[0, 1], 0.5**3, rtol=1e-6)


def test_similarity_of_zero_makes_no_edge(backend):
    graph = graph_of_lists(backend, [[1], [0]], [[0.0], [0.0]])
    assert graph.edges == 0
    assert graph.isolated == 2
    assert not np.any(backend.to_numpy(graph.degrees))


def test_components_and_isolated_items_are_counted(backend):
    blocks = sparse.block_diag([two_cliques(3), path(4), np.zeros((2, 2))])
    graph = hg.graph_from_affinity(sparse.csr_array(blocks), backend=backend)
    assert (graph.n, graph.edges, graph.isolated) == (12, 3 + 3 + 3, 2)
    assert len(set(graph.components.tolist())) == 5
    assert largest_component(graph).tolist() == [6, 7, 8, 9]
    assert repr(graph) == "Graph(12 items, 9 edges, 5 components, 2 isolated)"


def test_affinity_is_normalized_and_its_diagonal_left_out(backend, rng, dtype, tolerance):
    affinity = random_affinity(rng)
    loops = affinity + sparse.diags_array(np.ones(60))
    graph = hg.graph_from_affinity(loops, dtype=dtype, backend=backend)
    np.testing.assert_allclose(
        dense(backend, graph.adjacency), reference.normalize(affinity).toarray(), atol=tolerance
    )
    np.testing.assert_allclose(
        backend.to_numpy(graph.degrees), affinity.sum(axis=1), rtol=tolerance
    )


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr"])
def test_every_sparse_format_is_taken(backend, form):
    graph = hg.graph_from_affinity(path(5).asformat(form), backend=backend)
    np.testing.assert_allclose(
        dense(backend, graph.adjacency), reference.normalize(path(5)).toarray(), atol=1e-6
    )


def test_repeated_entries_of_an_affinity_add_up(backend):
    entries = (np.array([1.0, 2, 1, 2]), (np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])))
    graph = hg.graph_from_affinity(sparse.coo_array(entries, shape=(2, 2)), backend=backend)
    np.testing.assert_allclose(backend.to_numpy(graph.degrees), [3, 3])


def test_submatrix_is_rows_and_columns(backend, rng):
    affinity = random_affinity(rng)
    graph = hg.graph_from_affinity(affinity, backend=backend)
    whole = dense(backend, graph.adjacency)
    for items in ([0], [59], [3, 4, 30, 58], list(range(60)), [55, 56, 57, 58, 59]):
        part = submatrix(graph.adjacency, backend.asarray(np.array(items)), backend)
        np.testing.assert_array_equal(dense(backend, part), whole[np.ix_(items, items)])


def one_spoiled(value):
    """A path, but for one edge."""
    affinity = path(5).tolil()
    affinity[1, 2] = affinity[2, 1] = value
    return affinity.tocsr()


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        (sparse.csr_array(np.ones((2, 3))), "square"),
        (sparse.csr_array(np.array([[0, 1.0], [0, 0]])), "symmetric"),
        (sparse.csr_array(np.array([[0, 1.0], [0.5, 0]])), "symmetric"),
        (sparse.csr_array(np.array([[0, -1.0], [-1.0, 0]])), "non-negative; got -1"),
        (sparse.csr_array(np.array([[0, np.nan], [np.nan, 0]])), "finite"),
        (sparse.csr_array(np.array([[0, np.inf], [np.inf, 0]])), "finite"),
        (one_spoiled(np.nan), "finite"),
        (one_spoiled(-1.0), "non-negative; got -1"),
        (sparse.coo_array(np.ones(3)), "square"),
        # A ring of one-way edges has as many out of each item as into it.
        (sparse.csr_array(np.roll(np.eye(3), 1, axis=1)), "symmetric"),
        (sparse.csr_array(sparse.block_diag([np.roll(np.eye(3), 1, axis=1), path(2)])), "symm"),
        (sparse.csr_array((0, 0)), "at least one item"),
    ],
)
def test_bad_affinity_is_refused(backend, affinity, message):
    with pytest.raises(ValueError, match=message):
        hg.graph_from_affinity(affinity, backend=backend)


def test_dense_or_complex_affinity_is_refused_with_the_cast(backend):
    with pytest.raises(TypeError, match=r"scipy\.sparse\.csr_array"):
        hg.graph_from_affinity(np.ones((2, 2)), backend=backend)
    with pytest.raises(TypeError, match="real numbers"):
        hg.graph_from_affinity(sparse.csr_array(np.ones((2, 2)) * 1j), backend=backend)


def test_unsigned_and_integer_affinities_count(backend):
    graph = hg.graph_from_affinity(path(3).astype(int), backend=backend)
    np.testing.assert_allclose(backend.to_numpy(graph.degrees), [1, 2, 1])


def test_affinity_may_differ_from_its_transpose_by_rounding_and_no_more(backend):
    # The slack is 1e-5 of the larger of the two.
    near = sparse.csr_array(np.array([[0, 2.0], [2 * (1 - 0.9e-5), 0]]))
    graph = hg.graph_from_affinity(near, dtype="float64", backend=backend)
    np.testing.assert_allclose(backend.to_numpy(graph.degrees), 2 - 0.9e-5, rtol=1e-12)
    for far in (1 - 1.1e-5, 1 + 1.2e-5):
        affinity = path(5).tolil()
        affinity[1, 2], affinity[2, 1] = 2, 2 * far
        with pytest.raises(ValueError, match="symmetric"):
            hg.graph_from_affinity(affinity.tocsr(), backend=backend)


def test_memory_is_that_of_every_array(backend, dtype):
    graph = hg.graph_from_affinity(path(100), dtype=dtype, backend=backend)
    entries, value = 2 * 99, np.dtype(dtype).itemsize
    assert graph.memory == entries * (value + 4) + 101 * 4 + 100 * value + 100 * 4


def test_indices_take_32_bits_where_that_is_enough(backend):
    graph = hg.graph_from_affinity(path(100), backend=backend)
    assert backend.to_numpy(graph.adjacency.indices).dtype == np.int32
    entry = [backend.asarray(np.array([value])) for value in (1.0, 0, 2**31 - 1)]
    wide = csr_from_sorted(*entry, (1, 2**31), backend)
    assert backend.to_numpy(wide.indices).dtype == np.int64
    entry[2] = backend.asarray(np.array([2**31 - 2]))
    narrow = csr_from_sorted(*entry, (1, 2**31 - 1), backend)
    assert backend.to_numpy(narrow.indices).dtype == np.int32


def test_rows_are_numbered_by_the_rows_of_the_matrix(backend):
    entries = [backend.asarray(np.array(part)) for part in ([1.0, 2, 3], [0, 1, 1], [4, 0, 3])]
    matrix = csr_from_sorted(*entries, (2, 5), backend)
    assert backend.to_numpy(row_numbers(matrix, backend)).tolist() == [0, 1, 1]


def test_an_arranged_graph_has_its_columns_in_order_and_comes_back(backend, rng):
    graph = hg.graph_from_affinity(random_affinity(rng), backend=backend)
    order = rng.permutation(60)
    numbering = numbering_of(order, backend)
    arranged = renumbered(graph, numbering, backend)
    moved = arranged.adjacency
    whole = dense(backend, graph.adjacency)
    np.testing.assert_array_equal(dense(backend, moved), whole[np.ix_(order, order)])
    ends, columns = backend.to_numpy(moved.indptr), backend.to_numpy(moved.indices)
    for start, stop in pairwise(ends):
        assert np.all(np.diff(columns[start:stop]) > 0)
    back = renumbered(arranged, numbering.inverse, backend)
    np.testing.assert_array_equal(dense(backend, back.adjacency), whole)
    np.testing.assert_array_equal(back.components, graph.components)


@pytest.mark.parametrize("gamma", [0, -1.0, np.nan])
def test_exponent_that_is_not_positive_is_refused(backend, gamma):
    with pytest.raises(ValueError, match="gamma must be"):
        graph_of_lists(backend, [[1], [0]], [[0.5], [0.5]], gamma=gamma)


@pytest.mark.parametrize("factor", [2.0**126, 2.0**-126, 2.0**1020, 2.0**-1000, 1e38, 1e-310])
def test_scaling_an_affinity_changes_nothing(backend, rng, dtype, tolerance, factor):
    affinity = random_affinity(rng)
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    scaled = hg.graph_from_affinity(affinity * factor, dtype=dtype, backend=backend)
    np.testing.assert_allclose(
        dense(backend, scaled.adjacency), dense(backend, graph.adjacency), rtol=tolerance
    )
    degrees, others = backend.to_numpy(graph.degrees), backend.to_numpy(scaled.degrees)
    np.testing.assert_allclose(others / others.max(), degrees / degrees.max(), rtol=tolerance)


@pytest.mark.parametrize("factor", [1.0, 2.0**100, 2.0**-300])
def test_components_whose_weights_are_far_apart_keep_their_edges(backend, dtype, factor):
    weights = np.array([1e30, 1e15, 1.0, 1e-15, 1e-30]) * factor
    pairs = sparse.block_diag([sparse.csr_array([[0, weight], [weight, 0]]) for weight in weights])
    graph = hg.graph_from_affinity(pairs.tocsr(), dtype=dtype, backend=backend)
    whole = np.kron(np.eye(5), [[0, 1], [1, 0]])
    np.testing.assert_allclose(dense(backend, graph.adjacency), whole, rtol=1e-6)
    degrees = backend.to_numpy(graph.degrees).astype(np.float64)
    np.testing.assert_allclose(degrees[::2] / degrees[4], weights / weights[2], rtol=1e-6)


@pytest.mark.parametrize("gamma", [300.0, 3000.0])
def test_a_large_exponent_leaves_what_the_ratios_of_weights_tell(backend, dtype, gamma):
    # A path whose two weights are 0.05 ** gamma, and half of that.
    second = 0.05 * 0.5 ** (1 / gamma)
    graph = graph_of_lists(
        backend,
        [[1, -1], [0, 2], [1, -1]],
        [[0.05, 0], [0.05, second], [second, 0]],
        gamma=gamma,
        dtype=dtype,
    )
    # The lists come in float32, whose rounding the exponent multiplies.
    shares = dense(backend, graph.adjacency)[1] ** 2
    np.testing.assert_allclose(shares, [2 / 3, 0, 1 / 3], atol=3e-8 * gamma)


def test_items_that_an_exponent_leaves_without_an_edge_are_told_of(backend, dtype):
    # Beside the first pair, the second weighs 2 ** -130, and the last nothing in any precision.
    ids = [[1], [0], [3], [2], [5], [4]]
    similarities = np.repeat([[0.9], [0.9 * 2**-0.13], [0.2]], 2, axis=0)
    with pytest.warns(UserWarning, match=r"2 of 6 items are left without an edge.*smaller gamma"):
        graph = graph_of_lists(backend, ids, similarities, gamma=1000.0, dtype=dtype)
    assert (graph.edges, graph.isolated) == (2, 2)


@pytest.mark.parametrize("wrong", [10, 50, -2, 2**40])
def test_lists_that_name_no_item_are_refused(backend, wrong):
    ids = np.tile([[1, 2, wrong]], (10, 1))
    lists = hg.Neighbors(backend.asarray(ids), backend.asarray(np.ones((10, 3))))
    with pytest.raises(ValueError, match="neighbors must list items of 0 to 9, or -1"):
        hg.reciprocal_graph(lists, backend=backend)


def test_a_warning_names_the_line_that_asked_for_a_graph(backend):
    ids = np.array([[1], [0], [3], [2]])
    similarities = np.array([[1.0], [1.0], [1e-3], [1e-3]])
    lists = hg.Neighbors(backend.asarray(ids), backend.asarray(similarities))
    vectors = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    calls = (
        lambda: hg.reciprocal_graph(lists, gamma=30, backend=backend),
        lambda: hg.build_index_from_neighbors(ids, similarities, gamma=30, backend=backend),
        lambda: hg.build_index_from_neighbors(
            ids, similarities, descriptors=vectors, gamma=30, backend=backend
        ),
    )
    for call in calls:
        with pytest.warns(UserWarning, match="left without an edge") as warned:
            call()
        assert warned[0].filename == __file__
