"""All MQTT and AMQP listeners of a broker: addresses, limits and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol as Interface

from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, MemoryMeter
from edge.broker.configuration import BrokerConfiguration, ClientOcsp, Listener, Protocol
from edge.broker.limits import (
    AMQP_CONNECTION_BYTES,
    CERTIFICATES_CHECK_S,
    MQTT_CONNECTION_BYTES,
    TLS_CONNECTION_BYTES,
    TURNED_AWAY_MAX,
    WEBSOCKET_CONNECTION_BYTES,
)
from edge.broker.listeners.admission import Admission, ConnectionMeter
from edge.broker.listeners.frames import Frames, PlainFrames
from edge.broker.listeners.revocations import ClientRevocations
from edge.broker.listeners.tcp import Gone, ListenError, TcpListener
from edge.broker.listeners.tls import Certificates, NoteServerName, TlsError
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.refusals import RefusalJournal
from edge.broker.model.tracing import UNTRACED, Tracer
from edge.broker.security.certified_devices import CertifiedDevices
from edge.broker.security.site import Site


class Drivers(Interface):
    """Creates the drivers of one protocol's connections. `around` adds the framing of the listener."""

    def serve(
        self,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection. `identity`: name in its verified client certificate."""
        ...

    def refuse(self, gone: Gone, around: Callable[[ConnectionMachine], ConnectionMachine]) -> ConnectionDriver:
        """Create the driver of a connection that is refused at the limit."""
        ...


class BrokerListeners:
    """Listeners of a configuration except those for HTTP."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        drivers: Mapping[Protocol, Drivers],
        site: Site,
        guarded: Callable[[], bool],
        admission: Admission,
        tracer: Tracer = UNTRACED,
        refusals: RefusalJournal | None = None,
        data: Path | None = None,
    ) -> None:
        """`drivers`: by protocol. `site`, `guarded`: see `Frames`. `refusals` records refused clients. `data`:
        see `Certificates`."""
        self._configuration = configuration
        self._admission = admission
        self._around: dict[str, Frames | PlainFrames] = {}
        self.wrong_port = WrongPortReporter(refusals)
        """Ports of all listeners of the process; the HTTP server adds its own."""
        self.by_name: dict[str, TcpListener] = {}
        self._listeners = [listener for listener in configuration.listeners if listener.protocol in drivers]
        for listener in self._listeners:
            bytes_max = configuration.limits.packet_bytes_max
            around: Frames | PlainFrames = PlainFrames()
            if listener.websocket:
                around = Frames(listener.protocol.value, message_bytes_max=bytes_max, site=site, guarded=guarded)
            meter = ConnectionMeter(admission, _cost_bytes(listener))
            make = partial(self._serve, drivers[listener.protocol], around, meter)
            refuse = partial(self._refuse, drivers[listener.protocol], around)
            self._around[listener.name] = around
            self.by_name[listener.name] = TcpListener(listener.name, make, refuse, self.wrong_port, tracer)
        self._server_names: NoteServerName | None = None
        self._certificates: Certificates | None = None
        self._devices: CertifiedDevices | None = None
        self._data = data
        self._checked_at = 0.0

    async def start(self) -> dict[str, tuple[str, int]]:
        """Listen on the configured endpoints. Return name -> (host, port). Raises ListenError."""
        bound = {}
        for listener in self._listeners:
            self._around[listener.name].load()
            certificates = self.certificates(listener.name) if listener.tls else None
            bound[listener.name] = await self.by_name[listener.name].start(
                listener.endpoint.host,
                listener.endpoint.port,
                certificates,
                handshake_s=self._configuration.limits.handshake_s,
            )
            protocol = "HTTP" if listener.websocket else listener.protocol.value
            port = bound[listener.name][1]
            self.wrong_port.add_listener(listener.name, port, protocol=protocol, tls=listener.tls)
        return bound

    async def stop(self) -> None:
        """Stop accepting and close every connection."""
        for listener in self.by_name.values():
            await listener.stop()
        if self._certificates is not None:
            self._certificates.close()

    def note_server_names(self, note: NoteServerName | None) -> None:
        """Call `note` with the server name of each handshake from now on; None: ignore them."""
        self._server_names = note
        if self._certificates is not None:
            self._certificates.note_server_names(note)

    def certificates(self, name: str) -> Certificates:
        """Return the certificates of all listeners with TLS, read once. Raises ListenError."""
        if self._configuration.tls is None:
            raise ListenError(f"{name}: no certificate configured: set tls")
        if self._certificates is None:
            try:
                tls = self._configuration.tls
                self._certificates = Certificates(tls, data=self._data)
            except TlsError as error:
                raise ListenError(f"{name}: {error}") from error
            self._certificates.note_server_names(self._server_names)
            if self._devices is not None:
                self._certificates.admit_devices(self._devices)
        return self._certificates

    def admit_devices(self, devices: CertifiedDevices) -> None:
        """Trust the authorities of these devices for client certificates too. Call it before `start`."""
        self._devices = devices

    def check_certificates(self, now: float) -> None:
        """Read changed certificate files, at most every `limits.CERTIFICATES_CHECK_S`."""
        if self._certificates is not None and now - self._checked_at >= CERTIFICATES_CHECK_S:
            self._checked_at = now
            self._certificates.check()

    @property
    def certificate_trouble(self) -> str | None:
        """Why the current certificate files are not in use; None if they are, or without TLS."""
        return self._certificates.trouble if self._certificates is not None else None

    def follow(self, configuration: BrokerConfiguration) -> None:
        """Apply a changed TLS configuration while listening."""
        if self._certificates is not None and configuration.tls is not None:
            self._certificates.follow(configuration.tls)

    @property
    def revocations(self) -> ClientRevocations | None:
        """Revoked client certificates; None without TLS."""
        return self._certificates.revocations if self._certificates is not None else None

    @property
    def status_settings(self) -> ClientOcsp | None:
        """OCSP of client certificates in force; None without it."""
        status = self._certificates.status if self._certificates is not None else None
        return status.settings if status is not None else None

    @property
    def status_trouble(self) -> str | None:
        """Why the last request about a client certificate had no usable response; None if it had, or without OCSP."""
        status = self._certificates.status if self._certificates is not None else None
        return status.trouble if status is not None else None

    @property
    def refused(self) -> int:
        """Connections refused at a limit since the start."""
        return sum(listener.refused for listener in self.by_name.values())

    def drivers(self) -> Iterator[ConnectionDriver]:
        """Yield the drivers of all open connections."""
        for listener in self.by_name.values():
            yield from listener.drivers

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return sum(len(listener.drivers) for listener in self.by_name.values())

    @property
    def amqp_connections(self) -> int:
        """Number of open AMQP connections, over all listeners."""
        names = [listener.name for listener in self._listeners if listener.protocol is Protocol.AMQP]
        return sum(len(self.by_name[name].drivers) for name in names)

    # --- inside -------------------------------------------------------------------------------------------------

    def _serve(
        self, drivers: Drivers, around: Frames | PlainFrames, meter: MemoryMeter, gone: Gone, identity: str | None
    ) -> ConnectionDriver | None:
        admission = self._admission
        if not admission.has_slot(self.connections) and not admission.make_room():
            return None
        return drivers.serve(gone, identity, partial(around.around, identity=identity), meter)

    def _refuse(
        self, drivers: Drivers, around: Frames | PlainFrames, gone: Gone, identity: str | None
    ) -> ConnectionDriver | None:
        being_refused = sum(len(listener.refusing) for listener in self.by_name.values())
        if being_refused >= TURNED_AWAY_MAX:
            return None
        return drivers.refuse(gone, partial(around.around, identity=identity))


def _cost_bytes(listener: Listener) -> int:
    """Return the memory of an idle connection of this listener."""
    cost = AMQP_CONNECTION_BYTES if listener.protocol is Protocol.AMQP else MQTT_CONNECTION_BYTES
    cost += TLS_CONNECTION_BYTES if listener.tls else 0
    return cost + (WEBSOCKET_CONNECTION_BYTES if listener.websocket else 0)
