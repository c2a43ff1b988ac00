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
      tenants: [{name: acme, quota: {gateways: 20000, bytesPerSecond: 1Mi}}]
      registry: postgresql+psycopg://waypost@db/waypost
      lake: s3://acme-fleet/lake
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
from bridge.resources.fields import Effect, HostPort, ResourcePart, Restart, Text, read_by
from bridge.resources.resource import Errors, Resource, ResourceKind, ResourceKinds, error_at, of_kind
from cloud.hub.enrolment.est import EstServer, EstUrl
from cloud.hub.enrolment.limits import GATEWAY_DAYS, GATEWAY_DAYS_MAX, GATEWAY_DAYS_MIN
from cloud.hub.peers import tenant_fault
from cloud.hub.registry import location
from cloud.hub.tenants import USUAL, Quota, Tenants
from cloud.lake.limits import GATHER_MS_DEFAULT, GATHER_MS_MAX
from edge.broker.configuration import TlsFiles, TlsListener, TokenIssuer
from edge.configuration.issuer import issuer_faults

RegistryUrl = Annotated[sa.URL, read_by(location.parse, str)]


class AuthorityFiles(ResourcePart, frozen=True, kw_only=True):
    """Paths of PEM files of the authority that makes the gateways' certificates, in place of the hub's own."""

    certificate: Restart[str]
    """Its certificate."""
    key: Restart[str]
    """Its key, without a passphrase."""


class EstAuthority(ResourcePart, frozen=True, kw_only=True):
    """Another authority that makes the gateways' certificates, asked over Enrollment over Secure Transport (RFC 7030).
    The hub is its registration authority: it shows a certificate, or a name and a password."""

    url: Restart[Annotated[EstUrl, read_by(EstUrl.parse, str)]]
    """``https://HOST[:PORT]/.well-known/est``, with ``/LABEL`` behind it where the server has several authorities."""
    ca: Restart[str | None] = msgspec.field(default=None, name="caCert")
    """PEM file of the authority of its server's certificate; without it the system's authorities count."""
    certificate: Restart[str | None] = msgspec.field(default=None, name="clientCert")
    """PEM file of the certificate the hub shows; it needs `clientKey`."""
    key: Restart[str | None] = msgspec.field(default=None, name="clientKey")
    """Its key, without a passphrase."""
    user: Restart[str] = ""
    """For HTTP Basic; it needs `passwordFile`."""
    password_file: Restart[str | None] = None
    """A file with the password in its first line."""


class Tenant(ResourcePart, frozen=True, kw_only=True):
    """A tenant that may take more than the others, or less."""

    name: Restart[Text]
    """As in the certificates of its gateways and the names of its users."""
    quota: Restart[Quota]
    """In place of `tenantQuota`, as a whole."""


@hides("registry")
class Settings(ResourcePart, frozen=True, kw_only=True):
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
    est: Restart[EstAuthority | None] = None
    """Another authority that makes the gateways' certificates; without it the hub's does."""
    certificate_days: Restart[Annotated[float, msgspec.Meta(ge=GATEWAY_DAYS_MIN, le=GATEWAY_DAYS_MAX)]] = GATEWAY_DAYS
    """Life of a gateway's certificate."""
    names: Restart[tuple[str, ...]] = ()
    """Names and addresses gateways reach the hub under, beside this machine's own."""
    ocsp_url: Restart[Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]+$")] | None] = None
    """Where programs that do not have the list of what was revoked can ask about a certificate of the hub's authority
    (OCSP), written into each that it makes: ``http://HOST/enrolment/ocsp``."""
    oidc: Restart[TokenIssuer | None] = None
    """Whose bearer tokens say who an application or a person is (``<name>@<tenant>``) and what it may do; without it
    they have passwords (``waypost hub user``)."""
    tenant_quota: Restart[Quota] = USUAL
    """What each tenant may take."""
    tenants: Restart[tuple[Tenant, ...]] = ()
    """Those that have a quota of their own."""
    lake: Restart[str | None] = None
    """Where the lake is: a folder, or ``s3://BUCKET/FOLDER``; without it a folder of the data directory. How a store is
    reached and with which credentials is in the environment (`cloud.place.options`)."""
    registry: Restart[RegistryUrl | None] = None
    """``postgresql+psycopg://USER@HOST/DATABASE`` or ``sqlite:////ABSOLUTE/PATH``; without it the registry is a SQLite
    file in the data directory."""

    @property
    def quotas(self) -> Tenants:
        """Of all tenants."""
        return Tenants(self.tenant_quota, {tenant.name: tenant.quota for tenant in self.tenants})

    @property
    def est_server(self) -> EstServer | None:
        """That of `est`. Raises OSError: its password cannot be read."""
        if (est := self.est) is None:
            return None
        given = Path(est.password_file).read_text("utf-8").splitlines() if est.password_file is not None else []
        tls = TlsFiles(ca=est.ca, certificate=est.certificate, key=est.key)
        return EstServer(est.url, tls, est.user, given[0] if given else "")

    @property
    def authority_files(self) -> tuple[Path, Path] | None:
        """(certificate, key) of `authority`."""
        return None if self.authority is None else (Path(self.authority.certificate), Path(self.authority.key))


def _tenants(resources: Sequence[Resource]) -> Errors:
    """Quotas that mean nothing."""
    for resource, spec in of_kind(resources, Settings):
        parts: list[tuple[tuple[str | int, ...], Quota]] = [(("spec", "tenantQuota"), spec.tenant_quota)]
        seen: set[str] = set()
        for place, tenant in enumerate(spec.tenants):
            path = ("spec", "tenants", place)
            parts.append(((*path, "quota"), tenant.quota))
            if fault := tenant_fault(tenant.name):
                yield error_at(resource, (*path, "name"), fault)
            if tenant.name in seen:
                yield error_at(resource, (*path, "name"), f"tenant {tenant.name} is there already")
            seen.add(tenant.name)
        for path_, quota in parts:
            for field in (quota.bytes_per_second, quota.waiting_bytes, quota.stored_bytes):
                if field == 0:
                    yield error_at(resource, path_, "0 bytes would stop the tenant; revoke its gateways to do that")


def _oidc(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, Settings):
        if spec.oidc is not None:
            yield from issuer_faults(resource, ("spec", "oidc"), spec.oidc)


def _est(resources: Sequence[Resource]) -> Errors:
    """Half of what says who the hub is."""
    for resource, spec in of_kind(resources, Settings):
        est, path = spec.est, ("spec", "est")
        if est is None:
            continue
        if (est.certificate is None) != (est.key is None):
            yield error_at(resource, path, "clientCert and clientKey belong together")
        if bool(est.user) != (est.password_file is not None):
            yield error_at(resource, path, "user and passwordFile belong together")
        if est.certificate is None and not est.user:
            yield error_at(resource, path, "say who the hub is: clientCert and clientKey, or user and passwordFile")
        if spec.tls is not None:
            yield error_at(resource, path, "with `tls` others make all certificates and nobody enrols; leave one out")


HUB: Final = ResourceKind("Hub", Settings, ("hub",), single=True, default_name="hub", renamed=Effect.RESTART)
KINDS: Final = ResourceKinds((HUB,), (_tenants, _oidc, _est))


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
