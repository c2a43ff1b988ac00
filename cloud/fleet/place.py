"""The hub that a fleet command works with: its data directory on this machine, or its console over HTTP.

With a data directory a command opens its own connection to the registry, and works while the hub is stopped; a running
hub follows its changes within a second. Over HTTP it works from any machine, with the rights of the user of
`waypost login` (cloud/decisions/0013-two-ways-to-a-hub.md).
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import click

from edge.output.errors import CommandError, Exit
from edge.output.text import word
from edge.remote import contexts
from edge.remote.client import ConsoleClient
from edge.remote.session import client_of, parse_url

if TYPE_CHECKING:
    import sqlalchemy as sa

    from cloud.hub.bundles.folder import BundleFolder
    from cloud.hub.configuration import HubSettings
    from cloud.hub.desired.making import ConfigurationTables
    from cloud.hub.enrolment.authority import KnownAuthority
    from cloud.hub.registry.alerts import Alerts
    from cloud.hub.registry.commands import Commands
    from cloud.hub.registry.configurations import Configurations, Sign
    from cloud.hub.registry.enrolments import Enrolments
    from cloud.hub.registry.rollouts import Rollouts
    from cloud.hub.registry.selectors import Selectors
    from cloud.hub.registry.usage import TenantUsage
    from cloud.hub.tenants import Tenants

DEFAULT_TENANT: Final = "default"

F = TypeVar("F", bound=Callable[..., None])


class HubPlace(NamedTuple):
    """The hub of a command."""

    directory: Path | None
    config: Path | None = None
    client: ConsoleClient | None = None
    """Client of its console; None: its data directory is used."""

    @property
    def data(self) -> Path:
        """Data directory. Raises CommandError when the hub is reached over HTTP."""
        if self.directory is not None:
            return self.directory
        where = f"{self.client.url}: " if self.client is not None else ""
        what = f"{where}this command needs the data directory of the hub"
        raise CommandError(what, "run it on that machine with --data DIR", error="no-data-directory", code=Exit.USAGE)

    def quoted(self) -> str:
        """Return the option that names this hub, quoted for a shell, for commands in next steps."""
        return f"--hub {word(self.client.url)}" if self.client is not None else f"--data {word(self.directory or '')}"


def hub_options(function: F) -> F:
    """Add the options that choose the hub; the function gets a `HubPlace` as first argument.

    Option `--tenant` without a value is the default tenant in a data directory, and over HTTP the user's own.
    """
    return data_option(config_option(hub_option(_with_place(function))))


def directory_options(function: F) -> F:
    """Add the options of `hub_options`, except the configuration."""
    return data_option(hub_option(_with_place(function)))


def console_option(function: F) -> F:
    """Add the option that chooses a running hub; the function gets the client of its console as first argument."""

    @functools.wraps(function)
    def behind(hub: str | None, **given: Any) -> None:
        client = _client(hub)
        if client is None:
            hint = "sign in: waypost login URL; or name the console: --hub URL"
            what = "this command needs the console of a running hub, and no context of one is in use"
            raise CommandError(what, hint, error="no-context", code=Exit.USAGE)
        function(client, **given)

    option = click.option(
        "--hub", metavar="URL|CONTEXT", help="Console of the hub, after `waypost login`.  [default: the context in use]"
    )
    return option(cast("F", behind))


def _with_place(function: F) -> F:
    @functools.wraps(function)
    def behind(data: Path | None, hub: str | None, config: Path | None = None, **given: Any) -> None:
        if data is not None and hub is not None:
            hint = "--data is a hub on this machine, --hub the address of one"
            raise CommandError("give --data or --hub, not both", hint, error="wrong-usage", code=Exit.USAGE)
        place = HubPlace(data, config, None if data is not None else _client(hub))
        if given.get("tenant") == "" and place.client is None:
            given["tenant"] = DEFAULT_TENANT
        function(place, **given)

    return cast("F", behind)


def _client(hub: str | None) -> ConsoleClient | None:
    """Return the client of a URL or context, or of the context in use. Raises CommandError."""
    if hub is not None:
        return client_of(parse_url(hub, "--hub"))
    used = contexts.read().used
    return client_of(used.url) if used is not None and used.url and used.role != "gateway" else None


data_option = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="The hub's data directory."
)
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The hub's configuration file, if it sets a registry, an authority or quotas.",
)
hub_option = click.option(
    "--hub",
    metavar="URL|CONTEXT",
    help="Console of the hub, instead of its data directory: after `waypost login`.  [default: the context in use]",
)
tenant_option = click.option(
    "--tenant", default="", show_default="default; over HTTP the user's own", help="Tenant of the gateway."
)

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class EnrolmentAccess(NamedTuple):
    """Open registry and authority, for tokens and certificates."""

    enrolments: Enrolments
    authority: KnownAuthority
    registry: sa.URL
    bundles: BundleFolder


class CommandAccess(NamedTuple):
    """Open registry, for commands to devices."""

    commands: Commands
    quotas: Tenants


class ConfigurationAccess(NamedTuple):
    """Open registry and signature, for configurations."""

    tables: ConfigurationTables
    sign: Sign
    bundles: BundleFolder
    """Bundles that a configuration may name."""

    @property
    def configurations(self) -> Configurations:
        return self.tables.configurations

    @property
    def rollouts(self) -> Rollouts:
        return self.tables.rollouts

    @property
    def selectors(self) -> Selectors:
        return self.tables.selectors


@contextlib.contextmanager
def open_enrolments(place: HubPlace) -> Iterator[EnrolmentAccess]:
    """Open registry and authority of a hub that has run at least once. Raises CommandError."""
    from cloud.hub.bundles.folder import BundleFolder
    from cloud.hub.enrolment.files import AuthorityFileError, load_authority
    from cloud.hub.registry.enrolments import Enrolments

    with hub_of(place) as (settings, registry):
        try:
            authority = load_authority(place.data, settings.authority_files, time.time())
        except AuthorityFileError as error:
            raise CommandError(str(error), code=Exit.USAGE, error="authority-not-readable") from None
        with contextlib.closing(Enrolments(registry)) as enrolments:
            bundles = BundleFolder.of(settings.bundles, place.data)
            yield EnrolmentAccess(enrolments, authority, registry, bundles)


@contextlib.contextmanager
def open_commands(place: HubPlace) -> Iterator[CommandAccess]:
    """Open the commands of a hub that has run at least once. Raises CommandError."""
    from cloud.hub.registry.commands import Commands

    with hub_of(place) as (settings, registry), contextlib.closing(Commands(registry)) as commands:
        yield CommandAccess(commands, settings.quotas)


@contextlib.contextmanager
def open_alerts(place: HubPlace) -> Iterator[Alerts]:
    """Open the alerts of a hub that has run at least once. Raises CommandError."""
    from cloud.hub.registry.alerts import Alerts

    with hub_of(place) as (_, registry), contextlib.closing(Alerts(registry)) as alerts:
        yield alerts


@contextlib.contextmanager
def open_usage(place: HubPlace) -> Iterator[TenantUsage]:
    """Open the usage of tenants. Raises CommandError."""
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.usage import TenantUsage

    with hub_of(place) as (_, registry), contextlib.closing(open_registry(registry).database) as database:
        yield TenantUsage(database)


@contextlib.contextmanager
def hub_of(place: HubPlace) -> Iterator[tuple[HubSettings, sa.URL]]:
    """Yield the configuration and the registry's URL. Raises CommandError, also for errors of the registry in the
    body."""
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.configuration import HubSettings, load
    from cloud.hub.data import UMASK, WRITER
    from cloud.hub.registry.faults import RegistryUnreachable
    from cloud.hub.registry.location import sqlite_url
    from cloud.hub.tenants import TenantRemoved
    from cloud.lake.faults import RegistryError

    data = place.data
    try:
        settings = load(place.config) if place.config is not None else HubSettings()
        if not (data / WRITER).is_file():
            raise CommandError(
                f"{data} is not the data directory of a hub",
                f"create one: waypost hub run --data {word(data)}",
                code=Exit.USAGE,
                error="no-data-directory",
            )
        os.umask(UMASK)
        if data.stat().st_uid != os.geteuid():
            raise CommandError(
                f"{data} belongs to another user",
                "run this as the hub's user: sudo -u USER …",
                code=Exit.USAGE,
                error="other-user",
            )
        yield settings, settings.registry or sqlite_url(data / "registry.db")
    except ConfigurationRejected as rejected:
        raise CommandError(str(rejected), code=Exit.USAGE, error="configuration-rejected") from None
    except TenantRemoved as error:
        raise CommandError(str(error), "use another name", error="tenant-removed") from None
    except RegistryError as error:
        raise CommandError(
            str(error), code=3 if isinstance(error, RegistryUnreachable) else 1, error="registry-failed"
        ) from None
    except OSError as error:
        raise CommandError(
            f"{error.filename or data}: {error.strerror}", code=Exit.USAGE, error="file-not-accessible"
        ) from None


@contextlib.contextmanager
def open_configurations(place: HubPlace) -> Iterator[ConfigurationAccess]:
    """Open the configurations of gateways. Raises CommandError, also for what the body refuses."""
    from bridge.desired import DesiredError
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.desired.making import ConfigurationTables
    from cloud.hub.desired.service import make_signer
    from cloud.hub.labels import LabelError
    from cloud.hub.registry.configurations import UnknownGateway, UnknownVersion
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.rollouts import RolloutError
    from cloud.hub.rollout import WavesError

    with (
        open_enrolments(place) as opened,
        contextlib.closing(open_registry(opened.registry).database) as database,
    ):
        try:
            tables = ConfigurationTables.of(database)
            yield ConfigurationAccess(tables, make_signer(opened.authority), opened.bundles)
        except ConfigurationRejected as rejected:
            count = len(rejected.errors)
            hint = f"{count} {'problem' if count == 1 else 'problems'}; nothing was sent"
            raise CommandError(str(rejected), hint, code=Exit.USAGE, error="configuration-rejected") from None
        except (DesiredError, WavesError, LabelError) as error:
            raise CommandError(str(error), code=Exit.USAGE, error="configuration-rejected") from None
        except UnknownVersion as error:
            hint = f"look: waypost config history {place.quoted()} GATEWAY; --to VERSION chooses one"
            raise CommandError(str(error), hint, error="version-not-found") from None
        except UnknownGateway as error:
            raise CommandError(
                str(error), f"list them: waypost gateway list {place.quoted()}", error="gateway-not-found"
            ) from None
        except RolloutError as error:
            raise CommandError(
                str(error), f"list them: waypost rollout status {place.quoted()}", error="rollout-refused"
            ) from None


def current_user() -> str:
    """Return the user who runs this command."""
    return getpass.getuser()


def parse_duration(text: str) -> float:
    """Parse a duration such as ``90s``, ``30m``, ``24h`` or ``7d``. Raises click.BadParameter."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or not int(found[1]):
        raise click.BadParameter(f'"{text}" is not a duration; expected for example 30m, 24h or 7d')
    return int(found[1]) * _UNITS[found[2]]
