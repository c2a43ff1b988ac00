"""`python -m launcher ROOT VENV PYTHONPATH COMMAND...`: start a command, once its environment is set up.

The third argument is the caller's own PYTHONPATH: the launcher itself is found by another one.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from launcher.environment import Environment
from launcher.package_sets import sets_of
from launcher.steps import SetUpError, say

PROGRAM = "edge.appliance.main"
IN_CHECKOUT = {
    "demo": "tests.demo",
    "hub cluster-demo": "tests.demo.cluster",
    "test": "tests",
    "bench": "tests.bench",
    "docs": "docs.generate",
}
"""Commands that only a checkout has, with the modules that run them."""
WRITES = {"tests.demo", "tests.demo.cluster", "docs.generate"}
"""Modules that write to a folder of the caller's, so they stay in the caller's working directory."""
HELP_NEEDS = ("click", "msgspec", "rich", "yaml")


def start(python: Path, root: Path, search: str, words: Sequence[str]) -> NoReturn:
    """Become the command. `search` is its PYTHONPATH."""
    module = PROGRAM
    arguments = list(words)
    count = next((count for count in (2, 1) if " ".join(words[:count]) in IN_CHECKOUT), 0)
    if count:
        module = IN_CHECKOUT[" ".join(words[:count])]
        del arguments[:count]
        search = f"{root}:{search}" if search else str(root)
        if module not in WRITES:
            os.chdir(root)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if search:
        environment["PYTHONPATH"] = search
    os.execve(python, [str(python), "-P", "-m", module, *arguments], environment)


def print_short_help(root: Path) -> None:
    """Print the help that needs no packages."""
    comment = (root / "waypost").read_text().split("\nset -eu")[0].splitlines()[1:]
    print("\n".join(line.removeprefix("#").removeprefix(" ") for line in comment))
    from edge.appliance.commands import COMMANDS  # noqa: PLC0415 - of the checkout: only the help needs it

    print("\nCommands:", *(f"  {name:<10} {command.help}" for name, command in COMMANDS.items()), sep="\n")


def be_interrupted(*_: object) -> NoReturn:
    """End set-up on a signal as Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Start the command; return an exit code only when that is not possible."""
    root, venv, search = Path(arguments[0]), Path(arguments[1]), arguments[2]
    words = list(arguments[3:])
    agreed = words[:1] == ["--yes"]
    if agreed:
        words = words[1:]
    # Resolved: the launcher may run in the environment that is made again.
    environment = Environment(root, venv, Path(sys.executable).resolve())
    if words[:1] in ([], ["-h"], ["--help"]):
        if not all(map(importlib.util.find_spec, HELP_NEEDS)):
            print_short_help(root)
            return 0
        start(Path(sys.executable), root, f"{root}:{search}".rstrip(":"), ["--help"])
    sets = sets_of(words)
    compiles = any(each.compiles for each in sets)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, be_interrupted)
    try:
        if not environment.ready(sets) or (compiles and not environment.compiled()):
            with environment.locked():
                if not environment.ready(sets):
                    environment.set_up(sets, agreed)
                elif compiles and not environment.compiled():
                    environment.compile()
    except SetUpError as error:
        say(f"waypost: {error}\n  {error.next_step}")
        return error.code
    except KeyboardInterrupt:
        say("\nwaypost: set-up interrupted; the next start takes it up")
        return 130
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    start(environment.python, root, search, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
