"""Files of a gateway's identity: `DATA/identity`, readable by the gateway's user alone.

Key, certificate and the hub's authority are one file, so that one rename replaces all three: no crash leaves a key
with the wrong certificate, or a certificate with the authority of another hub. A key that was sent for a certificate is
kept until the certificate arrives: a repeated request with it gets the certificate of the lost answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bridge.durable_file import FOLDER_MODE, replace_file, sync_path
from edge.appliance.identity.location import identity_file
from edge.appliance.identity.request import key_pem, new_key

NEXT_KEY: Final = "next.key"


class GatewayIdentity:
    """Identity in one data directory."""

    def __init__(self, data: Path) -> None:
        self.file = identity_file(data)
        self._next_key = self.file.with_name(NEXT_KEY)

    @property
    def key_was_sent(self) -> bool:
        """True when there is a key that may have been sent for a certificate."""
        return self._next_key.exists()

    def key_to_send(self) -> ec.EllipticCurvePrivateKey:
        """Return the key for the next certificate, on disk: the one that was sent already, or a new one.

        Raises OSError.
        """
        try:
            kept = load_pem_private_key(self._next_key.read_bytes(), None)
            if isinstance(kept, ec.EllipticCurvePrivateKey):
                return kept
        except (FileNotFoundError, ValueError, TypeError):  # ValueError: a full card has cut it off
            pass
        made = new_key()
        self.file.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        replace_file(self._next_key, key_pem(made).encode())
        return made

    def forget_key(self) -> None:
        """Remove the key for the next certificate, which was not sent. Raises OSError."""
        self._next_key.unlink(missing_ok=True)
        if not any(self.file.parent.iterdir()):
            self.file.parent.rmdir()

    def replace(self, key: ec.EllipticCurvePrivateKey, certificate: str, authority: str) -> None:
        """Replace the identity by a new certificate and authority (PEM), on disk on return. Raises OSError."""
        replace_file(self.file, (key_pem(key) + certificate + authority).encode("ascii"))
        self._next_key.unlink(missing_ok=True)
        sync_path(self.file.parent)

    def authority(self) -> str:
        """Return the hub's authority (PEM), the last certificate in the file. Raises OSError, ValueError."""
        text = self.file.read_text("ascii")
        return text[text.rindex("-----BEGIN CERTIFICATE-----") :]

    def certificate(self) -> x509.Certificate:
        """Return the gateway's own certificate. Raises OSError, ValueError."""
        return x509.load_pem_x509_certificate(self.file.read_bytes())


def ends_at(pem: str) -> float:
    """Return when a certificate ends, in UTC seconds since 1970. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem.encode("ascii")).not_valid_after_utc.timestamp()
