"""What this machine offers to the library, what is missing, and how to get it."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_gpu.backends import INSTALL_CUPY, select_backend
from hybrid_gpu.backends.native import core_state
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.threads import thread_count
from hybrid_gpu.errors import HybridGpuError, install_line


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
        _native_finding(),
        *_gpu_findings(),
        _optional("nvtx", "ranges for Nsight Systems", "pip install nvtx"),
        _faiss_finding(),
        _optional("matplotlib", "pictures", install_line("plots")),
        _optional("jinja2", "reports", install_line("plots")),
        _choice(),
    )


def _native_finding() -> Finding:
    try:
        state = core_state()
    except HybridGpuError as fault:
        return Finding("native core", "missing", str(fault))
    if state.core is None:
        return Finding("native core", f"{state.reason}: NumPy does its work, slower", state.advice)
    return Finding("native core", state.core.level)


def _gpu_findings() -> tuple[Finding, ...]:
    if importlib.util.find_spec("cupy") is None:
        return (Finding("cupy", "not installed", f"for an NVIDIA GPU, {INSTALL_CUPY}"),)
    clash = _clash("cupy")
    if clash is not None:
        return (clash,)
    try:
        from hybrid_gpu.backends.devices import describe_devices

        facts = describe_devices()
    except Exception as fault:  # anything: a broken CUDA installation fails in many ways
        return (Finding("cupy", f"installed, but does not load: {fault}", _reinstall("cupy")),)
    advice = "" if any(name.startswith("gpu") for name, _ in facts) else "check with nvidia-smi"
    return tuple(Finding(name, value, advice if name == "driver" else "") for name, value in facts)


def _faiss_finding() -> Finding:
    clash = _clash("faiss")  # before the import: files of two builds may end the process
    if clash is not None:
        return clash
    if importlib.util.find_spec("faiss") is None:
        return Finding(
            "faiss", "not installed", f"for large databases, {install_line(_extra_with_faiss())}"
        )
    try:
        import faiss

        kind = "with GPU support" if hasattr(faiss, "StandardGpuResources") else "CPU only"
        return Finding("faiss", f"{faiss.__version__}, {kind}")
    except Exception as fault:  # anything: libraries that are missing fail in many ways
        return Finding("faiss", f"installed, but does not load: {fault}", _reinstall("faiss"))


def _clash(module: str) -> Finding | None:
    """Two packages that write to the files of one module, or one that another has written over."""
    builds = _builds(module)
    names = " and ".join(f"{name} {build.version}" for name, build in builds.items())
    if len(builds) > 1:
        fault = f"{names} are installed: they overwrite each other's files"
    elif any(_is_damaged(build, module) for build in builds.values()):
        fault = f"{names}, with files that are missing or of another package"
    else:
        return None
    return Finding(module, fault, _reinstall(module))


def _reinstall(module: str) -> str:
    extra = _extra_with_faiss() if module == "faiss" else "cuda12"
    names = " ".join(_builds(module)) or module
    return f"pip uninstall -y {names}, then {install_line(extra)}"


def _extra_with_faiss() -> str:
    """The extra that brings the FAISS for the CuPy that is installed, if any is."""
    cupy = " ".join(_builds("cupy"))
    return next((extra for extra in ("cuda12", "cuda13") if extra in cupy), "faiss")


def _builds(module: str) -> dict[str, importlib.metadata.Distribution]:
    """The installed packages that hold a module, such as faiss-cpu and faiss-gpu, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for package in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"] or "").lower()
        if re.fullmatch(rf"{module}(-(cpu|gpu|cuda|rocm).*)?", name):
            found.setdefault(name, package)
    return dict(sorted(found.items()))


def _is_damaged(package: importlib.metadata.Distribution, module: str) -> bool:
    """Whether files of a package are not there, or not of the size that it came with."""
    # Not package.files, which leaves out what is missing from Python 3.12 on.
    for path, _, size in csv.reader((package.read_text("RECORD") or "").splitlines()):
        if path.startswith(f"{module}/") and size:
            file = Path(str(package.locate_file(path)))
            if not file.is_file() or file.stat().st_size != int(size):
                return True
    return False


def _optional(package: str, purpose: str, install: str) -> Finding:
    version = _version(package)
    if version is None:
        return Finding(package, "not installed", f"for {purpose}, {install}")
    return Finding(package, version)


def _choice() -> Finding:
    """What backend='auto' takes here, and why."""
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
