"""How the site is built: python -m sphinx -W --keep-going docs build/site (needs the extra "docs").

Sphinx with MyST and the theme of NumPy and SciPy, of the three sets that we looked at in November
2026: all three packages had releases within the year, docstrings here are reStructuredText, and
search works from files. MkDocs had none for two years, and its theme Material is succeeded by
Zensical, which is before its first stable version.
Nothing is fetched from the network by the pages: no fonts, no scripts, and equations are Unicode.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import site_pages

import hybrid_gpu

project = "hybrid-gpu"
author = "The hybrid-gpu authors"
copyright = author
version = release = hybrid_gpu.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_heading_anchors = 4  # the links to sections that GitHub makes
myst_links_external_new_tab = False

napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_typehints = "none"  # the docstrings tell types, with shapes
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88

html_theme = "pydata_sphinx_theme"
html_title = f"hybrid-gpu {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
# Pages that stand alone have nothing to show beside them.
html_sidebars = {
    name: [] for name in ("index", "first-hour", "contributing", "changelog", "search")
}
html_theme_options = {
    "logo": {"text": "hybrid-gpu"},
    "navigation_with_keys": False,
    "show_prev_next": True,
    "header_links_before_dropdown": 6,
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def setup(app: object) -> None:
    """Fill in the parts of pages that are made from the code."""
    app.connect("source-read", site_pages.fill)
    app.connect("doctree-read", site_pages.unlink_shapes)
