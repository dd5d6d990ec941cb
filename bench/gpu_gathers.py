"""What binds the sparse product on a GPU: how much do neighboring rows gather together?

    pip install pymetis
    python bench/gpu_gathers.py [--cache FOLDER] [--no-record]

``gpu_gathers_shared`` counts, for blocks of consecutive rows of the graph of a million items of
``gpu_model.py``, the different rows that they gather, for each of their own.
``gpu_gathers_slabs`` replays the product with 128 columns on an H100 as it is, and cut into slabs
of fewer columns, which L1 holds for more rows: bytes from L2 and memory for each row, and the part
of the memory's bandwidth that either alone would allow. Every slab reads the entries of the matrix
once, from L2. Both in the order of the index, and in that of METIS, which shows what another order
of the items could give.

Modelled, not run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pymetis
import scipy.sparse as sparse
import typer
from common import record, show
from gpu_devices import CACHED, H100, STREAM, l1_left
from gpu_graphs import Csr, problem_of
from gpu_replay import Replay, Schedule

COLUMNS, ITEMS = 128, 1_000_000
BLOCKS = (32, 64, 128, 256, 1024)
_SAMPLES = 300
# So many rows make a part of METIS, a partitioner of graphs that cuts as few edges as it can.
_ROWS_OF_PART = 256
_FLOAT = 4
# Columns of a slab, and rows of a block side by side: 512 threads of four columns each.
SLABS = ((128, 16), (64, 32), (32, 64), (16, 128))
# Blocks of a multiprocessor, passes of each, entries of a turn, and its shared memory.
_RESIDENT, _PASSES, _TURN, _SHARED = 2, 2, 4, 20 << 10


def shared_rows(matrix: Csr) -> list[dict[str, Any]]:
    """Different rows that blocks of rows gather, for each row, on a sample of blocks."""
    rng, rows = np.random.default_rng(31), []
    for block in BLOCKS:
        starts = block * rng.integers(0, matrix.rows // block, _SAMPLES)
        ends = matrix.indptr[starts + block]
        gathered = [
            matrix.indices[first:last]
            for first, last in zip(matrix.indptr[starts], ends, strict=True)
        ]
        whole = _SAMPLES * block
        rows.append(
            {
                "rows of a block": block,
                "entries of a row": sum(one.size for one in gathered) / whole,
                "different rows": sum(np.unique(one).size for one in gathered) / whole,
            }
        )
    return rows


def slabs(matrix: Csr) -> list[dict[str, Any]]:
    """Bytes of a row by L2 and memory, for each width of a slab."""
    replay, device, rows = Replay(matrix), H100, []
    listed = 8 * matrix.entries / matrix.rows + 4
    whole = listed + 2 * COLUMNS * _FLOAT
    for width, at_once in SLABS:
        count = COLUMNS // width
        found = replay.run(
            Schedule(_RESIDENT, at_once, _PASSES * at_once, _TURN, one_visit=True, own=True),
            _FLOAT * width,
            sms=device.sms,
            l1_bytes=int(CACHED * l1_left(device, _RESIDENT, _SHARED)),
            # Slabs of the same rows are in L2 at the same time.
            l2_bytes=int(CACHED * device.l2_bytes / count),
        )
        written = COLUMNS * _FLOAT
        l2 = count * (found.l2_bytes / matrix.rows + listed) + written
        memory = count * found.memory_bytes / matrix.rows + listed + written
        rows.append(
            {
                "columns of a slab": width,
                "from L1": f"{100 * found.in_l1:.0f} %",
                "L2 bytes": round(l2),
                "memory bytes": round(memory),
                "least bytes": round(whole),
                "by L2": f"{100 * whole * device.l2_bandwidth / device.bandwidth / l2:.0f} %",
                "by memory": f"{100 * whole * STREAM / memory:.0f} %",
            }
        )
    return rows


def in_parts(matrix: Csr) -> Csr:
    """The same graph with the parts of METIS one after another, each in the order that it had."""
    neighbors = pymetis.CSRAdjacency(matrix.indptr, matrix.indices)
    parts = np.asarray(pymetis.part_graph(matrix.rows // _ROWS_OF_PART, neighbors)[1])
    order = np.argsort(parts, kind="stable")
    shape = (matrix.rows, matrix.rows)
    whole = sparse.csr_array((np.ones(matrix.entries), matrix.indices, matrix.indptr), shape=shape)
    ordered = whole[order][:, order]
    return Csr(ordered.indptr.astype(np.int64), ordered.indices.astype(np.int32), matrix.rows)


def main(
    cache: Annotated[Path | None, typer.Option(help="Folder for k-NN lists.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST.")] = None,
    record_it: Annotated[bool, typer.Option("--record/--no-record")] = True,
) -> None:
    """Count and replay, show both, and record them."""
    folder = cache or Path(tempfile.gettempdir()) / "hybrid-gpu-bench"
    matrix = problem_of("million", ITEMS, folder, data_folder).adjacency
    orders = {"of the index": matrix, "by METIS": in_parts(matrix)}
    told: dict[str, list[dict[str, Any]]] = {"gpu_gathers_shared": [], "gpu_gathers_slabs": []}
    for order, graph in orders.items():
        told["gpu_gathers_shared"] += [{"order": order} | row for row in shared_rows(graph)]
        told["gpu_gathers_slabs"] += [{"order": order} | row for row in slabs(graph)]
    for question, rows in told.items():
        show("Modelled, not run", rows)
        if record_it:
            settings = {"items": ITEMS, "columns": COLUMNS, "device": "H100, modelled, not run"}
            print(record(question, settings, rows))


if __name__ == "__main__":
    typer.run(main)
