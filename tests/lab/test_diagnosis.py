import sys
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybrid_gpu import cli
from hybrid_gpu.backends import native
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.lab import diagnosis, selfcheck
from hybrid_gpu.lab.diagnosis import diagnose


def test_doctor_tells_what_is_missing_and_how_to_get_it(monkeypatch):
    monkeypatch.delenv("HYBRID_GPU_BACKEND", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = {one.name: one for one in diagnose()}
    assert found["cupy"].value == "not installed"
    assert found["cupy"].advice.endswith(': pip install -e ".[cuda12]"')
    assert found["auto"].value.startswith("numpy, because no GPU answers")
    assert "threads" in found["processor"].value


def test_doctor_tells_of_the_native_core_and_what_to_type(monkeypatch):
    state = native.CoreState(native.Core(None, "avx2"))
    monkeypatch.setattr(diagnosis, "core_state", lambda: state)
    assert ("native core", "avx2", "") in {(one.name, one.value, one.advice) for one in diagnose()}
    absent = native._loaded(Path("nowhere"))
    monkeypatch.setattr(diagnosis, "core_state", lambda: absent)
    found = {one.name: one for one in diagnose()}["native core"]
    assert found.value == "not built: NumPy does its work, slower"
    assert found.advice.endswith("in a clone of hybrid-gpu: pip install -e .")


def install(folder, name, files):
    """Write the files of a package over those that are there, as pip does, and list them."""
    record = folder / f"{name.replace('-', '_')}-1.15.1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.15.1\n")
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content)
    lines = [f"{path},sha256=,{len(content)}" for path, content in files.items()]
    (record / "RECORD").write_text("\n".join([*lines, "faiss/__pycache__/loader.pyc,,"]))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder whose packages are those that are installed."""
    installed = partial(metadata.distributions, path=[str(tmp_path)])
    monkeypatch.setattr("importlib.metadata.distributions", installed)
    # FAISS is not there to be imported; whoever tries after a clash may crash.
    monkeypatch.setitem(sys.modules, "faiss", None)
    return tmp_path


CPU = {"faiss/__init__.py": "import loader", "faiss/libfaiss.so": "cpu"}
GPU = {"faiss/__init__.py": "import loader", "faiss/libfaiss.so": "with a gpu"}


def test_doctor_tells_of_two_faiss_and_how_to_get_back_to_one(packages):
    install(packages, "faiss-cpu", CPU)
    install(packages, "faiss_gpu", GPU)
    found = diagnosis._faiss_finding()
    assert found.value.startswith("faiss-cpu 1.15.1 and faiss-gpu 1.15.1 are installed: they over")
    assert found.advice.startswith("pip uninstall -y faiss-cpu faiss-gpu, then ")
    assert found.advice.endswith('pip install -e ".[faiss]"')
    install(packages, "cupy-cuda12x", {})
    assert diagnosis._faiss_finding().advice.endswith('pip install -e ".[cuda12]"')


@pytest.mark.parametrize("change", ["removed", "overwritten"])
def test_doctor_tells_of_a_faiss_whose_files_another_one_took(packages, change):
    install(packages, "faiss-cpu", CPU)
    assert diagnosis._clash("faiss") is None
    library = packages / "faiss" / "libfaiss.so"
    if change == "removed":
        library.unlink()
    else:
        library.write_text(GPU["faiss/libfaiss.so"])
    found = diagnosis._faiss_finding()
    assert found.value == "faiss-cpu 1.15.1, with files that are missing or of another package"
    assert found.advice.startswith("pip uninstall -y faiss-cpu, then ")


def test_doctor_tells_of_two_cupy(packages, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    install(packages, "cupy-cuda12x", {})
    install(packages, "cupy-cuda13x", {})
    (found,) = diagnosis._gpu_findings()
    assert found.value.startswith("cupy-cuda12x 1.15.1 and cupy-cuda13x 1.15.1 are installed")


def test_doctor_goes_on_when_faiss_does_not_load(packages, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    found = diagnosis._faiss_finding()
    assert found.value.startswith("installed, but does not load: ")
    assert "pip uninstall -y faiss, then" in found.advice


def test_doctor_says_why_auto_is_what_it_is(monkeypatch):
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    found = {one.name: one.value for one in diagnose()}
    assert found["auto"] == "numpy, because HYBRID_GPU_BACKEND=numpy"
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "tpu")
    found = {one.name: one for one in diagnose()}
    assert "backend must be" in found["auto"].advice


def test_doctor_prints_and_speaks_json():
    told = CliRunner().invoke(cli.app, ["doctor"])
    assert told.exit_code == 0
    assert "numpy" in told.stdout
    assert CliRunner().invoke(cli.app, ["doctor", "--json"]).stdout.startswith('{"findings": ')


def test_selfcheck_without_a_gpu_says_that_none_was_checked():
    told = CliRunner().invoke(cli.app, ["selfcheck", "--backend", "numpy", "--size", "150"])
    assert told.exit_code == 0
    assert "No GPU was checked" in told.stdout


def test_selfcheck_runs_every_operation_of_a_backend_and_the_default_search():
    checks = selfcheck.selfcheck("numpy", size=150)
    operations = {name for name in vars(GenericBackend) if not name.startswith("_")}
    # Moving arrays and making a matrix is part of the others; what is the same for every device
    # needs no check.
    operations -= {"xp", "device", "asarray", "to_numpy", "uploads", "download", "csr"}
    operations -= {
        "synchronize",
        "free_memory",
        "available_bytes",
        "annotate",
        "stage",
        "searches_locally",
        "runs_late",
    }
    told = " ".join(one.operation for one in checks)
    assert {name for name in operations if name not in told} == set()
    assert sum(one.operation == "search, hybrid, aggregates" for one in checks) == 2


def test_selfcheck_fails_on_a_disagreement(monkeypatch):
    wrong = selfcheck.Check("spmm", "float32", float("nan"), 1e-5, 1.0, 1.0)
    monkeypatch.setattr(cli.machine, "run_selfcheck", lambda *given, **options: (wrong,))
    told = CliRunner().invoke(cli.app, ["selfcheck", "--backend", "numpy"])
    assert told.exit_code == 1
    assert "WRONG" in told.stdout
    assert "0 of 1 agree" in told.stdout
