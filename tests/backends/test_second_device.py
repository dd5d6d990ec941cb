"""Everything public on a device that is not the current one.

On a server with several GPUs, device 0 is the current one unless somebody says otherwise, and CuPy
refuses to work with arrays of another one. So every function enters the device of its arrays. The
cases run in a process of their own, which has two devices on the stand-in.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from functools import cache

import numpy as np
import pytest
from array_api_compat import is_cupy_array

import hybrid_gpu as hg
from hybrid_gpu.backends.step_records import Course, Standing

NUMPY, SECOND = "numpy", "cupy:1"
CASES = {}
# What touches no array of a device.
WITHOUT_ARRAYS = {
    *("backend_of", "select_backend", "predicted_bytes"),
    *("condition_number", "error_bound", "error_bounds"),
}


def case(function):
    """A case gives numbers for a backend; both backends have to give the same ones."""
    CASES[function.__name__] = function
    return function


VECTORS = np.random.default_rng(211).standard_normal((90, 6)).astype("float32") + 1
QUERIES = VECTORS[:7] + np.float32(0.1)


@cache
def index(backend, basis="auto"):
    return hg.build_index(VECTORS, neighbors=6, basis=basis, backend=backend, rank=4)


@cache
def lists(backend):
    return hg.nearest_neighbors(VECTORS, k=8, backend=backend)


@cache
def graph(backend):
    return hg.reciprocal_graph(lists(backend), backend=backend)


@cache
def spectrum(backend):
    return hg.leading_eigenpairs(graph(backend), rank=4, backend=backend)


def matrix(one):
    return one.data, one.indices, one.indptr


def of_graph(one):
    return (*matrix(one.adjacency), one.degrees, one.components)


def projector(vectors):
    return hg.backend_of(vectors).to_numpy(vectors)


def of_ranking(one):
    return one.scores, one.report.residuals


@case
def nearest_neighbors(backend):
    found = hg.nearest_neighbors(VECTORS, QUERIES, k=5, knn="exact", backend=backend)
    return found.ids, found.similarities, lists(backend).similarities


@case
def tune(backend):
    labels, few = np.arange(len(VECTORS)) % 3, {"neighbors": (4,), "gammas": (), "alphas": ()}
    found = hg.tune(VECTORS, labels, **few, backend=backend)
    return (np.array([row.value for row in found.rows]),)


@case
def reciprocal_graph(backend):
    return of_graph(graph(backend))


@case
def reciprocal_graph_of_device_lists(backend):
    return of_graph(hg.reciprocal_graph(lists(backend)))


@case
def graph_from_affinity(backend):
    import scipy.sparse as sparse

    one = sparse.random_array((40, 40), density=0.2, rng=np.random.default_rng(213))
    return of_graph(hg.graph_from_affinity(one + one.T, backend=backend))


@case
def aggregate(backend):
    groups = hg.aggregate(graph(backend), groups=9)
    return groups.labels, groups.order, groups.sizes


@case
def aggregate_basis(backend):
    basis = hg.aggregate_basis(graph(backend), hg.aggregate(graph(backend), groups=9))
    inverse, ones = basis.coarse_inverse(0.9), graph(backend).degrees[:, None]
    part = basis.restrict(ones)
    share = basis.deflation(0.9)(basis.prolong(part)).share
    return (*matrix(basis.vectors), inverse.together, part, basis.prolong(part), share)


@case
def leading_eigenpairs(backend):
    one = spectrum(backend)
    return one.eigenvalues, one.residuals < 1e-3, abs(projector(one.eigenvectors))


@case
def eigen_basis(backend):
    found = []
    for precision in hg.diffusion.eigen_basis.PRECISIONS:
        if precision == "float64":
            continue
        basis = hg.eigen_basis(spectrum(backend), graph(backend), precision=precision)
        ones = graph(backend).degrees[:, None]
        found += [basis.prolong(basis.restrict(ones)), basis.row_norms(), abs_of(basis.dense())]
        found += [basis.leading(2).prolong(basis.leading(2).restrict(ones))]
        found += [basis.deflation(0.9)(ones).share, basis.memory]
        found += [basis.coarse_inverse(0.9).alone, abs_of(basis.sparsified(0.5).vectors.data)]
    return found


def abs_of(values):
    return abs(projector(values))


@case
def sparse_eigen_basis(backend):
    basis = hg.sparse_eigen_basis(spectrum(backend).eigenvectors, graph(backend), sparsity=0.5)
    ones = graph(backend).degrees[:, None]
    return basis.prolong(basis.restrict(ones)), basis.coarse_inverse(0.9).norm


@case
def given_basis(backend):
    import scipy.sparse as sparse

    cells = sparse.csr_array(np.eye(5)[np.arange(90) % 5])
    found = []
    for vectors in (cells, cells.toarray()):
        basis = hg.given_basis(graph(backend), vectors)
        ones = graph(backend).degrees[:, None]
        found += [basis.prolong(basis.restrict(ones)), basis.coarse_inverse(0.9).together]
    return found


@case
def observe(backend):
    near = hg.nearest_neighbors(VECTORS, QUERIES, k=5, backend=backend)
    seen = hg.observe(near.ids, near.similarities, 90, backend=backend)
    return seen.ids, seen.weights, seen.dense(hg.select_backend(backend))


@case
def diffuse(backend):
    near = hg.nearest_neighbors(VECTORS, QUERIES, k=5, backend=backend)
    seen, found = hg.observe(near.ids, near.similarities, 90, backend=backend), []
    for basis in (None, hg.eigen_basis(spectrum(backend), graph(backend))):
        solution = hg.diffuse(graph(backend), seen, basis=basis, accuracy=1e-5)
        found += [solution.values, solution.steps > 0]
    for chosen in (hg.HeatKernel(2.0), hg.Polynomial((0.5, 0.5))):
        found.append(hg.diffuse(graph(backend), seen, filter=chosen).values)
    return found


@case
def top_items(backend):
    scores = hg.select_backend(backend).asarray(VECTORS)
    plain = hg.top_items(scores, k=9)
    other = hg.top_items(scores, k=90, similarities=lambda: scores.T)
    return plain.ids, plain.scores, other.ids, other.scores


@case
def augment_database(backend):
    return (hg.augment_database(VECTORS, knn="exact", backend=backend),)


@case
def build_index(backend):
    return of_graph(index(backend).graph)


@case
def build_index_from_neighbors(backend):
    near = lists(backend)
    made = hg.build_index_from_neighbors(near.ids, near.similarities, descriptors=None)
    return of_ranking(made.search_items([3, 5], k=6, accuracy=1e-5))


@case
def build_index_from_graph(backend):
    import scipy.sparse as sparse

    one = sparse.random_array((40, 40), density=0.2, rng=np.random.default_rng(215))
    made = hg.build_index_from_graph(one + one.T, backend=backend)
    return of_ranking(made.search_items([3, 5], k=6, accuracy=1e-5))


@case
def with_basis(backend):
    found = []
    for basis in ("eigen", "sparse-eigen", "none"):
        made = hg.with_basis(index(backend), basis, rank=4)
        found += [made.search_items([3, 5], k=6, accuracy=1e-5).scores]
    made = hg.with_basis(index(backend), index(backend).basis)
    return [*found, made.search_items([3, 5], k=6, accuracy=1e-5).scores]


@case
def load_index(backend):
    with tempfile.TemporaryDirectory() as folder:
        index(backend).save(f"{folder}/index")
        made = hg.load_index(f"{folder}/index", backend=backend)
        return of_ranking(made.search(QUERIES, k=6, accuracy=1e-5))


@case
def plan(backend):
    found = hg.plan(index(backend), queries=5, k=5, eigenvectors=(3,))
    other = hg.plan(graph(backend), queries=5, k=5, eigenvectors=(3,))
    return [len(found.candidates), len(other.candidates)]


@case
def estimate_precompute(backend):
    return [hg.estimate_precompute(index(backend), keep=5).bytes]


@case
def every_method(backend):
    made = index(backend, "eigen").precompute(keep=90, rtol=1e-5)
    return [
        (index(backend) if kind.needs_groups else made)
        .search(queries, k=5, method=method, batch=3)
        .scores
        for method, kind in hg.METHODS.items()
        for queries in (QUERIES, hg.select_backend(backend).asarray(QUERIES))
    ]


@case
def searches(backend):
    near, one = hg.nearest_neighbors(VECTORS, QUERIES, k=9, backend=backend), index(backend)
    found = [one.search(QUERIES, k=5), one.search(QUERIES, k=90, degree_correction=True)]
    found += [one.rerank(near.ids, near.similarities, k=5), one.search_items([4, 2], k=5)]
    found += [one.search(QUERIES, k=5, expansion=hg.Expansion(3)), one.search(QUERIES, steps=4)]
    one.warm_up()
    return [part for ranking in found for part in of_ranking(ranking)]


@case
def explain(backend):
    one, found = index(backend), []
    near = hg.nearest_neighbors(VECTORS, QUERIES, k=5, backend=backend)
    vector = hg.select_backend(backend).asarray(QUERIES[2])
    asked = [(vector, {}), ({4: 1.0, 6: 0.5}, {}), (8, {"degree_correction": True})]
    asked += [(near.ids[2, :], {"similarities": near.similarities[2, :]})]
    for query, options in asked:
        why = hg.explain(one, query, 2, paths=2, **options)
        given = [hit.contribution for hit in why.hits]
        found += [why.score, why.rank, given, [path.share for path in why.paths]]
    return found


@case
def reranker(backend):
    with tempfile.TemporaryDirectory() as folder:
        index(backend).save(f"{folder}/index")
        # The name of a device is taken as it is; "cupy" is for each process to choose one.
        rank = hg.Reranker(f"{folder}/index", k=6, accuracy=1e-5, backend=backend)
        near = lists(NUMPY)
        parts = [rank(QUERIES), rank(near.ids[:7], near.similarities[:7])]
        assert backend == NUMPY or str(rank.index.backend.device) == "<CUDA Device 1>"
        return [part["scores"] for part in parts]


@case
def rerank_files(backend):
    with tempfile.TemporaryDirectory() as folder:
        index(backend).save(f"{folder}/index")
        np.save(f"{folder}/queries.npy", QUERIES)
        rank = hg.Reranker(f"{folder}/index", k=6, accuracy=1e-5, backend=backend)
        report = hg.rerank_files(rank, f"{folder}/queries.npy", f"{folder}/answers")
        (answer,) = pathlib.Path(folder, "answers").glob("*.npz")
        with np.load(answer) as arrays:
            return [arrays["scores"], len(report.of("done"))]


@case
def parts_of_an_index(backend):
    one = index(backend, "eigen").precompute(keep=5)
    seen = hg.observe([[1, 2]], [[0.9, 0.8]], 90, backend=backend)
    found = [one.descriptors, one.neighbors.similarities, *of_graph(one.graph)]
    found += [one.columns.combine(seen, one.backend), one.columns.scores, sum(one.memory.values())]
    found += [one.graph.degree_correction(one.backend), one.basis.eigenvalues]
    assert repr(one)
    return found


@case
def updates(backend):
    found = []
    for basis in ("auto", "eigen", "sparse-eigen"):
        grown = index(backend, basis).add(VECTORS[:20] * 2 + QUERIES[:1])
        found += [grown.search(QUERIES, k=5, accuracy=1e-5).scores]
        less = grown.remove([0, 50, 99])
        found += [less.search(QUERIES, k=5, accuracy=1e-5).scores]
    return found


@case
def moves(backend):
    there = index("cupy:0").to(backend)
    return of_ranking(there.search(QUERIES, k=5, accuracy=1e-5))


@case
def measures(backend):
    scores = hg.select_backend(backend).asarray(VECTORS)
    found = hg.evaluation.ranked(scores, k=3)
    return found, hg.evaluation.agreement(hg.top_items(scores.T, k=3, backend=backend).ids, found)


@case
def operations_of_the_backend(backend):
    import scipy.sparse as sparse

    device = hg.select_backend(backend)
    one = sparse.random_array((40, 40), density=0.2, rng=np.random.default_rng(217)).tocsr()
    adjacency = device.csr(*map(device.asarray, (one.data, one.indices, one.indptr)), one.shape)
    long_rows = device.csr(
        *map(device.asarray, (np.ones(600), np.arange(600) % 40, np.array([0, 600]))), (1, 40)
    )

    def dense(seed=0):
        return device.asarray(np.random.default_rng(219 + seed).standard_normal((40, 5)))

    step, ids = device.asarray(np.arange(5.0)), device.asarray(np.array([[1, 2], [0, -1]]))
    made = device.laplacian_step(adjacency, dense(), 0.9)
    moved = device.cg_update(dense(), dense(1), dense(2), dense(3), step)
    wide = device.top_k(device.asarray(np.arange(5000.0)[None, :]), 3000)
    found = [made.values, made.curvature, moved.solution, moved.residual, moved.squared_norm]
    found += [device.cg_direction(dense(), dense(1), step), device.column_dots(dense(), dense(1))]
    found += [device.spmm(adjacency, dense()), device.spmm(long_rows, dense())]
    found += [device.subtract_spmm(dense(), adjacency, dense(1))]
    numbers = np.arange(5.0)
    state = (numbers + 1, numbers + 1, 0 * numbers, numbers > 2)
    standing = Standing(*map(device.asarray, state))
    course = Course(dense(), dense(1), dense(), standing)
    moves = device.cg_pace(made, standing, 0.01)
    found += [device.cg_turn(step, standing, moves.moving, stop_early=True).ratio, moves.step]
    after = device.cg_advance(course, made.values, moves, stop_early=True)
    found += [after.solution, after.direction, after.standing.squared]
    found += [device.matmul(dense().T, dense(1)), wide.ids, device.top_k(dense().T, 3).ids]
    found += [device.place(ids, device.asarray(np.ones((2, 2))), 9)]
    edges = device.mutual_edges(ids[:, :1], device.asarray(np.ones((2, 1))))
    found += [edges.indptr, edges.indices, edges.data]
    found += [device.connected_components(adjacency).shape[0], device.available_bytes() > 0]
    found += [part for (part,) in device.uploads((np.arange(7.0),), 0, 3)]
    found += [device.download(dense())(), device.download(dense().T)()]
    found += [part for (part,) in device.uploads((step,), 0, 2)]
    symmetric = device.csr(
        *map(device.asarray, ((one + one.T).data, (one + one.T).indices, (one + one.T).indptr)),
        one.shape,
    )
    found += [device.eigsh(symmetric, 2, np.ones(40)).values]
    device.synchronize()
    device.free_memory()
    return found


def on_host(part):
    if hasattr(part, "dtype"):
        part = hg.backend_of(part).to_numpy(part)
    return None if part is None else np.asarray(part)


def answers(name, backend):
    parts = list(CASES[name](backend))
    if backend == SECOND:
        assert {str(part.device) for part in parts if is_cupy_array(part)} <= {"<CUDA Device 1>"}
    return [on_host(part) for part in parts]


def run_all():
    """Every case, with device 0 as the current one: what went wrong in each."""
    import cupy

    told = {}
    for name in CASES:
        try:
            here, there = answers(name, NUMPY), answers(name, SECOND)
            assert cupy.cuda.Device().id == 0, "another device is current now"
            assert len(here) == len(there)
            for left, right in zip(here, there, strict=True):
                if left is not None and right is not None:
                    np.testing.assert_allclose(left, right, rtol=2e-3, atol=2e-4)
            told[name] = None
        except Exception:
            told[name] = traceback.format_exc()
    print(json.dumps(told))


@pytest.fixture(scope="module")
def told():
    cupy = pytest.importorskip("cupy")
    variables = dict(os.environ)
    try:
        import standin

        variables["STANDIN_DEVICES"] = "2"
        del standin
    except ImportError:
        if cupy.cuda.runtime.getDeviceCount() < 2:
            pytest.skip("there is no second GPU")
    done = subprocess.run(
        [sys.executable, __file__], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_it_runs_on_a_device_that_is_not_the_current_one(told, name):
    assert told[name] is None, told[name]


def test_no_public_function_is_left_out():
    functions = {name for name in hg.__all__ if inspect.isfunction(getattr(hg, name))}
    assert functions - WITHOUT_ARRAYS - set(CASES) == set()


@pytest.mark.parametrize("name", CASES)
def test_the_cases_run_on_the_host(name):
    if name != "moves":
        assert answers(name, NUMPY)


if __name__ == "__main__":
    run_all()
