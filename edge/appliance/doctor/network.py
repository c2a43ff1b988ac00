"""Checks of listening ports, and of each peer step by step: name, TCP, TLS, AMQP."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import psutil

from bridge.connecting import socket_to, streams_over
from bridge.dialer import AttemptError, PeerEndpoint
from bridge.engine import Closed, Engine, PeerOpened
from bridge.enrolment import ALPN
from bridge.hub_addresses import PROBE_SUFFIX
from bridge.resources.endpoint import ListenEndpoint
from bridge.socket_attempt import framed
from bridge.tls_refusal import refusal
from bridge.transport.connection import ConnectionMachine
from edge.appliance.doctor.check import CheckContext, CheckResult, fail, ok, warn
from edge.broker.configuration import Connector
from edge.broker.router.connector_types import credentials_of
from edge.broker.router.peer_connector import dialed
from edge.broker.security.peer_tls import PeerTlsError, peer_context

READ_BYTES: Final = 65_536
PROXIES: Final = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


def ports(context: CheckContext) -> Iterator[CheckResult]:
    """Check that each port is free, or held by this gateway."""
    for listener in context.configuration.listeners:
        yield _port(context, f"port {listener.name}", listener.endpoint)


def _port(context: CheckContext, name: str, endpoint: ListenEndpoint) -> CheckResult:
    if endpoint.port == 0:
        return ok(name, f"{endpoint}: the system chooses one at the start")
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((endpoint.host, endpoint.port))
        except socket.gaierror as error:
            return fail(name, f"{endpoint}: {error.strerror}", "listen on an address of this machine, or 0.0.0.0")
        except OSError as error:
            return _bind_error_result(context, name, endpoint, error)
    if context.running:
        return warn(name, f"{endpoint} is free although the gateway runs", "check the options it was started with")
    return ok(name, f"{endpoint} is free")


def _bind_error_result(context: CheckContext, name: str, endpoint: ListenEndpoint, error: OSError) -> CheckResult:
    if error.errno == errno.EADDRNOTAVAIL:
        return fail(
            name, f"{endpoint.host} is not an address of this machine", "listen on one of its addresses, or on 0.0.0.0"
        )
    if error.errno == errno.EACCES:
        step = "choose a port above 1023, or allow it: sysctl net.ipv4.ip_unprivileged_port_start"
        return fail(name, f"{endpoint}: this user may not listen there", step)
    if error.errno != errno.EADDRINUSE:
        return fail(name, f"{endpoint}: {error.strerror}", "listen elsewhere")
    return _port_in_use_result(context, name, endpoint)


def _port_in_use_result(context: CheckContext, name: str, endpoint: ListenEndpoint) -> CheckResult:
    holder = _find_holder(endpoint.port)
    if holder is None:
        if context.running:
            return ok(name, f"{endpoint} is taken, and the gateway runs")
        step = f"find it as root: ss -ltnp 'sport = :{endpoint.port}'"
        return fail(name, f"{endpoint} is taken by another user's process", step)
    pid, command = holder
    if context.running and pid == _gateway(context):
        return ok(name, f"{endpoint} is held by the gateway (process {pid})")
    return fail(name, f"{endpoint} is taken by {command} (process {pid})", "stop it, or listen on another port")


def _find_holder(port: int) -> tuple[int, str] | None:
    """Return (process id, name) of the process that listens on a port; None when it is not visible to this user."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return connection.pid, psutil.Process(connection.pid).name()
    except (psutil.Error, OSError):
        return None
    return None


def _gateway(context: CheckContext) -> int | None:
    """Return the id of the process that holds the data directory, from its lock file."""
    try:
        return int((context.data / "store.lock").read_text()) if context.data is not None else None
    except (OSError, ValueError):
        return None


