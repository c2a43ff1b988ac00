"""`waypost audit`: who changed what at a gateway or hub, from where, and the outcome.

A hub has an audit in its registry. A gateway has the changes and sign-ins among the events of its log, the last 1 000
with those from before a restart.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from edge.appliance.nodes import node_address_option, node_client, node_data_option
from edge.broker.http.limits import LOG_LINES_MAX, PAGE, PAGE_MAX
from edge.output.errors import CommandError, Exit
from edge.output.listing import FORMS, JsonOutput, Listing, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import line
from edge.output.times import moment
from edge.remote.client import ConsoleClient

POLL_S: Final = 2.0
"""Time between two requests while following."""
KIND: Final = "audit-line"
LINES: Final = Listing(
    KIND,
    "number",
    ("at", "user", "remote", "action", "subject", "outcome", "error"),
    ("tenant", "status", "before", "after", "number"),
    "no change matches",
)
OUTCOMES: Final = ("done", "refused")
_KINDS: Final = ("change", "sign-in")
"""Events of a gateway that are lines of its audit."""
_CHANGE: Final = re.compile(r"audit: user=(?P<user>.*) from=(?P<remote>\S+) (?P<action>[A-Z]+ \S+) -> (?P<status>\d+)")
_SIGN_IN: Final = re.compile(
    r"(?P<action>sign-in|sign-out)(?P<refused> refused)?: user=(?P<user>.*) from=(?P<remote>\S+?)(?:: (?P<error>.*))?"
)
_AGES: Final = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}
_BUSY: Final = frozenset({"too-many-requests", "not-available"})
"""Errors after which following goes on."""


class AuditQuery(NamedTuple):
    """Wanted lines; None and empty values match everything."""

    user: str | None
    action: str | None
    outcome: str | None
    text: str | None
    since_s: float | None
    tenant: str | None


@click.command()
@node_data_option
@node_address_option
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("--user", help="Only changes of this user.")
@click.option("--action", metavar="NOUN[.VERB]", help="Only this action: token, token.create. At a gateway a path.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only changes that were done, or were not.")
@click.option("--query", "-q", "text", metavar="TEXT", help="Only with this text in user, subject, address or error.")
@click.option("--since", metavar="TIME", help="Only of this time: 30m, 24h, 7d.")
@click.option("--tenant", help="Only changes of this tenant, at a hub.")
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=PAGE, show_default=True, help="Number of lines.")
@output_option(KIND)
def audit(
    data: Path | None,
    http: str | None,
    follow: bool,
    user: str | None,
    action: str | None,
    outcome: str | None,
    text: str | None,
    since: str | None,
    tenant: str | None,
    limit: int,
    form: str,
) -> None:
    """Show who changed what. At a gateway or hub; the latest change is first, with --follow it comes last.

    \b
      waypost audit --data ./gw1
      waypost audit --hub https://hub.example:8443 --outcome refused --since 24h
      waypost audit -f --json | jq .
    """
    if follow and form not in ("table", "json"):
        what = f"-o {form} cannot follow: it has a beginning and an end"
        raise CommandError(what, f"without -f, or one of -o {', -o '.join(FORMS[:1])}, --json", error="wrong-usage")
    wanted = AuditQuery(user, action, outcome, text, None if since is None else _age(since), tenant)
    source = _source_of(node_client(data, http), wanted)
    found = list(islice(source.latest(), limit))
    if not follow:
        print_listing(LINES, found, form)
        return
    as_json = JsonOutput(KIND) if form == "json" else None
    _show(found[::-1], as_json)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(POLL_S)
            _show(source.following(), as_json)


class HubAuditSource:
    """Audit of a hub."""

    def __init__(self, client: ConsoleClient, query: dict[str, Any]) -> None:
        self._client = client
        self._query = query
        self._last = 0

    def latest(self) -> Iterator[dict[str, Any]]:
        """Yield the lines, the latest first. Raises CommandError."""
        for row in self._client.pages("audit", "lines", self._query):
            self._last = max(self._last, row["number"])
            yield _of_hub(row)

    def following(self) -> list[dict[str, Any]]:
        """Return the lines since the last call, the latest last. Raises CommandError."""
        last, found = self._last, list[dict[str, Any]]()
        try:
            for row in self.latest():
                if row["number"] <= last:
                    break
                found.append(row)
        except CommandError as error:
            self._last = last
            if error.error not in _BUSY:
                raise
            return []
        return found[::-1]


class GatewayAuditSource:
    """Changes and sign-ins in the journal of a gateway."""

    def __init__(self, client: ConsoleClient, wanted: AuditQuery) -> None:
        self._client = client
        self._wanted = wanted
        self._next: int | None = None

    def latest(self) -> Iterator[dict[str, Any]]:
        """Yield the lines, the latest first. Raises CommandError."""
        yield from reversed(self.following())

    def following(self) -> list[dict[str, Any]]:
        """Return the lines since the last call, the latest last. Raises CommandError."""
        page = self._client.ask("journal", after=self._next, limit=LOG_LINES_MAX)
        self._next = page["next"]
        rows = [_of_gateway(each) for each in page["lines"] if each["event"] in _KINDS]
        return [row for row in rows if row is not None and self._matches(row)]

    def _matches(self, row: dict[str, Any]) -> bool:
        wanted = self._wanted
        text = " ".join(str(row[name]) for name in ("user", "remote", "action", "error")).casefold()
        return (
            wanted.user in (None, row["user"])
            and (wanted.action is None or wanted.action.casefold() in row["action"].casefold())
            and wanted.outcome in (None, row["outcome"])
            and (wanted.text is None or wanted.text.casefold() in text)
            and (wanted.since_s is None or row["at"] >= moment(wanted.since_s))
        )


AuditSource = HubAuditSource | GatewayAuditSource


def _source_of(client: ConsoleClient, wanted: AuditQuery) -> AuditSource:
    """Return the audit of a hub, or that of a gateway. Raises CommandError."""
    query: dict[str, Any] = {
        "user": wanted.user,
        "action": wanted.action,
        "outcome": wanted.outcome,
        "q": wanted.text,
        "since": None if wanted.since_s is None else int(wanted.since_s * 1_000),
        "tenant": wanted.tenant,
    }
    try:
        client.ask("audit", limit=1, **query)
    except CommandError as error:
        if error.error != "not-found":
            raise
        if wanted.tenant is not None:
            what = "a gateway has no tenants"
            raise CommandError(what, "--tenant is for a hub", error="wrong-usage", code=Exit.USAGE) from None
        return GatewayAuditSource(client, wanted)
    return HubAuditSource(client, query)


def _of_hub(row: dict[str, Any]) -> dict[str, Any]:
    outcome = OUTCOMES[row["status"] >= 400]
    return {**row, "at": moment(row["at"] / 1_000), "outcome": outcome}


def _of_gateway(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return a line of the audit for an event; None for another event."""
    text = str(row["text"]).partition("\n")[0]
    if (found := _CHANGE.fullmatch(text)) is not None:
        action, status, error = found["action"], int(found["status"]), ""
    elif (found := _SIGN_IN.fullmatch(text)) is not None:
        action, error = found["action"], found["error"] or ""
        status = 401 if found["refused"] else 200
    else:
        return None
    return {
        "number": row["number"],
        "at": moment(row["at"]),
        "user": "" if found["user"] == "-" else found["user"],
        "remote": "" if found["remote"] == "-" else found["remote"],
        "tenant": "",
        "action": action,
        "subject": "",
        "before": None,
        "after": None,
        "outcome": OUTCOMES[status >= 400],
        "status": status,
        "error": error,
    }


def _age(text: str) -> float:
    """Return the UTC seconds of a time ago, such as ``24h``. Raises CommandError."""
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if found is None:
        what = f"--since {text}: not a time ago"
        raise CommandError(what, "for example 30m, 24h or 7d", error="invalid-value", code=Exit.USAGE)
    return time.time() - int(found[1]) * _AGES[found[2]]


def _show(rows: Sequence[dict[str, Any]], as_json: JsonOutput | None) -> None:
    for row in rows:
        if as_json is not None:
            as_json.stream(row)
            continue
        why = f": {line(row['error'])}" if row["error"] else ""
        subject = f" {line(row['subject'])}" if row["subject"] else ""
        who = f"{line(row['user'] or '-')} from {line(row['remote'] or '-')}"
        text = f"{row['at']}  {who}  {line(row['action'])}{subject}  {row['outcome']}{why}"
        say(text, style="yellow" if row["outcome"] == OUTCOMES[1] else None)
    sys.stdout.flush()
