"""Compile every kernel with NVIDIA's own compiler, for every GPU that matters; no GPU needed.

    python -m pip install nvidia-cuda-nvrtc-cu12
    python tools/nvrtc_check.py

NVRTC is called by ctypes, with the flags that CuPy gives it, for all types of all kernels.
Registers and stack of each are read from the compiled code and held against a budget: 64 registers,
because 1024 threads then fill the 65,536 registers of a multiprocessor, and no stack, because that
is where registers are spilled to. Where nvcc is on the PATH, its ptxas gives its own count of
registers and spills for sm_80 and sm_90 as well. Exits with 1 if anything fails or exceeds
the budget. Takes about a minute of one core.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels" / "cuda"
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
PTXAS_ARCHITECTURES = (80, 90)
# What CuPy 14 passes to NVRTC for a RawModule.
CUPY_FLAGS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")
REGISTERS_AT_MOST = 64
TYPES = {"HG_VALUE": ("float", "double"), "HG_INDEX": ("int", "long long")}
# Columns of a thread in one load of 16 bytes or less, and threads of a row: what is launched.
PACKS = {"float": ("4", "2", "1"), "double": ("2", "1")}
LANES = ("32", "16", "8", "4")

# Of the records in the section .nv.info: what they tell of a kernel.
RECORD_OF_ONE_KERNEL, FRAME_BYTES, REGISTER_COUNT = 0x04, 0x11, 0x2F
SYMBOL_TABLE = 2


@dataclass(frozen=True)
class Usage:
    """What one kernel takes; spills are None where only the stack is known."""

    registers: int
    stack: int
    spills: int | None = None

    @property
    def in_budget(self) -> bool:
        return self.registers <= REGISTERS_AT_MOST and self.stack == 0 and not self.spills


class CompileError(Exception):
    """The compiler refused a source; the message is the compiler's."""


