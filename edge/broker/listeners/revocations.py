"""Revoked client certificates (RFC 5280 section 5), from a file that is replaced by another program.

A list that cannot be used leaves the last one in force and is reported as a problem. Certificates fail closed: without
a list of their authority, or `GRACE_S` after the end of that list, they are refused. Until then the last list applies.
A late list is more often a publisher that is offline than an attack, a site must not lose all its devices when a list
ends, and a person needs a day to bring a new one. Connected clients stay until a list revokes their certificate.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from edge.broker.security.stamp import Stamp, stamp_of
from edge.output.times import moment

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger(__name__)

GRACE_S: Final = 86_400.0
"""Seconds that a list applies after its end."""

CRL_BYTES_MAX: Final = 1 << 20
"""Size of the file: some 25 000 certificates, which take 50 ms of the event loop."""

REFUSED: Final = "client certificates are refused"

_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


class RevocationsError(Exception):
    """A file has no usable list. The message names the file and the reason."""


class RevocationList(NamedTuple):
    """List of one authority."""

    serials: frozenset[int]
    ends_at: float | None
    """UTC seconds since 1970; None without an end."""


class ClientCertificate(NamedTuple):
    """A verified client certificate."""

    issuer: bytes
    """Name of the authority in DER."""
    serial: int


class ClientRevocations:
    """Revocation lists of the listeners; without a file no certificate is refused."""

    def __init__(self, path: str | None, authorities: str | None, now: Callable[[], float]) -> None:
        """Read the file. `authorities`: file with the certificates that sign the lists. `now` returns UTC seconds since
        1970. Blocks for the time of two small files."""
        self.fault: str | None = None
        """Why the current file is not in use; None if it is."""
        self.path = path
        """Path of the file; None: no certificate is refused."""
        self._authorities = authorities
        self._now = now
        self._stamp: Stamp = None
        self._lists: Mapping[bytes, RevocationList] = {}
        if path is not None:
            self._read()

    def follow(self, path: str | None) -> bool:
        """Use another file, or none. Return True after a change."""
        if path == self.path:
            return False
        self.path, self._stamp, self.fault = path, None, None
        if path is None:
            self._lists = {}
        else:
            self._read()
        return True

    def check(self) -> bool:
        """Read the file again if it has changed. Return True if the lists may have changed."""
        if self.path is None or stamp_of(self.path) == self._stamp:
            return False
        return self._read()

    def refusal(self, certificate: bytes) -> str | None:
        """Return why a client certificate (DER) is refused; None if it is accepted."""
        if self.path is None:
            return None
        shown = _shown(certificate)
        found = self._lists.get(shown.issuer)
        if found is None:
            return "no revocation list of its authority"
        if self._over(found):
            return "the revocation list of its authority has expired"
        return "it was revoked" if shown.serial in found.serials else None

    def is_revoked(self, certificate: bytes) -> bool:
        """Return True if a list names the certificate, also if the list has ended."""
        if not self._lists:
            return False
        shown = _shown(certificate)
        found = self._lists.get(shown.issuer)
        return found is not None and shown.serial in found.serials

    @property
    def closed(self) -> bool:
        """True if certificates of some authority are refused for lack of a list."""
        return self.path is not None and (not self._lists or any(map(self._over, self._lists.values())))

    @property
    def trouble(self) -> str | None:
        """The problem with the lists in words, or None."""
        if self.path is None:
            return None
        now, ends = self._now(), [each.ends_at for each in self._lists.values() if each.ends_at is not None]
        if not self._lists:
            return f"{self.fault}: {REFUSED}"
        if ends and min(ends) <= now:
            late = min(ends) + GRACE_S
            then = REFUSED if late <= now else f"it applies until {moment(late)}, then {REFUSED}"
            return f"the list of revoked client certificates {self.path} ended at {moment(min(ends))}: {then}"
        return f"{self.fault}: the previous lists apply" if self.fault is not None else None

    def _over(self, found: RevocationList) -> bool:
        return found.ends_at is not None and found.ends_at + GRACE_S <= self._now()

    def _read(self) -> bool:
        path = self.path or ""
        self._stamp = stamp_of(path)  # also if it is invalid: logged once, not at every check
        try:
            self._lists = dict(_lists(path, self._authorities))
        except RevocationsError as error:
            self.fault = str(error)
            log.warning("%s", self.trouble)
            return False
        self.fault = None
        log.info("read the list of revoked client certificates %s", path)
        return True


def _lists(path: str, authorities: str | None) -> Iterator[tuple[bytes, RevocationList]]:
    """Yield the lists of a file by authority. Raises `RevocationsError`."""
    from cryptography import x509  # noqa: PLC0415 - half a MiB, only with lists
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415

    try:
        content = _content(path)
        found = [x509.load_pem_x509_crl(each) for each in _PEM.findall(content)] or [x509.load_der_x509_crl(content)]
        signers = x509.load_pem_x509_certificates(Path(authorities or "").read_bytes())
        for each in found:
            _require_whole(each, signers)
            ends = each.next_update_utc
            serials = frozenset(revoked.serial_number for revoked in each)
            yield each.issuer.public_bytes(), RevocationList(serials, ends.timestamp() if ends is not None else None)
    except OSError as error:
        raise RevocationsError(f"the list of revoked client certificates {path}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RevocationsError(f"the list of revoked client certificates {path} cannot be used: {error}") from None


def _content(path: str) -> bytes:
    """Read a file. Raises OSError, ValueError."""
    with Path(path).open("rb") as file:
        content = file.read(CRL_BYTES_MAX + 1)
    if len(content) > CRL_BYTES_MAX:
        raise ValueError(f"it has more than {CRL_BYTES_MAX} bytes")
    return content


def _require_whole(found: x509.CertificateRevocationList, signers: Iterable[x509.Certificate]) -> None:
    """Raise ValueError for a list of an unknown authority, or a partial list (a delta, some reasons)."""
    name = found.issuer.rfc4514_string()
    mine = [each for each in signers if each.subject == found.issuer]
    if not mine:
        raise ValueError(f"its issuer {name} is not in clientCa")
    if not any(found.is_signature_valid(each.public_key()) for each in mine):  # type: ignore[arg-type]
        raise ValueError(f"its signature is not of {name}")
    for extension in found.extensions:
        if extension.critical:
            raise ValueError(f"it is partial: it has the critical extension {extension.oid.dotted_string}")


def _shown(certificate: bytes) -> ClientCertificate:
    from cryptography import x509  # noqa: PLC0415 - as above

    found = x509.load_der_x509_certificate(certificate)
    return ClientCertificate(found.issuer.public_bytes(), found.serial_number)
