"""HTTP listener of a hub."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator
from typing import NamedTuple

from starlette.types import ASGIApp

from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.listening import bind_all
from edge.broker.listeners.secure import Admit
from edge.broker.listeners.tcp import ListenError
from edge.broker.listeners.tls import Certificates
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.connection import Upgrade
from edge.broker.listeners.web.server import ServeError, WebServer
from edge.broker.listeners.wrong_port import WrongPortReporter


class Served(NamedTuple):
    """Running HTTP server."""

    endpoint: ListenEndpoint
    """Address it listens on."""
    admit: Admit
    """Accepts connections of another listener with clients that negotiated HTTP."""


@contextlib.asynccontextmanager
async def serve_http(
    app: ASGIApp,
    endpoint: ListenEndpoint,
    certificates: Certificates | None,
    upgrade: Upgrade,
    wrong_port: WrongPortReporter,
) -> AsyncIterator[Served]:
    """Serve the application while the context lasts, with TLS if there are certificates.

    `upgrade` gets connections that ask for WebSocket; `wrong_port` learns the HTTP port. Raises `ListenError`.

    A client certificate names a gateway and authenticates no user: names of gateways and of users are separate.
    """
    try:
        sockets = bind_all(endpoint.host, endpoint.port)
    except OSError as error:
        why = "the port is in use; stop the other program or choose another port (0 picks a free one)"
        reason = why if error.errno == errno.EADDRINUSE else error.strerror
        raise ListenError(f"http: cannot listen on {endpoint}: {reason}") from error
    host, port = sockets[0].getsockname()[:2]
    wrong_port.add_listener("http", port, protocol="HTTP", tls=certificates is not None)
    web = WebServer(
        app,
        [BoundSocket(each, certificates) for each in sockets],
        identify=lambda _certificate: None,
        upgrade=upgrade,
        wrong_port=wrong_port,
    )
    try:
        await web.start()
        yield Served(ListenEndpoint(host, port), lambda _identity: web.admit_secure(None))
    except ServeError as error:
        raise ListenError(f"http: {error}") from error
    finally:
        await web.stop()
