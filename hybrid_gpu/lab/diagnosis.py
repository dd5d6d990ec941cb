"""What this machine offers to the library, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from typing import Any

from hybrid_gpu.backends import INSTALL_CUPY, select_backend
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.threads import thread_count
from hybrid_gpu.errors import HybridGpuError


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine; ``advice`` is what to do about it, if anything."""

    name: str
    value: str
    advice: str = ""


def diagnose() -> tuple[Finding, ...]:
    """Facts about processor, memory, packages and GPUs, and what ``backend="auto"`` chooses."""
    memory = NumpyBackend().available_bytes() / 1e9
    return (
        Finding("hybrid-gpu", _version("hybrid-gpu") or "not installed"),
        Finding("python", platform.python_version()),
        Finding("processor", f"{platform.machine()}, {thread_count()} threads"),
        Finding("memory", f"{memory:.1f} GB available"),
        *(Finding(name, _version(name) or "missing") for name in ("numpy", "scipy")),
        *_gpu_findings(),
        _optional("nvtx", "ranges for Nsight Systems", "pip install nvtx"),
        _faiss_finding(),
        _optional("matplotlib", "pictures", "pip install 'hybrid-gpu[plots]'"),
        _optional("jinja2", "reports", "pip install 'hybrid-gpu[plots]'"),
        _choice(),
    )


def _gpu_findings() -> tuple[Finding, ...]:
    if importlib.util.find_spec("cupy") is None:
        return (Finding("cupy", "not installed", f"for an NVIDIA GPU: {INSTALL_CUPY}"),)
    try:
        from hybrid_gpu.backends.cupy_backend import describe_devices

        facts = describe_devices()
    except Exception as fault:  # anything: a broken CUDA installation fails in many ways
        return (Finding("cupy", f"installed, but does not load: {fault}", f"try {INSTALL_CUPY}"),)
    advice = "" if any(name.startswith("gpu") for name, _ in facts) else "check with nvidia-smi"
    return tuple(Finding(name, value, advice if name == "driver" else "") for name, value in facts)


def _faiss_finding() -> Finding:
    if importlib.util.find_spec("faiss") is None:
        return Finding(
            "faiss", "not installed", "for large databases: pip install 'hybrid-gpu[faiss]'"
        )
    import faiss

    kind = "with GPU support" if hasattr(faiss, "StandardGpuResources") else "CPU only"
    return Finding("faiss", f"{faiss.__version__}, {kind}")


def _optional(package: str, purpose: str, install: str) -> Finding:
    version = _version(package)
    if version is None:
        return Finding(package, "not installed", f"for {purpose}: {install}")
    return Finding(package, version)


def _choice() -> Finding:
    requested = os.environ.get("HYBRID_GPU_BACKEND")
    try:
        chosen: Any = select_backend("auto").name
    except (HybridGpuError, ValueError) as fault:
        return Finding("auto", "fails", str(fault))
    if requested:
        return Finding("auto", f"{chosen}, because HYBRID_GPU_BACKEND={requested}")
    if chosen == "numpy":
        return Finding("auto", "numpy, because no GPU answers through CuPy")
    return Finding("auto", f"{chosen}, because a GPU answers")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
