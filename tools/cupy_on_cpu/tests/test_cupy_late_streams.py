"""Streams that run late: what CUDA promises is done by then, and what it does not promise is not.

Most tests look at pinned memory of the host: a copy into it that has run shows, one that is still
to come does not.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time

import cupy as cp
import cupyx
import numpy as np
import pytest
import standin
from test_cupy_runtime import in_a_new_process

runtime = cp.cuda.runtime
NOT_YET, THERE = -5, 3


@pytest.fixture(autouse=True)
def nothing_left():
    cp.get_default_memory_pool().free_all_blocks()
    standin.reset()
    yield
    assert standin.late_mode() == "off"


def pinned(value=NOT_YET):
    """Pinned memory of the host that shows whether a copy into it has run."""
    buffer = cupyx.empty_pinned(4, np.int32)
    buffer[:] = value
    return buffer


def start(stream, buffer, values=None):
    """Start to copy onto the host, on a stream; the array is returned, to be kept."""
    values = cp.full(4, THERE, np.int32) if values is None else values
    values.get(stream=stream, out=buffer, blocking=False)
    return values


def ready(value=THERE):
    """An array whose values are there, whatever the mode."""
    array = cp.full(4, value, np.int32)
    cp.cuda.Device().synchronize()
    return array


def is_there(buffer):
    assert buffer.tolist() in ([NOT_YET] * 4, [THERE] * 4)
    return bool(buffer[0] == THERE)


# ---- which streams run late


def test_without_a_mode_everything_runs_at_once():
    here = pinned()
    start(cp.cuda.Stream(non_blocking=True), here)
    assert is_there(here)
    assert standin.late_mode() == "off"


@pytest.mark.parametrize(
    ("mode", "side_is_late", "default_is_late"),
    [("side", True, False), ("default", False, True), ("both", True, True)],
)
@pytest.mark.parametrize("non_blocking", [True, False])
def test_a_mode_says_which_streams_run_late(mode, side_is_late, default_is_late, non_blocking):
    with standin.late_streams(mode):
        assert standin.late_mode() == mode
        side, here, there = cp.cuda.Stream(non_blocking=non_blocking), pinned(), pinned()
        values = ready()
        start(side, here, values)
        assert is_there(here) is not side_is_late
        side.synchronize()
        assert is_there(here)
        start(cp.cuda.Stream.null, there, values)
        assert is_there(there) is not default_is_late
        cp.cuda.Stream.null.synchronize()
        assert is_there(there)


def test_the_mode_can_come_from_the_environment():
    code = "import standin; print(standin.late_mode())"
    assert in_a_new_process(code, STANDIN_LATE="both").stdout == "both\n"
    assert in_a_new_process(code).stdout == "off\n"
    refused = in_a_new_process(code, STANDIN_LATE="backwards")
    assert refused.returncode != 0
    assert "write side, default, both, or random:7" in refused.stderr


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="got 'backwards'"), standin.late_streams("backwards"):
        pass


def test_what_is_left_is_done_when_the_mode_ends():
    here = pinned()
    with standin.late_streams("side"):
        values = start(cp.cuda.Stream(non_blocking=True), here)
        assert not is_there(here)
    assert is_there(here)
    del values


def how_it_went(seed):
    with standin.late_streams(f"random:{seed}"):
        stream, buffers = cp.cuda.Stream(non_blocking=True), [pinned() for _ in range(30)]
        values = ready()
        seen = []
        for buffer in buffers:
            start(stream, buffer, values)
            seen.append([is_there(one) for one in buffers])
        stream.synchronize()
        assert all(is_there(buffer) for buffer in buffers)
    return seen


def test_a_random_mode_repeats_itself_from_its_seed():
    first, again, other = how_it_went(17), how_it_went(17), how_it_went(18)
    assert first == again
    assert first != other
    # Some copies ran before the next was asked for, and some did not; never out of turn.
    assert 0 < sum(map(sum, first)) < 30 * 31 / 2
    assert all(sorted(row, reverse=True) == row for row in first)


# ---- waits of the host


def test_an_event_is_done_with_what_was_asked_for_before_it():
    with standin.late_streams("both"):
        stream, first, second = cp.cuda.Stream(non_blocking=True), pinned(), pinned()
        values = ready()
        start(stream, first, values)
        event = stream.record()
        start(stream, second, values)
        assert not event.done
        event.synchronize()
        assert event.done
        assert is_there(first)
        assert not is_there(second)
        assert not stream.done
        stream.synchronize()
        assert stream.done


def test_a_device_waits_for_all_of_its_streams():
    with standin.late_streams("both"):
        streams = [cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(), cp.cuda.Stream.null]
        buffers, values = [pinned() for _ in streams], ready()
        for stream, buffer in zip(streams, buffers, strict=True):
            start(stream, buffer, values)
        assert not any(is_there(buffer) for buffer in buffers)
        cp.cuda.Device().synchronize()
        assert all(is_there(buffer) for buffer in buffers)


def test_an_event_that_was_never_recorded_keeps_nobody_waiting():
    with standin.late_streams("both"):
        event, stream, here = cp.cuda.Event(), cp.cuda.Stream(non_blocking=True), pinned()
        assert event.done
        event.synchronize()
        stream.wait_event(event)
        values = start(stream, here, ready())
        stream.synchronize()
        assert is_there(here)
        del values


def test_whoever_asks_again_and_again_gets_there():
    with standin.late_streams("both"):
        stream, here, values = cp.cuda.Stream(non_blocking=True), pinned(), ready()
        start(stream, here, values)
        event, deadline = stream.record(), time.monotonic() + 20
        while not event.done:
            assert time.monotonic() < deadline
        assert is_there(here)
        start(stream, here, values)
        while not stream.done:
            assert time.monotonic() < deadline


def test_the_time_between_events_is_not_known_before_they_are_done():
    with standin.late_streams("both"):
        stream, first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(), cp.cuda.Event()
        first.record(stream)
        second.record(stream)
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorNotReady"):
            cp.cuda.get_elapsed_time(first, second)
        second.synchronize()
        assert cp.cuda.get_elapsed_time(first, second) >= 0


def test_a_stream_that_is_gone_still_does_its_work():
    with standin.late_streams("both"):
        stream, here, values = cp.cuda.Stream(non_blocking=True), pinned(), ready()
        start(stream, here, values)
        del stream
        gc.collect()
        assert not is_there(here)
        cp.cuda.Device().synchronize()
        assert is_there(here)


# ---- waits of one stream for another


def two_streams():
    return cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)


def test_streams_do_not_wait_for_each_other_unless_told():
    for waits in (False, True):
        with standin.late_streams("both"):
            (first, second), one, two = two_streams(), pinned(), pinned()
            values = ready()
            start(first, one, values)
            if waits:
                second.wait_event(first.record())
            start(second, two, values)
            second.synchronize()
            assert is_there(two)
            assert is_there(one) is waits


def test_a_stream_that_runs_at_once_runs_first_what_it_waits_for():
    with standin.late_streams("side"):
        side, here, values = cp.cuda.Stream(non_blocking=True), pinned(), ready()
        start(side, here, values)
        cp.cuda.Stream.null.wait_event(side.record())
        assert is_there(here)


def test_an_event_from_before_the_work_does_not_wait_for_it():
    with standin.late_streams("both"):
        (first, second), here, values = two_streams(), pinned(), ready()
        event = first.record()
        start(first, here, values)
        second.wait_event(event)
        second.synchronize()
        assert not is_there(here)


def test_a_wait_is_for_the_last_record_before_it():
    with standin.late_streams("both"):
        (first, second), one, two = two_streams(), pinned(), pinned()
        values, event = ready(), cp.cuda.Event()
        start(first, one, values)
        event.record(first)
        second.wait_event(event)
        start(first, two, values)
        event.record(first)  # of no concern to the wait above
        second.synchronize()
        assert is_there(one)
        assert not is_there(two)
        event.synchronize()
        assert is_there(two)


def test_waits_go_through_a_chain_of_streams():
    with standin.late_streams("both"):
        streams, here, values = (
            [cp.cuda.Stream(non_blocking=True) for _ in range(5)],
            pinned(),
            ready(),
        )
        start(streams[0], here, values)
        for before, after in itertools.pairwise(streams):
            after.wait_event(before.record())
        streams[-1].synchronize()
        assert is_there(here)


# ---- the default stream


@pytest.mark.parametrize("non_blocking", [True, False])
def test_the_default_stream_waits_for_blocking_streams_only(non_blocking):
    with standin.late_streams("both"):
        side, here, there = cp.cuda.Stream(non_blocking=non_blocking), pinned(), pinned()
        values = ready()
        start(side, here, values)
        start(cp.cuda.Stream.null, there, values)
        cp.cuda.Stream.null.synchronize()
        assert is_there(there)
        assert is_there(here) is not non_blocking


@pytest.mark.parametrize("non_blocking", [True, False])
def test_only_blocking_streams_wait_for_the_default_stream(non_blocking):
    with standin.late_streams("both"):
        side, here, there = cp.cuda.Stream(non_blocking=non_blocking), pinned(), pinned()
        values = ready()
        start(cp.cuda.Stream.null, here, values)
        start(side, there, values)
        side.synchronize()
        assert is_there(there)
        assert is_there(here) is not non_blocking


def test_two_blocking_streams_do_not_wait_for_each_other():
    with standin.late_streams("both"):
        first, second, here, there = cp.cuda.Stream(), cp.cuda.Stream(), pinned(), pinned()
        values = ready()
        start(first, here, values)
        start(second, there, values)
        second.synchronize()
        assert is_there(there)
        assert not is_there(here)


def test_the_default_stream_of_a_thread_is_its_own():
    with standin.late_streams("both"):
        here, there, values, own = pinned(), pinned(), ready(), cp.cuda.Stream.ptds
        start(own, here, values)

        def elsewhere():
            start(own, there, values)
            own.synchronize()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert is_there(there)
        assert not is_there(here)
        # It is a blocking stream: the legacy default stream waits for it.
        cp.cuda.Stream.null.synchronize()
        assert is_there(here)


# ---- copies and fills


def test_a_copy_from_pageable_memory_has_read_it_when_it_returns():
    with standin.late_streams("both"):
        stream, source, target = (
            cp.cuda.Stream(non_blocking=True),
            np.full(4, THERE, np.int32),
            ready(0),
        )
        target.set(source, stream=stream)
        source[:] = NOT_YET
        stream.synchronize()
        assert is_there(target.get(stream=stream))


def test_a_copy_from_pinned_memory_reads_it_late():
    with standin.late_streams("both"):
        stream, source, target = cp.cuda.Stream(non_blocking=True), pinned(THERE), ready(0)
        target.set(source, stream=stream)
        source[:] = NOT_YET
        stream.synchronize()
        assert not is_there(target.get(stream=stream))


def test_a_copy_to_pageable_memory_is_done_when_it_returns():
    with standin.late_streams("both"):
        stream, target, values = (
            cp.cuda.Stream(non_blocking=True),
            np.full(4, NOT_YET, np.int32),
            ready(),
        )
        values.get(stream=stream, out=target, blocking=False)
        assert is_there(target)


def test_a_copy_to_pageable_memory_waits_for_its_stream_alone():
    with standin.late_streams("both"):
        (stream, other), here, there = two_streams(), pinned(), pinned()
        values = ready()
        start(stream, here, values)
        start(other, there, values)
        values.get(stream=stream, out=np.empty(4, np.int32), blocking=False)
        assert is_there(here)
        assert not is_there(there)


@pytest.mark.parametrize("kind", ["to_host", "pinned_to_device", "pageable_to_device"])
def test_a_blocking_copy_waits_for_the_default_stream(kind):
    with standin.late_streams("both"):
        (stream, _), here, there = two_streams(), pinned(), pinned()
        values, other = ready(), ready()
        start(stream, there, values)
        start(cp.cuda.Stream.null, here, values)
        host = pinned() if kind != "pageable_to_device" else np.full(4, NOT_YET, np.int32)
        if kind == "to_host":
            runtime.memcpy(host.ctypes.data, other.data.ptr, 16, runtime.memcpyDeviceToHost)
        else:
            runtime.memcpy(other.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice)
        assert is_there(here)
        assert not is_there(there)


def test_a_blocking_copy_from_pageable_memory_may_return_before_it_arrives():
    with standin.late_streams("both"):
        stream, source, target, seen = (
            two_streams()[0],
            np.full(4, THERE, np.int32),
            ready(NOT_YET),
            pinned(),
        )
        runtime.memcpy(target.data.ptr, source.ctypes.data, 16, runtime.memcpyHostToDevice)
        start(stream, seen, target)  # does not wait for the default stream
        stream.synchronize()
        assert not is_there(seen)
        assert is_there(target.get())


def test_copies_on_the_device_and_fills_do_not_block():
    with standin.late_streams("both"):
        here, values, other = pinned(), ready(), ready(NOT_YET)
        start(cp.cuda.Stream.null, here, values)
        runtime.memcpy(other.data.ptr, values.data.ptr, 16, runtime.memcpyDeviceToDevice)
        runtime.memset(values.data.ptr, 7, 16)
        assert not is_there(here)
        assert is_there(other.get())
        assert values.get().tolist() == [0x07070707] * 4


def test_a_copy_of_rows_runs_late_too():
    with standin.late_streams("both"):
        stream, here, values = two_streams()[0], pinned(), ready()
        there = cupyx.empty_pinned((2, 4), np.int32)
        there[:] = NOT_YET
        start(stream, here, values)
        runtime.memcpy2DAsync(
            there.ctypes.data, 16, values.data.ptr, 8, 8, 2, runtime.memcpyDeviceToHost, stream.ptr
        )
        assert (there == NOT_YET).all()
        stream.synchronize()
        assert there.tolist() == [[THERE, THERE, NOT_YET, NOT_YET]] * 2


# ---- kernels and libraries


def test_kernels_products_and_sorts_run_late():
    work = {
        "kernel": lambda: cp.arange(4.0) + 1,
        "product": lambda: cp.eye(4) @ cp.arange(1.0, 5.0),
        "matrix product": lambda: (cp.eye(4) @ cp.diag(cp.arange(1.0, 5.0))).sum(axis=0),
        "sort": lambda: cp.sort(cp.asarray([3.0, 1.0, 4.0, 2.0])),
        "argsort": lambda: cp.argsort(cp.asarray([3.0, 1.0, 4.0, 2.0])) + 0.0,
    }
    answers = {name: make().get() for name, make in work.items()}
    for name, make in work.items():
        cp.get_default_memory_pool().free_all_blocks()  # the answer is still in its memory
        with standin.late_streams("both"):
            here, seen = make(), cupyx.empty_pinned(4, np.float64)
            side = cp.cuda.Stream(non_blocking=True)
            here.get(stream=side, out=seen, blocking=False)
            side.synchronize()  # nobody told it to wait
            assert np.isnan(seen).all(), name
            np.testing.assert_array_equal(here.get(), answers[name])


def test_a_scalar_of_the_host_is_read_by_the_call():
    with standin.late_streams("both"):
        a, c = cp.eye(3), cp.empty((3, 3))
        alpha, beta = np.array(2.0), np.array(0.0)
        handle = cp.cuda.Device().cublas_handle
        cp.cuda.cublas.dgemm(
            handle, 0, 0, 3, 3, 3, alpha.ctypes.data, a.data.ptr, 3, a.data.ptr, 3,
            beta.ctypes.data, c.data.ptr, 3,
        )  # fmt: skip
        alpha[...] = 5
        np.testing.assert_array_equal(c.get(), 2 * np.eye(3))


def test_other_library_calls_wait_for_their_stream():
    with standin.late_streams("both"):
        here, values = pinned(), ready()
        start(cp.cuda.Stream.null, here, values)
        values = cp.linalg.eigh(cp.diag(cp.arange(3.0)))[0]
        assert is_there(here)
        np.testing.assert_allclose(values.get(), [0, 1, 2])


def test_arguments_of_a_kernel_are_taken_by_the_launch():
    source = 'extern "C" __global__ void f(int* x, int v) { x[threadIdx.x] = v; }'
    kernel = cp.RawKernel(source, "f")
    with standin.late_streams("both"):
        x = cp.zeros(4, np.int32)
        for value in (5, THERE):
            kernel((1,), (4,), (x, np.int32(value)))
        assert is_there(x.get())


def test_a_kernel_that_fails_late_is_told_by_the_next_wait(capfd):
    kernel = cp.RawKernel('extern "C" __global__ void f() { assert(0); }', "f")
    with standin.late_streams("both"):
        kernel((1,), (1,), ())  # nothing is known yet
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorAssert"):
            cp.cuda.Stream.null.synchronize()
        assert "work that ran late failed" in capfd.readouterr().err
        cp.cuda.Stream.null.synchronize()  # told once
    with pytest.raises(cp.cuda.driver.CUDADriverError), standin.late_streams("side"):
        kernel((1,), (1,), ())  # the default stream runs at once


def test_what_a_launch_may_not_ask_for_is_told_at_once():
    kernel = cp.RawKernel('extern "C" __global__ void f() {}', "f")
    with standin.late_streams("both"), pytest.raises(cp.cuda.driver.CUDADriverError):
        kernel((1,), (2000,), ())


def test_host_functions_run_late_and_in_their_turn():
    with standin.late_streams("both"):
        stream, here, values, seen = two_streams()[0], pinned(), ready(), []
        stream.launch_host_func(lambda _: seen.append(is_there(here)), None)
        start(stream, here, values)
        stream.launch_host_func(lambda _: seen.append(is_there(here)), None)
        assert seen == []
        stream.synchronize()
        assert seen == [False, True]


def test_a_thread_may_ask_while_a_host_function_waits_for_python():
    with standin.late_streams("both"):
        stream, other = two_streams()
        stream.launch_host_func(lambda _: time.sleep(0.05), None)
        event = other.record()
        thread = threading.Thread(target=stream.synchronize)
        thread.start()
        while thread.is_alive():
            _ = event.done
        thread.join()


# ---- memory


def test_memory_is_freed_after_the_work_that_uses_it():
    with standin.late_streams("both"):
        stream, here = two_streams()[0], pinned()
        address = runtime.malloc(16)
        runtime.memsetAsync(address, 0, 16, stream.ptr)
        runtime.memcpyAsync(here.ctypes.data, address, 16, runtime.memcpyDeviceToHost, stream.ptr)
        runtime.free(address)
        assert here.tolist() == [0] * 4


def test_memory_of_an_asynchronous_pool_is_freed_in_the_order_of_its_stream():
    with standin.late_streams("both"):
        pool, stream, here = cp.cuda.MemoryAsyncPool(), two_streams()[0], pinned()
        with stream, cp.cuda.using_allocator(pool.malloc):
            values = cp.full(4, THERE, np.int32)
            start(stream, here, values)
            before = standin.bytes_in_use()
            del values
            assert standin.bytes_in_use() == before
            stream.synchronize()
        assert is_there(here)
        assert standin.bytes_in_use() < before


def test_memory_of_an_asynchronous_pool_is_not_there_before_its_turn():
    with standin.late_streams("default"):
        pool, side, source = cp.cuda.MemoryAsyncPool(), two_streams()[0], pinned(THERE)
        for waits in (False, True):
            with cp.cuda.using_allocator(pool.malloc):
                values = cp.empty(4, np.int32)
            if waits:
                side.wait_event(cp.cuda.Stream.null.record())
            values.set(source, stream=side)
            side.synchronize()
            assert (values.get()[0] == THERE) is np.bool_(waits)
            del values


@pytest.mark.parametrize("mode", standin.LATE_MODES)
def test_a_block_of_the_pool_goes_on_to_the_next_owner_on_its_stream(mode):
    with standin.late_streams(mode):
        total = cp.zeros(1000)
        for number in range(20):
            # Each temporary takes the memory of the one before, whose work may be to come.
            total += cp.full(1000, float(number)) * 2
        assert (total.get() == 380).all()


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_that_does_not_wait_for_its_new_memory_is_overwritten(waits):
    with standin.late_streams("default"):
        side, source = two_streams()[0], pinned(THERE)
        target = cp.empty(4, np.int32)
        if waits:
            side.wait_event(cp.cuda.Stream.null.record())
        target.set(source, stream=side)
        side.synchronize()
        assert target.get().tolist() == [THERE if waits else -1] * 4


@pytest.mark.parametrize("kept", [False, True])
def test_an_array_that_is_dropped_under_a_copy_is_overwritten(kept):
    with standin.late_streams("side"):
        side, here, values = two_streams()[0], pinned(), ready()
        start(side, here, values)
        if not kept:
            del values
        side.synchronize()
        assert here.tolist() == [THERE if kept else -1] * 4


@pytest.mark.parametrize("waits", [False, True])
def test_pinned_memory_that_goes_back_under_a_copy_is_counted(waits, capfd):
    with standin.late_streams("side"):
        side, source, target = two_streams()[0], pinned(THERE), ready(0)
        target.set(source, stream=side)
        if waits:
            side.synchronize()
        del source
        side.synchronize()
        assert standin.counters()["released_under_copies"] == (0 if waits else 1)
        assert target.get().tolist() == [THERE if waits else -1] * 4
    assert ("released under 1 copies" in capfd.readouterr().err) is not waits


def test_cupy_s_own_copies_outlive_their_memory():
    with standin.late_streams("both"):
        arrays = [cp.asarray(np.full(1000, number)) for number in range(30)]
        assert [int(array.get()[-1]) for array in arrays] == list(range(30))
        assert standin.counters()["released_under_copies"] == 0


# ---- two devices

TWO_DEVICES = """
import cupy as cp, cupyx, numpy as np
here, there = cp.cuda.Device(0), cp.cuda.Device(1)
seen = [cupyx.empty_pinned(4, np.int32) for _ in range(2)]
for buffer in seen:
    buffer[:] = -5
