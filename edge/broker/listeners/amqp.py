"""Create the drivers of AMQP connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bridge.engine import Condition, Engine, PeerOpened
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, ConnectionOwner, MemoryMeter
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.arrivals import AmqpLanes
from edge.broker.amqp.containers import ContainerRegistry, ObservedConnection
from edge.broker.amqp.interception import LinkInterception
from edge.broker.amqp.session import CAPABILITIES, DELAYED_DELIVERY, AmqpSession
from edge.broker.limits import UNREAD_BYTES_MAX, WRITE_BUFFER_BYTES_MAX, Limits
from edge.broker.listeners.refusals import NO_ROOM, brief_limits
from edge.broker.listeners.tcp import Gone
from edge.broker.model.refusals import RefusalCause, RefusalJournal
from edge.broker.model.tracing import UNTRACED, Tracer
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.sasl_credentials import SaslCredentials


class AmqpRefusal:
    """Refuses a connection at the limit: open, and close with amqp:resource-limit-exceeded (section 2.8.16).

    SASL accepts any credentials, as the connection has no use of them.
    """

    def __init__(self, limits: Limits, container_id: str, now: float, refusals: RefusalJournal) -> None:
        """`refusals` records the client."""
        self._refusals = refusals
        self._remote = ""
        short = brief_limits(limits)
        self.connection = Engine(
            container_id=container_id,
            server=True,
            sasl=SaslServer(lambda _mechanism, user, _secret: user, anonymous=ANONYMOUS),
            idle_timeout_s=short.idle_timeout_s,
            handshake_timeout_s=short.handshake_s,
            channel_max=0,
            links_max=1,
            max_message_size=1,
            now=now,
        )

    def connected(self, driver: ConnectionDriver) -> AmqpRefusal:
        """Set the driver of the connection; return the owner."""
        self._remote = driver.address
        return self

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, PeerOpened):
                self._refusals.add(RefusalCause.TOO_MANY_CONNECTIONS, self._remote, client=event.container_id)
                self.connection.close(Condition("amqp:resource-limit-exceeded", NO_ROOM))

    def writable(self) -> None:
        """Open and close always fit."""


MakeAmqpOwner = Callable[[Engine, ConnectionDriver], ConnectionOwner]
"""Creates the owner of a new connection."""


class AmqpDrivers:
    """Creates driver, engine and session of each connection."""

    def __init__(
        self,
        limits: Limits,
        container_id: str,
        router: Router,
        gate: Authenticator,
        interception: LinkInterception,
        administration: Administration | None,
        clock: Callable[[], float],
        arrivals: AmqpLanes,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`container_id`: that of the broker. `administration` changes addresses over `$management`; None: not
        supported. `clock` returns monotonic seconds."""
        self._limits = limits
        self._container_id = container_id
        self._router = router
        self._gate = gate
        self._interception = interception
        self._administration = administration
        self._clock = clock
        self._arrivals = arrivals
        self._tracer = tracer
        self._containers = ContainerRegistry()

    @property
    def connections(self) -> Mapping[int, ObservedConnection]:
        """Open connections by number, the oldest first."""
        return self._containers.connections

    def rename(self, container_id: str) -> None:
        """Change the container id of the broker for new connections."""
        self._container_id = container_id

    def serve(
        self,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection."""
        gate = self._gate
        anonymous = ANONYMOUS if gate.open or gate.tokens else None  # the client may put a token to $cbs later
        credentials = SaslCredentials(gate) if gate.passwords or gate.tokens else None
        sasl = SaslServer(
            _accept_anyone if gate.open else None, credentials=credentials, anonymous=anonymous, external=identity
        )
        return self.drive(sasl, partial(self._arrive, credentials), gone, identity, around, meter)

    def drive(
        self,
        sasl: SaslServer,
        make_owner: MakeAmqpOwner,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection with this SASL layer and this owner."""
        limits = self._limits
        engine = Engine(
            container_id=self._container_id,
            server=True,
            sasl=sasl,
            idle_timeout_s=limits.idle_timeout_s,
            handshake_timeout_s=limits.handshake_s,
            max_message_size=limits.packet_bytes_max,
            offered_capabilities=(*CAPABILITIES, DELAYED_DELIVERY),
            now=self._clock(),
        )
        machine, owner = self._tracer.follow(engine, "amqp", partial(make_owner, engine))
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
        owner = AmqpRefusal(self._limits, self._container_id, self._clock(), self._gate.refusals)
        machine, make_owner = self._tracer.follow(owner.connection, "amqp", owner.connected)
        return ConnectionDriver(around(machine), make_owner, write_bytes_max=WRITE_BUFFER_BYTES_MAX, gone=gone)

    def shut_down(self, drivers: Iterable[ConnectionDriver]) -> None:
        """Close the AMQP connections among these before the broker stops."""
        for driver in drivers:
            if isinstance(driver.owner, AmqpSession):
                driver.owner.shut_down()

    def session(self, credentials: SaslCredentials | None, engine: Engine, driver: ConnectionDriver) -> AmqpSession:
        """Create the session of a connection of this space. `credentials` has what its SASL layer has verified."""
        return AmqpSession(
            driver,
            engine,
            self._router,
            gate=self._gate,
            credentials=credentials,
            interception=self._interception,
            administration=self._administration,
            containers=self._containers,
            lane=self._arrivals.lane(driver, engine),
            refusals=self._gate.refusals,
        )

    def _arrive(self, credentials: SaslCredentials | None, engine: Engine, driver: ConnectionDriver) -> AmqpSession:
        if credentials is not None:
            credentials.connected(driver.wake, driver.address)
        return self.session(credentials, engine, driver)


def _accept_anyone(_mechanism: str, _user: str, _password: bytes) -> str:
    """Accept any name and password without authentication, as over MQTT."""
    return ANONYMOUS
