"""Paths of a gateway's identity in its data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = "identity"
FILE: Final = "identity.pem"
REVOKED: Final = "revoked.pem"
"""File with the revocation list of the hub's authority."""


def identity_file(data: Path) -> Path:
    """Return the path of the file with key, certificate and the hub's authority."""
    return data.resolve() / FOLDER / FILE


def hub_tls(identity: Path) -> dict[str, str]:
    """Return ``spec.hub.tls`` of the gateway with this identity file."""
    own, revoked = str(identity), str(identity.with_name(REVOKED))
    return {"caCert": own, "clientCert": own, "clientKey": own, "crl": revoked}
