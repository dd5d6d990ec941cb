"""Do the tests of the core notice mistakes? Makes one mistake at a time and runs them.

    python tools/mutate_core.py                        the sample of every CI run: about 3 minutes
    python tools/mutate_core.py --sample 300 --seed 8  another, larger one
    python tools/mutate_core.py --all aggregation      every mutant of a module
    python tools/mutate_core.py --since main           every mutant of the lines that changed since

A mutant differs from the source in one place: a comparison, an operator, a constant, a negation, a
statement or call left out, ``min`` for ``max``, ``and`` for ``or``, two arguments the other way
round. The tests of its module run on it, on the NumPy backend, until one fails, or the process
crashes or hangs; if none does, those of the whole core. Exits with 1 if a mutant survives that is
not in ``EQUIVALENT``, which says for each of its entries why no test can tell it from the original.

A process that has NumPy, SciPy and pytest loaded forks for every mutant, which saves a second each:
Linux and macOS only.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from equivalent_core import EQUIVALENT  # noqa: E402

DEFAULT_SAMPLE, DEFAULT_SEED = 120, 20_261

# Each module of the core, and the test modules that know it best, to be asked first.
MODULES = {
    "affinity": ("affinity", "large_lists"),
    "aggregate_basis": ("basis", "diffuse", "update"),
    "aggregation": ("aggregation",),
    "any_matrix": ("basis", "diffuse", "diffusion_index"),
    "asking": ("diffusion_index", "methods"),
    "averages": ("measures",),
    "basis": ("basis", "diffuse"),
    "block_eigensolver": ("spectrum",),
    "build_memory": ("plan", "build", "diffusion_index"),
    "build": ("build", "diffusion_index", "basis"),
    "chebyshev": ("filters", "diffuse"),
    "coarse_inverse": ("coarse_inverse", "basis"),
    "columns": ("precompute", "storage"),
    "conjugate_gradients": ("diffuse", "ranking_accuracy"),
    "csr": ("affinity", "large_lists", "diffusion_index"),
    "csr_arrays": ("affinity", "large_lists"),
    "csr_checks": ("native", "backends"),
    "csr_matrix": ("backends", "native"),
    "dense_product": ("dense_product", "backends"),
    "descent": ("diffuse",),
    "diffuse": ("diffuse",),
    "diffusion_index": ("diffusion_index",),
    "edge_loops": ("native", "aggregation"),
    "eigen_basis": ("basis", "diffusion_index", "update"),
    "factory": ("build", "diffusion_index"),
    "filters": ("filters", "diffuse"),
    "first_stage": ("diffusion_index", "methods"),
    "galerkin_basis": ("basis", "diffuse", "diffusion_index"),
    "generic": ("backends", "affinity", "top_items"),
    "judgments": ("evaluation", "measures"),
    "labels": ("evaluation", "measures"),
    "methods": ("methods", "diffusion_index"),
    "native": ("native", "diagnosis"),
    "native_backend": ("native", "backends"),
    "native_graph": ("native",),
    "native_groups": ("native",),
    "native_products": ("native", "neighbors"),
    "native_select": ("native",),
    "native_steps": ("native",),
    "neighbor_count": ("neighbor_count",),
    "neighbors": ("neighbors",),
    "numpy_backend": ("backends", "affinity"),
    "observation": ("observation",),
    "overlap": ("evaluation", "measures"),
    "packing": ("storage",),
    "paper_hybrid": ("diffuse",),
    "plan": ("plan",),
    "precompute": ("precompute",),
    "protocol": ("backends",),
    "query_expansion": ("query_expansion",),
    "rankings": ("evaluation", "measures"),
    "relevance": ("evaluation", "measures"),
    "list_order": ("result_lists", "diffusion_index"),
    "result_lists": ("result_lists", "large_lists", "diffusion_index"),
    "result_memory": ("result_memory",),
    "revisited": ("evaluation",),
    "row_selection": ("backends",),
    "search": ("diffusion_index",),
    "significance": ("significance",),
    "solution": ("diffuse",),
    "spectrum": ("spectrum",),
    "state": ("diffusion_index", "update", "local_ranking"),
    "storage": ("storage",),
    "top_items": ("top_items",),
    "update": ("update",),
    "validation": ("validation", "result_lists", "diffusion_index", "neighbors"),
    "views": ("diffusion_index", "precompute"),
}
# Whose own tests run on the strict backend too: it has the generic operations as they are.
_ON_STRICT = {"generic"}
# What runs without the native core, which does the same in its own way.
_WITHOUT_CORE = {"csr_matrix", "numpy_backend", "row_selection"}
# What runs on whatever survived its own tests.
_BROADER = tuple(
    sorted({*(name for names in MODULES.values() for name in names), "properties", "experiments"})
)

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<", "<=", ">="),
    ast.LtE: ("<=", "<", ">"),
    ast.Gt: (">", ">=", "<="),
    ast.GtE: (">=", ">", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: (
        "!=",
        "==",
    ),
    ast.Is: (
        "is",
        "is not",
    ),
    ast.IsNot: (
        "is not",
        "is",
    ),
    ast.In: (
        "in",
        "not in",
    ),
    ast.NotIn: (
        "not in",
        "in",
    ),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}
_NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
    "ones_like": "zeros_like",
    "zeros_like": "ones_like",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    function: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        # By function and text: it stays the same when lines or whole modules move.
        return f"{self.function}: {self.before} -> {self.after}"


def path_of(module: str) -> Path:
    """The file of a module, in whatever folder of the package it lives."""
    found = list((ROOT / "hybrid_gpu").rglob(f"{module}.py"))
    if len(found) != 1:
        raise SystemExit(f"expected one {module}.py below hybrid_gpu; found {len(found)}")
    return found[0]


def mutants_of(module: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its text."""
    source = _Source(path_of(module).read_bytes())
    for function, node in _mutable(ast.parse(source.data)):
        begin, end = source.span(node)
        text = source.text(node)
        last = source.lines[_last_line(node)]
        first = source.lines[node.lineno - 1]
        for changed in dict.fromkeys(_changes(node, source)):
            if changed == text:
                continue
            mutated = source.data[:begin] + changed.encode() + source.data[end:]
            grown = len(mutated) - len(source.data)
            before = _one_line(source.data[first:last])
            after = _one_line(mutated[first : last + grown])
            yield Mutant(module, node.lineno, function, before, after, mutated.decode())


