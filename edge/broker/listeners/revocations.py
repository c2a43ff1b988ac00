"""What the authorities of client certificates have revoked (RFC 5280 section 5), from a file that others replace.

A list that cannot be used leaves the one before in force, and is a problem with a name. It fails closed: where no list
of its authority is in force, or the one that is has ended `GRACE_S` ago, a certificate lets nobody in. Until then what
is known counts: a list that is late is more often a publisher that is away than somebody who keeps us from hearing of a
revocation, and a site must not lose all its devices at the minute a list ends; a day is what it takes a person to bring
one. Who is connected stays until a list says that its certificate is revoked.
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
"""How long a list counts behind its own end."""

CRL_BYTES_MAX: Final = 1 << 20
"""Of a file: some 25 000 certificates, which take the event loop 50 ms."""

NOBODY: Final = "client certificates let nobody in"

_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


class RevocationsError(Exception):
    """A file holds no lists that can be used; the message names it and the reason."""


class RevocationList(NamedTuple):
    """One authority's."""

    serials: frozenset[int]
    ends_at: float | None
    """UTC seconds since 1970; None: it does not say."""


class ClientCertificate(NamedTuple):
    """A verified client certificate."""

    issuer: bytes
    """DER of the authority's name."""
    serial: int


class ClientRevocations:
    """Those of the listeners; without a file nobody is refused."""

    def __init__(self, path: str | None, authorities: str | None, now: Callable[[], float]) -> None:
        """Reads the file. `authorities` is the file with the certificates of who signs the lists; `now`: UTC seconds
        since 1970. Blocks for the time of two small files."""
        self.fault: str | None = None
        """Why the file as it is now is not in force; None: it is."""
        self.path = path
        """The file that counts; None: nobody is refused."""
        self._authorities = authorities
        self._now = now
        self._stamp: Stamp = None
        self._lists: Mapping[bytes, RevocationList] = {}
        if path is not None:
            self._read()

    def follow(self, path: str | None) -> bool:
        """The lists are in another file, or nobody is refused any more; True when that is a change."""
        if path == self.path:
            return False
        self.path, self._stamp, self.fault = path, None, None
        if path is None:
            self._lists = {}
        else:
            self._read()
        return True

    def check(self) -> bool:
        """Read the file again when it has changed; True when other lists may be in force now."""
        if self.path is None or stamp_of(self.path) == self._stamp:
            return False
        return self._read()

    def refusal(self, certificate: bytes) -> str | None:
        """Why the holder of a client certificate, DER, is not let in; None: it is."""
        if self.path is None:
            return None
        shown = _shown(certificate)
        found = self._lists.get(shown.issuer)
        if found is None:
            return "there is no list of what its authority has revoked"
        if self._over(found):
            return "the list of what its authority has revoked has ended"
        return "it was revoked" if shown.serial in found.serials else None

    def is_revoked(self, certificate: bytes) -> bool:
        """A list names it, whether or not that has ended."""
        shown = _shown(certificate)
        found = self._lists.get(shown.issuer)
        return found is not None and shown.serial in found.serials

    @property
    def closed(self) -> bool:
        """Some certificate of an authority lets nobody in, as nobody knows what that has revoked."""
        return self.path is not None and (not self._lists or any(map(self._over, self._lists.values())))

    @property
    def trouble(self) -> str | None:
        """What is wrong with the lists, for a person."""
        if self.path is None:
            return None
        now, ends = self._now(), [each.ends_at for each in self._lists.values() if each.ends_at is not None]
        if not self._lists:
            return f"{self.fault}: {NOBODY}"
        if ends and min(ends) <= now:
            late = min(ends) + GRACE_S
            then = NOBODY if late <= now else f"it counts until {moment(late)}, then {NOBODY}"
            return f"the list of revoked client certificates {self.path} ended at {moment(min(ends))}: {then}"
        return f"{self.fault}: the lists before it count" if self.fault is not None else None

    def _over(self, found: RevocationList) -> bool:
        return found.ends_at is not None and found.ends_at + GRACE_S <= self._now()

    def _read(self) -> bool:
        path = self.path or ""
        self._stamp = stamp_of(path)  # also when it is bad: said once, not at every check
        try:
            self._lists = dict(_lists(path, self._authorities))
        except RevocationsError as error:
            self.fault = str(error)
            log.warning("%s", self.trouble)
            return False
        self.fault = None
        log.info("the list of revoked client certificates %s is read", path)
        return True


def _lists(path: str, authorities: str | None) -> Iterator[tuple[bytes, RevocationList]]:
    """Raises `RevocationsError`."""
    from cryptography import x509  # noqa: PLC0415 - half a MiB that who has no such list does not need
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
    """Raises OSError, ValueError."""
    with Path(path).open("rb") as file:
        content = file.read(CRL_BYTES_MAX + 1)
    if len(content) > CRL_BYTES_MAX:
        raise ValueError(f"it has more than {CRL_BYTES_MAX} bytes")
    return content


def _require_whole(found: x509.CertificateRevocationList, signers: Iterable[x509.Certificate]) -> None:
    """Raises ValueError where a list is of nobody we know, or says a part only (a delta, some reasons)."""
    name = found.issuer.rfc4514_string()
    mine = [each for each in signers if each.subject == found.issuer]
    if not mine:
        raise ValueError(f"it is of {name}, which is not in clientCa")
    if not any(found.is_signature_valid(each.public_key()) for each in mine):  # type: ignore[arg-type]
        raise ValueError(f"{name} has not signed it")
    for extension in found.extensions:
        if extension.critical:
            raise ValueError(f"it is not whole: it has the extension {extension.oid.dotted_string}")


def _shown(certificate: bytes) -> ClientCertificate:
    from cryptography import x509  # noqa: PLC0415 - as above

    found = x509.load_der_x509_certificate(certificate)
    return ClientCertificate(found.issuer.public_bytes(), found.serial_number)
