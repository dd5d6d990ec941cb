"""Copies beside the work: right in whatever order the streams of a GPU run.

``late`` goes through all ways that the stand-in has to run streams. A faulty transfer gives right
values by luck on a GPU, and wrong ones in at least one of these ways: the last test takes out one
wait after another to see it.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import types

import numpy as np
import pytest
from conftest import LATE_MODES, clustered_vectors, released_under_copies

import hybrid_gpu as hg

ROWS, WIDTH = 37, 5
# cudaErrorInvalidValue and cudaErrorMemoryAllocation.
INVALID_VALUE, OUT_OF_MEMORY = 1, 2


@pytest.fixture
def transfers(gpu):
    from hybrid_gpu.backends import transfers

    return transfers


@pytest.fixture
def arrays():
    rng = np.random.default_rng(189)
    return rng.standard_normal((ROWS, 300)).astype("float32"), rng.integers(0, 99, (ROWS, 7))


def up_and_down(transfers, gpu, arrays):
    """What arrives on the host of arrays that were sent up in slices and worked on there."""
    import cupy

    coming = []
    for floats, integers in transfers.uploads(arrays, 0, WIDTH, gpu.device, gpu._copies):
        # Packing, and temporaries whose memory is handed on: both are work of the stream.
        wide = (floats * 2)[:, ::3]
        coming.append((transfers.Download(wide, gpu._copies), integers + 1))
        del wide
        cupy.full((WIDTH, 300), 7, cupy.float32)
    integers = [transfers.Download(part, gpu._copies) for _, part in coming]
    floats = np.concatenate([part() for part, _ in coming])
    return floats, np.concatenate([part() for part in integers])


def is_right(found, arrays):
    return np.array_equal(found[0], (arrays[0] * 2)[:, ::3]) and np.array_equal(
        found[1], arrays[1] + 1
    )


def test_slices_arrive_whole(transfers, gpu, arrays, late):
    assert is_right(up_and_down(transfers, gpu, arrays), arrays)


@pytest.mark.parametrize("start", [0, 3, 35, 37])
@pytest.mark.parametrize("width", [1, 5, 37, 100])
def test_slices_begin_and_end_where_they_should(gpu, arrays, late, start, width):
    slices = list(gpu.uploads(arrays, start, width))
    assert [part.shape[0] for part, _ in slices] == [
        min(width, ROWS - first) for first in range(start, ROWS, width)
    ]
    for number, whole in enumerate(arrays):
        parts = [gpu.to_numpy(parts[number]) for parts in slices]
        np.testing.assert_array_equal(np.concatenate([whole[:start], *parts]), whole)


@pytest.mark.parametrize("order", ["C", "F"])
def test_columns_and_transposes_are_packed_before_they_are_copied(gpu, late, order):
    rng = np.random.default_rng(187)
    values = np.asarray(rng.standard_normal((40, 60)), order=order)
    there = gpu.asarray(values) * 3
    for view in (lambda a: a, lambda a: a.T, lambda a: a[:, :50], lambda a: a[::2, ::-1]):
        np.testing.assert_array_equal(gpu.download(view(there))(), view(values * 3))


def test_downloads_can_be_asked_for_twice_and_in_any_order(gpu, late):
    import cupy

    coming = [gpu.download(cupy.full((20, 30), float(number))) for number in range(9)]
    for number in (4, 8, 0, 4):
        np.testing.assert_array_equal(coming[number](), np.full((20, 30), float(number)))


def test_nothing_is_left_to_wait_for_of_an_empty_array(gpu, late):
    import cupy

    assert gpu.download(cupy.empty((0, 3)))().shape == (0, 3)


# ---- ends before the end


def abandoned(transfers, gpu, arrays):
    """An exception ends an upload with the next slice under way, and drops a download."""
    import cupy

    def search():
        for floats, _ in transfers.uploads(arrays, 0, WIDTH, gpu.device, gpu._copies):
            kept = transfers.Download(floats * 2, gpu._copies)
            raise KeyError(kept)

    with contextlib.suppress(KeyError):
        search()
    gc.collect()
    # Whoever comes next gets the memory of both.
    after = [cupy.full((WIDTH, 300), 5, cupy.float32) for _ in range(6)]
    return [cupy.asnumpy(one) for one in after]


def test_what_was_under_way_hurts_nobody_afterwards(transfers, gpu, arrays, late):
    for values in abandoned(transfers, gpu, arrays):
        assert (values == 5).all()


def test_memory_that_runs_out_between_slices_hurts_nobody(
    transfers, gpu, arrays, late, monkeypatch
):
    import cupy

    real, calls = cupy.empty, []

    def scarce(*shape, **options):
        calls.append(shape)
        if len(calls) == 4:  # the second array of the second slice
            raise cupy.cuda.memory.OutOfMemoryError(1, 1, 1)
        return real(*shape, **options)

    monkeypatch.setattr(transfers.cupy, "empty", scarce)
    with pytest.raises(MemoryError):
        list(transfers.uploads(arrays, 0, WIDTH, gpu.device, gpu._copies))
    monkeypatch.undo()
    assert is_right(up_and_down(transfers, gpu, arrays), arrays)


def test_without_pinned_memory_copies_take_longer(transfers, gpu, arrays, late, standin):
    import cupy

    def none_left(size):
        raise cupy.cuda.runtime.CUDARuntimeError(OUT_OF_MEMORY)

    cupy.cuda.set_pinned_memory_allocator(none_left)
    try:
        assert is_right(up_and_down(transfers, gpu, arrays), arrays)
    finally:
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


def test_other_errors_of_pinned_memory_are_passed_on(transfers, monkeypatch):
    import cupy

    def broken(*_):
        raise cupy.cuda.runtime.CUDARuntimeError(INVALID_VALUE)

    monkeypatch.setattr(transfers.cupyx, "empty_pinned", broken)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        transfers.pinned((3,), "float32")


# ---- other threads and other streams


def test_another_thread_may_take_and_free_memory_in_between(
    transfers, gpu, arrays, late, monkeypatch
):
    import cupy

    real = cupy.empty

    def after_another_thread(shape, dtype):
        # Its work is asked for, and its memory is free, before this thread allocates.
        other = cupy.full(shape, 9, dtype)
        other += 1
        del other
        return real(shape, dtype)

    monkeypatch.setattr(transfers.cupy, "empty", after_another_thread)
    assert is_right(up_and_down(transfers, gpu, arrays), arrays)


def test_two_threads_transfer_at_once(transfers, gpu, arrays, late):
    wrong, others = [], tuple(array[::-1].copy() for array in arrays)

    def transfer(own):
        for _ in range(4):
            found = up_and_down(transfers, gpu, own)
            wrong.extend([] if is_right(found, own) else [own])

    threads = [threading.Thread(target=transfer, args=(own,)) for own in (arrays, others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("non_blocking", [True, False])
def test_a_user_s_own_stream_is_waited_for_too(transfers, gpu, arrays, late, non_blocking):
    import cupy

    with cupy.cuda.Stream(non_blocking=non_blocking):
        assert is_right(up_and_down(transfers, gpu, arrays), arrays)


def test_a_user_s_own_stream_waits_for_each_slice(gpu, arrays, late):
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        # Nothing else of the backend's runs here that could bring the copies on.
        found = [cupy.asnumpy(floats * 2) for floats, _ in gpu.uploads(arrays, 0, WIDTH)]
    np.testing.assert_array_equal(np.concatenate(found), arrays[0] * 2)


# ---- searches


@pytest.fixture
def index():
    vectors = clustered_vectors(np.random.default_rng(191), n=2300).astype("float32")
    return hg.build_index(vectors, neighbors=6, backend="numpy")


@pytest.fixture
def small():
    vectors = clustered_vectors(np.random.default_rng(205), n=150).astype("float32")
    return hg.build_index(vectors, neighbors=6, backend="numpy")


@pytest.mark.parametrize("k", [50, 2048, 2049, 2200])
def test_a_search_gives_what_the_cpu_gives_in_whatever_order(gpu, index, late, k):
    queries = clustered_vectors(np.random.default_rng(193), n=9).astype("float32")
    here, there = (one.search(queries, k=k, batch=2) for one in (index, index.to(gpu)))
    assert there.ids.shape == (9, k)
    np.testing.assert_allclose(there.scores, here.scores, rtol=2e-5, atol=1e-7)
    for ids, scores, whole in zip(
        there.ids, there.scores, index.search(queries, k=2300).ids, strict=True
    ):
        assert len(set(ids.tolist())) == k
        assert set(ids[:20].tolist()) <= set(whole[: k + 20].tolist())
        assert (np.diff(scores) <= 0).all()


def test_searches_of_two_threads_do_not_disturb_each_other(gpu, small, late):
    there = small.to(gpu)
    sets = [clustered_vectors(np.random.default_rng(seed), n=6) for seed in (195, 197)]
    answers, found = [there.search(one, k=30, batch=6) for one in sets], {}

    def search(number):
        for _ in range(2):
            found[number] = there.search(sets[number], k=30, batch=2)

    threads = [threading.Thread(target=search, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        np.testing.assert_allclose(found[number].scores, answers[number].scores, rtol=1e-5)


def test_a_search_on_a_stream_of_the_user_s_gives_the_same(gpu, small, late):
    import cupy

    queries = clustered_vectors(np.random.default_rng(199), n=11).astype("float32")
    there = small.to(gpu)
    usual = there.search(queries, k=40, batch=4)
    with cupy.cuda.Stream(non_blocking=True):
        own = there.search(queries, k=40, batch=4)
        # Results of CuPy queries are work of the stream that is current, as CuPy's own are.
        stays = cupy.asnumpy(there.search(cupy.asarray(queries), k=40, batch=4).ids)
    np.testing.assert_array_equal(own.ids, usual.ids)
    np.testing.assert_array_equal(stays, usual.ids)


def test_a_batch_whose_download_runs_out_of_memory_is_taken_again(gpu, small, monkeypatch):
    queries = clustered_vectors(np.random.default_rng(201), n=8).astype("float32")
    there = small.to(gpu)
    whole = there.search(queries, k=10, batch=4)
    real, refused = type(gpu).download, []

    def scarce(self, values):
        # Ids and scores are on their way, residuals are not.
        if values.shape == (4,) and values.dtype.kind == "f" and not refused:
            refused.append(values.shape)
            raise MemoryError
        return real(self, values)

    monkeypatch.setattr(type(gpu), "download", scarce)
    ranking = there.search(queries, k=10, batch=4)
    assert refused
    np.testing.assert_array_equal(ranking.ids, whole.ids)
    assert ranking.report.residuals.shape == (8,)
    assert ranking.report.batch == 2


# ---- no wait too many


def without(source, number):
    """The module's source without one of its lines."""
    lines = source.splitlines()
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = f"{indent}pass"
    faulty = types.ModuleType("hybrid_gpu.backends.transfers")
    exec(
        compile("\n".join(lines), f"transfers.py without line {number + 1}", "exec"),
        faulty.__dict__,
    )
    return faulty


