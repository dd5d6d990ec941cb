"""What only the CuPy backend does: devices, memory, transfers, and what it says without them.

Most of it needs CuPy and a device; a GPU or the stand-in of ``tools/cupy_on_cpu`` will do.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import clustered_vectors

import hybrid_gpu as hg
from hybrid_gpu import backends


@pytest.fixture
def forget():
    """Backends are opened once and kept: open them anew."""
    backends._cupy.cache_clear()
    yield
    backends._cupy.cache_clear()


def test_without_cupy_the_install_line_is_given(monkeypatch, forget):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("cupy_backend", "cuda", "devices", "transfers"):
        monkeypatch.delitem(sys.modules, f"hybrid_gpu.backends.{name}", raising=False)
    with pytest.raises(hg.BackendUnavailableError, match=r"pip install -e \"\.\[cuda12\]\""):
        hg.select_backend("cupy")


def test_without_cupy_auto_is_numpy(monkeypatch):
    monkeypatch.delenv("HYBRID_GPU_BACKEND", raising=False)
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    assert hg.select_backend("auto").name == "numpy"


@pytest.mark.parametrize("name", ["cupy:", "cupy:x", "cupy:-1", "cupy0"])
def test_names_that_are_no_device_are_refused(name):
    with pytest.raises(ValueError, match="backend must be"):
        hg.select_backend(name)


@pytest.fixture
def index(gpu):
    vectors = clustered_vectors(np.random.default_rng(81), n=200)
    return hg.build_index(vectors, neighbors=8, backend=gpu)


@pytest.fixture
def queries():
    return clustered_vectors(np.random.default_rng(83), n=40).astype("float32")


def test_without_a_driver_its_message_is_passed_on(gpu, monkeypatch, forget):
    import cupy

    def no_driver():
        raise cupy.cuda.runtime.CUDARuntimeError(35)

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", no_driver)
    with pytest.raises(hg.BackendUnavailableError, match=r"no GPU answers: .*nvidia-smi"):
        hg.select_backend("cupy")
    monkeypatch.delenv("HYBRID_GPU_BACKEND", raising=False)
    assert hg.select_backend("auto").name == "numpy"


def test_a_device_beyond_the_last_is_refused(gpu, monkeypatch, forget):
    import cupy

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    with pytest.raises(hg.BackendUnavailableError, match="no CUDA device 7: this machine has 2"):
        hg.select_backend("cupy:7")


def test_auto_takes_the_gpu_and_the_array_s_device(gpu, monkeypatch):
    import cupy

    monkeypatch.delenv("HYBRID_GPU_BACKEND", raising=False)
    assert hg.select_backend("auto").name == "cupy:0"
    assert hg.backend_of(cupy.ones(3)).name == "cupy:0"
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    assert hg.select_backend("auto").name == "numpy"
    assert hg.select_backend("auto", like=cupy.ones(3)).name == "cupy:0"


def test_cupy_queries_on_a_cpu_index_are_refused_with_the_cure(gpu, queries):
    import cupy

    here = hg.build_index(clustered_vectors(np.random.default_rng(85)), neighbors=5)
    here = here.to("numpy")
    with pytest.raises(hg.DeviceMismatchError, match=r"index\.to\('cupy:0'\)"):
        here.search(cupy.asarray(queries), k=3)


def test_numpy_queries_enter_a_gpu_index_and_come_back_as_numpy(index, queries):
    import cupy

    here = index.search(queries, k=4)
    there = index.search(cupy.asarray(queries), k=4)
    assert isinstance(here.ids, np.ndarray)
    assert isinstance(there.ids, cupy.ndarray)
    np.testing.assert_array_equal(here.ids, cupy.asnumpy(there.ids))


def test_both_engines_of_the_sparse_product_agree(gpu, rng, dtype, tolerance):
    from hybrid_gpu.backends.cupy_backend import ENGINES, CupyBackend

    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 50))]).astype("int32")
    indices = rng.integers(0, 40, indptr[-1]).astype("int32")
    data, dense = rng.random(indptr[-1]).astype(dtype), rng.random((40, 6)).astype(dtype)
    results = []
    for engine in ENGINES:
        backend = CupyBackend(0, engine=engine)
        parts = (backend.asarray(part.copy()) for part in (data, indices, indptr))
        product = backend.spmm(backend.csr(*parts, (50, 40)), backend.asarray(dense))
        assert product.flags.c_contiguous
        results.append(backend.to_numpy(product))
    np.testing.assert_allclose(results[0], results[1], rtol=tolerance, atol=tolerance)


def test_types_are_never_mixed_without_a_word(gpu):
    # Raw memory of another type would be garbage: NumPy's promotion, or an error.
    identity = np.arange(3, dtype="int32"), np.arange(4, dtype="int32")
    matrix = gpu.csr(
        gpu.asarray(np.ones(3)), gpu.asarray(identity[0]), gpu.asarray(identity[1]), (3, 3)
    )
    dense = gpu.asarray(np.arange(6, dtype="float32").reshape(3, 2))
    product = gpu.spmm(matrix, dense)
    assert product.dtype == np.float64
    np.testing.assert_array_equal(gpu.to_numpy(product), np.arange(6.0).reshape(3, 2))
    with pytest.raises(TypeError, match="one dtype; got float32, float64"):
        gpu.laplacian_step(matrix, dense, 0.5)
    with pytest.raises(TypeError, match="one dtype"):
        gpu.cg_direction(dense, gpu.asarray(np.ones((3, 2))), gpu.asarray(np.ones(2)))


def test_dlpack_arrays_of_the_device_are_not_copied(gpu):
    import cupy

    values = cupy.arange(6.0)

    class Foreign:
        dtype = values.dtype

        def __dlpack__(self, **options):
            return values.__dlpack__(**options)

        def __dlpack_device__(self):
            return values.__dlpack_device__()

    taken = gpu.asarray(Foreign())
    assert taken.data.ptr == values.data.ptr


class Foreign:
    """An array of another library: DLPack is all that it has."""

    def __init__(self, values, device=None):
        self.values, self.dtype = values, values.dtype
        self.device = device or values.__dlpack_device__()
        self.asked = []

    def __dlpack__(self, **options):
        self.asked.append(options.get("stream"))
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("non_blocking", [True, False])
def test_dlpack_arrays_of_another_stream_are_waited_for(gpu, late, non_blocking):
    import cupy

    producer = cupy.cuda.Stream(non_blocking=True)
    with producer:
        values = cupy.arange(5000.0) * 3
        foreign = Foreign(values)
        # The producer's side of the protocol: CuPy waits for the stream it was made on.
        consumer = cupy.cuda.Stream(non_blocking=non_blocking)
    with consumer:
        with producer:
            done = producer.record()
        consumer.wait_event(done)
        taken = gpu.asarray(foreign)
        np.testing.assert_array_equal(gpu.to_numpy(taken), np.arange(5000.0) * 3)
    # The stream that will read the array was told to its owner.
    assert foreign.asked == [consumer.ptr]


def test_dlpack_arrays_of_another_device_are_refused(gpu):
    import cupy

    with pytest.raises(hg.DeviceMismatchError, match="array on device 1 for work on device 0"):
        gpu.asarray(Foreign(cupy.arange(3.0), device=(2, 1)))
    managed = Foreign(cupy.arange(3.0), device=(13, 1))
    with pytest.raises(hg.DeviceMismatchError, match=r"index\.to\('cupy:1'\)"):
        gpu.asarray(managed)


def test_pinned_tensors_are_uploaded_as_host_arrays(index, queries):
    pinned = Foreign(queries, device=(3, 0))
    pinned.shape, pinned.ndim = queries.shape, 2
    pinned.values = type("Host", (), {"__dlpack__": lambda self, **_: queries.__dlpack__()})()
    found = index.search(pinned, k=4)
    assert isinstance(found.ids, np.ndarray)
    np.testing.assert_array_equal(found.ids, index.search(queries, k=4).ids)


def test_an_index_may_be_used_on_any_stream_at_once(gpu, queries, late):
    import cupy

    vectors = clustered_vectors(np.random.default_rng(91), n=120).astype("float32")
    here = hg.build_index(vectors, neighbors=6, backend="numpy")
    for make in (lambda: here.to(gpu), lambda: hg.build_index(vectors, neighbors=6, backend=gpu)):
        made = make()
        with cupy.cuda.Stream(non_blocking=True):
            found = made.search(queries, k=5)
        np.testing.assert_allclose(found.scores, here.search(queries, k=5).scores, rtol=1e-4)


def test_what_is_made_once_and_kept_may_be_used_on_any_stream(gpu, late):
    import cupy

    vectors = clustered_vectors(np.random.default_rng(93), n=80).astype("float32")
    here = hg.build_index(vectors, neighbors=6, basis="eigen", rank=5, backend="numpy")
    groups = hg.aggregate_basis(here.graph, hg.aggregate(here.graph, groups=9, backend="numpy"))
    with_groups = hg.with_basis(here, groups).to(gpu)
    there, basis = here.to(gpu), with_groups.state.basis
    kept = {
        "inverse": lambda: basis.coarse_inverse(0.9).together,
        "norms": lambda: there.state.basis.row_norms(),
        "sparse": lambda: abs(there.state.basis.sparsified(0.5).vectors.data),
        "graph": lambda: there.graph.degrees,
        "descriptors": lambda: there.descriptors,
        "lists": lambda: there.neighbors.similarities,
        "basis": lambda: there.basis.eigenvalues,
    }
    for name, part in kept.items():
        with cupy.cuda.Stream(non_blocking=True):
            part()
        with cupy.cuda.Stream(non_blocking=True):
            elsewhere = cupy.asnumpy(part())
        gpu.device.synchronize()
        np.testing.assert_array_equal(elsewhere, cupy.asnumpy(part()), err_msg=name)


def test_free_memory_counts_what_the_pool_holds(gpu):
    import cupy

    pool = cupy.get_default_memory_pool()
    with cupy.cuda.using_allocator(pool.malloc):
        gpu.free_memory()
        before = gpu.available_bytes()
        block = cupy.empty(1 << 22, dtype=cupy.uint8)
        del block
        assert gpu.available_bytes() >= before - (1 << 16)
        pool.set_limit(size=1 << 24)
        try:
            assert gpu.available_bytes() <= 1 << 24
        finally:
            pool.set_limit(size=0)


def test_search_of_one_batch_stays_within_its_budget_of_transfers(index, queries, standin):
    index.search(queries, k=10)  # compiles
    standin.reset()
    ranking = index.search(queries, k=10)
    counted = standin.counters()
    # Queries in; ids, scores and residuals out; single numbers for the branches on the host.
    large = queries.nbytes + 40 * 10 * (8 + 4) + 40 * 8
    assert counted["host_to_device_bytes"] <= queries.nbytes + 4096
    assert counted["device_to_host_bytes"] <= large + 4096
    to_accuracy = standin.synchronizations()
    waits = []
    for steps in (5, 25):
        standin.reset()
        index.search(queries, k=10, steps=steps)
        waits.append(standin.synchronizations())
    # More steps, and nothing waits more often: no step looks at the host.
    assert waits[0] == waits[1]
    # An accuracy is looked at every other step, while the device works on the next product. That
    # all have arrived, and have their k best items, is asked once, and in the place of NaN and
    # items that were not reached.
    assert ranking.report.steps > 0
    assert counted["overtaken_waits"] >= 1 + ranking.report.steps // 2
    assert to_accuracy <= waits[0]


@pytest.mark.parametrize(("method", "most"), [("temporal", 4), ("hybrid", 7)])
def test_a_step_launches_few_kernels_and_none_of_them_waits(index, queries, standin, method, most):
    launches, waits = [], []
    for steps in (3, 4, 7):
        index.search(queries, k=10, method=method, steps=steps)  # compiles
        standin.reset()
        index.search(queries, k=10, method=method, steps=steps)
        counted = standin.counters()
        launches.append(counted["kernel_launches"] + counted["library_calls"])
        waits.append(standin.synchronizations())
    assert launches[1] - launches[0] <= most
    assert launches[2] - launches[1] <= 3 * most
    # The NaN check of the first stage and of the scores, and the results.
    assert max(waits) <= 3


@pytest.mark.parametrize("steps", [5, None], ids=["steps", "accuracy"])
def test_lists_of_another_engine_wait_for_the_device_twice(index, queries, standin, steps):
    near = index.search(queries, k=8, method="nn")
    for _ in range(2):
        standin.reset()
        index.rerank(near.ids, near.scores, k=10, method="hybrid", steps=steps)
    assert standin.synchronizations() <= 2


@pytest.mark.parametrize("k", [1, 9, 70])
@pytest.mark.parametrize("numbered", [False, True])
def test_products_of_tiles_are_those_of_one(gpu, standin, monkeypatch, k, numbered):
    from hybrid_gpu.backends import cupy_backend
    from hybrid_gpu.graph.affinity import numbering_of

    rng = np.random.default_rng(87)
    # Whole numbers, so that products are exact, and many of them equal.
    right = rng.integers(-2, 3, (211, 6)).astype("float32")
    left = np.concatenate([right[:50], rng.integers(-2, 3, (27, 6))]).astype("float32")
    order = rng.permutation(211) if numbered else np.arange(211)
    numbering = numbering_of(order, gpu) if numbered else None
    products = left @ right.T
    # Places by the numbers of the items there, and then a stable sort.
    by_number = np.argsort(order)
    best = np.argsort(-products[:, by_number], axis=1, kind="stable")[:, :k]
    places = by_number[best]
    there = gpu.asarray(left), gpu.asarray(right)
    for rows, count in ((77, 211), (20, 40), (1, 1), (30, 300)):
        monkeypatch.setattr(cupy_backend, "_PRODUCT_ROWS", rows)
        monkeypatch.setattr(cupy_backend, "_PRODUCT_BYTES", 4 * rows * count)
        standin.reset()
        found = gpu.largest_products(*there, k, numbering)
        # Nothing goes through the host, and nothing waits for it.
        assert standin.counters()["device_to_host_copies"] == 0
        assert standin.synchronizations() == 0
        np.testing.assert_array_equal(gpu.to_numpy(found.ids), places)
        expected = np.take_along_axis(products, places, axis=1)
        np.testing.assert_array_equal(gpu.to_numpy(found.scores), expected)


def test_out_of_memory_halves_the_batch(gpu, standin):
    import cupy

    vectors = clustered_vectors(np.random.default_rng(89), n=1500)
    index = hg.build_index(vectors, neighbors=5, backend=gpu)
    queries = vectors[:256] + 0.1
    whole = index.search(queries, k=10)
    gpu.free_memory()
    pool = cupy.get_default_memory_pool()
    # Room for three arrays of 1,500 items and 256 queries: fewer than a search has at once.
    pool.set_limit(size=pool.total_bytes() + 3 * (1500 * 256 * 4))
    try:
        ranking = index.search(queries, k=10, batch=256)
    finally:
        pool.set_limit(size=0)
    assert ranking.report.batch < 256
    notes = [note for note in ranking.report.notes if note not in index.state.notes]
    assert notes[0].startswith("out of memory with 256 queries at once")
    np.testing.assert_allclose(ranking.scores, whole.scores, rtol=1e-4)


TWO_DEVICES = """
import cupy, numpy as np, hybrid_gpu as hg
rng = np.random.default_rng(87)
vectors = rng.standard_normal((60, 6)).astype("float32")
one = hg.build_index(vectors, neighbors=5, backend="cupy:0")
other = one.to("cupy:1")
assert other.state.graph.degrees.device.id == 1
queries = vectors[:7] + np.float32(0.1)
a, b = one.search(queries, k=5), other.search(queries, k=5)
np.testing.assert_array_equal(a.ids, b.ids)
with cupy.cuda.Device(1):
    there = cupy.asarray(queries)
