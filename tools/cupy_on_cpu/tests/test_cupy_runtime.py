"""Streams, memory, limits, counters, and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import cupy as cp
import cupyx.scipy.fft
import numpy as np
import pytest
import standin


@pytest.fixture(autouse=True)
def empty_pools():
    cp.get_default_memory_pool().free_all_blocks()
    standin.reset()


def in_a_new_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- streams and events


def test_streams_and_events():
    stream, first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(), cp.cuda.Event()
    with stream:
        first.record()
        x = cp.ones(10) * 3
        second.record()
    stream.synchronize()
    assert second.done
    assert cp.cuda.get_elapsed_time(first, second) >= 0
    assert x.get(stream=stream).tolist() == [3] * 10


def test_pinned_memory():
    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(80), np.float64, 10)
    cp.arange(10.0).get(out=pinned)
    assert pinned.tolist() == list(range(10))


# ---- memory


def test_the_memory_pool_keeps_and_frees():
    pool = cp.get_default_memory_pool()
    used = pool.used_bytes()
    x = cp.zeros(1000)
    assert pool.used_bytes() == used + 8192
    del x
    assert pool.used_bytes() == used
    assert pool.total_bytes() >= used + 8192
    before = standin.bytes_in_use()
    pool.free_all_blocks()
    assert standin.bytes_in_use() < before


def test_the_asynchronous_pool():
    pool = cp.cuda.MemoryAsyncPool()
    with cp.cuda.using_allocator(pool.malloc):
        x = cp.arange(1000.0)
        assert float(x.sum()) == 499500
        assert pool.used_bytes() >= x.nbytes
        del x
    assert pool.used_bytes() == 0


def test_memory_info_follows_the_limit():
    with standin.limited_memory(1 << 24):
        free, total = cp.cuda.Device().mem_info
        assert total == 1 << 24
        assert free == total - standin.bytes_in_use()


def test_out_of_memory():
    with standin.limited_memory(standin.bytes_in_use() + (1 << 20)):
        cp.zeros(1 << 19, dtype=cp.uint8)
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            cp.zeros(1 << 21, dtype=cp.uint8)
    cp.zeros(1 << 21, dtype=cp.uint8)


def test_the_limit_can_come_from_the_environment():
    code = "import cupy; print(cupy.cuda.Device().mem_info[1]); cupy.zeros(1 << 26, 'u1')"
    done = in_a_new_process(code, STANDIN_MEMORY_LIMIT="32M")
    assert done.stdout.strip() == str(32 << 20)
    assert "OutOfMemoryError" in done.stderr


# ---- counters


def test_transfers_are_counted():
    x = np.ones(1000)
    standin.reset()
    a = cp.asarray(x)
    b = cp.empty_like(a)
    b.data.copy_from_device(a.data, a.nbytes)
    b.get()
    counted = standin.counters()
    assert counted["host_to_device_copies"] == 1
    assert counted["host_to_device_bytes"] == 8000
    assert counted["device_to_host_copies"] == 1
    assert counted["device_to_host_bytes"] == 8000
    assert counted["device_to_device_copies"] == 1
    assert counted["device_to_device_bytes"] == 8000


def test_launches_are_counted():
    x = cp.ones(10)
    standin.reset()
    x = x * 2
    x = x + 1
    assert standin.counters()["kernel_launches"] == 2
    assert standin.synchronizations() == 0


def test_waits_are_counted():
    x = cp.ones(10)
    total = x.sum()
    standin.reset()
    float(total)
    assert standin.synchronizations() == 1
    x.get()
    assert standin.synchronizations() == 2
    x.sum()
    standin.reset()
    cp.cuda.Device().synchronize()
    cp.cuda.Stream.null.synchronize()
    cp.cuda.Event().synchronize()
    counted = standin.counters()
    assert counted["device_synchronizations"] == 1
    assert counted["stream_synchronizations"] == 1
    assert counted["event_synchronizations"] == 1
    assert standin.synchronizations() == 1


def test_waits_for_events_behind_which_kernels_were_launched_are_counted_apart():
    x = cp.ones(10)
    standin.reset()
    x = x + 1
    event = cp.cuda.Event()
    event.record()
    x = x + 1
    event.synchronize()
    assert standin.counters()["overtaken_waits"] == 1
    assert standin.synchronizations() == 0
    # Nothing is behind the second one; and the work of the first wait still counts as undone.
    event.record()
    event.synchronize()
    assert standin.counters()["overtaken_waits"] == 1
    assert standin.synchronizations() == 1


def test_library_calls_are_counted():
    a = cp.ones((4, 4))
    standin.reset()
    a @ a
    assert standin.counters()["library_calls"] >= 1
    assert standin.synchronizations() == 0


# ---- what is missing


def test_a_missing_function_says_its_name(capfd):
    with pytest.raises(cp.cuda.cufft.CuFFTError):
        cupyx.scipy.fft.fft(cp.ones(8))
    assert "[standin] not implemented: cufft" in capfd.readouterr().err
    assert any(name.startswith("cufft") for name in standin.missing_functions())


def test_a_missing_function_that_cupy_looks_up_says_its_name(capfd):
    with pytest.raises(cp.cuda.cusolver.CUSOLVERError):
        cp.linalg.eig(cp.eye(3))
    assert "[standin] not implemented: cusolverDnXgeev_bufferSize" in capfd.readouterr().err


def test_a_missing_runtime_function_is_named_in_the_exception():
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaDeviceEnablePeerAccess"):
        cp.cuda.runtime.deviceEnablePeerAccess(0)


# ---- several devices


def test_one_device_unless_told():
    assert cp.cuda.runtime.getDeviceCount() == 1
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="InvalidDevice"):
        cp.cuda.Device(1).use()


def test_no_device_at_all():
    done = in_a_new_process("import cupy; cupy.zeros(3)", STANDIN_DEVICES="0")
    assert "cudaErrorNoDevice" in done.stderr


TWO_DEVICES = """
import cupy as cp, numpy as np, standin
kernel = cp.RawKernel('extern "C" __global__ void f(int* x) { x[threadIdx.x] = 1; }', "f")
with cp.cuda.Device(1):
    there = cp.arange(5)
