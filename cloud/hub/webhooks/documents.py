"""JSON documents of webhooks: for the API, and the bodies of their requests. Times are milliseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bridge.hidden import hides
from cloud.hub.events.documents import EventDocument, event_document, gap_document
from cloud.hub.registry.event_reader import NumberedEvent
from cloud.hub.registry.webhooks import WebhookRecord
from cloud.hub.webhooks.limits import WEBHOOK_BODY_BYTES_MAX
from edge.broker.http.preconditions import tag_of

GAP: Final = "gap"
"""Type of the request that says that events are missing."""
TEST: Final = "test"


@hides("secret")
class WebhookDocument(msgspec.Struct, kw_only=True):
    """Webhook."""

    id: str
    tenant: str
    """Tenant of its events; empty: it gets those of all tenants and of the hubs."""
    url: str
    """Without path and query for users who may not manage it: they may contain a secret."""
    types: list[str]
    """Types of events, or their nouns; empty: all."""
    gateways: list[str]
    """Names of gateways; empty: all, and events without a gateway."""
    selector: str
    """Labels of gateways; empty: all, and events without a gateway."""
    state: str
    """`active`; `paused` by a person; `failed`: paused as nothing could be delivered for five days; `gone`: its server
    has answered 410. One that is not active keeps its place."""
    reached: int
    """Number of the event up to which everything was delivered, or was not wanted."""
    attempts: int
    """Failed attempts since the last delivery."""
    failing_since: int | None
    """First failed attempt since the last delivery; null if the last one succeeded."""
    failure: str
    """Reason of the last failed attempt; empty after a delivery."""
    next_attempt_at: int | None
    """Time of the next attempt after a failed one; null if none is due."""
    delivered_at: int | None
    older_secret_until: int | None
    """Time until which requests are signed with the secret before, too; null: with one only."""
    secret: str | None = None
    """Key of the signatures, shown once."""
    made_at: int
    changed_at: int
    changed_by: str
    etag: str
    """State of its settings, for `If-Match`."""


class WebhookPage(msgspec.Struct, kw_only=True):
    """Page of webhooks, by id."""

    webhooks: list[WebhookDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""
    total: int


class WebhookMessage(msgspec.Struct, kw_only=True):
    """Body of a request of a webhook."""

    type: str
    """Type of the event; `gap`: events are missing; `test`."""
    timestamp: str
    """Time of the event, ISO 8601, UTC."""
    data: Any
    """The event as `GET /api/v1/events` has it; of a gap what is missing."""


def _milliseconds(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1_000


def webhook_document(
    record: WebhookRecord, now_us: int, secret: str | None = None, *, hides_url: bool = False
) -> WebhookDocument:
    """Return the document of a webhook. `secret`: shown once, to its maker; `hides_url`: without path and query, which
    may contain a secret."""
    wanted = record.wanted
    return WebhookDocument(
        id=record.id,
        tenant=record.tenant,
        url=f"{'/'.join(record.url.split('/', 3)[:3])}/…" if hides_url else record.url,
        types=sorted(wanted.types),
        gateways=sorted(wanted.gateways),
        selector=record.selector,
        state=record.state,
        reached=record.reached,
        attempts=record.attempts,
        failing_since=_milliseconds(record.failing_since),
        failure=record.failure,
        next_attempt_at=_milliseconds(record.due_at) if record.attempts else None,
        delivered_at=_milliseconds(record.delivered_at),
        older_secret_until=_milliseconds(record.older_until) if len(record.secrets(now_us)) > 1 else None,
        secret=secret,
        made_at=record.made_at // 1_000,
        changed_at=record.changed_at // 1_000,
        changed_by=record.changed_by,
        etag=webhook_tag(record),
    )


def webhook_tag(record: WebhookRecord) -> str:
    """Return the entity tag of a webhook's settings, without what deliveries change."""
    settings = (record.url, record.types, record.gateways, record.selector)
    return tag_of((record.id, *settings, record.state, record.changed_at))


def event_body(numbered: NumberedEvent) -> bytes:
    """Return the body of a request with an event. Above `WEBHOOK_BODY_BYTES_MAX` its `data` is left out."""
    document = event_document(numbered)
    body = _body(document)
    if len(body) > WEBHOOK_BODY_BYTES_MAX:
        body = _body(msgspec.structs.replace(document, data={"left_out": "the data of this event is too large"}))
    return body


def _body(document: EventDocument) -> bytes:
    return _message(document.type, document.at / 1_000, document)


def gap_body(missed_to: int, now_s: float) -> bytes:
    """Return the body of a request that says that events are missing up to a number."""
    return _message(GAP, now_s, gap_document(missed_to))


def make_test_body(record: WebhookRecord, now_s: float) -> bytes:
    """Return the body of a test."""
    words = "This is a test of a webhook. Nothing has happened."
    return _message(TEST, now_s, {"webhook": record.id, "tenant": record.tenant, "what": words})


def _message(kind: str, at_s: float, data: Any) -> bytes:
    stamp = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.json.encode(WebhookMessage(type=kind, timestamp=stamp, data=data))
