"""`waypost tenant`: tenants of a hub, and what they have landed."""

from __future__ import annotations

import datetime
import time
from typing import Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.place import HubPlace, hub_of, hub_options, open_usage
from cloud.fleet.tenant_removal import remove
from edge.output.amounts import size
from edge.output.errors import CommandError, Exit
from edge.output.listing import Listing, output_option, print_listing
from edge.output.terminal import say
from edge.remote.client import ConsoleClient

TENANTS: Final = Listing(
    "tenant",
    "tenant",
    ("tenant", "gateways", "messages_today", "bytes_today", "messages_31_days", "bytes_31_days"),
    ("users", "connected"),
    "no tenant",
)
DAYS: Final = Listing("usage-day", "day", ("day", "messages", "bytes"), empty="nothing has landed in this time")
LIMITS: Final = (
    "connections", "applications", "gateways", "waitingBytes", "bytesPerSecond", "storedBytes", "commands", "devices",
)  # fmt: skip
QUOTA: Final = Listing("tenant-quota", "tenant", ("tenant", "source", *LIMITS), empty="no quota")
MONTH_DAYS: Final = 31


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def tenant() -> None:
    """Show tenants with their usage.

    Messages count when they have landed in the lake; bytes are those of the messages with their properties, without
    compression. Days are UTC; 400 are kept.
    """


@tenant.command("list")
@hub_options
@output_option("tenant")
def list_tenants(hub: HubPlace, form: str) -> None:
    """List tenants with their usage.

    It is what landed today, and in 31 days. Over HTTP also their users and connected gateways.
    """
    if hub.client is not None:
        rows = [_of_http(each) for each in hub.client.pages("tenants", "tenants")]
    else:
        today = _today()
        with open_usage(hub) as known:
            gateways = known.gateways()
            sums = [known.sums(gateways, since) for since in (today, today - MONTH_DAYS + 1)]
        rows = [
            _row(name, count, *(_amount(each.get(name)) for each in sums)) for name, count in sorted(gateways.items())
        ]
    print_listing(TENANTS, _shown(rows, form), form)


@tenant.command()
@hub_options
@click.option("--days", "count", type=click.IntRange(1, 400), default=MONTH_DAYS, show_default=True, help="Days.")
@output_option("usage-day")
@click.argument("name", metavar="TENANT")
def usage(hub: HubPlace, count: int, form: str, name: str) -> None:
    """Show what a tenant has landed on each day. The latest is first."""
    if hub.client is not None:
        rows = hub.client.ask(f"tenants/{quote(name, safe='')}/usage", days=count)["days"]
    else:
        with open_usage(hub) as known:
            found = known.days(name, _today() - count + 1)
        rows = [{"day": _day(each.day), "messages": each.messages, "bytes": each.bytes} for each in found]
    print_listing(DAYS, _shown(rows, form), form)


@tenant.command()
@hub_options
@click.argument("name", metavar="TENANT")
@output_option("tenant-quota")
def quota(hub: HubPlace, name: str, form: str) -> None:
    """Show the limits of a tenant.

    It says where they come from. An operator has set them (`waypost tenant set-quota`), or they are those of the hub's
    configuration, or the default.
    """
    print_listing(QUOTA, [_shown_quota(_quota_document(hub, name), form)], form)


@tenant.command("set-quota")
@hub_options
@click.argument("name", metavar="TENANT")
@click.argument("changes", metavar="LIMIT=VALUE...", nargs=-1)
@click.option("--reset", is_flag=True, help="Go back to the hub's configuration.")
@audited("tenant.quota", "name")
def set_quota(hub: HubPlace, name: str, changes: tuple[str, ...], *, reset: bool) -> None:
    """Change limits of a tenant.

    They hold at all hubs of the registry, also for a new tenant. Limits are connections, applications, gateways,
    waitingBytes, bytesPerSecond, storedBytes, commands and devices. Bytes may be given as 32Mi; bytesPerSecond=none
    removes that limit. Limits that are not given stay as they are.
    """
    if reset == bool(changes):
        raise CommandError("give limits, or --reset", error="wrong-usage", code=Exit.USAGE)
    given = dict(_limit(each) for each in changes)
    if hub.client is not None:
        _change_over_http(hub.client, name, None if reset else given)
    else:
        _change_in_registry(hub, name, None if reset else given)
    say(f"{name}: {'limits of the configuration again' if reset else ', '.join(changes)}")


