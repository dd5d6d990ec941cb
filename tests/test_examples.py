"""The examples of the docstrings print what they say, and the public functions have one."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import hybrid_gpu as hg
from hybrid_gpu import evaluation

# What ``hybrid_gpu`` can do without; a module that needs one of them is left out where it is not.
OPTIONAL = (
    *("anyio", "cupy", "faiss", "jinja2", "matplotlib", "nvtx", "sklearn", "starlette", "uvicorn"),
)
ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "hybrid_gpu").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
# Classes that users make, or whose methods they call.
CLASSES = (
    *(hg.DiffusionIndex, hg.Ranking, hg.Reranker),
    *(hg.Expansion, hg.HeatKernel, hg.PageRank, hg.Polynomial),
)
# Methods that print nothing worth an example, or need another package for it.
PLAIN = (
    "to_pandas",
    "to_torch",
    "warm_up",
    "transfer",
    "excess_transfer",
    "described",
    "with_threads",
    "pinned",
)


def examples_of(thing):
    """The examples of a module, a function or a class, those of its methods included."""
    # A measure is a wrapper of another module: doctest would pass it over among the module's own.
    found = doctest.DocTestFinder(recurse=not inspect.ismodule(thing)).find(
        thing, thing.__name__, module=False, globs={}
    )
    return [test for test in found if test.examples]


def own_parts(module):
    """The module, and the functions and classes that it defines."""
    parts = [part for part in vars(module).values() if callable(part)]
    return [module, *(one for one in parts if getattr(one, "__module__", "") == module.__name__)]


def wanting():
    """Everything public that a stranger would want an example of, by name."""
    for place in (hg, evaluation):
        for name in place.__all__:
            if inspect.isfunction(getattr(place, name)):
                yield name, getattr(place, name)
    for one in CLASSES:
        if one is not hg.DiffusionIndex:
            yield one.__name__, one
        for name, method in inspect.getmembers(one):
            if inspect.isfunction(method) and not name.startswith("_") and name not in PLAIN:
                yield f"{one.__name__}.{name}", method


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name, monkeypatch):
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"needs {missing.name}")
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for part in own_parts(module):
        for test in examples_of(part):
            runner.run(test, out=printed.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(printed)


def test_public_functions_have_examples():
    things = dict(wanting())
    assert len(things) > 50
    assert [name for name, thing in things.items() if not examples_of(thing)] == []
