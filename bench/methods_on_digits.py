"""Which method ranks the shipped digits best, and what does it cost?

    python bench/methods_on_digits.py

The table of ``hybrid-gpu demo``, recorded for the README.
"""

from __future__ import annotations

import json
import subprocess
import sys

from common import record, show

if __name__ == "__main__":
    command = [sys.executable, "-m", "hybrid_gpu.cli", "demo", "--json", "--no-plot"]
    done = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    rows = [
        {
            "method": line["method"],
            "mAP": 100 * line["mean_average_precision"],
            "ms per query": line["milliseconds_per_query"],
            "extra memory (kB)": line["memory_bytes"] / 1e3,
            "agreement@100": line["agreement_at_100"],
        }
        for line in done["methods"]
    ]
    settings = {"digits": done["items"], "queries": done["queries"]}
    show("digits", rows)
    print(record("methods_on_digits", settings, rows))
