"""Settings of the docs site: Sphinx with Furo, pages in Markdown. See decisions/0001."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bridge.version import VERSION
from docs.generate.drawings import embed
from docs.generate.pages import fill, list_others

project = "Waypost"
author = "The Waypost authors"
project_copyright = "The Waypost authors, Apache License 2.0"
version = release = VERSION

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["generate"]
nitpicky = True
smartquotes = False
"""Options begin with two dashes, also outside of code."""

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "substitution"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "Waypost"
html_static_path = ["_static"]
html_css_files = ["waypost.css"]
html_show_sphinx = False
html_copy_source = False
html_use_index = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
"""No link to a source: readers of the site may have no access to a forge."""
templates_path: list[str] = []


def _fill(app: Sphinx, name: str, content: list[str]) -> None:
    content[0] = list_others(embed(fill(content[0])), (app.srcdir / name).parent)


def setup(app: Sphinx) -> None:
    """Put generated parts and drawings into pages while they are read."""
    app.connect("source-read", _fill)
