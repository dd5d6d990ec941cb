"""The CUDA devices of a machine: how many answer, what they are, and the backend of one."""

from __future__ import annotations

import cupy

from hybrid_gpu.backends.cupy_backend import CupyBackend
from hybrid_gpu.errors import BackendUnavailableError


def open_device(number: int) -> CupyBackend:
    """The backend of a CUDA device that answers.

    Raises
    ------
    BackendUnavailableError
        If there is no driver, no device, or not this one.
    """
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as fault:
        raise BackendUnavailableError(
            f"CuPy {cupy.__version__} is installed, but no GPU answers: {fault}. Check the driver "
            "with nvidia-smi, or use backend='numpy'."
        ) from fault
    if count == 0:
        raise BackendUnavailableError(
            "CuPy is installed, but this machine has no CUDA device. Use backend='numpy'."
        )
    if number >= count:
        raise BackendUnavailableError(
            f"there is no CUDA device {number}: this machine has {count}, numbered from 0. Use "
            f"backend='cupy:{count - 1}' or lower."
        )
    return CupyBackend(number)


def device_count() -> int:
    """CUDA devices that answer; 0 without a driver."""
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def describe_devices() -> list[tuple[str, str]]:
    """CuPy, CUDA, driver and every device, in words."""
    facts = [("cupy", str(cupy.__version__))]
    runtime = cupy.cuda.runtime
    try:
        facts.append(("cuda", f"{_dotted(runtime.runtimeGetVersion())} (runtime)"))
        facts.append(("driver", f"for CUDA up to {_dotted(runtime.driverGetVersion())}"))
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as fault:
        return [*facts, ("driver", f"no GPU answers: {fault}")]
    for number in range(count):
        about = runtime.getDeviceProperties(number)
        name = about["name"].decode()
        size = about["totalGlobalMem"] / 1e9
        facts.append(
            (f"gpu {number}", f"{name}, {size:.1f} GB, sm_{about['major']}{about['minor']}")
        )
    return facts


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
