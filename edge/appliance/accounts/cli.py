"""`waypost user add | list | allow | rotate | remove`: manage the users of a gateway and their rights.

The commands write the credential file of a data directory. A running gateway applies the change within a second.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.decorators import FC

from bridge.resources import values
from edge.appliance.accounts.profiles import PROFILES
from edge.appliance.program import as_called
from edge.broker.model.authorization import AccessRule
from edge.broker.security import rights
from edge.broker.security.credentials import (
    CredentialFile,
    CredentialsDamaged,
    CredentialsError,
    CredentialUser,
    generated_password,
)
from edge.broker.security.user_changes import (
    UserByResource,
    UserExists,
    UserNotFound,
    add_rights,
    add_user,
    remove_user,
    replace_rights,
    rotate_secret,
)
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.text import word

T = TypeVar("T")

USERS: Final = Listing("user", "name", ("name", "origin", "allow"), ("secrets",), "no users")


def data_option(function: FC) -> FC:
    """Add the option `--data`."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
        help="Data directory of the gateway, running or not.",
    )(function)


def password_options(function: FC) -> FC:
    """Add the options of a new password (`read_or_make_password`)."""
    generate = click.option("--generate", is_flag=True, help="Generate a password and print it once (the default).")
    stdin = click.option(
        "--password-stdin",
        is_flag=True,
        help="Read the password from standard input: one line, or a prompt on a terminal.",
    )
    return stdin(generate(function))


def _allow(function: FC) -> FC:
    return click.option(
        "--allow",
        "allowed",
        multiple=True,
        metavar="OPERATIONS:FILTER",
        help="Right to grant, e.g. send:plant/%u/# or send,recv:a/+ (repeatable; %u user, %c client id).",
    )(function)


@click.command()
@click.argument("name")
@data_option
@password_options
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Usual rights, in addition to --allow.")
@_allow
@json_option("user")
def add(
    name: str,
    data: Path,
    password_stdin: bool,
    generate: bool,
    profile: str | None,
    allowed: tuple[str, ...],
    as_json: JsonOutput | None,
) -> None:
    """Add a user: a device or a person. It has the rights of --profile and --allow, and no others.

    \b
    Profiles (%u is the user's name):
      sensor       send:plant/%u/#  send:status/%u  recv:command/%u/#  send:command-response/%u/#
                   recv:landing-receipt/%u
      application  recv:plant/#     recv:status/#   send:command/#
      viewer       view:#           (console, status, metrics)
      operator     view:#           manage:#        (and change everything on the console)
    \b
    A sensor that may also send alarms:
      waypost user add pump7 --data ./gw --profile sensor --allow send:alarm/%u
    """
    rules = parse_allowed((*PROFILES.get(profile or "", ()), *allowed))
    password, made = read_or_make_password(password_stdin, generate)
    of = f"{word(name)} --data {word(data)}"
    try:
        with_users(data, lambda file: add_user(file, name, rules, password))
    except UserExists as why:
        step = f"its rights: waypost user allow {of}\na new password: waypost user rotate {of}"
        raise CommandError(str(why), hint=step, error="user-exists") from None
    _report(f"{name}: added", {"name": name, "allow": rights.format_rights(rules)}, made, as_json)
    if not rules:
        step = as_called(f"waypost user allow {of} --allow {word(f'send:plant/{name}/#')}")
        say(f"note: {name} has no rights yet; give it some, for example: {step}", err=True)


@click.command("list")
@data_option
@output_option("user")
def list_users(data: Path, form: str) -> None:
    """List users with their rights. Passwords are stored as hashes and cannot be shown."""
    users = list(with_users(data, lambda file: file.load()).users.values())
    rows = [_described(user) for user in users]
    if form != "table":
        print_listing(
            USERS, [{**row, "secrets": len(row["secrets"])} if form in ("wide", "csv") else row for row in rows], form
        )
        return
    for row in rows:
        secret_words = ", ".join(_secret_words(secret) for secret in row["secrets"]) or "no secret"
        say(f"{row['name']}  ({row['origin']}; {secret_words})")
        for rule in row["allow"]:
            say(f"  {rule}")


@click.command()
@click.argument("name")
@data_option
@_allow
@click.option("--add", "adds", is_flag=True, help="Keep the other rights of the user.")
@json_option("user")
def allow(name: str, data: Path, allowed: tuple[str, ...], adds: bool, as_json: JsonOutput | None) -> None:
    """Replace the rights of a user, or add to them. Its connections are closed; it reconnects with the new rights.

    \b
      waypost user allow pump7 --data ./gw --add --allow send:alarm/%u
    """
    rules, change = parse_allowed(allowed), add_rights if adds else replace_rights
    user = with_users(data, lambda file: change(file, name, rules))
    document = {"name": name, "allow": rights.format_rights(user.rules)}
    _report(f"{name}: {counted(len(document['allow']), 'right')}", document, None, as_json)