assert there.device.id == 1
assert standin.bytes_in_use(1) > 0 and standin.bytes_in_use(0) == 0
here = cp.asarray(there)
assert cp.asnumpy(here).tolist() == [0, 1, 2, 3, 4]
%s
"""


def test_two_devices_have_memory_of_their_own():
    done = in_a_new_process(TWO_DEVICES % "", STANDIN_DEVICES="2")
    assert done.returncode == 0, done.stderr


OTHERS_KERNEL = """
kernel.compile()
function = kernel.kernel
with cp.cuda.Device(1):
    function((1,), (1,), (there,))  # a function belongs to the device it was loaded for
"""


@pytest.mark.parametrize("mix", ["here + there", "kernel((1,), (1,), (there,))", OTHERS_KERNEL])
def test_a_mix_of_devices_is_refused(mix):
    done = in_a_new_process(TWO_DEVICES % mix, STANDIN_DEVICES="2")
    assert done.returncode != 0
    told = ("ILLEGAL_ADDRESS", "INVALID_HANDLE")
    assert "device" in done.stderr.splitlines()[-1].lower() or any(
        one in done.stderr for one in told
    )


# ---- modes


OVERRUN = """
import cupy as cp, numpy as np, standin
kernel = cp.RawKernel('extern "C" __global__ void f(int* x, int* y, int i) { y[0] = x[i]; }', "f")
with standin.exact_allocations():
    kernel((1,), (1,), (cp.zeros(5, cp.int32), cp.zeros(1, cp.int32), np.int32(%d)))
    assert float(cp.arange(10.0).sum()) == 45
print("finished")
"""


def test_bounds_checks_find_a_read_past_an_array():
    done = in_a_new_process(OVERRUN % 4, STANDIN_CHECK_BOUNDS="1")
    assert done.stdout == "finished\n"
    assert done.returncode == 0
    done = in_a_new_process(OVERRUN % 5, STANDIN_CHECK_BOUNDS="1")
    assert (
        "kernel f: reads 4 bytes 0 bytes past the end of an allocation of 20 bytes" in done.stderr
    )


def test_one_block_of_a_launch_can_be_run():
    source = 'extern "C" __global__ void f(int* x) { x[blockIdx.y * 5 + blockIdx.x] = 1; }'
    kernel, x = cp.RawKernel(source, "f"), cp.zeros((2, 5), cp.int32)
    with standin.only_block(3):
        kernel((5, 2), (1,), (x,))
    assert x.get().tolist() == [[0, 0, 0, 1, 0]] * 2


def test_the_thread_order_can_be_set():
    source = 'extern "C" __global__ void last(int* x) { x[0] = threadIdx.x; }'
    kernel, x = cp.RawKernel(source, "last"), cp.zeros(1, cp.int32)
    for order, last in ((0, 31), (1, 0)):
        with standin.thread_order(order):
            kernel((1,), (32,), (x,))
        assert int(x[0]) == last


@pytest.mark.parametrize("order", ["1", "7"])
def test_cupy_does_not_depend_on_the_order_of_threads(order):
    code = """
import cupy as cp, numpy as np
x = np.random.default_rng(0).normal(size=(20, 3000)).astype("f4")
np.testing.assert_allclose(cp.asarray(x).sum(axis=1).get(), x.sum(axis=1), rtol=1e-4, atol=1e-3)
found = cp.argpartition(cp.asarray(x), 10, axis=1)[:, :10].get()
np.testing.assert_array_equal(np.sort(np.take_along_axis(x, found, 1), 1), np.sort(x, 1)[:, :10])
"""
    done = in_a_new_process(code, STANDIN_ORDER=order)
    assert done.returncode == 0, done.stderr
