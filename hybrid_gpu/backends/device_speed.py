"""How fast a GPU is: the time of some work by CUDA events, and the bandwidth of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

STANDIN = "stand-in"
"""What the names of devices that are no GPUs have in them (``tools/cupy_on_cpu``)."""


# Bytes that a device copies, some times, before work is timed: about a millisecond.
_AHEAD_BYTES, _AHEAD = 1 << 28, 4


def fastest_ms(run: Callable[[], Any], device: Any, runs: int) -> float:
    """Milliseconds of the fastest of some runs, after one that may compile."""
    with device:
        run()
        size = _AHEAD_BYTES if STANDIN not in device_name(device) else 1
        source, target = (cupy.zeros(size, cupy.uint8) for _ in range(2))
        times = []
        for _ in range(runs):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            # The host prepares the work meanwhile: on an idle device, its time would be counted.
            for _ in range(_AHEAD):
                cupy.copyto(target, source)
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(float(cupy.cuda.get_elapsed_time(start, end)))
        return min(times)


def copy_bandwidth(device: Any, size: int, runs: int) -> float:
    """Bytes per second that are read and written while ``size`` bytes are copied on the device."""
    with device:
        source, target = (cupy.zeros(size, cupy.uint8) for _ in range(2))
        milliseconds = fastest_ms(lambda: cupy.copyto(target, source), device, runs)
    return 2 * size / max(milliseconds / 1e3, 1e-9)


def stated_bandwidth(device: Any) -> float | None:
    """Bytes per second by the clock and the width of the memory; None if the device tells neither.

    Two transfers a clock, as in every memory of GPUs so far.
    """
    runtime = cupy.cuda.runtime
    attributes = runtime.cudaDevAttrMemoryClockRate, runtime.cudaDevAttrGlobalMemoryBusWidth
    kilohertz, bits = (int(runtime.deviceGetAttribute(one, device.id)) for one in attributes)
    return 2 * kilohertz * 1e3 * bits / 8 or None


def device_name(device: Any) -> str:
    """What the driver calls a device."""
    return str(cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode())
