"""Tracer of one process: the present traces, and the connections that have a tap for them.

Without a trace a new connection costs one test, and an open one nothing. A trace puts a tap around each selected
connection, and around each new one until its client has identified itself. The fast path is off for a connection with a
tap: its protocol machine reads all bytes. When the last trace of a connection ends, its tap is removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, ConnectionOwner
from edge.broker.model.tracing import HttpRequest, MakeOwner, RelayedMessages, Traceable, as_traceable
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.tracing.dissector import Dissector
from edge.broker.tracing.events import IN, OUT, TraceEvent, line_of, utc
from edge.broker.tracing.limits import TRACES_MAX
from edge.broker.tracing.mqtt import MqttDissector
from edge.broker.tracing.runs import TracedRuns
from edge.broker.tracing.tap import Tap
from edge.broker.tracing.watch import TraceFilter, TraceNames, TraceWatch, WatchedLog
from edge.output.amounts import counted

log = logging.getLogger("edge.broker.trace")


class TooManyTraces(Exception):
    """There are `TRACES_MAX` traces already."""


class LoginJudge(Protocol):
    """Gives the reasons for refused credentials: `edge.broker.security.authenticator.Authenticator`."""

    @property
    def passwords(self) -> bool:
        """True when clients authenticate by user name and password."""
        ...

    def knows(self, user: str) -> bool:
        """Return True for a known user."""
        ...

    def too_many_failures(self, source: str, username: str) -> bool:
        """Return True when this address has failed too often recently."""
        ...


class PacketTracer:
    """`edge.broker.model.tracing.Tracer` of one process. Used only on the event loop."""

    def __init__(
        self,
        drivers: Callable[[], Iterable[ConnectionDriver]],
        gate: LoginJudge | None = None,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`drivers` returns the drivers of all open connections; `gate` knows why logins fail; `now_ns` is UTC."""
        self.active = False
        """True while a trace is running; read for each run, so it is no property."""
        self.runs = TracedRuns()
        self._drivers = drivers
        self._gate = gate
        self._loop = loop
        self._now_ns = now_ns
        self._watches: list[TraceWatch] = []
        self._taps: dict[Tap, None] = {}

    # --- for watchers -----------------------------------------------------------------------------------------

    def watch(
        self, about: TraceFilter, arrived: Callable[[], None], shows_payload: Callable[[str], bool] | None = None
    ) -> TraceWatch:
        """Start a trace, which lasts until `leave`. `arrived` is called when events wait; `shows_payload`: see
        `TraceWatch`. Raises `TooManyTraces`."""
        if len(self._watches) >= TRACES_MAX:
            raise TooManyTraces(f"there are {TRACES_MAX} traces already: end one of them")
        watch = TraceWatch(about, arrived, shows_payload)
        self._begin(watch)
        return watch

    def connections(self, watch: TraceWatch) -> int:
        """Return the number of connections that a trace shows now."""
        return sum(watch in tap.watches for tap in self._taps)

    def leave(self, watch: TraceWatch) -> None:
        """End a trace. Idempotent."""
        if watch not in self._watches:
            return
        self._watches.remove(watch)
        self.active = bool(self._watches)
        for tap in list(self._taps):
            if watch in tap.watches:
                tap.watched_by([each for each in tap.watches if each is not watch])
            if not tap.watches and (tap.known or not self._watches):
                self._remove(tap)
        if not self._watches:
            self.runs.close()

    def follow_log(self) -> None:
        """Write every event to the log if its level is DEBUG (``-vv``), for the lifetime of the process."""
        if log.isEnabledFor(logging.DEBUG):
            self._begin(WatchedLog(lambda event: log.debug("%s", line_of(event)), self._loop).watch)

    def close(self) -> None:
        """End every trace, as the process stops."""
        for watch in list(self._watches):
            self.leave(watch)
            watch.end()

    # --- edge.broker.model.tracing.Tracer ---------------------------------------------------------------------

    def follow(
        self, machine: ConnectionMachine, protocol: str, owner: MakeOwner
    ) -> tuple[ConnectionMachine, MakeOwner]:
        if not self._watches:
            return machine, owner
        tap = self._add(machine, _dissector(protocol))

        def opened(driver: ConnectionDriver) -> ConnectionOwner:
            driver.follow(tap, tap, tap)
            tap.opened(driver)
            if all(watch.about.is_about(tap.names) for watch in self._watches):
                tap.watched_by(self._watches)
            return owner(driver)

        return tap, opened

    def tls_refused(self, listener: str, remote: str, why: str) -> None:
        names = TraceNames("", "", "", remote)
        text = f"listener {listener}: {why}"
        self._report(names, TraceEvent(kind="connection", name="TLS refused", remote=remote, text=text), always=True)

    def requested(self, request: HttpRequest) -> None:
        user, path = request.user, request.path
        address = unquote(path.removeprefix("/t/")) if path.startswith("/t/") else ""
        event = TraceEvent(
            kind="request",
            client=user,
            user=user,
            remote=request.remote,
            protocol="HTTP",
            name=f"{request.method} {path}",
            payload_bytes=request.received_bytes,
            code=request.status,
            reason=_phrase(request.status),
            text=request.error or f"answered with {request.sent_bytes} B",
        )
        self._report(TraceNames(user, user, "", request.remote), event, (address,) if address else ())

    def relayed(self, run: RelayedMessages) -> None:
        count, answered = counted(run.messages, "message"), bool(run.outcome)
        if answered:
            text = f"{count}, {'our answer' if run.from_neighbour else 'the answer of the neighbour'}"
        elif run.from_neighbour:
            text = f"{count} by {run.route}"
        else:
            text = f"{count} to {run.route}" if run.route else count
        event = TraceEvent(
            kind="outcome" if answered else "packet",
            direction="" if answered else IN if run.from_neighbour else OUT,
            client=run.neighbour,
            protocol="router",
            name="relayed",
            address=run.address,
            payload_bytes=run.payload_bytes,
            outcome=run.outcome,
            count=run.messages,
            text=text,
        )
        self._report(TraceNames(run.neighbour, "", "", ""), event, (run.address,))

    # --- edge.broker.tracing.tap.TraceContext -----------------------------------------------------------------

    def utc(self) -> str:
        return utc(self._now_ns())

    def identified(self, tap: Tap) -> None:
        names = tap.names
        tap.watched_by([watch for watch in self._watches if watch.about.is_about(names)])
        if not tap.watches:
            self._loop.call_soon(self._remove, tap)

    def ended(self, tap: Tap) -> None:
        if not tap.known:  # traces by remote address show it
            tap.watched_by([watch for watch in self._watches if watch.about.is_about(tap.names)])
        self._taps.pop(tap, None)

    def why_refused(self, user: str, host: str, *, busy: bool) -> str:
        gate = self._gate
        if gate is None:
            return ""
        if gate.too_many_failures(host, user):
            return f"too many failed logins from {host}: it has to wait, even with the right password"
        if busy:
            return ""
        if not gate.passwords:
            return "the token or certificate is not accepted"
        if not user:
            return "the client gives no user name, and this space requires one"
        return "wrong password, or it has expired" if gate.knows(user) else f"unknown user {user}"

    # --- inside -----------------------------------------------------------------------------------------------

    def _begin(self, watch: TraceWatch) -> None:
        self._watches.append(watch)
        self.active = True
        for driver in list(self._drivers()):
            self._join(driver, watch)

    def _join(self, driver: ConnectionDriver, watch: TraceWatch) -> None:
        """Put a tap around the machine of an open connection, if the trace selects it."""
        trace, owner = driver.trace, as_traceable(driver.owner)
        if isinstance(trace, Tap):
            if trace.known and watch.about.is_about(trace.names):
                trace.watched_by([*trace.watches, watch])
            return
        if owner is None:
            return
        client, user = owner.trace_names
        names = TraceNames(client, user, driver.identity or "", driver.peername)
        if client and not watch.about.is_about(names):
            return
        machine = owner.connection
        tap = self._add(machine, _joining(machine, owner, client, user), driver.identity or "")
        driver.follow(tap, machine, tap)
        owner.reset_fast_path()
        if client:
            tap.watched_by([watch])
        tap.joined(driver)

    def _add(self, machine: ConnectionMachine, dissector: Dissector, identity: str = "") -> Tap:
        tap = Tap(machine, dissector, self, identity)
        self._taps[tap] = None
        return tap

    def _remove(self, tap: Tap) -> None:
        """Remove the tap, unless another trace uses it now."""
        if tap.watches or self._taps.pop(tap, self) is self:
            return
        driver = tap.driver
        if driver is None or driver.owner is None:
            return  # the connection has ended
        driver.follow(None, tap, tap.machine)
        if (owner := as_traceable(driver.owner)) is not None:
            owner.reset_fast_path()

    def _report(
        self, names: TraceNames, event: TraceEvent, addresses: Sequence[str] = (), *, always: bool = False
    ) -> None:
        event.time = self.utc()
        for watch in self._watches:
            if watch.about.is_about(names) and watch.about.shows(addresses, always=always):
                watch.offer(event)


def _dissector(protocol: str) -> Dissector:
    """Make the dissector of a new connection."""
    if protocol == "mqtt":
        return MqttDissector()
    from edge.broker.tracing.amqp import AmqpDissector  # noqa: PLC0415 - many gateways never serve AMQP

    return AmqpDissector()


def _joining(machine: ConnectionMachine, owner: Traceable, client: str, user: str) -> Dissector:
    """Make the dissector of an open connection."""
    if isinstance(machine, MqttConnection):
        return MqttDissector(machine.version if client else 0, client, user, machine.pending)
    from edge.broker.amqp.session import AmqpSession  # noqa: PLC0415
    from edge.broker.tracing.amqp import AmqpDissector  # noqa: PLC0415

    sends: list[str] = []
    receives: list[str] = []
    for link in owner.link_figures() if isinstance(owner, AmqpSession) else ():
        (receives if link.is_sender else sends).append(link.address or "")
    only = sends[0] if len(sends) == 1 else "", receives[0] if len(receives) == 1 else ""
    return AmqpDissector(client, user, began=True, only=only)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no answer: the client disconnected"
