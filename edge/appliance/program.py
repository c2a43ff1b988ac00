"""Name of this program, as the user called it.

Texts in the code write every command in one form, `waypost store info`. Before a user sees them, `as_called` replaces
the name by the one that the user called, for example `./waypost` in a checkout.
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
"""Environment variable with the name that the user called, set by the launcher of a checkout."""

_COMMAND: Final = re.compile(rf"(?<![\w./-]){NAME}(?= (?:{'|'.join((*COMMANDS, *FROM_A_CHECKOUT))})\b)")


@functools.cache
def program_name() -> str:
    """Return the program's name for a shell: a bare name if the shell finds it, otherwise the path that was called."""
    called = os.environ.get(VARIABLE, "")
    if not called and os.path.basename(sys.argv[0]) == NAME:  # the script of an installation
        called = sys.argv[0]
    if not called:
        return NAME
    name = os.path.basename(called)
    return shlex.quote(name if _found_by_shell(name) == called else called)


def _found_by_shell(name: str) -> str | None:
    """Find a bare name on the path, as `shutil.which` does: importing that takes 0.6 MiB in every gateway."""
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def frozen() -> bool:
    """Return True in a gateway that is packaged with its own Python (`waypost image freeze`)."""
    return bool(getattr(sys, "frozen", False))


def command() -> list[str]:
    """Return the words that start this program from any directory, to be followed by a command."""
    return [sys.executable] if frozen() else [sys.executable, "-P", "-m", "edge.appliance.main"]


def launcher() -> Path | None:
    """Return the launcher of the checkout that started this process; None without one."""
    called = os.environ.get(VARIABLE)
    return Path(called).absolute() if called else None


def as_called(text: str) -> str:
    """Return the text with commands under the name that the user calls."""
    return _COMMAND.sub(lambda _: program_name(), text)


def log_to_stderr(level: int) -> None:
    """Log to stderr from `level` on. An earlier set-up stays."""
    from edge.output.logs import write_to_stderr  # noqa: PLC0415 - help needs none

    write_to_stderr(level, as_called)
