"""Which format a message is in, and its values.

A registered schema decides first, then Sparkplug's namespace, then the content type, as a hint: many clients send one
that they did not choose (`curl -d`: a form). Where the content type is missing, unknown or wrong the body decides: JSON
or a number, and CBOR that says it is (tag 55799). Other bytes are not guessed at. A body in gzip is decompressed first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from spark.decoding import cbor, compressed, document, protobuf, reasons, senml, sparkplug, text, timestamps
from spark.decoding.limits import ADDRESSES_REMEMBERED, BODY_BYTES_MAX, METRIC_CHARACTERS_MAX
from spark.decoding.schema import Format, PayloadSchema, matches, specificity
from spark.decoding.value import Message, Unreadable, Value

Read = Callable[[Message], list[Value]]


def _guessed(message: Message) -> list[Value]:
    if message.body.startswith(cbor.SELF_DESCRIBED):
        return document.values(cbor.parsed(message.body))
    return _of_json(text.guessed(message.body), message.received_us)


def _json(message: Message) -> list[Value]:
    return _of_json(text.parsed(message.body), message.received_us)


def _of_json(said: object, received_us: int) -> list[Value]:
    return senml.values(said, received_us) if senml.looks_like(said) else document.values(said)


_READERS: Final[Mapping[str, Read]] = {
    "json": _json,
    "number": lambda message: text.number(message.body),
    "text": lambda message: text.text(message.body),
    "cbor": lambda message: document.values(cbor.parsed(message.body)),
    "senml+json": lambda message: senml.values(text.parsed(message.body), message.received_us),
    "senml+cbor": lambda message: senml.values(cbor.parsed(message.body), message.received_us),
    "sparkplug": lambda message: sparkplug.values(message.body, message.address),
}
_DOCUMENTS: Final[Mapping[str, Callable[[bytes], object]]] = {"json": text.parsed, "cbor": cbor.parsed}
"""Formats of which a schema may name fields."""

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
"""Reasons that say no more than that a body has another format than its content type."""
_UNSAID: Final = frozenset(("", "application/octet-stream", "binary/octet-stream"))
_PROTOBUF: Final = frozenset(("application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf"))


class Decoder:
    """Reads messages, given what is registered."""

    def __init__(self, schemas: Sequence[PayloadSchema] = ()) -> None:
        """Raises `schema.BadSchema`."""
        # Of two as specific the one that was registered last; of one tenant before everybody's.
        ordered = sorted(
            enumerate(schemas), key=lambda one: (one[1].tenant is not None, specificity(one[1].pattern), one[0])
        )
        self._registered = [(schema, _registered(schema)) for _, schema in reversed(ordered)]
        self._found: dict[tuple[str, str, str | None], Read] = {}

    def values(self, message: Message) -> list[Value]:
        """Everything the message says, in its order; never empty: one that says nothing gives one reason."""
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
                message = message._replace(body=compressed.decompressed(message.body))
            return read(message)
        except Unreadable as unreadable:
            return [Value("", reason=str(unreadable))]

    def _reader(self, tenant: str, address: str, content_type: str | None) -> Read:
        for schema, read in self._registered:
            if schema.tenant in (None, tenant) and matches(schema.pattern, address):
                return read
        if address.startswith(f"{sparkplug.NAMESPACE}/") and not address.startswith(sparkplug.STATE):
            return _READERS["sparkplug"]
        return _of_content_type((content_type or "").partition(";")[0].strip().lower())


def _of_content_type(name: str) -> Read:
    if name in _UNSAID:
        return _guessed
    if name in _PROTOBUF:
        return _hinted(_unreadable(reasons.NO_SCHEMA))
    found = _CONTENT_TYPES.get(name)
    if found is None and name.endswith(("+json", "+cbor")):
        found = "json" if name.endswith("+json") else "cbor"
    if found == "text":
        return _plain_text
    return _hinted(_READERS[found] if found is not None else _unreadable(reasons.NO_DECODER))


def _hinted(read: Read) -> Read:
    """Return a reader that guesses where `read` fails; where the guess fails too, the reason is that of `read`."""

    def hinted(message: Message) -> list[Value]:
        try:
            return read(message)
        except Unreadable as unreadable:
            if str(unreadable) not in _OTHER_FORMAT:
                raise
            try:
                return _guessed(message)
            except Unreadable:
                raise unreadable from None

    return hinted


def _plain_text(message: Message) -> list[Value]:
    """Read a number or a JSON document that was sent as plain text, else the text itself."""
    if message.body.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(Unreadable):
            return _json(message)
    return text.text(message.body)


def _unreadable(reason: str) -> Read:
    def read(_: Message) -> list[Value]:
        raise Unreadable(reason)

    return read


def _registered(schema: PayloadSchema) -> Read:
    """The reader that a schema asks for. Raises `schema.BadSchema`."""
    read = _READERS.get(schema.format)
    if schema.format == "protobuf":
        message_class = schema.message_class()
        parse: Callable[[bytes], object] = lambda body: protobuf.parsed(body, message_class)  # noqa: E731
        read = _of_document(parse, schema)
    elif schema.format in _DOCUMENTS and (schema.time or schema.device):
        read = _of_document(_DOCUMENTS[schema.format], schema)
    if read is None:
        raise AssertionError(schema.format)
    return _with_units(read, schema.units) if schema.units else read


def _of_document(parse: Callable[[bytes], object], schema: PayloadSchema) -> Read:
    fields = (schema.time,) if schema.time else timestamps.FIELDS
    path = schema.device.split(".") if schema.device else None

    def read(message: Message) -> list[Value]:
        said = parse(message.body)
        found = document.values(said, fields)
        device = _at(said, path) if path is not None else None
        return found if device is None else [value._replace(device=device) for value in found]

    return read


def _at(said: object, path: Sequence[str]) -> str | None:
    """The text or number at a path; None where there is none that can name a device."""
    for name in path:
        said = said.get(name) if isinstance(said, dict) else None
    if isinstance(said, bool) or not isinstance(said, str | int):
        return None
    named = str(said) if isinstance(said, str) or abs(said) < 2**64 else ""
    return named if 0 < len(named) <= METRIC_CHARACTERS_MAX and document.is_unicode(named) else None


def _with_units(read: Read, units: Mapping[str, str]) -> Read:
    otherwise = units.get("*")

    def with_units(message: Message) -> list[Value]:
        return [
            value if value.unit is not None else value._replace(unit=units.get(value.metric, otherwise))
            for value in read(message)
        ]

    return with_units
