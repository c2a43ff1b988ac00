"""Landing receipts: a hub states under its signature which messages of a gateway are in the lake.

A gateway requests statements about ranges of messages that its devices want receipts for. A statement covers a range
of one address, so it costs nothing for each message. A *receipt* is the message that a device gets: the name of its
message, and the statement that covers it. It can be verified at any later time with the certificate of the hub's
authority alone.

A statement is a JSON Web Signature (RFC 7515) in flattened JSON form, with ES256 (RFC 7518 section 3.4). Sans-I/O, and
without cryptography: the callers have the keys.
"""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Annotated, Any, Final

import msgspec

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import DecodeError, Symbol, decode, encode
from bridge.hidden import hides
from bridge.limits import RECEIPT_CORRELATION_BYTES_MAX, RECEIPT_DOCUMENT_BYTES_MAX, RECEIPT_SPANS_MAX
from bridge.message import AMQP, DURABLE, Run
from bridge.publish_properties import PublishProperties, read, write
from bridge.publisher import ANONYMOUS, device_of, is_relay

FORMAT: Final = 1
"""Format number of a statement; a reader refuses a format that it does not know."""

REQUEST: Final = "waypost-receipt"
"""User property (MQTT 5) or application property (AMQP) of a message that wants a receipt."""
WANTED: Final = "landed"
"""Its value."""
RECEIPT_LEVEL: Final = "landing-receipt"
"""First level of the addresses of receipts; the second is the device."""
ALGORITHM: Final = "ES256"
TYPE: Final = "waypost-landing+json"
"""Type in the signed header, so that a signature for another purpose is never valid for a statement."""
SIGNER_NAME: Final = "urn:waypost:landing-receipts"
"""Name (URI) in the certificate of a key that signs statements."""

_REQUEST_BYTES: Final = REQUEST.encode()
_JSON: Final = "application/json"
_MESSAGE_ID, _TO, _REPLY_TO, _CORRELATION, _CONTENT_TYPE = 0, 2, 4, 5, 6

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000_000)]
"""UTC microseconds since 1970, until the end of the year 9999."""


class ReceiptError(ValueError):
    """A receipt or one of its documents cannot be read; the message says why."""


class ReceiptOutcome(enum.Enum):
    """Outcome of a message at the lake."""

    LANDED = "landed"
    """The lake has it."""
    DROPPED = "dropped"
    """The gateway discarded it, and the loss ledger of the lake lists it."""


class MessageSpan(msgspec.Struct, frozen=True):
    """Messages ``first..last`` of one address of one epoch."""

    epoch: str
    address: str
    first: Number
    last: Number


class LandingStatement(msgspec.Struct, frozen=True, kw_only=True):
    """Statement of a hub: all messages ``first..last`` have the same outcome."""

    format: int = FORMAT
    tenant: str
    gateway: str
    epoch: str
    address: str
    first: Number
    last: Number
    outcome: ReceiptOutcome
    table: str
    """Table of the lake that has the messages, or the entries about their loss."""
    version: int
    """Version of the table that has all of them. Later versions have them too, until they are deleted on purpose."""
    stated_at: Moment
    """Time of the statement by the hub's clock."""


class SignedLanding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signed statement (RFC 7515 section 7.2.2). All parts are Base64url without padding."""

    protected: str
    """Signed header: algorithm, type, and the digest of the signer's certificate (``x5t#S256``)."""
    payload: str
    """A `LandingStatement` in JSON."""
    signature: str
    header: dict[str, list[str]] = {}
    """Unsigned header: the signer's certificate in Base64 (``x5c``, DER)."""


class ReceiptRequest(msgspec.Struct, frozen=True):
    """Request of a gateway for statements."""

    spans: Annotated[list[MessageSpan], msgspec.Meta(max_length=RECEIPT_SPANS_MAX)]


class ReceiptAnswer(msgspec.Struct, frozen=True):
    """Answer of a hub. Messages without a statement are not in the lake yet."""

    certificate: str
    """Certificate of the key that signed, as in `SignedLanding.header`; once for all statements."""
    statements: list[SignedLanding]


class LandingReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a receipt: JSON."""

    outcome: ReceiptOutcome
    gateway: str
    epoch: str
    address: str
    sequence: Number
    """Number of the message in its epoch and address."""
    reason: str = ""
    """Reason in the gateway's loss ledger for a dropped message."""
    correlation: str = ""
    """Correlation data of the message, Base64; empty when it had none. AMQP values are in their encoding."""
    statement: SignedLanding


# --- signed statements --------------------------------------------------------------------------------------------


def base64url(data: bytes) -> str:
    """Encode without padding (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    """Decode Base64url without padding. Raises `ReceiptError`."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ReceiptError("a part of the statement is not valid Base64url") from None


def protected_header(thumbprint: bytes) -> str:
    """Return the signed header for a signer; `thumbprint`: SHA-256 of its certificate."""
    return base64url(msgspec.json.encode({"alg": ALGORITHM, "typ": TYPE, "x5t#S256": base64url(thumbprint)}))


