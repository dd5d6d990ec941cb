import importlib.util
import inspect
from contextlib import AbstractContextManager
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import two_cliques
from strict_backend import StrictBackend

import hybrid_gpu as hg
from hybrid_gpu.backends import csr_matrix, numpy_backend, protocol
from hybrid_gpu.backends.csr_matrix import _balanced_bounds
from hybrid_gpu.backends.generic import GenericBackend, over_rows
from hybrid_gpu.backends.native_backend import NativeBackend
from hybrid_gpu.backends.numpy_backend import NumpyBackend, is_on_host
from hybrid_gpu.backends.protocol import Backend, Deflated
from hybrid_gpu.backends.step_records import Course, Product, Standing
from hybrid_gpu.graph import neighbors
from hybrid_gpu.graph.affinity import numbering_of
from hybrid_gpu.index.queries import lives_here

KINDS = [NumpyBackend, NativeBackend, StrictBackend]
if importlib.util.find_spec("cupy"):
    from hybrid_gpu.backends.cupy_backend import CupyBackend

    KINDS.append(CupyBackend)
MEMBERS = {name for name in vars(Backend) if not name.startswith("_")}


def csr_of(backend, dense):
    one = sparse.csr_array(dense)
    return backend.csr(
        backend.asarray(one.data),
        backend.asarray(one.indices),
        backend.asarray(one.indptr),
        one.shape,
    )


def test_backend_has_every_member_of_the_protocol(backend):
    missing = {name for name in MEMBERS if not hasattr(backend, name)}
    assert not missing


@pytest.mark.parametrize("kind", KINDS)
def test_backend_adds_no_public_member(kind):
    extra = {name for name in dir(kind) if not name.startswith("_")} - MEMBERS
    extra -= {"searches_locally", "runs_late"}  # attributes
    # column_dots is what the generic steps are made of; it is not part of the seam.
    assert extra <= {"column_dots"}


@pytest.mark.parametrize("kind", [*KINDS, GenericBackend])
@pytest.mark.parametrize("member", sorted(MEMBERS - {"name", "xp", "device", "searches_locally"}))
def test_backend_keeps_parameters_and_defaults(kind, member):
    if not hasattr(kind, member):
        assert kind is GenericBackend
        return
    expected = inspect.signature(getattr(Backend, member)).parameters
    given = inspect.signature(getattr(kind, member)).parameters
    assert [(p.name, p.default) for p in given.values()] == [
        (p.name, p.default) for p in expected.values()
    ]


def test_top_k_breaks_ties_by_the_lower_index(backend):
    scores = np.array([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0], [5, 4, 3, 2, 1]])
    best = backend.top_k(backend.asarray(scores), 4)
    assert backend.to_numpy(best.ids).tolist() == [[1, 2, 4, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    np.testing.assert_array_equal(
        backend.to_numpy(best.scores), np.take_along_axis(scores, backend.to_numpy(best.ids), 1)
    )


@pytest.mark.parametrize("k", [1, 3, 17, 40])
def test_top_k_is_a_stable_sort(backend, rng, dtype, k):
    # Few distinct values make ties at the k-th place certain; solvers give a transposed view.
    scores = rng.integers(0, 4, (40, 33)).astype(dtype)
    best = backend.top_k(backend.asarray(scores).T, k)
    expected = np.argsort(-scores.T, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(backend.to_numpy(best.ids), expected)


def test_top_k_on_many_rows_uses_threads_and_keeps_order(backend, rng):
    scores = rng.standard_normal((300, 1000)).astype("float32")
    best = backend.top_k(backend.asarray(scores), 5)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(backend.to_numpy(best.ids), expected)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (300, 200, 40)])
def test_spmm_is_the_dense_product(backend, rng, dtype, tolerance, shape):
    n, p, m = shape
    matrix = (rng.random((n, p)) * (rng.random((n, p)) < 0.3)).astype(dtype)
    matrix[n // 2] = 0
    right = rng.standard_normal((p, m)).astype(dtype)
    product = backend.spmm(csr_of(backend, matrix), backend.asarray(right))
    np.testing.assert_allclose(
        backend.to_numpy(product), matrix @ right, rtol=tolerance, atol=tolerance
    )
    assert backend.to_numpy(product).dtype == dtype


# The last has more rows than a tile, and enough columns to be cut into tiles.
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (300, 600, 2), (5000, 30, 70)])
def test_subtract_spmm_takes_the_product_off(backend, rng, dtype, tolerance, shape):
    n, p, m = shape
    matrix = (rng.random((n, p)) * (rng.random((n, p)) < 0.5)).astype(dtype)
    right = rng.standard_normal((p, m)).astype(dtype)
    values = rng.standard_normal((n, m)).astype(dtype)
    left = backend.subtract_spmm(
        backend.asarray(values.copy()), csr_of(backend, matrix), backend.asarray(right)
    )
    expected = values - matrix.astype("float64") @ right
    np.testing.assert_allclose(
        backend.to_numpy(left), expected, rtol=tolerance, atol=20 * tolerance
    )
    assert backend.to_numpy(left).dtype == dtype


