"""When certificates end. Read from DER by hand: a library for it takes 10 MiB of a gateway's memory."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from edge.health.problems import Found, Severity

SOON: Final = datetime.timedelta(days=14)
"""Who renews by itself does so at a third of 90 days; two weeks before the end nobody has."""

_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0
_FILE_BYTES_MAX: Final = 1 << 20


class CertificateError(ValueError):
    """These bytes are no certificate."""


def not_after(der: bytes) -> datetime.datetime:
    """The end of a certificate's validity. Raises CertificateError."""
    return validity(der)[1]


def validity_of(file: Path) -> tuple[float, float]:
    """When the first certificate of a PEM file begins and ends, UTC seconds since 1970. Raises OSError,
    CertificateError."""
    pems = _pems(file.read_bytes()[:_FILE_BYTES_MAX].decode("ascii", "replace"))
    if not pems:
        raise CertificateError("no PEM certificate is in it")
    try:
        begins, ends = validity(ssl.PEM_cert_to_DER_cert(pems[0]))
    except ValueError as error:
        raise CertificateError("its PEM cannot be read") from error
    return begins.timestamp(), ends.timestamp()


def validity(der: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """When a certificate begins and ends (RFC 5280 section 4.1.2.5). Raises CertificateError."""
    try:
        certificate = _content(der, 0)
        fields = _content(certificate, 0)
        at = 0
        if fields[0] == _VERSION:
            at = _end(fields, at)
        for _ in ("serialNumber", "signature", "issuer"):
            at = _end(fields, at)
        times = _content(fields, at)
        return _time(times, 0), _time(times, _end(times, 0))
    except (IndexError, ValueError) as error:
        raise CertificateError("no certificate can be read") from error


def _time(times: bytes, at: int) -> datetime.datetime:
    text = _content(times, at).decode("ascii")
    if times[at] == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif times[at] != _GENERALIZED_TIME:
        raise CertificateError("its validity has no time")
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)


def certificate_problems(paths: Iterable[str], now: datetime.datetime) -> Iterator[Found]:
    """Of PEM files (each may have a chain): those that have ended, and those that end soon."""
    for path in paths:
        try:
            text = Path(path).read_bytes()[:_FILE_BYTES_MAX].decode("ascii")
            ends = min(not_after(ssl.PEM_cert_to_DER_cert(each)) for each in _pems(text))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no PEM certificate is in it"
            yield Found(f"certificate {path}", f"it cannot be read: {reason}", "put a PEM certificate there")
            continue
        if ends <= now:
            what = f"it ended on {ends:%Y-%m-%d}: whoever checks it refuses the connection"
            yield Found(f"certificate {path}", what, "renew it; a new file is loaded by itself")
        elif ends - now < SOON:
            what = f"it ends on {ends:%Y-%m-%d}"
            yield Found(f"certificate {path}", what, "renew it; a new file is loaded by itself", Severity.WARNING)


def _pems(text: str) -> list[str]:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return [f"{begin}{part.split(end, 1)[0]}{end}\n" for part in text.split(begin)[1:]]


def _span(data: bytes, at: int) -> tuple[int, int]:
    """(where the content of the element at `at` begins, where it ends)."""
    length, begin = data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        if not 0 < size <= 4:
            raise CertificateError("not DER")
        length, begin = int.from_bytes(data[begin : begin + size]), begin + size
    if begin + length > len(data):
        raise CertificateError("cut short")
    return begin, begin + length


def _content(data: bytes, at: int) -> bytes:
    begin, end = _span(data, at)
    return data[begin:end]


def _end(data: bytes, at: int) -> int:
    return _span(data, at)[1]
