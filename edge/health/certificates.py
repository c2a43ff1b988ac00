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
"""Time before the end from which a warning is shown: a gateway renews its certificate 30 days before the end, so the
renewal has then failed for two weeks."""

_FILE_BYTES_MAX: Final = 1 << 20


class CertificateError(ValueError):
    """The bytes are not a certificate."""


def validity_of(file: Path) -> tuple[float, float]:
    """Return when the first certificate of a PEM file begins and ends, in UTC seconds since 1970.

    Raises OSError, CertificateError.
    """
    first = _certificates(file)[0]
    return first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()


def certificate_problems(paths: Iterable[str], now: datetime.datetime) -> Iterator[FoundProblem]:
    """Find certificates in PEM files (each may have a chain) that have expired or expire soon."""
    for path in paths:
        try:
            ends = min(certificate.not_valid_after_utc for certificate in _certificates(Path(path)))
        except (OSError, CertificateError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield FoundProblem(f"certificate {path}", f"it cannot be read: {reason}", "put a PEM certificate there")
            continue
        if ends <= now:
            what = f"it expired on {ends:%Y-%m-%d}: peers that verify it refuse the connection"
            yield FoundProblem(f"certificate {path}", what, "renew it; the new file is loaded automatically")
        elif ends - now < SOON:
            what = f"it expires on {ends:%Y-%m-%d}"
            yield FoundProblem(
                f"certificate {path}", what, "renew it; the new file is loaded automatically", Severity.WARNING
            )


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, at least one. Raises CertificateError."""
    from cryptography import x509  # noqa: PLC0415 - 10 MiB, for gateways that have certificates

    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise CertificateError("it does not contain a PEM certificate") from error


def _certificates(file: Path) -> list[x509.Certificate]:
    """Return the certificates of a file, at least one. Raises OSError, CertificateError."""
    with file.open("rb") as content:
        return certificates_in(content.read(_FILE_BYTES_MAX))