@click.command()
@click.argument("name")
@data_option
@json_option("user")
def remove(name: str, data: Path, as_json: JsonOutput | None) -> None:
    """Remove a user. Its connections are closed, and it can no longer log in."""
    with_users(data, lambda file: remove_user(file, name))
    _report(f"{name}: removed", {"name": name}, None, as_json)


@click.command()
@click.argument("name")
@data_option
@password_options
@click.option(
    "--overlap", default="1h", show_default=True, help="Time for which the old secrets stay valid: 0s, 90s, 1h, 7d."
)
@click.option("--start-in", default="0s", show_default=True, help="Time until the new secret becomes valid.")
@json_option("user")
def rotate(
    name: str, data: Path, password_stdin: bool, generate: bool, overlap: str, start_in: str, as_json: JsonOutput | None
) -> None:
    """Give a user a new secret. The old ones stay valid for an overlap, so that no device is locked out."""
    now = time.time()
    try:
        overlap_s, start_s = values.duration(overlap), values.duration(start_in)
    except ValueError as why:
        raise CommandError(str(why), code=Exit.USAGE, error="invalid-right") from None
    password, made = read_or_make_password(password_stdin, generate)
    ends, not_before = now + start_s + overlap_s, now + start_s if start_s else 0.0
    with_users(data, lambda file: rotate_secret(file, name, password, ends_at_s=ends, not_before=not_before))
    _report(f"{name}: new secret; the old ones end {_moment(ends)}", {"name": name, "old_end": ends}, made, as_json)


@click.group()
def user() -> None:
    """Manage users: devices and people. They may connect to a gateway, with rights of their own."""


for command in (add, list_users, allow, remove, rotate):
    user.add_command(command)


# --- inside ----------------------------------------------------------------------------------------------------------


def with_users(data: Path, use: Callable[[CredentialFile], T]) -> T:
    """Use the credential file of a data directory. Raises CommandError."""
    if not data.is_dir():
        raise CommandError(
            f"data directory {data} not found",
            hint=f"give the directory of a gateway, or create one: waypost init --data {word(data)}",
            code=Exit.USAGE,
            error="no-data-directory",
        )
    try:
        with CredentialFile.open(data) as file:
            return use(file)
    except UserNotFound as error:
        raise CommandError(
            str(error), hint=f"list the users: waypost user list --data {word(data)}", error="user-not-found"
        ) from None
    except UserByResource as error:
        raise CommandError(str(error), hint="change that with `waypost apply`", error="user-of-configuration") from None
    except CredentialsDamaged as error:
        step = "move it away and add the devices again: waypost user add; it holds no messages"
        raise CommandError(str(error), hint=step, code=Exit.INTEGRITY, error="users-damaged") from None
    except CredentialsError as error:
        raise CommandError(str(error), error="users-not-changed") from None


def read_or_make_password(password_stdin: bool, generate: bool) -> tuple[str, str | None]:
    """Return the password, and the same again if it was generated and has to be printed."""
    if password_stdin and generate:
        raise click.UsageError("--password-stdin and --generate exclude each other")
    if not password_stdin:
        made = generated_password()
        return made, made
    try:
        password = read_password()
    except UnicodeDecodeError:
        raise CommandError(
            "the password on standard input is not UTF-8", code=Exit.USAGE, error="no-password"
        ) from None
    if not password:
        step = "write one line to it, or omit --password-stdin to generate a password"
        raise CommandError(
            "no password on standard input: it is empty", hint=step, code=Exit.USAGE, error="no-password"
        )
    return password, None


def parse_allowed(allowed: Sequence[str]) -> tuple[AccessRule, ...]:
    """Return the rights of options `--allow`. Raises UsageError."""
    try:
        return rights.parse_rights(allowed)
    except ValueError as why:
        raise click.UsageError(f"--allow {why}") from None


def _described(user: CredentialUser) -> dict[str, Any]:
    return {
        "name": user.name,
        "origin": user.origin,
        "allow": rights.format_rights(user.rules),
        "secrets": [{"id": s.id, "not_before": s.not_before or None, "not_after": s.not_after} for s in user.secrets],
    }


def _secret_words(secret: dict[str, Any]) -> str:
    begins = f" from {_moment(secret['not_before'])}" if secret["not_before"] else ""
    ends = f" until {_moment(secret['not_after'])}" if secret["not_after"] is not None else ""
    return f"secret {secret['id']}{begins}{ends}"


def _moment(utc_s: float) -> str:
    return datetime.datetime.fromtimestamp(utc_s, datetime.UTC).isoformat(timespec="seconds")


def _report(text: str, document: dict[str, Any], password: str | None, as_json: JsonOutput | None) -> None:
    """Print the result. A generated password is shown only this once."""
    if as_json:
        as_json.show([document if password is None else {**document, "password": password}])
        return
    say(text)
    if password is not None:
        say(f"password: {password}")
