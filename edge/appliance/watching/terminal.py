"""Full screen of a terminal: alternate screen, no echo, keys one by one. ANSI sequences only (ECMA-48, xterm)."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""Alternate screen; cursor hidden."""
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
KEY_BYTES_MAX: Final = 16
"""Longest sequence of one key."""


class ScreenSize(NamedTuple):
    """Size of the terminal in characters."""

    columns: int
    rows: int


class FullScreen:
    """The screen of the terminal on standard input and output."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()

    @property
    def size(self) -> ScreenSize:
        """Size now: it changes with the window."""
        return ScreenSize(*shutil.get_terminal_size())

    def draw(self, rows: Sequence[str]) -> None:
        """Draw all rows at once, which does not flicker."""
        sys.stdout.write("\x1b[H" + "\n".join(f"{row}\x1b[0m\x1b[K" for row in rows) + "\x1b[J")
        sys.stdout.flush()

    def key(self, seconds: float) -> str:
        """Return the next key; empty after this time. `end` when the terminal is gone."""
        until = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self._input], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return ""
            typed = os.read(self._input, KEY_BYTES_MAX)
            return typed.decode("utf-8", "replace") if typed else "end"


@contextlib.contextmanager
def full_screen() -> Iterator[FullScreen]:
    """Give the terminal to a view, and restore it at the end, also after an error."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    sys.stdout.write(ENTER)
    sys.stdout.flush()
    try:
        yield FullScreen()
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
