"""`waypost trace` and `waypost address`: addresses of a running gateway, and what becomes of their messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

from edge.appliance.addresses.documents import AddressExplanation, AddressPage
from edge.appliance.program import as_called
from edge.appliance.running import data_option, gateway_client, http_option
from edge.broker.http.limits import PAGE, PAGE_MAX
from edge.output.errors import Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import line
from edge.remote.client import as_document

ADDRESSES: Final = Listing(
    "address",
    "address",
    ("address", "type", "subscription", "received_per_s", "received", "delivered", "waiting", "consumers"),
    ("oldest_at", "delivered_per_s", "id"),
    "no address matches",
)
_MARKS: Final = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@click.command("trace")
@click.argument("address")
@data_option
@http_option
@json_option("address-explanation")
def trace_address(address: str, data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Explain where messages go.

    Shows the rule that applies, who may send and receive, what came, who subscribes, where messages are now, and the
    next step. Exits with 1 when something stands in the way.
    """
    answer = gateway_client(data, http).ask("why", address=address)
    found = as_document(AddressExplanation, answer)
    if as_json:
        as_json.show([answer])
    else:
        for step in found.steps:
            say(f"{_MARKS.get(step.state, step.state)} {step.part + ':':12} {line(step.text)}")
            if step.next_step:
                say(as_called(f"      next: {line(step.next_step)}"))
    if any(step.state == "wrong" for step in found.steps):
        click.get_current_context().exit(int(Exit.FAILED))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def address() -> None:
    """Show addresses with their messages. The gateway has to run."""


@address.command("list")
@click.option("--query", "-q", "text", metavar="TEXT", help="Only those with this text in their name.")
@click.option(
    "--sort",
    type=click.Choice(["rate", "waiting", "received", "consumers", "address"]),
    default="rate",
    show_default=True,
    help="Order: names ascending, figures descending.",
)
@click.option(
    "--limit", type=click.IntRange(1, PAGE_MAX), default=PAGE, show_default=True, help="Most addresses to show."
)
@click.option("--after", metavar="NEXT", help="Continue after an earlier page: its `next`.")
@data_option
@http_option
@output_option("address")
def list_addresses(
    text: str | None, sort: str, limit: int, after: str | None, data: Path | None, http: str | None, form: str
) -> None:
    """List addresses with their figures. They are queues, subscriptions, and rules for topics.

    \b
      waypost address list --sort waiting --data ./gw1
      waypost watch address list --sort waiting --data ./gw1
    """
    page = gateway_client(data, http).read(AddressPage, "addresses", q=text, sort=sort, limit=limit, after=after)
    print_listing(ADDRESSES, msgspec.to_builtins(page.addresses), form, next=page.next, total=page.total)
    if form in ("table", "wide") and page.next is not None:
        say(f"{len(page.addresses):,} of {page.total:,} shown; more: --after {line(page.next)}", style="dim", err=True)