@pytest.mark.parametrize(("n", "m"), [(50, 6), (53, 2), (3, 2), (70, 1), (41, 80)])
def test_cg_steps_equal_their_generic_twins(backend, rng, dtype, tolerance, n, m):
    alpha = 0.9
    matrix = (rng.random((n, n)) * (rng.random((n, n)) < 0.2)).astype(dtype)
    solution, residual, direction, product = (
        rng.standard_normal((n, m)).astype(dtype) for _ in range(4)
    )
    step = rng.random(m)
    step[m // 2] = 0
    sparse_matrix = csr_of(backend, matrix)

    def arrays(*values):
        return [backend.asarray(value.copy()) for value in values]

    def compare(ours, twin, fields):
        for name in fields:
            one, other = getattr(ours, name), getattr(twin, name)
            assert one.dtype == other.dtype
            np.testing.assert_allclose(
                backend.to_numpy(one), backend.to_numpy(other), rtol=tolerance, atol=tolerance
            )

    compare(
        backend.laplacian_step(sparse_matrix, *arrays(direction), alpha),
        GenericBackend.laplacian_step(backend, sparse_matrix, *arrays(direction), alpha),
        ("values", "curvature"),
    )
    compare(
        backend.cg_update(*arrays(solution, residual, direction, product, step)),
        GenericBackend.cg_update(backend, *arrays(solution, residual, direction, product, step)),
        ("solution", "residual", "squared_norm"),
    )
    ours = backend.cg_direction(*arrays(residual, direction, step))
    twin = GenericBackend.cg_direction(backend, *arrays(residual, direction, step))
    np.testing.assert_allclose(
        backend.to_numpy(ours), backend.to_numpy(twin), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("rank", [0, 30])
@pytest.mark.parametrize("parts", [0, 40])
def test_columns_move_and_turn_by_the_book(backend, rng, dtype, rank, parts):
    # Reached its target; curvature just at the least; moves; stuck and fresh; stuck, but not fresh.
    squared = np.array([0.5, 2.0, 4.0, 1.0, 1.0])
    target = np.array([1.0, 1.0, 1.0, 0.5, 0.5])
    length = np.array([1.0, 8.0, 4.0, 8.0, 8.0])
    fresh = np.array([True, False, False, True, False])
    curvature, taken = np.array([3.0, 2.0, 8.0, 1.0, 1.0]), None
    whole = curvature
    if rank:
        restricted, solved = (rng.integers(-2, 3, (rank, 5)).astype(dtype) for _ in range(2))
        whole = curvature + np.sum(restricted * solved, axis=0)
        # The noise swallows no curvature but the last.
        bound = np.min(curvature[:4] / np.sum(restricted**2, axis=0)[:4])
        restricted[:, 4] = 2
        whole[4] = 1.0 + np.sum(2.0 * solved[:, 4])
        pair = map(backend.asarray, (restricted, solved))
        values = backend.asarray(np.zeros((3, 5), dtype))
        coefficients, given = reversed(list(pair))
        taken = Deflated(values, coefficients, given, norm=0.5)
        noise = float(0.9 * bound / 0.5)
    standing = Standing(*map(backend.asarray, (squared, length, target, fresh)))

    def in_parts(sums):
        if not parts:
            return backend.asarray(sums)
        some = rng.integers(-9, 9, (parts, 5)).astype(float)
        some[-1] += sums - some.sum(axis=0)
        return backend.asarray(some)

    product = Product(backend.asarray(np.zeros((3, 5), dtype)), in_parts(whole))
    moves = backend.cg_pace(product, standing, 0.25, taken, noise if rank else 0.0)
    moving = [False, False, True, False, False]
    assert backend.to_numpy(moves.moving).tolist() == moving
    np.testing.assert_allclose(backend.to_numpy(moves.step), [0, 0, 0.5, 0, 0])
    left = np.array([0.5, 2.0, 1.0, 1.0, 1.0])
    for stop_early in (True, False):
        turn = backend.cg_turn(in_parts(left), standing, moves.moving, stop_early=stop_early)
        told = [backend.to_numpy(part) for part in (turn.ratio, turn.standing.squared)]
        np.testing.assert_allclose(told[0], [0, 0, 0.25, 0, 0])
        np.testing.assert_allclose(told[1], left)
        lengths = backend.to_numpy(turn.standing.length)
        np.testing.assert_allclose(lengths, [0.5, 2.0, 1.25, 1.0, 1.0])
        goal = [1.0, 1.0, 1.0, np.inf if stop_early else 0.5, 0.5]
        assert backend.to_numpy(turn.standing.target).tolist() == goal
        assert backend.to_numpy(turn.standing.fresh).tolist() == [not one for one in moving]


@pytest.mark.parametrize("m", [1, 5, 64])
def test_a_product_is_whole_if_a_single_column_is_wanted(backend, rng, dtype, m):
    matrix = sparse.random(70, 70, density=0.2, format="csr", rng=rng).astype(dtype)
    parts = (backend.asarray(part) for part in (matrix.data, matrix.indices, matrix.indptr))
    there = backend.csr(*parts, matrix.shape)
    direction = backend.asarray(rng.standard_normal((70, m)).astype(dtype))
    plain = backend.laplacian_step(there, direction, 0.5)
    for column in {0, m - 1}:
        wanted = backend.asarray(np.arange(m) == column)
        product = backend.laplacian_step(there, direction, 0.5, wanted=wanted)
        for name in ("values", "curvature"):
            ours, known = (backend.to_numpy(getattr(one, name)) for one in (product, plain))
            np.testing.assert_array_equal(ours, known)


@pytest.mark.parametrize("stop_early", [True, False])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (70, 5), (40_000, 3), (900, 64), (300, 36)])
def test_a_whole_step_is_its_parts_in_turn(backend, rng, dtype, n, m, stop_early):
    squared, length = rng.uniform(1, 2, m), rng.uniform(1, 2, m)
    target = np.where(np.arange(m) % 3 == 1, 3.0, 0.5)
    numbers = (squared, length, target, rng.random(m) < 0.5)
    arrays = [rng.standard_normal((n, m)).astype(dtype) for _ in range(4)]
    curvature = np.where(np.arange(m) % 4 == 2, 0.0, rng.uniform(1, 2, m))

    def steps(whole):
        standing = Standing(*map(backend.asarray, numbers))
        solution, residual, direction, product = (backend.asarray(one.copy()) for one in arrays)
        made = Product(product, backend.asarray(curvature))
        moves = backend.cg_pace(made, standing, 0.25)
        if whole:
            columns = Course(solution, residual, direction, standing)
            # Twice: what the first step has left behind must not disturb the second.
            columns = backend.cg_advance(columns, product, moves, stop_early=stop_early)
            moves = backend.cg_pace(made, columns.standing, 0.25)
            return backend.cg_advance(columns, product, moves, stop_early=stop_early)
        for _ in range(2):
            moved = backend.cg_update(solution, residual, direction, product, moves.step)
            solution, residual = moved.solution, moved.residual
            turn = backend.cg_turn(
                moved.squared_norm, standing, moves.moving, stop_early=stop_early
            )
            direction = backend.cg_direction(residual, direction, turn.ratio)
            standing = turn.standing
            moves = backend.cg_pace(made, standing, 0.25)
        return Course(solution, residual, direction, standing)

    ours, book = steps(True), steps(False)
    for name in ("solution", "residual", "direction"):
        ours_there, book_there = (backend.to_numpy(getattr(one, name)) for one in (ours, book))
        np.testing.assert_allclose(ours_there, book_there, rtol=1e-5, atol=1e-5)
    for name in ("squared", "length", "target", "fresh"):
        told = [backend.to_numpy(getattr(one.standing, name)) for one in (ours, book)]
        np.testing.assert_allclose(*told, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 63, 4096, 4099, 9000])
