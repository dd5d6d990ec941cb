import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import clustered_vectors, path, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.backends.native_local import Memories, entry_room
from hybrid_gpu.diffusion.local import ROOMS, most_room
from hybrid_gpu.index.build_memory import native_build_bytes


@pytest.fixture
def index(backend):
    vectors = clustered_vectors(np.random.default_rng(61), n=300, clusters=4)
    return hg.build_index(vectors, neighbors=8, backend=backend)


def test_best_reaches_the_target_and_is_the_fastest_that_does(index):
    plan = hg.plan(index, target=0.95, k=20, queries=16, eigenvectors=(5,))
    assert {one.basis for one in plan.candidates} == {"none", "aggregate", "eigen"}
    reaching = [one for one in plan.candidates if one.agreement >= 0.95]
    assert plan.best in reaching
    assert plan.best.milliseconds == min(one.milliseconds for one in reaching)


def test_what_was_planned_holds_for_an_index_built_so(index):
    plan = hg.plan(index, target=0.95, k=20, queries=16, eigenvectors=())
    best = next(one for one in plan.candidates if one.basis == "aggregate" and one.rank)
    built = hg.with_basis(index, "aggregate", rank=300 // 128)
    sample = np.arange(0, 300, 7)
    ranking = built.search_items(sample, k=20, steps=best.steps)
    exact = index.search_items(sample, k=20, method="temporal", rtol=1e-4)
    assert hg.evaluation.agreement(ranking.ids, exact.ids) > 0.85


def test_local_is_measured_beside_the_rest(index):
    plan = hg.plan(index, target=0.95, k=20, queries=16, eigenvectors=(), seed=71)
    (local,) = (one for one in plan.candidates if one.method == "local")
    assert local.basis == "aggregate"
    built = hg.with_basis(index, "aggregate", seed=71)
    assert local.rank == built.basis.rank
    # The same items, by a solve that has nothing to do with the plan's.
    items = np.random.default_rng(71).choice(300, 16, replace=False)
    found = built.search_items(items, k=20, method="local")
    exact = index.search_items(items, k=20, method="temporal", rtol=1e-4)
    assert local.agreement == pytest.approx(hg.evaluation.agreement(found.ids, exact.ids), abs=0.01)
    assert local.agreement > 0.98
    assert local.steps == found.report.steps
    # Its walk and the roots of degrees come on top of the basis.
    groups = built.basis.coupling.shape[0]
    assert local.bytes >= built.memory["basis"] + 4 * groups**2 + 4 * 300
    assert local.bytes <= built.memory["basis"] + 4 * (groups**2 + built.basis.rank) + 4 * 300
    assert local.milliseconds > 0


def test_local_can_be_the_best(index, monkeypatch):
    module = sys.modules["hybrid_gpu.index.plan"]
    ranked = module._ranked

    def timed(index, sample, method, steps):
        ranking = ranked(index, sample, method, steps)
        seconds = {"observe": 0.0, "solve": 1.0 if method == "local" else 2.0, "rank": 0.0}
        return replace(ranking, report=replace(ranking.report, seconds=seconds))

    monkeypatch.setattr(module, "_ranked", timed)
    plan = hg.plan(index, target=0.95, k=20, queries=16, eigenvectors=())
    assert plan.best.method == "local"
    assert repr(plan).splitlines()[len(plan.candidates)].startswith("* local ")


@pytest.mark.parametrize("n", [300, 70_000])
@pytest.mark.parametrize("entries", [5, 150])
def test_predicted_bytes_of_local_are_those_of_a_thread(n, entries, dtype):
    room = min(ROOMS[0], most_room(n))
    _, _, arrays = Memories().take(n, 50, room, entry_room(room, n, entries * n), dtype)
    one, two = (
        hg.predicted_bytes(n, entries=entries, groups=50, threads=threads, dtype=dtype)["local"]
        for threads in (1, 2)
    )
    assert two - one == sum(array.nbytes for array in arrays)
    value = np.dtype(dtype).itemsize
    assert 2 * one - two == (2500 + n) * value + 128 * 120 * 100


def test_rows_of_a_graph_have_room_on_average():
    assert entry_room(10, 3, 100) == 10 * 34
    assert entry_room(10, 50, 100) == 10 * 32


def test_memory_limits_the_choice(index):
    plan = hg.plan(index, target=0.5, k=20, queries=8, memory=0, eigenvectors=())
    assert plan.best.basis == "none"


def test_target_that_nothing_reaches_is_said_plainly(backend, monkeypatch):
    # One step along a line of items cannot put a hundred of them into their right places.
    monkeypatch.setattr(sys.modules["hybrid_gpu.index.plan"], "_STEPS", (0, 1))
    line = hg.build_index_from_graph(path(300), alpha=0.99, backend=backend)
    plan = hg.plan(line, target=1.0, k=100, queries=16, eigenvectors=(), backend=backend)
    assert all(one.agreement < 1 for one in plan.candidates)
    assert plan.best is None
    assert repr(plan).endswith("nothing reaches 1")
    assert "*" not in repr(plan)


def test_table_has_a_line_for_every_candidate(index):
    plan = hg.plan(index, target=0.9, k=10, queries=8, eigenvectors=(3,))
    lines = repr(plan).splitlines()
    assert len(lines) == len(plan.candidates) + 2
    assert sum(line.startswith("* ") for line in lines[1:-1]) == 1
    assert max(map(len, lines)) <= 80


def test_a_graph_alone_can_be_planned_for(backend):
    graph = hg.graph_from_affinity(path(80), backend=backend)
    start = time.perf_counter()
    plan = hg.plan(graph, target=0.9, k=5, queries=8, eigenvectors=(90,), backend=backend)
    elapsed = time.perf_counter() - start
    assert plan.best is not None
    # Two groups and five (two may grow into one); a 64th of 80 items is not worth a try.
    tried = [(one.basis, one.rank) for one in plan.candidates]
    assert tried[:4] == [("none", 0), ("aggregate", 1), ("aggregate", 5), ("eigen", 80)]
    assert [one.method for one in plan.candidates] == ["hybrid"] * 4 + ["local"]
    assert all(0 <= one.build_seconds < elapsed for one in plan.candidates)


def test_no_item_is_asked_for_twice(backend, monkeypatch):
    module = sys.modules["hybrid_gpu.index.plan"]
    seen, exact = [], module._exact
    monkeypatch.setattr(module, "_exact", lambda *given: seen.extend(given[1]) or exact(*given))
    graph = hg.graph_from_affinity(path(40), backend=backend)
    hg.plan(graph, target=0.5, k=5, queries=99, eigenvectors=(), backend=backend)
    assert sorted(seen) == list(range(40))


@pytest.mark.parametrize("target", [0.0, 1.5])
def test_impossible_targets_are_refused(index, target):
    with pytest.raises(ValueError, match="target must lie"):
        hg.plan(index, target=target)
    with pytest.raises(TypeError, match="target must be a number"):
        hg.plan(index, target="high")


def test_predicted_bytes_are_those_of_a_real_index(backend, dtype):
    vectors = clustered_vectors(np.random.default_rng(67), n=400, clusters=3)
    index = hg.build_index(vectors, neighbors=8, dtype=dtype, backend=backend)
    basis = index.basis
    told = hg.predicted_bytes(
        400,
        entries=2 * index.graph.edges / 400,
        dimensions=8,
        neighbors=8,
        groups=int(basis.coupling.shape[0]),
        coupled=int(basis.spread.data.shape[0]) / 400 - 1,
        cells=int(basis.coupling.data.shape[0]) / int(basis.coupling.shape[0]),
        dtype=dtype,
    )
    for part in ("graph", "descriptors", "neighbors", "basis"):
        assert told[part] == pytest.approx(index.memory[part], rel=0.02)
    assert told["search"] == 128 * (10 * 400 * np.dtype(dtype).itemsize + 120 * 100)


def test_target_that_is_just_reached_is_reached(backend):
    # In a clique all others tie, and go by their ids: every basis finds the same.
    graph = hg.graph_from_affinity(two_cliques(20), backend=backend)
    stages = []
    plan = hg.plan(
        graph,
        target=1.0,
        k=20,
        queries=8,
        eigenvectors=(),
        progress=lambda *stage: stages.append(stage),
        backend=backend,
    )
    assert plan.best is not None
    assert plan.best.agreement == 1
    assert max(one.steps for one in plan.candidates) <= 4
    count = len(plan.candidates)
    assert stages == [("plan", number, count) for number in range(count + 1)]


def test_time_is_told_per_query(backend, monkeypatch):
    module = sys.modules["hybrid_gpu.index.plan"]
    ranked = module._ranked

    def timed(*arguments):
        ranking = ranked(*arguments)
        seconds = {"observe": 7.0, "solve": 0.3, "rank": 0.1}
        return replace(ranking, report=replace(ranking.report, seconds=seconds))

    monkeypatch.setattr(module, "_ranked", timed)
    graph = hg.graph_from_affinity(path(80), backend=backend)
    plan = hg.plan(graph, target=0.5, k=5, queries=8, eigenvectors=(), backend=backend)
    assert plan.candidates[0].milliseconds == pytest.approx(50)


def test_the_peak_of_a_build_is_told_before_it_is_refused(monkeypatch):
    vectors = clustered_vectors(np.random.default_rng(61), n=300, clusters=4).astype("float32")
    backend = hg.select_backend("numpy")
    part = "native build" if backend.searches_locally else "build"
    needed = hg.predicted_bytes(300, entries=4, dimensions=vectors.shape[1], neighbors=8)[part]
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: needed)
    assert hg.build_index(vectors, neighbors=8, backend=backend).n == 300
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: needed - 1)
    with pytest.raises(MemoryError, match="to build an index of 300 items"):
        hg.build_index(vectors, neighbors=8, backend=backend)
    # Lists that are not kept are made all the same: about two neighbors for an entry of the graph.
    kept, made = (hg.predicted_bytes(300, entries=10, neighbors=k)["build"] for k in (20, 0))
    assert kept == made


