"""What builds and searches hold on a device, by a limit of its memory; the stand-in has one."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import clustered_vectors

import hybrid_gpu as hg
from hybrid_gpu.graph import vectors as graph_vectors

cupy = pytest.importorskip("cupy")


@pytest.fixture
def gap(gpu):
    """A part of a block of CuPy's pool that is free and stays there: the rest of it is in use."""
    pool, size = cupy.get_default_memory_pool(), 1 << 17
    gc.collect()
    gpu.free_memory()
    # Larger than any gap that other tests left, so that both have the same new block.
    whole = pool.malloc(pool.free_bytes() + 2 * size)
    rest = whole.mem.size - size
    del whole
    kept = pool.malloc(rest)
    gpu.free_memory()
    assert pool.free_bytes() >= size
    yield
    del kept


@pytest.fixture
def limited(standin, gpu, gap):
    """Lets the current allocator have some bytes, in a block; CuPy's own pool, if none is set."""
    pool = cupy.get_default_memory_pool()

    def more(count):
        gc.collect()
        gpu.free_memory()
        # Gaps can be had as well, by arrays that come from the pool they are in.
        given = cupy.cuda.get_allocator()
        gaps = pool.free_bytes() if getattr(given, "__self__", None) is pool else 0
        return standin.limited_memory(standin.bytes_in_use() + count - gaps)

    # With watched pools (STANDIN_LATE), CuPy's pool is not the one that arrays come from.
    with cupy.cuda.using_allocator(pool.malloc):
        yield more


@pytest.fixture(scope="module")
def items():
    return clustered_vectors(np.random.default_rng(97), n=1200, d=1024, clusters=30).astype("f4")


@pytest.fixture(scope="module")
def wide():
    return clustered_vectors(np.random.default_rng(109), n=700, d=700, clusters=20).astype("f4")


@pytest.fixture(scope="module")
def thin():
    return clustered_vectors(np.random.default_rng(101), n=900, d=6, clusters=9).astype("float32")


@pytest.fixture
def index(gpu, thin):
    return hg.build_index(thin, neighbors=8, rank=12, basis="eigen", backend=gpu)


def in_use():
    return cupy.get_default_memory_pool().used_bytes()


# Builds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["host", "wide", "device"])
def test_a_build_stays_within_what_is_predicted(gpu, items, limited, source):
    given = {"host": lambda: items, "wide": lambda: items.astype("f8"), "device": cupy.asarray}
    given = given[source](items) if source == "device" else given[source]()
    needed = hg.predicted_bytes(1200, dimensions=1024, neighbors=6)["build"]
    assert needed < 1.75 * items.nbytes
    with limited(needed):
        index = hg.build_index(given, neighbors=6, knn="exact", backend=gpu)
    expected = items / np.linalg.norm(items, axis=1, keepdims=True)
    np.testing.assert_allclose(cupy.asnumpy(index.descriptors), expected, atol=1e-6)
    del index
    with limited(needed - 1), pytest.raises(MemoryError, match="keep_descriptors=False"):
        hg.build_index(given, neighbors=6, knn="exact", backend=gpu)


def test_descriptors_need_not_fit_the_device(gpu, wide, limited, tmp_path):
    np.save(tmp_path / "items.npy", wide)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    whole = hg.build_index(wide, neighbors=6, knn="exact", backend="numpy")
    room = wide.nbytes // 2
    assert room > hg.predicted_bytes(700, neighbors=6)["build"]
    with limited(room):
        index = hg.build_index(mapped, neighbors=6, keep_descriptors=False, backend=gpu)
    assert index.descriptors is None
    # Blocks round otherwise: two neighbors that are as similar may change places.
    found, lists = index.neighbors, whole.neighbors
    np.testing.assert_array_equal(np.sort(cupy.asnumpy(found.ids)), np.sort(lists.ids))
    np.testing.assert_allclose(cupy.asnumpy(found.similarities), lists.similarities, atol=1e-6)
    assert index.graph.edges == whole.graph.edges
    ranking = index.search_items([3, 5], k=10)
    expected = whole.search_items([3, 5], k=10)
    np.testing.assert_array_equal(ranking.ids[:, 0], [3, 5])
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=1e-3, atol=1e-7)


