"""Instructions of a CUDA kernel, counted in the machine code of NVIDIA's own compiler.

Needs nvcc, and nvdisasm: on the PATH, or that of the wheel ``nvidia-cuda-nvdisasm``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

KERNELS = Path(__file__).parent.parent / "kernels" / "cuda"
# What CuPy gives to NVRTC, as far as it changes the code.
FLAGS = ("-std=c++17", "-ftz=true")

_LABEL = re.compile(r"^\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA\b.*?\(?(\.L_x_\d+)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
_USAGE = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass
class Loop:
    """A loop of the machine code; the kernel as a whole is the outermost one.

    ``code`` are its instructions without those of the loops inside.
    """

    first: int
    last: int
    code: list[str] = field(default_factory=list)
    inside: list[Loop] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Instructions of one turn, without the loops inside."""
        return len(self.code)

    def count(self, *names: str) -> int:
        """Its own instructions whose name begins with one of the names."""
        return sum(line.startswith(names) for line in self.code)

    def words(self, *names: str) -> int:
        """Words of 4 bytes that a thread moves in its own instructions of these names."""
        widths = {"64": 2, "128": 4}
        lines = [line.split()[0].split(".") for line in self.code if line.startswith(names)]
        return sum(next((widths[p] for p in parts if p in widths), 1) for parts in lines)

    def waits(self) -> int:
        """How often a turn waits for loads from global memory, which it then has all at once.

        Instructions of a warp are issued in order: the first that needs a load waits for it, and
        loads behind it are not under way yet.
        """
        under_way: set[int] = set()
        waits = 0
        for line in self.code:
            used = {int(number) for number in _REGISTER.findall(line)}
            if line.startswith("LDG"):
                first = int(_REGISTER.findall(line)[0])
                if (used - {first}) & under_way:
                    waits, under_way = waits + 1, set()
                width = next((int(w) // 32 for w in ("64", "128") if f".{w}" in line), 1)
                under_way |= set(range(first, first + width))
            elif used & under_way:
                waits, under_way = waits + 1, set()
        return waits

    def all(self) -> Iterator[Loop]:
        """The loop and all inside, outermost first."""
        yield self
        for loop in self.inside:
            yield from loop.all()


@dataclass(frozen=True)
class Code:
    """One compiled kernel."""

    loops: Loop
    registers: int
    shared: int
    spills: int


@cache
def compiled(file: str, name: str, architecture: int, defines: tuple[str, ...] = ()) -> Code:
    """A kernel of a file, compiled for an architecture (80, 89, 90)."""
    nvcc, nvdisasm = shutil.which("nvcc"), disassembler()
    if nvcc is None:
        sys.exit("nvcc is not on the PATH: it counts the instructions of the kernels.")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        flags = (*FLAGS, *(f"-D{define}" for define in defines), f"-arch=sm_{architecture}")
        command = [nvcc, "-cubin", "-Xptxas", "-v", *flags, str(KERNELS / f"{file}.cu")]
        told = _run([*command, "-o", str(cubin)]).stderr
        text = _run([nvdisasm, "-c", str(cubin)]).stdout
    usage = next(found for found in _USAGE.finditer(told) if found[1] == name)
    shared = re.search(r"(\d+) bytes smem", usage["rest"])
    return Code(
        loops=loops_of(text, name),
        registers=int(usage[3]),
        shared=int(shared[1]) if shared else 0,
        spills=int(usage[2]),
    )


def disassembler() -> str:
    """nvdisasm, from the PATH or from its wheel."""
    found = shutil.which("nvdisasm")
    if found is None:
        places = (Path(place) / "nvidia" for place in sys.path)
        found = next((str(p) for place in places for p in place.glob("*/bin/nvdisasm")), None)
    if found is None:
        sys.exit("nvdisasm is missing. Get it with: python -m pip install nvidia-cuda-nvdisasm")
    return found


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)


def loops_of(text: str, name: str) -> Loop:
    """The nest of loops of one kernel in the text of nvdisasm.

    A loop is what lies between a label and the last branch back to it.
    """
    body = text[text.index(f".text.{name}:") :]
    end = body.find("\n.text.", 1)
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in body[: end if end > 0 else None].splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := _INSTRUCTION.match(line):
            code.append(found[1])
    # What follows the last exit is padding: a branch to itself, and nothing.
    while code and code[-1].split()[0] in ("NOP", "BRA"):
        code.pop()
    ends: dict[int, int] = {}
    for place, line in enumerate(code):
        branch = _BRANCH.search(line)
        if branch and labels.get(branch[1], place + 1) <= place:
            ends[labels[branch[1]]] = place
    whole = Loop(0, len(code) - 1)
    for first, last in sorted(ends.items(), key=lambda one: (one[0], -one[1])):
        _innermost(whole, first, last).inside.append(Loop(first, last))
    for place, line in enumerate(code):
        _innermost(whole, place, place).code.append(_PREDICATE.sub("", line))
    return whole


def _innermost(loop: Loop, first: int, last: int) -> Loop:
    """The smallest loop that holds a range of instructions."""
    for inner in loop.inside:
        if inner.first <= first and last <= inner.last:
            return _innermost(inner, first, last)
    return loop
