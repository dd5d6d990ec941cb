"""The shape of the package: imports point one way, modules are short, packages say what they do."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "hybrid_gpu"
# A module imports from its own place and from places before it.
ORDER = (
    *("errors", "choices", "progress", "other_arrays", "validation", "list_order"),
    *("result_lists", "backends"),
    *("files", "graph", "diffusion", "ranking"),
    *("evaluation", "index", "sklearn", "distributed", "lab", "datasets", "__init__"),
    *("explore", "serve", "cli", "__main__"),
)
# Modules that keep to fewer places than those before them.
ONLY = {
    "evaluation": {"errors", "validation", "backends", "evaluation"},
    "reference": set(),
    "datasets": {"files", "lab"},
    "sklearn": {"errors", "choices", "validation", "diffusion", "ranking", "index"},
}
# What anything may import: it imports nothing of ours but errors.
BOTTOM = (
    "hybrid_gpu.backends.protocol",
    "hybrid_gpu.backends.step_records",
    "hybrid_gpu.kernels",
    "hybrid_gpu.data",
)
# These need an optional package, and are imported when it is asked for.
LATE = tuple(
    f"hybrid_gpu.{name}"
    for name in (
        *("backends.cupy_backend", "backends.cuda", "backends.cuda_launch", "backends.cuda_steps"),
        *("backends.device_speed", "backends.devices", "serve.running", "serve.live_explorer"),
        "cli",
    )
)
MOST_LINES = 400
MOST_POSITIONAL = 6


def modules():
    """The name and the path of every module."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


NAMES = {name for name, _ in modules()} | {"hybrid_gpu.kernels"}


def place_of(name):
    """The module or package directly below ``hybrid_gpu`` that a module belongs to."""
    return name.split(".")[1] if "." in name else "__init__"


def own_imports(tree):
    """Modules of ours that a module imports: name, line, and whether it is a late import."""

    def walk(node, late):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, child.lineno, late) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                source = "." * child.level + (child.module or "")
                for alias in child.names:
                    whole = f"{source}.{alias.name}"
                    yield whole if whole in NAMES else source, child.lineno, late
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, late or inside or checking)

    imports = set(walk(tree, False))
    return sorted(entry for entry in imports if entry[0].split(".")[0] in ("hybrid_gpu", ""))


def may_import(name, target):
    """Whether a module may import another one."""
    place, source = place_of(name), place_of(target)
    if name in BOTTOM:
        return source == "errors" or target in BOTTOM
    if target in BOTTOM:
        return place != "reference"
    if place in ONLY:
        return source in ONLY[place]
    if place not in ORDER or source not in ORDER:
        return False
    return ORDER.index(source) <= ORDER.index(place)


def wrong_imports(name, source):
    """Imports that point the wrong way, one line for each."""
    return [
        f"{name}, line {line}: must not import {target}"
        for target, line, _ in own_imports(ast.parse(source))
        if not may_import(name, target)
    ]


def hidden_imports(name, source):
    """Imports inside a function or under TYPE_CHECKING, one line for each."""
    return [
        f"{name}, line {line}: imports {target} late"
        for target, line, late in own_imports(ast.parse(source))
        if late and target not in LATE
    ]


