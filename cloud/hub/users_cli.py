"""`waypost hub user add | list | remove`: users of a hub's tenants, for applications and persons.

The commands write the credential file of a data directory; a running hub follows within a second. Heavy modules are
imported when a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from cloud.hub.usage import CommandFailed, UsageProblem
from edge.output.password import read_password
from edge.output.terminal import say, say_json
from edge.output.text import word

if TYPE_CHECKING:
    from edge.broker.model.authorization import AccessRule
    from edge.broker.security.credentials import CredentialFile

T = TypeVar("T")

_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data directory of the hub, running or not.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


@click.group()
def user() -> None:
    """Manage the users of a hub. Applications connect over AMQP, people over HTTP."""


@user.command()
@click.argument("name", metavar="NAME@TENANT")
@_DATA
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="OPERATIONS:FILTER",
    help="Right, for example recv:plant/# or view:# (repeatable).",
)
@click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input: one line, or a prompt on a terminal."
)
@_JSON
def add(name: str, data: Path, allowed: tuple[str, ...], password_stdin: bool, as_json: bool) -> None:
    """Add a user of a tenant. A generated password is shown once.

        \b
    Rights on addresses of the user's own tenant; without --allow it has none:
          recv:plant/#    receive what the tenant's gateways send
          send:task/+     send to other applications of the tenant
          view:#          see the tenant's gateways: console and API
          view:'$fleet'   see all tenants and the metrics; manage:'$fleet' also changes them
    """
    from edge.broker.security import rights
    from edge.broker.security.credentials import generated_password, new_user, with_secret

    rules = _rules(name, allowed)
    password = _read_password() if password_stdin else generated_password()

    def make(file: CredentialFile) -> None:
        if name in file.load().users:
            step = f"waypost hub user remove {word(name)} --data {word(data)}"
            raise CommandFailed(f"user {name} exists already", f"to replace it, remove it first: {step}")
        file.put([with_secret(new_user(name, rules), password, at_s=time.time())], new=True)

    _with_file(data, make)
    shown = {} if password_stdin else {"password": password}
    if as_json:
        say_json({"name": name, "allow": rights.format_rights(rules), **shown}, indent=0)
        return
    say(f"{name}: added")
    for label, value in shown.items():
        say(f"{label}: {value}")
    if not rules:
        say(f"note: {name} has no rights; remove it and add it with rights, for example --allow recv:#", err=True)


@user.command("list")
@_DATA
@_JSON
def list_users(data: Path, as_json: bool) -> None:
    """List users and their rights. Passwords are not stored."""
    from edge.broker.security import rights

    found = _with_file(data, lambda file: file.load()).users
    rows = [{"name": name, "allow": rights.format_rights(each.rules)} for name, each in sorted(found.items())]
    if as_json:
        say_json(rows)
        return
    for row in rows:
        say(f"{row['name']}  {'  '.join(row['allow']) or 'no rights'}")


@user.command()
@click.argument("name", metavar="NAME@TENANT")
@_DATA
@_JSON
def remove(name: str, data: Path, as_json: bool) -> None:
    """Remove a user. Its connections are closed."""

    def take(file: CredentialFile) -> None:
        if not file.remove([name]):
            raise CommandFailed(f"no user {name}", f"list the users: waypost hub user list --data {word(data)}")

    _with_file(data, take)
    if as_json:
        say_json({"name": name}, indent=0)
    else:
        say(f"{name}: removed")


# --- inside ----------------------------------------------------------------------------------------------------------


def _rules(name: str, allowed: tuple[str, ...]) -> tuple[AccessRule, ...]:
    """Parse the rights of a user. Raises UsageProblem for an invalid name or right."""
    from cloud.hub import peers
    from edge.broker.security import rights

    try:
        peers.parse_user(name, peers.PeerKind.PERSON)
    except peers.InvalidPeer as why:
        raise UsageProblem(f"{name}: {why}") from None
    try:
        return rights.parse_rights(allowed)
    except ValueError as why:
        raise UsageProblem(f"--allow {why}") from None


def _read_password() -> str:
    password = read_password()
    if not password:
        step = "write one line to it, or omit --password-stdin to get a generated password"
        raise UsageProblem("no password on standard input: it is empty", step)
    return password


def _with_file(data: Path, use: Callable[[CredentialFile], T]) -> T:
    from edge.broker.security.credentials import CredentialFile, CredentialsError

    if not data.is_dir():
        raise UsageProblem(
            f"data directory {data} does not exist",
            f"name the data directory of a hub; waypost hub run --data {word(data)} makes it",
        )
    try:
        with CredentialFile.open(data) as file:
            return use(file)
    except CredentialsError as error:
        raise CommandFailed(str(error)) from None
