"""Build the source archive and, from it alone, a wheel; check what both hold, and use the wheel.

    pip install -e ".[dev]"
    python tools/check_package.py

Works on a clone of the last commit, so that nothing else of this folder can slip in. Exits with 1,
and a line for each fault, if a file is missing or foreign, if ``twine check --strict`` finds a
fault, if the page for a package index has a link that leads nowhere there, or if the wheel does not
work in an empty environment: the library without the extra ``cli``, and the command with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Endings of what a build, a test or another platform leaves behind.
LEFTOVERS = re.compile(
    r"\.(py[cod]|so|dll|dylib|o|obj|orig|rej)$|__pycache__|\.(pytest|mypy|ruff)_cache"
)
LIBRARY = re.compile(r"hybrid_gpu/backends/libhybrid_gpu\.(so|dll)")
PARTS = ("hybrid_gpu/", "kernels/")
USE = """
import hybrid_gpu as hg
from hybrid_gpu import datasets, kernels
from hybrid_gpu.backends.native import core_level
assert core_level() != "none"
assert len(kernels.names()) > 5 and kernels.source("laplacian_step")
print(hg.build_index(datasets.digits().descriptors[:300]))
"""


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and keep what it prints."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def must(*command: object, cwd: Path | None = None) -> str:
    """Run a command that has to succeed; what it printed."""
    done = run(*command, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def package_files() -> set[str]:
    """The files of the package that git knows, as a wheel names them."""
    known = must("git", "ls-files", "hybrid_gpu", "kernels", cwd=ROOT).splitlines()
    return {re.sub(r"^kernels/", "hybrid_gpu/kernels/", name) for name in known}


def archive_faults(names: set[str], expected: set[str]) -> list[str]:
    """What is wrong with the names in a source archive."""
    packed = {re.sub(r"^kernels/", "hybrid_gpu/kernels/", name) for name in names}
    faults = [f"missing: {name}" for name in sorted(expected - packed)]
    faults += [f"left over: {name}" for name in sorted(names) if LEFTOVERS.search(name)]
    needed = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs/paper.md")
    faults += [f"missing: {name}" for name in needed if name not in names]
    places = ("tests/", "bench/", "tools/", "build/", ".")
    return faults + [f"foreign: {name}" for name in sorted(names) if name.startswith(places)]


def wheel_faults(names: set[str], expected: set[str]) -> list[str]:
    """What is wrong with the names in a wheel."""
    packed = {name for name in names if ".dist-info/" not in name}
    libraries = {name for name in packed if LIBRARY.fullmatch(name)}
    faults = [f"missing: {name}" for name in sorted(expected - packed)]
    faults += [f"foreign: {name}" for name in sorted(packed - expected - libraries)]
    return faults + ([] if len(libraries) == 1 else [f"native cores: {sorted(libraries)}"])


def page_faults(metadata: str) -> list[str]:
    """Links of the page for a package index that lead nowhere there."""
    _, _, page = metadata.partition("\n\n")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    faults = [f"a link to {name}" for name in targets if not name.startswith(("https://", "#"))]
    return faults + ([] if "# hybrid-gpu" in page else ["no page for a package index"])


def use_faults(folder: Path, wheel: Path) -> list[str]:
    """Install the wheel without and with its command, and use both."""
    faults = []
    must(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    must(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    must(programs / "python", "-c", USE, cwd=folder)
    told = run(programs / "hybrid-gpu", "doctor", cwd=folder)
    if told.returncode != 1 or 'pip install -e ".[cli]"' not in told.stderr:
        faults.append(f"the command without its extra says: {told.stdout}{told.stderr}")
    must(programs / "python", "-m", "pip", "install", "--quiet", f"{wheel}[cli]")
    print(must(programs / "hybrid-gpu", "--version", cwd=folder).strip())
    return faults


def main() -> int:
    """Build, check and use; 1 if anything is wrong."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        must("git", "clone", "--quiet", ROOT, folder / "copy")
        must(sys.executable, "-m", "build", "--outdir", folder / "dist", folder / "copy")
        (archive,) = (folder / "dist").glob("*.tar.gz")
        (wheel,) = (folder / "dist").glob("*.whl")  # build makes it from the archive alone
        with tarfile.open(archive) as packed:
            names = {
                member.name.partition("/")[2] for member in packed.getmembers() if member.isfile()
            }
        faults += [f"{archive.name}: {one}" for one in archive_faults(names, package_files())]
        with zipfile.ZipFile(wheel) as zipped:
            faults += [
                f"{wheel.name}: {one}"
                for one in wheel_faults(set(zipped.namelist()), package_files())
            ]
            (metadata,) = (one for one in zipped.namelist() if one.endswith("/METADATA"))
            faults += [f"its page: {one}" for one in page_faults(zipped.read(metadata).decode())]
        checked = run(sys.executable, "-m", "twine", "check", "--strict", archive, wheel)
        faults += [checked.stdout + checked.stderr] if checked.returncode else []
        sizes = [f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in (archive, wheel)]
        print(f"{sizes[0]}, {len(names)} files; {sizes[1]}")
        faults += use_faults(folder, wheel)
    for fault in faults:
        print(f"WRONG: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
