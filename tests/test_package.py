"""The package as a user installs it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hybrid_gpu as hg
from hybrid_gpu import kernels

ROOT = Path(__file__).parent.parent


def test_import_is_light():
    heavy = ("cupy", "faiss", "matplotlib", "typer", "rich", "torch", "pandas", "sklearn")
    code = f"import sys, hybrid_gpu; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_have_docstrings():
    for name in sorted(set(hg.__all__) - {"METHODS", "PAPER"}):
        assert getattr(hg, name).__doc__, name


def test_kernels_are_found_in_the_installed_package():
    assert "laplacian_step" in kernels.names()
    for name in kernels.names():
        assert 'extern "C" __global__' in kernels.source(name)


def test_core_modules_leave_sparse_matrices_and_gpus_to_the_backends():
    for path in (ROOT / "hybrid_gpu").glob("*.py"):
        # The paper as written, and the door to a library whose graphs are SciPy's matrices.
        if path.name in ("reference.py", "sklearn.py"):
            continue
        text = path.read_text()
        assert "scipy.sparse" not in text.replace("scipy.sparse.csr_array(affinity)", ""), path
        assert "import cupy" not in text, path


def script(path):
    """A script of the repository, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("absent", ["typer", "rich"])
def test_the_command_without_its_extra_names_the_line_to_type(absent):
    # None in sys.modules is how Python itself marks a module that must not be imported.
    code = (
        f"import sys; sys.modules['{absent}'] = None; from hybrid_gpu.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    line = 'in a clone of hybrid-gpu: pip install -e ".[cli]"'
    assert done.stderr == f"error: the command needs {absent}; {line}\n"


def test_another_missing_module_is_not_taken_for_the_extra(monkeypatch):
    from hybrid_gpu import __main__

    monkeypatch.setitem(sys.modules, "hybrid_gpu.cli", None)
    with pytest.raises(ModuleNotFoundError, match=r"hybrid_gpu\.cli"):
        __main__.main()


def test_package_and_command_are_the_same():
    command = [sys.executable, "-m", "hybrid_gpu", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"hybrid-gpu {hg.__version__}\n"


def test_version_is_told_once_and_changed_defaults_are_in_the_changelog():
    told = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert told == hg.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.split(r"^## ", changes, flags=re.MULTILINE)[1]
    assert "### Changed defaults" in newest


def test_page_for_a_package_index_has_no_link_that_leads_nowhere():
    pytest.importorskip("setuptools.command.bdist_wheel")  # that of older ones is in wheel
    index_page = script(ROOT / "setup.py").index_page
    text = "![a](docs/a.svg) [b](docs/b.md#c) [d](https://e.f) [g](#h)\n"
    assert index_page(text, "") == " b (`docs/b.md`) [d](https://e.f) [g](#h)\n"
    at = "https://e.f/"
    told = "![a](https://e.f/docs/a.svg) [b](https://e.f/docs/b.md#c) [d](https://e.f) [g](#h)\n"
    assert index_page(text, at) == told
    page = index_page((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "<!--" not in page
    assert script(ROOT / "tools" / "check_package.py").page_faults("Name: x\n\n" + page) == []


def test_what_is_wrong_with_an_archive_or_a_wheel_is_told():
    check = script(ROOT / "tools" / "check_package.py")
    expected = {"hybrid_gpu/__init__.py", "hybrid_gpu/kernels/cpu/step.c"}
    top = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs/paper.md"}
    good = top | {"hybrid_gpu/__init__.py", "kernels/cpu/step.c", "PKG-INFO"}
    assert check.archive_faults(good, expected) == []
    assert check.archive_faults(good - {"kernels/cpu/step.c"}, expected) == [
        "missing: hybrid_gpu/kernels/cpu/step.c"
    ]
    for name in ("hybrid_gpu/backends/libhybrid_gpu.so", "docs/__pycache__/conf.cpython-311.pyc"):
        assert check.archive_faults(good | {name}, expected) == [f"left over: {name}"]
    assert check.archive_faults(good | {"tests/test_a.py"}, expected) == [
        "foreign: tests/test_a.py"
    ]
    core = "hybrid_gpu/backends/libhybrid_gpu.so"
    wheel = expected | {core, "hybrid_gpu-0.2.0.dist-info/METADATA"}
    assert check.wheel_faults(wheel, expected) == []
    assert check.wheel_faults(wheel - {core}, expected) == ["native cores: []"]
    assert check.wheel_faults(wheel | {"tests/a.py"}, expected) == ["foreign: tests/a.py"]
    both = wheel | {"hybrid_gpu/backends/libhybrid_gpu.dll"}
    assert "native cores: [" in check.wheel_faults(both, expected)[0]
    assert check.page_faults("Name: x\n\n# hybrid-gpu [a](docs/b.md)") == ["a link to docs/b.md"]
