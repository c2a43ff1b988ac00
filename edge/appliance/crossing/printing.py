"""Print the status of the bridge on a terminal."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from edge.appliance.crossing.documents import (
    AUTONOMY_SHOWN_HOURS_MAX,
    BridgeStatus,
    ConnectorStatus,
    RouterLinkStatus,
    autonomy,
)
from edge.output.amounts import counted, number, size, span, verb
from edge.output.terminal import styled


def show(bridge: BridgeStatus, now_s: float) -> None:
    """Print the status of the bridge; `now_s`: seconds since 1970."""
    out = Console()
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (*_whole(bridge), *(row for one in bridge.connectors for row in _connector(one, now_s))):
        table.add_row(styled(name, "bold"), styled(value))
    out.print(table)


def _whole(bridge: BridgeStatus) -> Iterator[tuple[str, str]]:
    yield "gateway", f"{bridge.gateway or '-'}  (epoch {bridge.epoch[:8]})"
    if bridge.public_key is not None:
        yield "signs", f"manifests with {bridge.public_key}"
    if bridge.room_bytes is not None:
        left = _format_autonomy(bridge)
        yield "room", f"{size(bridge.room_bytes)} of messages{left}"
    if not bridge.connectors:
        yield "bridge", "no connector: `waypost apply` one, or give --hub"
    for name, waiting in bridge.left.items():
        stored = f"up to {counted(waiting, 'message')} {verb(waiting, 'waits', 'wait')}"
        yield "left", f"{stored} for {name}, which is no longer configured; new messages are kept too"


def _connector(one: ConnectorStatus, now_s: float) -> Iterator[tuple[str, str]]:
    yield "", ""
    place = f"{one.endpoint or '-'}{f', {one.peer}' if one.peer else ''}"
    yield one.name, f"{one.state} since {_format_time(one.since)}  ({one.type}, {place})"
    if one.last_error and one.state != "connected":
        yield "  last error", f"{one.last_error} ({counted(one.attempts, 'attempt')})"
    if one.router is not None:
        yield from _router_link(one.router, one.accepted_per_s)
        return
    waiting = f"{counted(one.backlog_messages, 'message')}, about {size(one.backlog_bytes)}"
    if one.backlog_oldest_at is not None:
        waiting += f", the oldest {span(max(0.0, now_s - one.backlog_oldest_at))} old"
    if one.live_messages and one.state == "connected":
        waiting += f"; {one.live_messages:,} of them since the link is up"
    yield "  waiting", f"{waiting}; quiet hours" if one.quiet else waiting
    if one.budget_bytes:
        share = 100 * one.spent_bytes / one.budget_bytes
        yield "  budget", f"{size(one.spent_bytes)} of {size(one.budget_bytes)} of this month ({share:.0f} %)"
    yield "  rate", f"{one.accepted_per_s:,.1f} messages/s accepted, {one.accepted:,} since the start"
    yield "  drained", _drained(one)
    if one.manifest_hour is not None:
        waiting = f"{counted(one.manifest_waiting, 'statement')} {verb(one.manifest_waiting, 'waits', 'wait')}"
        yield "  manifest", f"of {_format_time(one.manifest_hour)} is being counted, {waiting}"
    for each in one.forwarders:
        arrow = "->" if each.direction == "out" else "<-"
        waiting = f"{number(each.backlog_messages)} {verb(each.backlog_messages, 'waits', 'wait')}"
        yield f"  {each.name}", f"{each.filter} {arrow} {each.remote_address}, {waiting}"
        if each.fault is not None:
            yield "", f"it receives nothing: {each.fault}"
        if each.rejected:
            yield "", f"{counted(each.rejected, 'message')} from the peer rejected: see the log"


def _router_link(link: RouterLinkStatus, accepted_per_s: float) -> Iterator[tuple[str, str]]:
    if link.neighbour:
        yield "  linked to", f"{link.neighbour}, cost {link.cost}, {counted(link.links, 'link')} with messages"
    yield "  messages", f"{link.sent:,} sent, {link.unanswered:,} of them unanswered, {link.received:,} received"
    answers = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in link.outcomes.items() if count)
    yield "  answers", f"{answers or 'none yet'}; {accepted_per_s:,.1f} messages/s accepted"


def _drained(one: ConnectorStatus) -> str:
    if not one.backlog_messages:
        return "now"
    if one.state != "connected":
        return "not before it is resumed" if one.state == "paused" else "not before the link is back"
    return "not at the present rate: the backlog grows" if one.drain_s is None else f"in {span(one.drain_s)}"


def _format_autonomy(bridge: BridgeStatus) -> str:
    hours = bridge.autonomy_hours
    if not hours:
        return ""
    rate = f"{size(bridge.stored_bytes_per_s)}/s" if hours <= AUTONOMY_SHOWN_HOURS_MAX else "the present rate"
    return f", {autonomy(hours)} at {rate}"


def _format_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%MZ")
