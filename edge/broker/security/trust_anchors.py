"""Authorities that the tenants of devices trust, found by the certificates that they have issued."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from bridge.certificate_subjects import SubjectError, apply_template, provisioned_id
from bridge.device_pages import TrustAnchor
from bridge.issued_certificates import ComparableName, comparable_name, has_issued

log = logging.getLogger(__name__)


class TenantAuthority(NamedTuple):
    """Authority of one tenant."""

    tenant: str
    anchor: TrustAnchor
    certificate: x509.Certificate


class CertificateIssuer(NamedTuple):
    """Authority that has issued a certificate, and the identifier in that."""

    tenant: str
    anchor: TrustAnchor
    auth_id: str
    device: str
    """Id of the device if it is registered by the certificate; empty if it cannot be."""


class FoundIssuers(NamedTuple):
    """Authorities of a certificate."""

    named: bool
    """The certificate names one of the authorities as its issuer, rightly or not."""
    issuers: Sequence[CertificateIssuer] = ()
    """Authorities that have issued it, by tenant."""
    configured: bool = False
    """An authority of `clientCa` has issued it."""
    common_names: Sequence[str] = ()
    """Common names in the subject."""


class TrustedAuthorities:
    """Authorities of all tenants. Looking one up verifies a signature: 2 ms on a busy machine."""

    def __init__(self, anchors: Mapping[str, Sequence[TrustAnchor]]) -> None:
        """`anchors` by tenant; one that cannot be read is left out, and logged."""
        self._by_name: dict[ComparableName, list[TenantAuthority]] = {}
        for tenant in sorted(anchors):
            for anchor in anchors[tenant]:
                try:
                    certificate = x509.load_der_x509_certificate(anchor.certificate)
                    name = comparable_name(certificate.subject)
                except (ValueError, UnsupportedAlgorithm) as error:
                    log.warning(
                        "authority %s of tenant %s cannot be read, and is not trusted: %s", anchor.id, tenant, error
                    )
                    continue
                self._by_name.setdefault(name, []).append(TenantAuthority(tenant, anchor, certificate))

    @property
    def certificates(self) -> list[bytes]:
        """Certificates of the authorities, in DER."""
        return [each.anchor.certificate for known in self._by_name.values() for each in known]

    def issuers_of(self, certificate: bytes, configured: Iterable[bytes]) -> FoundIssuers:
        """Return the authorities that have issued a certificate (DER). `configured`: see `FoundIssuers.configured`."""
        shown = x509.load_der_x509_certificate(certificate)
        known = self._by_name.get(comparable_name(shown.issuer))
        if known is None:
            return FoundIssuers(named=False)
        local = any(has_issued(x509.load_der_x509_certificate(each), shown) for each in configured)
        issuers = [issuer for each in known if (issuer := _issuer(each, shown)) is not None]
        names = [str(each.value) for each in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return FoundIssuers(True, issuers, local, names)


def _issuer(known: TenantAuthority, shown: x509.Certificate) -> CertificateIssuer | None:
    """Return what an authority makes of a certificate; None if it has not issued it, or no identifier."""
    tenant, anchor, certificate = known
    if not has_issued(certificate, shown):
        return None
    try:
        auth_id = apply_template(anchor.auth_id_template, shown.subject)
        device = provisioned_id(tenant, anchor.device_id_template, shown.subject) if anchor.provisions else ""
    except SubjectError as error:
        log.info("a certificate of authority %s of tenant %s: %s", anchor.id, tenant, error)
        return None
    return CertificateIssuer(tenant, anchor, auth_id, device)
