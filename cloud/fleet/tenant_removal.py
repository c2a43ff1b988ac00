"""`waypost tenant remove`: removal of a tenant, at the console of a hub or in its data directory."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import COMMAND_LINE
from cloud.fleet.place import HubPlace, current_user, hub_of, hub_options
from cloud.fleet.users import with_store
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from edge.remote.client import ConsoleClient

WAIT_S: Final = 60.0
"""Longest wait for the hubs over HTTP: a removal of many devices goes on for minutes, also without the command."""
LOOK_S: Final = 1.0


@click.command()
@hub_options
@click.argument("name", metavar="TENANT")
@click.option("--force", is_flag=True, help="Remove all that is in it too: gateways, users, devices and so on.")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
def remove(hub: HubPlace, name: str, *, force: bool, yes: bool) -> None:
    """Remove a tenant, for good.

    It is refused while something is in the tenant, with a list. With --force its gateways are revoked and forgotten,
    and its users, tokens, devices, configurations, roll-outs, campaigns, webhooks and artefacts are deleted. Gateways
    keep what is not acknowledged. Stored messages of applications are deleted after 30 days.

    What has landed stays in the lake. The name is not given out again. The default tenant cannot be removed.

    The command marks the tenant; the hubs remove it, also after a crash. Over HTTP it waits for them, at most a minute.
    """
    ended = False
    if hub.client is not None:
        if not yes:
            _require_name(name)
        ended = _remove_over_http(hub.client, name, force)
    else:
        _mark_here(hub, name, force, yes)
    say(f"{name}: removed" if ended else f"{name}: being removed; its hubs do the rest while they run")


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
    with contextlib.suppress(KeyboardInterrupt):  # the removal goes on
        while time.monotonic() < until_s:
            found: dict[str, Any] = client.ask(f"{path}/removal")
            if found["state"] == "removed":
                return True
            time.sleep(LOOK_S)
    return False


def _mark_here(hub: HubPlace, name: str, force: bool, yes: bool) -> None:
    """Mark a tenant as removed in the registry of a data directory. Raises CommandError."""
    from cloud.hub.peers import tenant_fault
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.tenant_removal import RemovalRefusal, TenantNotRemoved, TenantRemovals, removal_line

    if fault := tenant_fault(name):
        raise CommandError(fault, error="wrong-usage", code=Exit.USAGE)
    with hub_of(hub) as (settings, registry), contextlib.closing(open_registry(registry).database) as database:
        if not yes:
            _require_name(name)
        # users in the registry are counted there, in the transaction of the mark
        more = _count_users(hub, name) if settings.registry is None else {}
        removals, now_us = TenantRemovals(database), time.time_ns() // 1_000
        contents = {**removals.contents(name, now_us), **more}
        line = removal_line(name, current_user(), COMMAND_LINE, now_us, contents, forced=force)
        try:
            removals.begin(name, line, forced=force, more=more)
        except TenantNotRemoved as error:
            of_fleet = "users with rights on $fleet are removed by hand: waypost hub user remove"
            hints = {
                RemovalRefusal.IN_USE: f"remove these first, or give --force; {of_fleet}",
                RemovalRefusal.UNKNOWN: f"list the tenants: waypost tenant list {hub.quoted()}",
                RemovalRefusal.OLDER_HUB: "update that hub, then try again",
            }
            raise CommandError(str(error), hints.get(error.why, ""), error=error.why.value) from None


def _count_users(hub: HubPlace, tenant: str) -> dict[str, int]:
    """Return the number of users of a tenant in the file of the data directory, by kind. Raises CommandError."""
    from cloud.hub.peers import tenant_of_user
    from cloud.hub.registry.tenant_contents import FLEET_USERS
    from cloud.hub.roles import has_fleet_right

    found = with_store(hub, lambda store: store.load()).users
    mine = [user for name, user in found.items() if tenant_of_user(name) == tenant]
    counts = {"users": len(mine), FLEET_USERS: sum(has_fleet_right(each.rules) for each in mine)}
    return {kind: count for kind, count in counts.items() if count}
