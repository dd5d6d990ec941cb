"""Resolve every extra for x86-64 and ARM, as far as choosing versions goes; nothing is installed.

    python -m pip install uv
    python tools/check_extras.py

Every extra that brings a FAISS is resolved together with all others, for the oldest and the newest
Python of pyproject.toml, on Linux. uv does it, because pip reads the markers of a requirement
(``platform_machine``) for the machine that it runs on, whatever ``--platform`` says. Wheels must
exist; of them, only the metadata are fetched (about 20 MB in all, and no GPU is needed). Each set
must hold one FAISS and at most one CuPy, and those that docs/gpu.md names. Then pip gets the lines
that environment.yml has for it. Exits with 1 if anything fails. Needs Python 3.11.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
# Extras of which one takes one, and what each brings on each machine.
CHOICES = {
    ("faiss", "x86_64"): {"faiss-cpu"},
    ("faiss", "aarch64"): {"faiss-cpu"},
    ("cuda12", "x86_64"): {"faiss-gpu", "cupy-cuda12x"},
    ("cuda12", "aarch64"): {"faiss-cpu", "cupy-cuda12x"},
    ("cuda13", "x86_64"): {"faiss-cpu", "cupy-cuda13x"},
    ("cuda13", "aarch64"): {"faiss-cpu", "cupy-cuda13x"},
}
# Extras that go with one choice only.
PARTNERS = {"cuvs12": "cuda12", "cuvs13": "cuda13"}
# Packages without wheels for a machine: pip compiles them there, and uv leaves them out here.
COMPILED = {"x86_64": ("hnswlib",), "aarch64": ("hnswlib", "pyamg")}
REFUSED = {("cupy-cuda12x", "14.1.0"), ("cupy-cuda13x", "14.1.0")}


def project() -> dict:
    """The table [project] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pythons() -> tuple[str, str]:
    """The oldest and the newest Python that the package is said to run on."""
    told = "\n".join(project()["classifiers"])
    minors = [int(minor) for minor in re.findall(r"Python :: 3\.(\d+)", told)]
    return f"3.{min(minors)}", f"3.{max(minors)}"


def resolve(extras: list[str], machine: str, python: str) -> dict[str, str]:
    """Versions by package; raises ``RuntimeError`` with uv's reason if there are none."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet"]
    command += ["--no-header", "--no-annotate", "--only-binary", ":all:", "--no-python-downloads"]
    command += ["--python", sys.executable, "--python-version", python]
    command += ["--python-platform", f"{machine}-manylinux_2_28"]
    command += [f"--extra={extra}" for extra in extras]
    with tempfile.TemporaryDirectory() as folder:
        left_out = Path(folder) / "left_out.txt"
        never = "; sys_platform == 'none'"
        left_out.write_text("".join(f"{name} {never}\n" for name in COMPILED[machine]))
        command += ["--override", str(left_out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE))


def faults_of(found: dict[str, str], expected: set[str]) -> list[str]:
    """What is wrong with a set of packages."""
    builds = {name for name in found if name.startswith(("faiss", "cupy"))}
    faults = [] if builds == expected else [f"{sorted(builds)}, expected {sorted(expected)}"]
    return faults + [f"{name} {version}" for name, version in REFUSED & found.items()]


def check_choice(case: tuple[tuple[str, str], str]) -> bool:
    """Resolve one extra with all that go with it, and print what came out."""
    (choice, machine), python = case
    others = set(project()["optional-dependencies"]) - {name for name, _ in CHOICES}
    others = {name for name in others if PARTNERS.get(name, choice) == choice}
    try:
        found = resolve([choice, *sorted(others)], machine, python)
        faults = faults_of(found, CHOICES[choice, machine])
    except RuntimeError as reason:
        found, faults = {}, [str(reason)]
    shown = [name for name in found if name.startswith(("faiss", "cupy", "cuvs", "nvtx", "numpy"))]
    told = ", ".join(f"{name} {found[name]}" for name in shown)
    print(
        f"{choice:<7}{machine:<8} Python {python:<5} {len(found):>3} packages: {told}", flush=True
    )
    for fault in faults:
        print(f"    WRONG: {fault}", flush=True)
    return not faults


def pip_lines(text: str) -> list[str]:
    """The lines of an environment.yml that conda hands to pip."""
    _, _, section = text.partition("  - pip:\n")
    return re.findall(r"^ {6}- (.*)$", section, re.MULTILINE)


def check_environment() -> bool:
    """Whether pip takes its part of environment.yml, in a file as conda writes it."""
    lines = pip_lines((ROOT / "environment.yml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requirements.txt"
        path.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "-r", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"environment.yml: pip {'refuses' if done.returncode else 'takes'} {lines}", flush=True)
    if done.returncode or not lines:
        print(done.stderr, flush=True)
    return bool(lines) and done.returncode == 0


def main() -> int:
    """Check everything; 1 if anything fails."""
    if importlib.util.find_spec("uv") is None:
        print("uv is not installed. Get it with: python -m pip install uv")
        return 1
    # Waiting for the registry takes most of the time.
    with ThreadPoolExecutor(4) as pool:
        good = list(pool.map(check_choice, itertools.product(CHOICES, pythons())))
    good.append(check_environment())
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
