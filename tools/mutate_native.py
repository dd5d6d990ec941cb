"""Do the tests of the native core notice mistakes? Makes one mistake at a time and runs them.

    python tools/mutate_native.py [source ...]       # e.g. step_sparse.h groups.c; all if none

Every ``<``, ``<=``, ``>`` and ``>=`` is shifted by one, every ``+ 1`` and ``- 1`` left out, every
loop that begins at 0 begins at 1, every ``+=`` is an ``=`` and every ``|`` an ``&``.
``tests/backends/test_native.py`` runs on the changed source at the plain level, with
AddressSanitizer in it, until a test fails, or the process crashes or hangs. Exits with 1 if a
mutant survives that is not in ``EQUIVALENT``, which says why no test can tell it from the original.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from native_checks import ROOT, RUN_TESTS, SOURCES, build_script

# What no test of values can see: which rows are asked for ahead of time, and the processor's level.
SKIPPED_FILES = ("cpu.c", "hybrid_gpu.h")
SKIPPED_LINES = ("PREFETCH", "HG_AHEAD", "#include")
MUTATIONS = (
    (r"(?<![<>\-=]) < (?!=)", " <= "),
    (r" <= ", " < "),
    (r"(?<![<>\-=]) > (?!=)", " >= "),
    (r" >= ", " > "),
    (r" \+ 1\b(?!\.)", ""),
    (r" - 1\b(?!\.)", ""),
    (r"(?<=for \(int64_t )(\w+) = 0;", r"\1 = 1;"),
    (r"(?<=for \(int )(\w+) = 0;", r"\1 = 1;"),
    (r" \+= ", " = "),
    (r"(?<!\|) \| (?!\|)", " & "),
    (r" \|= ", " &= "),
)
SAME = "the two are the same number then"
# "file: the line as it was -> as it is": why the two compute the same.
EQUIVALENT = {
    "groups.c: if (priority[e] > best[low[e]]) best[low[e]] = priority[e]; -> "
    "if (priority[e] >= best[low[e]]) best[low[e]] = priority[e];": SAME,
    "groups.c: if (priority[e] > best[high[e]]) best[high[e]] = priority[e]; -> "
    "if (priority[e] >= best[high[e]]) best[high[e]] = priority[e];": SAME,
    "groups.c: const uint64_t lower = left < right ? left : right, higher = left < right ? right : "
    "left; -> const uint64_t lower = left <= right ? left : right, higher = left < right ? right : "
    "left;": SAME,
    "groups.c: const uint64_t lower = left < right ? left : right, higher = left < right ? right : "
    "left; -> const uint64_t lower = left < right ? left : right, higher = left <= right ? right : "
    "left;": SAME,
}


@dataclass(frozen=True)
class Mutant:
    """One changed line of one source."""

    file: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """How it is named in ``EQUIVALENT``."""
        return f"{self.file}: {self.before} -> {self.after}"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every mutant of a source, line by line."""
    lines = (SOURCES / file).read_text(encoding="utf-8").split("\n")
    comment = False
    for number, line in enumerate(lines):
        code = line.split("/*")[0]
        if comment or any(word in line for word in SKIPPED_LINES):
            comment = comment and "*/" not in line
            continue
        comment = "/*" in line and "*/" not in line
        for pattern, replacement in MUTATIONS:
            for match in re.finditer(pattern, code):
                new = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                changed = new + line[len(code) :]
                source = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                before, after = (" ".join(part.rstrip("\\ ").split()) for part in (code, new))
                yield Mutant(file, before, after, source)


def outcome(mutant: Mutant | None, folder: Path) -> str:
    """What the tests say of a mutant; empty if they pass."""
    own = Path(tempfile.mkdtemp(dir=folder))
    try:
        sources = shutil.copytree(SOURCES, own / "cpu")
        if mutant is not None:
            (sources / mutant.file).write_text(mutant.source, encoding="utf-8")
        library = own / "libhybrid_gpu.so"
        script = build_script()
        command = ["gcc", "-shared", "-o", library, *script.UNIX_FLAGS, "-O1", "-w"]
        command += ["-fsanitize=address", f"-DHG_SOURCES={script.checksum()}u"]
        built = subprocess.run(
            [*map(str, command), *map(str, sorted(sources.glob("*.c"))), "-lm"],
            capture_output=True,
            check=False,
        )
        if built.returncode:
            return "does not compile"
        runtime = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        environment = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
        tests = ["tests/backends/test_native.py", "-k", "plain"]
        try:
            run = subprocess.run(
                [sys.executable, "-c", RUN_TESTS, str(library), *tests],
                env=environment,
                cwd=ROOT,
                capture_output=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "hangs"
        return "" if run.returncode == 0 else "fails"
    finally:
        shutil.rmtree(own, ignore_errors=True)


def main() -> None:
    """Try every mutant of the sources that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*")
    wanted = parser.parse_args().sources or sorted(
        path.name for path in SOURCES.glob("*.[ch]") if path.name not in SKIPPED_FILES
    )
    mutants = [mutant for file in wanted for mutant in mutants_of(file)]
    mutants = [mutant for mutant in mutants if mutant.key not in EQUIVALENT]
    with tempfile.TemporaryDirectory() as folder:
        told = outcome(None, Path(folder))
        if told:
            raise SystemExit(f"without any mistake, the tests already say: {told}")
        alive = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = pool.map(lambda mutant: outcome(mutant, Path(folder)), mutants)
            for mutant, told in zip(mutants, results, strict=True):
                if not told:
                    alive += 1
                    print(mutant.key, flush=True)
    print(f"{len(mutants) - alive} of {len(mutants)} mutants are noticed.")
    if alive:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
