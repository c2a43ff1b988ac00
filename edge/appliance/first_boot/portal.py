"""Detect a network with a sign-in page (captive portal): it answers plain HTTP in place of the hub's host.

Only the hub's host is asked, so no other machine learns of the gateway.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

HTTP_PORT: Final = 80
ANSWER_S: Final = 5.0
"""Time limit of the connection, and of the answer: also of one that arrives byte by byte."""
PATH_BYTES: Final = 8
"""Random bytes of the requested path."""
_HOST: Final = re.compile(r"[a-z0-9._:-]{1,253}")
"""Host names and addresses; others are not shown."""


def find_portal(host: str, *, port: int = HTTP_PORT) -> str | None:
    """Return the host of the sign-in page of this network; None if nothing shows that it has one.

    `host`: the hub's. A network with a sign-in page answers for it, and redirects to another host, or shows its page
    for any path: then the host itself is returned. The path is random, so most web servers have no page there; one that
    answers each path with a page, as for a single-page application, looks like a sign-in page.
    """
    try:
        with (
            contextlib.closing(http.client.HTTPConnection(host, port, timeout=ANSWER_S)) as connection,
            _ended_in_time(connection) as late,
        ):
            connection.request("GET", f"/{secrets.token_hex(PATH_BYTES)}")
            answer = connection.getresponse()
            leads_to = urlsplit(answer.getheader("Location") or "").hostname or ""
    except (OSError, ValueError, http.client.HTTPException):
        return None
    if late.is_set():  # its headers may be cut
        return None
    if answer.status == HTTPStatus.NETWORK_AUTHENTICATION_REQUIRED:
        return leads_to if _HOST.fullmatch(leads_to) else host
    if answer.status == HTTPStatus.OK and (answer.getheader("Content-Type") or "").lower().startswith("text/html"):
        return host
    redirected = HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
    return leads_to if redirected and leads_to != host.lower() and _HOST.fullmatch(leads_to) else None


# --- inside -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ended_in_time(connection: http.client.HTTPConnection) -> Iterator[threading.Event]:
    """Connect, and end the connection after `ANSWER_S`; then the event is set. Raises OSError."""
    connection.connect()
    late, stream = threading.Event(), connection.sock

    def end() -> None:
        late.set()
        with contextlib.suppress(OSError):  # closed already
            stream.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ANSWER_S, end)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
