"""`waypost client`: clients of a running gateway, and refused ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import msgspec

from edge.appliance.clients.documents import (
    ClientDetail,
    ClientDisconnection,
    ClientPage,
    RefusalPage,
)
from edge.appliance.running import data_option, gateway_client, http_option
from edge.appliance.trace.cli import trace
from edge.broker.http.limits import PAGE, PAGE_MAX
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say

CLIENTS: Final = Listing(
    "client",
    "name",
    ("name", "user", "state", "protocol", "in", "out", "queued", "last_at"),
    ("remote", "tls", "subscriptions", "in_flight", "connected_at", "id"),
    "no client matches",
)
REFUSALS: Final = Listing(
    "refusal",
    "client",
    ("reason", "user", "client", "remote", "address", "count", "last_at"),
    ("what", "next_step"),
    "no client was refused since the start of the gateway",
)

limit_option = click.option(
    "--limit", type=click.IntRange(1, PAGE_MAX), default=PAGE, show_default=True, help="Most entries to show."
)
after_option = click.option("--after", metavar="NEXT", help="Continue after an earlier page: its `next`.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def client() -> None:
    """Show clients, and disconnect them. The gateway has to run."""


@client.command("list")
@click.option(
    "--state",
    type=click.Choice(["all", "connected", "silent", "absent"]),
    default="all",
    show_default=True,
    help="Only clients in this state.",
)
@click.option(
    "--query", "-q", "text", metavar="TEXT", help="Only those with this text in name, user or remote address."
)
@click.option(
    "--sort",
    type=click.Choice(["name", "user", "in", "out", "queued", "last"]),
    default="name",
    show_default=True,
    help="Order: names ascending, figures and times descending.",
)
@limit_option
@after_option
@data_option
@http_option
@output_option("client")
def list_clients(
    state: str,
    text: str | None,
    sort: str,
    limit: int,
    after: str | None,
    data: Path | None,
    http: str | None,
    form: str,
) -> None:
    """List clients. They are MQTT sessions, AMQP connections, and HTTP devices that wait for a message.

    \b
      connected  the client has a connection
      silent     it has sent no message for five times its usual interval
      absent     it has no connection, and its MQTT session is stored
    \b
      in, out    messages from and to the client since it connected
      queued     stored messages that it has not acknowledged
      last       time since its last message

    \b
      waypost client list --data ./gw1 --state silent
      waypost client list --data ./gw1 --sort queued --limit 10
    """
    from edge.appliance.clients.printing import show_clients

    page = gateway_client(data, http).read(
        ClientPage, "clients", state=state, q=text, sort=sort, limit=limit, after=after
    )
    if form == "table":
        show_clients(page, time.time())
    else:
        print_listing(CLIENTS, msgspec.to_builtins(page.clients), form, next=page.next, total=page.total)


@client.command()
@click.argument("name")
@data_option
@http_option
@json_option("client")
def show(name: str, data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Show one client. With subscriptions, rights and latest refusals. NAME: its name or id in `client list`.

    \b
      waypost client show pump7 --data ./gw1
    """
    from edge.appliance.clients.printing import show_client

    detail = gateway_client(data, http).read(ClientDetail, f"clients/{quote(name, safe='')}")
    if as_json:
        as_json.show([detail])
    else:
        show_client(detail, time.time())


@client.command()
@click.argument("name")
@click.option("--end-session", is_flag=True, help="End its MQTT session too, with subscriptions and their messages.")
@data_option
@http_option
@json_option("disconnection")
def disconnect(name: str, end_session: bool, data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Close the connection of a client. Most clients connect again at once. NAME: its name or id in `client list`.

    An MQTT 5 client is told that an administrator did it, an AMQP client gets `amqp:connection:forced`. A client that
    was lost is no longer listed as silent. To keep a client out, remove its user: `waypost user remove`.

    \b
      waypost client disconnect pump7 --data ./gw1
      waypost client disconnect pump7 --data ./gw1 --end-session
    """
    session = "end" if end_session else "keep"
    client = gateway_client(data, http)
    done = client.read(ClientDisconnection, f"clients/{quote(name, safe='')}", method="DELETE", session=session)
    if as_json:
        as_json.show([done])
        return
    say(f"{name}: {'disconnected' if done.disconnected else 'was not connected'}")
    if done.session_ended:
        say("its session has ended")


client.add_command(trace)


@client.command()
@click.option(
    "--query", "-q", "text", metavar="TEXT", help="Only those with this text in host, user, client or address."
)
@limit_option
@after_option
@data_option
@http_option
@output_option("refusal")
def refusals(text: str | None, limit: int, after: str | None, data: Path | None, http: str | None, form: str) -> None:
    """Show refused clients, and why. Each has a next step; the latest is first.

    \b
    Refused are logins, connections beyond a limit, messages and subscriptions without a right, and violations
    of a protocol. A client never learns whether its user name or its password was wrong; this list shows it.
    It is kept in memory: the last 1 000 since the start of the gateway.

    \b
      waypost client refusals --data ./gw1
      waypost client refusals --data ./gw1 --query pump8
    """
    from edge.appliance.clients.printing import show_refusals

    page = gateway_client(data, http).read(RefusalPage, "refusals", q=text, limit=limit, after=after)
    if form == "table":
        show_refusals(page, time.time())
    else:
        print_listing(REFUSALS, msgspec.to_builtins(page.refusals), form, next=page.next, total=page.total)
