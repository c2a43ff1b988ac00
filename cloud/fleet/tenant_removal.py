"""`waypost tenant remove`: removal of a tenant, at the console of a hub or in its data directory."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.place import HubPlace, current_user, hub_of, hub_options
from cloud.fleet.users import with_store
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from edge.remote.client import ConsoleClient

if TYPE_CHECKING:
    from cloud.hub.registry.tenant_removal import TenantRemovals

WAIT_S: Final = 60.0
"""Longest wait for the hubs: a removal of many devices goes on for minutes, also without the command."""
LOOK_S: Final = 1.0
PAUSE_S: Final = 0.01
"""Pause between two steps in the registry, for the landings of a hub."""


@click.command()
@hub_options
@click.argument("name", metavar="TENANT")
@click.option("--force", is_flag=True, help="Remove all that is in it too: gateways, users, devices and so on.")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@audited("tenant.remove", "name")
def remove(hub: HubPlace, name: str, *, force: bool, yes: bool) -> None:
    """Remove a tenant, for good.

    It is refused while something is in the tenant, with a list. With --force its gateways are revoked and forgotten,
    and its users, tokens, devices, configurations, roll-outs, campaigns, webhooks, artefacts and stored messages of
    applications are deleted. Gateways keep what is not acknowledged.

    What has landed stays in the lake, with its positions: a gateway of the same name that enrols later lands nothing
    twice. The default tenant cannot be removed.

    The hubs go on with a removal, also after a crash; the command waits for a minute.
    """
    if hub.client is not None:
        if not yes:
            _require_name(name)
        ended = _remove_over_http(hub.client, name, force)
    else:
        ended = _remove_here(hub, name, force, yes)
    change_of(name)
    say(f"{name}: removed" if ended else f"{name}: being removed; the hubs go on with it")


def _require_name(name: str) -> None:
    """Ask for the name of the tenant again. Raises CommandError for another one, also without a terminal."""
    typed = None
    if sys.stdin is not None:
        try:
            typed = click.prompt(f"Type {name} to remove this tenant for good", err=True)
        except click.Abort as why:
            if not isinstance(why.__context__, EOFError):
                raise
    if typed != name:
        raise CommandError(
            "nothing was changed: the name was not typed", hint="--yes skips the question", error="not-confirmed"
        )


def _remove_over_http(client: ConsoleClient, name: str, force: bool) -> bool:
    """Remove a tenant at the console of a hub; return whether that has ended. Raises CommandError."""
    path = f"tenants/{quote(name, safe='')}"
    client.ask(path, method="DELETE", force="true" if force else None)
    until_s = time.monotonic() + WAIT_S
    while True:
        found: dict[str, Any] = client.ask(f"{path}/removal")
        if found["state"] == "removed":
            return True
        if found["state"] == "none":
            what = f"tenant {name} stays: something was made in it during its removal"
            raise CommandError(what, "look at it, and repeat the command", error="tenant-in-use")
        if time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_S)


def _remove_here(hub: HubPlace, name: str, force: bool, yes: bool) -> bool:
    """Remove a tenant in the registry of a data directory; return whether that has ended. Raises CommandError."""
    from cloud.hub.peers import tenant_fault
    from cloud.hub.registry.tenant_removal import REMOVAL_S_MIN, RemovalStep, TenantNotRemoved

    if fault := tenant_fault(name):
        raise CommandError(fault, error="wrong-usage", code=Exit.USAGE)
    with _open_removals(hub) as removals:
        if not yes:
            _require_name(name)
        try:
            removals.begin(name, current_user(), _now_us(), forced=force, more={"users": len(_users_of(hub, name))})
        except TenantNotRemoved as error:
            hint = "remove these first, or give --force" if error.contents else "list the tenants: waypost tenant list"
            raise CommandError(str(error), hint, error=error.why.value) from None
        if force:
            _end_users(hub, name)
        until_s = time.monotonic() + REMOVAL_S_MIN
        while True:
            late = time.monotonic() >= until_s
            result = removals.step(name, _now_us(), may_end=late)
            if result in (RemovalStep.ENDED, RemovalStep.LEFT) or (result is RemovalStep.WAITS and late):
                break
            time.sleep(LOOK_S if result is RemovalStep.WAITS else PAUSE_S)
    if result is RemovalStep.LEFT:
        what = f"tenant {name} stays: something was made in it during its removal"
        raise CommandError(what, "look at it, and repeat the command", error="tenant-in-use")
    return result is RemovalStep.ENDED


def _users_of(hub: HubPlace, tenant: str) -> list[str]:
    """Return the users of a tenant, where the hub keeps its users. Raises CommandError."""
    from cloud.hub.peers import tenant_of_user

    return with_store(hub, lambda store: [name for name in store.load().users if tenant_of_user(name) == tenant])


def _end_users(hub: HubPlace, tenant: str) -> None:
    names = _users_of(hub, tenant)
    if names:
        with_store(hub, lambda store: store.remove(names))


@contextlib.contextmanager
def _open_removals(hub: HubPlace) -> Iterator[TenantRemovals]:
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.tenant_removal import TenantRemovals

    with hub_of(hub) as (_, registry), contextlib.closing(open_registry(registry).database) as database:
        yield TenantRemovals(database)


def _now_us() -> int:
    return time.time_ns() // 1_000
