"""Steps of a connection to a peer, one by one: name resolution, TCP, TLS, sign-in.

`waypost doctor` reports the last step of each endpoint; the console shows all of them as they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final

from bridge.connecting import Streams, socket_to, streams_over
from bridge.dialer import AttemptError, PeerEndpoint
from bridge.engine import Closed, Engine, PeerOpened
from bridge.enrolment import ALPN
from bridge.hub_addresses import PROBE_SUFFIX
from bridge.socket_attempt import framed
from bridge.tls_refusal import refusal
from bridge.transport.connection import ConnectionMachine
from edge.appliance.doctor.check import CheckContext, CheckResult, fail, ok
from edge.broker.configuration import Connector, ConnectorType
from edge.broker.router.connector_types import credentials_of
from edge.broker.security.peer_tls import PeerTlsError, peer_context

READ_BYTES: Final = 65_536
NAME, TCP, TLS, SIGN_IN = "name resolution", "TCP", "TLS", "sign-in"
"""Names of the steps."""

TellStep = Callable[[str, CheckResult], None]
"""Takes the name of a step and its result."""


class _StepFailed(Exception):
    """A step failed; the following ones are not tried."""

    def __init__(self, step: str, result: CheckResult) -> None:
        super().__init__(result.seen)
        self.step = step
        self.result = result


def _ignore_step(_step: str, _result: CheckResult) -> None:
    """Ignore a result."""


async def reach(
    context: CheckContext, connector: Connector, endpoint: PeerEndpoint, tell: TellStep = _ignore_step
) -> CheckResult:
    """Try the steps of a connection to an endpoint, and pass the result of each to `tell`. Return the last one, which
    is the first failure."""
    check = _EndpointCheck(context, connector, endpoint, tell)
    try:
        await check.run()
    except _StepFailed as failed:
        check.tell(failed.step, failed.result)
    return check.last


class _EndpointCheck:
    """Check of one endpoint of a connector."""

    def __init__(self, context: CheckContext, connector: Connector, endpoint: PeerEndpoint, tell: TellStep) -> None:
        self.last = ok(f"uplink {connector.name}", "nothing was tried")
        self._context = context
        self._limit = context.timeout_s
        self._connector = connector
        self._endpoint = endpoint
        self._tell = tell

    def tell(self, step: str, result: CheckResult) -> None:
        """Pass on a result, and keep it as the last one."""
        self.last = result
        self._tell(step, result)

    async def run(self) -> None:
        """Do all steps. Raises _StepFailed. Only AMQP peers are signed in to: others allow a client only once."""
        connector = self._connector
        place = await self._resolve()
        tls_context = await self._tls_context()
        opened = await self._connect(place)
        streams = await self._secure(place, opened, tls_context)
        try:
            if connector.type in (ConnectorType.WAYPOST, ConnectorType.AMQP):
                self.tell(SIGN_IN, await self._sign_in(place, streams))
        finally:
            streams.writer.close()
            with contextlib.suppress(OSError, TimeoutError):  # how the peer closes is not checked
                async with asyncio.timeout(self._limit):
                    await streams.writer.wait_closed()

    async def _resolve(self) -> str:
        """Resolve the peer's name, or that of the proxy; return the endpoint for people."""
        name, proxy, endpoint = f"uplink {self._connector.name}", self._connector.proxy, self._endpoint
        host, port = (endpoint.host, endpoint.port) if proxy is None else (proxy.host, proxy.port)
        try:
            async with asyncio.timeout(self._limit):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            step = "check the name, /etc/resolv.conf, and that the network is up"
            seen = f"{host} cannot be resolved: {_reason_of(error, self._limit)}"
            raise _StepFailed(NAME, fail(name, seen, step)) from None
        address = found[0][4][0]
        self.tell(NAME, ok(name, f"{host} is an address" if _is_address(host) else f"{host} is {address}"))
        bare = endpoint.authority if endpoint.path is None else str(endpoint)
        return f"{bare} ({address})" if proxy is None else f"{bare} through the proxy {proxy.place}"

    async def _tls_context(self) -> ssl.SSLContext | None:
        name = f"uplink {self._connector.name}"
        if self._connector.tls is None:
            return None
        try:
            made = await asyncio.to_thread(peer_context, self._connector.tls)
        except PeerTlsError as error:
            raise _StepFailed(TLS, fail(name, str(error), "see the certificates: waypost doctor")) from None
        if self._endpoint.path is not None:
            made.set_alpn_protocols([ALPN])
        return made

    async def _connect(self, place: str) -> socket.socket:
        connector, endpoint, loop = self._connector, self._endpoint, asyncio.get_running_loop()
        name, began = f"uplink {connector.name}", loop.time()
        try:
            async with asyncio.timeout(self._limit):
                opened = await socket_to(endpoint.host, endpoint.port, connector.interface, connector.proxy)
        except AttemptError as error:
            step = "see proxy and interface of the connector"
            raise _StepFailed(TCP, fail(name, f"{place} cannot be reached: {error}", step)) from None
        except (OSError, TimeoutError) as error:
            step = "check that the peer runs, the port is right, and no firewall blocks it"
            seen = f"{place} cannot be reached: {_reason_of(error, self._limit)}"
            raise _StepFailed(TCP, fail(name, seen, step)) from None
        self.tell(TCP, ok(name, f"{place} answers in {_ms(loop.time() - began)}"))
        return opened

    async def _secure(self, place: str, opened: socket.socket, tls_context: ssl.SSLContext | None) -> Streams:
        loop = asyncio.get_running_loop()
        name, began = f"uplink {self._connector.name}", loop.time()
        try:
            async with asyncio.timeout(self._limit):
                streams = await streams_over(opened, tls_context, self._endpoint.host)
        except (OSError, TimeoutError) as error:
            step = "check the certificates (authority, name, expiry) and this machine's clock"
            raise _StepFailed(TLS, fail(name, f"{place}: TLS failed: {_reason_of(error, self._limit)}", step)) from None
        if tls_context is None:
            self.tell(TLS, ok(name, "the connector has none: everything is sent unencrypted"))
        else:
            self.tell(TLS, ok(name, f"{_tls_of(streams.writer)}, in {_ms(loop.time() - began)}"))
        return streams

    async def _sign_in(self, place: str, streams: Streams) -> CheckResult:
        """Open an AMQP connection as the uplink does, under a separate name, and close it."""
        context, connector, endpoint = self._context, self._connector, self._endpoint
        name = f"uplink {connector.name}"
        container = f"{connector.container or context.configuration.gateway or 'waypost'}{PROBE_SUFFIX}"
        engine = Engine(container_id=container, server=False, hostname=endpoint.host, sasl=credentials_of(connector))
        engine.open()
        frames = framed(engine, endpoint) if endpoint.path is not None else None
        machine: ConnectionMachine = engine if frames is None else frames
        loop, peer = asyncio.get_running_loop(), None
        began = loop.time()
        try:
            async with asyncio.timeout(self._limit):
                while True:
                    streams.writer.write(machine.data_to_send())
                    await streams.writer.drain()
                    data = await streams.reader.read(READ_BYTES)
                    events = machine.receive_data(data, loop.time()) if data else machine.receive_eof(loop.time())
                    for event in events:
                        if isinstance(event, PeerOpened):
                            peer = event.container_id
                            engine.close()
                        elif isinstance(event, Closed):
                            return _ended(name, place, peer, event, loop.time() - began)
                    if frames is not None and frames.refused:
                        step = "check that it is the hub's HTTPS port, and that no proxy in between terminates TLS"
                        return fail(name, f"{place}: {frames.refused}", step)
                    if not data:
                        return fail(name, f"{place}: the peer closed the connection", "see the peer's log")
        except (OSError, TimeoutError) as error:
            if peer is not None:
                return ok(name, f"{place} opens AMQP as {peer}")
            step = "check that the peer speaks AMQP 1.0 there, with or without TLS as configured"
            return fail(name, f"{place}: no AMQP connection: {_reason_of(error, self._limit)}", step)


def _ended(name: str, place: str, peer: str | None, event: Closed, seconds: float) -> CheckResult:
    if peer is not None and event.condition is None:
        return ok(name, f"{place} opens AMQP as {peer} in {_ms(seconds)}")
    condition = event.condition
    reason = "no reason given" if condition is None else condition.description or condition.name
    step = "check user, password or certificate, and the rights of this gateway at the peer"
    return fail(name, f"{place}: AMQP refused: {reason}", step)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _tls_of(writer: asyncio.StreamWriter) -> str:
    """Return the version of TLS, and until when the peer's certificate is valid."""
    found: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    version = (found.version() if found is not None else None) or "TLS"
    ends = (found.getpeercert() or {}).get("notAfter") if found is not None else None
    return f"{version}, the peer's certificate is valid until {ends}" if ends else version


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _reason_of(error: BaseException, limit_s: float) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer in {limit_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if (refused := refusal(error)) is not None:
        return refused
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
