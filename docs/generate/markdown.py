"""Markdown of generated pages: tables, anchors, inline code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def anchor(text: str) -> str:
    """Return a label for a heading: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def heading(level: int, text: str, label: str) -> str:
    """Return a heading with a label that other pages can link to."""
    return f"({label})=\n{'#' * level} {text}\n"


def code(text: str) -> str:
    """Return inline code; nothing for an empty text."""
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """Return a docstring or a help text as one line of Markdown: its double backquotes become single ones, and what
    would be markup is escaped outside of code."""
    text = " ".join(text.replace("``", "`").split())
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backquote: no code
        return _escape(text.replace("`", "'"))
    return "".join(code(part) if index % 2 else _escape(part) for index, part in enumerate(parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. A `|` in a cell is escaped, a line break becomes `<br>`."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _escape(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]$#{}])", r"\\\1", text)
