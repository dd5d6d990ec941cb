"""What is left of a GPU's memory, whoever CuPy has it from: its own pools, CUDA's, or RMM's."""

from __future__ import annotations

import sys
from typing import Any

import cupy


def available_bytes(device: Any) -> int:
    """Bytes that can be allocated on a device, which is the current one.

    What a pool holds without using it can be had as well as what the device has free, if it is the
    pool that CuPy allocates from now.
    """
    free = int(device.mem_info[0])
    pool = _own_pool()
    if pool is not None:
        free += int(pool.free_bytes())
        # No limit is 0, or 2^64 - 1 of a pool of CUDA's.
        limit = int(pool.get_limit())
        return max(0, min(free, limit - int(pool.used_bytes()))) if limit else free
    rmm = sys.modules.get("rmm")
    if rmm is not None and _module(cupy.cuda.get_allocator()) == "rmm":
        return _left_by_rmm(rmm.mr.get_current_device_resource(), free)
    # Nothing is known of the allocator. What CuPy's pool holds is not its to give.
    return free


def release() -> None:
    """Give back what CuPy's pools hold and nobody uses, on the current device and on the host."""
    for pool in {id(pool): pool for pool in (_own_pool(), cupy.get_default_memory_pool())}.values():
        if pool is not None:
            pool.free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def _own_pool() -> Any:
    """The pool of CuPy's that arrays come from now, in this thread; None if it is another's."""
    owner = getattr(cupy.cuda.get_allocator(), "__self__", None)
    return owner if isinstance(owner, (cupy.cuda.MemoryPool, cupy.cuda.MemoryAsyncPool)) else None


def _module(function: Any) -> str:
    return str(getattr(function, "__module__", None)).partition(".")[0]


def _left_by_rmm(resource: Any, free: int) -> int:
    """What RMM can give: resources stand in a chain, and only some of them count what is in use.

    A pool that nobody counts for is taken to be full: an estimate that is too low makes smaller
    batches, one that is too high makes errors.
    """
    used, most = None, None
    while resource is not None:
        counted = _used_of(resource)
        used = used if counted is None else counted
        if hasattr(resource, "get_allocation_limit") and counted is not None:
            left = int(resource.get_allocation_limit()) - counted
            most = left if most is None else min(most, left)
        if hasattr(resource, "pool_size") and used is not None:
            free += max(0, int(resource.pool_size()) - used)
        resource = resource.get_upstream() if hasattr(resource, "get_upstream") else None
    return max(0, free if most is None else min(free, most))


def _used_of(resource: Any) -> int | None:
    """Bytes that a resource of RMM has given out; None if it does not count them."""
    if hasattr(resource, "get_allocated_bytes"):
        return int(resource.get_allocated_bytes())
    counts = getattr(resource, "allocation_counts", None)
    if counts is None:
        return None
    # A dictionary until RMM 24.
    return int(counts["current_bytes"] if isinstance(counts, dict) else counts.current_bytes)
