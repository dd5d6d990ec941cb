"""Look at, and set, the CUDA stand-in from Python; importable only where ``run.py`` runs a command.

A test with a budget::

    standin = pytest.importorskip("standin")

    standin.reset()
    index.search(queries)
    assert standin.counters()["device_to_host_copies"] == 2
    assert standin.synchronizations() <= 2
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# The library that CuPy runs on: its extension modules and this module share one copy.
try:
    _library = ctypes.CDLL("libcudastandin.so")
except OSError as error:
    raise ImportError(f"not on the CUDA stand-in, see tools/cupy_on_cpu/run.py: {error}") from error
_library.standin_counter_name.restype = ctypes.c_char_p
_library.standin_counter_value.restype = ctypes.c_uint64
_library.standin_memory_limit.restype = ctypes.c_size_t
_library.standin_set_memory_limit.argtypes = [ctypes.c_size_t]
_library.standin_bytes_in_use.restype = ctypes.c_size_t
_library.standin_missing_name.restype = ctypes.c_char_p


def counters() -> dict[str, int]:
    """Copies and bytes in each direction, launches, waits and allocations since ``reset()``."""
    return {
        _library.standin_counter_name(number).decode(): _library.standin_counter_value(number)
        for number in range(_library.standin_counter_count())
    }


def reset() -> None:
    """Set all counters to zero."""
    _library.standin_reset_counters()


def synchronizations() -> int:
    """How often the host waited for the device since ``reset()``.

    A stream, device or event that is synchronized, a copy that blocks, and a library call whose
    result comes back to the host count as one wait each, unless nothing was given to the device
    since the wait before.
    """
    return counters()["host_waits"]


def memory_limit() -> int:
    """The bytes of memory that every device has."""
    return _library.standin_memory_limit()


def set_memory_limit(limit: int) -> None:
    """Give every device this many bytes of memory; an allocation beyond it fails as on a GPU."""
    _library.standin_set_memory_limit(limit)


@contextmanager
def limited_memory(limit: int) -> Iterator[None]:
    """Set the memory of every device for the length of a block."""
    before = memory_limit()
    set_memory_limit(limit)
    try:
        yield
    finally:
        set_memory_limit(before)


def bytes_in_use(device: int = 0) -> int:
    """The bytes of memory that are handed out on a device, CuPy's pools included."""
    return _library.standin_bytes_in_use(device)


@contextmanager
def exact_allocations() -> Iterator[None]:
    """Let CuPy ask for every array by itself, for the length of a block.

    CuPy's memory pool rounds sizes up and puts arrays side by side, so that a kernel can run past
    the end of one array and stay inside the pool. Without the pool, every array has red zones.
    """
    import cupy

    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(None)
    try:
        yield
    finally:
        cupy.cuda.set_allocator(before)


@contextmanager
def thread_order(order: int) -> Iterator[None]:
    """Run the threads and blocks of kernels in another order, for the length of a block.

    0 is forward, 1 is backward, any other number is an order drawn from it.
    """
    before = _library.standin_set_order(order)
    try:
        yield
    finally:
        _library.standin_set_order(before)


def missing_functions() -> list[str]:
    """The CUDA functions that were called, and that the stand-in does not have."""
    return [
        _library.standin_missing_name(number).decode()
        for number in range(_library.standin_missing_count())
    ]
