"""The tables of docs/gpu.md that come from the model of GPUs: nothing in them was run on one."""

from __future__ import annotations

from typing import Any

from common import all_of, cell

QUESTION = "gpu_model"
SHOWN = (16, 64, 128)
ITEMS = "1M"


def gpu_kernels() -> str:
    """The part of the bandwidth of each kernel at a million items, in the states on record."""
    runs = _states()
    devices = list(dict.fromkeys(row["device"] for row in runs[0]["rows"]))
    heads = [f"{device} {run['settings']['label']}" for device in devices for run in runs]
    table = ["| kernel | columns | " + " | ".join(heads) + " | binds on the H100 |"]
    table.append("|---|---:|" + "---:|" * len(heads) + "---|")
    kernels = dict.fromkeys(row["kernel"] for run in runs for row in run["rows"])
    for kernel in kernels:
        for m in SHOWN:
            found = [_row(run, kernel, m, device) for device in devices for run in runs]
            parts = [f"{100 * row['of bandwidth']:.0f} %" if row else "" for row in found]
            binds = next((row["worst"] for row in reversed(found) if row), "")
            table.append(f"| `{kernel}` | {m} | {' | '.join(parts)} | {binds} |")
    return "\n".join([*table, "", _source(runs), ""])


def gpu_batches() -> str:
    """A batch of 128 queries on a million items: time, launches, waits and where the time goes."""
    runs = _states()
    table = ["| GPU | state | ms | launches | waits of the host | most of it |"]
    table.append("|---|---|---:|---:|---:|---|")
    for number in range(len(runs[0]["batches"])):
        for run in runs:
            row = run["batches"][number]
            spent = [f"{name} {cell(float(ms))}" for name, ms in list(row["spent"].items())[:4]]
            table.append(
                f"| {row['device']} | {run['settings']['label']} | {cell(row['ms'])} "
                f"| {row['launches']} | {row['waits']} | {', '.join(spent)} |"
            )
    return "\n".join([*table, "", _source(runs), ""])


def gpu_checks() -> str:
    """The model beside what others have measured."""
    table = ["| what | measured | modelled | error | source |", "|---|---:|---:|---:|---|"]
    for row in all_of(QUESTION)[-1]["checks"]:
        numbers = [cell(float(row[name])) for name in ("measured", "modelled")]
        table.append(
            f"| {row['what']} | {numbers[0]} | {numbers[1]} | {100 * row['error']:+.0f} % "
            f"| {row['source']} |"
        )
    return "\n".join([*table, "", ""])


def _states() -> list[dict[str, Any]]:
    """The newest run of each label, in the order in which the labels came."""
    return list({run["settings"]["label"]: run for run in all_of(QUESTION)}.values())


def _row(run: dict[str, Any], kernel: str, m: int, device: str) -> dict[str, Any] | None:
    wanted = (kernel, ITEMS, m, device)
    names = ("kernel", "items", "columns", "device")
    return next((row for row in run["rows"] if tuple(row[n] for n in names) == wanted), None)


def _source(runs: list[dict[str, Any]]) -> str:
    told = ", ".join(f"{run['settings']['label']} at {run['commit']}" for run in runs)
    return f"<sub>Modelled, not run: `bench/gpu_model.py`, {told}, {runs[-1]['date'][:10]}.</sub>"
