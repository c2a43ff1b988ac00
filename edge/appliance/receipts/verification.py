"""Verify a landing receipt with the certificate of the hub's authority, at any time after it was given.

The certificate of the signer has to be valid at the time of the statement, not now.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from bridge.landing_receipt import (
    SIGNER_NAME,
    LandingReceipt,
    LandingStatement,
    ReceiptError,
    SignedLanding,
    from_base64url,
    statement_of,
    thumbprint_of,
    to_sign,
)

DOCUMENT_SIGNING: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.3.36")
"""Purpose in the certificate of the signer (RFC 9336 section 3.1)."""
_SIGNATURE_BYTES: Final = 64


def verify(receipt: LandingReceipt, authority: x509.Certificate) -> LandingStatement:
    """Return the statement of a receipt. Raises `ReceiptError` with the reason if it proves nothing."""
    signed, statement = receipt.statement, statement_of(receipt.statement)
    signer = _signer(signed)
    _require_purpose(signer, authority)
    _require_signature(signed, signer)
    at = datetime.datetime.fromtimestamp(statement.stated_at / 1e6, datetime.UTC)
    if not signer.not_valid_before_utc <= at <= signer.not_valid_after_utc:
        raise ReceiptError(f"the certificate of its signer was not valid at the time of the statement, {at}")
    named = (receipt.gateway, receipt.epoch, receipt.address, receipt.outcome)
    stated = (statement.gateway, statement.epoch, statement.address, statement.outcome)
    if named != stated or not statement.first <= receipt.sequence <= statement.last:
        raise ReceiptError("the signed statement is about other messages")
    return statement


def _signer(signed: SignedLanding) -> x509.Certificate:
    """Return the certificate of the signer, which the signed header names by its digest."""
    chain = signed.header.get("x5c", [])
    if len(chain) != 1:
        raise ReceiptError("it has no certificate of its signer")
    try:
        signer = x509.load_der_x509_certificate(base64.b64decode(chain[0], validate=True))
    except (binascii.Error, ValueError, x509.InvalidVersion):
        raise ReceiptError("the certificate of its signer cannot be read") from None
    if signer.fingerprint(hashes.SHA256()) != thumbprint_of(signed):
        raise ReceiptError("the certificate is not the one of its signer")
    return signer


def _require_purpose(signer: x509.Certificate, authority: x509.Certificate) -> None:
    """Check that the authority has made this certificate for receipts. Other certificates of it sign none."""
    try:
        signer.verify_directly_issued_by(authority)
        purposes = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = signer.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ReceiptError("the certificate of its signer is not for receipts") from None
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise ReceiptError("its signer is not from this authority") from None
    if DOCUMENT_SIGNING not in purposes or SIGNER_NAME not in names.get_values_for_type(x509.UniformResourceIdentifier):
        raise ReceiptError("the certificate of its signer is not for receipts")


def _require_signature(signed: SignedLanding, signer: x509.Certificate) -> None:
    key, raw = signer.public_key(), from_base64url(signed.signature)
    if not isinstance(key, ec.EllipticCurvePublicKey) or len(raw) != _SIGNATURE_BYTES:
        raise ReceiptError("its signature has another form")
    half = _SIGNATURE_BYTES // 2
    signature = encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))
    try:
        key.verify(signature, to_sign(signed.protected, signed.payload), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ReceiptError("its signature is not valid") from None
