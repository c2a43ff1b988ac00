"""`waypost hub`: commands of the cloud side. What is heavy is imported when a command runs, so that help is quick."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud.hub.usage import UsageProblem
from cloud.hub.users_cli import user
from cloud.place.option import PlaceOption
from cloud.place.place import Place, parse

if TYPE_CHECKING:
    from bridge.resources.endpoint import ListenEndpoint
    from cloud.hub.configuration import Settings
    from cloud.hub.enrolment.est import EstServer

AMQP_DEFAULT, HTTP_DEFAULT = "127.0.0.1:5673", "127.0.0.1:8081"
"""One above the gateway's own ports, so that both run on one machine."""
AMQPS_DEFAULT, HTTPS_DEFAULT = "0.0.0.0:5671", "0.0.0.0:8443"
"""The registered port of AMQP over TLS, and the usual one of HTTPS without a privilege."""

UNREACHABLE = 3
"""Exit code: a server the hub needs does not answer."""


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
@click.option(
    "--lake",
    metavar="PLACE",
    type=PlaceOption(),
    help="Where the lake is: a folder, or s3://BUCKET/FOLDER (credentials in the environment); DATA/lake unless given.",
)
@click.option("--dev", is_flag=True, help="Loopback only, any gateway, tenant `default`.")
@click.option(
    "--amqp",
    metavar="HOST:PORT",
    help=f"Where gateways connect and enrol, with TLS; {AMQPS_DEFAULT} unless given (--dev: {AMQP_DEFAULT}, no TLS).",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help=f"Where console, API and metrics are; {HTTPS_DEFAULT} unless given (--dev: {HTTP_DEFAULT}, no TLS).",
)
@click.option(
    "--name",
    "names",
    metavar="HOST",
    multiple=True,
    help="A name or address gateways reach this hub under, beside this machine's own; repeatable.",
)
def run(
    data: Path,
    config_path: Path | None,
    lake: Place | None,
    dev: bool,
    amqp: str | None,
    http: str | None,
    names: tuple[str, ...],
) -> None:
    """Receive messages from gateways and write them to the lake.

    Gateways are let in by the certificate they got when they enrolled: `waypost fleet token create` makes the token for
    it. The first start makes the authority of these certificates, DATA/authority; keep a copy of it in a safe place.

    Port 0 picks a free one. When it serves, one line on stdout says where: `ready amqps=HOST:PORT https=HOST:PORT`
    (with --dev `amqp` and `http`).
    SIGTERM lands what has been gathered, acknowledges it, and ends with 0.
    """
    from bridge.resources.endpoint import valid_host
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.configuration import Settings, load
    from cloud.hub.enrolment.files import Enroller, own_names
    from cloud.hub.memory import keep_pandas_out
    from cloud.hub.server import HubConfiguration, HubError
    from cloud.hub.server import run as serve
    from edge.output.logs import write_to_stderr

    try:
        settings = load(config_path) if config_path is not None else Settings()
        amqp_endpoint = _place(amqp, settings.amqp, AMQP_DEFAULT if dev else AMQPS_DEFAULT)
        http_endpoint = _place(http, settings.http, HTTP_DEFAULT if dev else HTTPS_DEFAULT)
        given = [valid_host(name) for name in (*names, *settings.names)]
        lake = lake if settings.lake is None or lake is not None else parse(settings.lake)
    except (ConfigurationRejected, ValueError) as error:
        raise UsageProblem(str(error)) from error
    for endpoint in (amqp_endpoint, http_endpoint):
        if dev and not endpoint.loopback:
            raise UsageProblem(f"--dev needs no credentials, so it listens on loopback only, and {endpoint} is not")
    write_to_stderr(logging.INFO)
    keep_pandas_out()
    try:
        tls = settings.tls
        enroller = None
        if not dev and tls is None:
            life_s = settings.certificate_days * 86_400.0
            own, est = [*given, *own_names()], _est_server(settings)
            enroller = Enroller(settings.authority_files, own, life_s, settings.ocsp_url, est)
        gather_ms, registry = settings.gather_milliseconds, settings.registry
        quotas, oidc = settings.quotas, settings.oidc
        configuration = HubConfiguration(
            data, amqp_endpoint, http_endpoint, dev, gather_ms, registry, tls, enroller, quotas, lake, oidc
        )
        serve(configuration, partial(_ready, "" if dev else "s"))
    except HubError as error:
        problem = UsageProblem(str(error))
        problem.exit_code = UNREACHABLE if error.unreachable else problem.exit_code  # type: ignore[misc]
        raise problem from error


def _est_server(settings: Settings) -> EstServer | None:
    try:
        return settings.est_server
    except OSError as error:
        raise UsageProblem(f"est: passwordFile {error.filename}: {error.strerror}") from error


@hub.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="Configuration (YAML).")
def check(config_path: Path) -> None:
    """Check a configuration: the file, its certificates, its registry. Nothing is changed, and nothing listens."""
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.check import check as look
    from cloud.hub.configuration import read
    from cloud.hub.registry.faults import RegistryUnreachable

    try:
        lines = look(read(config_path))
    except ConfigurationRejected as error:
        raise UsageProblem(str(error)) from error
    except RegistryUnreachable as error:
        problem = UsageProblem(str(error))
        problem.exit_code = UNREACHABLE  # type: ignore[misc]
        raise problem from error
    for line in lines:
        click.echo(line)
    click.echo(f"{config_path}: nothing is wrong with it")


@hub.command()
def schema() -> None:
    """Print the JSON schema of a hub's configuration, for editors."""
    from bridge.resources.completion import json_schema
    from cloud.hub.configuration import KINDS
    from edge.output.terminal import say_json

    say_json(json_schema(KINDS))


def _place(option: str | None, setting: ListenEndpoint | None, default: str) -> ListenEndpoint:
    """Where to listen: as the option says, else the configuration. Raises `ValueError`."""
    from bridge.resources.endpoint import ListenEndpoint

    return setting if option is None and setting is not None else ListenEndpoint.parse(option or default)


def _ready(secure: str, amqp: ListenEndpoint, http: ListenEndpoint) -> None:
    click.echo(f"ready amqp{secure}={amqp} http{secure}={http}")
    sys.stdout.flush()
