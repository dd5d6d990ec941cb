"""Pictures as elements of an HTML page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping


def inline_svg(content: bytes, *, name: str, title: str) -> str:
    """An SVG file as an element of a page that holds several pictures.

    Ids that something refers to get ``name`` before them, so that no two pictures share one; other
    ids are removed.

    Parameters
    ----------
    content
        A file that ``canvas.encoded`` made.
    name
        Unique in the page; letters, digits, ``-`` and ``_``.
    title
        The text that screen readers say.
    """
    root = ElementTree.fromstring(content)
    # The style sheet of an SVG file would hold for the whole page.
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("style", "metadata"):
                parent.remove(child)
    text = " ".join(value for node in root.iter() for value in node.attrib.values())
    referenced = set(re.findall(r"#([\w.-]+)", text))
    for node in root.iter():
        node.tag = _local(node.tag)
        old = {_local(key): value for key, value in node.attrib.items()}
        node.attrib.clear()
        node.attrib.update(_renamed(old, referenced, name))
        # Indentation is half of the file; no label consists of blanks.
        for side in ("text", "tail"):
            if not (getattr(node, side) or "").strip():
                setattr(node, side, None)
    width = float(root.attrib["viewBox"].split()[2])
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": title}
    # Points of the drawing are 1/72 inch, those of a page 1/96.
    look = f"max-width: {width * 96 / 72:.0f}px; stroke-linejoin: round; stroke-linecap: butt"
    root.set("style", look)
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """A name without its namespace, which HTML does not need for SVG."""
    return name.rpartition("}")[2]


def _renamed(attributes: Mapping[str, str], referenced: set[str], name: str) -> dict[str, str]:
    """The attributes of an element, with ``name`` before every id and reference."""
    kept = {}
    for key, value in attributes.items():
        if key == "id":
            # A section's name has no full stop, so this is the id of nothing else.
            if value in referenced:
                kept[key] = f"{name}.{value}"
        elif key == "href":
            kept[key] = re.sub(r"^#", f"#{name}.", value)
        else:
            kept[key] = value.replace("url(#", f"url(#{name}.")
    return kept
