"""Parts of the site's pages that are made when it is built.

``<!-- file: README.md -->`` stands for a page of the repository, with its links turned, and
``<!-- commands -->`` for the arguments and options of every command.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Pages of the repository that the site shows under another name.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def fill(app: Any, name: str, source: list[str]) -> None:
    """Replace the comments of a page by what they stand for; an event of Sphinx."""
    text = re.sub(r"<!-- file: (\S+) -->", lambda found: page(found[1]), source[0])
    source[0] = re.sub("<!-- commands -->", lambda found: commands(), text)


def page(name: str) -> str:
    """The text of a page at the root of the repository, its links as they are inside ``docs``."""

    def turned(found: re.Match[str]) -> str:
        picture, label, target, anchor = found.groups(default="")
        if not target or target.startswith("http"):
            return found[0]
        if target in PAGES or target.startswith("docs/"):
            return f"{picture}[{label}]({PAGES.get(target, target.removeprefix('docs/'))}{anchor})"
        return f"{label} (`{target}`)"  # no page of the site

    return LINK.sub(turned, (ROOT / name).read_text(encoding="utf-8"))


def commands() -> str:
    """Every command with its arguments and options, as Markdown."""
    from typer.main import get_command

    from hybrid_gpu.cli import app

    group = get_command(app)
    return "\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    """One command: what it does, how it is called, and a table of what it takes."""
    shown = [one for one in command.params if not one.hidden]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    usage = " ".join(["hybrid-gpu", name, *map(_argument, arguments), "[OPTIONS]"])
    lines = [f"## {name}", "", command.help.strip(), "", "```text", usage, "```", ""]
    lines += ["| takes | what it is | default |", "|---|---|---|"]
    lines += [_row(f"`{_argument(one)}`", one) for one in arguments]
    lines += [_row(_option(one), one) for one in options]
    return "\n".join([*lines, ""])


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name.strip('[]')}]"


def _option(option: Any) -> str:
    """All of its spellings, and a word for its value."""
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return ", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts])


def _row(shown: str, parameter: Any) -> str:
    default = parameter.default
    empty = default is None or default is False or callable(default)
    told = "" if empty else f"`{default}`"
    cells = (shown, parameter.help or "", "required" if parameter.required else told)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
