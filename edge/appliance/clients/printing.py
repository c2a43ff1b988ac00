"""Print clients and refusals on a terminal."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Final

from edge.appliance.clients.documents import ClientDetail, ClientDocument, ClientPage, RefusalDocument, RefusalPage
from edge.output.amounts import counted, number, span
from edge.output.terminal import say
from edge.output.text import line

NAME_COLUMNS_MIN: Final = 12
"""Least width of the names of clients; the rest of a narrow terminal."""

_FIGURES: Final = "{state:<9} {protocol:<10} {received:>8} {sent:>8} {queued:>7} {last:>7}"
_COLUMNS: Final = 56
"""Width of a row without its name."""
_PROTOCOLS: Final = {"MQTT 3.1.1": "MQTT 3.1.1", "AMQP 1.0": "AMQP"}


def show_clients(page: ClientPage, now_s: float) -> None:
    """Print a page of clients as a table that fits the terminal; `now_s`: UTC seconds."""
    if not page.clients:
        say("no client matches")
        return
    room = max(NAME_COLUMNS_MIN, shutil.get_terminal_size().columns - _COLUMNS)
    width = min(room, max(len("client"), *(len(_name_of(each)) for each in page.clients)))
    heads = {"received": "in", "sent": "out"}
    titles = {name: heads.get(name, name) for name in ("state", "protocol", "received", "sent", "queued", "last")}
    say(f"{'client':<{width}}  {_FIGURES.format(**titles)}", style="bold")
    for each in page.clients:
        figures = _FIGURES.format(
            state=each.state,
            protocol=_PROTOCOLS.get(each.protocol, each.protocol),
            received=number(each.received),
            sent=number(each.sent),
            queued=number(each.queued),
            last="-" if each.last_at is None else span(max(0.0, now_s - each.last_at)),
        )
        style = {"silent": "yellow", "absent": "dim"}.get(each.state)
        say(f"{_fitted(_name_of(each), width):<{width}}  {figures}", style=style)
    _say_more(len(page.clients), page.total, page.next)


def _name_of(each: ClientDocument) -> str:
    """Return name and user of a client, the user only if it differs."""
    name = line(each.name) or each.id
    return f"{name} ({line(each.user)})" if each.user and each.user != each.name else name


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def show_client(detail: ClientDetail, now_s: float) -> None:
    """Print one client; `now_s`: UTC seconds."""
    say(line(detail.name) or detail.id, style="bold")
    for name, value in _rows(detail, now_s):
        say(f"  {name:<14}{line(value)}")
    for each in detail.filters:
        waiting = f", {counted(each.queued, 'message')} queued" if each.queued else ""
        say(f"  {'receives':<14}{line(each.filter)}{'' if each.qos is None else f' (QoS {each.qos})'}{waiting}")
    if detail.subscriptions > len(detail.filters):
        say(f"  {'':<14}and {number(detail.subscriptions - len(detail.filters))} more")
    for right in detail.rights:
        say(f"  {'may':<14}{line(right)}")
    for refusal in detail.refusals:
        say(f"  {'refused':<14}{_title(refusal, now_s)}")
        for text in _body(refusal):
            say(f"  {'':<14}{text}")


def _rows(detail: ClientDetail, now_s: float) -> Iterator[tuple[str, str]]:
    yield "id", detail.id
    yield "state", f"{detail.state}: {detail.why}" if detail.why else detail.state
    if detail.user:
        yield "user", detail.user
    yield "protocol", f"{detail.protocol} over {detail.tls}" if detail.tls else detail.protocol
    if detail.connected_at is not None:
        yield "connected", f"from {detail.remote}, for {span(max(0.0, now_s - detail.connected_at))}"
        yield "messages", f"{number(detail.received)} in, {number(detail.sent)} out"
    elif detail.session_ends_at is not None:
        yield "session", f"ends {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(detail.session_ends_at))}"
    if detail.queued or detail.in_flight:
        yield "queued", f"{number(detail.queued)}, of these {number(detail.in_flight)} in flight"
    if detail.last_at is not None:
        usual = f", usually one every {span(detail.usual_interval_s)}" if detail.usual_interval_s else ""
        yield "last message", f"{span(max(0.0, now_s - detail.last_at))} ago{usual}"


def show_refusals(page: RefusalPage, now_s: float) -> None:
    """Print refused clients with reasons and next steps; `now_s`: UTC seconds."""
    if not page.refusals:
        say("no client was refused since the start of the gateway")
    for each in page.refusals:
        say(_title(each, now_s), style="bold")
        for text in _body(each):
            say(f"  {text}")
    _say_more(len(page.refusals), page.total, page.next)


def _title(each: RefusalDocument, now_s: float) -> str:
    device = each.user or each.client
    named = f"{line(device)} from {line(each.remote or '-')}" if device else line(each.remote or "-")
    client = f" as client {line(each.client)}" if each.client and each.client != device else ""
    ago = span(max(0.0, now_s - each.last_at))
    return f"{named}{client}: {each.reason}, {counted(each.count, 'time')}, the last {ago} ago"


def _body(each: RefusalDocument) -> Iterator[str]:
    yield line(each.what)
    yield f"next: {line(each.next_step)}"


def _say_more(shown: int, total: int, after: str | None) -> None:
    """Print how many of the entries were shown, and how to see more, to stderr."""
    if after is not None:
        say(f"{number(shown)} of {number(total)} shown; more: --after {line(after)}", style="dim", err=True)
