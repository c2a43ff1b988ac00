"""The hub's configuration file: one YAML resource of kind `Hub`, read as a gateway's resources are.

::

    apiVersion: waypost/v1
    kind: Hub
    spec:
      amqp: 127.0.0.1:5673
      http: 127.0.0.1:8081
      tls: {certificate: hub.pem, key: hub.key, clientCa: gateways.pem}
      gatherMilliseconds: 500
      tenantQuota: {connections: 500, waitingBytes: 32Mi}
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
from bridge.resources.fields import Bytes, Effect, HostPort, Part, Restart, read_by
from bridge.resources.resource import Kind, Kinds, Resource
from cloud.hub.enrolment.limits import GATEWAY_DAYS, GATEWAY_DAYS_MAX, GATEWAY_DAYS_MIN
from cloud.hub.limits import TENANT_CONNECTIONS_MAX, TENANT_WAITING_BYTES_MAX
from cloud.hub.registry import location
from cloud.lake.limits import GATHER_MS_DEFAULT, GATHER_MS_MAX
from edge.broker.configuration import TlsListener

RegistryUrl = Annotated[sa.URL, read_by(location.parse, str)]


class AuthorityFiles(Part, frozen=True, kw_only=True):
    """Paths of PEM files of the authority that makes the gateways' certificates, in place of the hub's own."""

    certificate: Restart[str]
    """Its certificate."""
    key: Restart[str]
    """Its key, without a passphrase."""


class TenantQuota(Part, frozen=True, kw_only=True):
    """What each tenant may take (`cloud.hub.tenants.Quota`)."""

    connections: Restart[Annotated[int, msgspec.Meta(ge=1)]] = TENANT_CONNECTIONS_MAX
    """Of its gateways and applications together."""
    waiting_bytes: Restart[Bytes] = TENANT_WAITING_BYTES_MAX
    """Of what its gateways have sent and has not landed."""


@hides("registry")
class Settings(Part, frozen=True, kw_only=True):
    """What the file may say; the command line goes before it."""

    amqp: Restart[HostPort | None] = None
    """Where gateways connect."""
    http: Restart[HostPort | None] = None
    """Where console, API and metrics are."""
    gather_milliseconds: Restart[Annotated[int, msgspec.Meta(ge=0, le=GATHER_MS_MAX)]] = GATHER_MS_DEFAULT
    """How long a landing is gathered."""
    tls: Restart[TlsListener | None] = None
    """Certificate and key of the AMQP listener, and the authority of the gateways' certificates."""
    authority: Restart[AuthorityFiles | None] = None
    """Without it the hub makes an authority of its own, in the data directory."""
    certificate_days: Restart[Annotated[float, msgspec.Meta(ge=GATEWAY_DAYS_MIN, le=GATEWAY_DAYS_MAX)]] = GATEWAY_DAYS
    """Life of a gateway's certificate."""
    names: Restart[tuple[str, ...]] = ()
    """Names and addresses gateways reach the hub under, beside this machine's own."""
    tenant_quota: Restart[TenantQuota] = TenantQuota()
    """What each tenant may take."""
    registry: Restart[RegistryUrl | None] = None
    """``postgresql+psycopg://USER@HOST/DATABASE`` or ``sqlite:////ABSOLUTE/PATH``; without it the registry is a SQLite
    file in the data directory."""

    @property
    def authority_files(self) -> tuple[Path, Path] | None:
        """(certificate, key) of `authority`."""
        return None if self.authority is None else (Path(self.authority.certificate), Path(self.authority.key))


KINDS: Final = Kinds((Kind("Hub", Settings, ("hub",), single=True, default_name="hub", renamed=Effect.RESTART),))


def load(path: Path) -> Settings:
    """Read a configuration. Raises `ConfigurationRejected`."""
    return _settings(read(path))


def parse(text: bytes, source: str) -> Settings:
    """Read the text of a configuration; `source` is its name. Raises `ConfigurationRejected`."""
    return _settings(_only(language.parse(KINDS, text, source), source))


def read(path: Path) -> Resource:
    """The resource in a file. Raises `ConfigurationRejected`."""
    return _only(language.read(KINDS, [str(path)]), str(path))


def _settings(resource: Resource) -> Settings:
    if not isinstance(resource.spec, Settings):
        raise TypeError(resource.kind)
    return resource.spec


def _only(resources: Sequence[Resource], source: str) -> Resource:
    errors = KINDS.validate(resources)
    if not resources:
        errors = [ConfigurationError(source, 0, "", "one resource of kind Hub is wanted, not 0")]
    if errors:
        raise ConfigurationRejected(errors)
    return resources[0]
