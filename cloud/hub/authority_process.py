"""Process `waypost hub authority`: the authority's service, and probes for an orchestrator."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.listening import bind_all
from cloud.hub.devices.page_signer import DevicePageSigner
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.enrolment.authority_service import AuthorityService
from cloud.hub.enrolment.signature_request import SigningRules
from cloud.hub.probes import Probes
from cloud.hub.registry.notices import ChangeNotices, NoticeTopic
from cloud.hub.stop_signals import StopSignals
from edge.broker.listeners.tcp import ListenError
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.server import ServeError, WebServer
from edge.health.data_owner import forbid_core_dumps
from edge.output.logs import unhandled

log = logging.getLogger(__name__)


class AuthoritySettings(NamedTuple):
    """Settings of the process."""

    authority: OwnAuthority
    registry: sa.URL
    rules: SigningRules
    http: ListenEndpoint
    """Address of the probes, without TLS: they show nothing."""


def run(settings: AuthoritySettings, ready: Callable[[ListenEndpoint], None]) -> None:
    """Sign until SIGTERM or SIGINT. `ready` is called with the address of the probes. Raises `RegistryError`,
    `ListenError`."""
    forbid_core_dumps()
    asyncio.run(_serve(settings, ready))


async def _serve(settings: AuthoritySettings, ready: Callable[[ListenEndpoint], None]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(unhandled)
    signals = StopSignals(stop, loop.time)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.arrived, number)
    notices = ChangeNotices(settings.registry)
    hint = notices.follow(NoticeTopic.SIGNATURES, NoticeTopic.REVOCATIONS)
    parts = (settings.authority, settings.registry, settings.rules, DevicePageSigner)
    service = AuthorityService(*parts, now=time.time, hint=hint)
    sockets = _bound(settings.http)
    web = WebServer(
        Probes(_no_pages, lambda: service.trouble),
        [BoundSocket(each, None) for each in sockets],
        identify=lambda _certificate: None,
    )
    host, port = sockets[0].getsockname()[:2]
    try:
        await web.start()
        await service.open()
        notices.start()
        ready(ListenEndpoint(host, port))
        await stop.wait()
        log.info("stopping: hubs of the registry get no signatures until another one runs")
    except ServeError as error:
        raise ListenError(f"http: {error}") from error
    finally:
        await notices.stop()
        await service.close()
        await web.stop()


def _bound(endpoint: ListenEndpoint) -> list[socket.socket]:
    """Bind the addresses of the probes. Raises `ListenError`."""
    try:
        return bind_all(endpoint.host, endpoint.port)
    except OSError as error:
        why = (
            "the port is in use; choose another one with --http" if error.errno == errno.EADDRINUSE else error.strerror
        )
        raise ListenError(f"http: cannot listen on {endpoint}: {why}") from error


async def _no_pages(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer everything else: enrolment is at the hubs."""
    if scope["type"] == "lifespan":
        await _accept_lifespan(receive, send)
        return
    words = "this process signs for the hubs of its registry; enrol at a hub\n"
    await PlainTextResponse(words, 404)(scope, receive, send)


async def _accept_lifespan(receive: Receive, send: Send) -> None:
    """Answer the start and the end of the server."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