def test_tall_arrays_are_reduced_in_two_stages(backend, rng, n):
    xp, values = backend.xp, rng.integers(-50, 50, (n, 3)).astype("float64")
    there = backend.asarray(values)
    for reduce, expected in ((xp.sum, values.sum(axis=0)), (xp.max, values.max(axis=0))):
        np.testing.assert_array_equal(backend.to_numpy(over_rows(reduce, there, xp)), expected)


def test_the_longest_row_is_counted(backend):
    matrix = np.zeros((4, 6))
    matrix[2, 1:5] = 1
    matrix[3, 0] = 1
    assert backend.longest_row(csr_of(backend, matrix)) == 4


def test_mutual_edges_equal_their_generic_twin(backend, rng, dtype):
    n, k = 40, 6
    ids = rng.integers(-1, n, (n, k))
    similarities = (rng.random((n, k)) - 0.1).astype(dtype)
    ours = backend.mutual_edges(backend.asarray(ids), backend.asarray(similarities))
    listed = {}
    for item in range(n):
        for other, value in zip(ids[item].tolist(), similarities[item].tolist(), strict=True):
            listed.setdefault((item, other), value)
    expected = sorted(
        (i, j, (value + listed[j, i]) / 2)
        for (i, j), value in listed.items()
        if i != j and j >= 0 and value > 0 and listed.get((j, i), 0) > 0
    )
    for edges in (
        ours,
        GenericBackend.mutual_edges(backend, *map(backend.asarray, (ids, similarities))),
    ):
        indptr, columns, weights = (
            backend.to_numpy(part) for part in (edges.indptr, edges.indices, edges.data)
        )
        assert indptr.dtype == columns.dtype == np.int32
        rows = np.repeat(np.arange(n), np.diff(indptr))
        assert weights.dtype == np.float64
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [
            (i, j) for i, j, _ in expected
        ]
        np.testing.assert_allclose(weights, [value for *_, value in expected], rtol=1e-12)


