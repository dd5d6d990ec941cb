"""Mutants of the core that no test can tell from the original, and why."""

EQUIVALENT: dict[str, str] = {}
