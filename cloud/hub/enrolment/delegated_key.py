"""Key of a hub with which it signs by itself, and its certificate from the authority.

The authority signs only that certificate, so its own key does not sign each statement. Key and certificate share one
file. They are made at the first use, and again at two thirds of the validity.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from bridge.durable_file import replace_file
from cloud.hub.enrolment.authority import KnownAuthority, PublicKey, key_pem, new_key
from cloud.hub.enrolment.limits import DELEGATED_KEY_PAUSE_S, DELEGATED_KEY_RETRY_S

log = logging.getLogger(__name__)


class CertifiedKey(NamedTuple):
    """Key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def due_at(self) -> float:
        """Time of the next key, UTC seconds since 1970."""
        begins = self.certificate.not_valid_before_utc.timestamp()
        return begins + (self.certificate.not_valid_after_utc.timestamp() - begins) * 2 / 3

    @property
    def ends_at(self) -> float:
        """End of the certificate, UTC seconds since 1970."""
        return self.certificate.not_valid_after_utc.timestamp()


class DelegatedKey:
    """Key and certificate for one purpose. For one thread at a time."""

    def __init__(
        self,
        file: Path,
        authority: Callable[[], KnownAuthority],
        certify: Callable[[PublicKey, float], x509.Certificate],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`authority` is called when a certificate is read or made; `certify` has one made, and may block.

        `now`: UTC seconds since 1970.
        """
        self._file = file
        self._authority = authority
        self._certify = certify
        self._now = now
        self._current: CertifiedKey | None = None
        self._retry_at = float("-inf")
        self._failed: tuple[float, Exception] | None = None
        """Time and reason of the last failure without a valid key."""

    def keep(self) -> CertifiedKey:
        """Return the key; make a new one if it is missing or due.

        Raises OSError, and what `authority` and `certify` raise, unless the present one is still valid. Then it is
        used, and the next attempt is made `DELEGATED_KEY_RETRY_S` later. Without a valid one, the same error is raised
        for `DELEGATED_KEY_PAUSE_S`, so that many callers do not wait one behind the other.
        """
        now = self._now()
        if self._current is None:
            self._current = self._load(self._authority(), now)
        if self._failed is not None and 0 <= now - self._failed[0] < DELEGATED_KEY_PAUSE_S:
            raise self._failed[1]
        if self._current is not None and now < max(self._current.due_at, min(self._retry_at, self._current.ends_at)):
            return self._current
        try:
            self._current = self._make(now)
        except Exception as error:
            if self._current is None or now >= self._current.ends_at:
                self._failed = self._now(), error
                raise
            self._retry_at = now + DELEGATED_KEY_RETRY_S
            log.warning("%s cannot be renewed; the present key is valid for now: %s", self._file, error)
        else:
            self._failed = None
        return self._current

    def _load(self, authority: KnownAuthority, now: float) -> CertifiedKey | None:
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
        found = CertifiedKey(key, certificate)
        return found if now < found.ends_at else None

    def _make(self, now: float) -> CertifiedKey:
        key = new_key()
        certificate = self._certify(key.public_key(), now)
        replace_file(self._file, key_pem(key).encode() + certificate.public_bytes(Encoding.PEM))
        return CertifiedKey(key, certificate)
