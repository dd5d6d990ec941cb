"""Fill tables and draw figures from the recorded runs: nobody types a number.

    python bench/report.py

A table stands between ``<!-- table: QUESTION -->`` and ``<!-- end -->``; the newest run of that
question fills it, or a line that says that there is none. More words say which part is shown:

    <!-- table: space_time steps=5 -->                  only rows in which steps is 5
    <!-- table: methods_on_digits rows=nn,hybrid -->    only rows with one of these names
    <!-- table: space_time rows="hybrid-paper 400","hybrid, eigen 400, float32" -->
    <!-- table: quality_sets columns=data,items,plain -->   only these columns, in this order

``<!-- table: paper_experiments.table-1 -->`` is a table of the paper, and
``<!-- table: campaign -->`` adds up the lines of the newest campaign of each kind;
``planted_faults`` and ``standin_suites`` tell what was executed for GPUs, and ``gpu_kernels``,
``gpu_batches`` and ``gpu_checks`` what a model says of their speed. The paper's figures, those of
the peers' time against their accuracy, and the demo's picture go to ``docs/figures``.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from common import RESULTS, all_of, cell, newest
from gpu_model_tables import gpu_batches, gpu_checks, gpu_kernels
from gpu_tables import planted_faults, standin_suites

from hybrid_gpu import build_index, datasets
from hybrid_gpu.cli.pictures import draw_results
from hybrid_gpu.lab.chart_panels import Panel, Series
from hybrid_gpu.lab.charts import drawn
from hybrid_gpu.lab.experiments import Run
from hybrid_gpu.lab.figures import sections_of
from hybrid_gpu.lab.report_sections import ReportSection

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
# The value of an option is a word or a list with commas; names with spaces stand in quotes.
VALUE = r'(?:"[^"]*"|[^\s"])+'
OPTION = re.compile(rf" (\w+)=({VALUE})")
BLOCK = re.compile(
    r"(?P<head><!-- table: (?P<question>\w+)(?:\.(?P<part>[\w-]+))?"
    rf"(?P<options>(?: \w+={VALUE})*) -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def selected(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """The rows whose first cell is one of the names; all rows if there are no names."""
    known = [next(iter(row.values())) for row in rows]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no row is named {unknown}; the names are {list(dict.fromkeys(known))}.")
    return [row for row, name in zip(rows, known, strict=True) if not names or name in names]


def render(run: dict[str, Any], options: dict[str, str]) -> str:
    """The wanted rows of a run as a Markdown table, with the machine below it."""
    wanted = {name: told for name, told in options.items() if name not in ("rows", "columns")}
    rows = [
        row for row in run["rows"] if all(str(row[name]) == told for name, told in wanted.items())
    ]
    if not rows:
        raise ValueError(f"no row of {run['question']} has {wanted}.")
    rows = selected(rows, next(csv.reader([options.get("rows", "")]), []))
    names = [name for name in rows[0] if name not in wanted]
    columns = next(csv.reader([options.get("columns", "")]), [])
    if not set(columns) <= set(names):
        raise ValueError(f"columns must be some of {names}; got {columns}.")
    names = columns or names
    lines = ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    lines += ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows]
    machine = run["machine"]
    told = {**run["settings"], **wanted}
    settings = ", ".join(f"{name} {cell(value)}" for name, value in told.items())
    source = (
        f"<sub>{settings}. {machine['cpu']}, {machine['cores']} cores, "
        # Runs of before GPUs were asked for had none.
        f"{machine.get('gpu', 'no GPU')}; "
        f"`bench/{script(run['question'])}` at {run['commit']}, {run['date'][:10]}.</sub>"
    )
    return "\n".join([*lines, "", source, ""])


def script(question: str) -> str:
    """The script that answers a question; one that answers several has the first words."""
    words = question.split("_")
    names = ["_".join(words[:count]) + ".py" for count in range(len(words), 0, -1)]
    return next(name for name in names if (Path(__file__).parent / name).is_file())


def filled(text: str) -> str:
    """A Markdown text with all of its tables made anew."""

    def table(block: re.Match[str]) -> str:
        made = {
            "campaign": campaign,
            "planted_faults": planted_faults,
            "standin_suites": standin_suites,
            "gpu_kernels": gpu_kernels,
            "gpu_batches": gpu_batches,
            "gpu_checks": gpu_checks,
        }.get(block["question"])
        if made is not None:
            return block["head"] + made() + block["end"]
        if not (RESULTS / f"{block['question']}.jsonl").is_file():
            unknown = f"Not measured yet: `bench/{script(block['question'])}`.\n"
            return block["head"] + unknown + block["end"]
        run = newest(block["question"])
        if block["part"]:
            run = {**run, "rows": sections(run)[block["part"]].rows}
        options = dict(OPTION.findall(block["options"]))
        return block["head"] + render(run, options) + block["end"]

    return BLOCK.sub(table, text)


def campaign() -> str:
    """What the newest campaign of each kind tried, and every failure of it."""
    lines = all_of("campaign")
    newest = {line["kind"]: line["commit"] for line in lines}
    kinds: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["commit"] == newest[line["kind"]]:
            kinds.setdefault(line["kind"], []).append(line)
    table = ["| kind | what is promised | tried | failed | commit |", "|---|---|---:|---:|---|"]
    failed = []
    for name, parts in kinds.items():
        tried = f"{sum(part['tried'] for part in parts):,} {parts[0]['unit']}"
        skipped = next((part["skipped"] for part in parts if part["skipped"]), "")
        failures = [one for part in parts for one in part["failures"]]
        failed += [
            f"- `{name}` {one['trial']}: {one['fault']}. {one['detail']}" for one in failures
        ]
        count = "" if skipped else f"{len(failures):,}"
        table.append(
            f"| `{name}` | {parts[0]['promise']} | {(skipped and f'skipped: {skipped}') or tried} "
            f"| {count} | {newest[name]} |"
        )
    minutes = sum(line["seconds"] for parts in kinds.values() for line in parts) / 60
    source = (
        f"<sub>`python tools/campaign --long`, {lines[-1]['date'][:10]}, {minutes:.0f} minutes."
        "</sub>"
    )
    return "\n".join([*table, "", *failed, *([""] if failed else []), source, ""])


def sections(run: dict[str, Any]) -> dict[str, ReportSection]:
    """The figures and tables of the paper, from a recorded run of its experiments."""
    return {part.name: part for part in sections_of(Run.from_json(run["run"]))}


def figures(run: dict[str, Any]) -> dict[Path, bytes]:
    """The paper's figures as files."""
    note = f"{run['machine']['cpu']}, {run['machine']['cores']} cores; {run['commit']}"
    return {
        FIGURES / f"{name}.svg": drawn(
            part.panels, formats=("svg",), columns=part.columns, note=note
        )["svg"]
        for name, part in sections(run).items()
        if part.panels
    }