assert hg.backend_of(there).name == "cupy:1"
try:
    one.search(there, k=5)
except hg.DeviceMismatchError as told:
    assert "index.to('cupy:1')" in str(told), told
else:
    raise SystemExit("devices were mixed without a word")
print("two devices")
"""


def test_two_devices_are_never_mixed(gpu, standin):
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        env={**os.environ, "STANDIN_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "two devices\n", done.stderr


def test_selfcheck_finds_agreement(gpu, monkeypatch):
    from hybrid_gpu.lab import selfcheck

    monkeypatch.setattr(selfcheck, "RUNS", 1)
    checks = selfcheck.selfcheck(gpu, size=300)
    assert [one for one in checks if not one.agrees] == []


def test_selfcheck_finds_a_disagreement(gpu, monkeypatch):
    from hybrid_gpu.lab import selfcheck

    monkeypatch.setattr(selfcheck, "RUNS", 1)
    real = type(gpu).cg_direction
    monkeypatch.setattr(
        type(gpu), "cg_direction", lambda self, r, p, ratio: real(self, r, p, ratio * 1.01)
    )
    failed = {one.operation for one in selfcheck.selfcheck(gpu, size=130) if not one.agrees}
    assert "cg_direction" in failed
    assert "spmm, 64 columns" not in failed


@pytest.mark.parametrize("least", [0, 2**26, 2**30])
def test_ties_go_to_the_lower_of_large_numbers(gpu, least):
    # Rows of a large database, as one numbers them: all bits of the numbers count.
    numbers = least + np.random.default_rng(227).permutation(500)
    order = gpu.asarray(numbers)
    scores = gpu.asarray(np.zeros((2, 500), "float32"))
    found = gpu.to_numpy(gpu.top_k(scores, 20, backends.protocol.Numbering(order, order)).ids)
    np.testing.assert_array_equal(found, np.tile(np.argsort(numbers)[:20], (2, 1)))