def _last_line(node: ast.expr | ast.stmt) -> int:
    """Where the line of a statement ends that has others below it; else where the node ends."""
    if isinstance(node, (ast.If, ast.While)):
        return node.test.end_lineno or 0
    return node.end_lineno or 0


class _Source:
    """The text of a module, and where its nodes stand in it (in bytes, as ``ast`` counts)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.lines = [0]
        for line in data.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = self.lines[node.lineno - 1] + node.col_offset
        return begin, self.lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self.span(node)
        return self.data[begin:end].decode()

    def around(self, outer: ast.expr | ast.stmt, *inner: ast.expr) -> list[str]:
        """The text of a node, cut before and after each of its parts."""
        places = [place for one in inner for place in self.span(one)]
        begin, end = self.span(outer)
        bounds = [begin, *places, end]
        return [self.data[a:b].decode() for a, b in pairwise(bounds)]


def _one_line(text: bytes) -> str:
    lines = (line.split("  #")[0].strip() for line in text.decode().splitlines())
    return " ".join(line for line in lines if not line.startswith("#"))


def _mutable(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """The nodes that may be changed, each with the name of its function."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
        for name, field in ast.iter_fields(node):
            # Types and decorators do not run; defaults are choices, which the docs state.
            if name in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if not isinstance(child, ast.AST) or isinstance(child, _LEFT_ALONE):
                    continue
                # Names at the top of a module, or fields of a record, stand for choices as well.
                if isinstance(child, (ast.Assign, ast.AnnAssign)) and not _in_function(node):
                    continue
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                    continue
                inner = function
                if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                    inner = f"{function}.{child.name}" if function != "<module>" else child.name
                    if inner.endswith("__repr__"):
                        continue
                if isinstance(child, (ast.expr, ast.stmt)):
                    yield inner, child
                yield from walk(child, inner)

    return walk(tree, "<module>")


# No test reads a message to its last word.
_LEFT_ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


def _in_function(node: ast.AST) -> bool:
    return not isinstance(node, (ast.Module, ast.ClassDef))


