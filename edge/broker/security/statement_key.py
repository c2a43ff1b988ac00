"""Key that a gateway signs its manifests with: Ed25519, created for the first signature, in the data directory.

It is used until the gateway has a certificate; then the certificate's key signs (see `Signer` in
`retention.manifests`). Each statement carries the public key. All statements of an epoch must be signed with the key of
the first one, which readers of the lake check.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.durable_file import replace_file
from edge.broker.store.errors import StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE: Final = "manifest.key"
"""File in the data directory: the 32 bytes of the private key (RFC 8032)."""

KEY_BYTES: Final = 32


class StatementKey:
    """Signs digests. The key is read, or created, when it is first used."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self._key: Ed25519PrivateKey | None = None

    @property
    def public_key(self) -> str:
        """``ed25519:`` and the public key in base64. Raises StoreError."""
        return "ed25519:" + base64.b64encode(self._loaded().public_key().public_bytes_raw()).decode()

    @property
    def known(self) -> str | None:
        """Public key; None if it does not exist yet or cannot be read."""
        try:
            return self.public_key if self._path.exists() else None
        except StoreError:
            return None

    def sign(self, digest: str) -> str:
        """Sign the text of a digest; return the signature in base64. Raises StoreError."""
        return base64.b64encode(self._loaded().sign(digest.encode())).decode()

    def _loaded(self) -> Ed25519PrivateKey:
        if self._key is None:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - 10 MiB, only with a hub
                Ed25519PrivateKey,
            )

            try:
                seed = self._path.read_bytes() if self._path.exists() else self._create()
                self._key = Ed25519PrivateKey.from_private_bytes(seed)
            except (OSError, ValueError) as error:
                raise StoreError(f"{self._path}: the key for manifests cannot be used: {error}") from error
        return self._key

    def _create(self) -> bytes:
        """Create a key atomically and durably. Raises OSError."""
        seed = os.urandom(KEY_BYTES)
        replace_file(self._path, seed)
        return seed
