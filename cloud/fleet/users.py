"""`waypost hub user add | list | remove`: users of a hub's tenants, for applications and persons.

The commands write the registry that the configuration sets, else the credential file of the data directory, and a
running hub follows within a second; or they use the console of a hub. Heavy modules are imported when a command runs,
so that `--help` is fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.place import HubPlace, directory_options, hub_of
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.text import word

if TYPE_CHECKING:
    import sqlalchemy as sa

    from edge.broker.model.authorization import AccessRule
    from edge.broker.security.credentials import CredentialStore

T = TypeVar("T")

USERS: Final = Listing("user", "name", ("name", "role", "allow"), empty="no users")
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The hub's configuration file, if it sets a registry: users and audit are there.",
)


@click.group()
def user() -> None:
    """Manage the users of a hub. Applications connect over AMQP, people over HTTP."""


@user.command()
@directory_options
@config_option
@click.argument("name", metavar="NAME@TENANT")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    help="Rights of a person: viewer sees its tenant, operator also changes it, admin everything of every tenant.",
)
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
@json_option("user")
@audited("user.create", "name")
def add(
    hub: HubPlace,
    name: str,
    role: str | None,
    allowed: tuple[str, ...],
    password_stdin: bool,
    as_json: JsonOutput | None,
) -> None:
    """Add a user of a tenant. A generated password is shown once.

        \b
    Rights on addresses of the user's own tenant; without --role and --allow it has none:
          recv:plant/#    receive what the tenant's gateways send
          send:task/+     send to other applications of the tenant
          view:#          see the tenant's gateways: console and API
          view:'$fleet'   see all tenants and the metrics; manage:'$fleet' also changes them
    """
    from cloud.hub.roles import UserRole, with_role
    from edge.broker.security import rights
    from edge.broker.security.credentials import generated_password, new_user, with_secret

    rules = _rules(name, tuple(with_role(UserRole(role) if role is not None else None, allowed)))
    if hub.client is not None:
        if password_stdin:
            what = "over HTTP a hub generates the password"
            raise CommandError(what, "leave out --password-stdin", error="wrong-usage", code=Exit.USAGE)
        body = {"name": name, "allow": rights.format_rights(rules)}
        made_there = hub.client.ask("users", method="POST", body=body)
        _print_added(name, rights.format_rights(rules), {"password": made_there["password"]}, as_json)
        return
    password = _read_password() if password_stdin else generated_password()

    def make(file: CredentialStore) -> None:
        if name in file.load().users:
            step = f"waypost hub user remove {word(name)} {hub.quoted()}"
            raise CommandError(
                f"user {name} exists already", f"to replace it, remove it first: {step}", error="user-exists"
            )
        file.put([with_secret(new_user(name, rules), password, at_s=time.time())], new=True)

    _require_tenant(hub, _tenant_of(name))
    with_store(hub, make)
    change_of(_tenant_of(name))
    shown = {} if password_stdin else {"password": password}
    _print_added(name, rights.format_rights(rules), shown, as_json)


def _print_added(name: str, allow: list[str], shown: dict[str, str], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show([{"name": name, "allow": allow, **shown}])
        return
    say(f"{name}: added")
    for label, value in shown.items():
        say(f"{label}: {value}")
    if not allow:
        say(f"note: {name} has no rights; remove it and add it with rights, for example --allow recv:#", err=True)


@user.command("list")
@directory_options
@config_option
@output_option("user")
def list_users(hub: HubPlace, form: str) -> None:
    """List users and their rights. Passwords are not stored."""
    from cloud.hub.roles import role_of
    from edge.broker.security import rights

    if hub.client is not None:
        there = hub.client.pages("users", "users")
        rows = [{"name": each["name"], "role": each.get("role"), "allow": each["allow"]} for each in there]
    else:
        found = with_store(hub, lambda store: store.load()).users
        rows = [
            {"name": name, "role": role_of(each.rules), "allow": rights.format_rights(each.rules)}
            for name, each in sorted(found.items())
        ]
    if form != "table":
        print_listing(USERS, rows, form)
        return
    for row in rows:
        say(f"{row['name']}  {row['role'] or '-'}  {'  '.join(row['allow']) or 'no rights'}")


@user.command()
@directory_options
@config_option
@click.argument("name", metavar="NAME@TENANT")
@json_option("user")
@audited("user.remove", "name")
def remove(hub: HubPlace, name: str, as_json: JsonOutput | None) -> None:
    """Remove a user. Its connections are closed."""
    if hub.client is not None:
        hub.client.ask(f"users/{quote(name, safe='')}", method="DELETE")
        _print_removed(name, as_json)
        return

    def take(file: CredentialStore) -> None:
        if not file.remove([name]):
            raise CommandError(
                f"no user {name}", f"list the users: waypost hub user list {hub.quoted()}", error="user-not-found"
            )

    with_store(hub, take)
    change_of(_tenant_of(name))
    _print_removed(name, as_json)


def _print_removed(name: str, as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show([{"name": name}])
    else:
        say(f"{name}: removed")


# --- inside ----------------------------------------------------------------------------------------------------------


def _rules(name: str, allowed: tuple[str, ...]) -> tuple[AccessRule, ...]:
    """Parse the rights of a user. Raises CommandError for an invalid name or right."""
    from cloud.hub import peers
    from edge.broker.security import rights

    try:
        peers.parse_user(name, peers.PeerKind.PERSON)
    except peers.InvalidPeer as why:
        raise CommandError(f"{name}: {why}", error="invalid-name", code=Exit.USAGE) from None
    try:
        return rights.parse_rights(allowed)
    except ValueError as why:
        raise CommandError(f"--allow {why}", error="invalid-right", code=Exit.USAGE) from None


def _tenant_of(name: str) -> str:
    """Return the tenant of a user; empty for a name without a valid one, which can be removed."""
    from cloud.hub import peers

    try:
        return peers.parse_user(name, peers.PeerKind.PERSON).tenant
    except peers.InvalidPeer:
        return ""


def _require_tenant(hub: HubPlace, tenant: str) -> None:
    """Check that a tenant was not removed, where the registry can be used: the hub refuses users of a removed tenant
    too. Raises CommandError."""
    import contextlib

    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.tenant_state import is_removed
    from cloud.hub.tenants import TenantRemoved

    removed = False
    if hub.config is not None or (hub.data / "registry.db").is_file():
        with (
            contextlib.suppress(CommandError),
            hub_of(hub) as (_, registry),
            contextlib.closing(open_registry(registry).database) as database,
        ):
            removed = database.transaction(lambda tx: is_removed(tx, tenant))
    if removed:
        raise CommandError(str(TenantRemoved(tenant)), "use another name", error="tenant-removed")


def _read_password() -> str:
    password = read_password()
    if not password:
        step = "write one line to it, or omit --password-stdin to get a generated password"
        raise CommandError("no password on standard input: it is empty", step, error="no-password", code=Exit.USAGE)
    return password


def with_store(hub: HubPlace, use: Callable[[CredentialStore], T]) -> T:
    """Use the users of a hub, where they are kept. Raises CommandError."""
    from cloud.hub.data import WRITER
    from cloud.hub.shared_users import MOVED
    from edge.broker.security.credentials import CredentialFile, CredentialsError

    data = hub.data
    if not data.is_dir():
        raise CommandError(
            f"data directory {data} does not exist",
            f"name the data directory of a hub; waypost hub run --data {word(data)} makes it",
            error="no-data-directory",
            code=Exit.USAGE,
        )
    try:
        if hub.config is not None and (data / WRITER).is_file() and (registry := _registry(hub)) is not None:
            return _with_registry(registry, use)
        if (data / MOVED).is_file() and hub.config is None:
            raise CommandError(
                f"the users of {data} are in its registry",
                "give --config with the hub's configuration file",
                error="wrong-usage",
                code=Exit.USAGE,
            )
        with CredentialFile.open(data) as file:
            return use(file)
    except CredentialsError as error:
        raise CommandError(str(error), error="users-not-changed") from None


def _registry(hub: HubPlace) -> sa.URL | None:
    """Return the registry that the configuration sets; None for the one in the data directory."""
    with hub_of(hub) as (settings, _):
        return settings.registry


def _with_registry(registry: sa.URL, use: Callable[[CredentialStore], T]) -> T:
    import contextlib

    from cloud.hub.registry.users import RegistryUsers
    from cloud.lake.faults import RegistryError

    try:
        with contextlib.closing(RegistryUsers(registry)) as users:
            return use(users)
    except RegistryError as error:
        raise CommandError(str(error), error="registry-failed") from None