def _changes(node: ast.expr | ast.stmt, source: _Source) -> Iterator[str]:
    """Other texts for a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        before, *others = _COMPARISONS[type(node.ops[0])]
        for other in others:
            yield _replaced(source, node, node.left, node.comparators[0], before, other)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield _replaced(source, node, node.left, node.right, *_OPERATORS[type(node.op)])
    elif isinstance(node, ast.BoolOp):
        other = "or" if isinstance(node.op, ast.And) else "and"
        parts = [f"({source.text(value)})" for value in node.values]
        yield f" {other} ".join(parts)
        if len(parts) == 2:
            yield from parts
    elif isinstance(node, ast.UnaryOp):
        yield source.text(node).removeprefix("not ").lstrip("-~")
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, (ast.IfExp, ast.If, ast.While)):
        before, test, after = source.around(node, node.test)
        yield f"{before}not ({test}){after}"
    elif isinstance(node, ast.Call):
        yield from _other_calls(node, source)
    elif isinstance(node, ast.stmt):
        yield from _other_statements(node, source)


def _replaced(
    source: _Source, node: ast.expr, one: ast.expr, other: ast.expr, before: str, after: str
) -> str:
    """The text of a node with another operator between its two parts."""
    opening, left, between, right, closing = source.around(node, one, other)
    return opening + left + between.replace(before, after, 1) + right + closing


def _other_constants(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        # Larger ones are sizes and limits, where one more or less makes no difference.
        if value in (0, 1, 2):
            yield {0: "1", 1: "0", 2: "1"}[value]
    elif isinstance(value, float):
        yield repr(value * 10 if value else 1.0)


def _other_calls(node: ast.Call, source: _Source) -> Iterator[str]:
    _, called, rest = source.around(node, node.func)
    name = called.rsplit(".", 1)[-1]
    if name in _NAMES:
        yield called[: len(called) - len(name)] + _NAMES[name] + rest
    # Values of two kinds in each other's place fail at once: nothing is learned from that.
    if len(node.args) >= 2 and all(isinstance(one, _PLAIN) for one in node.args[:2]):
        if name not in _UNEQUAL:
            opening, one, between, other, closing = source.around(node, *node.args[:2])
            yield opening + other + between + one + closing
    if name in _DISPENSABLE and len(node.args) >= 1 and "return_inverse" not in rest:
        yield f"({source.text(node.args[0])})"


_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp)
# Calls whose first two arguments may change places, or never could.
_UNEQUAL = {"min", "max", "minimum", "maximum", "union1d", "hasattr", "isinstance", "getattr"}
_UNEQUAL |= {"astype", "asarray", "take", "take_along_axis", "repeat", "full", "check_count"}
_UNEQUAL |= {"multiply", "result_type", "array_equal"}
# Calls that pass their first argument on in some form.
_DISPENSABLE = {"sort", "flip", "clip", "unique", "abs", "sqrt", "round"}


def _other_statements(node: ast.stmt, source: _Source) -> Iterator[str]:
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Yield)):
        yield "pass"
    elif isinstance(node, (ast.AugAssign, ast.Break, ast.Continue)):
        yield "pass"
        if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            before, after = _OPERATORS[type(node.op)]
            yield source.text(node).replace(f"{before}=", f"{after}=", 1)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        names = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        again = isinstance(target, ast.Name) and target.id in names
        if again or isinstance(target, ast.Subscript):
            yield "pass"


def tests_of(names: Iterable[str], folder: Path) -> list[str]:
    """The test modules of these names that there are, wherever they live below tests."""
    wanted = {f"test_{name}.py" for name in names}
    return sorted(
        str(path) for path in (folder / "tests").rglob("test_*.py") if path.name in wanted
    )


def copied(folder: Path) -> Path:
    """The tree that a worker may change."""
    folder.mkdir()
    for name in ("hybrid_gpu", "tests", "kernels", "bench"):
        ignored = shutil.ignore_patterns("__pycache__", "*.jsonl")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def started(folder: Path, tests: list[str], backends: str, *, keep_compiled: bool) -> int:
    """The id of a forked process that runs tests on a tree; what they say is in ``said``."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        output = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        # The compiled tests are there already; what a mutant compiles to must not stay.
        sys.dont_write_bytecode = not keep_compiled
        sys.path[:0] = [str(folder), str(folder / "tests")]
        os.environ["PYTHONPATH"] = str(folder)
        os.environ["HYBRID_GPU_TEST_BACKENDS"] = backends
        if backends == "plain":  # what does not take the backend of a test, too
            os.environ["HYBRID_GPU_NATIVE"] = "0"
        import pytest

        options = ["-x", "-q", "--tb=line", "--no-header", "-p", "no:cacheprovider"]
        code = int(pytest.main([*options, *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


@dataclass(slots=True)
class _Worker:
    """A tree of its own, and the process that runs on it."""

    folder: Path
    process: int = 0
    mutant: Mutant | None = None
    broader: bool = False
    deadline: float = 0.0

    def ended(self) -> str | None:
        """What the tests said, empty if they pass; None if they are still at it."""
        done, status = os.waitpid(self.process, os.WNOHANG)
        if done == 0:
            if time.monotonic() < self.deadline:
                return None
            os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            return "hangs"
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return ""
        if code < 0:
            return f"crashes with signal {-code}"
        said = (self.folder / "said").read_text(encoding="utf-8", errors="replace")
        failed = re.search(r"(?:FAILED|ERROR) \S*?(test_\w+\.py(?:::\S+)?)", said)
        return failed[1] if failed else f"pytest ends with {code}"


def run(
    mutants: list[Mutant], workers: int, folder: Path, *, own_only: bool
) -> list[tuple[Mutant, str]]:
    """Every mutant and what the tests said of it, printed on the way."""
    pool = [_Worker(copied(folder / str(number))) for number in range(workers)]
    stages = (False,) if own_only else (False, True)
    limits = _limits(pool, {mutant.module for mutant in mutants}, stages)
    waiting, results = list(reversed(mutants)), []
    while waiting or any(worker.mutant for worker in pool):
        time.sleep(0.005)
        for worker in pool:
            if worker.mutant is None:
                if waiting:
                    _begin(worker, waiting.pop(), limits)
                continue
            said = worker.ended()
            if said is None:
                continue
            if said == "" and not worker.broader and not own_only:
                _run_tests(worker, limits, broader=True)
                continue
            _put_back(worker.folder, worker.mutant.module)
            results.append((worker.mutant, said))
            report(worker.mutant, said)
            worker.mutant = None
    return results


def _limits(
    pool: list[_Worker], modules: set[str], stages: tuple[bool, ...]
) -> dict[tuple[str, bool], float]:
    """Seconds that the tests of each module may take: what they take without any change, and more.

    Running them leaves the compiled tests in a tree, which the others become copies of.
    """
    limits = {}
    known: dict[tuple[str, ...], float] = {}
    worker = pool[0]
    for module, broader in ((one, stage) for one in sorted(modules) for stage in stages):
        tests = _tests(worker.folder, module, broader=broader)
        if not tests:
            raise SystemExit(f"no test of {module} found")
        run_as = (_backends(module, broader=broader), *tests)
        if run_as not in known:
            began = time.monotonic()
            worker.process = started(worker.folder, tests, run_as[0], keep_compiled=True)
            worker.deadline = began + 600
            while (said := worker.ended()) is None:
                time.sleep(0.01)
            if said:
                text = (worker.folder / "said").read_text(encoding="utf-8", errors="replace")
                raise SystemExit(f"{module}: the tests fail without any change:\n{text}")
            known[run_as] = time.monotonic() - began
        limits[module, broader] = 10 + 4 * known[run_as]
    for other in pool[1:]:
        shutil.rmtree(other.folder)
        shutil.copytree(worker.folder, other.folder)
    return limits


def _backends(module: str, *, broader: bool) -> str:
    if module in _WITHOUT_CORE:
        return "plain"
    return "numpy,strict" if module in _ON_STRICT and not broader else "numpy"


def _tests(folder: Path, module: str, *, broader: bool) -> list[str]:
    # The broader set is the same for all, so that it is timed once.
    return tests_of(_BROADER if broader else MODULES[module], folder)


def _begin(worker: _Worker, mutant: Mutant, limits: dict[tuple[str, bool], float]) -> None:
    worker.mutant = mutant
    changed = worker.folder / path_of(mutant.module).relative_to(ROOT)
    changed.write_text(mutant.source, encoding="utf-8")
    # A compiled file of the same second and size would be taken for this one's.
    for compiled in (changed.parent / "__pycache__").glob(f"{mutant.module}.*"):
        compiled.unlink()
    _run_tests(worker, limits, broader=False)


def _run_tests(worker: _Worker, limits: dict[tuple[str, bool], float], *, broader: bool) -> None:
    assert worker.mutant is not None
    module = worker.mutant.module
    worker.broader = broader
    worker.deadline = time.monotonic() + limits[module, broader]
    tests = _tests(worker.folder, module, broader=broader)
    backends = _backends(module, broader=broader)
    worker.process = started(worker.folder, tests, backends, keep_compiled=False)


def _put_back(folder: Path, module: str) -> None:
    path = path_of(module)
    shutil.copy(path, folder / path.relative_to(ROOT))


def report(mutant: Mutant, said: str) -> None:
    """Print what became of a mutant."""
    verdict = said or EQUIVALENT.get(mutant.key, "NOT NOTICED")
    print(f"{mutant.module}:{mutant.line}: {mutant.after}\n    {verdict}", flush=True)


def sampled(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, spread evenly; a change elsewhere in the source does not draw others."""

    def lot(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()

    return sorted(mutants, key=lot)[:count]


def changed(mutants: list[Mutant], revision: str) -> list[Mutant]:
    """Those in lines that the working tree has and a revision has not."""
    command = ["git", "-C", str(ROOT), "diff", "--unified=0", revision, "--", "hybrid_gpu"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines, path = set(), ""
    for line in text.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines |= {(path, number) for number in range(first, first + count)}
    return [one for one in mutants if (_shown_path(one.module), one.line) in lines]


def _shown_path(module: str) -> str:
    return path_of(module).relative_to(ROOT).as_posix()


def main() -> int:
    """Run a sample, or all of them, and print what became of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; all by default")
    parser.add_argument("--sample", type=int, default=DEFAULT_SAMPLE, help="so many mutants")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="which ones")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--since", help="those of the lines that changed since a revision")
    parser.add_argument("--own", action="store_true", help="ask only the tests of its module")
    parser.add_argument("--list", action="store_true", help="print them, run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    unknown = [name for name in asked.modules if name not in MODULES]
    if unknown:
        parser.error(f"no module {unknown[0]!r}; there are {', '.join(MODULES)}")
    every = [one for module in asked.modules or MODULES for one in mutants_of(module)]
    # What is listed as equivalent is looked at again only when all are.
    unlisted = [mutant for mutant in every if mutant.key not in EQUIVALENT]
    if asked.since:
        chosen = changed(unlisted, asked.since)
    else:
        chosen = every if asked.all else sampled(unlisted, asked.sample, asked.seed)
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.module}:{mutant.line}: {mutant.key}")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        results = run(chosen, max(1, asked.jobs), Path(name), own_only=asked.own)
    survivors = [mutant for mutant, said in results if not said]
    unexplained = [mutant for mutant in survivors if mutant.key not in EQUIVALENT]
    stale = _stale(every, survivors, asked.modules) if asked.all else []
    print(
        f"\n{len(chosen)} of {len(every)} mutants: {len(chosen) - len(survivors)} noticed, "
        f"{len(survivors) - len(unexplained)} equivalent, {len(unexplained)} not noticed; "
        f"{time.monotonic() - began:.0f} s"
    )
    for mutant in unexplained:
        print(f'NOT NOTICED  {mutant.module}:{mutant.line}  "{mutant.key}"')
    for key in stale:
        print(f"listed as equivalent, but noticed or gone: {key}")
    return 1 if unexplained or stale else 0


def _stale(every: list[Mutant], survivors: list[Mutant], modules: list[str]) -> list[str]:
    """Entries of the list that are noticed after all, or that no mutant has any more."""
    alive = {mutant.key for mutant in survivors}
    known = {mutant.key for mutant in every}
    return sorted(key for key in EQUIVALENT if key not in alive and (key in known or not modules))


def _load_once() -> None:
    """What every test run imports, so that forked processes find it loaded."""
    # Each process has a core to itself: threads of BLAS would only get into each other's way.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import array_api_compat.numpy
    import array_api_strict
    import faiss
    import hypothesis
    import numpy
    import pytest
    import scipy.fft
    import scipy.sparse.csgraph  # noqa: TID251
    import scipy.sparse.linalg  # noqa: TID251

    del array_api_compat, array_api_strict, faiss, hypothesis, numpy, pytest, scipy


if __name__ == "__main__":
    _load_once()
    sys.exit(main())
