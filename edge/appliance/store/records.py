"""Records of messages for export and import: name, properties, and a readable body when it is text."""

from __future__ import annotations

import base64
import datetime
from typing import Any, Final

import msgspec

from bridge.amqp_values import DecodeError
from bridge.hidden import hides
from bridge.message import AMQP, CLOCK_GOOD, DURABLE, QOS_MASK, RETAIN, Run, Stored
from bridge.publisher import client_of, device_of, is_relay, publisher_name
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.message.translation import payload_of
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreError

MEMO_MAX: Final = 1024
"""Cached content types, by property bytes: runs of a device share theirs."""


@hides("properties", "json", "text", "base64", "amqp")
class MessageRecord(msgspec.Struct, omit_defaults=True):
    """Line of NDJSON. (epoch, address, sequence) is the message's permanent name; one of the last four has its body.

    `json` has the body's own bytes if they are a JSON object or array on one line, `text` any other UTF-8, `base64` the
    rest. `amqp` is a bare AMQP message in base64, exactly as received; its payload is in one of the others, to be read.
    """

    epoch: str = ""
    address: str = ""
    sequence: int = -1
    log: str = ""
    position: int = -1
    received_at: str = ""
    """UTC, ISO 8601; `received_ns` has the nanoseconds."""
    received_ns: int = 0
    device: str = ""
    client: str = ""
    """Client of the publisher, if its name differs from the device's."""
    relay: bool = False
    """True when the publisher may name the origin of its messages."""
    flags: int | None = None
    """`bridge.message.Run.flags`; always present in an export."""
    content_type: str | None = None
    properties: str = ""
    """Base64 of the properties as received (MQTT 5), or of the AMQP header."""
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    base64: str | msgspec.UnsetType = msgspec.UNSET
    amqp: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def publisher(self) -> str:
        """Value for `bridge.message.Run.device`."""
        return publisher_name(self.device, self.client or self.device, relay=self.relay)

    @property
    def raw_properties(self) -> bytes:
        """Value for `bridge.message.Run.properties`. Raises ValueError."""
        return base64.b64decode(self.properties, validate=True)

    @property
    def body(self) -> bytes:
        """Body exactly as in the store. Raises ValueError when it is missing, or not valid base64."""
        if self.amqp is not msgspec.UNSET:
            return base64.b64decode(self.amqp, validate=True)
        if self.base64 is not msgspec.UNSET:
            return base64.b64decode(self.base64, validate=True)
        if self.text is not msgspec.UNSET:
            return self.text.encode()
        if self.json is not msgspec.UNSET:
            return bytes(self.json)
        raise ValueError("a message needs a body: one of json, text, base64, amqp")


COLUMNS: Final = (
    "epoch", "log", "position", "address", "sequence", "device", "client", "received_at", "qos", "retain", "durable",
    "clock_good", "content_type", "body_text", "body",
)  # fmt: skip
"""Columns of CSV and Parquet. `body_text`: the payload if it is UTF-8. `body`: the payload's bytes."""


class Recorder:
    """Convert runs to records; content types are cached."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._memo: dict[bytes, str | None] = {}

    def records(self, log: str, stored: Stored) -> list[MessageRecord]:
        """Return a record for each message."""
        run, epoch = stored.run, self._epochs.of(stored.run.address, stored.sequence)
        at, properties = iso(run.received_at), base64.b64encode(run.properties).decode()
        device, client = device_of(run.device), client_of(run.device)
        made = []
        for i, body in enumerate(run.bodies):
            content_type, payload = self._payload(run, body)
            record = MessageRecord(
                epoch, run.address, stored.sequence + i, log, stored.position + i, at, run.received_at, device,
                client if client != device else "", is_relay(run.device), run.flags, content_type, properties,
            )  # fmt: skip
            _set_body(record, payload)
            if run.flags & AMQP:
                record.amqp = base64.b64encode(body).decode()
            made.append(record)
        return made

    def rows(self, log: str, stored: Stored) -> list[tuple[Any, ...]]:
        """Return a row for each message, in the order of `COLUMNS`; `received_at` in UTC nanoseconds."""
        run, epoch = stored.run, self._epochs.of(stored.run.address, stored.sequence)
        made = []
        for i, body in enumerate(run.bodies):
            content_type, payload = self._payload(run, body)
            made.append((
                epoch, log, stored.position + i, run.address, stored.sequence + i, device_of(run.device),
                client_of(run.device), run.received_at, run.flags & QOS_MASK, bool(run.flags & RETAIN),
                bool(run.flags & DURABLE), bool(run.flags & CLOCK_GOOD), content_type, text_of(payload), payload,
            ))  # fmt: skip
        return made

    def _payload(self, run: Run, body: bytes) -> tuple[str | None, bytes]:
        if run.flags & AMQP:
            try:
                content_type, _, payload = payload_of(body)
            except DecodeError:
                return None, body
            return content_type, payload
        if not run.properties:
            return None, body
        if run.properties not in self._memo:
            if len(self._memo) >= MEMO_MAX:
                self._memo.clear()
            self._memo[run.properties] = _content_type(run.properties)
        return self._memo[run.properties], body


def iso(at_ns: int) -> str:
    """Return ISO 8601, UTC, with microseconds; empty when the time is unknown or beyond the calendar."""
    try:
        return datetime.datetime.fromtimestamp(at_ns // 1_000_000_000, datetime.UTC).strftime(
            f"%Y-%m-%dT%H:%M:%S.{at_ns // 1000 % 1_000_000:06d}Z"
        )
    except (OverflowError, ValueError, OSError):
        return ""


def text_of(payload: bytes) -> str | None:
    """Return the payload as text; None when it is not UTF-8, or has a NUL, which is invalid in a table."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def parse(line: bytes, number: int) -> MessageRecord:
    """Parse a line of NDJSON. Raises StoreError with the number of the line."""
    try:
        record = msgspec.json.decode(line, type=MessageRecord)
        _ = record.body, record.raw_properties
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(f"line {number}: {error}") from None
    if not record.address:
        raise StoreError(f"line {number}: a message needs an address")
    return record


def _set_body(record: MessageRecord, payload: bytes) -> None:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        record.base64 = base64.b64encode(payload).decode()
        return
    if payload[:1] in (b"{", b"[") and b"\n" not in payload and b"\r" not in payload and payload[-1:] in (b"}", b"]"):
        try:
            msgspec.json.decode(payload, type=msgspec.Raw)  # validated without making objects, which may be huge
        except (msgspec.MsgspecError, RecursionError):
            pass
        else:
            record.json = msgspec.Raw(payload)
            return
    record.text = text


def _content_type(properties: bytes) -> str | None:
    try:
        return decode_run(properties).content_type
    except MqttError:
        return None
