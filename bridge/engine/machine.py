"""AMQP 1.0 machine: one connection on Proton's engine.

Proton implements the protocol. `transport` has its objects, bytes and timer; `links` attaches and detaches; `collector`
creates the events. This module has the lifecycle of the connection and the commands of its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cproton import lib

from bridge.amqp_values import DecodeError
from bridge.engine.collector import Collector
from bridge.engine.events import Closed, Event
from bridge.engine.link import Link
from bridge.engine.links import Links
from bridge.engine.loops import LOOPS, EngineLoops
from bridge.engine.proton import answer_drain
from bridge.engine.states import Condition, DeliveryState, Detail
from bridge.engine.terminus import Terminus
from bridge.engine.transport import ProtonTransport, close_frame
from bridge.limits import LOGIN_WAIT_S_MAX
from bridge.sasl import ANONYMOUS, SaslClient, SaslServer

EVENTS_AT_ONCE: Final = 16
"""Most events of one call: each may be up to 0.1 ms of work for the owner, such as one per link of an ended session."""

_NO_POINTERS: Final = (0, 0)

UNSETTLED_FEW: Final = 8
"""Deliveries of a connection that are below `bridge.transport.driver.UNCOUNTED_BYTES` of memory."""

CLOSE_WAIT_S: Final = 2.0
"""Seconds to wait for the peer's answer to our close before the socket is closed."""


