"""The package as a user installs it."""

import subprocess
import sys
from pathlib import Path

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
