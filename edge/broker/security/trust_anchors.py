"""Authorities that the tenants of devices trust, found by the certificates that they have issued."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from bridge.certificate_subjects import SubjectError, apply_template
from bridge.device_pages import TrustAnchor

log = logging.getLogger(__name__)

_Name = tuple[frozenset[tuple[str, str]], ...]


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


class FoundIssuers(NamedTuple):
    """Authorities of a certificate."""

    named: bool
    """The certificate names one of the authorities as its issuer, rightly or not."""
    issuers: Sequence[CertificateIssuer] = ()
    """Authorities that have issued it, by tenant."""
    configured: bool = False
    """An authority of `clientCa` has issued it."""


class TrustedAuthorities:
    """Authorities of all tenants. Looking one up takes some 0.2 ms: a signature is verified."""

    def __init__(self, anchors: Mapping[str, Sequence[TrustAnchor]]) -> None:
        """`anchors` by tenant; one that cannot be read is left out, and logged."""
        self._by_name: dict[_Name, list[TenantAuthority]] = {}
        for tenant in sorted(anchors):
            for anchor in anchors[tenant]:
                try:
                    certificate = x509.load_der_x509_certificate(anchor.certificate)
                    name = _comparable(certificate.subject)
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
        known = self._by_name.get(_comparable(shown.issuer))
        if known is None:
            return FoundIssuers(named=False)
        local = any(_has_issued(x509.load_der_x509_certificate(each), shown) for each in configured)
        issuers = []
        for each in known:
            if _has_issued(each.certificate, shown):
                try:
                    auth_id = apply_template(each.anchor.auth_id_template, shown.subject)
                except SubjectError as error:
                    log.info("a certificate of authority %s of tenant %s: %s", each.anchor.id, each.tenant, error)
                    continue
                issuers.append(CertificateIssuer(each.tenant, each.anchor, auth_id))
        return FoundIssuers(True, issuers, local)


def _comparable(name: x509.Name) -> _Name:
    """Return a name in a form that is equal wherever OpenSSL takes two names for the same (RFC 5280 section 7.1): else
    a certificate could pass the handshake by an authority that is not found here."""
    return tuple(
        frozenset((each.oid.dotted_string, " ".join(str(each.value).split()).casefold()) for each in part)
        for part in name.rdns
    )


def _has_issued(issuer: x509.Certificate, shown: x509.Certificate) -> bool:
    """Return whether the key of an authority has signed a certificate. Names are compared before, as two types of text
    in them are the same name."""
    key, algorithm = issuer.public_key(), shown.signature_algorithm_parameters
    try:
        if isinstance(key, rsa.RSAPublicKey) and isinstance(algorithm, padding.PKCS1v15 | padding.PSS):
            used = shown.signature_hash_algorithm
            if used is None:
                return False
            key.verify(shown.signature, shown.tbs_certificate_bytes, algorithm, used)
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(algorithm, ec.ECDSA):
            key.verify(shown.signature, shown.tbs_certificate_bytes, algorithm)
        else:
            shown.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
