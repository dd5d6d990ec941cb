"""How fast would the CUDA kernels be on a GPU? Modelled, not run: no GPU was there.

    python bench/gpu_model.py --label before [--cache FOLDER] [--no-record]

For each kernel, number of columns and GPU: bytes from a replay of the kernel's gathers on a real
graph through L1 and L2 (``gpu_replay``), instructions, registers and waits from the machine code of
NVIDIA's compiler (``gpu_sass``), and from both the time by each limit alone and by all together
(``gpu_limits``, ``gpu_devices``). "of bandwidth" is the part of the memory's stated bandwidth that
the least bytes of the kernel would take in that time.

A batch is 128 queries on a million items: lists in, ten deflated steps, the 100 best out. What it
consists of is read off the code; launches and waits are counted on the stand-in. The model is held
against published times of other people's kernels, which are not part of it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from common import record, show
from gpu_devices import DEVICES, LAUNCH, SMALL, STREAM, WAIT, Device
from gpu_graphs import Csr, Problem, problem_of
from gpu_kernels import dense_loads, sparse_loads, top_k_seconds
from gpu_limits import Load
from gpu_program import PROGRAM, cupy_pass, cupy_sum, dense_product, sum_of_parts
from gpu_replay import Replay

COLUMNS = (1, 16, 64, 128)
SETS = {"70k": ("fashion", 70_000), "1M": ("million", 1_000_000)}
QUERIES, BEST = 128, 100
# Of 128 columns, in the product; twice as many in the passes over whole arrays.
_ROWS_OF_PART = 32


@dataclass
class Model:
    """One problem with the replays of its matrices."""

    problem: Problem

    def __post_init__(self) -> None:
        self.matrices: dict[str, Csr] = {
            name: getattr(self.problem, name) for name in ("adjacency", "transposed", "spread")
        }
        # The kernel folds the second half of its columns onto the first.
        spread, rank = self.matrices["spread"], self.problem.rank
        self.matrices["spread"] = Csr(spread.indptr, spread.indices % rank, rank)
        self.replays = {name: Replay(matrix) for name, matrix in self.matrices.items()}

    def loads(self, m: int, device: Device) -> dict[str, Load]:
        """Every kernel of a step, by name."""
        return {
            **sparse_loads(self.matrices, self.replays, m, device),
            **dense_loads(self.problem.n, m, device),
        }


def batch_seconds(model: Model, device: Device) -> dict[str, float]:
    """Seconds of a batch on the device, by what they are spent on."""
    problem, m = model.problem, QUERIES
    n, loads = problem.n, model.loads(m, device)
    seconds = {name: load.seconds(device) for name, load in loads.items()}
    seconds |= {
        "pass over an array": cupy_pass(n, m, device),
        "sum of parts": sum_of_parts(n // _ROWS_OF_PART, device),
        "coarse solve": dense_product(problem.coupled, m, device),
        "top-k": top_k_seconds(n, m, BEST, device),
    }
    spent = {name: count * seconds[name] for name, count in PROGRAM.counts.items()}
    spent["launches"] = PROGRAM.small_launches * SMALL
    return spent


def batch_row(model: Model, device: Device) -> dict[str, Any]:
    """A batch in one line: the device's time, the host's, and both."""
    spent = batch_seconds(model, device)
    on_device, host = sum(spent.values()), PROGRAM.launches * LAUNCH
    # The host runs ahead of the device, but for its waits, at which the device runs dry.
    whole = max(on_device, host) + PROGRAM.waits * WAIT
    ranked = sorted(spent.items(), key=lambda one: -one[1])
    return {
        "device": device.name,
        "ms": 1e3 * whole,
        "device ms": 1e3 * on_device,
        "launches": PROGRAM.launches,
        "waits": PROGRAM.waits,
        "spent": {name: round(1e3 * one, 3) for name, one in ranked},
    }


def checks() -> list[dict[str, Any]]:
    """The model's rules against what others have measured; none of it on our kernels."""
    a100 = next(one for one in DEVICES if one.name == "A100")
    gathered = 114_615_892 * 256 * 4
    return [
        {
            "what": "plain streams, part of the bandwidth",
            "measured": 0.913,
            "modelled": STREAM,
            "source": "RTX 4090, 920.2 of 1,008 GB/s: README of github.com/xytpai/nvbench",
        },
        {
            "what": "babelstream, part of the bandwidth",
            "measured": 0.878,
            "modelled": STREAM,
            "source": "RTX 5090, 128-bit values: github.com/NVIDIA/cccl/pull/9881",
        },
        {
            "what": "babelstream mul of 1-byte values, part of the bandwidth",
            "measured": 0.727,
            "modelled": STREAM,
            "source": "A100 80 GB, 2^28 in 362 us: github.com/NVIDIA/cccl/pull/7019",
        },
        {
            "what": "cuSPARSE SpMM, Reddit graph, 256 columns, ms (all gathers from L2)",
            "measured": 31.9,
            "modelled": 1e3 * gathered / a100.l2_bandwidth,
            "source": "A100, example of DGL's guide: github.com/dmlc/dgl/issues/4270",
        },
        {
            "what": "CuPy's mean over axis 0 of (1,000,000, 16) in float64, ms (fitted to it)",
            "measured": 15.9,
            "modelled": 1e3 * cupy_sum(1_000_000, 16),
            "source": "github.com/cupy/cupy/pull/4008",
        },
    ]


def main(
    label: Annotated[str, typer.Option(help="Which state of the kernels this is.")] = "now",
    cache: Annotated[Path | None, typer.Option(help="Folder for k-NN lists.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST.")] = None,
    record_it: Annotated[bool, typer.Option("--record/--no-record")] = True,
) -> None:
    """Model every kernel and a batch, show them, and record them."""
    folder = cache or Path(tempfile.gettempdir()) / "hybrid-gpu-bench"
    rows: list[dict[str, Any]] = []
    batches: list[dict[str, Any]] = []
    for name, (data, items) in SETS.items():
        model = Model(problem_of(data, items, folder, data_folder))
        for device in DEVICES:
            for m in COLUMNS:
                rows += [
                    {"kernel": kernel, "items": name, "columns": m, "device": device.name}
                    | load.row(device)
                    for kernel, load in model.loads(m, device).items()
                ]
            if items >= 1_000_000:
                batches.append(batch_row(model, device))
    told = ("kernel", "items", "columns", "device", "worst", "ms", "of bandwidth", "registers")
    show("Modelled, not run", [{name: row[name] for name in told} for row in rows])
    show("A batch of 128 queries, modelled, not run", batches)
    for check in (found := checks()):
        check["error"] = check["modelled"] / check["measured"] - 1
    show("Against published times", found)
    if record_it:
        settings = {"label": label, "modelled": "not run", "queries": QUERIES, "best": BEST}
        print(record("gpu_model", settings, rows, batches=batches, checks=found))


if __name__ == "__main__":
    typer.run(main)