def long_signatures(name, source):
    """Functions that take more by position than anybody can keep apart, one line for each."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.posonlyargs, *node.args.args]
            count = sum(argument.arg not in ("self", "cls") for argument in given)
            if count > MOST_POSITIONAL:
                found.append(f"{name}, line {node.lineno}: {node.name} takes {count} by position")
    return found


def repeated_classes(sources):
    """Names of classes, private or not, that several modules use."""
    names = Counter(
        node.name.strip("_")
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    )
    return [name for name, count in names.items() if count > 1]


def violations(check):
    return [line for name, path in modules() for line in check(name, path.read_text())]


def refuse(lines):
    print(*lines, sep="\n")
    assert not lines, "\n" + "\n".join(lines)


def test_imports_point_one_way():
    refuse(violations(wrong_imports))


def test_no_import_of_our_own_is_hidden():
    refuse(violations(hidden_imports))


def test_modules_outside_the_lab_are_short():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules()}
    long = {name: length for name, length in lengths.items() if length > MOST_LINES}
    refuse([f"{name}: {length} lines" for name, length in long.items() if place_of(name) != "lab"])


def test_functions_take_a_record_in_the_place_of_many_parameters():
    refuse(violations(long_signatures))
    assert len(long_signatures("a", "def f(self, a, b, c, d, e, f, g, *, h): ...")) == 1
    assert not long_signatures("a", "def f(self, a, b, c, d, e, f, *, g, h): ...")


def test_one_name_is_one_class():
    refuse(repeated_classes(path.read_text() for _, path in modules()))
    assert repeated_classes(["class Plan: ...", "class A: ...\nclass _Plan: ..."]) == ["Plan"]


def test_every_package_says_what_it_is():
    # The kernels have a folder of their own.
    paths = [*ROOT.rglob("__init__.py"), ROOT.parent / "kernels" / "__init__.py"]
    assert [path for path in paths if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("hybrid_gpu.graph.a", "from hybrid_gpu.diffusion.filters import transfer"),
        ("hybrid_gpu.graph.a", "import hybrid_gpu.index.storage"),
        ("hybrid_gpu.graph.a", "def f():\n    from hybrid_gpu import index"),
        ("hybrid_gpu.graph.a", "import hybrid_gpu"),
        ("hybrid_gpu.graph.a", "from hybrid_gpu import evaluation"),
        ("hybrid_gpu.graph.a", "from ..lab import charts"),
        ("hybrid_gpu.validation", "from hybrid_gpu.backends import select_backend"),
        ("hybrid_gpu.backends.protocol", "from hybrid_gpu.backends.generic import GenericBackend"),
        ("hybrid_gpu.evaluation", "from hybrid_gpu.graph.affinity import Graph"),
        ("hybrid_gpu.reference", "from hybrid_gpu.validation import check_count"),
        ("hybrid_gpu.datasets", "from hybrid_gpu.graph.affinity import Graph"),
        ("hybrid_gpu.lab.charts", "import hybrid_gpu"),
        ("hybrid_gpu", "from hybrid_gpu import cli"),
        ("hybrid_gpu.lab.charts", "from hybrid_gpu.cli.common import app"),
        ("hybrid_gpu.lab.charts", "from hybrid_gpu.serve.app import create_app"),
        ("hybrid_gpu.serve.app", "from hybrid_gpu.cli.common import app"),
        ("hybrid_gpu.unheard_of", "from hybrid_gpu.errors import HybridGpuError"),
    ],
)
def test_import_that_points_the_wrong_way_is_seen(name, source):
    assert len(wrong_imports(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("hybrid_gpu.graph.a", "from hybrid_gpu.graph.b import c\nimport numpy"),
        ("hybrid_gpu.validation", "from hybrid_gpu.backends.protocol import Array"),
        ("hybrid_gpu.index.plan", "from hybrid_gpu import evaluation"),
        ("hybrid_gpu", "from hybrid_gpu import evaluation\nfrom hybrid_gpu.index.plan import plan"),
        ("hybrid_gpu.datasets", "from hybrid_gpu.lab.public_sets import digits"),
        ("hybrid_gpu.cli.common", "import hybrid_gpu\nfrom hybrid_gpu.lab import plots"),
    ],
)
def test_import_that_points_the_right_way_is_none_of_our_business(name, source):
    assert wrong_imports(name, source) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f():\n    from hybrid_gpu.graph import affinity", 1),
        ("class A:\n    def f(self):\n        import hybrid_gpu.graph.affinity", 1),
        ("if TYPE_CHECKING:\n    from hybrid_gpu.graph.affinity import Graph", 1),
        ("if typing.TYPE_CHECKING:\n    from hybrid_gpu.graph.affinity import Graph", 1),
        ("def f():\n    from hybrid_gpu.backends.cupy_backend import CupyBackend", 0),
        ("def f():\n    from hybrid_gpu.backends import cuda", 0),
        ("def f():\n    import matplotlib", 0),
        ("from hybrid_gpu.graph import affinity\ntry:\n    import hybrid_gpu\nexcept A:\n    B", 0),
    ],
)
def test_hidden_import_is_seen(source, count):
    assert len(hidden_imports("hybrid_gpu.index.a", source)) == count
