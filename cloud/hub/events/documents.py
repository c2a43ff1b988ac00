"""JSON documents of events, the same over HTTP and on the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from cloud.hub.registry.event_reader import NumberedEvent


class EventDocument(msgspec.Struct, kw_only=True):
    """Event of the fleet."""

    number: int
    """Order among all events of the registry; not all numbers are used."""
    at: int
    """Milliseconds since 1970, UTC."""
    type: str
    """Noun and verb, as `gateway.connected`."""
    tenant: str
    """Empty for what belongs to no tenant, such as a problem of a hub."""
    gateway: str
    """Empty for none, and for several."""
    subject: str
    """Identity of what it is about: of the alert, command, roll-out or problem, or the version of a configuration."""
    data: dict[str, Any]
    """More about it, as its type has it. Programs ignore names that they do not know."""


class EventsPage(msgspec.Struct, kw_only=True):
    """Page of events, the oldest first."""

    events: list[EventDocument]
    next: int
    """Value of `after` for the page that follows, also if this one is the last yet."""
    more: bool
    """Further events are there already. A page reads 20 000 events, so it may be empty and be followed by others."""
    missed_to: int | None
    """Events up to this number may be missing, as they are not kept any more; null if none are."""
    kept_s: int
    """Seconds that events are kept."""


class EventGap(msgspec.Struct, kw_only=True):
    """Events that a stream cannot send any more."""

    missed_to: int
    """Number up to which events may be missing."""
    what: str
    next_step: str


def event_document(numbered: NumberedEvent) -> EventDocument:
    """Return the document of an event."""
    event = numbered.event
    return EventDocument(
        number=numbered.number,
        at=event.at // 1_000,
        type=event.type,
        tenant=event.tenant,
        gateway=event.gateway,
        subject=event.subject,
        data=msgspec.json.decode(event.data, type=dict[str, Any]),
    )


def gap_document(missed_to: int) -> EventGap:
    """Return the document that says that events are missing."""
    return EventGap(
        missed_to=missed_to,
        what="events after the last one that you have seen are not kept any more",
        next_step="read the present state again (gateways, alerts, problems), and go on from here",
    )
