"""`waypost version`: version of this program, and of the Python that runs it."""

from __future__ import annotations

import platform

import click

from bridge.version import VERSION
from edge.output.terminal import say, say_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Show the version. `--version` prints it alone."""
    found = {"waypost": VERSION, "python": platform.python_version(), "machine": platform.machine()}
    if as_json:
        say_json({"schema": 1, "kind": "version", "items": [found]})
        return
    say(f"waypost {VERSION} (Python {found['python']}, {found['machine']})")
