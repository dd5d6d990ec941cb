"""The re-ranker that travels: options checked at home, one index a process, every form of batch."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
from conftest import TOLERANCE
from made_up_queries import (
    DIMENSIONS,
    ITEMS,
    K,
    ask_in_child,
    names,
    reranker,
    same_answers,
    save_index,
    vectors,
)

import hybrid_gpu as hg
from hybrid_gpu.backends import threads
from hybrid_gpu.distributed import process_index
from hybrid_gpu.distributed.process_index import device_number, own_threads

QUERIES = vectors(9, seed=67)


@pytest.fixture
def folder(tmp_path):
    save_index(tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def keyed(tmp_path):
    save_index(tmp_path / "keyed", keys=names())
    return tmp_path / "keyed"


@pytest.fixture(autouse=True)
def all_threads():
    yield
    threads.limit_threads(None)


def test_answers_are_those_of_the_index(folder):
    index, rerank = hg.load_index(folder, backend="numpy"), reranker(folder)
    assert same_answers(rerank(QUERIES), index.search(QUERIES, k=K))
    first = hg.nearest_neighbors(vectors(ITEMS), QUERIES, k=5, backend="numpy")
    expected = index.rerank(first.ids, first.similarities, k=K)
    assert same_answers(rerank(first.ids, first.similarities), expected)
    distances = 1 - first.similarities
    rerank = reranker(folder, metric="cosine-distance")
    answers = rerank(first.ids, distances)
    np.testing.assert_allclose(answers["scores"], expected.scores, rtol=TOLERANCE["float32"] * 10)


def test_it_pickles_into_a_path_and_options(folder):
    rerank = reranker(folder, allowed=np.ones(ITEMS, bool))
    rerank(QUERIES)  # an index that is open does not travel
    content = pickle.dumps(rerank)
    assert len(content) < 1500
    again = pickle.loads(content)
    assert np.array_equal(again(QUERIES), rerank(QUERIES))
    assert repr(again) == f"Reranker({str(folder)!r}, k={K}, method='auto')"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"k": 0}, ValueError),
        ({"k": 2.5}, TypeError),
        ({"method": "hybird"}, ValueError),
        ({"metric": "l3"}, ValueError),
        ({"accuracy": "good"}, ValueError),
        ({"accuracy": 1e-3, "rtol": 1e-3}, ValueError),
        ({"rtol": 2}, ValueError),
        ({"steps": -1}, ValueError),
        ({"alpha": 1.0}, ValueError),
        ({"alpha": 0.9, "filter": hg.HeatKernel(2)}, ValueError),
        ({"filter": lambda frequency: frequency}, TypeError),
        ({"degree_correction": 1}, TypeError),
        ({"query_neighbors": 0}, ValueError),
        ({"shortlist": -3}, ValueError),
        ({"sparsity": 1.0}, ValueError),
        ({"expansion": 10}, TypeError),
        ({"allowed": [[1, 2], [3, 4]]}, ValueError),
        ({"exclude": [[1], [2, 3]]}, ValueError),
        ({"allowed": "abc"}, TypeError),
        ({"min_score": float("nan")}, ValueError),
        ({"batch": 0}, ValueError),
        ({"backend": "gpu"}, ValueError),
        ({"threads": 0}, ValueError),
        ({"descriptors": 3}, TypeError),
        ({"lists": "ids"}, TypeError),
        ({"lists": ["ids"]}, ValueError),
        ({"descriptors": "x", "lists": ["a", "b"]}, ValueError),
        ({"identity": 7}, TypeError),
        ({"verify": "yes"}, TypeError),
        ({"neighbours": 5}, TypeError),
    ],
)
def test_wrong_options_are_refused_before_any_work(folder, options, fault, monkeypatch):
    monkeypatch.setattr(process_index, "load_index", None)  # nothing is opened for that
    with pytest.raises(fault):
        reranker(folder, **options)


def test_options_of_a_search_are_all_there(folder):
    import inspect

    own = set(inspect.signature(hg.Reranker).parameters)
    for search in (hg.DiffusionIndex.search, hg.DiffusionIndex.rerank):
        left_out = {"self", "queries", "ids", "similarities", "progress"}
        assert set(inspect.signature(search).parameters) - left_out <= own


def test_options_reach_the_search(keyed):
    index = hg.load_index(keyed, backend="numpy")
    some = names()[10:40]
    options = {"method": "temporal", "steps": 7, "alpha": 0.8, "allowed": some, "min_score": 0.0}
    rerank = pickle.loads(pickle.dumps(reranker(keyed, **options)))
    assert same_answers(rerank(QUERIES), index.search(QUERIES, k=K, **options))


def test_a_missing_index_is_told_at_once_unless_only_workers_see_it(tmp_path):
    with pytest.raises(hg.IndexFileError, match="identity=None"):
        reranker(tmp_path / "nowhere")
    rerank = reranker(tmp_path / "later", identity=None)
    with pytest.raises(hg.IndexFileError, match="no such index"):
        rerank(QUERIES)
    save_index(tmp_path / "later")
    assert rerank(QUERIES).shape == (9, K)


def test_an_index_is_opened_once_by_however_many_threads(folder, monkeypatch):
    opened, real = [], process_index.load_index

    def load(*args, **options):
        opened.append(threading.get_ident())
        return real(*args, **options)

    monkeypatch.setattr(process_index, "load_index", load)
    rerank = reranker(folder)
    assert opened == []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(rerank, [QUERIES] * 24))
    assert len(opened) == 1
    assert all(np.array_equal(one, answers[0]) for one in answers)
    # The index of a process is mapped from its files, not copied.
    descriptors = rerank.index.state.descriptors
    while descriptors.base is not None and not isinstance(descriptors, np.memmap):
        descriptors = descriptors.base
    assert isinstance(descriptors, np.memmap)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own(folder):
    rerank = reranker(folder)
    expected = rerank(QUERIES)
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        at_first = pool.submit(_open_indexes).result()
        number, answers = pool.submit(ask_in_child, rerank, QUERIES).result()
    assert number != os.getpid()
    assert np.array_equal(answers, expected)
    assert _open_indexes() >= 1
    assert at_first == 0  # none of the parent's


def _open_indexes():
    return len(process_index._open._values)


def test_spawned_processes_answer_as_one_does(folder):
    rerank = reranker(folder, threads=1)
    parts = [QUERIES[:4], QUERIES[4:5], QUERIES[:0], QUERIES[5:]]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(rerank, parts))
    for part, answers in zip(parts, found, strict=True):
        assert np.array_equal(answers, rerank(part))


def test_a_replaced_index_is_refused_and_not_mixed(folder):
    rerank = reranker(folder)
    traveller, late = pickle.dumps(rerank), reranker(folder, identity=None)
    rerank(QUERIES)
    save_index(folder)  # the same one again
    assert rerank(QUERIES).shape == pickle.loads(traveller)(QUERIES).shape
    late(QUERIES)
    save_index(folder, seed=73)
    for one in (rerank, pickle.loads(traveller), late):
        with pytest.raises(hg.IndexFileError, match="replaced by another one"):
            one(QUERIES)
    process_index._begin_anew()  # as a process that comes only now
    with pytest.raises(hg.IndexFileError, match="replaced by another one"):
        pickle.loads(traveller)(QUERIES)
    assert reranker(folder)(QUERIES).shape == (9, K)


def test_an_index_that_goes_while_it_is_opened_is_refused(folder, monkeypatch):
    real = process_index.load_index

    def load(*args, **options):
        index = real(*args, **options)
        save_index(folder, seed=73)
        return index

    rerank = reranker(folder)
    monkeypatch.setattr(process_index, "load_index", load)
    with pytest.raises(hg.IndexFileError, match="replaced by another one"):
        rerank(QUERIES)


def test_an_index_that_goes_and_comes_back_while_it_is_opened_is_opened_again(folder, monkeypatch):
    real, opened = process_index.load_index, []

    def load(*args, **options):
        opened.append(1)
        if len(opened) > 1:
            return real(*args, **options)
        save_index(folder, seed=73)
        index = real(*args, **options)  # the other one
        save_index(folder)
        return index

    rerank = reranker(folder)
    monkeypatch.setattr(process_index, "load_index", load)
    answers = rerank(QUERIES)
    assert len(opened) == 2
    assert same_answers(answers, real(folder, backend="numpy").search(QUERIES, k=K))


def test_columns_in_the_same_place_come_out_as_they_went_in(keyed):
    index, rerank = hg.load_index(keyed, backend="numpy"), reranker(keyed)
    expected = index.search(QUERIES, k=K)
    batch = {"query": np.arange(9), "vector": QUERIES, "label": np.array(list("abcdefghi"))}
    answers = rerank(batch)
    assert list(answers) == ["query", "label", "keys", "scores"]
    assert same_answers(answers, expected)
    assert set(batch) == {"query", "vector", "label"}  # the user's own is as it was
    ragged = np.empty(9, object)
    ragged[:] = list(QUERIES)
    assert same_answers(rerank({"vector": ragged}), expected)


def test_a_column_for_each_dimension_is_one_vector(folder):
    index = hg.load_index(folder, backend="numpy")
    batch = {f"x{number}": QUERIES[:, number] for number in range(DIMENSIONS)}
    batch["y"] = np.zeros(9)
    expected = index.search(QUERIES, k=K)
    for descriptors in ("x*", [f"x{number}" for number in range(DIMENSIONS)]):
        answers = reranker(folder, descriptors=descriptors)(batch)
        assert same_answers(answers, expected)
        assert list(answers) == ["y", "ids", "scores"]


def test_lists_of_another_engine_go_by_name(keyed):
    index = hg.load_index(keyed, backend="numpy")
    first = hg.nearest_neighbors(vectors(ITEMS), QUERIES, k=5, backend="numpy")
    found = np.array(names(), object)[first.ids]
    expected = index.rerank(found, first.similarities, k=K)
    batch = {"ids": found, "similarities": first.similarities}
    assert same_answers(reranker(keyed)(batch), expected)
    batch = {"hits": found, "cosine": first.similarities, "vector": QUERIES}
    answers = reranker(keyed, lists=("hits", "cosine"))(batch)
    assert same_answers(answers, expected)
    assert "vector" in answers


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": np.zeros((9, 6)), "b": np.zeros((9, 6))}, "descriptors='column'"),
        ({"a": np.zeros(9)}, "columns"),
        ({"descriptors": QUERIES, "ids": np.zeros(9)}, "Rename it"),
        ({"descriptors": QUERIES[:, :3]}, "6 dimensions"),
        ({"descriptors": np.array(["foo", "foo"], object)}, "meta=rerank.meta"),
        ({"descriptors": np.array([[1.0], [1.0, 2.0]], object)}, "one length"),
        ({"descriptors": QUERIES, "query": np.zeros(8)}, "row for each query"),
        ({"ids": np.arange(9), "similarities": np.ones(9)}, "a list in each row"),
        ({"ids": np.ones((9, 1), int), "similarities": np.ones(9)}, "a list in each row"),
    ],
)
def test_batches_that_cannot_be_understood_are_told(folder, batch, message):
    with pytest.raises((ValueError, TypeError), match=message):
        reranker(folder)(batch)


def test_frames_with_two_columns_of_one_name_are_told(folder):
    pandas = pytest.importorskip("pandas")
    for twice in (["a", "a"], [1, "1"]):
        frame = pandas.DataFrame(np.zeros((9, 2)), columns=twice).assign(vector=list(QUERIES))
        with pytest.raises(ValueError, match="names of their own"):
            reranker(folder)(frame)


class Damped:
    """A filter whose repr tells nothing of what it holds."""

    def __init__(self, alpha):
        self.alpha = alpha

    def __call__(self, frequency):
        return (1 - self.alpha) / (1 - self.alpha * frequency)


def test_filters_of_the_user_are_told_apart_by_what_they_hold(folder):
    told = [reranker(folder, filter=Damped(alpha)).described()["filter"] for alpha in (0.8, 0.9)]
    assert told[0] != told[1]
    again = pickle.loads(pickle.dumps(Damped(0.8)))  # at another place in memory
    assert reranker(folder, filter=again).described()["filter"] == told[0]


def test_columns_that_were_named_must_be_there(folder):
    with pytest.raises(ValueError, match="no column 'vector'"):
        reranker(folder, descriptors="vector")({"descriptors": QUERIES})
    with pytest.raises(TypeError, match="column of its own"):
        reranker(folder)({"ids": np.zeros((2, 3))}, np.zeros((2, 3)))


@pytest.mark.parametrize("keys", [None, "text", "int64", "uint64"])
def test_empty_batches_have_answers_of_the_right_kind(tmp_path, keys):
    given = {
        None: None,
        "text": names(),
        "int64": np.arange(ITEMS) - 500,
        "uint64": np.arange(ITEMS).astype(np.uint64) + np.uint64(2**63),
    }[keys]
    save_index(tmp_path / "index", keys=given, dtype="float64")
    rerank = reranker(tmp_path / "index")
    full, title = rerank(QUERIES), "ids" if keys is None else "keys"
    for shape in ((0, DIMENSIONS), (0, 0)):  # Dask asks with no columns either
        empty = rerank(np.empty(shape))
        assert empty.dtype == full.dtype == rerank.dtype
        assert empty.shape == (0, K)
    assert rerank(np.empty((0, 3), np.int64), np.empty((0, 3))).dtype == full.dtype
    batch = {"descriptors": QUERIES, "query": np.arange(9)}
    empty, whole = rerank.meta(batch), rerank(batch)
    assert {name: part.dtype for name, part in empty.items()} == {
        name: part.dtype for name, part in whole.items()
    }
    assert empty[title].shape == (0, K)
    assert reranker(tmp_path / "index", k=10 * ITEMS).k == ITEMS


def test_frames_of_pandas_keep_their_index(keyed):
    pandas = pytest.importorskip("pandas")
    index, rerank = hg.load_index(keyed, backend="numpy"), reranker(keyed)
    frame = pandas.DataFrame({"query": list("abcdefghi"), "vector": list(QUERIES)})
    frame.index = np.arange(9) * 3
    answers = rerank(frame)
    assert list(answers.columns) == ["query", "keys", "scores"]
    assert list(answers.index) == list(frame.index)
    assert same_answers(answers, index.search(QUERIES, k=K))
    empty = rerank(frame[:0])
    assert list(empty.columns) == list(answers.columns)
    assert (empty.dtypes == answers.dtypes).all()
    made_up = pandas.DataFrame({"query": ["a", "b"], "vector": [object(), object()]})  # Dask's
    assert list(rerank(made_up).columns) == list(answers.columns)
    plain = pandas.DataFrame(QUERIES)  # columns have numbers for names
    assert same_answers(reranker(keyed, descriptors="*")(plain), index.search(QUERIES, k=K))


def test_tables_of_pyarrow_have_lists_of_a_fixed_size(keyed):
    pyarrow = pytest.importorskip("pyarrow")
    index, rerank = hg.load_index(keyed, backend="numpy"), reranker(keyed)
    expected = index.search(QUERIES, k=K)
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(QUERIES.reshape(-1)), DIMENSIONS)
    for column in (
        fixed,
        pyarrow.array(list(QUERIES)),
        pyarrow.chunked_array([fixed[:4], fixed[4:]]),
    ):
        table = pyarrow.table({"query": list(range(9)), "vector": column})
        answers = rerank(table)
        assert answers.schema.names == ["query", "keys", "scores"]
        assert answers.schema.field("scores").type == pyarrow.list_(pyarrow.float32(), K)
        columns = {name: answers[name].to_pylist() for name in ("keys", "scores")}
        columns["scores"] = np.array(columns["scores"], np.float32)
        assert same_answers(columns, expected)
        assert rerank(table.slice(3, 0)).schema == answers.schema
        (batch,) = table.combine_chunks().to_batches()
        assert rerank(batch).equals(answers)
    gaps = pyarrow.table({"vector": pyarrow.array([[1.0] * DIMENSIONS, None])})
    with pytest.raises(ValueError, match="no gaps"):
        rerank(gaps)
    uneven = pyarrow.table({"vector": pyarrow.array([[1.0], [1.0, 2.0]])})
    with pytest.raises(ValueError, match="one length"):
        rerank(uneven)


def test_nothing_found_is_minus_one_or_none(tmp_path):
    save_index(tmp_path / "plain")
    save_index(tmp_path / "keyed", keys=names())
    few = reranker(tmp_path / "plain", allowed=[3, 4])(QUERIES)
    assert np.all(few["ids"][:, 2:] == -1)
    assert np.all(few["scores"][:, 2:] == -np.inf)
    few = reranker(tmp_path / "keyed", allowed=names()[3:5])(QUERIES)
    assert set(few["keys"][:, 2:].reshape(-1)) == {None}


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"HYBRID_GPU_WORKER": "5"}, 1),
        ({"HYBRID_GPU_WORKER": "2", "CUDA_VISIBLE_DEVICES": "3,4,5,6"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "3,4,5,6"}, 0),
        ({}, 0),
    ],
)
def test_every_process_takes_a_gpu_of_its_own(monkeypatch, settings, number):
    for name in ("HYBRID_GPU_WORKER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert device_number(4) == number


def test_processes_of_a_pool_count_their_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, number in (("SpawnProcess-1", 0), ("ForkPoolWorker-6", 1), ("MainProcess", 0)):
        monkeypatch.setattr(multiprocessing.current_process(), "_config", {}, raising=False)
        monkeypatch.setattr(multiprocessing.current_process(), "_name", name, raising=False)
        assert device_number(4) == number


def test_a_device_that_is_named_is_taken_and_others_are_chosen(monkeypatch):
    class Device:
        def __init__(self, name):
            self.name = name

    devices = [Device(f"cupy:{number}") for number in range(3)]
    monkeypatch.setattr(process_index, "all_devices", lambda: devices)
    monkeypatch.setattr(process_index, "select_backend", lambda name: f"selected {name}")
    monkeypatch.setenv("HYBRID_GPU_WORKER", "4")
    assert process_index.own_device("auto") is devices[1]
    assert process_index.own_device("cupy") is devices[1]
    assert process_index.own_device("cupy:2") == "selected cupy:2"
    assert process_index.own_device("numpy") == "selected numpy"
    monkeypatch.setattr(process_index, "all_devices", lambda: (Device("numpy"),))
    assert process_index.own_device("cupy") == "selected cupy"  # which says what is missing


def test_the_gpu_answers_as_the_cpu_does(folder, gpu):
    answers = reranker(folder, backend="cupy")(QUERIES)
    expected = reranker(folder)(QUERIES)
    np.testing.assert_allclose(answers["scores"], expected["scores"], rtol=1e-3)


def test_a_process_keeps_to_its_threads(folder, monkeypatch):
    cores = threads.core_count()
    assert threads.thread_count() == cores
    reranker(folder, threads=3)(QUERIES)
    assert threads.thread_count() == 3
    reranker(folder, threads=1, steps=4)(QUERIES)
    assert threads.thread_count() == 1
    threads.limit_threads(None)
    monkeypatch.setenv("HYBRID_GPU_THREADS", "1")
    threads.told_threads.cache_clear()
    assert threads.thread_count() == 1
    assert own_threads() is None
    monkeypatch.setenv("HYBRID_GPU_THREADS", "none")
    threads.told_threads.cache_clear()
    with pytest.raises(ValueError, match="HYBRID_GPU_THREADS must be a number"):
        threads.thread_count()
    monkeypatch.undo()
    threads.told_threads.cache_clear()
