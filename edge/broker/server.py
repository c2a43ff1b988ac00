"""The broker: store, router, sessions and listeners put together on one event loop.

It owns what crosses them: when a commit is started (once a turn of the loop), when sockets stop being read because
the store has too much under way, and the housekeeping tick. It knows no file and no command line.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bridge.engine import Engine
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.connection import Connection
from bridge.transport.driver import Driver
from edge.broker.amqp import interception as amqp_interception
from edge.broker.amqp.services import Administration
from edge.broker.amqp.session import CAPABILITIES, AmqpSession
from edge.broker.configuration import Authentication, BrokerConfiguration, DeviceApi, Endpoint
from edge.broker.limits import (
    CERTIFICATES_CHECK_S,
    PENDING_BYTES_LOW,
    PENDING_BYTES_MAX,
    TICK_S,
    TURNED_AWAY_MAX,
    UNREAD_BYTES_MAX,
    WRITE_BUFFER_BYTES_MAX,
)
from edge.broker.listeners.tcp import Gone, ListenError, TcpListener
from edge.broker.listeners.tls import Certificates, TlsError
from edge.broker.listeners.turned_away import AmqpTurnedAway, MqttTurnedAway
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.addresses import AddressTable
from edge.broker.mqtt import interception as mqtt_interception
from edge.broker.mqtt.connection import Connection as MqttConnection
from edge.broker.mqtt.handler import ConnectionHandler
from edge.broker.mqtt.overlap import merge_live
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Gate
from edge.broker.security.sasl_credentials import SaslCredentials
from edge.broker.security.verification_threads import VerificationThreads
from edge.broker.store.contract import Store
from edge.broker.store.records import Committed

if TYPE_CHECKING:
    from edge.broker.hono.service import DeviceService

STORE_BUSY = "the store has too much under way"

TIMER_SLACK_S = 0.001
"""The loop's timers count in milliseconds."""

SECURE = ("mqtts", "amqps", "mqtt-wss", "amqp-wss")
"""Listeners with TLS."""


