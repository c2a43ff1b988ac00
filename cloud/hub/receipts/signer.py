"""Signs statements with a key of its own: `DATA/authority/receipts.pem`.

The authority signs only the certificate of that key, once in months, so a receipt can be verified with the certificate
of the authority alone, and the authority's own key signs nothing for each landing. Key and certificate share one file.
Both are made at the first request.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from bridge.landing_receipt import (
    LandingStatement,
    ReceiptAnswer,
    SignedLanding,
    base64url,
    protected_header,
    to_sign,
)
from cloud.hub.enrolment.authority import OwnAuthority, key_pem, new_key
from cloud.hub.enrolment.limits import RECEIPT_SIGNER_DAYS
from edge.broker.security.private_file import write_private

FILE: Final = "receipts.pem"
_COORDINATE_BYTES: Final = 32
"""Bytes of each half of an ES256 signature (RFC 7518 section 3.4)."""


class _Signer(NamedTuple):
    key: ec.EllipticCurvePrivateKey
    certificate: str
    protected: str
    due_at: float


class ReceiptSigner:
    """Key and certificate for statements. For one thread at a time."""

    def __init__(
        self, folder: Path, authority: Callable[[], OwnAuthority], now: Callable[[], float] = time.time
    ) -> None:
        """`folder` has the file. `authority` is called when a certificate is made; `now`: UTC seconds since 1970."""
        self._file = folder / FILE
        self._authority = authority
        self._now = now
        self._signer: _Signer | None = None

    def sign(self, statements: Iterable[LandingStatement]) -> ReceiptAnswer:
        """Sign statements. Raises OSError, and `cloud.hub.enrolment.files.AuthorityFileError`."""
        signer = self._keep()
        return ReceiptAnswer(signer.certificate, [_signed(signer, each) for each in statements])

    def _keep(self) -> _Signer:
        """Return the key; make a new one if it is missing, or at two thirds of the validity of its certificate."""
        now = self._now()
        if self._signer is None or now >= self._signer.due_at:
            authority = self._authority()
            self._signer = self._load(authority, now) or self._make(authority, now)
        return self._signer

    def _load(self, authority: OwnAuthority, now: float) -> _Signer | None:
        """Load the file; None if it cannot be used any longer."""
        try:
            written = self._file.read_bytes()
            certificate = x509.load_pem_x509_certificate(written)
            key = load_pem_private_key(written, None)
            certificate.verify_directly_issued_by(authority.certificate)
        except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            return None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            return None
        found = _signer_of(key, certificate)
        return found if now < found.due_at else None

    def _make(self, authority: OwnAuthority, now: float) -> _Signer:
        key = new_key()
        certificate = authority.receipt_certificate(key.public_key(), now, RECEIPT_SIGNER_DAYS * 86_400.0)
        write_private(self._file, key_pem(key) + certificate.public_bytes(Encoding.PEM).decode())
        return _signer_of(key, certificate)


def _signer_of(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> _Signer:
    begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    encoded = base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()
    header = protected_header(certificate.fingerprint(hashes.SHA256()))
    return _Signer(key, encoded, header, begins + (ends - begins) * 2 / 3)


def _signed(signer: _Signer, statement: LandingStatement) -> SignedLanding:
    payload = base64url(msgspec.json.encode(statement))
    r, s = decode_dss_signature(signer.key.sign(to_sign(signer.protected, payload), ec.ECDSA(hashes.SHA256())))
    return SignedLanding(
        protected=signer.protected,
        payload=payload,
        signature=base64url(r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES)),
    )
