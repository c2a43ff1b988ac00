"""`waypost hub`: commands of the hub. Heavy modules are imported when a command runs, so that `--help` is fast."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud.place.option import PlaceOption
from cloud.place.place import LakePlace, parse
from edge.output.errors import CommandError, Exit

if TYPE_CHECKING:
    from bridge.resources.endpoint import ListenEndpoint
    from cloud.hub.configuration import HubSettings
    from cloud.hub.enrolment.est import EstServer
    from cloud.hub.messaging.settings import BrokerSettings
    from cloud.hub.tap.topic_settings import TopicSettings

AMQP_DEFAULT, HTTP_DEFAULT = "127.0.0.1:5673", "127.0.0.1:8081"
"""One above the ports of a gateway, so that both run on one machine."""
AMQPS_DEFAULT, HTTPS_DEFAULT = "0.0.0.0:5671", "0.0.0.0:8443"
"""The registered port of AMQP over TLS, and the usual one of HTTPS without a privilege."""
PROBES_DEFAULT = "127.0.0.1:8082"
"""Next to the ports of a hub on one machine."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def hub() -> None:
    """Run a hub, and manage its users."""


@hub.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="Data directory, with the registry and the lake.",
)
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration (YAML).")
@click.option(
    "--lake",
    metavar="PLACE",
    type=PlaceOption(),
    help="Lake: a folder, or s3://BUCKET/FOLDER (credentials in the environment). Default: DATA/lake.",
)
@click.option("--dev", is_flag=True, help="Development: no TLS, no credentials, loopback only, tenant `default`.")
@click.option(
    "--amqp",
    metavar="HOST:PORT",
    help=f"Listener for gateways, with TLS. Default: {AMQPS_DEFAULT} (--dev: {AMQP_DEFAULT}, no TLS).",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help=f"Listener for console, API and metrics. Default: {HTTPS_DEFAULT} (--dev: {HTTP_DEFAULT}, no TLS).",
)
@click.option(
    "--name",
    "names",
    metavar="HOST",
    multiple=True,
    help="Name or address of this hub for gateways, in addition to the machine's own; repeatable.",
)
def run(
    data: Path,
    config_path: Path | None,
    lake: LakePlace | None,
    dev: bool,
    amqp: str | None,
    http: str | None,
    names: tuple[str, ...],
) -> None:
    """Run a hub until SIGTERM. It writes the messages of gateways to the lake.

    Gateways authenticate with the certificate they got at enrolment; `waypost token create` makes a token
    for that. The first start creates the certificate authority, DATA/authority: keep a copy in a safe place.

    Port 0 picks a free port. One line on stdout reports when the hub serves: `ready amqps=HOST:PORT
    https=HOST:PORT` (with --dev `amqp` and `http`).
    SIGTERM lands and acknowledges what has been received, and exits with 0. While other hubs of its registry serve, it
    first closes its connections in slices (`drainSeconds`). A second SIGTERM exits at once.
    """
    from bridge.resources.endpoint import valid_host
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.configuration import HubSettings, load
    from cloud.hub.enrolment.files import Enroller, machine_names
    from cloud.hub.memory import hide_pandas
    from cloud.hub.opening import HubConfiguration, HubError
    from cloud.hub.server import run as serve
    from edge.broker.listeners.endpoints import remove_endpoints
    from edge.output.logs import write_to_stderr

    try:
        settings = load(config_path) if config_path is not None else HubSettings()
        amqp_endpoint = _endpoint(amqp, settings.amqp, AMQP_DEFAULT if dev else AMQPS_DEFAULT)
        http_endpoint = _endpoint(http, settings.http, HTTP_DEFAULT if dev else HTTPS_DEFAULT)
        given = [valid_host(name) for name in (*names, *settings.names)]
        lake = lake if settings.lake is None or lake is not None else parse(settings.lake)
    except (ConfigurationRejected, ValueError) as error:
        raise CommandError(str(error), error="configuration-rejected", code=Exit.USAGE) from error
    for endpoint in (amqp_endpoint, http_endpoint):
        if dev and not endpoint.loopback:
            raise CommandError(
                f"--dev accepts everybody without credentials, so it listens on loopback only; {endpoint} is not",
                error="development-not-local",
                code=Exit.USAGE,
            )
    write_to_stderr(logging.INFO)
    hide_pandas()
    try:
        tls = settings.tls
        enroller = None
        if not dev and tls is None:
            life_s = settings.certificate_days * 86_400.0
            own, est = [*given, *machine_names()], _est_server(settings)
            enroller = Enroller(settings.authority_files, own, life_s, settings.ocsp_url, est)
        gather_ms, registry = settings.gather_milliseconds, settings.registry
        kafka, messaging = _peers(settings)
        quotas, oidc, drain_s = settings.quotas, settings.oidc, settings.drain_seconds
        configuration = HubConfiguration(
            data, amqp_endpoint, http_endpoint, dev, gather_ms, registry, tls, enroller, quotas, lake, oidc,
            settings.applications, drain_s, kafka, messaging, settings.trusted_proxies,
            settings.bundles, settings.webhook_networks,
        )  # fmt: skip
        try:
            serve(configuration, partial(_ready, data, "" if dev else "s"))
        finally:
            remove_endpoints(data)
    except HubError as error:
        code = Exit.UNREACHABLE if error.unreachable else Exit.USAGE
        raise CommandError(str(error), error="hub-not-started", code=code) from error


