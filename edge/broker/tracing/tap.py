"""Wrapper around the machine of a traced connection, which reads its bytes and changes nothing.

A tap obeys the contract of connections by forwarding every call, and has a dissector read the bytes of both directions.
The session reports the outcomes of messages to it. An exception in a dissector ends only the trace of the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver
from edge.broker.model.interfaces import Refusal
from edge.broker.model.tracing import TracedPublication, TracedRouter, as_traceable
from edge.broker.mqtt.answers import QOS_2, REASONS
from edge.broker.tracing.dissector import DissectedPacket, Dissector
from edge.broker.tracing.events import IN, OUT, TraceEvent
from edge.broker.tracing.limits import TRACE_EARLY_EVENTS_MAX
from edge.broker.tracing.mqtt import MqttDissector, named
from edge.broker.tracing.runs import TracedRuns
from edge.broker.tracing.watch import TraceNames, TraceWatch
from edge.output.logs import describe_error

log = logging.getLogger(__name__)


class TraceContext(Protocol):
    """Tracer, as a tap needs it."""

    runs: TracedRuns

    def utc(self) -> str:
        """Return the time in words."""
        ...

    def identified(self, tap: Tap) -> None:
        """Note that the client has identified itself."""
        ...

    def ended(self, tap: Tap) -> None:
        """Note that the connection is over."""
        ...

    def why_refused(self, user: str, host: str, *, busy: bool) -> str:
        """Return why credentials of this user are refused, or not checked (`busy`); empty if unknown."""
        ...


class Tap:
    """One traced connection: obeys `bridge.transport.connection.ConnectionMachine` and `ConnectionTrace`."""

    def __init__(
        self, machine: ConnectionMachine, dissector: Dissector, context: TraceContext, identity: str = ""
    ) -> None:
        """`identity` is the name in the client's verified certificate."""
        self.machine = machine
        self.watches: tuple[TraceWatch, ...] = ()
        self.driver: ConnectionDriver | None = None
        """None before the transport is connected, and after it is lost."""
        self._dissector: Dissector | None = dissector
        self._context = context
        self._remote = ""
        self._identity = identity
        self._protocol = dissector.protocol
        self._names = (dissector.client, dissector.user)
        self._known = dissector.known
        self._early: list[tuple[TraceEvent, tuple[str, ...], bool]] | None = None if dissector.known else []
        """Events before the client was known: (event, addresses, whether it is always shown)."""
        self._reason = ""
        self._ended_by = ""
        self._over = False

    # --- bridge.transport.connection.ConnectionMachine ---------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.machine.closed

    @property
    def deadline(self) -> float | None:
        return self.machine.deadline

    @property
    def held_bytes(self) -> int:
        return self.machine.held_bytes

    @property
    def has_output(self) -> bool:
        return self.machine.has_output

    @property
    def more(self) -> bool:
        return self.machine.more

    @property
    def spoken(self) -> str:
        return self.machine.spoken

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        if data:
            self._read(IN, data)
        return self._note_end(self.machine.receive_data(data, now))

    def receive_eof(self, now: float) -> Sequence[Any]:
        if not self._ended_by:
            self._ended_by = "the gateway" if self.machine.closed else "the client, without a goodbye"
        events = self._note_end(self.machine.receive_eof(now))
        if not self._over:
            self._over = True
            self.report(TraceEvent(kind="connection", name=f"closed by {self._ended_by}", text=self._reason))
            self._context.ended(self)
        return events

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        return self._note_end(self.machine.handle_timeout(now, listening=listening))

    def shed(self) -> Sequence[Any]:
        return self._note_end(self.machine.shed())

    def data_to_send(self) -> bytes:
        data = self.machine.data_to_send()
        if data:
            self._read(OUT, data)
        return data

    # --- edge.broker.model.tracing.ConnectionTrace ------------------------------------------------------------

    def publish(self, router: TracedRouter, publication: TracedPublication) -> None:
        runs, report, run = self._context.runs, self.report, publication.run
        waiting = runs.begin(router, run, self._ids_of(publication.tokens), report)
        router.publish(publication)
        runs.routed(waiting, router.destination(run.address, run.qos))

    def refused(self, address: str, tokens: Sequence[int], why: Refusal) -> None:
        ids = self._ids_of(tokens)
        self._context.runs.refused(self.report, ids, address)
        event = TraceEvent(
            kind="outcome", name="message", outcome=f"refused because {why.value}", count=len(tokens) or 1
        )
        if ids:
            event.id, event.last_id = ids[0], ids[-1]
        dissector = self._dissector
        if isinstance(dissector, MqttDissector):
            event.name, event.code, event.reason = "PUBLISH", int(REASONS[why]), named(REASONS[why])
            address = address or (dissector.address_of(ids[0]) if ids else "")
            if dissector.protocol != "MQTT 5" and ids:
                event.text = f"{dissector.protocol} cannot report a refusal: the connection is closed"
        if why is Refusal.NOT_AUTHORIZED:
            event.text = ", ".join(
                filter(None, (f"{self._names[1] or 'the client'} has no right to send to it", event.text))
            )
        event.address = address
        self.report(event, (address,) if address else ())

    # --- from the tracer --------------------------------------------------------------------------------------

    @property
    def names(self) -> TraceNames:
        """Names of the client that are known."""
        client, user = self._names
        return TraceNames(client, user, self._identity, self._remote)

    @property
    def known(self) -> bool:
        """True once the client has identified itself."""
        return self._known

    def opened(self, driver: ConnectionDriver) -> None:
        """Report that the transport is connected."""
        self.driver = driver
        self._remote, self._identity = driver.peername, driver.identity or ""
        secured = driver.cipher
        tls = f", {secured[1]} {secured[0]}" if secured is not None else ""
        shown = f", certificate of {self._identity}" if self._identity else ""
        self.report(TraceEvent(kind="connection", name="accepted", text=f"{self._protocol}{tls}{shown}"))

    def joined(self, driver: ConnectionDriver) -> None:
        """Report a connection that was open before the trace."""
        self.driver = driver
        self._remote = driver.peername
        user = f", user {self._names[1]}" if self._names[1] else ""
        self.report(TraceEvent(kind="connection", name="connected before the trace", text=f"{self._protocol}{user}"))

    def watched_by(self, watches: Sequence[TraceWatch]) -> None:
        """Show the connection in these traces from now on, with the events from before the client was known."""
        self.watches = tuple(watches)
        if self._dissector is not None:
            self._dissector.shows_payload = any(each.shows_payload is not None for each in watches)
        early, self._early = self._early, None
        for event, addresses, always in early or ():
            self._offer(event, addresses, always=always)

    def report(self, event: TraceEvent, addresses: Sequence[str] = (), *, always: bool | None = None) -> None:
        """Show an event of this connection. `always`: for any selection of addresses; None: only for steps of a
        connection."""
        event.time = self._context.utc()
        event.remote, event.protocol = self._remote, self._protocol
        event.client, event.user = self._names
        shown = event.kind == "connection" if always is None else always
        if self._early is None:
            self._offer(event, tuple(addresses), always=shown)
        elif len(self._early) < TRACE_EARLY_EVENTS_MAX:
            self._early.append((event, tuple(addresses), shown))

    # --- inside -----------------------------------------------------------------------------------------------

    def _offer(self, event: TraceEvent, addresses: Sequence[str], *, always: bool) -> None:
        if not (event.client or event.user):
            event.client, event.user = self._names
        for watch in self.watches:
            if watch.about.shows(addresses, always=always):
                watch.offer(event)

    def _wanted(self) -> bool:
        return self._early is not None or any(watch.has_room for watch in self.watches)

    def _read(self, direction: str, data: bytes) -> None:
        dissector = self._dissector
        if dissector is None:
            return
        try:
            for packet in dissector.read(direction, data, self._wanted):
                if packet is None:
                    for watch in self.watches:
                        watch.drop()
                else:
                    self._show(direction, packet, dissector)
        except Exception as error:
            self._dissector = None
            log.exception("%s: the trace of this connection failed", self._remote)
            self.report(TraceEvent(kind="connection", name="trace ended", text=describe_error(error)))

    def _show(self, direction: str, packet: DissectedPacket, dissector: Dissector) -> None:
        self._names, self._protocol = (dissector.client, dissector.user), dissector.protocol
        if packet.goodbye and not self._ended_by:
            self._ended_by = "the client" if direction == IN else "the gateway"
        event = TraceEvent(
            kind="packet",
            direction=direction,
            name=packet.name,
            id=packet.id,
            last_id=packet.last_id,
            channel=packet.channel,
            address=packet.address,
            flags=packet.flags,
            bytes=packet.bytes,
            payload_bytes=packet.payload_bytes,
            payload=packet.payload,
            code=packet.code,
            reason=packet.reason,
            text=packet.text,
        )
        self.report(event, packet.addresses, always=packet.always)
        if direction == OUT and (packet.refuses_login or packet.too_busy):
            why = self._context.why_refused(self._names[1], self.names.host, busy=packet.too_busy)
            if why:
                self.report(TraceEvent(kind="connection", name="login refused", text=why))
        if not self._known:
            self._identify(dissector)

    def _identify(self, dissector: Dissector) -> None:
        """Identify the client: by its packets, or by its session if it connected before the trace."""
        owner = as_traceable(self.driver.owner if self.driver is not None else None)
        if not dissector.known and owner is not None and owner.trace_names[0]:
            self._names = dissector.client, dissector.user = owner.trace_names
            dissector.known = True
        if dissector.known:
            self._known = True
            self._context.identified(self)

    def _note_end(self, events: Sequence[Any]) -> Sequence[Any]:
        """Note the reason of an event that ends the connection."""
        if self._dissector is not None:
            for event in events:
                self._reason = self._dissector.why_ended(event) or self._reason
        return events

    def _ids_of(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return packet identifiers; none for AMQP, as its tokens are numbers of one link, not delivery-ids."""
        if not isinstance(self._dissector, MqttDissector):
            return ()
        return [token & QOS_2 - 1 for token in tokens]