arrays, streams = [], []
for device in (here, there):
    with device:
        arrays.append(cp.full(4, 3, np.int32)), streams.append(cp.cuda.Stream(non_blocking=True))
        device.synchronize()
for device, array, stream, buffer in zip((here, there), arrays, streams, seen):
    with device:
        array.get(stream=stream, out=buffer, blocking=False)
%s
"""


@pytest.mark.parametrize(
    "code",
    [
        # A device waits for its own streams, not for another one's.
        "there.synchronize(); assert seen[0][0] == -5 and seen[1][0] == 3",
        # A stream may wait for an event of another device.
        """
with there:
    event = streams[1].record()
with here:
    streams[0].wait_event(event); streams[0].synchronize()
assert seen[0][0] == 3 and seen[1][0] == 3
""",
        # An event is recorded on a stream of its own device only.
        """
with here:
    event = cp.cuda.Event()
try:
    event.record(streams[1])
except cp.cuda.runtime.CUDARuntimeError as told:
    assert "InvalidResourceHandle" in str(told)
else:
    raise SystemExit("recorded")
""",
        # A kernel runs on a stream of the current device only.
        """
kernel = cp.RawKernel('extern "C" __global__ void f() {}', "f")
with here:
    try:
        kernel.kernel((1,), (1,), (), stream=streams[1])
    except cp.cuda.driver.CUDADriverError as told:
        assert "INVALID_HANDLE" in str(told)
    else:
        raise SystemExit("launched")
""",
    ],
)
def test_two_devices(code):
    done = in_a_new_process(TWO_DEVICES % code, STANDIN_DEVICES="2", STANDIN_LATE="both")
    assert done.returncode == 0, done.stderr
