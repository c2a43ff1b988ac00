"""The console that a command for gateways and hubs talks to."""

from __future__ import annotations

from pathlib import Path

import click

from edge.appliance.here import Role, role_of
from edge.appliance.opening import find_console, operator_client
from edge.appliance.running import gateway_client
from edge.remote import contexts
from edge.remote.client import ConsoleClient
from edge.remote.session import client_of

node_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False, readable=False),
    help="Data directory of the gateway or hub. Its operator token is used to log in.",
)
node_address_option = click.option(
    "--http",
    "--hub",
    "http",
    metavar="HOST:PORT|URL|CONTEXT",
    help="Address of its console.  [default: from --data, else of the context in use, else 127.0.0.1:8080]",
)


def node_client(data: Path | None, http: str | None) -> ConsoleClient:
    """Return the client of a gateway or hub: of the given address, of the node on the data directory, of the context in
    use, or of a gateway at the default address. Raises CommandError."""
    if http is None and data is None:
        used = contexts.read().used
        if used is not None and used.url:
            return client_of(used.url)
    if http is None and data is not None and role_of(data) is Role.HUB:
        return operator_client(find_console(data).here, data)
    return gateway_client(data, http)
