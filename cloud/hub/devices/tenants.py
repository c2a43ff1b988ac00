"""Documents of device tenants in the form of Hono's management API, and their checks. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from cloud.hub.devices.documents import WAYPOST, InvalidDocument, decode_document, encode_document, status_of
from cloud.hub.devices.limits import TRUST_ANCHORS_MAX
from cloud.hub.devices.subjects import (
    algorithm_of,
    check_template,
    encode_public_key,
    normalize_subject,
    read_certificate,
    read_public_key,
    subject_text,
)
from cloud.hub.peers import tenant_fault
from cloud.hub.registry.device_tenants import DeviceTenantRow, TrustAnchorRow

NO_LIMIT: Final = -1
EMPTY: Final = '{"enabled":true}'
"""Stored document of a tenant that was never described."""
Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
"""Time with its offset from UTC, as ``2027-12-24T19:00:00Z``."""


class RegistrationLimits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of a tenant of devices, in addition to those of the hub."""

    max_devices: Annotated[int, msgspec.Meta(ge=NO_LIMIT)] = msgspec.field(name="max-devices", default=NO_LIMIT)
    """Devices; -1: no limit of its own."""
    max_credentials_per_device: Annotated[int, msgspec.Meta(ge=NO_LIMIT)] = msgspec.field(
        name="max-credentials-per-device", default=NO_LIMIT
    )
    """Credentials of a device; -1: no limit of its own."""


class TrustedAuthority(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Certificate authority that a tenant trusts for its devices: a certificate, or a public key with its subject."""

    id: str | None = None
    subject_dn: str | None = msgspec.field(name="subject-dn", default=None)
    subject_dn_bytes: str | None = msgspec.field(name="subject-dn-bytes", default=None)
    public_key: str | None = msgspec.field(name="public-key", default=None)
    """Base64 of the DER encoding."""
    algorithm: str | None = None
    """RSA or EC."""
    not_before: Instant | None = msgspec.field(name="not-before", default=None)
    not_after: Instant | None = msgspec.field(name="not-after", default=None)
    cert: str | None = None
    """Base64 of the DER encoding. It decides the fields above."""
    auth_id_template: str | None = msgspec.field(name="auth-id-template", default=None)
    """Makes the authentication identifier of a certificate, as ``{{subject-cn}}``. Default: its whole subject."""
    auto_provisioning_enabled: bool = msgspec.field(name="auto-provisioning-enabled", default=False)
    """True: a device with a certificate of this authority may be registered when it first appears."""
    auto_provision_as_gateway: bool = msgspec.field(name="auto-provision-as-gateway", default=False)
    auto_provisioning_device_id_template: str | None = msgspec.field(
        name="auto-provisioning-device-id-template", default=None
    )
    """Makes the id of such a device."""
    ocsp_revocation_enabled: bool = msgspec.field(name="ocsp-revocation-enabled", default=False)
    ocsp_responder_uri: str | None = msgspec.field(name="ocsp-responder-uri", default=None)
    ocsp_responder_cert: str | None = msgspec.field(name="ocsp-responder-cert", default=None)
    ocsp_nonce_enabled: bool = msgspec.field(name="ocsp-nonce-enabled", default=False)


class DeviceTenantDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tenant of devices, in the form of Hono."""

    enabled: bool | None = None
    """False: gateways refuse its devices. Default: true."""
    alias: Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]+$", max_length=63)] | None = None
    """Stored; the hub finds tenants by their id only."""
    ext: dict[str, Any] = {}
    """Further properties. Its member ``waypost`` may have ``tenant``: the tenant of the hub that it belongs to."""
    adapters: list[dict[str, Any]] | None = None
    """Adapters with a `type`, each once. Stored for Hono's adapters."""
    defaults: dict[str, Any] = {}
    """Properties of all messages unless device or message have them."""
    minimum_message_size: int = msgspec.field(name="minimum-message-size", default=0)
    registration_limits: RegistrationLimits | None = msgspec.field(name="registration-limits", default=None)
    resource_limits: dict[str, Any] | None = msgspec.field(name="resource-limits", default=None)
    """Stored for Hono's adapters."""
    tracing: dict[str, Any] | None = None
    """Stored for Hono's adapters."""
    trust_anchor_group: str | None = msgspec.field(name="trust-anchor-group", default=None)
    """Tenants of a group may trust authorities with the same subject."""
    trusted_ca: list[TrustedAuthority] | TrustedAuthority | None = msgspec.field(name="trusted-ca", default=None)
    status: dict[str, Any] | None = None
    """In answers, an `EntityStatus`. In requests it is ignored."""


