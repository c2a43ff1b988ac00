"""AMQP 1.0 frames in words: performatives and SASL, without credentials, and with bodies only on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bridge.amqp_values import DecodeError, DescribedValue, decode
from bridge.engine.events import Closed
from edge.broker.message.translation import payload_of
from edge.broker.tracing.dissector import DissectedPacket, IncompleteBytes, RecentAddresses, Wanted, payload_text
from edge.broker.tracing.events import IN, OUT
from edge.broker.tracing.limits import TRACE_HEAD_BYTES_MAX
from edge.output.text import line

PROTOCOLS: Final = {0: "AMQP", 2: "TLS", 3: "SASL"}
"""Protocol ids of the header of eight bytes (section 2.2)."""

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
NAMES: Final[Mapping[int, str]] = {
    OPEN: "open", BEGIN: "begin", ATTACH: "attach", FLOW: "flow", TRANSFER: "transfer", DISPOSITION: "disposition",
    DETACH: "detach", END: "end", CLOSE: "close", MECHANISMS: "sasl-mechanisms", INIT: "sasl-init",
    CHALLENGE: "sasl-challenge", RESPONSE: "sasl-response", OUTCOME: "sasl-outcome",
}  # fmt: skip
_STATES: Final = {
    0x23: "received", 0x24: "accepted", 0x25: "rejected", 0x26: "released", 0x27: "modified", 0x33: "declared",
    0x34: "transactional",
}  # fmt: skip
_SASL_CODES: Final = ("ok", "auth: credentials refused", "sys: error", "sys-perm: error", "sys-temp: try again later")
_TRY_LATER: Final = 4
_FRAME_MIN: Final = 8
_FRAME_MAX: Final = 1 << 26
"""Larger frames are invalid: the gateway takes 64 KiB, the hub some MiB."""


class AmqpDissector:
    """`edge.broker.tracing.dissector.Dissector` of AMQP 1.0."""

    def __init__(
        self, client: str = "", user: str = "", *, began: bool = False, only: Sequence[str] = ("", "")
    ) -> None:
        """`began`: the connection is open already, and the first bytes may be inside a frame. `only`: address of the
        only link that the client sends on, and of the only one that it receives on; empty where it has several or
        none."""
        self.client = client
        self.user = user
        self.known = began
        self.shows_payload = False
        self.protocol = "AMQP 1.0"
        self._streams = {IN: IncompleteBytes(), OUT: IncompleteBytes()}
        self._in_step = {IN: not began, OUT: not began}
        """True when the next byte begins a frame."""
        self._only = {IN: only[0], OUT: only[1]}
        self._links: dict[str, RecentAddresses[tuple[int, int]]] = {IN: RecentAddresses(), OUT: RecentAddresses()}
        """Addresses of links by channel and handle of the peer that attached in this direction."""
        self._names: RecentAddresses[tuple[str, bool]] = RecentAddresses()
        """Addresses by link name, and whether the client sends on it."""
        self._deliveries: dict[str, RecentAddresses[tuple[int, int]]] = {IN: RecentAddresses(), OUT: RecentAddresses()}

    def read(self, direction: str, data: bytes, wanted: Wanted) -> Iterator[DissectedPacket | None]:
        stream = self._streams[direction]
        data = stream.take(data)
        pos, end = 0, len(data)
        if not self._in_step[direction]:
            pos = _first_frame(data)
            self._in_step[direction] = pos < end
        while pos + _FRAME_MIN <= end and not stream.lost:
            if data[pos : pos + 4] == b"AMQP":
                kind = PROTOCOLS.get(data[pos + 4], str(data[pos + 4]))
                version = ".".join(map(str, data[pos + 5 : pos + 8]))
                yield DissectedPacket(name="header", text=f"{kind} {version}", bytes=8, always=True)
                pos += 8
                continue
            size = int.from_bytes(data[pos : pos + 4], "big")
            if not _FRAME_MIN <= size <= _FRAME_MAX:
                stream.lost = True
                yield DissectedPacket(name="(not AMQP)", text="this is not a frame", always=True)
                return
            if min(size, TRACE_HEAD_BYTES_MAX) > end - pos:
                break
            if wanted() or _performative(data, pos) not in (TRANSFER, DISPOSITION, FLOW):
                yield self._frame(direction, data, pos, size)
            else:
                yield None
            pos += size
        stream.keep(data, pos)

    def why_ended(self, event: Any) -> str:
        condition = event.condition if isinstance(event, Closed) else None
        return "" if condition is None else f"{condition.name} {condition.description}".rstrip()

    def _frame(self, direction: str, data: bytes, pos: int, size: int) -> DissectedPacket:
        channel = int.from_bytes(data[pos + 6 : pos + 8], "big")
        body, stop = pos + 4 * data[pos + 4], pos + size
        if body >= stop:
            return DissectedPacket(name="heartbeat", bytes=size)
        frame = data[body : min(stop, len(data))]
        try:
            descriptor, fields, used = _described(frame)
            found = self._performative(direction, channel, descriptor, fields, size - (body - pos) - used)
            if descriptor == TRANSFER and self.shows_payload:
                found.payload = _payload(frame[used:])
        except (DecodeError, TypeError, ValueError, IndexError) as error:
            words = str(error) if isinstance(error, DecodeError) else "its fields have wrong types"
            found = DissectedPacket(name="frame", text=f"cannot be read: {words}", always=True)
        found.bytes = size
        found.channel = channel or None
        return found

    def _performative(
        self, direction: str, channel: int, code: Any, fields: list[Any], payload: int
    ) -> DissectedPacket:
        fields = [*fields, *[None] * (16 - len(fields))]
        name = NAMES.get(code, f"performative 0x{code:02x}" if isinstance(code, int) else "performative")
        if code in (MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME):
            found = self._sasl(code, name, fields)
        elif code == OPEN:
            found = self._open(direction, name, fields)
        elif code == ATTACH:
            found = self._attach(direction, channel, name, fields)
        elif code == FLOW:
            found = self._flow(direction, channel, name, fields)
        elif code == TRANSFER:
            found = self._transfer(direction, channel, name, fields, payload)
        elif code == DISPOSITION:
            found = self._disposition(direction, channel, name, fields)
        elif code == DETACH:
            address = self._links[direction].get((channel, fields[0]))
            words = "closed" if fields[1] else "detached"
            found = DissectedPacket(name=name, address=address, addresses=_one(address), text=words, always=True)
            found = _with_error(found, fields[2])
        else:
            over = code in (END, CLOSE)
            found = DissectedPacket(name=name, always=over, goodbye=code == CLOSE)
            found = _with_error(found, fields[0] if over else None)
        return found

    def _sasl(self, code: int, name: str, fields: list[Any]) -> DissectedPacket:
        """Describe a SASL frame. Responses are elided; the user name of PLAIN and SCRAM is public."""
        if code == MECHANISMS:
            offered = fields[0] if isinstance(fields[0], list) else [fields[0]]
            return DissectedPacket(name=name, text=" ".join(map(str, offered)), always=True)
        if code == INIT:
            self.user = _user_of(str(fields[0]), fields[1]) or self.user
            return DissectedPacket(name=name, text=str(fields[0]), always=True)
        if code == OUTCOME:
            outcome = int(fields[0])
            words = _SASL_CODES[outcome] if outcome < len(_SASL_CODES) else "unknown"
            return DissectedPacket(
                name=name,
                code=outcome,
                reason=words,
                always=True,
                refuses_login=outcome == 1,
                too_busy=outcome == _TRY_LATER,
            )
        return DissectedPacket(name=name, text="elided", always=True)

    def _open(self, direction: str, name: str, fields: list[Any]) -> DissectedPacket:
        parts = [f"container {fields[0]}"]
        if direction == IN:
            self.client, self.known = str(fields[0] or ""), True
        if fields[1] is not None:
            parts.append(f"host {fields[1]}")
        if fields[2] is not None:
            parts.append(f"max frame {fields[2]} B")
        if fields[4]:
            parts.append(f"idle timeout {fields[4]} ms")
        return DissectedPacket(name=name, text=", ".join(parts), always=True)

    def _attach(self, direction: str, channel: int, name: str, fields: list[Any]) -> DissectedPacket:
        receives = bool(fields[2])  # role of the peer that attaches
        client_sends = receives != (direction == IN)
        terminus = fields[6] if client_sends else fields[5]
        address = _terminus_address(terminus)
        named = self._names.get((str(fields[0]), client_sends))
        refused = terminus is None and direction == OUT
        address = address or named
        self._names.put((str(fields[0]), client_sends), address)
        self._links[direction].put((channel, fields[1]), address)
        parts = [f"link {fields[0]}", "receives" if receives else "sends"]
        if refused:
            parts.append("refused: a detach with the reason follows")
        settles = {0: "unsettled", 1: "settled"}.get(fields[3]) if fields[3] is not None else None
        if settles:
            parts.append(f"sends {settles}")
        return DissectedPacket(
            name=name, address=address, addresses=_one(address), flags=(f"h={fields[1]}",), text=", ".join(parts),
            always=True,
        )  # fmt: skip

    def _flow(self, direction: str, channel: int, name: str, fields: list[Any]) -> DissectedPacket:
        if fields[4] is None:
            return DissectedPacket(name=name, text=f"session window {fields[1]}")
        address = self._link_address(direction, channel, fields[4], to_sender=True)
        parts = [f"credit {fields[6] or 0}"]
        if fields[8]:
            parts.append("drain")
        return DissectedPacket(
            name=name, address=address, addresses=_one(address), flags=(f"h={fields[4]}",), text=", ".join(parts)
        )

    def _transfer(self, direction: str, channel: int, name: str, fields: list[Any], payload: int) -> DissectedPacket:
        handle, delivery = fields[0], fields[1]
        address = self._link_address(direction, channel, handle, to_sender=False)
        flags = [f"h={handle}"]
        if delivery is not None:
            self._deliveries[direction].put((channel, delivery), address)
            flags.append("settled" if fields[4] else "unsettled")
        if fields[5]:
            flags.append("more")
        if fields[9]:
            flags.append("aborted")
        return DissectedPacket(
            name=name, id=delivery, address=address, addresses=_one(address), flags=tuple(flags), payload_bytes=payload
        )

    def _disposition(self, direction: str, channel: int, name: str, fields: list[Any]) -> DissectedPacket:
        by_receiver, first, last = bool(fields[0]), fields[1], fields[1] if fields[2] is None else fields[2]
        sent = self._deliveries[OUT if (direction == IN) == by_receiver else IN]
        address = sent.get((channel, first)) or sent.get((channel, last))
        state = fields[4]
        words = "no outcome"
        found = DissectedPacket(name=name, id=first, last_id=last, address=address, addresses=_one(address))
        if isinstance(state, DescribedValue):
            words = _STATES.get(state.descriptor, "state")
            values = state.value if isinstance(state.value, list) else []
            if words == "rejected" and values:
                found = _with_error(found, values[0])
            elif words == "modified" and values:
                failed = " delivery-failed" if values[0] else ""
                words += failed + (" undeliverable-here" if len(values) > 1 and values[1] else "")
        found.flags = (words, "settled" if fields[3] else "unsettled")
        return found

    def _link_address(self, direction: str, channel: int, handle: int, *, to_sender: bool) -> str:
        """Return the address of a link by the handle of the writer; empty if it has none or is unknown.

        A link that the trace has not seen attach is that of the connection's only link. `to_sender`: the writer
        receives on the link, for example when it grants credit.
        """
        links, link = self._links[direction], (channel, handle)
        if link in links or links.forgot:
            return links.get(link)
        other = OUT if direction == IN else IN
        return self._only[other if to_sender else direction]


def _described(frame: bytes) -> tuple[Any, list[Any], int]:
    """Return descriptor, fields and size of a performative. Raises DecodeError."""
    value, used = decode(frame)
    if not isinstance(value, DescribedValue) or not isinstance(value.value, list):
        raise DecodeError("it is not a performative")
    return value.descriptor, value.value, used


def _payload(message: bytes) -> str:
    """Return the begin of the body of a message; that of its bytes if it continues in another frame."""
    try:
        _, _, body = payload_of(message)
    except DecodeError:
        body = message
    return payload_text(body)


def _one(address: str) -> tuple[str, ...]:
    return (address,) if address else ()


def _terminus_address(terminus: Any) -> str:
    if not isinstance(terminus, DescribedValue) or not isinstance(terminus.value, list) or not terminus.value:
        return ""
    address = terminus.value[0]
    return str(address) if address is not None else ""


def _with_error(found: DissectedPacket, error: Any) -> DissectedPacket:
    """Add the condition and the description of an AMQP error (section 2.8.14)."""
    if isinstance(error, DescribedValue) and isinstance(error.value, list) and error.value:
        found.reason = line(error.value[0])
        description = error.value[1] if len(error.value) > 1 else None
        if description:
            found.text = f"{found.text}, {description}" if found.text else str(description)
    return found


def _user_of(mechanism: str, response: Any) -> str:
    """Return the user name in the first response of mechanisms that send it in the clear."""
    if not isinstance(response, bytes):
        return ""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        return parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
    if mechanism.startswith("SCRAM"):
        names = [part[2:] for part in response.split(b",") if part.startswith(b"n=")]
        return names[0].decode("utf-8", "replace") if names else ""
    return ""


def _performative(data: bytes, pos: int) -> int:
    """Return the code of a frame's performative in its usual encoding; 0 for others."""
    body = pos + 4 * data[pos + 4]
    return data[body + 2] if data[body : body + 2] == b"\x00\x53" and body + 2 < len(data) else 0


def _first_frame(data: bytes) -> int:
    """Return the offset of the first frame in bytes that may begin inside one; their length if none begins."""
    at = data.find(b"\x02\x00", 4)
    while at >= 0:
        if _begins_frames(data, at - 4):
            return at - 4
        at = data.find(b"\x02\x00", at + 1)
    return len(data)


def _begins_frames(data: bytes, pos: int) -> bool:
    """Return True when frames follow each other from here on: three of them, or all there are. This does not happen by
    chance."""
    for _ in range(3):
        if len(data) - pos < _FRAME_MIN:
            break
        size = int.from_bytes(data[pos : pos + 4], "big")
        if data[pos + 4 : pos + 6] != b"\x02\x00" or not _FRAME_MIN <= size <= _FRAME_MAX:
            return False
        if size > _FRAME_MIN and _performative(data, pos) not in NAMES:
            return False
        pos += size
    return True