class Nvrtc:
    """NVRTC of the wheel, or of the path that is given."""

    def __init__(self, path: str | None) -> None:
        self.library = ctypes.CDLL(path or str(wheel_library()))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise CompileError(f"{name}: {self.library.nvrtcGetErrorString(status).decode()}")

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> tuple[int, ...]:
        count = ctypes.c_int()
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def compile(self, source: str, name: str, flags: tuple[str, ...]) -> bytes:
        """The machine code of a source; warnings count as errors."""
        program = ctypes.c_void_p()
        handle = ctypes.byref(program)
        self.call(
            "nvrtcCreateProgram", handle, source.encode(), f"{name}.cu".encode(), 0, None, None
        )
        try:
            options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            status = self.library.nvrtcCompileProgram(program, len(flags), options)
            log = self._text(program, "nvrtcGetProgramLog")[:-1].decode().strip()
            if status or log:
                raise CompileError(log or self.library.nvrtcGetErrorString(status).decode())
            return self._text(program, "nvrtcGetCUBIN")
        finally:
            self.library.nvrtcDestroyProgram(handle)

    def _text(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"{name}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(name, program, buffer)
        return buffer.raw


def wheel_library() -> Path:
    """The library in the wheel nvidia-cuda-nvrtc-cu12."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        spec = None
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () for path in Path(folder).glob("lib/libnvrtc.so.*")]
    if not found:
        sys.exit(
            "NVRTC is not installed. Get it with: python -m pip install nvidia-cuda-nvrtc-cu12 "
            "(90 MB; no GPU or driver needed), or name its library with --library."
        )
    return found[0]


def usage_of(cubin: bytes) -> dict[str, Usage]:
    """Registers and stack of each kernel, as the driver reads them from the machine code."""
    sections = _sections(cubin)
    symbols, names = next(
        (cubin[one.begin : one.end], sections[one.link])
        for one in sections
        if one.kind == SYMBOL_TABLE
    )
    info = next(one for one in sections if one.name == ".nv.info")
    found: dict[int, dict[int, int]] = {}
    at = info.begin
    while at < info.end:
        form, attribute, size = struct.unpack_from("<BBH", cubin, at)
        if form == RECORD_OF_ONE_KERNEL:
            if attribute in (FRAME_BYTES, REGISTER_COUNT):
                symbol, value = struct.unpack_from("<II", cubin, at + 4)
                found.setdefault(symbol, {})[attribute] = value
            at += size
        at += 4
    result = {}
    for symbol, values in found.items():
        if REGISTER_COUNT in values:
            name = _text_at(cubin, names.begin + struct.unpack_from("<I", symbols, 24 * symbol)[0])
            result[name] = Usage(values[REGISTER_COUNT], values.get(FRAME_BYTES, 0))
    return result


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    begin: int
    end: int
    link: int


def _sections(elf: bytes) -> list[_Section]:
    """The section table of a 64-bit ELF file."""
    table = struct.unpack_from("<Q", elf, 40)[0]
    size, count, of_names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + size * i) for i in range(count)]
    names = headers[of_names][4]
    return [
        _Section(_text_at(elf, names + one[0]), one[1], one[4], one[4] + one[5], one[6])
        for one in headers
    ]


def _text_at(data: bytes, begin: int) -> str:
    return data[begin : data.index(b"\0", begin)].decode()


def usage_by_ptxas(path: Path, flags: tuple[str, ...]) -> dict[str, Usage]:
    """Registers, stack and spills of each kernel of a file, as nvcc's ptxas tells them."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["nvcc", "-cubin", "-Xptxas", "-v", *flags, str(path)]
        command += ["-o", str(Path(folder) / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr)
    pattern = re.compile(
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        re.DOTALL,
    )
    return {
        name: Usage(int(registers), int(stack), int(stores) + int(loads))
        for name, stack, stores, loads, registers in pattern.findall(done.stderr)
    }


def variants(source: str) -> list[dict[str, str]]:
    """Every choice of types, and of the shapes in use, for the macros that a source has."""
    macros = [macro for macro in TYPES if f"#define {macro} " in source]
    choices = itertools.product(*(TYPES[macro] for macro in macros))
    types = [dict(zip(macros, choice, strict=True)) for choice in choices]
    return [one | shape for one in types for shape in shapes(source, one)]


def shapes(source: str, types: dict[str, str]) -> list[dict[str, str]]:
    """The shapes that a source is compiled for; narrower packs of 32-bit indices only."""
    if "#define HG_PACK " not in source:
        return [{}]
    packs = PACKS[types["HG_VALUE"]]
    if "#define HG_LANES " not in source:
        return [{"HG_PACK": pack} for pack in packs]
    wide = [{"HG_PACK": packs[0], "HG_LANES": lanes} for lanes in LANES]
    narrow = [{"HG_PACK": pack, "HG_LANES": LANES[0]} for pack in packs[1:]]
    return [*wide, *narrow] if types["HG_INDEX"] == "int" else wide


def show(file: str, types: dict[str, str], target: str, usages: dict[str, Usage]) -> bool:
    """Print one line for each kernel; whether all are within the budget."""
    for name, usage in usages.items():
        spills = "" if usage.spills is None else f"  {usage.spills} bytes of spills"
        verdict = "compiled" if usage.in_budget else "OVER BUDGET"
        kernel = name if name == file else f"{file}: {name}"
        print(
            f"{kernel:28} {', '.join(types.values()):22} {target:12} {verdict:12}"
            f"{usage.registers:3} registers  {usage.stack} bytes of stack{spills}"
        )
    return bool(usages) and all(usage.in_budget for usage in usages.values())


def main() -> int:
    """Compile everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", help="path of libnvrtc, if not the wheel's")
    nvrtc = Nvrtc(parser.parse_args().library)
    supported = nvrtc.architectures()
    missing = [number for number in ARCHITECTURES if number not in supported]
    nvcc = shutil.which("nvcc") is not None
    targets = [("nvrtc", number) for number in ARCHITECTURES if number in supported]
    targets += [("ptxas", number) for number in PTXAS_ARCHITECTURES if nvcc]
    done, failures, most = 0, [], 0
    for path in sorted(KERNELS.glob("*.cu")):
        source = path.read_text(encoding="utf-8")
        expected = set(re.findall(r"__launch_bounds__\([^)]*\)\s*(\w+)\(", source))
        for types, (tool, number) in itertools.product(variants(source), targets):
            target = f"sm_{number}" + (" ptxas" if tool == "ptxas" else "")
            flags = tuple(f"-D{macro}={value}" for macro, value in types.items())
            flags = (*flags, f"-arch=sm_{number}")
            try:
                if tool == "ptxas":
                    usages = usage_by_ptxas(path, ("-std=c++17", "-ftz=true", *flags))
                else:
                    usages = usage_of(nvrtc.compile(source, path.stem, (*CUPY_FLAGS, *flags)))
                good = show(path.stem, types, target, usages) and set(usages) == expected
                most = max(most, *(usage.registers for usage in usages.values()))
            except CompileError as fault:
                print(f"{path.stem}, {', '.join(types.values())}, {target}: FAILED\n{fault}")
                good = False
            done += 1
            if not good:
                failures.append(f"{path.stem} ({', '.join(types.values())}) for {target}")
    print(f"\nNVRTC {nvrtc.version()}: {done - len(failures)} of {done} compilations are right;")
    print(f"at most {most} registers (budget {REGISTERS_AT_MOST}).")
    if missing:
        print(f"This NVRTC does not know: {', '.join(f'sm_{number}' for number in missing)}.")
    if not nvcc:
        print("Spills by ptxas: skipped, because nvcc is not on the PATH.")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures or missing else 0


if __name__ == "__main__":
    sys.exit(main())