def thumbprint_of(signed: SignedLanding) -> bytes:
    """Return the digest of the signer's certificate in the signed header. Raises `ReceiptError`."""
    try:
        header = msgspec.json.decode(from_base64url(signed.protected), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        raise ReceiptError("the signed header is not JSON") from None
    if header.get("alg") != ALGORITHM or header.get("typ") != TYPE or "crit" in header:
        raise ReceiptError(f"it is not a statement of type {TYPE} signed with {ALGORITHM}")
    return from_base64url(str(header.get("x5t#S256", "")))


def to_sign(protected: str, payload: str) -> bytes:
    """Return the bytes that are signed (RFC 7515 section 5.1)."""
    return f"{protected}.{payload}".encode("ascii", "replace")


def statement_of(signed: SignedLanding) -> LandingStatement:
    """Decode the statement, without a check of its signature. Raises `ReceiptError`."""
    try:
        found = msgspec.json.decode(from_base64url(signed.payload), type=LandingStatement)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ReceiptError(f"the statement cannot be read: {error}") from None
    if found.format != FORMAT:
        raise ReceiptError(f"the statement has format {found.format}; this program knows {FORMAT}: update it")
    return found


def with_certificate(signed: SignedLanding, certificate: str) -> SignedLanding:
    """Return the statement with its signer's certificate, so that it can be verified by itself."""
    return msgspec.structs.replace(signed, header={"x5c": [certificate]})


def read_receipt(body: bytes) -> LandingReceipt:
    """Decode the body of a receipt. Raises `ReceiptError`."""
    if len(body) > RECEIPT_DOCUMENT_BYTES_MAX:
        raise ReceiptError(f"it has more than {RECEIPT_DOCUMENT_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=LandingReceipt)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ReceiptError(f"it is not a receipt: {error}") from None


# --- requests of devices ------------------------------------------------------------------------------------------


@hides("correlation")
class WantedReceipt(msgspec.Struct, frozen=True):
    """Request of a device in one message of a run."""

    index: int
    """Index of the message in its run."""
    correlation: bytes
    """Correlation data; an encoded AMQP value where the message is in AMQP encoding."""


def receipt_address(device: str) -> str | None:
    """Return the address of a device's receipts; None for a device without a name of its own, or with a name that
    cannot be a level of a topic."""
    named = device not in ("", ANONYMOUS) and not set(device) & set("/+#\0")
    return f"{RECEIPT_LEVEL}/{device}" if named else None


def wanted_receipts(run: Run) -> list[WantedReceipt]:
    """Return the requests in the messages of a run.

    A message of a relay has none, because its device is at another gateway. Neither has a message with another reply
    address than that of the device's receipts: the gateway publishes nothing elsewhere on behalf of a device.
    """
    if run.flags & AMQP:
        found = [(i, body) for i, body in enumerate(run.bodies) if _REQUEST_BYTES in body]
        if not found or is_relay(run.device):
            return []
        address = receipt_address(device_of(run.device))
        wanted = ((i, _wanted_in_amqp(body, address)) for i, body in found)
        return [WantedReceipt(i, correlation) for i, correlation in wanted if correlation is not None]
    if _REQUEST_BYTES not in run.properties or is_relay(run.device):
        return []
    properties = read(run.properties)
    address = receipt_address(device_of(run.device))
    correlation = properties.correlation_data or b""
    if (
        (REQUEST, WANTED) not in properties.users
        or address is None
        or properties.response_topic not in (None, address)
        or len(correlation) > RECEIPT_CORRELATION_BYTES_MAX
    ):
        return []
    return [WantedReceipt(i, correlation) for i in range(len(run.bodies))]


def _wanted_in_amqp(body: bytes, address: str | None) -> bytes | None:
    """Return the correlation of a message that wants a receipt, empty without one; None if it wants none."""
    try:
        found = {each.code: value for each, value in plain.contents(body, (s.PROPERTIES, s.APPLICATION_PROPERTIES))}
        fields, application = found.get(s.PROPERTIES), found.get(s.APPLICATION_PROPERTIES)
        fields = [*(fields if isinstance(fields, list) else ()), *[None] * 6]
        asked = isinstance(application, dict) and application.get(REQUEST) == WANTED
        if not asked or address is None or fields[_REPLY_TO] not in (None, address):
            return None
        value = fields[_CORRELATION] if fields[_CORRELATION] is not None else fields[_MESSAGE_ID]
        correlation = b"" if value is None else encode(value)
    except (DecodeError, TypeError):
        return None
    return correlation if len(correlation) <= RECEIPT_CORRELATION_BYTES_MAX else None


def receipt_run(receipt: LandingReceipt, address: str, correlation: bytes, *, amqp: bool) -> Run:
    """Return the message with a receipt, in the encoding of the message that it is about."""
    body = msgspec.json.encode(receipt)
    if not amqp:
        properties = PublishProperties(content_type=_JSON, correlation_data=correlation or None)
        return Run(address, "", DURABLE | 1, write(properties), [body])
    fields: list[Any] = [None] * (_CONTENT_TYPE + 1)
    fields[_TO], fields[_CONTENT_TYPE] = address, Symbol(_JSON)
    if correlation:
        fields[_CORRELATION] = decode(correlation)[0]
    message = plain.section(s.PROPERTIES, fields) + plain.data_section(body)
    return Run(address, "", AMQP | DURABLE | 1, plain.section(s.HEADER, [True]), [message])
