"""The model's figures that ``hybrid-gpu selfcheck`` shows beside its own: from the newest line.

    python bench/gpu_model_package.py

Writes ``hybrid_gpu/lab/gpu_model.json`` from the last run of ``gpu_model.py``; a test holds the two
to each other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import RESULTS, newest

from hybrid_gpu.lab.kernel_speed import COLUMNS

TABLE = Path(__file__).parent.parent / "hybrid_gpu" / "lab" / "gpu_model.json"
ITEMS = "1M"


def packaged() -> dict[str, Any]:
    """What the package gets of the newest run; no rows as long as there is none."""
    run: dict[str, Any] = {"commit": "", "settings": {}, "rows": []}
    if (RESULTS / "gpu_model.jsonl").exists():
        run = newest("gpu_model")
    rows = [
        {
            "kernel": row["kernel"],
            "columns": row["columns"],
            "device": row["device"],
            "of_bandwidth": round(row["of bandwidth"], 3),
        }
        for row in run["rows"]
        if row["items"] == ITEMS and row["columns"] in COLUMNS
    ]
    label = run["settings"].get("label", "")
    return {"commit": run["commit"], "label": label, "items": ITEMS, "rows": rows}


def written(table: dict[str, Any]) -> str:
    """A line for each row, so that changes can be read."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in table["rows"])
    head = json.dumps({name: value for name, value in table.items() if name != "rows"})
    return f'{head[:-1]}, "rows": [\n{rows}\n]}}\n' if rows else f'{head[:-1]}, "rows": []}}\n'


if __name__ == "__main__":
    TABLE.write_text(written(packaged()), encoding="utf-8")
    print(TABLE.name)
