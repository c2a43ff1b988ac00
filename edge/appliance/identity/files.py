"""Where a gateway keeps who it is: `DATA/identity`, for the gateway's user alone.

Key, certificate and the hub's authority are one file, so that one rename replaces all three: no crash leaves a key with
another one's certificate, or a certificate with another hub's authority. A key that has been sent for a certificate is
kept until the certificate is there: whoever asks again with it gets what the lost answer had.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from edge.appliance.identity.location import identity_file
from edge.appliance.identity.request import key_pem, new_key
from edge.broker.security.private_file import FOLDER_MODE, sync_folder, write_private

NEXT_KEY: Final = "next.key"


class GatewayIdentity:
    """That of one data directory."""

    def __init__(self, data: Path) -> None:
        self.file = identity_file(data)
        self._next_key = self.file.with_name(NEXT_KEY)

    @property
    def key_was_sent(self) -> bool:
        """There is a key that was sent for a certificate, as far as anybody knows."""
        return self._next_key.exists()

    def key_to_send(self) -> ec.EllipticCurvePrivateKey:
        """The key of the next certificate: the one that was sent already, or a new one; on disk on return. Raises
        OSError."""
        try:
            kept = load_pem_private_key(self._next_key.read_bytes(), None)
            if isinstance(kept, ec.EllipticCurvePrivateKey):
                return kept
        except (FileNotFoundError, ValueError, TypeError):  # ValueError: a full card has cut it off
            pass
        made = new_key()
        self.file.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        write_private(self._next_key, key_pem(made))
        return made

    def forget_key(self) -> None:
        """The key was sent to nobody, and will not be. Raises OSError."""
        self._next_key.unlink(missing_ok=True)
        if not any(self.file.parent.iterdir()):
            self.file.parent.rmdir()

    def become(self, key: ec.EllipticCurvePrivateKey, certificate: str, authority: str) -> None:
        """Be who the certificate says (PEM, as `authority` is); on disk on return. Raises OSError."""
        write_private(self.file, key_pem(key) + certificate + authority)
        self._next_key.unlink(missing_ok=True)
        sync_folder(self.file.parent)

    def authority(self) -> str:
        """The hub's authority, PEM: the last certificate in the file. Raises OSError, ValueError."""
        text = self.file.read_text("ascii")
        return text[text.rindex("-----BEGIN CERTIFICATE-----") :]

    def certificate(self) -> x509.Certificate:
        """The gateway's own. Raises OSError, ValueError."""
        return x509.load_pem_x509_certificate(self.file.read_bytes())


def ends_at(pem: str) -> float:
    """When a certificate ends, UTC seconds since 1970. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem.encode("ascii")).not_valid_after_utc.timestamp()
