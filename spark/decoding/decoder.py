"""Choose the format of a message, and decode its values.

A registered schema decides first, then Sparkplug's namespace, then the content type, as a hint: many clients send one
that they did not choose (`curl -d`: a form). If the content type is missing, unknown or wrong, the body decides: JSON
or a number, and CBOR that declares itself (tag 55799). Other bytes are not guessed. A gzip body is decompressed first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from spark.decoding import cbor, compressed, document, protobuf, reasons, senml, sparkplug, text, timestamps
from spark.decoding.limits import ADDRESSES_REMEMBERED, BODY_BYTES_MAX, METRIC_CHARACTERS_MAX
from spark.decoding.schema import Format, PayloadSchema, matches, specificity
from spark.decoding.value import EncodedMessage, UnreadableBody, Value

Read = Callable[[EncodedMessage], list[Value]]


def _read_guessed(message: EncodedMessage) -> list[Value]:
    if message.body.startswith(cbor.SELF_DESCRIBED):
        return document.values(cbor.parse(message.body))
    return _json_values(text.guess(message.body), message.received_us)


def _read_json(message: EncodedMessage) -> list[Value]:
    return _json_values(text.parse(message.body), message.received_us)


def _json_values(content: object, received_us: int) -> list[Value]:
    return senml.values(content, received_us) if senml.looks_like(content) else document.values(content)


_READERS: Final[Mapping[str, Read]] = {
    "json": _read_json,
    "number": lambda message: text.number(message.body),
    "text": lambda message: text.text(message.body),
    "cbor": lambda message: document.values(cbor.parse(message.body)),
    "senml+json": lambda message: senml.values(text.parse(message.body), message.received_us),
    "senml+cbor": lambda message: senml.values(cbor.parse(message.body), message.received_us),
    "sparkplug": lambda message: sparkplug.values(message.body, message.address),
}
_DOCUMENTS: Final[Mapping[str, Callable[[bytes], object]]] = {"json": text.parse, "cbor": cbor.parse}
"""Formats with fields that a schema may name."""

_CONTENT_TYPES: Final[Mapping[str, Format]] = {
    "application/json": "json",
    "text/json": "json",
    "json": "json",
    "application/senml+json": "senml+json",
    "application/sensml+json": "senml+json",
    "application/cbor": "cbor",
    "application/senml+cbor": "senml+cbor",
    "application/sensml+cbor": "senml+cbor",
    "text/plain": "text",
}
_OTHER_FORMAT: Final = frozenset(
    (reasons.NO_SCHEMA, reasons.NO_DECODER, reasons.NOT_JSON, reasons.NOT_CBOR, reasons.NOT_TEXT)
)
"""Reasons that only mean that a body has another format than its content type."""
_UNSAID: Final = frozenset(("", "application/octet-stream", "binary/octet-stream"))
_PROTOBUF: Final = frozenset(("application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf"))


class Decoder:
    """Decodes messages by registered schemas."""

    def __init__(self, schemas: Sequence[PayloadSchema] = ()) -> None:
        """Set the schemas. Raises `schema.BadSchema`."""
        # A schema of one tenant precedes one of all tenants; of two equally specific ones the last registered precedes.
        ordered = sorted(
            enumerate(schemas), key=lambda one: (one[1].tenant is not None, specificity(one[1].pattern), one[0])
        )
        self._registered = [(schema, _reader_for_schema(schema)) for _, schema in reversed(ordered)]
        self._found: dict[tuple[str, str, str | None], Read] = {}

    def values(self, message: EncodedMessage) -> list[Value]:
        """Return all values of a message, in order; never empty: a message without values gives one reason."""
        key = (message.tenant, message.address, message.content_type)
        read = self._found.get(key)
        if read is None:
            if len(self._found) == ADDRESSES_REMEMBERED:
                self._found.clear()
            read = self._found[key] = self._reader(*key)
        if len(message.body) > BODY_BYTES_MAX:
            return [Value("", reason=reasons.TOO_LARGE)]
        try:
            if message.body.startswith(compressed.GZIP):
                message = message._replace(body=compressed.decompress(message.body))
            return read(message)
        except UnreadableBody as unreadable:
            return [Value("", reason=str(unreadable))]

    def _reader(self, tenant: str, address: str, content_type: str | None) -> Read:
        for schema, read in self._registered:
            if schema.tenant in (None, tenant) and matches(schema.pattern, address):
                return read
        if address.startswith(f"{sparkplug.NAMESPACE}/") and not address.startswith(sparkplug.STATE):
            return _READERS["sparkplug"]
        return _reader_for_content_type((content_type or "").partition(";")[0].strip().lower())


def _reader_for_content_type(name: str) -> Read:
    if name in _UNSAID:
        return _read_guessed
    if name in _PROTOBUF:
        return _with_fallback(_rejecting(reasons.NO_SCHEMA))
    found = _CONTENT_TYPES.get(name)
    if found is None and name.endswith(("+json", "+cbor")):
        found = "json" if name.endswith("+json") else "cbor"
    if found == "text":
        return _read_plain_text
    return _with_fallback(_READERS[found] if found is not None else _rejecting(reasons.NO_DECODER))


def _with_fallback(read: Read) -> Read:
    """Return a reader that guesses if `read` fails; if the guess fails too, the reason is that of `read`."""

    def hinted(message: EncodedMessage) -> list[Value]:
        try:
            return read(message)
        except UnreadableBody as unreadable:
            if str(unreadable) not in _OTHER_FORMAT:
                raise
            try:
                return _read_guessed(message)
            except UnreadableBody:
                raise unreadable from None

    return hinted


def _read_plain_text(message: EncodedMessage) -> list[Value]:
    """Read a number or a JSON document that was sent as plain text, else the text itself."""
    if message.body.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(UnreadableBody):
            return _read_json(message)
    return text.text(message.body)


def _rejecting(reason: str) -> Read:
    def read(_: EncodedMessage) -> list[Value]:
        raise UnreadableBody(reason)

    return read


def _reader_for_schema(schema: PayloadSchema) -> Read:
    """Return the reader for a schema. Raises `schema.BadSchema`."""
    read = _READERS.get(schema.format)
    if schema.format == "protobuf":
        message_class = schema.message_class()
        parse: Callable[[bytes], object] = lambda body: protobuf.parse(body, message_class)  # noqa: E731
        read = _document_reader(parse, schema)
    elif schema.format in _DOCUMENTS and (schema.time or schema.device):
        read = _document_reader(_DOCUMENTS[schema.format], schema)
    if read is None:
        raise AssertionError(schema.format)
    return _with_units(read, schema.units) if schema.units else read


def _document_reader(parse: Callable[[bytes], object], schema: PayloadSchema) -> Read:
    fields = (schema.time,) if schema.time else timestamps.FIELDS
    path = schema.device.split(".") if schema.device else None

    def read(message: EncodedMessage) -> list[Value]:
        content = parse(message.body)
        found = document.values(content, fields)
        device = _find_device(content, path) if path is not None else None
        return found if device is None else [value._replace(device=device) for value in found]

    return read


def _find_device(content: object, path: Sequence[str]) -> str | None:
    """Return the text or number at a path; None without one that can name a device."""
    for name in path:
        content = content.get(name) if isinstance(content, dict) else None
    if isinstance(content, bool) or not isinstance(content, str | int):
        return None
    named = str(content) if isinstance(content, str) or abs(content) < 2**64 else ""
    return named if 0 < len(named) <= METRIC_CHARACTERS_MAX and document.is_unicode(named) else None


def _with_units(read: Read, units: Mapping[str, str]) -> Read:
    otherwise = units.get("*")

    def with_units(message: EncodedMessage) -> list[Value]:
        return [
            value if value.unit is not None else value._replace(unit=units.get(value.metric, otherwise))
            for value in read(message)
        ]

    return with_units
