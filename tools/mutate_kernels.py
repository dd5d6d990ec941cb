"""Do the tests of the kernels notice mistakes? Makes one mistake at a time and runs them.

    python tools/mutate_kernels.py [kernel ...]

Every ``__syncthreads()`` is taken out in turn; every ``<``, ``<=``, ``>`` and ``>=`` is shifted by
one; every ``+ 1``, ``- 1`` and ``+ threadIdx`` is left out; and every loop that begins at 0 or 1
begins one later or earlier. ``tests/backends/test_kernels.py`` runs on the changed source, float
and int only, until a test fails, or the process crashes or hangs. Exits with 1 if a mutant survives
that is not in ``EQUIVALENT``, which says for each of its entries why no test can tell it from the
original.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels" / "cuda"

MUTATIONS = (
    ("no barrier", r"__syncthreads\(\);", ";"),
    ("shifted", r"(?<![<>\-=]) < (?!=)", " <= "),
    ("shifted", r" <= ", " < "),
    ("shifted", r"(?<![<>\-=]) > (?!=)", " >= "),
    ("shifted", r" >= ", " > "),
    ("left out", r" \+ 1\b(?!\.)", ""),
    ("left out", r" - 1\b(?!\.)", ""),
    ("left out", r" \+ threadIdx\.[xy]\b", ""),
    ("other start", r"(?<=for \(int )(\w+) = 0;", r"\1 = 1;"),
    ("other start", r"(?<=for \(int )(\w+) = 1;", r"\1 = 0;"),
)

IDLE = "one more round, in which nothing is in range"
# "file: the line as it was -> as it is": why the two compute the same.
EQUIVALENT = {
    "wide_product: if (!Guarded || next + j < own) got[j] = *(const Pack*)(source + place); -> "
    "if (!Guarded || next + j <= own) got[j] = *(const Pack*)(source + place);": (
        "one load more, of the first row with a weight of 0"
    ),
    "wide_product: for (int offset = HG_LANES; offset < 32; offset *= 2) { -> "
    "for (int offset = HG_LANES; offset <= 32; offset *= 2) {": "a lane's own number once more",
    "wide_product: for (int done = 0; done < longest; done += HG_CHUNK) { -> "
    "for (int done = 0; done <= longest; done += HG_CHUNK) {": IDLE,
    "cg_direction: for (long long row = first; row < last; row += HG_FLIGHT * blockDim.y) { -> "
    "for (long long row = first; row <= last; row += HG_FLIGHT * blockDim.y) {": IDLE,
    "columns: if (rank > 0) { -> if (rank >= 0) {": (
        "sums over no rows; and a curvature below 0 moves a column as little as one of 0"
    ),
    "columns: __syncthreads(); "
    "if (threadIdx.x == 0 && threadIdx.y == 0) more = atomicAdd(ticket, 1) != takers - 1; -> ; "
    "if (threadIdx.x == 0 && threadIdx.y == 0) more = atomicAdd(ticket, 1) != takers - 1;": (
        "matters on a GPU, where blocks run side by side: in hard mode one ends before the next"
    ),
    "columns: for (; row + (HG_FLIGHT - 1) * lines < rows; row += HG_FLIGHT * lines) -> "
    "for (; row + (HG_FLIGHT) * lines < rows; row += HG_FLIGHT * lines)": (
        "right, but the last rows are added up one by one"
    ),
    "csr_spmm: while (width / 2 >= m) width /= 2; -> while (width / 2 > m) width /= 2;": (
        "right, but half of the threads have no column"
    ),
    "csr_spmm: for (long long base = (long long)blockIdx.x * blockDim.y; base < n; -> "
    "for (long long base = (long long)blockIdx.x * blockDim.y; base <= n;": IDLE,
    "laplacian_step: while (width / 2 >= m) width /= 2; -> while (width / 2 > m) width /= 2;": (
        "right, but half of the threads have no column"
    ),
    "laplacian_step: for (long long base = (long long)blockIdx.x * blockDim.y; base < n; -> "
    "for (long long base = (long long)blockIdx.x * blockDim.y; base <= n;": IDLE,
    "mutual: for (int base = 0; base < k; base += HG_WARP) { -> "
    "for (int base = 0; base <= k; base += HG_WARP) {": IDLE,
    "mutual: if (there >= 0 && similarities[id * k + there] > 0) -> "
    "if (there >= 0 && similarities[id * k + there] >= 0)": "0 instead of 0",
    "top_k: if (!add_up(lists, row, found, reaching > k, turn, &total)) break; -> "
    "if (!add_up(lists, row, found, reaching >= k, turn, &total)) break;": (
        "the k keys that reach one value reach the next ones too"
    ),
    "top_k: const bool tied = reaching > k; -> const bool tied = reaching >= k;": (
        "those that stay have numbers up to that of the last of them"
    ),
    "top_k: for (int base = 0; base < HG_HELD * team; base += team) { -> "
    "for (int base = 0; base <= HG_HELD * team; base += team) {": IDLE,
    "top_k: for (int base = begin; base < end; base += HG_ROUND * team) { -> "
    "for (int base = begin; base <= end; base += HG_ROUND * team) {": IDLE,
    "top_k: const int enough = soon < room ? soon : room; -> "
    "const int enough = soon <= room ? soon : room;": "the two are the same number then",
    "top_k: const int end = n - begin < length ? n : begin + length; -> "
    "const int end = n - begin <= length ? n : begin + length;": "the two are the same number then",
    "top_k: const int length = (n - 1) / parts + 1, begin = part * length; -> "
    "const int length = (n) / parts + 1, begin = part * length;": "parts that are longer by one",
    "top_k: if (key == least && number(lists.number_of, place) >= bound) continue; -> "
    "if (key == least && number(lists.number_of, place) > bound) continue;": (
        "the item of that number was read before"
    ),
    "top_k: if (thread < width) { -> if (thread <= width) {": "two threads store the same values",
    "top_k: if (thread < width && exists) { -> if (thread <= width && exists) {": (
        "two threads store the same values"
    ),
    "top_k: number(number_of, at[left]) < number(number_of, at[right])); -> "
    "number(number_of, at[left]) <= number(number_of, at[right]));": (
        "only the padding has a place twice"
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One changed line of one kernel file."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        return f"{self.file}: {self.before} -> {self.after}"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every mutant of a kernel file, line by line."""
    lines = (KERNELS / f"{file}.cu").read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if code.lstrip().startswith("#"):
            continue
        for kind, pattern, replacement in MUTATIONS:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                source = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                # All barriers read alike: the line that follows tells which one it is.
                follows = f" {lines[number + 1].strip()}" if changed.strip() == ";" else ""
                texts = (code.strip() + follows, changed.strip() + follows)
                yield Mutant(file, number + 1, kind, *texts, source)


