"""The hub's configuration file: one YAML resource of kind `Hub`. Unknown keys and bad values name file, line and path.

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

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import sqlalchemy as sa

from bridge.hidden import hides
from bridge.resources.document import SOURCE_BYTES_MAX, Document, documents
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, path_text
from cloud.hub.registry import location
from cloud.hub.registry.faults import RegistryUrlError
from cloud.lake.limits import GATHER_MS_DEFAULT, GATHER_MS_MAX


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Paths of PEM files for the AMQP listener; read again when they change."""

    certificate: str
    key: str
    client_ca: str | None = None
    """Authority of the gateways' certificates."""
    client_required: bool = False
    """Gateways without a certificate are not let in."""


@hides("registry")
class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the file may say; the command line goes before it."""

    amqp: str | None = None
    http: str | None = None
    gather_milliseconds: Annotated[int, msgspec.Meta(ge=0, le=GATHER_MS_MAX)] = GATHER_MS_DEFAULT
    tls: Tls | None = None
    registry: str | None = None
    """A URL (`cloud.hub.registry.location`); without it the registry is a SQLite file in the data directory."""

    @property
    def registry_url(self) -> sa.URL | None:
        """`registry`, read. Raises `RegistryUrlError`."""
        return None if self.registry is None else location.parse(self.registry)

    @property
    def gather_ms(self) -> int:
        """How long a landing is gathered."""
        return self.gather_milliseconds


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The file."""

    api_version: Literal["waypost/v1"]
    kind: Literal["Hub"]
    spec: Settings
    metadata: dict[str, object] = {}


def load(path: Path) -> Settings:
    """Read a configuration. Raises `ConfigurationRejected`."""
    try:
        with path.open("rb") as file:
            text = file.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise rejected(str(path), 0, "", f"cannot be read: {error.strerror}") from error
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Settings:
    """Read the text of a configuration; `source` is its name. Raises `ConfigurationRejected`."""
    found = list(documents(text, source))
    errors = [each for each in found if isinstance(each, ConfigurationError)]
    if errors:
        raise ConfigurationRejected(errors)
    if len(found) != 1 or not isinstance(found[0], Document):
        raise rejected(source, 0, "", f"one resource of kind Hub is wanted, not {len(found)}")
    document, origin = found[0]
    try:
        settings = msgspec.convert(document, Resource, strict=True).spec
        settings.registry_url  # noqa: B018 - it is to be one
    except RegistryUrlError as error:
        place = ("spec", "registry")
        raise rejected(source, origin.line(place), path_text(place), str(error)) from error
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        steps = tuple(step for step in where.rstrip("`").split(".") if step)
        if " unknown field `" in message:
            steps = (*steps, message.rsplit("`", 2)[1])
        raise rejected(source, origin.line(steps), path_text(steps), message) from error
    return settings


def rejected(source: str, line: int, path: str, message: str) -> ConfigurationRejected:
    """For one error."""
    return ConfigurationRejected([ConfigurationError(source, line, path, message)])