def test_column_dots_accumulate_in_float64(backend):
    # In float32 the sum of 2^25 ones and small parts would stop growing at 2^24.
    ones = backend.asarray(np.full((2**15, 1), 2.0**-1, dtype="float32"))
    big = backend.asarray(np.full((2**15, 1), 2.0**12 + 2.0**-11, dtype="float32"))
    dots = backend.column_dots(ones, big)
    assert "float64" in str(dots.dtype)
    assert float(dots[0]) == 2**14 * (2.0**12 + 2.0**-11)


def test_eigsh_finds_the_largest_eigenpairs(backend, rng):
    matrix = rng.standard_normal((40, 40))
    matrix = matrix + matrix.T
    pairs = backend.eigsh(csr_of(backend, matrix), 3, rng.standard_normal(40))
    expected = np.linalg.eigvalsh(matrix)[::-1][:3]
    np.testing.assert_allclose(backend.to_numpy(pairs.values), expected, rtol=1e-8)
    vectors = backend.to_numpy(pairs.vectors)
    np.testing.assert_allclose(matrix @ vectors, vectors * expected, atol=1e-7)


def test_connected_components_label_items(backend):
    labels = backend.connected_components(csr_of(backend, two_cliques(3).toarray()))
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_memory_and_stages_can_be_asked_for(backend):
    assert backend.available_bytes() > 2**20
    backend.synchronize()
    backend.free_memory()
    stage = backend.annotate("knn")
    assert isinstance(stage, AbstractContextManager)
    with stage:
        pass


def test_arrays_pass_both_doors_unchanged(backend, rng, dtype):
    values = rng.standard_normal((5, 3)).astype(dtype)
    there = backend.asarray(values)
    assert dtype in str(there.dtype)
    np.testing.assert_array_equal(backend.to_numpy(there), values)


