"""Authorities of a tenant as gateways get them.

A gateway needs a certificate, as TLS does. The registry may know only the subject and the key of an authority, so each
one gets a certificate that is made here: with its subject, key and validity, and without a signature of its own. It
allows no authority below itself (`pathLenConstraint` 0): a certificate of a device is issued by the authority itself,
as in Hono.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key

from bridge.device_pages import TrustAnchor
from cloud.hub.devices.limits import OWNED_TENANTS_MAX, TRUST_ANCHORS_MAX
from cloud.hub.devices.tenants import TrustedAuthority, authorities_of, stored_tenant


def anchors_in(document: str) -> Iterator[TrustAnchor]:
    """Yield the authorities in the stored document of a tenant. Raises `ValueError` for a document that cannot be
    read."""
    for each in authorities_of(stored_tenant(document)):
        yield anchor_of(each)


def anchor_of(authority: TrustedAuthority) -> TrustAnchor:
    """Return a stored authority as gateways get it. Raises `ValueError` if it is incomplete."""
    if not (authority.id and authority.subject_dn and authority.public_key):
        raise ValueError("an authority lacks its id, subject or key")
    if authority.not_before is None or authority.not_after is None:
        raise ValueError("an authority lacks its validity")
    validity = authority.not_before, authority.not_after
    return TrustAnchor(
        id=authority.id,
        certificate=_certificate(authority.subject_dn, authority.public_key, *validity, authority.cert),
        auth_id_template=authority.auth_id_template,
        provisions=authority.auto_provisioning_enabled,
        device_id_template=authority.auto_provisioning_device_id_template,
    )


@lru_cache(maxsize=OWNED_TENANTS_MAX * TRUST_ANCHORS_MAX)
def _certificate(
    subject: str, key: str, not_before: datetime.datetime, not_after: datetime.datetime, cert: str | None
) -> bytes:
    """Return a certificate with these properties, in DER; its subject is that of `cert`, if there is one, byte by
    byte."""
    given = x509.load_der_x509_certificate(base64.b64decode(cert)) if cert else None
    name = given.subject if given is not None else x509.Name.from_rfc4514_string(subject)
    public_key: CertificatePublicKeyTypes = load_der_public_key(base64.b64decode(key))  # type: ignore[assignment]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public_key)
        .serial_number(1)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)
