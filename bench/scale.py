"""What would a hundred million items take, and a thousand million? On paper, from ten million.

    python bench/scale.py [--no-record]

Bytes are those that ``hybrid_gpu.predicted_bytes`` counts, for the entries per item of the newest
run of ``bench/large.py``. Times are those of its largest database times the number of items over
it: every stage of a build goes over lists and edges a fixed number of times. "lists GB" are k-NN
lists on the disk, with 32-bit ids and float32 similarities. Nothing here was run.
"""

from __future__ import annotations

import sys

from common import newest, record, show

import hybrid_gpu as hg
from hybrid_gpu.index.build_memory import native_build_bytes

ITEMS = (10_000_000, 100_000_000, 1_000_000_000)
NEIGHBORS, GROUPS = 50, 4000


def row(items: int, built: dict[str, float]) -> dict[str, object]:
    """Bytes and hours of one size."""
    entries = built["entries"] / built["items"]
    parts = hg.predicted_bytes(items, entries=entries, groups=GROUPS)
    # The lists stay on the disk, and are not kept in the index.
    lists = items * NEIGHBORS * 8
    peak = native_build_bytes(items, 0, NEIGHBORS, "float32", entries, kept=False) - lists
    return {
        "items": f"{items:,}",
        "entries": round(items * entries),
        "bits of an index": 32 if items * entries < 2**31 else 64,
        "lists GB": lists / 1e9,
        "index GB": (parts["graph"] + parts["basis"]) / 1e9,
        "build peak GB": peak / 1e9,
        "build hours, 2 cores": built["seconds"] / built["items"] * items / 3600,
    }


if __name__ == "__main__":
    stages = [one for one in newest("large_builds")["rows"] if one["stage"] == "build"]
    largest = max(stages, key=lambda one: one["items"])
    rows = [row(items, largest) for items in ITEMS]
    show("On paper", rows)
    if "--no-record" not in sys.argv:
        print(record("scale", {"neighbors": NEIGHBORS, "groups": GROUPS}, rows))
