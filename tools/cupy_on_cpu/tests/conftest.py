"""The modules test_cupy_* need ``run.py``; the others run anywhere."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ON_STANDIN = importlib.util.find_spec("standin") is not None
collect_ignore_glob = [] if ON_STANDIN else ["test_cupy_*.py"]


def pytest_report_header() -> str:
    if ON_STANDIN:
        return "CuPy on the stand-in"
    return "not on the stand-in, so test_cupy_* are left out; see tools/cupy_on_cpu/run.py"
