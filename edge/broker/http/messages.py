"""Parse HTTP requests into messages, without I/O: one body with headers, or a batch in JSON.

A batch item is ``{"address": …, "body": …}``. A `body` that is a string is sent as UTF-8 text, any other JSON value as
JSON. `base64` instead of `body` contains bytes. Options are `contentType`, `ttl` (seconds), `qos` and `retain`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, NoReturn

import msgspec

from bridge.hidden import hides
from bridge.message import DURABLE, RETAIN, Run
from edge.broker.http.limits import HTTP_BATCH_MAX
from edge.broker.limits import ADDRESS_BYTES_MAX, TOPIC_LEVELS_MAX
from edge.broker.message.mqtt_properties import NONE, Properties, encode_run

CONTENT_TYPE_CHARACTERS_MAX: Final = 255
CORRELATION_BYTES_MAX: Final = 1_024
"""Size of the correlation data of a response, which is sent in a header; all headers together have 16 KiB."""
STATUS: Final = "status"
"""User property with the status of a response, as MQTT 5 devices send it."""
STATUS_MAX: Final = 999
TTL_S_MAX: Final = 0xFFFF_FFFF
"""Largest Message Expiry Interval (MQTT 5 section 3.3.2.3.3)."""
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_LINES_MAX: Final = 2 * HTTP_BATCH_MAX
"""Lines of a batch, including empty ones."""
_PLACE: Final = re.compile(r"`\$\[(\d+)\]")
"""Index of the invalid item in an error of msgspec."""
BATCH_TYPES: Final = (JSON, "application/x-ndjson", "application/ndjson")


class BadRequest(Exception):
    """The request is invalid; `status` is the HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@hides("body")
class HttpMessage(msgspec.Struct, frozen=True):
    """One message to publish."""

    address: str
    body: bytes
    qos: int = 1
    retain: bool = False
    content_type: str | None = None
    ttl_s: int | None = None
    correlation_data: bytes | None = None
    status: int | None = None
    """Status of a response to a command."""
    user_properties: tuple[tuple[str, str], ...] = ()

    @property
    def flags(self) -> int:
        """`Run.flags`."""
        return self.qos | (DURABLE if self.qos else 0) | (RETAIN if self.retain else 0)

    @property
    def properties(self) -> bytes:
        """`Run.properties`."""
        users = self.user_properties
        if self.status is not None:
            users = (*users, (STATUS, str(self.status)))
        if (self.content_type, self.ttl_s, self.correlation_data, users) == (None, None, None, ()):
            return encode_run(NONE)
        return encode_run(
            Properties(
                content_type=self.content_type,
                message_expiry_interval_s=self.ttl_s,
                correlation_data=self.correlation_data,
                user_property=users,
            )
        )


@hides("body")
class _BatchItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One item of a batch in JSON."""

    address: str
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: str | None = None
    content_type: str | None = None
    ttl: Annotated[int, msgspec.Meta(ge=0, le=TTL_S_MAX)] | None = None
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1
    retain: bool = False


def parse_single(address: str, body: bytes, query: Mapping[str, str], headers: Mapping[str, str]) -> HttpMessage:
    """Parse a request with one message. Raises BadRequest.

    Options are query parameters, or else headers (in parentheses): `qos` (`QoS-Level`), `retain`, `ttl` or `hono-ttl`
    in seconds (`hono-ttl`), `content-type` (`Content-Type`). A response to a command has the correlation data of the
    command in Base64, `correlation-data` (`Waypost-Correlation-Data`), and an HTTP `status` (`Waypost-Status`).
    """
    correlation = query.get("correlation-data", headers.get("waypost-correlation-data"))
    status = query.get("status", headers.get("waypost-status"))
    ttl = query.get("ttl", query.get("hono-ttl", headers.get("hono-ttl")))
    return HttpMessage(
        check_address(address),
        body,
        _number("qos", query.get("qos", headers.get("qos-level", "1")), 2),
        _flag("retain", query.get("retain", "false")),
        check_content_type(query.get("content-type") or headers.get("content-type")),
        None if ttl is None else _number("ttl", ttl, TTL_S_MAX),
        None if correlation is None else _correlation(correlation),
        None if status is None else _number("status", status, STATUS_MAX),
    )


def parse_batch(body: bytes, content_type: str) -> list[HttpMessage]:
    """Parse a batch. Raises BadRequest if one message is invalid."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in BATCH_TYPES:
        raise BadRequest(f"a batch must be {JSON} (an array) or {BATCH_TYPES[1]} (lines), not {kind or 'untyped'}", 415)
    items = _array(body) if kind == JSON else _lines(body)
    if len(items) > HTTP_BATCH_MAX:
        raise BadRequest(f"a batch has at most {HTTP_BATCH_MAX} messages", 413)
    return [_message(item, i) for i, item in enumerate(items)]


