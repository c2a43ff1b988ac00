"""Signatures by the key of a certificate, as an authority makes them: ECDSA or RSA PKCS #1 v1.5, with SHA-256."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa


def is_signed_by(certificate: x509.Certificate, signature: bytes, statement: bytes) -> bool:
    """Return whether a signature over a statement is that of the certificate's key; False for other kinds of keys."""
    key = certificate.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, statement, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, statement, padding.PKCS1v15(), hashes.SHA256())
        else:
            return False
    except InvalidSignature:
        return False
    return True
