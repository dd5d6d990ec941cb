"""Attack what the library promises, many times, with seeded trials.

    python tools/campaign                    the short form: two to three minutes
    python tools/campaign --long             the long form, appended to bench/results/campaign.jsonl
    python tools/campaign edits --trials 50  one kind, so many trials
    python tools/campaign edits --seed 7 --from 12 --trials 1    one trial again

Exits with 1 if anything failed. The long form goes on where an earlier one of the same commit and
seed stopped. docs/reliability.md is made from its lines by ``python bench/report.py``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import kinds  # noqa: E402
from common import Kind, Tally  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "campaign.jsonl"
DEFAULT_SEED = 20_261
# A line of the log covers about so much time: what an interruption costs.
_SECONDS_PER_LINE = 30.0


def all_kinds() -> dict[str, Kind]:
    """The kinds of all modules in ``kinds``, by name."""
    found: dict[str, Kind] = {}
    for module in pkgutil.iter_modules(kinds.__path__):
        for kind in importlib.import_module(f"kinds.{module.name}").KINDS:
            found[kind.name] = kind
    return found


def trials(kind: Kind, seed: int, first: int) -> Iterator[tuple[int, Tally]]:
    """The trials of a kind from a number on, without end."""
    number = first
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"campaign-{kind.name}-"))
        try:
            # The name is a part of the seed: no two kinds draw the same numbers.
            yield number, kind.trial(_seed(kind.name, seed, number), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        number += 1


def run(kind: Kind, seed: int, first: int, goal: int, limit: float) -> dict[str, Any]:
    """Trials until so many units are tried, or the seconds are over; one line of the log."""
    start, tried, failures, skipped, number = time.perf_counter(), 0, [], "", first - 1
    for number, tally in trials(kind, seed, first):
        tried += tally.tried
        skipped = tally.skipped
        failures += [
            {"trial": number, "fault": one.fault, "detail": one.detail} for one in tally.failures
        ]
        if skipped or tried >= goal or time.perf_counter() - start > limit:
            break
    return {
        "kind": kind.name,
        "promise": kind.promise,
        "unit": kind.unit,
        "seed": seed,
        "from": first,
        "to": number + 1,
        "tried": tried,
        "skipped": skipped,
        "failures": failures,
        "seconds": round(time.perf_counter() - start, 1),
    }


def short_form(names: list[str], seed: int, trial_count: int | None, first: int) -> bool:
    """Each kind once, printed; whether everything held."""
    held = True
    for name in names:
        kind = all_kinds()[name]
        if trial_count is None:
            line = run(kind, seed, first, kind.short, limit=float("inf"))
        else:
            line = run(kind, seed, first, 1 << 62, limit=0.0) if trial_count else {}
            for extra in range(1, trial_count):
                more = run(kind, seed, first + extra, 1 << 62, limit=0.0)
                added = ("tried", "failures", "seconds")
                line = {**more, **{key: line[key] + more[key] for key in added}}
        held &= not line["failures"]
        show(line)
    return held


def long_form(names: list[str], seed: int) -> bool:
    """Each kind up to its goal, a line of the log at a time; whether everything held."""
    held = True
    for name in names:
        kind = all_kinds()[name]
        while True:
            before = [one for one in _lines() if _same(one, name, seed)]
            left = kind.long - sum(one["tried"] for one in before)
            if left <= 0 or any(one["skipped"] for one in before):
                break
            first = max((one["to"] for one in before), default=0)
            line = run(kind, seed, first, left, _SECONDS_PER_LINE)
            _append({**line, "goal": kind.long})
            held &= not line["failures"]
            show(line)
    return held


def show(line: dict[str, Any]) -> None:
    """One line for a person."""
    if line["skipped"]:
        print(f"{line['kind']:<12} skipped: {line['skipped']}", flush=True)
        return
    count = f"{line['tried']:,} {line['unit']}"
    print(
        f"{line['kind']:<12} {count:<24} {len(line['failures'])} failed  {line['seconds']:>7.1f} s",
        flush=True,
    )
    for one in line["failures"][:10]:
        print(f"    trial {one['trial']}: {one['fault']}: {one['detail']}", flush=True)


def _seed(name: str, seed: int, number: int) -> int:
    mixed = 0
    for part in (*name.encode(), seed, number):
        mixed = (mixed * 1_000_003 + part) & 0x7FFFFFFF
    return mixed


def _same(line: dict[str, Any], name: str, seed: int) -> bool:
    return bool(line["kind"] == name and line["seed"] == seed and line["commit"] == _commit())


def _lines() -> list[dict[str, Any]]:
    if not RESULTS.is_file():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def _append(line: dict[str, Any]) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps({"date": now, "commit": _commit(), **line}) + "\n")


def _commit() -> str:
    """The last commit that touched what is attacked, or attacks it."""
    # Not HEAD: recording results must not make them those of another commit.
    watched = ["hybrid_gpu", "kernels", "tools/campaign", "pyproject.toml"]
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", *watched]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    dirty = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *watched]
    if subprocess.run(dirty, capture_output=True, text=True, check=False).stdout.strip():
        told += "-changed"
    return told or "unknown"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="all of them if none is named")
    parser.add_argument("--long", action="store_true", help="the long form, recorded")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--trials", type=int, help="so many trials, whatever they count")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first trial")
    parser.add_argument("--list", action="store_true", help="the kinds and what they attack")
    asked = parser.parse_args()
    known = all_kinds()
    if asked.list:
        for kind in known.values():
            print(f"{kind.name:<12} {kind.long:>9,} {kind.unit:<10} {kind.promise}")
        return 0
    unknown = [name for name in asked.kinds if name not in known]
    if unknown:
        parser.error(f"no kind {unknown[0]!r}; there are {', '.join(known)}")
    names = asked.kinds or list(known)
    if asked.long:
        held = long_form(names, asked.seed)
    else:
        held = short_form(names, asked.seed, asked.trials, asked.first)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