class Engine:
    """One AMQP 1.0 connection, server or client. Not thread-safe.

    Implements `bridge.transport.connection.ConnectionMachine`.

    Commands on a closed link, or after the connection is over, do nothing: an owner may be late.
    Proton writes message-format 0 on every transfer and drops that of incoming ones, so the format of a link's messages
    is negotiated in its attach (`desired_capabilities`, `offered_capabilities`).
    """

    def __init__(
        self,
        *,
        container_id: str,
        server: bool,
        hostname: str | None = None,
        sasl: SaslServer | SaslClient | None = None,
        idle_timeout_s: float = 60.0,
        handshake_timeout_s: float = 10.0,
        max_frame_size: int = 65_536,
        channel_max: int = 255,
        links_max: int = 1024,
        max_message_size: int = 16 * 1024 * 1024,
        properties: Mapping[str, Any] | None = None,
        desired_capabilities: Sequence[str] = (),
        offered_capabilities: Sequence[str] = (),
        now: float | None = None,
        loops: EngineLoops = LOOPS,
    ) -> None:
        """Without `sasl` a server admits everybody (as `ANONYMOUS`), and a client starts with the AMQP header.

        `idle_timeout_s`: silence after which the connection ends (0: never); half of it is announced to the peer.
        `links_max`, `channel_max` (highest channel number): limits for the peer; `max_message_size`: limit in bytes of
        one incoming message, unless `accept` or `attach_receiver` set another one.
        `handshake_timeout_s`: from `now` (or the first call with a clock) to the peer's open.
        """
        if isinstance(sasl, SaslClient if server else SaslServer):
            raise TypeError("a server takes SaslServer, a client SaslClient")
        self.container_id = container_id
        self.mechanism = ""
        """SASL mechanism that our client has chosen; empty before that, and without SASL."""
        self._frame_bytes_max = max_frame_size
        self._sasl = SaslServer(anonymous=ANONYMOUS) if server and sasl is None else sasl
        self._output: list[bytes] = []
        self._handshake_timeout_s = handshake_timeout_s
        self._handshake_deadline = None if now is None else now + handshake_timeout_s
        self._deciding_since: float | None = None
        """Start of the verification of the peer's secret; its time does not count for the handshake."""
        self._tick_deadline: float | None = None
        self._close_deadline: float | None = None
        self._later: list[Event] = []
        """Events for the next calls."""
        self._rest = b""
        """Bytes received after those events."""
        self._unread_bytes = 0
        """Approximate bytes that Proton holds for the next calls, or of an incomplete frame."""
        self._owned_bytes = 0
        """Bytes that the owner holds for the peer."""
        self._closing = False
        """Our close was sent."""
        self._done = False
        """The socket can be closed."""
        self._transport = ProtonTransport(
            container_id=container_id,
            hostname=hostname,
            idle_timeout_s=idle_timeout_s,
            max_frame_size=max_frame_size,
            channel_max=channel_max,
            properties=properties,
            desired_capabilities=desired_capabilities,
            offered_capabilities=offered_capabilities,
        )
        self._links = Links(
            self._transport.connection,
            links_max=links_max,
            sessions_max=channel_max + 1,
            message_bytes_max=max_message_size,
        )
        self._loops = loops
        self._collector = Collector(self._transport, self._links, self._loops)

    # --- ConnectionMachine ------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._done

    @property
    def deadline(self) -> float | None:
        if self._done:
            return None
        if self._closing:  # at once, to learn the time: `close` has no clock
            return 0.0 if self._close_deadline is None else self._close_deadline
        if self._collector.opened:
            return self._tick_deadline
        if self._handshake_deadline is None or self._deciding_since is None:
            return self._handshake_deadline
        return self._handshake_deadline + LOGIN_WAIT_S_MAX

    @property
    def held_bytes(self) -> int:
        links = self._links
        held = len(self._rest) + self._unread_bytes + self._owned_bytes
        held += links.held_bytes + self._loops.held_bytes(links.sessions)
        held += sum(map(len, self._output))
        return held if self._sasl is None else held + self._sasl.held_bytes

    @property
    def more(self) -> bool:
        return bool(self._later) or ((self._collector.more or bool(self._rest)) and not self._links.over)

    def shed(self) -> Sequence[Event]:
        if self._done:
            return ()
        condition = Condition("amqp:resource-limit-exceeded", "the connection exceeds its memory limit")
        self.close(condition)
        if self._sasl is None:
            self._transport.pull(self._output)
        events = [*self._later, *self._abandon(condition)]
        self._later.clear()
        self._links.release()
        self._transport.free()
        return events

    @property
    def spoken(self) -> str:
        return self._sasl.spoken if isinstance(self._sasl, SaslServer) else ""

    @property
    def has_output(self) -> bool:
        if self._sasl is not None or self._output or self._links.over or self._done:
            return True
        return self._loops.has_output(self._transport)

    # --- one message per read (`take` of `bridge.engine.loops`) -----------------------------------------------------

    @property
    def pointers(self) -> tuple[int, int]:
        """Pointers to transport and collector, when bytes may bypass this engine; zeros while it has earlier bytes or
        events left, holds many deliveries, or is opening or closing."""
        collector, links = self._collector, self._links
        if self._later or self._rest or self._unread_bytes or self._output or self._closing or self._done:
            return _NO_POINTERS
        if collector.more or not collector.opened or links.over:
            return _NO_POINTERS
        if links.deliveries.partial or links.deliveries.unsettled > UNSETTLED_FEW:
            return _NO_POINTERS
        return self._transport.addresses

    def given(self, size: int) -> None:
        """Count bytes that Proton was given; their events are collected by the next call."""
        self._unread_bytes += size

    def record_taken(self, address: int, delivery: int, size: int) -> tuple[Link, int] | None:
        """Record a message that was taken; return its link and delivery number. None: call `handle_taken`, which does
        all checks."""
        link = self._links.by_address.get(address)
        if link is None or link.closed or link.credit <= 0 or size > link._message_bytes_max:
            return None
        number = link._delivery_next
        link._delivery_next = number + 1
        link.credit -= 1
        link._unsettled[number] = delivery
        link._deliveries.unsettled += 1
        return link, number

    def handle_taken(self, address: int, delivery: int, message: bytes) -> Sequence[Event]:
        """Return the events of a message that was taken."""
        return self._collector.events_of(address, delivery, message)

    def take_unsettled(self, link: Link, number: int) -> int:
        """Return the delivery of this number, which the caller settles in this turn; 0 where it is settled."""
        delivery = 0 if link.closed else link._unsettled.pop(number, 0)
        if delivery:
            link._deliveries.unsettled -= 1
        return delivery

    # --- ConnectionMachine, continued ---------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        if self._later:
            if data and not self._links.over:
                self._rest += data
            return self._at_once([])
        if self._links.over:
            return ()
        if self._handshake_deadline is None:
            self._handshake_deadline = now + self._handshake_timeout_s
        if self._sasl is not None:
            self._sasl.receive(data)
            self._output.append(self._sasl.take())
            self._handshake_deadline += self._decided_for(now, deciding=self._sasl.deciding)
            if self._sasl.failure is not None:
                return self._abandon(Condition("amqp:unauthorized-access", self._sasl.failure))
            if not self._sasl.done:
                return ()
            if isinstance(self._sasl, SaslServer):
                self.mechanism = self._sasl.mechanism
            data, self._collector.identity, self._sasl = self._sasl.rest, self._sasl.identity, None
        came = len(self._rest) + len(data)
        events = self._collect(now, data)
        unread = self._unread_bytes + came - len(self._rest)
        if not self._collector.more and len(events) <= EVENTS_AT_ONCE:
            unread = 0 if events else min(unread, self._frame_bytes_max)
        self._unread_bytes = unread
        if not (self._links.over or self._collector.more) and self._collector.input_closed:
            condition = Condition("amqp:connection:framing-error", "not an AMQP frame")
            self.close(condition)
            if not self._collector.opened:
                self._transport.pull(self._output)
                self._output.append(close_frame(condition))
            events += self._abandon(condition)
        return self._at_once(events) if len(events) > EVENTS_AT_ONCE else events

    def receive_eof(self, now: float) -> Sequence[Event]:
        events: list[Event] = [*self._later]
        self._later.clear()
        if not self._links.over:
            if not (self._collector.more or self._rest):  # otherwise the rest is dropped with the connection
                self._transport.push_end()
                events += self._collect(now)
            events += self._abandon(Condition("amqp:connection:forced", "the peer disconnected without a close"))
        self._done = True
        self._links.release()
        self._transport.free()
        return events

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Event]:
        if self._done:
            return ()
        if self._closing:
            if self._close_deadline is None:
                self._close_deadline = now + CLOSE_WAIT_S
            if now < self._close_deadline:
                return ()
            return self._at_once(
                self._abandon(Condition("amqp:connection:forced", "the peer did not answer our close"))
            )
        if self._collector.opened:
            tick = self._transport.tick if listening else self._transport.tick_without_input
            self._tick_deadline = tick(now)
            return self._at_once(self._collect(now))
        deadline = self.deadline
        if deadline is None or now < deadline:
            return ()
        return self._abandon(Condition("amqp:connection:forced", "no open performative in time"))

    def data_to_send(self) -> bytes:
        output = self._output
        if self._sasl is not None:
            output.append(self._sasl.take())
        elif self._transport.alive and not self._loops.write(self._transport, output) and self._links.over:
            self._done = True
        if not output:
            return b""
        self._output = []
        return output[0] if len(output) == 1 else b"".join(output)

    # --- commands: the connection -----------------------------------------------------------------------------

    def open(self, properties: Mapping[str, Any] | None = None) -> None:
        """Send our open: a client at first, a server in answer to `PeerOpened`. `properties` replace those of the
        constructor."""
        if self._transport.alive:
            self._transport.open(properties)

    def close(self, condition: Condition | None = None) -> None:
        """Send close; `Closed` follows the peer's answer, `CLOSE_WAIT_S`, or the end of the socket."""
        if self._transport.alive and not (self._closing or self._links.over):
            self._closing = True
            self._transport.close(condition)

    def count_owned(self, change: int) -> None:
        """Add bytes that the owner holds for the peer to those of the connection; negative: it has released them."""
        self._owned_bytes += change

    # --- commands: links --------------------------------------------------------------------------------------

    @property
    def links(self) -> Sequence[Link]:
        """All links that are not over."""
        return list(self._links)

    def attach_sender(
        self,
        name: str,
        target: Terminus | str | None,
        *,
        source: Terminus | str | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[Any, Any] | None = None,
        snd_settle_mode: int = 2,
    ) -> Link:
        """Attach a sending link; target None is the anonymous relay. Answered by `Attached` or `Detached`."""
        return self._links.attach(True, name, source, target, desired_capabilities, properties, snd_settle_mode, 0)

    def attach_receiver(
        self,
        name: str,
        source: Terminus | str | None,
        *,
        target: Terminus | str | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[Any, Any] | None = None,
        snd_settle_mode: int = 2,
        max_message_size: int = 0,
    ) -> Link:
        """Attach a receiving link; nothing arrives before `grant`. Answered by `Attached` or `Detached`."""
        return self._links.attach(
            False, name, source, target, desired_capabilities, properties, snd_settle_mode, max_message_size
        )

    def accept(
        self,
        link: Link,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
        offered_capabilities: Sequence[str] = (),
        max_message_size: int = 0,
        properties: Mapping[Any, Any] | None = None,
    ) -> None:
        """Accept an attach of the peer with its own termini, or with those given (e.g. a dynamic node's address)."""
        if not link.closed:
            self._links.accept(link, source, target, offered_capabilities, max_message_size, properties)

    def refuse(self, link: Link, condition: Condition) -> None:
        """Refuse an attach of the peer with a null terminus and the error (section 2.6.3)."""
        if not link.closed:
            self._links.refuse(link, condition)

    def detach(self, link: Link, *, closed: bool = True, condition: Condition | None = None) -> None:
        """Detach the link; it is `closed` at once, and no further event follows."""
        if not link.closed:
            self._links.detach(link, closed=closed, condition=condition)

    def answer_close(self, link: Link, condition: Condition | None = None) -> None:
        """Answer the closing detach of a link with `Link.answers_close`; do nothing when there was none, or when the
        link ended with its session or connection. `condition`: an error, if any."""
        self._links.answer_close(link, condition)

    # --- commands: receiving ----------------------------------------------------------------------------------

    def grant(self, link: Link, credit: int, *, drain: bool = False) -> None:
        """Grant the peer credit; with `drain`, request what it has now and the rest of the credit back (`LinkFlow`)."""
        if link.closed or (credit <= 0 and not drain):
            return
        link.credit += credit
        if drain:
            lib.pn_link_drain(link._pn, credit)
        else:
            lib.pn_link_flow(link._pn, credit)

    def settle(
        self,
        link: Link,
        deliveries: Iterable[int],
        state: DeliveryState = DeliveryState.ACCEPTED,
        detail: Detail = None,
    ) -> None:
        """Settle these deliveries with an outcome; settled numbers are skipped. NONE settles without an outcome, and
        the sender uses its default one (section 3.5.3)."""
        if not link.closed:
            self._loops.settle(link, deliveries, state, detail)

    def strip_header(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        """See `EngineLoops.strip_header`."""
        return self._loops.strip_header(messages, header)

    def check_message(self, message: bytes) -> None:
        """Check every section of an encoded message. Raises `DecodeError` for a malformed one (part 3, section 3.2)."""
        at = self._loops.malformed_at(message)
        if at >= 0:
            raise DecodeError(f"the section at byte {at} is malformed or out of order")

    # --- commands: sending ------------------------------------------------------------------------------------

    def send(self, link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        """Send one message; `tag` (0 <= tag < 2**64) names it in `Dispositions` and must be unique until settled.

        The caller respects ``link.credit``; messages beyond it wait in Proton.
        """
        self.send_all(link, tag, (message,), settled=settled)

    def send_all(self, link: Link, first_tag: int, messages: Sequence[bytes], *, settled: bool = False) -> None:
        """Send messages under consecutive tags (see `send`)."""
        if link.closed or not messages:
            return
        buffer = (self._transport, self._output) if self._sasl is None else None
        self._loops.send(link, first_tag, messages, buffer, settled=settled)
        link.credit -= len(messages)

    def settle_sent(self, link: Link, tag: int) -> None:
        """Settle our delivery, after an unsettled outcome or to drop it."""
        self._loops.settle_sent(link, tag)

    def drained(self, link: Link) -> None:
        """Return the credit of a draining receiver, when there is nothing more to send; answer also without credit."""
        if not link.closed:
            if not lib.pn_link_drained(link._pn) and link.draining and link.attached:
                answer_drain(link._pn)
            link.credit = lib.pn_link_credit(link._pn)
            link.draining = False

    # --- inside -----------------------------------------------------------------------------------------------

    def _decided_for(self, now: float, *, deciding: bool) -> float:
        """Return the seconds of a verification of the peer's secret that has ended now; 0.0 otherwise."""
        since = self._deciding_since
        if deciding == (since is not None):
            return 0.0
        self._deciding_since = now if deciding else None
        return 0.0 if since is None else now - since

    def _collect(self, now: float, data: bytes = b"") -> list[Event]:
        events: list[Event] = []
        was_open = self._collector.opened
        came = self._rest + data if self._rest else data
        given = b"" if self._collector.more else came
        violation = self._collector.collect(events, given)
        self._rest = came[len(given) - self._collector.left :]
        if violation is not None:
            self.close(violation)
            events += self._abandon(violation)
        if self._collector.opened and not was_open:
            self._tick_deadline = self._transport.tick(now)
        return events

    def _at_once(self, events: list[Event]) -> list[Event]:
        """Return the first `EVENTS_AT_ONCE` of the left-over and these events; leave the others for later."""
        events = self._later + events
        self._later = events[EVENTS_AT_ONCE:]
        return events[:EVENTS_AT_ONCE]

    def _abandon(self, condition: Condition) -> list[Event]:
        """End the connection without further protocol. Return `Closed`, or nothing when it was returned before."""
        self._done, self._rest = True, b""
        if self._links.over:
            return []
        self._links.end()
        return [Closed(condition)]
