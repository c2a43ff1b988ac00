"""Steps of a set-up: their output in a log, their progress on the terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TITLE = 48
"""Columns of a step's title."""
SHOWN_LINES = 12
"""Lines of the log that a failed step shows."""


class SetUpError(Exception):
    """Set-up cannot continue. The message gives the reason, `next_step` the remedy, `code` the exit code."""

    def __init__(self, message: str, next_step: str, code: int = 1) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.code = code


def say(text: str) -> None:
    """Print to standard error: standard output belongs to the command that is started."""
    print(text, file=sys.stderr, flush=True)


class Steps:
    """Runs commands one after the other. `log` is a new file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        log.write_text("")

    def run(self, title: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a command with its output in the log, and show how long it takes. Raises SetUpError."""
        with self._log.open("a") as log:
            log.write(f"\n=== {title}: {' '.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                seconds = _wait(title, process.poll)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode != 0:
            say(f"  {title:<{TITLE}} failed")
            say("\n".join(["", *self._log.read_text(errors="replace").splitlines()[-SHOWN_LINES:], ""]))
            next_step = f"the whole log is {self._log}; correct the cause and start again"
            raise SetUpError(f"set-up failed at: {title}", next_step)
        say(f"  {title:<{TITLE}} {seconds:4.0f} s")


def _wait(title: str, poll: Callable[[], int | None]) -> float:
    """Wait until `poll` returns a value, showing the seconds on a terminal. Return the seconds."""
    began = time.monotonic()
    shown = sys.stderr.isatty()
    while poll() is None:
        if shown:
            print(f"\r  {title:<{TITLE}} {time.monotonic() - began:4.0f} s", end="", file=sys.stderr, flush=True)
        time.sleep(0.1)
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return time.monotonic() - began
