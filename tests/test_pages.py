"""Every block of code of every page is run, in the order of its page and in a folder of its own.

A ``python`` block and an ``sh`` block must run; a ``text`` block directly below is what they print.
A block that cannot run here says so below it, for readers too:

    <sub>Not run in the tests: needs a GPU.</sub>
"""

import ast
import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu import datasets

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
# Pages that take longer than a few seconds.
SLOW = ("docs/choosing.md", "docs/experiments.md")
# Pages whose blocks need a server, processes or care for single packages: a test of their own runs
# them.
OWN_TESTS = {
    "docs/explorer.md": "tests/explore/test_explorer_docs.py",
    "docs/recipes/first-stages.md": "tests/test_recipes.py",
    "docs/recipes/graph-and-seeds.md": "tests/test_graph_recipe.py",
    "docs/recipes/query-sets.md": "tests/distributed/test_recipe.py",
    "docs/serving.md": "tests/serve/test_serve_docs.py",
}
BLOCK = re.compile(
    r"^(?P<fence>```|~~~)(?P<kind>\w+)\n(?P<code>.*?)^(?P=fence)$"
    r"(?:\n\n```text\n(?P<printed>.*?)^```$)?"
    r"(?:\n\n<sub>Not run in the tests: (?P<reason>[^\n]+)\.</sub>$)?",
    re.DOTALL | re.MULTILINE,
)
REASONS = ("needs ", "takes ", "changes ")


@dataclass(frozen=True)
class Block:
    kind: str
    code: str
    printed: str | None
    reason: str | None
    line: int


def blocks_of(text):
    return [
        Block(
            *(found[name] for name in ("kind", "code", "printed", "reason")),
            line=text.count("\n", 0, found.start()) + 2,
        )
        for found in BLOCK.finditer(text)
        if found["kind"] in ("python", "sh")
    ]


BLOCKS = {page: blocks_of(text) for page, text in PAGES.items()}


def without_times(text):
    """Seconds, sizes of memory and devices differ from machine to machine; nothing else may."""
    text = re.sub(r"on (numpy|cupy:\d)", "on X", text)
    text = re.sub(r"\d+\.\d+ s\b", "TIME s", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.fixture(scope="module")
def readers_data():
    """What ``descriptors``, ``queries``, ``labels`` and ``ids`` of a page are: some digits."""
    split = datasets.split_queries(datasets.digits(), 20, seed=7)
    descriptors, labels = split.database.descriptors[:1000], split.database.labels[:1000]
    queries, query_labels = split.queries.descriptors, split.queries.labels
    first = hg.nearest_neighbors(descriptors, queries, k=20, backend="numpy")
    return {
        "descriptors": descriptors,
        "labels": labels,
        "queries": queries,
        "query_labels": query_labels,
        "ids": first.ids,
        "similarities": first.similarities,
    }


@pytest.fixture
def folder(readers_data, tmp_path, monkeypatch):
    """An empty folder with the reader's files, and ``.venv/bin`` as it is in a clone."""
    for name, array in readers_data.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    return tmp_path


def missing_packages(code):
    """Packages that a block imports and this Python does not have."""
    imports = [
        one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Import | ast.ImportFrom)
    ]
    names = {
        name.split(".")[0]
        for one in imports
        for name in (
            [one.module or ""] if isinstance(one, ast.ImportFrom) else [a.name for a in one.names]
        )
    }
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


def run_python(block, names, page):
    printed = io.StringIO()
    # The lines of the page, so that a traceback leads to it.
    code = compile("\n" * (block.line - 1) + block.code, str(ROOT / page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def run_shell(block, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installs(block):
    """Whether a block makes the environment itself; .ci/run takes these lines from the README."""
    return block.code.startswith("python3 -m venv ")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page, blocks in BLOCKS.items()
        if blocks and page not in OWN_TESTS
    ],
)
def test_blocks_run_and_print_what_the_page_says(page, readers_data, folder):
    names = {"__name__": "page", "hg": hg, "np": np, **readers_data}
    names["index"] = hg.build_index(readers_data["descriptors"])
    for block in BLOCKS[page]:
        if block.reason is not None or installs(block):
            continue
        if block.kind == "python":
            missing = missing_packages(block.code)
            if missing:
                pytest.skip(f"{page}, line {block.line}: needs {', '.join(missing)}")
        here = f"{page}, line {block.line}"
        printed = (
            run_python(block, names, page) if block.kind == "python" else run_shell(block, folder)
        )
        if block.printed is not None:
            assert without_times(printed) == without_times(block.printed), here


def test_blocks_that_do_not_run_are_few_and_say_why():
    every = [block for blocks in BLOCKS.values() for block in blocks]
    left_out = [block for block in every if block.reason is not None]
    for block in left_out:
        assert block.reason.startswith(REASONS), block.reason
    # Of those that are left out, most need a GPU.
    assert len(left_out) <= len(every) / 3
    print(f"{len(every) - len(left_out)} blocks run, {len(left_out)} do not")


@pytest.mark.parametrize("page", sorted(OWN_TESTS.keys() & PAGES.keys()))
def test_a_page_that_is_not_run_here_has_a_test_of_its_own(page):
    assert f'"{Path(page).name}"' in (ROOT / OWN_TESTS[page]).read_text(encoding="utf-8")


def test_no_block_of_code_escapes():
    fences = re.compile(r"^ *(?:```|~~~)(?:python|sh|bash|console|py|shell)\b", re.MULTILINE)
    for page, text in PAGES.items():
        if page in OWN_TESTS:
            continue
        assert len(fences.findall(text)) == len(BLOCKS[page]), page
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        indented = re.findall(r"^    ((?:\.venv/bin/)?hybrid-gpu .*)$", prose, re.MULTILINE)
        assert indented == [], f"{page}: put into a block of sh"


def test_the_two_lines_that_install_are_run_by_ci():
    lines = re.findall(r"^python3 -m venv .*$", PAGES["README.md"], re.MULTILINE)
    assert len(lines) == 2
    assert "grep -E '^python3 -m venv ' README.md" in (ROOT / ".ci" / "run").read_text()


def test_a_block_that_prints_something_else_is_noticed():
    page = "```python\nprint(2)\n```\n\n```text\n3\n```\n"
    (block,) = blocks_of(page)
    assert (block.kind, block.printed, block.reason, block.line) == ("python", "3\n", None, 2)
    assert run_python(block, {}, "page.md") == "2\n"
    (block,) = blocks_of(
        "```sh\nnvidia-smi\n```\n\n<sub>Not run in the tests: needs a GPU.</sub>\n"
    )
    assert block.reason == "needs a GPU"
    assert missing_packages("import numpy, no_such_package.part") == ["no_such_package"]
