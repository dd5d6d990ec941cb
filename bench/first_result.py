"""How long is the way to a first useful result, for seven kinds of users?

    python bench/first_result.py                  # every kind whose parts are there
    python bench/first_result.py laptop faiss     # some of them

Each gets an empty environment and a fresh clone. The clock runs from the clone to the printed
result: clone, install, native core, run. Reading and typing are not in it. Lines of glue are those
of ``bench/first_result/user_KIND.py`` between what the user has and what he wants, without blank
lines; "before" is the same with the commit before keys, first stages and estimators, and must print
the same. What pip has in its cache is not fetched again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from common import record

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).with_suffix("")
BEFORE = "2143510"
# The kind of user, the extras of ours, and what the user has installed already.
KINDS = {
    "laptop": ("", ()),
    "faiss": ("faiss", ()),
    "torch": ("", ("torch==2.13.0",)),
    "qdrant": ("", ("qdrant-client",)),
    "text": ("", ("scikit-learn",)),
    "sklearn": ("sklearn", ("scikit-learn",)),
    "service": ("serve,cli", ()),
}
# What a kind needs of the repository; without it, the row is left out.
PARTS = {
    "torch": "hybrid_gpu/result_lists.py",
    "qdrant": "hybrid_gpu/result_lists.py",
    "sklearn": "hybrid_gpu/sklearn.py",
    "service": "hybrid_gpu/serve",
}


def glue(kind: str) -> int:
    """Lines between what the user has and what he wants; blank ones do not count."""
    text = (SCRIPTS / f"user_{kind}.py").read_text(encoding="utf-8")
    (part,) = re.findall(r"^# glue\n(.*?)^# shown$", text, re.DOTALL | re.MULTILINE)
    return sum(bool(line.strip()) for line in part.splitlines())


def run(*command: object, cwd: Path) -> str:
    """Run a command that has to succeed; what it printed."""
    programs = cwd / ".venv" / "bin"
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout


def clone(commit: str, folder: Path) -> None:
    """The repository at a commit, in a new folder."""
    run("git", "clone", "--quiet", ROOT, folder, cwd=folder.parent)
    run("git", "checkout", "--quiet", commit, cwd=folder)


def measure(kind: str, folder: Path) -> dict[str, Any]:
    """The way of one kind of user, now and before."""
    extras, has = KINDS[kind]
    run(sys.executable, "-m", "venv", ".venv", cwd=folder)
    pip = (folder / ".venv" / "bin" / "python", "-m", "pip", "install", "--quiet")
    if has:
        run(*pip, *has, cwd=folder)
    began = time.perf_counter()
    clone("HEAD", folder / "now")
    run(*pip, f"./now[{extras}]" if extras else "./now", cwd=folder)
    printed = run("python", SCRIPTS / f"user_{kind}.py", cwd=folder)
    minutes = (time.perf_counter() - began) / 60
    clone(BEFORE, folder / "before")
    run(*pip, "--no-deps", "--force-reinstall", "./before", cwd=folder)
    same = run("python", SCRIPTS / f"user_{kind}_before.py", cwd=folder) == printed
    return {
        "user": kind,
        "minutes": round(minutes, 1),
        "lines before": glue(f"{kind}_before"),
        "lines now": glue(kind),
        "same result": same,
    }


def main(kinds: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Measure every kind of user, one after the other, and record the run."""
    wanted = kinds or [kind for kind in KINDS if (ROOT / PARTS.get(kind, ".")).exists()]
    rows = []
    for kind in wanted:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(kind, Path(folder)))
        print(rows[-1], flush=True)
    record("first_result", {"before": BEFORE}, rows)


if __name__ == "__main__":
    typer.run(main)