def is_noticed(faulty, gpu, arrays, standin):
    import cupy

    for mode in LATE_MODES[1:]:
        with standin.late_streams(mode):
            before = released_under_copies()
            try:
                right = is_right(up_and_down(faulty, gpu, arrays), arrays)
                right &= all((one == 5).all() for one in abandoned(faulty, gpu, arrays))
            except cupy.cuda.runtime.CUDARuntimeError:
                right = False
            gc.collect()
            if not right or released_under_copies() > before:
                standin.reset()
                return True
    return False


def waiting_lines():
    from hybrid_gpu.backends import transfers

    with open(transfers.__file__, encoding="utf-8") as file:
        source = file.read()
    waits = [
        number
        for number, line in enumerate(source.splitlines())
        if ".wait_event(" in line or ".synchronize()" in line
    ]
    return source, waits


def test_no_wait_can_be_left_out(gpu, standin):
    arrays = np.random.default_rng(203).random((ROWS, 300), "float32"), np.arange(ROWS)[:, None]
    source, waits = waiting_lines()
    assert not is_noticed(without(source + "\n", source.count("\n")), gpu, arrays, standin)
    assert len(waits) == 7
    unnoticed = [
        source.splitlines()[number].strip()
        for number in waits
        if not is_noticed(without(source, number), gpu, arrays, standin)
    ]
    assert unnoticed == []
