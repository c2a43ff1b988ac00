"""Render the output of a console: lines with colours, as U-Boot, Linux and systemd write them (ECMA-48).

They erase lines (EL) and move up one line (RI). Other cursor movements are ignored.
"""

from __future__ import annotations

import io
import re
from typing import Final

from rich.console import Console
from rich.text import Text

WIDTH: Final = 110
HEIGHT: Final = 34
_PIECES: Final = re.compile(r"\r|\n|\x1bM|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[^\r\n\x1b]+|\x1b")
_FONTS: Final = re.compile(r"@font-face *\{.*?\}\s*", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def render_lines(output: str) -> list[str]:
    """Return the lines of a terminal of unlimited height, with colours as escape sequences (SGR)."""
    lines, row, at_start = [""], 0, False
    for piece in _PIECES.findall(output):
        if piece == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif piece == "\r":
            at_start = True
            continue
        elif piece == "\x1bM":
            row = max(row - 1, 0)
        elif piece == "\x1b[K":
            lines[row] = "" if at_start else lines[row]
        elif _COLOUR.fullmatch(piece):
            lines[row] += piece
            continue
        elif not piece.startswith("\x1b"):
            lines[row] = piece if at_start else lines[row] + piece
        at_start = False
    return lines


def render_svg(output: str, title: str) -> str:
    """Return an SVG of the last screen of a terminal. It loads no font."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")
    for line in render_lines(output.rstrip())[-HEIGHT:]:
        console.print(Text.from_ansi(line), overflow="fold", highlight=False)
    return _FONTS.sub("", console.export_svg(title=title))