def test_entries_beyond_2_to_the_31_take_wider_indices():
    small, large = (hg.predicted_bytes(n, entries=16) for n in (2**27 - 1, 2**27))
    # 16 columns and the beginning of the row, each 4 bytes wider.
    assert large["graph"] / 2**27 - small["graph"] / (2**27 - 1) == pytest.approx(4 * 17)


@pytest.mark.parametrize(
    ("entries", "kept", "per_item"),
    [
        # Lists of 8 bytes, sorted ones with what is listed back of 12, entries of 12.
        (30, False, 32 * 20 + 30 * 34 - 32 * 12),
        (8, False, 32 * 20 + 8 * 12),
        (8, True, 32 * 20 + 8 * 12),
        # Graph and lists in two orders.
        (16, True, 32 * 20 + 16 * 12),
        (20, True, 32 * 8 + 20 * 34),
    ],
)
def test_the_peak_of_a_native_build_is_that_of_its_largest_stage(entries, kept, per_item):
    n, neighbors = 10**8, 32
    found = native_build_bytes(n, 0, neighbors, "float32", entries, kept=kept)
    number = 4 * (n * entries >= 2**31)  # bytes that wide indices add
    wide = per_item + entries * number
    assert found == pytest.approx(n * (wide + 300) + 24 * 4000**2, rel=1e-9)


