"""Which method ranks the shipped digits best, and what does it cost?

    python bench/methods_on_digits.py

The same table as ``hybrid-gpu demo``, recorded for the README.
"""

from __future__ import annotations

from common import record, show

from hybrid_gpu.cli import compare_methods

if __name__ == "__main__":
    settings, rows = compare_methods(queries=200, neighbors=10, rank=100)
    show("digits", rows)
    print(record("methods_on_digits", settings, rows))