def test_faiss_gets_what_does_not_fit_the_device_from_the_host(gpu, wide, limited):
    pytest.importorskip("faiss")
    with limited(wide.nbytes // 2):
        index = hg.build_index(
            wide, neighbors=6, knn="IVF2,Flat", keep_descriptors=False, backend=gpu
        )
    whole = hg.build_index(wide, neighbors=6, knn="exact", backend="numpy")
    assert index.state.origin.recall == 1
    assert index.graph.edges == whole.graph.edges


# Searches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [100, 900])
@pytest.mark.parametrize("method", ["hybrid", "temporal", "hybrid-paper", "fsrw", "nn"])
def test_a_search_stays_within_what_is_predicted(index, thin, limited, method, k):
    queries = thin[:256] + np.float32(0.1)
    options = {"k": k, "method": method, "batch": 256}
    index.search(queries[:2], k=k, method=method)  # what is made once is there
    # A pool of its own: what other tests left in CuPy's may be too small pieces to be of use.
    own, needed = cupy.cuda.MemoryPool(), hg.predicted_bytes(900, batch=256, k=k)["search"]
    with cupy.cuda.using_allocator(own.malloc), limited(needed):
        ranking = index.search(queries, **options)
    assert ranking.report.batch == 256


def test_more_results_than_the_kernel_gives_are_sorted_in_little_memory(gpu, limited):
    n, m = 2300, 64
    scores = cupy.asarray(np.random.default_rng(103).standard_normal((m, n)).astype("float32"))
    # The results themselves, and the sorting of some rows.
    with limited(m * 2200 * 12 + 4 * n * 120 + (1 << 16)):
        best = gpu.top_k(scores, 2200)
    expected = -np.sort(-cupy.asnumpy(scores), axis=1)[:, :2200]
    np.testing.assert_array_equal(cupy.asnumpy(best.scores), expected)


def test_nothing_of_a_finished_batch_stays_on_the_device(index, thin):
    queries, held = np.tile(thin, (2, 1)), []
    index.search(queries[:2], k=100, method="nn")
    pinned = cupy.get_default_pinned_memory_pool()
    gc.collect()
    pinned.free_all_blocks()
    before = in_use()
    ranking = index.search(
        queries, k=100, batch=100, method="nn", progress=lambda *_: held.append(in_use())
    )
    assert ranking.ids.shape == (1800, 100)
    # The results of one batch are on their way, 120 kB. One array of it would take 360 kB.
    assert max(held) < before + 200_000
    # Buffers are used again and again: two for uploads, and those of two batches on their way.
    assert pinned.n_free_blocks() <= 12


def test_memory_is_free_before_a_smaller_batch_is_tried(index, thin, monkeypatch):
    cls, held = type(index.backend), []
    step, free = cls.laplacian_step, cls.free_memory

    def scarce(self, matrix, direction, alpha, **options):
        if direction.shape[1] > 8:
            raise MemoryError
        return step(self, matrix, direction, alpha, **options)

    def watched(self):
        held.append(in_use())
        free(self)

    queries = thin[:32]
    whole = index.search(queries, k=5, method="temporal")
    gc.collect()
    before = in_use()
    monkeypatch.setattr(cls, "laplacian_step", scarce)
    monkeypatch.setattr(cls, "free_memory", watched)
    gc.disable()  # nothing may lean on the collector: it comes when it likes
    try:
        ranking = index.search(queries, k=5, method="temporal")
    finally:
        gc.enable()
    assert len(held) == 2
    # Less than one array of 900 items and 16 queries.
    assert max(held) < before + 900 * 16 * 4
    np.testing.assert_allclose(ranking.scores, whole.scores, rtol=1e-4, atol=1e-7)


# What is left, whoever gives it ------------------------------------------------------------------


def leave_idle(pool):
    """Leave a block in a pool that nobody uses; the bytes of it, more than in any gap."""
    block = pool.malloc(pool.free_bytes() + (1 << 22))
    return block.mem.size


def test_only_the_pool_that_arrays_come_from_counts(gpu, limited):
    own, default = cupy.cuda.MemoryPool(), cupy.get_default_memory_pool()
    with cupy.cuda.using_allocator(own.malloc), limited(1 << 24):
        gaps = default.free_bytes()
        idle = leave_idle(default)  # CuPy's pool is not asked
        left = gpu.available_bytes()
        assert left == (1 << 24) - idle
        block = cupy.empty(1 << 20, dtype=cupy.uint8)
        del block
        assert gpu.available_bytes() == left
        own.set_limit(size=1 << 21)
        block = cupy.empty(1 << 20, dtype=cupy.uint8)
        assert gpu.available_bytes() == 1 << 20
        del block
        gpu.free_memory()
        assert (own.total_bytes(), default.free_bytes()) == (0, gaps)


def test_gaps_between_arrays_count(gpu, limited):
    pool = cupy.get_default_memory_pool()
    with limited(1 << 24):
        assert gpu.available_bytes() == 1 << 24
        used = pool.total_bytes()
        block = cupy.empty(1 << 16, dtype=cupy.uint8)  # fits
        assert gpu.available_bytes() == (1 << 24) - block.nbytes
        assert pool.total_bytes() == used


def test_the_limit_of_a_pool_of_cuda_counts(gpu, limited):
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc), limited(1 << 24):
        try:
            block = cupy.empty(1 << 20, dtype=cupy.uint8)
            assert gpu.available_bytes() == (1 << 24) - (1 << 20) + pool.free_bytes()
            pool.set_limit(size=pool.used_bytes() + (1 << 19))
            assert gpu.available_bytes() == 1 << 19
            del block
        finally:
            pool.set_limit(size=0)
            pool.free_all_blocks()


