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
import yaml

from bridge.hidden import hides
from cloud.hub.registry import location
from cloud.hub.registry.faults import RegistryUrlError
from cloud.lake.limits import GATHER_MS_DEFAULT, GATHER_MS_MAX

FILE_BYTES_MAX = 1024 * 1024
"""A configuration is a page; what is larger is some other file."""


class ConfigurationError(Exception):
    """``FILE:LINE: PATH: what is wrong``."""


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
    """Read a configuration. Raises `ConfigurationError`."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path}: more than {FILE_BYTES_MAX} bytes")
    return parse(text, str(path))


def parse(text: bytes, path: str) -> Settings:
    """Read the text of a configuration; `path` is for its errors. Raises `ConfigurationError`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigurationError(f"{path}:{line}: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from error
    try:
        settings = msgspec.convert(document, Resource, strict=True).spec
        settings.registry_url  # noqa: B018 - it is to be one
    except RegistryUrlError as error:
        steps = ["spec", "registry"]
        raise ConfigurationError(f"{path}:{_line_of(root, steps)}: {'.'.join(steps)}: {error}") from error
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        steps = [step for step in where.rstrip("`").split(".") if step]
        if " unknown field `" in message:
            steps.append(message.rsplit("`", 2)[1])
        place = ".".join(steps) or "the document"
        raise ConfigurationError(f"{path}:{_line_of(root, steps)}: {place}: {message}") from error
    return settings


def _line_of(node: yaml.Node | None, steps: list[str]) -> int:
    """The line of the node a path leads to, or of the last one on the way that is there."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in steps:
        if not isinstance(node, yaml.MappingNode):
            return line
        for key, value in node.value:
            if key.value == step:
                line, node = key.start_mark.line + 1, value
                break
        else:
            return line
    return line