class TenantExtension(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Member ``waypost`` of `ext`."""

    tenant: str | None = None
    """Tenant of the hub that a new tenant of devices belongs to."""


class TenantSearchAnswer(msgspec.Struct, kw_only=True):
    """Page of tenants of devices."""

    total: int
    result: list[dict[str, Any]]
    """Each is a `DeviceTenantDocument` with its `id`."""


class ReadTenant(NamedTuple):
    """Tenant document that a request has."""

    text: str
    """Stored document."""
    anchors: list[TrustAnchorRow]
    owner: str | None
    """Tenant of the hub that it names as its owner."""


def read_tenant(body: bytes) -> ReadTenant:
    """Read the document of a tenant; an empty body is an empty document. Raises `InvalidDocument`."""
    document = decode_document(body or b"{}", DeviceTenantDocument)
    document.enabled, document.status = document.enabled is not False, None
    _check_adapters(document.adapters)
    given = document.trusted_ca or []
    authorities = [given] if isinstance(given, TrustedAuthority) else given
    if len(authorities) > TRUST_ANCHORS_MAX:
        raise InvalidDocument(f"a tenant trusts {TRUST_ANCHORS_MAX} authorities at most")
    document.trusted_ca = [_complete(each) for each in authorities] or None
    _number(document.trusted_ca or ())
    anchors = [TrustAnchorRow(each.subject_dn or "", document.trust_anchor_group) for each in document.trusted_ca or ()]
    return ReadTenant(encode_document(document), anchors, _owner(document.ext))


def stored_tenant(text: str) -> DeviceTenantDocument:
    """Return the stored document of a tenant."""
    return msgspec.json.decode(text, type=DeviceTenantDocument)


def authorities_of(document: DeviceTenantDocument) -> list[TrustedAuthority]:
    """Return the authorities that a tenant trusts."""
    return document.trusted_ca if isinstance(document.trusted_ca, list) else []


def tenant_answer(row: DeviceTenantRow) -> dict[str, Any]:
    """Return the document of a tenant, with its status."""
    return {**json.loads(row.document), "status": status_of(row.created_at, row.updated_at, row.updated_by)}


def _check_adapters(adapters: list[dict[str, Any]] | None) -> None:
    if adapters is None:
        return
    types = [each.get("type") for each in adapters]
    if not types or not all(isinstance(each, str) and each for each in types) or len(set(types)) < len(types):
        raise InvalidDocument("adapters is a list of at least one, each with a type, and no type twice")


def _complete(given: TrustedAuthority) -> TrustedAuthority:
    """Return an authority with what its certificate or key say. Raises `InvalidDocument`."""
    for template, name in (
        (given.auth_id_template, "auth-id-template"),
        (given.auto_provisioning_device_id_template, "auto-provisioning-device-id-template"),
    ):
        if template is not None:
            check_template(template, f"trusted-ca: {name}")
    if given.cert:
        found = read_certificate(given.cert, "trusted-ca: cert")
        given.subject_dn = subject_text(found.subject, "trusted-ca: cert")
        given.not_before, given.not_after = found.not_valid_before_utc, found.not_valid_after_utc
        key: PublicKeyTypes = found.public_key()
    elif given.public_key and given.subject_dn and given.not_before and given.not_after:
        given.subject_dn = normalize_subject(given.subject_dn, "trusted-ca: subject-dn")
        key = read_public_key(given.public_key, "trusted-ca: public-key")
    else:
        raise InvalidDocument(
            "an authority of trusted-ca has cert, or public-key with subject-dn, not-before and not-after"
        )
    given.public_key, given.algorithm = encode_public_key(key), algorithm_of(key, "trusted-ca")
    if given.not_before >= given.not_after:
        raise InvalidDocument("trusted-ca: not-before is not before not-after")
    return given


def _number(authorities: Iterable[TrustedAuthority]) -> None:
    """Give ids to the authorities without one. Raises `InvalidDocument` if two have the same."""
    used: set[str] = set()
    for number, each in enumerate(authorities, 1):
        each.id = each.id or f"ca-{number}"
        if each.id in used:
            raise InvalidDocument(f"trusted-ca: two authorities have the id {each.id[:80]}")
        used.add(each.id)


def _owner(ext: dict[str, Any]) -> str | None:
    if WAYPOST not in ext:
        return None
    try:
        owner = msgspec.convert(ext[WAYPOST], TenantExtension).tenant
    except msgspec.ValidationError as error:
        raise InvalidDocument(f"ext.{WAYPOST}: {error}") from None
    if owner is not None and (fault := tenant_fault(owner)):
        raise InvalidDocument(f"ext.{WAYPOST}.tenant: {fault}")
    return owner
