"""Signs statements with a key of its own: `DATA/authority/receipts.pem`.

The authority signs only the certificate of that key, once in months, so a receipt can be verified with the certificate
of the authority alone, and the authority's own key signs nothing for each landing.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from bridge.landing_receipt import (
    LandingStatement,
    ReceiptAnswer,
    SignedLanding,
    base64url,
    protected_header,
    to_sign,
)
from cloud.hub.enrolment.authority import KnownAuthority, OwnAuthority, PublicKey
from cloud.hub.enrolment.delegated_key import CertifiedKey, DelegatedKey
from cloud.hub.enrolment.limits import RECEIPT_SIGNER_DAYS

FILE: Final = "receipts.pem"
_COORDINATE_BYTES: Final = 32
"""Bytes of each half of an ES256 signature (RFC 7518 section 3.4)."""


class _Signer(NamedTuple):
    own: CertifiedKey
    certificate: str
    protected: str


class ReceiptSigner:
    """Signs statements. For one thread at a time."""

    def __init__(
        self,
        folder: Path,
        authority: Callable[[], KnownAuthority],
        certify: Callable[[PublicKey, float], x509.Certificate],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`folder` has the file. The others are those of `cloud.hub.enrolment.delegated_key.DelegatedKey`."""
        self._key = DelegatedKey(folder / FILE, authority, certify, now)
        self._signer: _Signer | None = None

    def sign(self, statements: Iterable[LandingStatement]) -> ReceiptAnswer:
        """Sign statements. Raises what `DelegatedKey.keep` raises."""
        own = self._key.keep()
        if self._signer is None or self._signer.own is not own:
            self._signer = _signer_of(own)
        signer = self._signer
        return ReceiptAnswer(signer.certificate, [_signed(signer, each) for each in statements])


def certify_receipts(load: Callable[[float], KnownAuthority], key: PublicKey, now: float) -> x509.Certificate:
    """Certify a key for receipts with the key of the authority that `load` returns. Raises what `load` raises."""
    authority = load(now)
    if not isinstance(authority, OwnAuthority):
        raise TypeError("the key of the authority is not here")
    return authority.receipt_certificate(key, now, RECEIPT_SIGNER_DAYS * 86_400.0)


def _signer_of(own: CertifiedKey) -> _Signer:
    encoded = base64.b64encode(own.certificate.public_bytes(Encoding.DER)).decode()
    return _Signer(own, encoded, protected_header(own.certificate.fingerprint(hashes.SHA256())))


def _signed(signer: _Signer, statement: LandingStatement) -> SignedLanding:
    payload = base64url(msgspec.json.encode(statement))
    r, s = decode_dss_signature(signer.own.key.sign(to_sign(signer.protected, payload), ec.ECDSA(hashes.SHA256())))
    return SignedLanding(
        protected=signer.protected,
        payload=payload,
        signature=base64url(r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES)),
    )
