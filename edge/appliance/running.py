"""The console that a command talks to: a gateway on this machine, an address, or the context in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.appliance.initial.defaults import HTTP
from edge.output.errors import CommandError, Exit
from edge.output.text import word

if TYPE_CHECKING:
    from edge.remote.client import ConsoleClient

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False, readable=False),
    help="Data directory of the gateway. Its operator token is used to log in.",
)
http_option = click.option(
    "--http",
    metavar="HOST:PORT|URL",
    help="Address of its console.  [default: from --data, else of the context in use, else 127.0.0.1:8080]",
)


def gateway_client(data: Path | None, http: str | None) -> ConsoleClient:
    """Return the client of a gateway: of the given address, of the gateway on the data directory, of the context in
    use, or of the default address. Raises CommandError."""
    # here, as `waypost run` takes the options of this module and asks no console: http.client and email take 1 MiB
    from edge.remote import contexts
    from edge.remote.client import ConsoleClient, Login
    from edge.remote.session import client_of, parse_url

    if http is not None:
        url = parse_url(http, "--http")
        return client_of(url) if data is None else ConsoleClient(url, Login(token_of(data)))
    used = contexts.read().used
    if data is None and used is not None and used.url and used.role != "hub":
        return client_of(used.url)
    url = f"http://{HTTP if data is None else _console_of(data)}"
    return ConsoleClient(url, Login(token_of(data)))


def token_of(data: Path | None) -> str | None:
    """Return the operator's token of a data directory. Raises CommandError."""
    from edge.broker.security.operator_token import OperatorTokenError, read_token

    try:
        return None if data is None else read_token(data)
    except OperatorTokenError as error:
        raise CommandError(str(error), error="operator-token-not-readable") from None


def _console_of(data: Path) -> str:
    """Return the console's address of the gateway on a data directory, as seen from this machine.

    Raises CommandError.
    """
    from edge.broker.listeners.endpoints import running_endpoints
    from edge.broker.store.lock import LOCK_NAME, is_held

    listening = running_endpoints(data)
    if listening is not None and "http" in listening:
        return str(listening["http"].from_here)
    if listening is not None:
        hint = "add one: spec.listeners.http of its Gateway resource, or --http of `waypost run`"
        raise CommandError(f"the gateway of {data} has no HTTP listener, and so no console", hint, error="no-console")
    if not is_held(data) and (os.access(data / LOCK_NAME, os.R_OK) or not (data / LOCK_NAME).exists()):
        hint = f"start it: waypost run --data {word(data)}"
        raise CommandError(f"no gateway runs on {data}", hint, code=Exit.UNREACHABLE, error="not-running")
    return _configured_console(data) or HTTP


def _configured_console(data: Path) -> str | None:
    """Return the console's address in the applied configuration of a data directory; None without a fixed port."""
    from edge.configuration.effective import build_configuration
    from edge.configuration.file import RepositoryError
    from edge.configuration.repository import Repository

    try:
        endpoint = build_configuration(Repository(data).load().resources).endpoint("http")
    except RepositoryError as error:
        raise CommandError(str(error), error="configuration-not-readable") from None
    return None if endpoint is None or not endpoint.port else str(endpoint.from_here)
