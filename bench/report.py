"""Write the tables of the README from the recorded runs: nobody types a number.

    python bench/report.py

A table stands between ``<!-- table: QUESTION -->`` and ``<!-- end -->``; the newest run of that
question fills it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from common import cell, newest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(run: dict[str, Any]) -> str:
    """A run as a Markdown table, with the machine below it."""
    rows = run["rows"]
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    lines += ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows]
    machine = run["machine"]
    settings = ", ".join(f"{name} {cell(value)}" for name, value in run["settings"].items())
    source = (
        f"<sub>{settings}. {machine['cpu']}, {machine['cores']} cores, no GPU; "
        f"`bench/{run['question']}.py` at {run['commit']}, {run['date'][:10]}.</sub>"
    )
    return "\n".join([*lines, "", source, ""])


def filled(text: str) -> str:
    """A Markdown text with all of its tables made anew."""
    return BLOCK.sub(lambda part: part[1] + render(newest(part[2])) + part[3], text)


if __name__ == "__main__":
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.name)