tenant.add_command(remove)


def _limit(text: str) -> tuple[str, int | None]:
    """Read LIMIT=VALUE. Raises CommandError."""
    from bridge.resources.values import size as bytes_of

    name, _, value = text.partition("=")
    if name not in LIMITS:
        hint = f"the limits are {', '.join(LIMITS)}"
        raise CommandError(f"{name or text} is not a limit of a tenant", hint, error="wrong-usage", code=Exit.USAGE)
    if name == "bytesPerSecond" and value == "none":
        return name, None
    try:
        return name, bytes_of(value) if "ytes" in name else int(value)
    except ValueError as error:
        raise CommandError(f"{text}: {error}", error="wrong-usage", code=Exit.USAGE) from None


def _change_over_http(client: ConsoleClient, name: str, given: dict[str, int | None] | None) -> None:
    path = f"tenants/{quote(name, safe='')}/quota"
    before = client.ask(path)
    wanted = None if given is None else {**before["limits"], **given}
    method = "DELETE" if wanted is None else "PUT"
    with client.open(path, method=method, body=wanted, headers={"If-Match": before["etag"]}) as answer:
        client.document(answer, method)


def _change_in_registry(hub: HubPlace, name: str, given: dict[str, int | None] | None) -> None:
    import contextlib

    from cloud.hub.peers import tenant_fault
    from cloud.hub.quotas_http import convert_limits, limits_of
    from cloud.hub.registry.tenant_quotas import TenantQuotas

    if fault := tenant_fault(name):
        raise CommandError(fault, error="wrong-usage", code=Exit.USAGE)
    with hub_of(hub) as (settings, registry), contextlib.closing(TenantQuotas(registry)) as quotas:
        known = quotas.read().quotas.get(name)
        before = limits_of(known or settings.quotas.of(name))
        try:
            wanted = None if given is None else convert_limits({**before, **given})
        except ValueError as error:
            raise CommandError(str(error), error="wrong-usage", code=Exit.USAGE) from None

        def check(now: object) -> None:
            if now != known:
                hint = "look at it, and try again: waypost tenant quota"
                raise CommandError(f"the quota of {name} was changed at the same time", hint, error="conflict")

        quotas.change(name, wanted, check)
    change_of(name)


def _quota_document(hub: HubPlace, name: str) -> dict[str, Any]:
    if hub.client is not None:
        document: dict[str, Any] = hub.client.ask(f"tenants/{quote(name, safe='')}/quota")
        return {"tenant": name, "source": document["source"], **document["limits"]}
    import contextlib

    from cloud.hub.quotas_http import limits_of
    from cloud.hub.registry.tenant_quotas import TenantQuotas

    with hub_of(hub) as (settings, registry), contextlib.closing(TenantQuotas(registry)) as quotas:
        tenants = settings.quotas
        tenants.share(quotas.read().quotas)
        return {"tenant": name, "source": tenants.source_of(name), **limits_of(tenants.of(name))}


def _shown_quota(row: dict[str, Any], form: str) -> dict[str, Any]:
    if form not in ("table", "wide"):
        return row
    return {name: size(value) if "ytes" in name and value is not None else value for name, value in row.items()}


def _of_http(each: dict[str, Any]) -> dict[str, Any]:
    row = _row(each["tenant"], each["gateways"], each["today"] or {}, each["month"] or {})
    return {**row, "users": each["users"], "connected": each["connected"]}


def _row(name: str, gateways: int, today: dict[str, int], month: dict[str, int]) -> dict[str, Any]:
    return {
        "tenant": name,
        "gateways": gateways,
        "messages_today": today.get("messages"),
        "bytes_today": today.get("bytes"),
        "messages_31_days": month.get("messages"),
        "bytes_31_days": month.get("bytes"),
    }


def _amount(found: Any) -> dict[str, int]:
    return {"messages": found.messages if found else 0, "bytes": found.bytes if found else 0}


def _shown(rows: list[dict[str, Any]], form: str) -> list[dict[str, Any]]:
    """Return rows for people with amounts of bytes in words; programs get numbers."""
    if form not in ("table", "wide"):
        return rows
    return [
        {name: size(value) if "bytes" in name and value is not None else value for name, value in row.items()}
        for row in rows
    ]


def _today() -> int:
    return int(time.time() // 86_400)


def _day(number: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=number)).isoformat()