# The ways that the picture of the peers joins to one line, by how their names begin.
FAMILIES = {
    "hybrid_gpu local": "local",
    "hybrid_gpu hybrid, aggregates": "hybrid",
    "hybrid_gpu temporal": "temporal",
    "SciPy cg": "SciPy cg",
    "scikit-network piteration": "scikit-network piteration",
    "scikit-network bicgstab": "scikit-network bicgstab",
    "PyGSP": "PyGSP",
    "PyAMG": "PyAMG",
    "torch CSR": "torch",
    "torch-ppr": "torch-ppr",
    "PyG get_ppr": "PyG, no weights",
    "textbook forward push": "forward push",
}


def peer_panels(run: dict[str, Any]) -> list[Panel]:
    """Time against the part of the top 100 that is missed, for each family of ways."""
    families: dict[str, list[tuple[float, float]]] = {}
    for row in run["rows"]:
        name = next((FAMILIES[start] for start in FAMILIES if row["way"].startswith(start)), "")
        alone = "one at a time" in row["way"]
        if name and not alone and row["ms per query"] is not None:
            # No point of a logarithmic axis is 0: less than one item in 10,000 is not told apart.
            missed = max(1 - row["agreement@100"], 1e-4)
            families.setdefault(name, []).append((row["ms per query"], missed))
    series = tuple(Series(name, tuple(sorted(points))) for name, points in families.items())
    title = f"{run['settings']['items']:,} items"
    axes = ("ms per query", "part of the top 100 that is missed")
    return [Panel(title, *axes, series, log_x=True, log_y=True)]


def peer_figures() -> dict[Path, bytes]:
    """The pictures of both comparisons with peers, as files."""
    made = {}
    for question in ("peers_fashion", "peers_million"):
        run = newest(question)
        note = f"{run['machine']['cpu']}, {run['machine']['cores']} cores; {run['commit']}"
        name = question.replace("_", "-")
        made[FIGURES / f"{name}.svg"] = drawn(peer_panels(run), formats=("svg",), note=note)["svg"]
    return made


def draw_digits(path: Path) -> None:
    """The picture of ``hybrid-gpu demo``: first results before and after diffusion."""
    split = datasets.split_queries(datasets.digits(), 200, seed=7)
    benchmark = datasets.benchmark_of(split, queries=200, seed=7)
    index = build_index(benchmark.descriptors, backend="numpy")
    draw_results(index, benchmark, path, queries=2)


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    for path, content in (figures(newest("paper_experiments")) | peer_figures()).items():
        path.write_bytes(content)
        print(path.name)
    draw_digits(FIGURES / "digits.svg")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.name)
