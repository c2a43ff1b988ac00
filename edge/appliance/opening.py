"""`waypost open`: sign in to the console of a gateway or hub with a link that works once."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from bridge.resources.endpoint import ListenEndpoint, authority
from edge.appliance.identity.own_certificate import fingerprint, lan_address
from edge.appliance.running import token_of
from edge.broker.listeners.endpoints import running_endpoints
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from edge.output.text import word
from edge.remote.client import ConsoleClient, Login
from edge.remote.trust import tls_context

_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set where a browser can open a window, or that name the browser."""
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound to
_CONSOLES: Final = (("http", "http"), ("https", "https"))
"""Listeners with a console, and their schemes."""


class ConsoleAddresses(NamedTuple):
    """URLs of one console."""

    here: str
    """For this machine."""
    elsewhere: str | None
    """For other machines; None if they cannot reach it."""


@click.command("open")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Data directory of the running gateway or hub.",
)
@click.option("--qr", "draws", is_flag=True, help="Draw the link as a QR code in the terminal, for a phone.")
@click.option("--print", "prints", is_flag=True, help="Print the link instead of opening it.")
def open_console(data: Path, draws: bool, prints: bool) -> None:
    """Open the console, signed in as operator. The gateway or hub has to run on this machine.

    The link works once, within a minute. Without a display it is printed, for a browser on another machine. Run this as
    the user the gateway or hub runs as: who can read its data directory may do everything.

    \b
    With a phone in the same network:
      waypost open --data ./gw1 --qr
    """
    console = find_console(data)
    shows = draws or prints or not any(os.environ.get(name) for name in _DISPLAYS)
    if draws and console.elsewhere is None:
        hint = "add one: spec.listeners.https of its Gateway resource, for example 0.0.0.0:8444"
        raise CommandError(
            "no other machine can reach this console: it has no listener for them", hint=hint, error="no-console"
        )
    fragment = _fragment(console.here, data)
    url = f"{console.elsewhere if shows and console.elsewhere is not None else console.here}/{fragment}"
    if draws:
        draw_code(url)
    if shows or not _opened(url):
        say(url)
    if fragment:
        say("the link works once, within a minute", style="dim", err=True)
    if url.startswith("https"):
        say(f"SHA-256 fingerprint of its certificate: {_fingerprint(url)}", style="dim", err=True)


def reachable_url(scheme: str, endpoint: ListenEndpoint) -> str:
    """Return the URL of a listener for other machines: with this machine's address if it listens on all."""
    host = endpoint.host
    if host in _ANY:
        host = lan_address() or socket.gethostname()
    return f"{scheme}://{authority(host, endpoint.port)}"


def find_console(data: Path) -> ConsoleAddresses:
    """Return the addresses of the console of a data directory. Raises CommandError."""
    listening = running_endpoints(data)
    if listening is None:
        hint = f"start it: waypost run --data {word(data)}, or waypost hub run --data {word(data)}"
        raise CommandError(f"no gateway or hub runs on {data}", hint=hint, code=Exit.UNREACHABLE, error="not-running")
    here = [f"{scheme}://{listening[name].from_here}" for name, scheme in _CONSOLES if name in listening]
    if not here:
        hint = "add one: spec.listeners.http of its Gateway resource, or --http of `waypost run`"
        raise CommandError(
            f"the gateway of {data} has no HTTP listener, and so no console", hint=hint, error="no-console"
        )
    return ConsoleAddresses(here[0], _elsewhere(listening))


def _elsewhere(listening: Mapping[str, ListenEndpoint]) -> str | None:
    """Return the address for other machines, with TLS if there is one."""
    for name, scheme in reversed(_CONSOLES):
        if name in listening and not listening[name].loopback:
            return reachable_url(scheme, listening[name])
    return None


def _fragment(url: str, data: Path) -> str:
    """Return the part of the link that signs in; empty without authentication. Raises CommandError."""
    client = operator_client(url, data)
    if client.ask("session")["open"]:
        return ""
    return f"#link={client.ask('session/link', method='POST')['code']}"


def operator_client(url: str, data: Path) -> ConsoleClient:
    """Return the client of a console on this machine, with the operator token. Raises CommandError.

    It accepts any certificate: the process that holds the lock of the data directory has written the address, on this
    machine. Plain HTTP proves as little.
    """
    return ConsoleClient(url, Login(token_of(data)), context=tls_context(pinned=True))


def _fingerprint(url: str) -> str:
    """Return the fingerprint of the certificate at a URL. Raises CommandError."""
    parts = urlsplit(url)
    try:
        pem = ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=5.0)
    except OSError as error:
        raise CommandError(f"{url}: {error}", code=Exit.UNREACHABLE, error="unreachable") from None
    return fingerprint(ssl.PEM_cert_to_DER_cert(pem))


def _opened(url: str) -> bool:
    """Open the link in a browser. Return False if there is none."""
    return webbrowser.open(url)


def draw_code(url: str) -> None:
    """Draw a QR code (ISO/IEC 18004) in the terminal. Raises CommandError."""
    try:
        import segno  # noqa: PLC0415 - for this option only
    except ImportError:
        raise CommandError(
            "this needs the Python package segno, which is not installed", hint="use --print", error="package-missing"
        ) from None
    segno.make_qr(url, error="l").terminal(out=sys.stdout, compact=True)
