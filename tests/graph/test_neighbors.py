import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import clustered_vectors, needs_faiss

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.graph import cuvs_neighbors, streamed
from hybrid_gpu.graph import neighbors as module
from hybrid_gpu.graph import vectors as graph_vectors
from hybrid_gpu.graph.neighbors import check_knn


def cosines(vectors, queries):
    return reference.unit(queries) @ reference.unit(vectors).T


def test_exact_neighbors_are_those_of_a_full_sort(backend, rng, dtype, tolerance):
    vectors = clustered_vectors(rng).astype(dtype)
    found = hg.nearest_neighbors(vectors, k=7, knn="exact", dtype=dtype, backend=backend)
    similarity = cosines(vectors, vectors)
    np.fill_diagonal(similarity, -np.inf)
    best = -np.sort(-similarity, axis=1)[:, :7]
    np.testing.assert_allclose(backend.to_numpy(found.similarities), best, atol=tolerance)
    ids = backend.to_numpy(found.ids)
    chosen = np.take_along_axis(similarity, ids, axis=1)
    np.testing.assert_allclose(chosen, best, atol=tolerance)
    assert all(len(set(line)) == 7 for line in ids.tolist())


def test_neighbors_of_many_items_are_those_of_a_full_sort(backend, rng):
    vectors = clustered_vectors(rng, n=2300, d=5, clusters=40)
    vectors[40:200] = vectors[20]  # more equal items than there are places
    found = hg.nearest_neighbors(vectors, k=30, knn="exact", dtype="float64", backend=backend)
    similarity = cosines(vectors, vectors)
    np.fill_diagonal(similarity, -np.inf)
    ids = backend.to_numpy(found.ids)
    assert not np.any(ids == np.arange(2300)[:, None])
    assert all(len(set(line)) == 30 for line in ids.tolist())
    best = -np.sort(-similarity, axis=1)[:, :30]
    np.testing.assert_allclose(backend.to_numpy(found.similarities), best, atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(similarity, ids, axis=1), best, atol=1e-12)


def test_ties_go_to_the_lower_id_without_the_item_itself(backend):
    vectors = np.tile(np.eye(7), (330, 1))
    found = hg.nearest_neighbors(vectors, k=3, knn="exact", backend=backend)
    ids = backend.to_numpy(found.ids)
    for item in (0, 6, 8, 14, 1000, 2309):
        alike = [other for other in range(item % 7, 2310, 7) if other != item]
        assert ids[item].tolist() == alike[:3]


@pytest.mark.parametrize("block", [7, 50, 1000])
@pytest.mark.parametrize("k", [1, 3, 60])
def test_neighbors_by_blocks_are_those_of_all_at_once(backend, monkeypatch, block, k):
    # Many items more than once, so that an item is not always among those most like it.
    vectors = np.tile(np.eye(7), (30, 1))
    vectors[::3, 0] += 2.0
    whole = hg.nearest_neighbors(vectors, k=k, knn="exact", backend=backend)
    monkeypatch.setattr(module, "fits", lambda vectors: False)
    monkeypatch.setattr(streamed, "_sizes", lambda vectors: (block, 40))
    found = hg.nearest_neighbors(vectors, k=k, knn="exact", backend=backend)
    ids = backend.to_numpy(found.ids)
    assert not np.any(ids == np.arange(210)[:, None])
    np.testing.assert_array_equal(ids, backend.to_numpy(whole.ids))
    similarities = backend.to_numpy(whole.similarities)
    np.testing.assert_allclose(backend.to_numpy(found.similarities), similarities, atol=1e-6)


def test_queries_outside_the_database(backend, rng, dtype, tolerance):
    vectors, queries = clustered_vectors(rng, n=50), clustered_vectors(rng, n=9)
    found = hg.nearest_neighbors(vectors, queries, k=50, knn="exact", dtype=dtype, backend=backend)
    best = -np.sort(-cosines(vectors, queries), axis=1)
    np.testing.assert_allclose(backend.to_numpy(found.similarities), best, atol=tolerance)


def test_tiles_do_not_change_the_answer(backend, rng, monkeypatch):
    vectors = clustered_vectors(rng)
    whole = hg.nearest_neighbors(vectors, k=5, knn="exact", backend=backend)
    # Room for three rows of similarities at a time.
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: 3 * 8 * 120 * 4)
    seen = []
    tiled = hg.nearest_neighbors(
        vectors, k=5, knn="exact", progress=lambda *stage: seen.append(stage[1]), backend=backend
    )
    # Lists of the best take room as well, where they are kept on the device.
    steps = np.diff(seen)
    assert (seen[0], seen[-1]) == (0, 120)
    assert np.all((steps > 0) & (steps <= 3))
    np.testing.assert_array_equal(backend.to_numpy(whole.ids), backend.to_numpy(tiled.ids))


