"""`waypost version`: version of this program, and of the Python that runs it."""

from __future__ import annotations

import platform

import click

from bridge.version import VERSION
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say


@click.command()
@json_option("version")
def version(as_json: JsonOutput | None) -> None:
    """Show the version. `--version` prints it alone."""
    found = {"waypost": VERSION, "python": platform.python_version(), "machine": platform.machine()}
    if as_json:
        as_json.show([found])
        return
    say(f"waypost {VERSION} (Python {found['python']}, {found['machine']})")
