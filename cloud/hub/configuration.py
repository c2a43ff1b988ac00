"""The hub's configuration file: one YAML resource of kind `Hub`, read as a gateway's resources are.

::

    apiVersion: waypost/v1
    kind: Hub
    spec:
      amqp: 127.0.0.1:5673
      http: 127.0.0.1:8081
      tls: {certificate: hub.pem, key: hub.key, clientCa: gateways.pem}
      gatherMilliseconds: 500
      registry: postgresql+psycopg://waypost@db/waypost
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import sqlalchemy as sa

from bridge.hidden import hides
from bridge.resources import parse as language
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.fields import HostPort, Part, read_by
from bridge.resources.resource import Errors, Kind, Kinds, Resource, error_at
from cloud.hub.registry import location
from cloud.lake.limits import GATHER_MS_DEFAULT, GATHER_MS_MAX

RegistryUrl = Annotated[sa.URL, read_by(location.parse, str)]


class Tls(Part, frozen=True, kw_only=True):
    """Paths of PEM files for the AMQP listener; read again when they change."""

    certificate: str
    key: str
    client_ca: str | None = None
    """Authority of the gateways' certificates."""
    client_required: bool = False
    """Gateways without a certificate are not let in."""


@hides("registry")
class Settings(Part, frozen=True, kw_only=True):
    """What the file may say; the command line goes before it."""

    amqp: HostPort | None = None
    http: HostPort | None = None
    gather_milliseconds: Annotated[int, msgspec.Meta(ge=0, le=GATHER_MS_MAX)] = GATHER_MS_DEFAULT
    """How long a landing is gathered."""
    tls: Tls | None = None
    registry: RegistryUrl | None = None
    """A URL (`cloud.hub.registry.location`); without it the registry is a SQLite file in the data directory."""


def _one(resources: Sequence[Resource]) -> Errors:
    for resource in resources[1:]:
        yield error_at(resource, (), "one resource of kind Hub is wanted, and this is another")


KINDS: Final = Kinds((Kind("Hub", Settings, ("hub",), default_name="hub"),), (_one,))


def load(path: Path) -> Settings:
    """Read a configuration. Raises `ConfigurationRejected`."""
    return _settings(language.read(KINDS, [str(path)]), str(path))


def parse(text: bytes, source: str) -> Settings:
    """Read the text of a configuration; `source` is its name. Raises `ConfigurationRejected`."""
    return _settings(language.parse(KINDS, text, source), source)


def _settings(resources: Sequence[Resource], source: str) -> Settings:
    errors = KINDS.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    for resource in resources:
        if isinstance(resource.spec, Settings):
            return resource.spec
    raise ConfigurationRejected([ConfigurationError(source, 0, "", "one resource of kind Hub is wanted, not 0")])
