"""What this program is called: what the person at the keyboard called it.

In the code a text names every command in one form, `waypost store info`. Where it reaches a person, `as_called` puts in
the name by which that person called the program: `./waypost` in a checkout, for example.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Final

from edge.appliance.commands import COMMANDS, FROM_A_CHECKOUT

NAME: Final = "waypost"
VARIABLE: Final = "WAYPOST_PROGRAM"
"""Environment variable in which the launcher of a checkout says how it was called."""

_COMMAND: Final = re.compile(rf"(?<![\w./-]){NAME}(?= (?:{'|'.join((*COMMANDS, *FROM_A_CHECKOUT))})\b)")


@functools.cache
def program_name() -> str:
    """The program's name, to be pasted into a shell: a bare name where the shell finds it, else the path it was."""
    called = os.environ.get(VARIABLE, "")
    if not called and os.path.basename(sys.argv[0]) == NAME:  # the script of an installation
        called = sys.argv[0]
    if not called:
        return NAME
    name = os.path.basename(called)
    return shlex.quote(name if _found_by_shell(name) == called else called)


def _found_by_shell(name: str) -> str | None:
    """As `shutil.which`, of a bare name: to import that takes 0.6 MiB of every gateway's memory."""
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def frozen() -> bool:
    """Whether this is a gateway that brings its own Python (`waypost image freeze`)."""
    return bool(getattr(sys, "frozen", False))


def command() -> list[str]:
    """What starts this program, whoever starts it and wherever: the words before a command's."""
    return [sys.executable] if frozen() else [sys.executable, "-P", "-m", "edge.appliance.main"]


def launcher() -> Path | None:
    """The launcher of the checkout this runs from; None: it was not started by one."""
    called = os.environ.get(VARIABLE)
    return Path(called).absolute() if called else None


def as_called(text: str) -> str:
    """A text with the program's commands as this person calls them."""
    return _COMMAND.sub(lambda _: program_name(), text)


def log_to_stderr(level: int) -> None:
    """Log what is at least as grave as `level`; what was set up before stays."""
    from edge.output.logs import write_to_stderr  # noqa: PLC0415 - help needs none

    write_to_stderr(level, as_called)
