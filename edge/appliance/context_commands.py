"""`waypost context`: name the gateways and hubs that one works with, and choose one."""

from __future__ import annotations

from pathlib import Path

import click

from edge.appliance import contexts
from edge.appliance.contexts import Context, Contexts
from edge.output.terminal import say, say_json

name_argument = click.argument("name")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def context() -> None:
    """Choose the gateway or hub to work with. Commands use its data directory when --data is not given.

    \b
    Where a command looks for the data directory, in this order:
      1. option --data
      2. environment variable WAYPOST_DATA
      3. the context in use
      4. the only gateway (for `waypost gateway`, `token`, …: the only hub) that runs here: on a directory
         /var/lib/waypost*, the current directory, or a folder in it
    \b
      waypost context add hall --data /srv/waypost/hall
      waypost context use hall
      waypost status
    """


@context.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_contexts(as_json: bool) -> None:
    """List the contexts. A star marks the one in use."""
    known = contexts.read()
    if as_json:
        rows = [
            {"name": name, "data": each.data, "current": name == known.current}
            for name, each in sorted(known.contexts.items())
        ]
        say_json({"schema": 1, "kind": "context", "items": rows})
        return
    for name, each in sorted(known.contexts.items()):
        say(f"{'*' if name == known.current else ' '} {name}  {each.data}")
    if not known.contexts:
        say("no contexts; add one: waypost context add NAME --data DIR")


@context.command()
@name_argument
def use(name: str) -> None:
    """Use a context from now on."""
    known = contexts.read()
    contexts.require(known, name)
    contexts.write(Contexts(name, known.contexts))
    say(f"{name}: in use")


@context.command()
@name_argument
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False, readable=False),
    help="Data directory of the gateway or hub.",
)
def add(name: str, data: Path) -> None:
    """Add or replace a context. The first one is in use at once."""
    known = contexts.added(contexts.read(), name, Context(str(data.absolute())))
    contexts.write(known)
    say(f"{name}: added{', in use' if known.current == name else ''}")


@context.command()
@name_argument
def remove(name: str) -> None:
    """Remove a context. Its data directory stays."""
    contexts.write(contexts.removed(contexts.read(), name))
    say(f"{name}: removed")