@pytest.mark.parametrize("k", [4, 35])
@pytest.mark.parametrize("room", [4200, 9600])
def test_blocks_do_not_change_the_answer(backend, dtype, monkeypatch, k, room):
    # Equal items and exact products: every tie goes to the lower id, across blocks too.
    vectors = np.tile(np.eye(9, 90), (4, 1)) * 2.0
    whole = hg.nearest_neighbors(vectors, k=k, knn="exact", dtype=dtype, backend=backend)
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: room)
    seen = []
    found = hg.nearest_neighbors(
        vectors, k=k, dtype=dtype, progress=lambda *stage: seen.append(stage), backend=backend
    )
    assert len(seen) > 3  # several blocks
    assert seen[-1] == ("neighbors", 36, 36)
    np.testing.assert_array_equal(backend.to_numpy(found.ids), backend.to_numpy(whole.ids))
    similarities = backend.to_numpy(found.similarities)
    np.testing.assert_array_equal(similarities, backend.to_numpy(whole.similarities))
    assert found.similarities.dtype == whole.similarities.dtype


@pytest.mark.parametrize("kind", ["float16", ">f4", "fortran", "strided", "torch"])
def test_tiles_read_whatever_the_host_has(backend, monkeypatch, kind):
    monkeypatch.setattr(graph_vectors, "_LEAST_TILE", 1)
    vectors = clustered_vectors(np.random.default_rng(29), n=97, d=5).astype("float16")
    given = {
        "float16": lambda: vectors,
        ">f4": lambda: vectors.astype(">f4"),
        "fortran": lambda: np.asfortranarray(vectors.astype("f8")),
        "strided": lambda: np.repeat(vectors.astype("f4"), 2, axis=0)[::2],
        "torch": lambda: pytest.importorskip("torch").from_numpy(vectors.astype("f4")),
    }[kind]()
    read = graph_vectors.vectors_of(given, "descriptors", dtype="float32", backend=backend)
    expected = vectors.astype("f8") / np.linalg.norm(vectors.astype("f8"), axis=1, keepdims=True)
    np.testing.assert_allclose(backend.to_numpy(read.units()), expected, rtol=1e-6, atol=1e-6)
    part = read.units(13, 40, 7)
    np.testing.assert_allclose(backend.to_numpy(part), expected[13:40], rtol=1e-6, atol=1e-6)
    starts = [start for start, _ in read.tiles(13, 40, 7)]
    assert starts == [13, 20, 27, 34]


def test_a_bad_value_of_the_last_tile_is_found(backend, monkeypatch):
    monkeypatch.setattr(graph_vectors, "_LEAST_TILE", 1)
    vectors = clustered_vectors(np.random.default_rng(31), n=97, d=5)
    vectors[96, 4] = 1e300
    with pytest.raises(ValueError, match="descriptors must be finite in float32"):
        hg.nearest_neighbors(vectors, k=3, backend=backend)
    assert hg.nearest_neighbors(vectors, k=3, dtype="float64", backend=backend).ids.shape == (97, 3)


