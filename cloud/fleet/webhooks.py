"""`waypost hub webhook`: webhooks of a running hub, which get its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from cloud.fleet.place import console_option, parse_duration
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import word
from edge.output.times import moment_us
from edge.remote.client import ConsoleClient

WEBHOOKS: Final = Listing(
    "webhook",
    "id",
    ("id", "state", "tenant", "url", "types", "reached", "failure"),
    ("gateways", "selector", "attempts", "delivered_at", "next_attempt_at"),
    "no webhooks",
)
TEST_S: Final = 20.0
"""Seconds to wait for the outcome of a test: the hub gives up after 10."""
identifier_argument = click.argument("identifier", metavar="ID")
_TIMES: Final = ("failing_since", "next_attempt_at", "delivered_at", "older_secret_until", "made_at", "changed_at")


def filter_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose events."""
    for option in (
        click.option("--selector", metavar="KEY=VALUE", help="Only of gateways with these labels."),
        click.option("--gateway", "gateways", multiple=True, help="Only of this gateway; repeatable."),
        click.option("--type", "types", multiple=True, help="Only this type, or noun, of events; repeatable."),
    ):
        function = option(function)
    return function


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def webhook() -> None:
    """Send the events of a hub to URLs.

    Each event is a signed POST (Standard Webhooks). The next one follows when the server has taken it. A hub that is
    killed loses none; another one goes on.
    """


@webhook.command()
@console_option
@click.argument("url", metavar="URL")
@filter_options
@click.option("--tenant", default="", help="Tenant of its events.  [default: your own; all with $fleet]")
@click.option("--after", type=click.IntRange(min=0), help="Begin behind this event.  [default: with the next one]")
@json_option("webhook")
def add(
    client: ConsoleClient,
    url: str,
    types: Sequence[str],
    gateways: Sequence[str],
    selector: str | None,
    tenant: str,
    after: int | None,
    as_json: JsonOutput | None,
) -> None:
    """Add a webhook.

    Prints its secret, which is shown once.

    \b
      waypost hub webhook add https://example.com/hook --type alert --type gateway.revoked
    """
    filters = {"types": list(types), "gateways": list(gateways), "selector": selector or ""}
    body = {"url": url, **filters, "tenant": tenant, "after": after}
    _say_secret(client.ask("webhooks", method="POST", body=body), as_json)


@webhook.command("list")
@console_option
@click.option("--tenant", help="Only of this tenant.")
@output_option("webhook")
def list_webhooks(client: ConsoleClient, tenant: str | None, form: str) -> None:
    """List webhooks. It shows how far each is."""
    rows = [_row(each) for each in client.pages("webhooks", "webhooks", {"tenant": tenant})]
    print_listing(WEBHOOKS, rows, form)


@webhook.command()
@console_option
@identifier_argument
@output_option("webhook")
def show(client: ConsoleClient, identifier: str, form: str) -> None:
    """Show one webhook."""
    print_listing(WEBHOOKS, [_row(client.ask(_path(identifier)))], "wide" if form == "table" else form)


@webhook.command()
@console_option
@identifier_argument
@click.option("--url", help="Another URL.")
@filter_options
@click.option("--all-events", is_flag=True, help="All events, instead of some types, gateways or labels.")
def change(
    client: ConsoleClient,
    identifier: str,
    url: str | None,
    types: Sequence[str],
    gateways: Sequence[str],
    selector: str | None,
    all_events: bool,
) -> None:
    """Change the settings of a webhook.

    What is not given stays. Types and gateways that are given replace all those before.
    """
    given: dict[str, Any] = {"url": url, "types": list(types), "gateways": list(gateways), "selector": selector}
    filters = {"types": [], "gateways": [], "selector": ""} if all_events else {}
    body = {**filters, **{name: value for name, value in given.items() if value}}
    if not body:
        raise CommandError("give a change, such as --url", error="wrong-usage", code=Exit.USAGE)
    client.ask(_path(identifier), method="PATCH", body=body)
    say(f"{identifier}: changed")


@webhook.command()
@console_option
@identifier_argument
def pause(client: ConsoleClient, identifier: str) -> None:
    """Pause a webhook. It keeps its place in the events."""
    client.ask(_path(identifier), method="PATCH", body={"paused": True})
    say(f"{identifier}: paused; it goes on where it was: waypost hub webhook resume {word(identifier)}")


@webhook.command()
@console_option
@identifier_argument
def resume(client: ConsoleClient, identifier: str) -> None:
    """Let a webhook go on, now.

    It goes on where it was: also one that waits for its next attempt, one that failed for days, and one that was ended
    by an answer 410.
    """
    client.ask(_path(identifier), method="PATCH", body={"paused": False})
    say(f"{identifier}: it goes on")


@webhook.command()
@console_option
@identifier_argument
@click.option("--overlap", default="24h", show_default=True, metavar="TIME", help="Both secrets sign: 0s to 7d.")
@json_option("webhook")
def secret(client: ConsoleClient, identifier: str, overlap: str, as_json: JsonOutput | None) -> None:
    """Change the secret of a webhook.

    Requests are signed with the secret before, too, for the time of --overlap.
    """
    seconds = 0.0 if overlap in ("0", "0s") else parse_duration(overlap)
    document = client.ask(f"{_path(identifier)}/secret", method="POST", body={"overlap_s": int(seconds)})
    _say_secret(document, as_json)


@webhook.command()
@console_option
@identifier_argument
def test(client: ConsoleClient, identifier: str) -> None:
    """Send a test request. Exit code 1 when its server does not take it."""
    client.ask(f"{_path(identifier)}/test", method="POST", body={}, answer_s=TEST_S)
    say(f"{identifier}: delivered")


@webhook.command()
@console_option
@identifier_argument
def remove(client: ConsoleClient, identifier: str) -> None:
    """Remove a webhook."""
    client.ask(_path(identifier), method="DELETE")
    say(f"{identifier}: removed")


def _path(identifier: str) -> str:
    return f"webhooks/{quote(identifier, safe='')}"


def _say_secret(document: dict[str, Any], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show([_row(document)])
        return
    say(f"webhook {document['id']}")
    say(f"secret {document['secret']}")


def _row(document: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a webhook (`WebhookDocument`)."""
    row = {name: value for name, value in document.items() if name not in ("etag", *_TIMES)}
    if row["secret"] is None:
        del row["secret"]
    times = {name: _moment(document[name]) for name in _TIMES}
    return {**row, "types": ",".join(row["types"]), "gateways": ",".join(row["gateways"]), **times}


def _moment(utc_ms: int | None) -> str | None:
    return None if utc_ms is None else moment_us(utc_ms * 1_000)
