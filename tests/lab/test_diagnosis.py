import sys

from typer.testing import CliRunner

from hybrid_gpu import cli
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.lab import selfcheck
from hybrid_gpu.lab.diagnosis import diagnose


def test_doctor_tells_what_is_missing_and_how_to_get_it(monkeypatch):
    monkeypatch.delenv("HYBRID_GPU_BACKEND", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = {one.name: one for one in diagnose()}
    assert found["cupy"].value == "not installed"
    assert "pip install 'hybrid-gpu[cuda12]'" in found["cupy"].advice
    assert found["auto"].value.startswith("numpy, because no GPU answers")
    assert "threads" in found["processor"].value


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
    operations -= {"synchronize", "free_memory", "annotate", "stage"}
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