class Broker:
    """One broker engine. The caller made the store (``post=loop.call_soon_threadsafe``) and closes it after `stop`."""

    def __init__(
        self, configuration: BrokerConfiguration, store: Store, *, clock_good: Callable[[], bool] = lambda: False
    ) -> None:
        self.configuration = configuration
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time  # one bound method for all sessions
        self.administration: Administration | None = None
        """Who changes addresses when an AMQP client asks for it; None: nobody does."""
        self._flush_scheduled = False
        self._paused = False
        self._ticker: asyncio.TimerHandle | None = None
        self._batch_timer: asyncio.TimerHandle | None = None
        self.router = Router(
            store,
            AddressTable(configuration.rules, configuration.default_rule),
            clock_ns=time.time_ns,
            clock_good=clock_good,
            flush_soon=self._flush_soon,
            policies=configuration.policies,
            monotonic_s=self._loop.time,
            merge_live=merge_live,
        )
        self.router.quotas.floor_bytes = configuration.limits.free_floor_bytes
        self.router.quotas.space_bytes = configuration.quota_bytes
        self.router.quotas.tick()
        store.commit_listeners.append(self._committed)  # after the router
        api = configuration.device_api
        self.devices = _device_service(api, self.router, store) if api is not None else None
        """The device API; None where the space has none."""
        self._mqtt_interception, self._amqp_interception = _interceptions(self.devices)
        self.mqtt_sessions = SessionRegistry(
            self.router,
            store,
            mqtt_runs,
            legacy_dollar_topics=configuration.legacy_dollar_topics,
        )
        self._threads = VerificationThreads()
        self._containers: set[tuple[str, str]] = set()
        self.gate = Gate(configuration.authentication, worker=self._threads, clock=self._loop.time)
        self.mqtt = self._listener("mqtt")
        self.amqp = self._listener("amqp")
        others = ("mqtts", "amqps", "mqtt-ws", "amqp-ws", "mqtt-wss", "amqp-wss")
        self.listeners = (self.mqtt, self.amqp, *map(self._listener, others))
        self._certificates: Certificates | None = None
        self._certificates_checked_at = 0.0

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> dict[str, tuple[str, int]]:
        """Listen where the configuration says; returns name -> (host, port). Raises ListenError."""
        bound = {}
        for listener in self.listeners:
            endpoint: Endpoint | None = getattr(self.configuration, listener.name.replace("-", "_"))
            if endpoint is not None:
                if "-ws" in listener.name:
                    importlib.import_module("bridge.transport.websocket")  # now rather than while devices are served
                certificates = self.read_certificates(listener.name) if listener.name in SECURE else None
                bound[listener.name] = await listener.start(
                    endpoint.host, endpoint.port, certificates, handshake_s=self.configuration.limits.handshake_s
                )
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        return bound

    async def stop(self) -> None:
        """Close the listeners and every connection; what was acknowledged is on disk already."""
        for timer in (self._ticker, self._batch_timer):
            if timer is not None:
                timer.cancel()
        for session in self.mqtt_sessions.attached():
            session.connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
            session.flush_soon()
        for driver in self._drivers():
            if isinstance(driver.owner, AmqpSession):
                driver.owner.shut_down()
        await asyncio.sleep(0)  # the last words are written at the end of this turn of the loop
        for listener in self.listeners:
            await listener.stop()
        self._threads.stop()

    def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Follow addresses and authentication of a new configuration; the rest of it counts from the next start."""
        self.configuration = msgspec.structs.replace(
            self.configuration,
            addresses=configuration.addresses,
            default_type=configuration.default_type,
            authentication=configuration.authentication,
            quota_bytes=configuration.quota_bytes,
        )
        self.router.quotas.space_bytes = configuration.quota_bytes
        if self.gate.mode is not configuration.authentication:
            self.gate.mode = configuration.authentication
            for driver in list(self._drivers()):
                driver.abort()  # who came in by the old rules comes again by the new ones
        api = configuration.device_api
        if self.devices is not None and api is not None and api.tenant == self.devices.tenant.name:
            self.devices.tenant.update(api)
        self.router.reconfigure(AddressTable(configuration.rules, configuration.default_rule), configuration.policies)

    @property
    def connections(self) -> int:
        """Open sockets of devices."""
        return sum(len(listener.drivers) for listener in self.listeners)

    @property
    def amqp_connections(self) -> int:
        """Open sockets of AMQP clients, over every listener."""
        return sum(len(listener.drivers) for listener in self.listeners if listener.name.startswith("amqp"))

    # --- commits and pressure ---------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self.router.flush()
        self._wait_for_company()
        if not self._paused and self.store.pending_bytes > PENDING_BYTES_MAX:
            self._paused = True
            for driver in self._drivers():
                driver.pause_reading(STORE_BUSY)

    def _wait_for_company(self) -> None:
        """Come back when messages that may wait (``durability: batch``) have waited."""
        due_in = self.store.due_in()
        if due_in is None:
            return
        due_at = self._loop.time() + due_in
        if self._batch_timer is not None:
            if self._batch_timer.when() <= due_at + TIMER_SLACK_S:
                return
            self._batch_timer.cancel()
        self._batch_timer = self._loop.call_at(due_at, self._waited)

    def _waited(self) -> None:
        self._batch_timer = None
        self._flush()

    def _committed(self, commit: Committed) -> None:
        self._wait_for_company()
        if self._paused and self.store.pending_bytes < PENDING_BYTES_LOW:
            self._paused = False
            for driver in self._drivers():
                driver.resume_reading(STORE_BUSY)

    def _drivers(self) -> Iterator[Driver]:
        for listener in self.listeners:
            yield from listener.drivers

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.mqtt_sessions.tick(self._loop.time())
        self.router.tick()
        self.gate.expire()
        now = self._loop.time()
        if self._certificates is not None and now - self._certificates_checked_at >= CERTIFICATES_CHECK_S:
            self._certificates_checked_at = now
            self._certificates.check()

    # --- connections ------------------------------------------------------------------------------------------

    def read_certificates(self, name: str) -> Certificates:
        """The files of the listeners with TLS, read once for all of them. Raises ListenError."""
        if self.configuration.tls is None:
            raise ListenError(f"{name}: no certificate is configured")
        if self._certificates is None:
            try:
                self._certificates = Certificates(self.configuration.tls)
            except TlsError as error:
                raise ListenError(f"{name}: {error}") from error
        return self._certificates

    def _listener(self, name: str) -> TcpListener:
        make, turn_away = (
            (self._mqtt_driver, self._turn_away_mqtt)
            if name.startswith("mqtt")
            else (self._amqp_driver, self._turn_away_amqp)
        )
        in_frames = "-ws" in name
        return TcpListener(name, partial(make, in_frames=in_frames), partial(turn_away, in_frames=in_frames))

    def _turn_away_mqtt(self, gone: Gone, _identity: str | None, *, in_frames: bool) -> Driver | None:
        if self._turning_away >= TURNED_AWAY_MAX:
            return None
        owner = MqttTurnedAway(self.configuration.limits, self._loop.time())
        connection = self._in_frames(owner.connection, "mqtt") if in_frames else owner.connection
        return Driver(connection, lambda _driver: owner, write_bytes_max=WRITE_BUFFER_BYTES_MAX, gone=gone)

    def _turn_away_amqp(self, gone: Gone, _identity: str | None, *, in_frames: bool) -> Driver | None:
        if self._turning_away >= TURNED_AWAY_MAX:
            return None
        container_id = self.configuration.gateway or "waypost"
        owner = AmqpTurnedAway(self.configuration.limits, container_id, self._loop.time())
        connection = self._in_frames(owner.connection, "amqp") if in_frames else owner.connection
        return Driver(connection, lambda _driver: owner, write_bytes_max=WRITE_BUFFER_BYTES_MAX, gone=gone)

    @property
    def _turning_away(self) -> int:
        return sum(len(listener.turned_away) for listener in self.listeners)

    def _in_frames(self, inner: Connection, protocol: str) -> Connection:
        """`inner` over WebSocket. Where nobody has to say who he is, pages of other sites may not connect."""
        from bridge.transport import websocket  # noqa: PLC0415 - 1 MiB for those that listen for it, who have it since `start`

        subprotocols = websocket.MQTT if protocol == "mqtt" else websocket.AMQP
        return websocket.WebSocketConnection(
            inner,
            subprotocols,
            message_bytes_max=self.configuration.limits.packet_bytes_max,
            any_origin=self.configuration.authentication is not Authentication.NONE,
        )

    def _mqtt_driver(self, gone: Gone, identity: str | None, *, in_frames: bool = False) -> Driver | None:
        limits = self.configuration.limits
        if self.connections >= limits.connections_max:
            return None
        connection = MqttConnection(limits, self._loop.time())
        return Driver(
            self._in_frames(connection, "mqtt") if in_frames else connection,
            lambda driver: ConnectionHandler(
                driver, connection, self.router, self.mqtt_sessions, self._clock, self.gate, self._mqtt_interception
            ),
            write_bytes_max=WRITE_BUFFER_BYTES_MAX,
            gone=gone,
            unread_bytes_max=UNREAD_BYTES_MAX,
        )

    def _amqp_driver(self, gone: Gone, identity: str | None, *, in_frames: bool = False) -> Driver | None:
        limits = self.configuration.limits
        if self.connections >= limits.connections_max:
            return None
        anonymous = ANONYMOUS if self.gate.open or self.gate.tokens else None  # a token may be put to $cbs later
        credentials = SaslCredentials(self.gate) if self.gate.passwords or self.gate.tokens else None
        engine = Engine(
            container_id=self.configuration.gateway or "waypost",
            server=True,
            sasl=SaslServer(
                _anybody if self.gate.open else None, credentials=credentials, anonymous=anonymous, external=identity
            ),
            idle_timeout_s=limits.idle_timeout_s,
            handshake_timeout_s=limits.handshake_s,
            max_message_size=limits.packet_bytes_max,
            offered_capabilities=CAPABILITIES,
            now=self._loop.time(),
        )
        return Driver(
            self._in_frames(engine, "amqp") if in_frames else engine,
            partial(self._amqp_session, engine, credentials),
            write_bytes_max=WRITE_BUFFER_BYTES_MAX,
            gone=gone,
            unread_bytes_max=UNREAD_BYTES_MAX,
        )

    def _amqp_session(self, engine: Engine, credentials: SaslCredentials | None, driver: Driver) -> AmqpSession:
        session = AmqpSession(
            driver,
            engine,
            self.router,
            gate=self.gate,
            credentials=credentials,
            interception=self._amqp_interception,
            administration=self.administration,
            containers=self._containers,
        )

        if credentials is not None:
            credentials.wake, credentials.source = driver.wake, driver.address
        return session


def _anybody(_mechanism: str, _user: str, _password: bytes) -> str:
    """Who has a name and a password where nobody is asked for any, as over MQTT: anybody."""
    return ANONYMOUS


def _device_service(api: DeviceApi, router: Router, store: Store) -> DeviceService:
    """The device API, loaded where a space has it."""
    from edge.broker.hono.service import DeviceService  # noqa: PLC0415

    return DeviceService(api, router, store)


def _interceptions(
    devices: DeviceService | None,
) -> tuple[mqtt_interception.Interception, amqp_interception.LinkInterception]:
    """Who steps in between clients and the router: the device API, loaded where a space has it."""
    if devices is None:
        return mqtt_interception.NO_INTERCEPTION, amqp_interception.NO_INTERCEPTION
    from edge.broker.hono.amqp import DeviceLinkInterception  # noqa: PLC0415
    from edge.broker.hono.mqtt import DeviceInterception  # noqa: PLC0415

    return DeviceInterception(devices), DeviceLinkInterception(devices)
