"""`waypost init`: create a data directory with store, resources and unit, and show the next command."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from edge.appliance.identity.commands import (
    ENROL_FILE_HELP,
    ENROL_HELP,
    ENROL_VARIABLE,
    HUB_HELP,
    PROXY_HELP,
    PROXY_VARIABLE,
    token_of,
)
from edge.appliance.initial.defaults import AMQP, HTTP, HTTPS, MQTT


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Data directory to create."
)
@click.option("--name", help="Name of the gateway.  [default: name of this machine]")
@click.option("--mqtt", metavar="HOST:PORT", help=f"Address for MQTT devices, or none.  [default: {MQTT}]")
@click.option("--amqp", metavar="HOST:PORT", help=f"Address for AMQP 1.0 clients, or none.  [default: {AMQP}]")
@click.option(
    "--http", metavar="HOST:PORT", help=f"Address of console, status and HTTP API, or none.  [default: {HTTP}]"
)
@click.option(
    "--https",
    metavar="HOST:PORT",
    help=f"The same over TLS, for other machines, or none.  [default: {HTTPS}, none if the others are loopback]",
)
@click.option("--hub", "hubs", metavar="URL", multiple=True, help=HUB_HELP + " Needs --forward.")
@click.option("--proxy", metavar="URL", envvar=PROXY_VARIABLE, help=PROXY_HELP)
@click.option("--token", envvar=ENROL_VARIABLE, help=f"Enrol at the hub. {ENROL_HELP}")
@click.option("--token-file", type=click.File(), help=ENROL_FILE_HELP)
@click.option("--forward", "filters", metavar="FILTER", multiple=True, help="Topics to forward to the hub; repeatable.")
@click.option("--systemd", is_flag=True, help="Also write a systemd unit, and show how to enable it.")
def init(
    data: Path,
    name: str | None,
    mqtt: str | None,
    amqp: str | None,
    http: str | None,
    https: str | None,
    hubs: tuple[str, ...],
    proxy: str | None,
    filters: tuple[str, ...],
    token: str | None,
    token_file: TextIO | None,
    systemd: bool,
) -> None:
    """Create the data directory of a gateway. It gets a store, resources, and on request a systemd unit.

    On a terminal it asks for settings without an option; each question has a usable default. Clients need credentials
    from `waypost user add`. Without a terminal and without options only the empty store is created.

    \b
    A gateway that forwards topics below plant/ to a hub:
      export WAYPOST_TOKEN=wpt1...
      waypost init --data ./gw1 --name gw1 --hub amqps://hub.example:5671 --forward 'plant/#'
    The same where a firewall allows only HTTPS, through a proxy:
      … --hub amqps://hub.example:5671 --hub wss://hub.example:443 --proxy http://proxy.example:3128
    """
    from edge.appliance.initial.creation import InitOptions, make

    options = InitOptions(
        name=name,
        mqtt=mqtt,
        amqp=amqp,
        http=http,
        https=https,
        hub=hubs,
        forward=filters,
        token=token_of(token, token_file),
        proxy=proxy,
    )
    make(data, options, systemd=systemd)
