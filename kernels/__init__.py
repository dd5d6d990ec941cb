"""CUDA C sources of the GPU backend; they are compiled on first use, never at install time."""

from __future__ import annotations

from importlib.resources import files


def names() -> tuple[str, ...]:
    """The kernel files that come with the package, without their ending."""
    return tuple(
        sorted(one.name[:-3] for one in files(__name__).iterdir() if one.name.endswith(".cu"))
    )


def source(name: str) -> str:
    """The text of one kernel file."""
    return files(__name__).joinpath(f"{name}.cu").read_text(encoding="utf-8")
