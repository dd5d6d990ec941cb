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
from typing import Any

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
_library.standin_late.restype = ctypes.c_char_p
_library.standin_set_only_block.restype = ctypes.c_int64
_library.standin_set_only_block.argtypes = [ctypes.c_int64]
_library.standin_set_late.argtypes = [ctypes.c_char_p]
_library.standin_poison_device.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_int,
]
_library.standin_poison_pinned.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


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
    """How often the host waited for the device while that had nothing else to do.

    A stream, device or event that is synchronized, a copy that blocks, and a library call whose
    result comes back to the host count as one wait each, unless nothing was given to the device
    since the wait before. Events behind which kernels were launched meanwhile do not count: the
    device goes on. They are the ``overtaken_waits`` of ``counters()``.
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


@contextmanager
def only_block(number: int) -> Iterator[None]:
    """Run only the blocks whose ``blockIdx.x`` is this number, for the length of a block.

    For the last entries of arrays that are too large to be worked on as a whole.
    """
    before = _library.standin_set_only_block(number)
    try:
        yield
    finally:
        _library.standin_set_only_block(before)


LATE_MODES = ("side", "default", "both", "random:7")


def late_mode() -> str:
    """Which streams run late: ``"off"``, or a mode of ``late_streams``."""
    return _library.standin_late().decode()


@contextmanager
def late_streams(mode: str) -> Iterator[None]:
    """Run the work of streams as late as CUDA allows, for the length of a block.

    ``"side"``: the streams that a program makes; ``"default"``: the default stream; ``"both"``;
    ``"random:7"``: both, and after each call some of the work is done, drawn from the seed 7.
    Memory that goes back to a pool of CuPy is poisoned, as if somebody else took it at once.
    """
    before = late_mode()
    _set_late_mode(mode)
    try:
        with watched_pools():
            yield
    finally:
        _set_late_mode(before)


def _set_late_mode(mode: str) -> None:
    if not _library.standin_set_late(mode.encode()):
        raise ValueError(f"a mode of late streams is one of {LATE_MODES} or 'off'; got {mode!r}")


@contextmanager
def watched_pools() -> Iterator[None]:
    """Let CuPy's pools tell the stand-in whose memory is whose, for the length of a block.

    A pool gives a block of device memory to the next owner at once, because both use it in the
    order of one stream. So the block is poisoned there, in that order, when it is given out and
    when it comes back: a copy on another stream that did not wait shows as NaN or -1. Pinned memory
    is poisoned as soon as it comes back, and a copy that still uses it counts as
    ``released_under_copies``.
    """
    import cupy

    device_before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(_watched_malloc)
    cupy.cuda.set_pinned_memory_allocator(_watched_pinned_malloc)
    try:
        yield
    finally:
        cupy.cuda.set_allocator(device_before)
        # CuPy does not tell which one it had: its own pool, unless somebody changed it.
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


class _DeviceBlock:
    """A block of CuPy's pool that is poisoned at both ends of its life."""

    def __init__(self, pointer: Any, stream: int) -> None:
        self.pointer, self.stream = pointer, stream
        self.poison()

    def poison(self) -> None:
        memory = self.pointer.mem
        _library.standin_poison_device(memory.ptr, memory.size, self.stream, memory.device_id)

    def __del__(self) -> None:
        if _library is not None:  # it is gone at the end of Python
            self.poison()


def _watched_malloc(size: int) -> Any:
    import cupy

    pointer = cupy.get_default_memory_pool().malloc(size)
    if pointer.ptr == 0:
        return pointer
    block = _DeviceBlock(pointer, cupy.cuda.get_current_stream().ptr)
    memory = cupy.cuda.UnownedMemory(pointer.ptr, pointer.mem.size, block, pointer.device_id)
    return cupy.cuda.MemoryPointer(memory, 0)


class _PinnedBlock:
    """A block of CuPy's pinned pool that is poisoned when it goes back."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.ptr, self.size = pointer.mem.ptr, pointer.mem.size

    def __del__(self) -> None:
        if self.ptr:
            _library.standin_poison_pinned(self.ptr, self.size)


def _watched_pinned_malloc(size: int) -> Any:
    import cupy

    pointer = cupy.get_default_pinned_memory_pool().malloc(size)
    return cupy.cuda.PinnedMemoryPointer(_PinnedBlock(pointer), 0)


def missing_functions() -> list[str]:
    """The CUDA functions that were called, and that the stand-in does not have."""
    return [
        _library.standin_missing_name(number).decode()
        for number in range(_library.standin_missing_count())
    ]