def runs_of(messages: Sequence[HttpMessage], device: str) -> Iterator[tuple[Run, list[int]]]:
    """Yield the messages as runs, in order, each with the indexes of its messages in the batch."""
    run: Run | None = None
    places: list[int] = []
    for i, message in enumerate(messages):
        alike = (message.address, message.flags, message.properties)
        if run is not None and (run.address, run.flags, run.properties) == alike:
            run.bodies.append(message.body)
            places.append(i)
            continue
        if run is not None:
            yield run, places
        run, places = Run(alike[0], device, alike[1], alike[2], [message.body]), [i]
    if run is not None:
        yield run, places


def check_address(name: str) -> str:
    """Return the address if messages can be sent to it. Raises BadRequest."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        _bad("the address is not valid UTF-8")
    if not 0 < size <= ADDRESS_BYTES_MAX:
        _bad(f"an address has 1 to {ADDRESS_BYTES_MAX} bytes")
    if "+" in name or "#" in name or "\0" in name:
        _bad(f'"{name[:100]}" is not an address: remove +, # and null characters')
    if name.count("/") >= TOPIC_LEVELS_MAX:
        _bad(f"an address has at most {TOPIC_LEVELS_MAX} levels")
    if name.startswith("$"):
        _bad(f'"{name[:100]}": names that begin with $ belong to the broker')
    return name


def _array(body: bytes) -> list[_BatchItem]:
    """Decode an array of items. Decoding stops at the first invalid item, which bounds the work."""
    try:
        return msgspec.json.decode(body, type=list[_BatchItem])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        place = _PLACE.search(str(error))
        raise BadRequest(f"item {place[1]}: {error}" if place else f"not a JSON array: {error}") from None


def _lines(body: bytes) -> list[_BatchItem]:
    if body.count(b"\n") > _LINES_MAX:
        raise BadRequest(f"a batch has at most {_LINES_MAX} lines", 413)
    items: list[_BatchItem] = []
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        try:
            items.append(msgspec.json.decode(line, type=_BatchItem))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadRequest(f"item {len(items)}: {error}") from None
    return items


def _message(item: _BatchItem, i: int) -> HttpMessage:
    try:
        return _read(item)
    except (msgspec.DecodeError, UnicodeError, RecursionError, BadRequest) as error:
        raise BadRequest(f"item {i}: {error}", getattr(error, "status", 400)) from None


def _read(item: _BatchItem) -> HttpMessage:
    content_type = check_content_type(item.content_type)
    body = b""
    if (item.body is msgspec.UNSET) is (item.base64 is None):
        _bad("exactly one of body and base64 is required")
    if item.base64 is not None:
        try:
            body = base64.b64decode(item.base64, validate=True)
        except (binascii.Error, ValueError):
            _bad("base64 is not valid Base64")
    elif item.body is not msgspec.UNSET:
        body = bytes(item.body)
        if body.startswith(b'"'):
            body = msgspec.json.decode(body, type=str).encode("utf-8")
        else:
            content_type = content_type or JSON
    return HttpMessage(check_address(item.address), body, item.qos, item.retain, content_type, item.ttl)


def check_content_type(text: str | None) -> str | None:
    """Return a content type; None for an empty one. Raises BadRequest."""
    if not text:
        return None
    if len(text) > CONTENT_TYPE_CHARACTERS_MAX or not text.isprintable():
        _bad(f"a content type has up to {CONTENT_TYPE_CHARACTERS_MAX} printable characters")
    return text


def _correlation(text: str) -> bytes:
    try:
        found = base64.b64decode(text.replace(" ", "+"), validate=True)  # a + of the query is decoded as a space
    except (binascii.Error, ValueError):
        _bad("correlation data must be Base64, as received in Waypost-Correlation-Data")
    if len(found) > CORRELATION_BYTES_MAX:
        _bad(f"correlation data has at most {CORRELATION_BYTES_MAX} bytes")
    return found


def _number(name: str, text: str, largest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= largest):
        _bad(f"{name} is a whole number from 0 to {largest}, not {text[:40]!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("", "true", "false", "1", "0"):
        _bad(f"{name} is true or false, not {text[:40]!r}")
    return text.lower() in ("", "true", "1")


def _bad(text: str) -> NoReturn:
    raise BadRequest(text)
