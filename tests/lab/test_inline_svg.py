"""SVG files as elements of a page."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hybrid_gpu.lab.inline_svg import inline_svg

FILE = b"""<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
    width="72pt" height="36pt" viewBox="0 0 72 36" version="1.1">
  <metadata>when</metadata>
  <style>* { stroke: red }</style>
  <defs><path id="used" d="M 0 0"/><path id="unused" d="M 1 1"/><clipPath id="clip"/></defs>
  <use xlink:href="#used" clip-path="url(#clip)"/>
  <text>a &lt;b&gt; #used url(#clip)</text>
</svg>
"""


def test_picture_is_one_element_with_ids_of_its_own():
    text = inline_svg(FILE, name="figure-1", title="A <title>")
    root = ElementTree.fromstring(text)
    assert root.tag == "svg"
    assert root.get("aria-label") == "A <title>"
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert ids == ["figure-1.used", "figure-1.clip"]
    use = root.find("use")
    assert use.attrib == {"href": "#figure-1.used", "clip-path": "url(#figure-1.clip)"}
    assert root.find("text").text == "a <b> #used url(#clip)"


def test_picture_brings_nothing_for_the_whole_page():
    text = inline_svg(FILE, name="figure-1", title="")
    assert "<style" not in text
    assert "metadata" not in text
    assert "xmlns" not in text
    assert "width=" not in text
    # 72 points of a drawing are an inch, which is 96 pixels of a page.
    assert "max-width: 96px" in text
