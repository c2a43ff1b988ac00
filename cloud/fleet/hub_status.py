"""`waypost hub status`: problems, gateways and landings of a running hub."""

from __future__ import annotations

from typing import Any

import click

from cloud.fleet.place import console_option
from edge.output.amounts import counted, number, size, span
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import styled
from edge.remote.client import ConsoleClient


@click.command()
@console_option
@json_option("hub-status")
def status(client: ConsoleClient, as_json: JsonOutput | None) -> None:
    """Show the status of a running hub.

    Its problems with the next step, its gateways, and what lands. A user of one tenant sees that tenant's part.
    `waypost gateway problems` lists those of all gateways.

    \b
      waypost hub status
      waypost hub status --hub https://hub.example:8443 --json
    """
    document = client.ask("status")
    if as_json:
        as_json.show([document])
        return
    from rich.console import Console
    from rich.table import Table

    from edge.health.printing import print_problems

    out, table = Console(), Table(show_header=False, box=None, pad_edge=False)
    print_problems(document.get("problems", ()), out)
    for name, value in _rows(document, client.url).items():
        table.add_row(styled(name, "bold"), styled(value))
    out.print(table)


def _rows(document: dict[str, Any], url: str) -> dict[str, str]:
    """Return the lines of a status (`HubStatusDocument` or `TenantStatus`)."""
    gateways, rate = document["gateways"], document["rate"]
    up_s = (document["now"] - document["started_at"]) / 1e3
    mode = ", development mode: no credentials" if document["dev"] else ""
    rows = {"hub": f"{url}  (version {document['version']}{mode})", "up": span(up_s)}
    if document["tenant"] is not None:
        rows["tenant"] = document["tenant"]
    rows["gateways"] = f"{number(gateways['connected'])} of {number(gateways['known'])} connected"
    landed = f"{counted(document['totals']['rows'], 'message')} since the start"
    if rate:
        landed += f", {number(sum(rate) / len(rate))} a second in the last {counted(len(rate), 'second')}"
    rows["landed"] = landed
    landing = document.get("landing")
    if landing is not None:
        waiting = f"{counted(landing['pending_messages'], 'message')}, {size(landing['pending_bytes'])}"
        oldest = landing["oldest_ms"]
        rows["waiting"] = waiting + (f", the oldest for {span(oldest / 1e3)}" if oldest is not None else "")
        for held in landing["held"]:
            rows[f"held: {held['gateway']}"] = f"tenant {held['tenant']}: {held['reason']}"
    if alerts := document.get("alerts"):
        rows["alerts"] = ", ".join(f"{number(count)} {state}" for state, count in alerts.items())
    return rows
