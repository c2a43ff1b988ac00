"""Create the drivers of MQTT connections."""

from __future__ import annotations

from collections.abc import Callable

from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, ConnectionOwner, MemoryMeter
from edge.broker.limits import UNREAD_BYTES_MAX, WRITE_BUFFER_BYTES_MAX, Limits
from edge.broker.listeners.refusals import MqttRefusal
from edge.broker.listeners.tcp import Gone
from edge.broker.model.refusals import RefusalJournal
from edge.broker.model.tracing import UNTRACED, Tracer
from edge.broker.mqtt.arrivals import MqttLanes
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.handler import ConnectionHandler, HandlerContext
from edge.broker.mqtt.interception import Interception, OwnTopics
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator

MakeMqttOwner = Callable[[ConnectionDriver, MqttConnection], ConnectionOwner]
"""Creates the owner of a new connection."""


class MqttDrivers:
    """Creates driver, state machine and handler of each connection."""

    def __init__(
        self,
        limits: Limits,
        router: Router,
        sessions: SessionRegistry,
        gate: Authenticator,
        interception: Interception,
        clock: Callable[[], float],
        arrivals: MqttLanes,
        tracer: Tracer = UNTRACED,
        refusals: RefusalJournal | None = None,
        *,
        certificates: bool = True,
    ) -> None:
        """`clock` returns monotonic seconds. `refusals` records refused clients. `certificates`: see
        `HandlerContext`."""
        self._tracer = tracer
        self._limits = limits
        self._clock = clock
        self._refusals = RefusalJournal() if refusals is None else refusals
        self._common = HandlerContext(
            router, sessions, clock, arrivals, gate, interception, self._refusals, certificates=certificates
        )

    def serve_own_topics(self, own: OwnTopics | None) -> None:
        """Answer these topics from now on, to connections that subscribe to one of them; None: none."""
        self._common.serve_own_topics(own)

    def serve(
        self,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection."""
        return self.drive(self.handler, gone, identity, around, meter)

    def handler(self, driver: ConnectionDriver, connection: MqttConnection) -> ConnectionHandler:
        """Create the handler of a connection of this space."""
        return ConnectionHandler(driver, connection, self._common)

    def drive(
        self,
        make_owner: MakeMqttOwner,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection with another owner than the handler of this space."""
        connection = MqttConnection(self._limits, self._clock())
        machine, owner = self._tracer.follow(connection, "mqtt", lambda driver: make_owner(driver, connection))
        return ConnectionDriver(
            around(machine),
            owner,
            write_bytes_max=WRITE_BUFFER_BYTES_MAX,
            gone=gone,
            unread_bytes_max=UNREAD_BYTES_MAX,
            identity=identity,
            meter=meter,
        )

    def refuse(self, gone: Gone, around: Callable[[ConnectionMachine], ConnectionMachine]) -> ConnectionDriver:
        """Create the driver of a connection that is refused at the limit."""
        owner = MqttRefusal(self._limits, self._clock(), self._refusals)
        machine, make_owner = self._tracer.follow(owner.connection, "mqtt", owner.connected)
        return ConnectionDriver(around(machine), make_owner, write_bytes_max=WRITE_BUFFER_BYTES_MAX, gone=gone)