def test_memory_without_any_pool_is_that_of_the_device(gpu, limited):
    default = cupy.get_default_memory_pool()
    with cupy.cuda.using_allocator(lambda size: default.malloc(size)), limited(1 << 24):
        idle = leave_idle(default)
        assert gpu.available_bytes() == (1 << 24) - idle


def rmm_allocator(size):
    return cupy.get_default_memory_pool().malloc(size)


rmm_allocator.__module__ = "rmm.allocators.cupy"


def resource(upstream=None, **methods):
    """A memory resource in the shape of RMM's."""
    parts = {name: (lambda value=value: value) for name, value in methods.items()}
    if upstream is not None:
        parts["get_upstream"] = lambda: upstream
    return SimpleNamespace(**parts)


FREE, CUDA = 1 << 24, resource()
COUNTED = SimpleNamespace(
    allocation_counts=SimpleNamespace(current_bytes=1 << 19),
    get_upstream=lambda: resource(CUDA, pool_size=1 << 20),
)


@pytest.mark.parametrize(
    ("chain", "left"),
    [
        (CUDA, FREE),
        (resource(CUDA, pool_size=1 << 20), FREE),  # nobody knows how much of it is used
        (COUNTED, FREE + (1 << 19)),
        (
            resource(
                resource(CUDA, pool_size=1 << 20),
                get_allocated_bytes=1 << 18,
                get_allocation_limit=1 << 21,
            ),
            (1 << 21) - (1 << 18),
        ),
        (
            SimpleNamespace(
                allocation_counts={"current_bytes": 3 << 18},
                get_upstream=lambda: resource(CUDA, pool_size=1 << 20),
            ),
            FREE + (1 << 18),
        ),
    ],
)
def test_rmm_is_asked_for_what_it_counts(gpu, limited, monkeypatch, chain, left):
    # In the shape of RMM's Python classes, by their source: RMM itself needs a GPU.
    fake = SimpleNamespace(mr=SimpleNamespace(get_current_device_resource=lambda: chain))
    monkeypatch.setitem(__import__("sys").modules, "rmm", fake)
    with cupy.cuda.using_allocator(rmm_allocator), limited(FREE):
        assert gpu.available_bytes() == left


def test_an_order_is_put_in_place(gpu, monkeypatch):
    monkeypatch.setattr(graph_vectors, "_SMALL", 0)
    rng = np.random.default_rng(107)
    rows, order = rng.standard_normal((50, 19)), rng.permutation(50)
    units = gpu.asarray(rows)
    done = graph_vectors.put_in_order(units, gpu.asarray(order), gpu)
    assert done is units
    np.testing.assert_array_equal(cupy.asnumpy(done), rows[order])
