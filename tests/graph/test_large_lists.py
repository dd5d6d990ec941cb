"""Lists and graphs of large databases: mapped files, little memory, 64-bit counts."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sparse

import hybrid_gpu as hg
from hybrid_gpu import list_order
from hybrid_gpu.backends import csr_arrays, native_graph, numpy_backend
from hybrid_gpu.backends.csr_arrays import csr_from_sorted, index_type
from hybrid_gpu.graph import affinity, csr
from hybrid_gpu.graph.affinity import neighbors_from_lists
from hybrid_gpu.graph.csr import row_tiles
from hybrid_gpu.result_lists import check_neighbor_lists


def ring_lists(n, k, seed):
    """Lists of items on a ring, of which most edges are mutual; ids of 32 bits."""
    rng = np.random.default_rng(seed)
    steps = np.concatenate([np.arange(1, k // 2 + 1), -np.arange(1, k - k // 2 + 1)])
    ids = (np.arange(n)[:, None] + steps) % n
    strays = rng.random(ids.shape) < 0.2
    ids[strays] = rng.integers(0, n, int(strays.sum()))
    similarities = np.sort(rng.uniform(0.2, 1, ids.shape).astype(np.float32), axis=1)[:, ::-1]
    return ids.astype(np.int32), np.ascontiguousarray(similarities)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(csr, "_TILE_ENTRIES", 50)
    monkeypatch.setattr(affinity, "_TILE_ENTRIES", 37)
    monkeypatch.setattr(list_order, "_ROWS_AT_ONCE", 23)


def parts_of(graph, backend):
    matrix = graph.adjacency
    arrays = (matrix.data, matrix.indices, matrix.indptr, graph.degrees)
    return [backend.to_numpy(one) for one in arrays] + [graph.components]


@pytest.mark.parametrize("gamma", [1.0, 3.0, 900.0])
@pytest.mark.filterwarnings("ignore:.*left without an edge")
def test_a_graph_does_not_depend_on_tiles(backend, gamma, request):
    ids, similarities = ring_lists(300, 6, 7)
    similarities[::5] *= 0.6  # some weights vanish beside others, to a large power

    def made():
        lists = neighbors_from_lists(ids, similarities, backend=backend)
        return parts_of(hg.reciprocal_graph(lists, gamma=gamma, backend=backend), backend)

    whole = made()
    request.getfixturevalue("small_tiles")
    for one, other in zip(whole, made(), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_tiles_are_all_rows_and_entries_once(backend, monkeypatch):
    monkeypatch.setattr(csr, "_TILE_ENTRIES", 4)
    lengths = np.array([0, 3, 9, 0, 0, 1, 2, 0])
    rows = np.repeat(np.arange(8), lengths)
    matrix = csr_from_sorted(
        *map(backend.asarray, (np.ones(15), rows, np.arange(15) % 9)), (8, 9), backend
    )
    tiles = list(row_tiles(matrix, backend))
    assert len(tiles) == 4
    assert [tile for rows, _ in tiles for tile in range(8)[rows]] == list(range(8))
    for rows, entries in tiles:
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        assert (entries.start, entries.stop) == (bounds[rows.start], bounds[rows.stop])


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("missing", [False, True])
def test_checked_lists_do_not_depend_on_tiles(backend, metric, missing, request):
    ids, values = ring_lists(120, 5, 19)
    values = values if metric == "cosine" else np.sort(values, axis=1)
    if missing:
        ids[30:80, 2] = -1  # in the midst, and whole tiles of lists without an end
        ids[90:, 1:] = -1
        values[90:, 1:] = 0.5 if metric == "cosine" else np.inf
        values[23:46, -1] = values[23:46, -1] if metric == "cosine" else np.nan

    def checked():
        found = check_neighbor_lists(
            ids, values, None, metric=metric, dtype="float32", narrow=True, backend=backend
        )
        return [backend.to_numpy(one) for one in found]

    whole = checked()
    assert whole[0].dtype == np.int32
    if missing:
        assert (whole[0][:, -1] == -1)[30:80].all()
    request.getfixturevalue("small_tiles")
    for one, other in zip(whole, checked(), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("wrong", [120, -2])
@pytest.mark.parametrize("row", [3, 50, 119])
def test_an_id_out_of_range_is_refused_in_any_tile(small_tiles, row, wrong):
    ids, values = ring_lists(120, 5, 29)
    ids[row, 2] = wrong
    with pytest.raises(ValueError, match=rf"ids must lie in \[0, 119\].* ({wrong} to|to {wrong})"):
        check_neighbor_lists(ids, values, None, dtype="float32", backend=hg.select_backend("numpy"))


def test_lists_of_nothing_but_filler_are_refused_in_tiles_too(small_tiles):
    ids = np.zeros((60, 3), np.int64)
    with pytest.raises(ValueError, match="must be finite"):
        check_neighbor_lists(
            ids,
            np.full((60, 3), np.inf, np.float32),
            None,
            metric="l2",
            dtype="float32",
            backend=hg.select_backend("numpy"),
        )


def test_one_tile_of_nothing_but_filler_is_nothing_found(small_tiles):
    ids, values = ring_lists(120, 5, 3)
    values = np.sort(values, axis=1)
    values[46:69] = np.inf  # the third tile
    found, cosines = check_neighbor_lists(
        ids, values, None, metric="l2", dtype="float32", backend=hg.select_backend("numpy")
    )
    assert (found[46:69] == -1).all()
    assert not cosines[46:69].any()
    assert (found[:46] >= 0).all()
    assert (found[69:] >= 0).all()


def test_weights_whose_sums_overflow_are_scaled_before_they_are_added(backend):
    largest = np.finfo(np.float64).max
    matrix = sparse.csr_array(largest * np.array([[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]]))
    graph = hg.graph_from_affinity(matrix, backend=backend)
    plain = hg.graph_from_affinity(matrix / largest, backend=backend)
    one, other = (backend.to_numpy(graph.adjacency.data) for graph in (graph, plain))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_lists_that_are_right_are_not_copied():
    ids, similarities = ring_lists(200, 4, 5)
    lists = neighbors_from_lists(ids, similarities, backend="numpy")
    assert np.shares_memory(lists.ids, ids)
    assert np.shares_memory(lists.similarities, similarities)


@pytest.mark.parametrize("keep", [False, True])
def test_an_index_of_mapped_lists_is_that_of_lists_in_memory(backend, tmp_path, keep):
    ids, similarities = ring_lists(500, 8, 11)
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "similarities.npy", similarities)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("ids", "similarities")]
    options = {"neighbors": 8, "alpha": 0.9, "keep_neighbors": keep, "backend": backend}
    one = hg.build_index_from_neighbors(*mapped, **options)
    other = hg.build_index_from_neighbors(ids.astype(np.int64), similarities, **options)
    for left, right in zip(
        parts_of(one.graph, backend), parts_of(other.graph, backend), strict=True
    ):
        np.testing.assert_array_equal(left, right, strict=True)
    found, expected = (index.search_items([3, 400], k=20) for index in (one, other))
    np.testing.assert_array_equal(found.ids, expected.ids)
    if keep:
        added = one.remove([0, 7])
        assert added.n == 498


def test_a_build_from_lists_takes_little_more_than_they_do():
    if hg.backends.native.native_core() is None:
        pytest.skip("NumPy's own way takes more")
    n, k = 60_000, 20
    ids, similarities = ring_lists(n, k, 23)
    build = {"neighbors": k, "alpha": 0.9, "keep_neighbors": False, "backend": "numpy"}
    hg.build_index_from_neighbors(ids[:50] % 50, similarities[:50], **build)  # late imports
    tracemalloc.start()
    try:
        index = hg.build_index_from_neighbors(ids, similarities, **build)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    entries = index.graph.adjacency.data.size
    told = hg.predicted_bytes(n, neighbors=k, entries=entries / n)["native build"]
    assert 0.4 * told < peak < told


@pytest.mark.parametrize(
    ("sizes", "kind"), [((7, 2**31 - 1), "int32"), ((2**31, 7), "int64"), ((7, 7, 2**31), "int64")]
)
def test_matrices_count_by_64_bits_where_32_are_not_enough(sizes, kind):
    assert index_type(*sizes) == kind


@pytest.fixture
def counted_by_64_bits(monkeypatch):
    for module in (csr_arrays, native_graph, numpy_backend):
        monkeypatch.setattr(module, "index_type", lambda *sizes: "int64")


def test_an_index_counts_by_64_bits_all_the_way(backend, tmp_path, request):
    ids, similarities = ring_lists(900, 8, 13)
    options = {"neighbors": 8, "alpha": 0.95, "backend": backend}
    narrow = hg.build_index_from_neighbors(ids, similarities, **options)
    request.getfixturevalue("counted_by_64_bits")
    wide = hg.build_index_from_neighbors(ids, similarities, **options)
    wide.save(tmp_path / "index")
    loaded = hg.load_index(tmp_path / "index", backend=backend)
    for index in (wide, loaded):
        basis = index.state.basis
        for matrix in (index.state.graph.adjacency, basis.vectors, basis.spread, basis.coupling):
            assert str(matrix.indices.dtype).endswith("int64")
            assert str(matrix.indptr.dtype).endswith("int64")
    for method in ("local", "hybrid", "temporal", "nn"):
        request_ = {"k": 15, "method": method}
        expected = narrow.rerank(ids[:6, :3], similarities[:6, :3], **request_)
        for index in (wide, loaded):
            found = index.rerank(ids[:6, :3], similarities[:6, :3], **request_)
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
    changed = wide.remove([5, 6])
    assert changed.search_items([9], k=3).ids[0, 0] == 9
