"""Validity of certificates, and problems with it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge.health.problems import FoundProblem, Severity

if TYPE_CHECKING:
    from cryptography import x509

SOON: Final = datetime.timedelta(days=14)
"""A gateway renews its certificate at a third of 90 days; two weeks before the end that has failed."""

_FILE_BYTES_MAX: Final = 1 << 20


class CertificateError(ValueError):
    """These bytes are no certificate."""


def validity_of(file: Path) -> tuple[float, float]:
    """Return when the first certificate of a PEM file begins and ends, in UTC seconds since 1970.

    Raises OSError, CertificateError.
    """
    first = _certificates(file)[0]
    return first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()


def certificate_problems(paths: Iterable[str], now: datetime.datetime) -> Iterator[FoundProblem]:
    """Find those of PEM files (each may have a chain) that have ended, and those that end soon."""
    for path in paths:
        try:
            ends = min(certificate.not_valid_after_utc for certificate in _certificates(Path(path)))
        except (OSError, CertificateError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield FoundProblem(f"certificate {path}", f"it cannot be read: {reason}", "put a PEM certificate there")
            continue
        if ends <= now:
            what = f"it ended on {ends:%Y-%m-%d}: whoever checks it refuses the connection"
            yield FoundProblem(f"certificate {path}", what, "renew it; a new file is loaded by itself")
        elif ends - now < SOON:
            what = f"it ends on {ends:%Y-%m-%d}"
            yield FoundProblem(
                f"certificate {path}", what, "renew it; a new file is loaded by itself", Severity.WARNING
            )


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, at least one. Raises CertificateError."""
    from cryptography import x509  # noqa: PLC0415 - 10 MiB, for gateways that have certificates

    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise CertificateError("no PEM certificate is in it") from error


def _certificates(file: Path) -> list[x509.Certificate]:
    """Return the certificates of a file, at least one. Raises OSError, CertificateError."""
    with file.open("rb") as content:
        return certificates_in(content.read(_FILE_BYTES_MAX))