def outcome(file: str, source: str | None, folder: Path, timeout: float) -> str:
    """What the tests of a kernel file say of a source; empty if they pass."""
    kernels = Path(tempfile.mkdtemp(dir=folder))
    for path in KERNELS.glob("*.cu"):
        shutil.copy(path, kernels)
    if source is not None:
        (kernels / f"{file}.cu").write_text(source, encoding="utf-8")
    environment = {
        **os.environ,
        "HYBRID_GPU_KERNELS": str(kernels),
        # Hundreds of compiled mutants have no place in the user's cache.
        "CUPY_ON_CPU_CACHE": str(folder / "cache"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--noconftest", "--tb=line"]
    command += [
        "-p",
        "no:cacheprovider",
        "-k",
        f"test_{file}",
        str(ROOT / "tests" / "backends" / "test_kernels.py"),
    ]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        shutil.rmtree(kernels)
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"crashes with signal {-done.returncode}"
    failed = re.search(r"FAILED \S+::(\S+)", done.stdout)
    if failed is None:
        raise RuntimeError(f"pytest could not run:\n{done.stdout}{done.stderr}")
    if "static assertion failed" in done.stdout:
        return "a static assertion"
    if "KernelCompileError" in done.stdout:
        raise RuntimeError(f"a mutant does not compile:\n{done.stdout}")
    return failed[1]


def main() -> int:
    """Run all mutants and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = sorted(path.stem for path in KERNELS.glob("*.cu"))
    parser.add_argument("kernels", nargs="*", metavar="kernel", help=f"of {', '.join(known)}")
    files = parser.parse_args().kernels or known
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        timeouts = {}
        for file in files:
            start = time.monotonic()
            problem = outcome(file, None, folder, timeout=600)
            if problem:
                print(f"{file}: the tests fail without any change: {problem}")
                return 1
            timeouts[file] = 20 + 3 * (time.monotonic() - start)
        mutants = [mutant for file in files for mutant in mutants_of(file)]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            results = pool.map(
                lambda one: outcome(one.file, one.source, folder, timeouts[one.file]), mutants
            )
            survivors = [one for one in zip(mutants, results, strict=True) if not report(*one)]
    unexplained = [mutant for mutant, _ in survivors if mutant.key not in EQUIVALENT]
    seen = {mutant.key for mutant, _ in survivors}
    stale = [key for key in EQUIVALENT if key.split(":")[0] in files and key not in seen]
    print(
        f"\n{len(mutants)} mutants: {len(mutants) - len(survivors)} noticed, "
        f"{len(survivors) - len(unexplained)} equivalent, {len(unexplained)} not noticed; "
        f"{time.monotonic() - began:.0f} s"
    )
    for mutant in unexplained:
        print(f'NOT NOTICED  line {mutant.line}  "{mutant.key}"')
    for key in stale:
        print(f"listed as equivalent, but noticed or gone: {key}")
    return 1 if unexplained or stale else 0


def report(mutant: Mutant, result: str) -> bool:
    """Print one line on a mutant; whether it was noticed."""
    verdict = result or EQUIVALENT.get(mutant.key, "NOT NOTICED")
    print(f"{mutant.file}:{mutant.line}: {mutant.kind}: {mutant.after}\n    {verdict}", flush=True)
    return bool(result)


if __name__ == "__main__":
    sys.exit(main())
