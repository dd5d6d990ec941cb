"""Write the tables of the README from the recorded runs: nobody types a number.

    python bench/report.py

A table stands between ``<!-- table: QUESTION -->`` and ``<!-- end -->``; the newest run of that
question fills it. ``<!-- table: QUESTION steps=5 -->`` takes only the rows in which steps is 5.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from common import cell, newest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- table: (\w+)((?: \w+=\w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(run: dict[str, Any], wanted: dict[str, str]) -> str:
    """The wanted rows of a run as a Markdown table, with the machine below it."""
    rows = [
        row for row in run["rows"] if all(str(row[name]) == told for name, told in wanted.items())
    ]
    names = [name for name in rows[0] if name not in wanted]
    lines = ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    lines += ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows]
    machine = run["machine"]
    told = {**run["settings"], **wanted}
    settings = ", ".join(f"{name} {cell(value)}" for name, value in told.items())
    source = (
        f"<sub>{settings}. {machine['cpu']}, {machine['cores']} cores, no GPU; "
        f"`bench/{run['question']}.py` at {run['commit']}, {run['date'][:10]}.</sub>"
    )
    return "\n".join([*lines, "", source, ""])


def filled(text: str) -> str:
    """A Markdown text with all of its tables made anew."""

    def table(part: re.Match[str]) -> str:
        wanted = dict(one.split("=") for one in part[3].split())
        return part[1] + render(newest(part[2]), wanted) + part[4]

    return BLOCK.sub(table, text)


if __name__ == "__main__":
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.name)