def test_uploads_are_slices_and_downloads_come_home(backend, rng):
    values, names = rng.random((11, 3)), np.arange(11)
    for arrays in ((values, names), (backend.asarray(values), backend.asarray(names))):
        parts = list(backend.uploads(arrays, 2, 4))
        assert [tuple(one.shape) for one, _ in parts] == [(4, 3), (4, 3), (1, 3)]
        home = [backend.download(one) for one, _ in parts]
        np.testing.assert_array_equal(np.concatenate([one() for one in home]), values[2:])
        np.testing.assert_array_equal(
            np.concatenate([backend.to_numpy(other) for _, other in parts]), names[2:]
        )


def test_row_blocks_cover_all_rows_once():
    for lengths in ([0, 0, 0], [9, 0, 0, 1], [1] * 10, [0], [100, 1, 1]):
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        for parts in (1, 2, 4, 16):
            bounds = _balanced_bounds(indptr, parts)
            assert bounds[0] == 0
            assert bounds[-1] == len(lengths)
            assert all(a < b for a, b in pairwise(bounds))


def test_select_backend_by_name():
    assert hg.select_backend("numpy").name == "numpy"
    assert hg.select_backend(hg.select_backend("numpy")) is hg.select_backend("numpy")
    assert hg.backend_of(np.ones(3)).name == "numpy"
    with pytest.raises(ValueError, match="backend must be"):
        hg.select_backend("tpu")


def test_faiss_moves_to_the_gpu_of_the_backend(monkeypatch):
    faiss = pytest.importorskip("faiss")
    moved = []

    class OnGpu(NumpyBackend):
        device = SimpleNamespace(id=3)

    def to_gpu(resources, number, index):
        moved.append(number)
        return index

    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", to_gpu, raising=False)
    vectors = np.random.default_rng(7).standard_normal((30, 4)).astype("float32")
    hg.nearest_neighbors(vectors, k=3, knn="faiss", backend=hg.select_backend("numpy"))
    assert moved == []
    lists = neighbors._through_faiss(
        vectors, None, 3, factory="Flat", progress=None, backend=OnGpu()
    )
    assert moved == [3]
    assert lists.ids.shape == (30, 3)


@pytest.mark.parametrize("factory", ["IVF8,Flat", "PCA3,IVF8,Flat", "IVF50,Flat"])
def test_an_inverted_file_on_a_gpu_probes_enough_lists(monkeypatch, factory):
    faiss = pytest.importorskip("faiss")
    probes = []

    class OnGpu(NumpyBackend):
        device = SimpleNamespace(id=0)

    class GpuIndex:
        """As FAISS's, nothing that extract_index_ivf would take."""

        def __init__(self, index):
            self.train, self.add, self.search = index.train, index.add, index.search
            probes.append(faiss.extract_index_ivf(index).nprobe)

    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(
        faiss, "index_cpu_to_gpu", lambda _, number, index: GpuIndex(index), raising=False
    )
    vectors = np.random.default_rng(9).standard_normal((400, 4)).astype("float32")
    lists = neighbors._through_faiss(
        vectors, None, 3, factory=factory, progress=None, backend=OnGpu()
    )
    assert lists.ids.shape == (400, 3)
    assert probes == [32 if "50" in factory else 8]


def test_auto_leaves_a_cpu_faiss_alone_beside_a_gpu(monkeypatch):
    faiss = pytest.importorskip("faiss")

    class OnGpu(NumpyBackend):
        device = SimpleNamespace(id=0)

    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    assert neighbors._faiss_suits(NumpyBackend())
    assert not neighbors._faiss_suits(OnGpu())
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    assert neighbors._faiss_suits(OnGpu())


def test_environment_overrides_auto_only(monkeypatch):
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "nonsense")
    assert hg.select_backend("numpy").name == "numpy"
    with pytest.raises(ValueError, match="nonsense"):
        hg.select_backend("auto")


def test_array_of_another_device_is_refused_with_the_cure():
    class OnGpu:
        def __dlpack_device__(self):
            return (2, 0)  # kDLCUDA

    with pytest.raises(hg.DeviceMismatchError, match=r"\.cpu\(\)"):
        hg.select_backend("numpy").asarray(OnGpu())


