import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hybrid_gpu import cli
from hybrid_gpu.lab import kernel_speed, selfcheck


def test_selfcheck_of_the_standin_says_that_it_is_no_gpu(gpu, standin, monkeypatch):
    monkeypatch.setattr(selfcheck, "RUNS", 1)
    asked = ["selfcheck", "--backend", gpu.name, "--size", "120"]
    told = CliRunner().invoke(cli.app, asked)
    assert told.exit_code == 0
    assert "not a GPU" in told.stdout
    for name in ("laplacian_step", "cg_update", "cg_direction", "csr_spmm, restrict", "top-k"):
        assert name in told.stdout
    speed = json.loads(CliRunner().invoke(cli.app, [*asked, "--json"]).stdout)["speed"]
    assert not speed["is_gpu"]
    assert all(one["milliseconds"] > 0 for one in speed["operations"])


def test_least_bytes_are_those_of_arrays_that_are_read_and_written_once(backend):
    n, m, groups = 600, 5, 3
    matrices = kernel_speed._matrices(backend, n)
    least = {name: size for name, size, _ in kernel_speed._operations(backend, matrices, m)}
    array, coarse = 4 * n * m, 4 * groups * m
    assert least == {
        "laplacian_step": 8 * 24 * n + 4 * (n + 1) + 2 * array,
        "cg_update": 6 * array,
        "cg_direction": 3 * array,
        "csr_spmm, restrict": 8 * 256 * groups + 4 * (groups + 1) + array + coarse,
        "csr_spmm, subtract": 8 * 9 * n + 4 * (n + 1) + 2 * array + 2 * coarse,
        "top-k": array + 12 * m * 100,
    }
    for _, _, run in kernel_speed._operations(backend, matrices, m):
        assert run() is not None


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("NVIDIA H100 80GB HBM3", {"H100"}),
        ("NVIDIA L4", {"L4"}),
        ("NVIDIA L40S", {"H100", "L4"}),  # not modelled: all that are
    ],
)
def test_the_model_of_the_own_gpu_is_shown_or_that_of_all(monkeypatch, name, gpus):
    rows = [
        {"kernel": "cg_update", "columns": m, "device": gpu, "of_bandwidth": m / 100}
        for m in (16, 64)
        for gpu in ("H100", "L4")
    ]
    monkeypatch.setattr(kernel_speed, "model_table", lambda: {"rows": rows})
    assert kernel_speed.modelled_parts("cg_update", 64, name) == dict.fromkeys(gpus, 0.64)
    assert kernel_speed.modelled_parts("top-k", 64, name) == {}


def test_selfcheck_shows_the_model_beside_what_is_measured(monkeypatch):
    one = kernel_speed.KernelSpeed("cg_update", 64, 3 * 10**9, 1.0, 0.9, 0.75, {"H100": 0.8125})
    other = kernel_speed.KernelSpeed("top-k", 64, 10**9, 1.0, 0.5, float("nan"), {})
    speed = kernel_speed.DeviceSpeed("NVIDIA H100", True, 10**6, 3.3e12, 4e12, (one, other))
    shown = Console(width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(cli.machine, "Console", lambda: shown)
    cli.machine._print_speed(speed)
    text = shown.export_text()
    for told in ("H100", "3000", "90 %", "75 %", "81 %", "-"):
        assert told in text
