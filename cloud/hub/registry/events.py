"""Events of the fleet in the registry: what happened, with numbers that a client can go on from.

The transaction that makes a change appends its events, so neither a crash nor a second hub loses or repeats one. On
PostgreSQL a lock makes transactions that append follow each other from the append to their end: numbers become visible
in their order, and a reader that has seen one misses none below it. Times are UTC microseconds since 1970."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.limits import EVENT_CHARACTERS_MAX, EVENTS_JUMP
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import events

EVENTS_LOCK: Final = 0x57505245
"""Number of the advisory lock of PostgreSQL that puts transactions with events in order."""


class EventType(StrEnum):
    """Kind of an event: noun and verb."""

    GATEWAY_ENROLLED = "gateway.enrolled"
    GATEWAY_CONNECTED = "gateway.connected"
    GATEWAY_DISCONNECTED = "gateway.disconnected"
    GATEWAY_REVOKED = "gateway.revoked"
    GATEWAY_FORGOTTEN = "gateway.forgotten"
    PROBLEM_RAISED = "problem.raised"
    PROBLEM_ENDED = "problem.ended"
    ALERT_FIRED = "alert.fired"
    ALERT_RESOLVED = "alert.resolved"
    ROLLOUT_CHANGED = "rollout.changed"
    CAMPAIGN_CHANGED = "campaign.changed"
    COMMAND_RECEIPT = "command.receipt"
    COMMAND_RESPONSE = "command.response"
    CONFIGURATION_CONFIRMED = "configuration.confirmed"
    CONFIGURATION_REFUSED = "configuration.refused"
    CONFIGURATION_ROLLED_BACK = "configuration.rolled-back"
    REGISTRY_COPIED = "registry.copied"
    """The registry was restored from a backup, or moved to another database."""


class FleetEvent(NamedTuple):
    """Something that happened in the fleet."""

    at: int
    type: str
    tenant: str
    """Tenant that may see it; empty for what belongs to no tenant."""
    gateway: str
    """Gateway that it is about; empty for none, and for several."""
    subject: str
    """Identity of what it is about, such as the id of an alert."""
    data: str
    """More about it, a JSON object."""


def utc_us() -> int:
    """Return UTC microseconds since 1970."""
    return time.time_ns() // 1_000


def make_event(at: int, kind: EventType, tenant: str, gateway: str = "", subject: str = "", **data: Any) -> FleetEvent:
    """Return an event. Long texts in `data` are shortened; entries that are None are left out."""
    shown = {name: _shorten(value) for name, value in data.items() if value is not None}
    return FleetEvent(at, kind.value, tenant, gateway, subject, msgspec.json.encode(shown).decode())


def _shorten(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= EVENT_CHARACTERS_MAX:
        return value
    return f"{value[:EVENT_CHARACTERS_MAX]} …"


def append_events(tx: sa.Connection, made: Iterable[FleetEvent]) -> None:
    """Append events to those of this transaction's registry. Last step of a transaction, as other ones that append
    wait for its end."""
    rows = [each._asdict() for each in made]
    if not rows:
        return
    _put_in_order(tx)
    tx.execute(events.insert(), rows)
    notify(tx, NoticeTopic.EVENTS)


def _put_in_order(tx: sa.Connection) -> None:
    """Let no other transaction append until the end of this one."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(EVENTS_LOCK)))


def skip_numbers(tx: sa.Connection) -> None:
    """Append an event far behind the last one, in a registry that was copied: the original may have given the numbers
    between to other events, and clients have seen those."""
    _put_in_order(tx)
    number = (tx.execute(sa.select(sa.func.max(events.c.number))).scalar() or 0) + EVENTS_JUMP
    event = make_event(utc_us(), EventType.REGISTRY_COPIED, "")
    tx.execute(events.insert().values(number=number, **event._asdict()))
    if tx.dialect.name == "postgresql":  # SQLite continues after the highest number
        sequence = sa.func.pg_get_serial_sequence(events.name, events.c.number.name)
        tx.execute(sa.select(sa.func.setval(sequence, number)))