def test_pinned_memory_is_the_host_s():
    values = np.random.default_rng(13).standard_normal((4, 8))

    class Pinned:
        """As torch's pinned tensors may tell: kDLCUDAHost."""

        dtype, shape, ndim = values.dtype, values.shape, values.ndim

        def __dlpack_device__(self):
            return (3, 0)

        def __dlpack__(self, **options):
            return values.__dlpack__()

    backend = hg.select_backend("numpy")
    assert is_on_host(Pinned())
    assert not lives_here(Pinned(), StrictBackend())
    np.testing.assert_array_equal(backend.asarray(Pinned()), values)
    index = hg.build_index(np.random.default_rng(15).random((30, 8)), neighbors=4, backend=backend)
    found = index.search(Pinned(), k=3)
    assert isinstance(found.ids, np.ndarray)
    np.testing.assert_array_equal(found.ids, index.search(values, k=3).ids)


def test_dlpack_arrays_are_read_without_a_copy():
    values = np.arange(6.0)

    class Foreign:
        def __dlpack__(self, **options):
            return values.__dlpack__(**options)

        def __dlpack_device__(self):
            return values.__dlpack_device__()

    assert np.shares_memory(hg.select_backend("numpy").asarray(Foreign()), values)


@pytest.mark.parametrize("columns", [3, 80])
def test_large_steps_are_what_small_ones_are(backend, dtype, tolerance, columns):
    # Large enough to be cut into tiles and shared among threads, with a last tile that is not full.
    rng = np.random.default_rng(61)
    n = 70_001 if columns == 3 else 5003
    ones = [np.ones(n - 1), np.ones(n - 1)]
    matrix = sparse.csr_array(sparse.diags_array(ones, offsets=[-1, 1])) * rng.random()
    given = [backend.asarray(part) for part in (matrix.indices, matrix.indptr)]
    adjacency = backend.csr(backend.asarray(matrix.data, dtype), *given, (n, n))
    host = [rng.standard_normal((n, columns)).astype(dtype) for _ in range(4)]
    solution, residual, direction, product = host

    step = backend.laplacian_step(adjacency, backend.asarray(direction), 0.9)
    values = direction - 0.9 * (matrix @ direction.astype(np.float64))
    close = {"rtol": tolerance, "atol": 10 * tolerance}
    np.testing.assert_allclose(backend.to_numpy(step.values), values, **close)
    curvature = np.sum(direction.astype(np.float64) * values, axis=0)
    np.testing.assert_allclose(backend.to_numpy(step.curvature), curvature, rtol=100 * tolerance)

    sizes = rng.random(columns)
    given = [backend.asarray(part.copy()) for part in host]
    update = backend.cg_update(*given, backend.asarray(sizes))
    np.testing.assert_allclose(
        backend.to_numpy(update.solution), solution + direction * sizes, **close
    )
    left = residual - product * sizes
    np.testing.assert_allclose(backend.to_numpy(update.residual), left, **close)
    np.testing.assert_allclose(
        backend.to_numpy(update.squared_norm), np.sum(left**2, axis=0), rtol=100 * tolerance
    )

    turned = backend.cg_direction(
        backend.asarray(residual), backend.asarray(direction.copy()), backend.asarray(sizes)
    )
    np.testing.assert_allclose(backend.to_numpy(turned), residual + direction * sizes, **close)


