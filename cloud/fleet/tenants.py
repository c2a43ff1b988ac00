"""`waypost tenant`: tenants of a hub, and what they have landed."""

from __future__ import annotations

import datetime
import time
from typing import Any, Final
from urllib.parse import quote

import click

from cloud.fleet.place import HubPlace, hub_options, open_usage
from edge.output.amounts import size
from edge.output.listing import Listing, output_option, print_listing

TENANTS: Final = Listing(
    "tenant",
    "tenant",
    ("tenant", "gateways", "messages_today", "bytes_today", "messages_31_days", "bytes_31_days"),
    ("users", "connected"),
    "no tenant",
)
DAYS: Final = Listing("usage-day", "day", ("day", "messages", "bytes"), empty="nothing has landed in this time")
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
