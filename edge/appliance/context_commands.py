"""`waypost context`: name the gateways and hubs that one works with, and choose one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import click

from edge.output.errors import CommandError
from edge.output.listing import Listing, output_option, print_listing
from edge.output.terminal import say
from edge.remote import contexts
from edge.remote.contexts import Context, Contexts
from edge.remote.session import sign_out

CONTEXTS: Final = Listing("context", "name", ("name", "data", "url", "role", "user", "current"), empty="no contexts")

name_argument = click.argument("name")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def context() -> None:
    """Choose the gateway or hub to work with. Commands use it when neither --data nor an address is given.

    \b
    Where a command without an address looks for the data directory, in this order:
      1. option --data
      2. environment variable WAYPOST_DATA
      3. the context in use: a data directory, or a console where `waypost login` has signed in
      4. the only gateway (for `waypost gateway`, `token`, …: the only hub) that runs here: on a directory
         /var/lib/waypost*, the current directory, or a folder in it
    \b
      waypost context add hall --data /srv/waypost/hall
      waypost context use hall
      waypost status
    """


@context.command("list")
@output_option("context")
def list_contexts(form: str) -> None:
    """List the contexts. A star marks the one in use."""
    known = contexts.read()
    if form != "table":
        rows = [
            {
                "name": name,
                "data": each.data or None,
                "url": each.url or None,
                "role": each.role or None,
                "user": each.user or None,
                "signed_in": bool(each.cookie),
                "current": name == known.current,
            }
            for name, each in sorted(known.contexts.items())
        ]
        print_listing(CONTEXTS, rows, form)
        return
    for name, each in sorted(known.contexts.items()):
        user = f"  {each.user}{'' if each.cookie else ' (signed out)'}" if each.user else ""
        say(f"{'*' if name == known.current else ' '} {name}  {each.place}{user}")
    if not known.contexts:
        say("no contexts; add one: waypost context add NAME --data DIR, or waypost login URL")


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
    """Remove a context. Its data directory stays, and its session ends."""
    known = contexts.read()
    contexts.write(contexts.removed(known, name))
    with contextlib.suppress(CommandError):  # the node is away: the session ends by itself
        sign_out(known.contexts[name])
    say(f"{name}: removed")