def test_matrices_are_cut_into_tiles_of_about_as_many_rows(monkeypatch):
    monkeypatch.setattr(csr_matrix, "thread_count", lambda: 2)
    n = 10 * csr_matrix._TILE_ROWS
    matrix = NumpyBackend().csr(np.ones(n), np.zeros(n, np.int32), np.arange(n + 1), (n, 1))
    assert [start for start, _ in matrix.blocks] == [0, n // 2]
    rows = [part.shape[0] for _, part in matrix.tiles]
    assert len(rows) == 10
    assert max(rows) - min(rows) <= 2
    assert matrix.parts(csr_matrix._TILE_COLUMNS) is matrix.tiles
    assert matrix.parts(1) is matrix.blocks


def test_small_arrays_are_one_tile_and_large_ones_several():
    assert numpy_backend._row_tiles(np.empty((10, 3))) == [slice(0, 10)]
    tiles = numpy_backend._row_tiles(np.empty((400_000, 2), "int8"))
    assert len(tiles) == 4
    covered = np.concatenate([np.arange(400_000)[rows] for rows in tiles])
    assert np.array_equal(covered, np.arange(400_000))


# The second is cut by rows, the third by columns, the fourth inside; solvers give transposed views.
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (900, 300, 170), (20, 300, 7000), (70, 9001, 60), (0, 4, 3), (3, 0, 2), (0, 9, 0)],
)
def test_matmul_is_the_dense_product(backend, rng, dtype, tolerance, shape):
    n, p, m = shape
    left, right = (
        rng.standard_normal((n, p)).astype(dtype),
        rng.standard_normal((m, p)).astype(dtype),
    )
    product = backend.to_numpy(backend.matmul(backend.asarray(left), backend.asarray(right).T))
    expected = left.astype("float64") @ right.astype("float64").T
    np.testing.assert_allclose(product, expected, rtol=tolerance, atol=20 * tolerance)
    assert product.dtype == dtype


