"""Parts of the site's pages that are made when it is built.

- ``<!-- file: README.md -->``: a page of the repository, its links turned
- ``<!-- pages: serving scale -->``: those of some pages that have been written
- ``<!-- commands -->``: the arguments and options of every command
- ``<!-- api: hybrid_gpu build_index load_index -->``: the docstrings of these names; without names,
  of those of ``__all__`` that no other comment of the page has
"""

from __future__ import annotations

import importlib
import inspect
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
API = re.compile(r"<!-- api: (\S+)([\w\s]*?)\s*-->")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def fill(app: Any, name: str, source: list[str]) -> None:
    """Replace the comments of a page by what they stand for; an event of Sphinx."""
    text = re.sub(r"<!-- file: (\S+) -->", lambda found: page(found[1]), source[0])
    text = re.sub("<!-- pages: (.*?) -->", lambda found: existing(found[1].split()), text)
    text = re.sub("<!-- commands -->", lambda found: commands(), text)
    source[0] = API.sub(lambda found: docstrings(found[1], names_of(found, text)), text)


def unlink_shapes(app: Any, doctree: Any) -> None:
    """Take the links out of types: the n of "(n, d)" would lead to some attribute of that name."""
    from sphinx.addnodes import pending_xref

    for link in list(doctree.findall(pending_xref)):
        if link.get("refdomain") == "py" and link["reftarget"].islower():
            link.replace_self(link.children)


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


def existing(names: list[str]) -> str:
    """Those of some pages that have been written, one a line."""
    return "\n".join(name for name in names if (ROOT / "docs" / f"{name}.md").is_file())


def names_of(found: re.Match[str], text: str) -> list[str]:
    """The names of one comment: those that it lists, or the public ones that no other lists."""
    told = found[2].split()
    if told:
        return told
    module = importlib.import_module(found[1])
    listed = {
        name for place, names in API.findall(text) if place == found[1] for name in names.split()
    }
    public = [name for name in module.__all__ if name not in listed]
    return [name for name in public if not inspect.ismodule(getattr(module, name))]


def docstrings(module: str, names: list[str]) -> str:
    """A block that takes the docstrings of some names of a module."""
    lines = []
    for name in names:
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value):
            fault = issubclass(value, BaseException)
            lines += [
                f".. auto{'exception' if fault else 'class'}:: {module}.{name}",
                "   :members:",
            ]
        elif callable(value) and hasattr(value, "__name__"):
            lines += [f".. autofunction:: {module}.{name}"]
        else:
            lines += [f".. autodata:: {module}.{name}", "   :no-value:"]
        lines += [""]
    return "\n".join(["```{eval-rst}", *lines, "```"]) if lines else ""


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
