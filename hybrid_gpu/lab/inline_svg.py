"""Pictures as elements of an HTML page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping


def inline_svg(content: bytes, *, name: str, title: str) -> str:
    """A picture of ours as an element of a page that holds several of them.

    Every ``id`` that something refers to is put behind the section's name; the others go.
    """
    root = ElementTree.fromstring(content)
    # An SVG file's style sheet would be one for the whole page.
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
        # The indentation is half of the file. No text of ours is all blank.
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
    """A name without its namespace: a page knows those of SVG by heart."""
    return name.rpartition("}")[2]


def _renamed(attributes: Mapping[str, str], referenced: set[str], name: str) -> dict[str, str]:
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
