"""Record of revocations in a file next to the authority: a registry restored from a backup lacks the latest ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import FOLDER_MODE, replace_file
from cloud.hub.registry.enrolments import CertificateRecord

REVOKED: Final = "revoked.json"


class RevokedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One revoked certificate. Times are UTC microseconds since 1970."""

    serial: str
    tenant: str
    gateway: str
    begins_at: int
    ends_at: int
    revoked_at: int


class RevocationRecord:
    """File with the revocations of one hub. Every method blocks and raises OSError."""

    def __init__(self, folder: Path) -> None:
        """`folder`: folder of the authority, created if missing."""
        self._folder = folder
        self._file = folder / REVOKED

    def read(self, now_us: int) -> list[CertificateRecord]:
        """Return the revoked certificates that have not expired. Raises ValueError for an invalid file."""
        try:
            entries = msgspec.json.decode(self._file.read_bytes(), type=list[RevokedEntry])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise ValueError(f"{self._file} is not a list of revoked certificates: {error}") from error
        return [
            CertificateRecord(each.serial, each.tenant, each.gateway, b"", each.begins_at, each.ends_at, None, "")
            for each in entries
            if each.ends_at > now_us
        ]

    def write(self, revoked: Iterable[CertificateRecord], now_us: int) -> None:
        """Replace the file with these certificates, without expired ones."""
        entries = [
            RevokedEntry(*each[:3], each.begins_at, each.ends_at, each.revoked_at or now_us)
            for each in sorted(revoked, key=lambda each: each.serial)
            if each.ends_at > now_us
        ]
        self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        replace_file(self._file, json.dumps(msgspec.to_builtins(entries)).encode())
