"""The key a gateway signs its manifests with: Ed25519, made at the first signature, kept in the data directory.

It is the gateway's own until it has a certificate, whose key takes its place (`Signer` in `retention.manifests` is all
that is asked of one). Whoever reads the lake knows it by its public half, which is with each statement: the key that
an epoch of a gateway was stated with first is the one it has to be stated with from then on.
"""

from __future__ import annotations

import base64
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge.broker.store.errors import StoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE: Final = "manifest.key"
"""Its name in the data directory: 32 bytes, the private half as RFC 8032 has it."""

KEY_BYTES: Final = 32


class StatementKey:
    """Signs; it is read, or made, with the first thing it is asked for."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self._key: Ed25519PrivateKey | None = None

    @property
    def public_key(self) -> str:
        """``ed25519:`` and its public half, base64. Raises StoreError."""
        return "ed25519:" + base64.b64encode(self._loaded().public_key().public_bytes_raw()).decode()

    @property
    def known(self) -> str | None:
        """Its public half; None before it was made, or while it cannot be read."""
        try:
            return self.public_key if self._path.exists() else None
        except StoreError:
            return None

    def sign(self, digest: str) -> str:
        """The signature of a digest's text, base64. Raises StoreError."""
        return base64.b64encode(self._loaded().sign(digest.encode())).decode()

    def _loaded(self) -> Ed25519PrivateKey:
        if self._key is None:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - 10 MiB, for who has a hub
                Ed25519PrivateKey,
            )

            try:
                seed = self._path.read_bytes() if self._path.exists() else self._made()
                self._key = Ed25519PrivateKey.from_private_bytes(seed)
            except (OSError, ValueError) as error:
                raise StoreError(f"{self._path}: the key for manifests cannot be used: {error}") from error
        return self._key

    def _made(self) -> bytes:
        """A new one, durable under its name or not there at all. Raises OSError."""
        seed, fresh = os.urandom(KEY_BYTES), self._path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, seed)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.rename(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return seed