def test_a_graph_of_too_many_edges_is_refused_before_its_groups_are_made(monkeypatch):
    backend = hg.select_backend("numpy")
    if not backend.searches_locally:
        pytest.skip("what is asked for before is enough for any edges")
    ids = (np.arange(400)[:, None] + [1, 2, 3, -1, -2, -3]) % 400  # every edge is mutual
    similarities = np.broadcast_to(np.linspace(0.9, 0.4, 6, dtype=np.float32), ids.shape)
    rooms = iter([2**40, 10_000])
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: next(rooms))
    with pytest.raises(MemoryError, match="to group 400 items with 1200 edges takes about"):
        hg.build_index_from_neighbors(ids, similarities, neighbors=6, backend=backend)


def test_edges_that_do_not_fit_are_refused(monkeypatch):
    backend = hg.select_backend("numpy")
    if not backend.searches_locally:
        pytest.skip("of the native core")
    module = sys.modules["hybrid_gpu.backends.native_graph"]
    monkeypatch.setattr(module, "available_host_bytes", lambda: 47)
    ids, similarities = np.array([[1], [0], [3], [2]]), np.full((4, 1), 0.5, np.float32)
    with pytest.raises(MemoryError, match="4 edges take 0 MB more memory"):
        backend.mutual_edges(ids, similarities)
    monkeypatch.setattr(module, "available_host_bytes", lambda: 48)
    assert backend.mutual_edges(ids, similarities).data.size == 4
