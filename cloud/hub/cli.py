"""`waypost hub`: commands of the cloud side. What is heavy is imported when a command runs, so that help is quick."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge import native
from cloud.hub.usage import UsageProblem
from cloud.hub.users_cli import user

if TYPE_CHECKING:
    from bridge.resources.endpoint import Endpoint

AMQP_DEFAULT, HTTP_DEFAULT = "127.0.0.1:5673", "127.0.0.1:8081"
"""One above the gateway's own ports, so that both run on one machine."""

UNREACHABLE = 3
"""Exit code: a server the hub needs does not answer."""

NEEDS_DEV = "without --dev a hub needs enrolled gateways and TLS, which this version does not have yet"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def hub() -> None:
    """Run the cloud side of gateways."""


hub.add_command(user)


@hub.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory of the registry and the lake.",
)
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration (YAML).")
@click.option("--dev", is_flag=True, help="Loopback only, any gateway, tenant `default`.")
@click.option("--amqp", metavar="HOST:PORT", help=f"Where gateways connect; {AMQP_DEFAULT} unless given.")
@click.option("--http", metavar="HOST:PORT", help=f"Where console, API and metrics are; {HTTP_DEFAULT} unless given.")
def run(data: Path, config_path: Path | None, dev: bool, amqp: str | None, http: str | None) -> None:
    """Receive messages from gateways and write them to the lake, DATA/lake.

    Port 0 picks a free one. When it serves, one line on stdout says where: `ready amqp=HOST:PORT http=HOST:PORT`.
    SIGTERM lands what has been gathered, acknowledges it, and ends with 0.
    """
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.configuration import Settings, load
    from cloud.hub.server import HubConfiguration, HubError
    from cloud.hub.server import run as serve
    from edge.output.logs import write_to_stderr

    try:
        settings = load(config_path) if config_path is not None else Settings()
        amqp_endpoint = _place(amqp, settings.amqp, AMQP_DEFAULT)
        http_endpoint = _place(http, settings.http, HTTP_DEFAULT)
    except (ConfigurationRejected, ValueError) as error:
        raise UsageProblem(str(error)) from error
    if not dev:
        raise UsageProblem(NEEDS_DEV, f"to try it on this machine: waypost hub run --data {data} --dev")
    for endpoint in (amqp_endpoint, http_endpoint):
        if not endpoint.loopback:
            raise UsageProblem(f"--dev needs no credentials, so it listens on loopback only, and {endpoint} is not")
    write_to_stderr(logging.INFO)
    native.report()
    try:
        gather_ms, registry = settings.gather_milliseconds, settings.registry
        serve(HubConfiguration(data, amqp_endpoint, http_endpoint, dev, gather_ms, registry, settings.tls), _ready)
    except HubError as error:
        problem = UsageProblem(str(error))
        problem.exit_code = UNREACHABLE if error.unreachable else problem.exit_code  # type: ignore[misc]
        raise problem from error


def _place(option: str | None, setting: Endpoint | None, default: str) -> Endpoint:
    """Where to listen: as the option says, else the configuration. Raises `ValueError`."""
    from bridge.resources.endpoint import Endpoint

    return setting if option is None and setting is not None else Endpoint.parse(option or default)


def _ready(amqp: Endpoint, http: Endpoint) -> None:
    click.echo(f"ready amqp={amqp} http={http}")
    sys.stdout.flush()