@pytest.mark.parametrize("knn", ["exact", pytest.param("faiss", marks=needs_faiss)])
def test_many_duplicates_never_list_themselves(backend, knn):
    # Twelve equal items and k = 4: an engine may return four others before the item itself.
    vectors = np.repeat(np.eye(3), 12, axis=0)
    found = hg.nearest_neighbors(vectors, k=4, knn=knn, backend=backend)
    ids = backend.to_numpy(found.ids)
    assert not np.any(ids == np.arange(36)[:, None])
    np.testing.assert_allclose(backend.to_numpy(found.similarities), 1, rtol=1e-6)
    assert np.all(ids // 12 == np.arange(36)[:, None] // 12)


def test_zero_vectors_are_similar_to_nothing(backend):
    vectors = np.array([[1.0, 0], [0, 0], [1, 1], [0, 0]])
    found = hg.nearest_neighbors(vectors, k=3, knn="exact", backend=backend)
    similarities = backend.to_numpy(found.similarities)
    assert np.all(similarities[[1, 3]] == 0)
    assert np.all(np.isfinite(similarities))


def test_length_of_vectors_does_not_matter_even_when_squares_overflow(backend, rng):
    vectors = clustered_vectors(rng, n=20)
    scale = 10.0 ** rng.uniform(-30, 30, (20, 1))
    vectors[:5] = -np.abs(vectors[:5])
    one = hg.nearest_neighbors(vectors, k=3, dtype="float32", backend=backend)
    other = hg.nearest_neighbors(vectors * scale, k=3, dtype="float32", backend=backend)
    np.testing.assert_allclose(
        backend.to_numpy(one.similarities), backend.to_numpy(other.similarities), atol=1e-6
    )


@needs_faiss
@pytest.mark.parametrize("knn", ["faiss", "IVF4,Flat"])
def test_faiss_finds_what_exact_search_finds(backend, rng, knn):
    vectors = clustered_vectors(rng, n=400)
    exact = hg.nearest_neighbors(vectors, k=6, knn="exact", backend=backend)
    faiss = hg.nearest_neighbors(vectors, k=6, knn=knn, backend=backend)
    np.testing.assert_allclose(
        backend.to_numpy(faiss.similarities), backend.to_numpy(exact.similarities), atol=1e-5
    )


@needs_faiss
def test_faiss_padding_becomes_no_neighbor(backend, rng):
    # 32 of the 64 lists of an inverted file are probed: they do not hold 90 of 100 items.
    vectors = clustered_vectors(rng, n=100)
    found = hg.nearest_neighbors(vectors, k=90, knn="IVF64,Flat", backend=backend)
    ids = backend.to_numpy(found.ids)
    assert ids.shape == (100, 90)
    assert np.any(ids < 0)
    assert np.all(ids[:, :5] >= 0)
    assert np.all(backend.to_numpy(found.similarities)[ids < 0] == 0)


@needs_faiss
def test_faiss_is_chosen_from_20_000_items_on(monkeypatch):
    asked = []

    def ask(count):
        asked.append(count)
        return module.Neighbors(np.zeros((1, 1), np.int64), np.zeros((1, 1)))

    monkeypatch.setattr(module, "_through_faiss", lambda units, *_, **__: ask(len(units)))
    monkeypatch.setattr(module, "exact_neighbors", lambda units, *_, **__: ask(0))
    for n in (19_999, 20_000):
        hg.nearest_neighbors(np.ones((n, 2)), np.ones((3, 2)), k=1, backend="numpy")
    assert asked == [0, 20_000]
    # Of items with each other, the native core needs half of the products.
    hg.nearest_neighbors(np.ones((20_000, 2)), k=1, backend="numpy")
    native = hg.select_backend("numpy").searches_locally
    assert asked[2:] == [0 if native else 20_000]


@pytest.mark.parametrize("knn", ["exact", pytest.param("faiss", marks=needs_faiss)])
def test_progress_reaches_the_end(backend, rng, knn):
    seen = []
    vectors = clustered_vectors(rng)
    hg.nearest_neighbors(
        vectors,
        k=3,
        knn=knn,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
        backend=backend,
    )
    assert seen[0] == ("neighbors", 0, 120)
    assert seen[-1] == ("neighbors", 120, 120)


def test_bad_requests_say_what_to_do(backend, rng):
    vectors = clustered_vectors(rng, n=10)
    with pytest.raises(ValueError, match="k must be at most 9; got 10"):
        hg.nearest_neighbors(vectors, k=10, backend=backend)
    with pytest.raises(ValueError, match="8 dimensions; got 3"):
        hg.nearest_neighbors(vectors, vectors[:, :3], k=2, backend=backend)


@needs_faiss
def test_an_engine_that_faiss_does_not_know_is_refused(backend, rng):
    with pytest.raises(ValueError, match="FAISS factory string; got 'Nonsense'"):
        hg.nearest_neighbors(clustered_vectors(rng), k=2, knn="Nonsense", backend=backend)


def test_without_faiss_one_reads_how_to_get_it(backend, rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"knn='exact', or .*: pip install -e \"\.\[faiss\]\""):
        hg.nearest_neighbors(clustered_vectors(rng), k=2, knn="faiss", backend=backend)


@needs_faiss
def test_names_of_engines_can_be_checked_beforehand(backend):
    for knn in ("auto", "exact", "faiss", "IVF4,Flat"):
        check_knn(knn, 8, backend)
    with pytest.raises(ValueError, match="FAISS factory string; got 'Nonsense'"):
        check_knn("Nonsense", 8, backend)


# cuVS needs a GPU and has never run here: only what is refused is tested.


def test_cuvs_is_refused_without_a_gpu(rng):
    vectors = clustered_vectors(rng, n=10)
    for call in (
        lambda: hg.nearest_neighbors(vectors, k=2, knn="cuvs", backend="numpy"),
        lambda: hg.build_index(vectors, knn="cuvs", backend="numpy"),
        lambda: hg.tune(vectors, knn="cuvs", backend="numpy"),
        lambda: check_knn("cuvs", 8, hg.select_backend("numpy")),
    ):
        with pytest.raises(ValueError, match=r"on a GPU; the backend is 'numpy'.*backend='cupy'"):
            call()


def test_without_cuvs_one_reads_how_to_get_it(gpu, rng, monkeypatch):
    monkeypatch.setattr(cuvs_neighbors.importlib.util, "find_spec", lambda name: None)
    line = r"knn='exact', or .*: pip install -e \"\.\[cuda12,cuvs12\]\""
    with pytest.raises(ImportError, match=line):
        hg.nearest_neighbors(clustered_vectors(rng), k=2, knn="cuvs", backend=gpu)


def test_what_cuvs_finds_is_measured_and_auto_never_takes_it(backend, rng, monkeypatch):
    def never(*_, **__):
        raise AssertionError("auto took cuVS")

    assert module.is_approximate("cuvs")
    monkeypatch.setattr(module, "cuvs_best", never)
    hg.nearest_neighbors(clustered_vectors(rng), k=2, knn="auto", backend=backend)


def test_cuvs_gets_no_descriptors_that_leave_no_room(backend, rng, monkeypatch):
    monkeypatch.setattr(module, "fits", lambda vectors: False)
    vectors = graph_vectors.vectors_of(
        clustered_vectors(rng), "descriptors", dtype="float32", backend=backend
    )
    with pytest.raises(MemoryError, match=r"knn='exact', which reads them tile by tile"):
        module.units_for("cuvs", vectors)


@needs_faiss
@pytest.mark.parametrize("knn", ["IVF4096,Flat", "PQ4", "IVF64,PQ4"])
def test_too_few_items_for_a_faiss_index_are_told_what_to_use(backend, rng, knn):
    vectors = clustered_vectors(rng, n=50)
    with pytest.raises(ValueError, match=rf"50 items by knn='{knn}': .*Use 'faiss' or 'exact'"):
        hg.nearest_neighbors(vectors, k=3, knn=knn, backend=backend)


@needs_faiss
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("knn", ["faiss", "IVF16,Flat"])
def test_faiss_works_in_a_forked_child(knn):
    script = f"""
import os
import numpy as np
import hybrid_gpu as hg
vectors = np.random.default_rng(3).standard_normal((3000, 16))
def found():
    return hg.nearest_neighbors(vectors, k=5, knn={knn!r}, backend="numpy").ids
ids = found()
child = os.fork()
if child == 0:
    os._exit(0 if (found() == ids).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_engine_that_is_no_name_is_refused(backend, rng):
    with pytest.raises(TypeError, match=r"FAISS factory string; got 3\."):
        hg.nearest_neighbors(clustered_vectors(rng), k=3, knn=3, backend=backend)


@needs_faiss
def test_faiss_is_not_asked_where_a_limit_of_addresses_is_too_low(rng, monkeypatch):
    vectors = rng.standard_normal((20_000, 4)).astype("float32")
    exact = hg.nearest_neighbors(vectors, vectors[:3], k=4, knn="exact", backend="numpy")
    monkeypatch.setattr(module, "address_room", lambda: 100 << 20)
    monkeypatch.setattr(module, "_ask_faiss", None)  # it would crash
    with pytest.raises(MemoryError, match="knn='exact'"):
        hg.nearest_neighbors(vectors, vectors[:3], k=4, knn="faiss", backend="numpy")
    found = hg.nearest_neighbors(vectors, vectors[:3], k=4, backend="numpy")
    np.testing.assert_array_equal(found.ids, exact.ids)
    monkeypatch.undo()
    monkeypatch.setattr(module, "address_room", lambda: 1 << 40)
    found = hg.nearest_neighbors(vectors, vectors[:3], k=4, knn="faiss", backend="numpy")
    np.testing.assert_array_equal(found.ids, exact.ids)


def test_faiss_is_not_asked_where_it_does_not_suit(rng, monkeypatch):
    # Enough items for "auto" to think of it, and none to be had.
    vectors = rng.standard_normal((20_000, 4)).astype("float32")
    exact = hg.nearest_neighbors(vectors, vectors[:3], k=4, knn="exact", backend="numpy")
    monkeypatch.setattr(module, "_faiss_suits", lambda backend: False)
    monkeypatch.setattr(module, "_ask_faiss", None)
    found = hg.nearest_neighbors(vectors, vectors[:3], k=4, backend="numpy")
    np.testing.assert_array_equal(found.ids, exact.ids)


@needs_faiss
def test_few_queries_ask_faiss_for_few_addresses(rng, monkeypatch):
    monkeypatch.setattr(module, "address_room", lambda: 0)
    n, d, k = 5000, 4, 9
    units = np.zeros((n, d), np.float32)
    few, all_items = (module._faiss_lacks(units, queries, k) for queries in (units[:3], None))
    # Vectors of 4 d bytes; lists of 12 bytes an entry, once whole and twice by parts.
    assert all_items - few == (n - 3) * (4 * d + 3 * 12 * (k + 1))
