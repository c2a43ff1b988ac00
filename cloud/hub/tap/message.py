"""Landed message as a record for Kafka: the body, the gateway as key, and the message's name in headers.

Header names are those of a gateway's Kafka connector (`bridge.connectors.kafka.record`), so one consumer reads both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bridge.hidden import hides
from cloud.hub.tap.limits import HEADER_BYTES

HEADERS: Final[Mapping[str, str]] = {
    "tenant": "waypost-tenant",
    "gateway": "waypost-gateway",
    "epoch": "waypost-epoch",
    "address": "waypost-address",
    "sequence": "waypost-sequence",
    "device": "waypost-device",
    "client_id": "waypost-client",
    "event_time": "waypost-event-time",
    "clock_quality": "waypost-clock",
    "lane": "waypost-lane",
    "content_type": "content-type",
    "properties": "waypost-properties",
    "origin_gateway": "waypost-origin-gateway",
    "origin_epoch": "waypost-origin-epoch",
    "origin_address": "waypost-origin-address",
    "origin_sequence": "waypost-origin-sequence",
}
"""Column of `telemetry` to header. Times are microseconds since 1970. A header without a value is left out."""
LEFT_OUT: Final = "waypost-left-out"
"""Header of a record without its body: the bytes of the whole record, which is larger than the topic accepts. The
message is in the lake."""
COLUMNS: Final = (*HEADERS, "received_at", "body")
_TIMES: Final = ("event_time", "received_at")


@hides("value", "headers")
class TappedMessage(NamedTuple):
    """Record for the producer."""

    key: bytes
    """``tenant/gateway``."""
    value: bytes | None
    """None if the record would be too large."""
    headers: list[tuple[str, bytes]]
    timestamp_ms: int
    """Time at which the gateway received it."""

    @property
    def size(self) -> int:
        """Return the bytes of the record, rounded up."""
        headers = sum(len(name) + len(value) + HEADER_BYTES for name, value in self.headers)
        return len(self.key) + len(self.value or b"") + headers + HEADER_BYTES


def messages(rows: pa.RecordBatch, bytes_max: int) -> Iterator[TappedMessage]:
    """Yield rows as records. One with more than `bytes_max` has no body, and a header that says so."""
    columns = {name: _values(rows, name) for name in COLUMNS if name in rows.schema.names}
    received, bodies = columns.pop("received_at"), columns.pop("body")
    named = [(HEADERS[name], values) for name, values in columns.items()]
    tenants, gateways = columns["tenant"], columns["gateway"]
    for place, body in enumerate(bodies):
        key = f"{tenants[place]}/{gateways[place]}".encode()
        headers = [(name, str(values[place]).encode()) for name, values in named if values[place] is not None]
        message = TappedMessage(key, body, headers, received[place] // 1_000)
        yield message if message.size <= bytes_max else _without_body(message, bytes_max)


def _without_body(message: TappedMessage, bytes_max: int) -> TappedMessage:
    """Return the record without its body, and without its properties if these are too large too."""
    said = (LEFT_OUT, str(message.size).encode())
    short = message._replace(value=None, headers=[*message.headers, said])
    if short.size > bytes_max:
        kept = [header for header in short.headers if header[0] != HEADERS["properties"]]
        short = short._replace(headers=kept)
    return short


def _values(rows: pa.RecordBatch, name: str) -> list[Any]:
    column = rows.column(name)
    values: list[Any] = (column.cast(pa.int64()) if name in _TIMES else column).to_pylist()
    return values
