"""Issuers of certificates: names as OpenSSL compares them, and signatures. Pure."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

ComparableName = tuple[frozenset[tuple[str, str]], ...]


def comparable_name(name: x509.Name) -> ComparableName:
    """Return a name in a form that is equal wherever OpenSSL takes two names for the same (RFC 5280 section 7.1): else
    a certificate could pass the handshake by an authority that is not found here."""
    return tuple(
        frozenset((each.oid.dotted_string, " ".join(str(each.value).split()).casefold()) for each in part)
        for part in name.rdns
    )


def is_name_of(one: x509.Name, other: x509.Name) -> bool:
    """Return whether two names are the same."""
    return comparable_name(one) == comparable_name(other)


def has_issued(issuer: x509.Certificate, shown: x509.Certificate) -> bool:
    """Return whether the key of an authority has signed a certificate. Names are compared before, as two types of text
    in them are the same name."""
    try:
        key, algorithm = issuer.public_key(), shown.signature_algorithm_parameters
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
