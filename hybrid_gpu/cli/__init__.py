"""The command ``hybrid-gpu``: the only package that prints."""

from __future__ import annotations

import sys

from hybrid_gpu.cli import (
    batches,
    demo,
    exploring,
    indexes,
    machine,
    measures,
    paper,
    searches,
    serving,
    tuning,
)
from hybrid_gpu.cli.common import app

__all__ = ["app", "main"]

# In the order of --help; a new command is one more line.
_COMMANDS = (
    demo.demo,
    tuning.tune,
    indexes.build,
    searches.search,
    searches.rerank,
    batches.batch,
    serving.serve,
    exploring.explore,
    measures.evaluate,
    indexes.precompute,
    indexes.plan,
    indexes.info,
    paper.paper,
    machine.doctor,
    machine.selfcheck,
)
for _command in _COMMANDS:
    app.command()(_command)


def main() -> None:
    """Run the command."""
    try:
        app(prog_name="hybrid-gpu")
    except OSError as fault:  # of --help and --version, which run before any command
        sys.exit(f"error: {fault.strerror}.")
