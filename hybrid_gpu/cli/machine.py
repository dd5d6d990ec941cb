"""Commands about this machine: ``doctor`` and ``selfcheck``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from hybrid_gpu.backends import select_backend
from hybrid_gpu.cli.common import Device, Json, make_table, print_json, progress_bars
from hybrid_gpu.lab.diagnosis import diagnose
from hybrid_gpu.lab.selfcheck import Check
from hybrid_gpu.lab.selfcheck import selfcheck as run_selfcheck
from hybrid_gpu.validation import check_count


def doctor(as_json: Json = False) -> None:
    """Show what this machine has, what is missing, and which backend auto chooses."""
    findings = diagnose()
    if as_json:
        print_json(findings=[asdict(finding) for finding in findings])
        return
    for finding in findings:
        typer.echo(f"{finding.name:<13}{finding.value}")
        if finding.advice:
            typer.echo(f"{'':<13}-> {finding.advice}")


def selfcheck(
    backend: Device = "auto",
    size: Annotated[int, typer.Option(help="Items of the test graph.")] = 20_000,
    as_json: Json = False,
) -> None:
    """Compare every operation between CPU and GPU; exit code 1 if they disagree."""
    device = select_backend(backend)
    with progress_bars() as progress:
        checks = run_selfcheck(device, size=check_count(size, "size", low=100), progress=progress)
    failed = [check for check in checks if not check.agrees]
    gpu = device.name != "numpy"
    if as_json:
        lines = [{**asdict(check), "agrees": check.agrees} for check in checks]
        print_json(backend=device.name, gpu_checked=gpu, checks=lines)
    else:
        _print_checks(checks, device.name)
        if not gpu:
            typer.echo(
                "No GPU was checked: none answers here, so the CPU, with its native core if that "
                "is in use, was compared with NumPy. On a GPU server, this command compares the "
                "GPU with NumPy."
            )
        typer.echo(f"{len(checks) - len(failed)} of {len(checks)} agree.")
    if failed:
        raise typer.Exit(1)


def _print_checks(checks: Sequence[Check], name: str) -> None:
    table = make_table("operation", "dtype", "difference", "", "numpy ms", f"{name} ms")
    for check in checks:
        table.add_row(
            check.operation,
            check.dtype,
            f"{check.difference:.1e}",
            "ok" if check.agrees else "WRONG",
            f"{check.host_ms:.2f}",
            f"{check.device_ms:.2f}",
        )
    Console().print(table)
