"""Commands about this machine: ``doctor`` and ``selfcheck``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from hybrid_gpu.backends import select_backend
from hybrid_gpu.cli.common import Device, Json, make_table, print_json, progress_bars
from hybrid_gpu.lab.diagnosis import diagnose
from hybrid_gpu.lab.kernel_speed import DeviceSpeed, device_speed
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
    """Compare every operation between CPU and GPU; exit code 1 if they disagree.

    On a GPU, the second table tells how near to the speed of its memory the operations of a search
    are, beside what a model says, which was never held against a GPU.
    """
    device = select_backend(backend)
    gpu = device.name != "numpy"
    with progress_bars() as progress:
        checks = run_selfcheck(device, size=check_count(size, "size", low=100), progress=progress)
        speed = device_speed(device, size=size, progress=progress) if gpu else None
    failed = [check for check in checks if not check.agrees]
    if as_json:
        lines = [{**asdict(check), "agrees": check.agrees} for check in checks]
        told = None if speed is None else _finite(asdict(speed))
        print_json(backend=device.name, gpu_checked=gpu, checks=lines, speed=told)
    else:
        _print_checks(checks, device.name)
        if speed is not None:
            _print_speed(speed)
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


def _print_speed(speed: DeviceSpeed) -> None:
    """Operations beside the bandwidth of the memory, and beside the model's figures."""
    gpus = list(dict.fromkeys(gpu for one in speed.operations for gpu in one.modelled))
    # Short enough for a narrow terminal; a part of the bandwidth, as measured and by the model.
    heads = "MB", "ms", "copy", "paper", *gpus
    table = make_table("operation", "m", *heads)
    for one in speed.operations:
        table.add_row(
            one.operation,
            str(one.columns),
            f"{one.least_bytes / 1e6:.1f}",
            f"{one.milliseconds:.3f}",
            _percent(one.of_copy),
            _percent(one.of_stated),
            *(_percent(one.modelled.get(gpu, math.nan)) for gpu in gpus),
        )
    Console().print(table)
    typer.echo(
        "m columns; MB that must move at least; the part of what a copy reaches, and of what the "
        f"memory has on paper; {', '.join(gpus) or 'no GPU'}: that part by the model, not run."
    )
    typer.echo(
        f"{speed.device}, {speed.items:,} items: a copy reaches {speed.copied / 1e9:.0f} GB/s; on "
        f"paper {speed.stated / 1e9:.0f}. The model was never held against a GPU: please tell us "
        "where it is wrong."
        if speed.is_gpu
        else f"{speed.device}: not a GPU, so that these times and parts mean nothing."
    )


def _percent(part: float) -> str:
    return "-" if math.isnan(part) else f"{100 * part:.0f} %"


def _finite(values: Any) -> Any:
    """The same with None for NaN, which JSON does not have."""
    if isinstance(values, dict):
        return {name: _finite(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and math.isnan(values) else values
