"""`waypost edge init`: make a data directory, say what a first gateway needs, and name the next command."""

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
from edge.appliance.initial.defaults import AMQP, HTTP, MQTT


@click.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Data directory to make.")
@click.option("--name", help="Name of the gateway.  [default: name of this machine]")
@click.option("--mqtt", metavar="HOST:PORT", help=f"Where devices connect with MQTT, or none.  [default: {MQTT}]")
@click.option("--amqp", metavar="HOST:PORT", help=f"The same with AMQP 1.0.  [default: {AMQP}]")
@click.option("--http", metavar="HOST:PORT", help=f"Console, status and HTTP API, or none.  [default: {HTTP}]")
@click.option("--hub", "hubs", metavar="URL", multiple=True, help=HUB_HELP + " Needs --forward.")
@click.option("--proxy", metavar="URL", envvar=PROXY_VARIABLE, help=PROXY_HELP)
@click.option("--token", envvar=ENROL_VARIABLE, help=f"Enrol at the hub with this. {ENROL_HELP}")
@click.option("--token-file", type=click.File(), help=ENROL_FILE_HELP)
@click.option("--forward", "filters", metavar="FILTER", multiple=True, help="What goes to the hub; repeatable.")
@click.option("--systemd", is_flag=True, help="Also write a systemd unit, and say how to enable it.")
def init(
    data: Path,
    name: str | None,
    mqtt: str | None,
    amqp: str | None,
    http: str | None,
    hubs: tuple[str, ...],
    proxy: str | None,
    filters: tuple[str, ...],
    token: str | None,
    token_file: TextIO | None,
    systemd: bool,
) -> None:
    """Make a data directory for a first gateway: its store, its resources, and on request a systemd unit.

    On a terminal it asks for what no option says; each question has an answer that will do. Clients need credentials,
    which `waypost device add` gives them. Without a terminal and without options only the empty store is made.

    \b
    A gateway that sends what is below plant/ to a hub:
      export WAYPOST_TOKEN=wpt1...
      waypost edge init --data ./gw1 --name gw1 --hub amqps://hub.example:5671 --forward 'plant/#'
    The same where a firewall lets only HTTPS out, through a proxy:
      … --hub amqps://hub.example:5671 --hub wss://hub.example:443 --proxy http://proxy.example:3128
    """
    from edge.appliance.initial.making import InitOptions, make

    told = InitOptions(
        name=name,
        mqtt=mqtt,
        amqp=amqp,
        http=http,
        hub=hubs,
        forward=filters,
        token=token_of(token, token_file),
        proxy=proxy,
    )
    make(data, told, systemd=systemd)
