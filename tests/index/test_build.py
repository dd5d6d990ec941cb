"""What an index is built from, and the choices that are made for the user."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, path

import hybrid_gpu as hg
from hybrid_gpu.graph import vectors as graph_vectors
from hybrid_gpu.index.build import default_groups


def clique(size):
    return sparse.csr_array(np.ones((size, size)) - np.eye(size))


@pytest.mark.parametrize(
    ("affinity", "groups"),
    [
        (path(4000), 126),  # the root of twice its 7,998 entries
        (path(80), 10),  # one group for eight items
        (clique(47), 5),
        (path(7), 1),
        (sparse.csr_array((100, 100)), 1),
    ],
)
def test_groups_are_as_many_as_keep_a_step_cheap(affinity, groups, backend):
    graph = hg.graph_from_affinity(affinity, backend=backend)
    assert default_groups(graph) == groups


@pytest.mark.parametrize("basis", ["auto", "aggregate"])
def test_index_has_the_default_number_of_groups(basis, backend):
    index = hg.build_index_from_graph(path(4000), basis=basis, backend=backend)
    assert index.basis.rank == 126
    assert hg.build_index_from_graph(path(4000), rank=9, backend=backend).basis.rank == 9


@pytest.mark.parametrize(("n", "rank"), [(150, 100), (30, 30)])
def test_eigenvectors_are_a_hundred_or_as_many_as_there_are(n, rank, backend):
    for basis in ("eigen", "sparse-eigen"):
        index = hg.build_index_from_graph(path(n), basis=basis, backend=backend)
        assert index.basis.rank == rank


def from_descriptors(backend, **options):
    vectors = clustered_vectors(np.random.default_rng(31), n=40)
    return hg.build_index(vectors, neighbors=4, backend=backend, **options)


def from_lists(backend, **options):
    vectors = clustered_vectors(np.random.default_rng(31), n=40)
    found = hg.nearest_neighbors(vectors, k=4, backend=backend)
    ids, similarities = backend.to_numpy(found.ids), backend.to_numpy(found.similarities)
    return hg.build_index_from_neighbors(
        ids, np.maximum(similarities, 0), backend=backend, **options
    )


def from_graph(backend, **options):
    return hg.build_index_from_graph(path(40), backend=backend, **options)


@pytest.mark.parametrize("build", [from_descriptors, from_lists])
def test_lists_are_kept_in_32_bits_unless_told_otherwise(build, backend):
    assert backend.to_numpy(build(backend).neighbors.ids).dtype == np.int32
    assert build(backend, keep_neighbors=False).neighbors is None


@pytest.mark.parametrize("build", [from_descriptors, from_lists, from_graph])
@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 1.0},
        {"alpha": 1 - 1e-7},
        {"alpha": 1 - 1e-14, "dtype": "float64"},
        {"alpha": 10**400},
        {"gamma": 10**400},
        {"tolerance": 0.0},
        {"sparsity": 1.0},
        {"precision": np.array("int8")},
        {"basis": [0] * 40},
        {"gamma": 0.0},
        {"precision": "float8"},
        {"basis": "wavelets"},
        {"basis": np.zeros(39, int)},
        {"basis": np.zeros((39, 2))},
        {"basis": np.zeros((40, 2, 2))},
        {"basis": 7},
    ],
)
def test_wrong_settings_are_refused_by_every_way_to_build(build, wrong, backend):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must"):
        build(backend, **wrong)


@pytest.mark.parametrize("form", ["labels", "dense", "sparse"])
def test_own_basis_is_in_the_order_of_the_items(form, backend):
    rng = np.random.default_rng(7)
    given = {
        "labels": np.arange(40) // 5,
        "dense": rng.standard_normal((40, 3)),
        "sparse": sparse.csr_array(np.eye(40)[:, :6]),
    }[form]
    shuffled = rng.permutation(40)
    affinity = sparse.csr_array(path(40).tocsr()[shuffled][:, shuffled])
    index = hg.build_index_from_graph(affinity, basis=given, dtype="float64", backend=backend)
    basis = index.basis
    assert basis.rank == {"labels": 8, "dense": 3, "sparse": 6}[form]
    units = backend.asarray(np.eye(basis.rank))
    columns = backend.to_numpy(basis.prolong(units))
    if form == "labels":
        assert np.array_equal(columns != 0, np.arange(40)[:, None] // 5 == np.arange(8))
    else:
        expected = given if form == "dense" else given.toarray()
        np.testing.assert_allclose(columns, expected)


def test_lists_of_the_caller_s_may_change_afterwards(backend, rng):
    found = hg.nearest_neighbors(clustered_vectors(rng), k=6, dtype="float32", backend=backend)
    ids, similarities = (backend.to_numpy(part).copy() for part in (found.ids, found.similarities))
    index = hg.build_index_from_neighbors(ids, similarities, backend=backend)
    edges = index.remove([0]).graph.edges
    similarities[:] = 0
    ids[:] = 0
    assert index.remove([0]).graph.edges == edges > 0


def test_index_takes_what_it_tells_and_its_build_less_than_three_times_that():
    vectors = clustered_vectors(np.random.default_rng(5), n=9000, d=16, clusters=90)
    lists = hg.nearest_neighbors(vectors.astype("float32"), k=20, knn="exact", backend="numpy")
    build = partial(hg.build_index_from_neighbors, neighbors=20)
    build(lists.ids, lists.similarities, backend="numpy")  # what is imported late is there
    tracemalloc.start()
    try:
        index = build(lists.ids, lists.similarities, backend="numpy")
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    told = sum(index.memory.values())
    assert kept < 1.2 * told
    assert peak < 3 * told


def test_an_index_need_not_keep_its_descriptors(backend):
    vectors = clustered_vectors(np.random.default_rng(37), n=150, d=6, clusters=5)
    whole = hg.build_index(vectors, neighbors=6, knn="exact", backend=backend)
    index = hg.build_index(
        vectors, neighbors=6, knn="exact", keep_descriptors=False, backend=backend
    )
    assert index.descriptors is None
    assert index.memory["descriptors"] == 0
    assert index.graph.edges == whole.graph.edges
    ids, similarities = [[3, 5]], [[0.9, 0.8]]
    np.testing.assert_array_equal(
        index.rerank(ids, similarities, k=5).scores, whole.rerank(ids, similarities, k=5).scores
    )
    with pytest.raises(ValueError, match="search needs descriptors"):
        index.search(vectors[:2], k=3)
    with pytest.raises(TypeError, match="keep_descriptors must be True or False"):
        hg.build_index(vectors, keep_descriptors=1, backend=backend)


@pytest.mark.parametrize("way", ["descriptors", "neighbors", "graph"])
def test_a_build_leaves_the_callers_descriptors_as_they_are(backend, monkeypatch, way):
    monkeypatch.setattr(graph_vectors, "_SMALL", 0)
    vectors = clustered_vectors(np.random.default_rng(41), n=150, d=6, clusters=5)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    given = backend.asarray(vectors)
    options = {"dtype": "float64", "backend": backend}
    if way == "descriptors":
        index = hg.build_index(given, neighbors=6, knn="exact", **options)
    elif way == "neighbors":
        lists = hg.nearest_neighbors(given, k=6, knn="exact", **options)
        index = hg.build_index_from_neighbors(
            lists.ids, lists.similarities, descriptors=given, **options
        )
    else:
        index = hg.build_index_from_graph(sparse.eye(150) * 0, descriptors=given, **options)
    np.testing.assert_array_equal(backend.to_numpy(given), vectors)
    np.testing.assert_allclose(backend.to_numpy(index.descriptors), vectors, atol=1e-12)


def test_a_build_holds_little_more_than_one_copy_of_the_descriptors():
    vectors = clustered_vectors(np.random.default_rng(43), n=3000, d=700, clusters=30)
    vectors = vectors.astype("float32")
    build = partial(hg.build_index, neighbors=5, knn="exact", backend="numpy")
    build(vectors[:50])  # what is imported late is there
    tracemalloc.start()
    try:
        build(vectors)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    told = hg.predicted_bytes(3000, dimensions=700, neighbors=5)["build"]
    # Similarities of a tile of 1,024 come on top where there is room for them.
    assert peak < told + 3 * 1024 * 3000 * 4
