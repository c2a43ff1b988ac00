"""Devices that gateways have let in by a certificate, as the registry should have them. Pure.

A gateway sends the certificate and nothing that it made of it. Whether its authority is trusted and may register
devices, and the names of the device, follow from the present document of the tenant.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from bridge.certificate_subjects import SubjectError, apply_template, provisioned_id
from bridge.issued_certificates import has_issued, is_name_of
from cloud.hub.devices.anchors import anchor_of
from cloud.hub.devices.credentials import CERTIFICATE, StoredCredentials, StoredSecret
from cloud.hub.devices.documents import encode_document
from cloud.hub.devices.tenants import NO_LIMIT, TrustedAuthority, authorities_of, stored_tenant
from cloud.hub.registry.certificate_registrations import CertifiedRegistration, ProvisionRefused
from cloud.hub.registry.device_tenants import DeviceTenantRow
from cloud.hub.registry.devices import CredentialRow

GATEWAY_AUTHORITY: Final = "auto-provisioning-enabled"
"""Authority of a device that Hono registers as a gateway."""
_ID_BYTES: Final = 8


def describing(certificate: bytes) -> Callable[[DeviceTenantRow], CertifiedRegistration]:
    """Return what makes the registration of a certificate (DER) for the present state of its tenant."""
    return lambda tenant: describe(tenant, certificate)


def describe(tenant: DeviceTenantRow, certificate: bytes) -> CertifiedRegistration:
    """Return the registration of a device by its certificate (DER). Raises `ProvisionRefused`."""
    try:
        shown = x509.load_der_x509_certificate(certificate)
        found = stored_tenant(tenant.document)
        if found.enabled is False:
            raise ProvisionRefused(f"tenant {tenant.tenant} is disabled")
        limits = found.registration_limits
        if (
            limits is not None
            and limits.max_credentials_per_device not in (NO_LIMIT,)
            and (limits.max_credentials_per_device < 1)
        ):
            raise ProvisionRefused("its tenant allows no credentials of a device")
        authority = _authority_of(shown, authorities_of(found))
        auth_id = apply_template(authority.auth_id_template, shown.subject)
        name = provisioned_id(tenant.tenant, authority.auto_provisioning_device_id_template, shown.subject)
    except SubjectError as error:
        raise ProvisionRefused(str(error)) from None
    except (ValueError, UnsupportedAlgorithm, msgspec.MsgspecError):
        raise ProvisionRefused("its certificate, or the document of its tenant, cannot be read") from None
    document: dict[str, Any] = {"enabled": True}
    if authority.auto_provision_as_gateway:
        document["authorities"] = [GATEWAY_AUTHORITY]
    secret = StoredSecret(id=secrets.token_hex(_ID_BYTES))  # without an end: the next certificate has the same subject
    stored = StoredCredentials(type=CERTIFICATE, auth_id=auth_id, secrets=[secret])
    return CertifiedRegistration(name, document, CredentialRow(CERTIFICATE, auth_id, encode_document(stored)))


def counts_now(document: str, now: datetime.datetime) -> bool:
    """Return whether stored credentials of a certificate count at a time."""
    stored = msgspec.json.decode(document, type=StoredCredentials)
    return stored.enabled and any(
        each.enabled
        and (each.not_before is None or each.not_before <= now)
        and (each.not_after is None or now < each.not_after)
        for each in stored.secrets
    )


def _authority_of(shown: x509.Certificate, authorities: list[TrustedAuthority]) -> TrustedAuthority:
    """Return the authority that has issued a certificate and registers devices. Raises `ProvisionRefused`."""
    issued = []
    for each in authorities:
        certificate = x509.load_der_x509_certificate(anchor_of(each).certificate)
        if is_name_of(shown.issuer, certificate.subject) and has_issued(certificate, shown):
            issued.append(each)
    if not issued:
        raise ProvisionRefused("its tenant does not trust the authority of its certificate now")
    provisioning = [each for each in issued if each.auto_provisioning_enabled]
    if not provisioning:
        raise ProvisionRefused("auto-provisioning is off for the authority of its certificate")
    return provisioning[0]