def _est_server(settings: HubSettings) -> EstServer | None:
    try:
        return settings.est_server
    except OSError as error:
        raise CommandError(
            f"est: passwordFile {error.filename}: {error.strerror}", error="file-not-accessible", code=Exit.USAGE
        ) from error


def _peers(settings: HubSettings) -> tuple[TopicSettings | None, BrokerSettings | None]:
    """Return the settings of Kafka and of the message broker, with their passwords."""
    try:
        topic = settings.kafka.settings() if settings.kafka is not None else None
        return topic, settings.messaging.settings() if settings.messaging is not None else None
    except OSError as error:
        raise CommandError(
            f"passwordFile {error.filename}: {error.strerror}", error="file-not-accessible", code=Exit.USAGE
        ) from error


@hub.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="Configuration (YAML).")
@click.option(
    "--http",
    metavar="HOST:PORT",
    default=PROBES_DEFAULT,
    show_default=True,
    help="Listener for the probes /livez and /readyz, without TLS.",
)
def authority(config_path: Path, http: str) -> None:
    """Sign for hubs that lack the authority's key.

    It reads the configuration of the hubs, with `registry`, and `authority` with `key`; the hubs have the same
    without `key`. Requests come through the registry, so it needs no lake, no data directory and no address that
    gateways reach. While it is away, gateways continue with their certificates; enrolment, renewals, new
    configurations and new hubs wait for it. Several of them do no harm.

    One line on stdout reports that it signs: `ready http=HOST:PORT`. SIGTERM ends it.
    """
    from bridge.resources.endpoint import ListenEndpoint
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.authority_process import AuthoritySettings
    from cloud.hub.authority_process import run as sign
    from cloud.hub.configuration import load
    from cloud.hub.enrolment.files import AuthorityFileError, read_authority
    from cloud.hub.enrolment.signature_request import SigningRules
    from cloud.hub.registry.faults import RegistryUnreachable
    from cloud.lake.faults import RegistryError
    from edge.broker.listeners.tcp import ListenError
    from edge.output.logs import write_to_stderr

    try:
        settings, endpoint = load(config_path), ListenEndpoint.parse(http)
    except (ConfigurationRejected, ValueError) as error:
        raise CommandError(str(error), error="configuration-rejected", code=Exit.USAGE) from error
    given, registry = settings.authority_files, settings.registry
    if given is None or given.key is None or registry is None:
        words = f"{config_path}: `registry`, and `authority` with `certificate` and `key`, are needed"
        raise CommandError(words, error="configuration-rejected", code=Exit.USAGE)
    write_to_stderr(logging.INFO)
    names = frozenset(name.lower() for name in settings.names)
    try:
        own = read_authority(given.certificate, given.key)
        own.name_hub(names, settings.ocsp_url)
        rules = SigningRules(names, settings.certificate_days * 86_400.0)
        sign(AuthoritySettings(own, registry, rules, endpoint), lambda at: click.echo(f"ready http={at}"))
    except AuthorityFileError as error:
        raise CommandError(str(error), error="authority-not-readable", code=Exit.USAGE) from error
    except ListenError as error:
        raise CommandError(str(error), error="hub-not-started", code=Exit.USAGE) from error
    except RegistryError as error:
        code = Exit.UNREACHABLE if isinstance(error, RegistryUnreachable) else Exit.FAILED
        raise CommandError(str(error), error="registry-failed", code=code) from error


@hub.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), required=True, help="Configuration (YAML).")
def check(config_path: Path) -> None:
    """Check the configuration of a hub. Reads certificates, registry and lake too; changes nothing, opens no port."""
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.check import check as look
    from cloud.hub.configuration import read
    from cloud.hub.registry.faults import RegistryUnreachable

    try:
        lines = look(read(config_path))
    except ConfigurationRejected as error:
        raise CommandError(str(error), error="configuration-rejected", code=Exit.USAGE) from error
    except RegistryUnreachable as error:
        raise CommandError(str(error), error="registry-failed", code=Exit.UNREACHABLE) from error
    for line in lines:
        click.echo(line)
    click.echo(f"{config_path}: no errors")


@hub.command()
def schema() -> None:
    """Print the schema of its configuration. Editors complete and check YAML with it."""
    from bridge.resources.completion import json_schema
    from cloud.hub.configuration import KINDS
    from edge.output.terminal import say_json

    say_json(json_schema(KINDS))


def _endpoint(option: str | None, setting: ListenEndpoint | None, default: str) -> ListenEndpoint:
    """Return the address to listen on: the option, else the configuration. Raises `ValueError`."""
    from bridge.resources.endpoint import ListenEndpoint

    return setting if option is None and setting is not None else ListenEndpoint.parse(option or default)


def _ready(data: Path, secure: str, amqp: ListenEndpoint, http: ListenEndpoint) -> None:
    from edge.broker.listeners.endpoints import write_endpoints

    bound = {f"amqp{secure}": (amqp.host, amqp.port), f"http{secure}": (http.host, http.port)}
    try:
        write_endpoints(data, bound)
    except OSError as error:  # `waypost open` cannot find the hub then
        logging.getLogger(__name__).warning("%s: %s", error.filename or data, error.strerror)
    click.echo(f"ready amqp{secure}={amqp} http{secure}={http}")
    sys.stdout.flush()
