"""Access of the fleet commands to a hub's data directory: its registry and its authority.

A command opens its own connection to the registry. A running hub follows its changes within a second.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from edge.output.text import word

if TYPE_CHECKING:
    import sqlalchemy as sa

    from cloud.hub.configuration import HubSettings
    from cloud.hub.desired.making import ConfigurationTables
    from cloud.hub.enrolment.authority import OwnAuthority
    from cloud.hub.registry.alerts import Alerts
    from cloud.hub.registry.commands import Commands
    from cloud.hub.registry.configurations import Configurations, Sign
    from cloud.hub.registry.enrolments import Enrolments
    from cloud.hub.registry.rollouts import Rollouts
    from cloud.hub.registry.selectors import Selectors
    from cloud.hub.tenants import Tenants

data_option = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="The hub's data directory."
)
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The hub's configuration file, if it sets a registry, an authority or quotas.",
)
tenant_option = click.option("--tenant", default="default", show_default=True, help="Tenant of the gateway.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


class FleetError(click.ClickException):
    """Error message for the terminal; `hint` is the next step."""

    def __init__(self, message: str, hint: str = "", *, code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = code  # type: ignore[misc]  # a class attribute in click, set on each error here


class EnrolmentAccess(NamedTuple):
    """Open registry and authority, for tokens and certificates."""

    enrolments: Enrolments
    authority: OwnAuthority
    registry: sa.URL


class CommandAccess(NamedTuple):
    """Open registry, for commands to devices."""

    commands: Commands
    quotas: Tenants


class ConfigurationAccess(NamedTuple):
    """Open registry and signature, for configurations."""

    tables: ConfigurationTables
    sign: Sign

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
def open_enrolments(data: Path, config: Path | None) -> Iterator[EnrolmentAccess]:
    """Open registry and authority of a hub that has run at least once. Raises FleetError."""
    from cloud.hub.enrolment.files import AuthorityFileError, load_authority
    from cloud.hub.registry.enrolments import Enrolments

    with hub_of(data, config) as (settings, registry):
        try:
            authority = load_authority(data, settings.authority_files, time.time())
        except AuthorityFileError as error:
            raise FleetError(str(error), code=2) from None
        with contextlib.closing(Enrolments(registry)) as enrolments:
            yield EnrolmentAccess(enrolments, authority, registry)


@contextlib.contextmanager
def open_commands(data: Path, config: Path | None) -> Iterator[CommandAccess]:
    """Open the commands of a hub that has run at least once. Raises FleetError."""
    from cloud.hub.registry.commands import Commands

    with hub_of(data, config) as (settings, registry), contextlib.closing(Commands(registry)) as commands:
        yield CommandAccess(commands, settings.quotas)


@contextlib.contextmanager
def open_alerts(data: Path, config: Path | None) -> Iterator[Alerts]:
    """Open the alerts of a hub that has run at least once. Raises FleetError."""
    from cloud.hub.registry.alerts import Alerts

    with hub_of(data, config) as (_, registry), contextlib.closing(Alerts(registry)) as alerts:
        yield alerts


@contextlib.contextmanager
def hub_of(data: Path, config: Path | None) -> Iterator[tuple[HubSettings, sa.URL]]:
    """Yield the configuration and the registry's URL. Raises FleetError, also for errors of the registry in the
    body."""
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.configuration import HubSettings, load
    from cloud.hub.data import UMASK, WRITER
    from cloud.hub.registry.faults import RegistryUnreachable
    from cloud.hub.registry.location import sqlite_url
    from cloud.lake.faults import RegistryError

    try:
        settings = load(config) if config is not None else HubSettings()
        if not (data / WRITER).is_file():
            raise FleetError(
                f"{data} is not the data directory of a hub", f"create one: waypost hub run --data {word(data)}", code=2
            )
        os.umask(UMASK)
        if data.stat().st_uid != os.geteuid():
            raise FleetError(f"{data} belongs to another user", "run this as the hub's user: sudo -u USER …", code=2)
        yield settings, settings.registry or sqlite_url(data / "registry.db")
    except ConfigurationRejected as rejected:
        raise FleetError(str(rejected), code=2) from None
    except RegistryError as error:
        raise FleetError(str(error), code=3 if isinstance(error, RegistryUnreachable) else 1) from None
    except OSError as error:
        raise FleetError(f"{error.filename or data}: {error.strerror}", code=2) from None


@contextlib.contextmanager
def open_configurations(data: Path, config: Path | None) -> Iterator[ConfigurationAccess]:
    """Open the configurations of gateways. Raises FleetError, also for what the body refuses."""
    from bridge.desired import DesiredError
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.desired.making import ConfigurationTables
    from cloud.hub.desired.service import make_signer
    from cloud.hub.labels import LabelError
    from cloud.hub.registry.configurations import UnknownGateway
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.rollouts import RolloutError
    from cloud.hub.rollout import WavesError

    with (
        open_enrolments(data, config) as place,
        contextlib.closing(open_registry(place.registry).database) as database,
    ):
        try:
            yield ConfigurationAccess(ConfigurationTables.of(database), make_signer(place.authority))
        except ConfigurationRejected as rejected:
            count = len(rejected.errors)
            hint = f"{count} {'problem' if count == 1 else 'problems'}; nothing was sent"
            raise FleetError(str(rejected), hint, code=2) from None
        except (DesiredError, WavesError, LabelError) as error:
            raise FleetError(str(error), code=2) from None
        except UnknownGateway as error:
            raise FleetError(str(error), f"list them: waypost gateway list --data {word(data)}") from None
        except RolloutError as error:
            raise FleetError(str(error), f"list them: waypost rollout status --data {word(data)}") from None


def current_user() -> str:
    """Return the user who runs this command."""
    return getpass.getuser()


def parse_duration(text: str) -> float:
    """Parse a duration such as ``90s``, ``30m``, ``24h`` or ``7d``. Raises click.BadParameter."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or not int(found[1]):
        raise click.BadParameter(f'"{text}" is not a duration; expected for example 30m, 24h or 7d')
    return int(found[1]) * _UNITS[found[2]]
