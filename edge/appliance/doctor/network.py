"""Checks of listening ports, and of each peer (`edge.appliance.doctor.reach`)."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import Final

import psutil

from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.doctor.check import CheckContext, CheckResult, fail, ok, warn
from edge.appliance.doctor.reach import reach
from edge.broker.router.peer_connector import dialed

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
            yield asyncio.run(reach(context, connector, endpoint))
