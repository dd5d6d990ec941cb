"""The package as a user installs it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hybrid_gpu as hg
from hybrid_gpu import kernels

ROOT = Path(__file__).parent.parent


def run(*command, **options):
    return subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, text=True, **options
    ).stdout


def test_import_is_light():
    heavy = ("cupy", "faiss", "matplotlib", "typer", "rich", "torch", "pandas", "sklearn")
    code = f"import sys, hybrid_gpu; print([m for m in {heavy!r} if m in sys.modules])"
    assert run("-c", code).strip() == "[]"


def test_public_names_exist_and_have_docstrings():
    for name in hg.__all__:
        assert getattr(hg, name).__doc__, name


def test_kernels_are_found_in_the_installed_package():
    assert "laplacian_step" in kernels.names()
    for name in kernels.names():
        assert 'extern "C" __global__' in kernels.source(name)


def test_core_modules_leave_sparse_matrices_and_gpus_to_the_backends():
    for path in (ROOT / "hybrid_gpu").glob("*.py"):
        if path.name == "reference.py":
            continue
        text = path.read_text()
        assert "scipy.sparse" not in text.replace("scipy.sparse.csr_array(affinity)", ""), path
        assert "import cupy" not in text, path


@pytest.mark.slow
def test_wheel_of_a_clean_checkout_holds_kernels_and_data(tmp_path):
    run("-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for name in ("kernels/laplacian_step.cu", "data/digits.npz", "data/ATTRIBUTION.md", "py.typed"):
        assert f"hybrid_gpu/{name}" in inside
    # Installed elsewhere, it finds its own files.
    run("-m", "pip", "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))
    code = (
        "from hybrid_gpu import kernels, datasets; "
        "print(kernels.names(), datasets.digits().labels.size)"
    )
    out = run("-c", code, env={"PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path)
    assert out.split() == ["('laplacian_step',)", "1797"]