def uplinks(context: CheckContext) -> Iterator[CheckResult]:
    """Check each endpoint of each connector."""
    connectors = context.configuration.connectors
    proxies = sorted({name for name in PROXIES if context.environment.get(name)})
    if proxies and any(connector.proxy is None for connector in connectors):
        seen = f"{', '.join(proxies)} is set: a gateway ignores these variables"
        yield warn("proxy", seen, "set the proxy in the configuration: hub.proxy, or proxy of a connector")
    for connector in connectors:
        for endpoint in dialed(connector):
            yield asyncio.run(_reach(context, connector, endpoint))


async def _reach(context: CheckContext, connector: Connector, endpoint: PeerEndpoint) -> CheckResult:
    name = f"uplink {connector.name}"
    limit = context.timeout_s
    loop = asyncio.get_running_loop()
    proxy = connector.proxy
    host, port = (endpoint.host, endpoint.port) if proxy is None else (proxy.host, proxy.port)
    try:
        async with asyncio.timeout(limit):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        step = "check the name, /etc/resolv.conf, and that the network is up"
        return fail(name, f"{host} cannot be resolved: {_reason_of(error, limit)}", step)
    bare = endpoint.authority if endpoint.path is None else str(endpoint)
    place = f"{bare} ({found[0][4][0]})" if proxy is None else f"{bare} through the proxy {proxy.place}"
    tls_context: ssl.SSLContext | None = None
    if connector.tls is not None:
        try:
            tls_context = peer_context(connector.tls)
        except PeerTlsError as error:
            return fail(name, str(error), "see the certificates above")
        if endpoint.path is not None:
            tls_context.set_alpn_protocols([ALPN])
    try:
        async with asyncio.timeout(limit):
            opened = await socket_to(endpoint.host, endpoint.port, connector.interface, proxy)
    except AttemptError as error:
        return fail(name, f"{place} cannot be reached: {error}", "see proxy and interface of the connector")
    except (OSError, TimeoutError) as error:
        step = "check that the peer runs, the port is right, and no firewall blocks it"
        return fail(name, f"{place} cannot be reached: {_reason_of(error, limit)}", step)
    try:
        async with asyncio.timeout(limit):
            reader, writer = await streams_over(opened, tls_context, endpoint.host)
    except (OSError, TimeoutError) as error:
        step = "check the certificates (authority, name, expiry) and this machine's clock"
        return fail(name, f"{place}: TLS failed: {_reason_of(error, limit)}", step)
    try:
        return await _open(name, place, connector, endpoint, context, reader, writer)
    finally:
        writer.close()
        try:
            async with asyncio.timeout(limit):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # how the peer closes is not checked


async def _open(
    name: str,
    place: str,
    connector: Connector,
    endpoint: PeerEndpoint,
    context: CheckContext,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> CheckResult:
    """Open an AMQP connection as the uplink does, under a separate name, and close it."""
    container = f"{connector.container or context.configuration.gateway or 'waypost'}{PROBE_SUFFIX}"
    engine = Engine(container_id=container, server=False, hostname=endpoint.host, sasl=credentials_of(connector))
    engine.open()
    frames = framed(engine, endpoint) if endpoint.path is not None else None
    machine: ConnectionMachine = engine if frames is None else frames
    loop = asyncio.get_running_loop()
    peer = None
    began = loop.time()
    try:
        async with asyncio.timeout(context.timeout_s):
            while True:
                writer.write(machine.data_to_send())
                await writer.drain()
                data = await reader.read(READ_BYTES)
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
        return fail(name, f"{place}: no AMQP connection: {_reason_of(error, context.timeout_s)}", step)


def _ended(name: str, place: str, peer: str | None, event: Closed, seconds: float) -> CheckResult:
    if peer is not None and event.condition is None:
        return ok(name, f"{place} opens AMQP as {peer} in {seconds * 1000:.0f} ms")
    condition = event.condition
    reason = "no reason given" if condition is None else condition.description or condition.name
    step = "check user, password or certificate, and the rights of this gateway at the peer"
    return fail(name, f"{place}: AMQP refused: {reason}", step)


def _reason_of(error: BaseException, limit_s: float) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer in {limit_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if (refused := refusal(error)) is not None:
        return refused
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