def test_mutual_edges_do_not_depend_on_tiles(backend, rng, monkeypatch):
    ids = rng.integers(-1, 60, (60, 9))
    similarities = rng.uniform(-0.2, 1, (60, 9)).astype("float32")

    def edges():
        found = backend.mutual_edges(backend.asarray(ids), backend.asarray(similarities))
        return [backend.to_numpy(one) for one in (found.indptr, found.indices, found.data)]

    whole = edges()
    monkeypatch.setattr(numpy_backend, "_LIST_ENTRIES", 64)
    for one, other in zip(whole, edges(), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("k", [0, 1, 9])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_moved_lists_do_not_depend_on_tiles(backend, rng, monkeypatch, k, kind):
    ids, order = rng.integers(-1, 60, (60, k)).astype(kind), rng.permutation(60)
    numbering = numbering_of(order, backend)
    places = np.append(np.argsort(order), -1)  # the last is for -1
    for entries in (64, 1 << 16, 4):
        monkeypatch.setattr(protocol, "_LIST_ENTRIES", entries)
        moved = backend.to_numpy(numbering.moved_lists(backend.asarray(ids), backend))
        np.testing.assert_array_equal(moved, places[ids[order]])
        assert moved.dtype == kind


def test_parts_of_a_sparse_matrix_are_views_of_it(rng):
    dense = rng.random((5 * csr_matrix._TILE_ROWS, 4))
    matrix = csr_of(NumpyBackend(), dense)
    assert len(matrix.tiles) == 5
    for start, part in (*matrix.blocks, *matrix.tiles):
        assert np.shares_memory(part.data, matrix.data)
        assert np.shares_memory(part.indices, matrix.indices)
        np.testing.assert_array_equal(part.toarray(), dense[start : start + part.shape[0]])


@pytest.mark.parametrize("k", [1, 5, 29, 30])
def test_top_k_by_a_numbering_is_that_of_the_user_s_order(backend, rng, dtype, k):
    # Few values, so that ties stand at every border.
    scores = rng.integers(-2, 3, (7, 30)).astype(dtype)
    order = rng.permutation(30)
    numbering = numbering_of(order, backend)
    mine = np.empty_like(scores)
    mine[:, order] = scores  # by the user's ids
    expected = np.argsort(-mine, axis=1, kind="stable")[:, :k]
    for given in (scores, np.ascontiguousarray(scores.T).T):
        best = backend.top_k(backend.asarray(given), k, numbering)
        places = backend.to_numpy(best.ids)
        np.testing.assert_array_equal(order[places], expected)
        np.testing.assert_array_equal(
            backend.to_numpy(best.scores), np.take_along_axis(scores, places, axis=1)
        )


def test_top_k_by_a_numbering_finds_nan(backend):
    numbering = numbering_of(np.array([2, 0, 1]), backend)
    scores = backend.asarray(np.array([[0.5, np.nan, 0.7]]))
    assert np.isnan(backend.to_numpy(backend.top_k(scores, 2, numbering).scores)).any()


@pytest.mark.parametrize(("m", "q"), [(1, 1), (3, 5), (4, 70), (1, 200)])
def test_place_adds_up_repeated_ids_and_skips_none(backend, rng, dtype, tolerance, m, q):
    ids, values = rng.integers(-1, 9, (m, q)), rng.standard_normal((m, q)).astype(dtype)
    expected = np.zeros((9, m))
    for query in range(m):
        for item, value in zip(ids[query], values[query], strict=True):
            if item >= 0:
                expected[item, query] += value
    placed = backend.place(backend.asarray(ids), backend.asarray(values), 9)
    assert str(placed.dtype).endswith(dtype)
    assert placed.shape == (9, m)
    np.testing.assert_allclose(backend.to_numpy(placed), expected, atol=200 * tolerance)
    again = backend.place(backend.asarray(ids), backend.asarray(values), 9)
    np.testing.assert_array_equal(backend.to_numpy(again), backend.to_numpy(placed))


def test_a_numbering_goes_both_ways_and_keeps_none(backend, rng):
    order = rng.permutation(12)
    numbering = numbering_of(order, backend)
    ids = backend.asarray(np.array([[3, -1, 11], [0, 5, -1]], dtype=np.int32))
    places = numbering.to_places(ids, backend.xp)
    host = backend.to_numpy(places)
    assert host.dtype == np.int64
    np.testing.assert_array_equal(host < 0, backend.to_numpy(ids) < 0)
    np.testing.assert_array_equal(order[host[host >= 0]], [3, 11, 0, 5])
    back = backend.to_numpy(numbering.to_ids(places, backend.xp))
    np.testing.assert_array_equal(back, backend.to_numpy(ids))
    other = numbering.inverse.to_ids(ids, backend.xp)
    np.testing.assert_array_equal(backend.to_numpy(other), host)


@pytest.mark.parametrize("value", [0.0, -np.inf, 1.5])
@pytest.mark.parametrize("k", [1, 40, 64, 200, 4000, 4999])
def test_top_k_by_a_numbering_among_very_many_ties(backend, rng, value, k):
    # Far more ties than are wanted, and the first of them far from the lowest id.
    scores = np.full((2, 5000), value, dtype=np.float32)
    scores[:, rng.permutation(5000)[:1500]] = -np.inf if np.isfinite(value) else -1e30
    scores[:, rng.permutation(5000)[:30]] = rng.random(30) + 2
    order = rng.permutation(5000)
    mine = np.empty_like(scores)
    mine[:, order] = scores
    mine[1, :2500] = scores[1, order[:2500]] = -np.inf if np.isfinite(value) else 1.0
    scores = mine[:, order]
    numbering = numbering_of(order, backend)
    best = backend.top_k(backend.asarray(scores), k, numbering)
    expected = np.argsort(-mine, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(order[backend.to_numpy(best.ids)], expected)


@pytest.mark.parametrize(
    "kind", ["random", "few high", "rising", "one block", "ties", "sampled low"]
)
@pytest.mark.parametrize("k", [1, 17, 100])
def test_top_k_of_long_rows_is_a_stable_sort_whatever_a_sample_tells(backend, rng, kind, k):
    n = 20_011
    scores = rng.standard_normal(n)
    if kind == "few high":
        scores[rng.permutation(n)[:k]] += 9
    elif kind == "rising":
        scores = np.sort(scores)
    elif kind == "one block":  # neighbors in memory are neighbors in score
        scores[5000:5400] += 9
    elif kind == "ties":
        scores = np.round(scores)
    elif kind == "sampled low":  # every sixteenth is far below, or far above, all others
        scores[::16] -= 99
    rows = np.stack([scores, scores[::-1], np.roll(scores, 7)]).astype(np.float32)
    if kind == "sampled low":
        rows[2, ::16] += 198
    order = rng.permutation(n)
    for numbering in (None, numbering_of(order, backend)):
        mine, ids = rows, np.arange(n)
        if numbering is not None:
            mine, ids = np.empty_like(rows), order
            mine[:, order] = rows
        best = backend.top_k(backend.asarray(rows), k, numbering)
        expected = np.argsort(-mine, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ids[backend.to_numpy(best.ids)], expected)
