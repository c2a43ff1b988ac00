"""Files of the authority and of the hub's own certificate: `DATA/authority`, private to the hub's user.

A key and its certificate share one file, so that one rename replaces both: no crash leaves a key with another
certificate.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from bridge.durable_file import FILE_MODE, FOLDER_MODE, replace_file
from bridge.enrolment import COMMON_NAME_CHARACTERS_MAX
from cloud.hub.enrolment.authority import (
    KnownAuthority,
    OwnAuthority,
    SignedCertificate,
    key_id,
    key_pem,
    new_key,
)
from cloud.hub.enrolment.est import EstClient, EstError, EstServer
from cloud.hub.enrolment.limits import SERVER_DAYS
from cloud.hub.enrolment.registration import Registration
from edge.broker.configuration import TlsListener
from edge.output.system_errors import write_advice

FOLDER: Final = "authority"
OWN: Final = "authority.pem"
"""Key and certificate of the authority."""
PUBLIC: Final = "ca.pem"
"""Certificate alone, for programs that trust the authority."""
SERVER: Final = "server.pem"
"""Key and certificate of the hub's listeners."""
OCSP_KEY: Final = "ocsp.pem"
"""Key and certificate for OCSP responses, where another process has the key of the authority."""
LOCK: Final = "lock"
HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class GivenAuthority(NamedTuple):
    """PEM files of an authority that the configuration names."""

    certificate: Path
    key: Path | None
    """None: the process `waypost hub authority` has the key."""


class AuthorityFileError(Exception):
    """A file of the authority cannot be used; the message names it, the reason and the next step."""


def load_own_authority(data: Path, now: float, name: str) -> OwnAuthority:
    """Load the authority of a data directory; create a missing one, synced on return. Raises `AuthorityFileError`."""
    folder = data / FOLDER
    file = folder / OWN
    try:
        with _locked(folder):  # a command and the hub may start at the same time
            if not file.exists():
                made = OwnAuthority.make(name, now)
                replace_file(file, (made.key_pem + made.pem).encode())
            found = read_authority(file, file)
            if not (folder / PUBLIC).exists() or (folder / PUBLIC).read_text("ascii", "replace") != found.pem:
                replace_file(folder / PUBLIC, found.pem.encode())
    except OSError as error:
        raise AuthorityFileError(_unusable(folder, error)) from error
    return found


def load_authority(data: Path, given: GivenAuthority | None, now: float) -> KnownAuthority:
    """Load the authority of a hub: the given one, or its own. Raises `AuthorityFileError`.

    It is an `OwnAuthority`, except if the given one has no key here.
    """
    if given is None:
        return load_own_authority(data, now, f"Waypost hub {socket.gethostname()}"[:COMMON_NAME_CHARACTERS_MAX])
    authority = read_given_authority(given)
    (data / FOLDER).mkdir(mode=FOLDER_MODE, exist_ok=True)
    replace_file(data / FOLDER / PUBLIC, authority.pem.encode())
    return authority


def read_given_authority(given: GivenAuthority) -> KnownAuthority:
    """Load the given authority, with its key if there is one. Raises `AuthorityFileError`."""
    if given.key is not None:
        return read_authority(given.certificate, given.key)
    try:
        own = x509.load_pem_x509_certificate(given.certificate.read_bytes())
        key = own.public_key()
    except OSError as error:
        raise AuthorityFileError(_unusable(given.certificate, error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise AuthorityFileError(f"{given.certificate} is not a certificate in PEM; copy it again") from error
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) or not _is_authority(own):
        raise AuthorityFileError(f"{given.certificate} is not an authority: it may not sign certificates")
    return KnownAuthority(own)


def read_authority(certificate: Path, key: Path) -> OwnAuthority:
    """Load an authority from PEM files. Raises `AuthorityFileError`."""
    try:
        own = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        raise AuthorityFileError(_unusable(Path(error.filename or certificate), error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        words = f"{certificate} with key {key} is not an authority in PEM without a passphrase"
        raise AuthorityFileError(f"{words}; restore a copy: without it all gateways have to enrol again") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise AuthorityFileError(f"{key}: the key of an authority must be an elliptic curve key or RSA")
    public = own.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) or (
        key_id(public) != key_id(private.public_key())
    ):
        raise AuthorityFileError(f"{key} is not the key of {certificate}; restore both from the same copy")
    if not _is_authority(own):
        raise AuthorityFileError(f"{certificate} is not an authority: it may not sign certificates")
    return OwnAuthority(own, private)


def connect_registration(data: Path, authority: KnownAuthority, server: EstServer) -> Registration:
    """Connect to the authority of an EST server.

    Its certificates are fetched now, or taken from the last time if it does not answer. Raises `AuthorityFileError`.
    Blocks.
    """
    made = Registration(EstClient(server), data / FOLDER, authority.certificate)
    try:
        made.fetch()
    except EstError as error:
        if not made.load_stored():
            step = "the hub needs its certificates once before it starts; check `est` of the configuration"
            raise AuthorityFileError(f"{error}; {step}") from error
        made.trouble = str(error)
    except OSError as error:
        raise AuthorityFileError(_unusable(made.file, error)) from error
    return made


class Enroller(NamedTuple):
    """Settings of enrolment."""

    authority_files: GivenAuthority | None
    """Authority that signs gateways' certificates; None for the hub's own."""
    names: Sequence[str]
    """Names and addresses of the hub for gateways."""
    life_s: float
    """Validity of a gateway's certificate."""
    ocsp_url: str | None = None
    """URL of the OCSP service, written into certificates; None if it is not public."""
    est: EstServer | None = None
    """Server of another authority that signs gateways' certificates; None for the hub's own."""


def machine_names() -> list[str]:
    """Return the name of this machine and its loopback names."""
    machine = socket.gethostname().lower()
    return [*([machine] if HOST.fullmatch(machine) else []), "localhost", "127.0.0.1", "::1"]


class ServerCertificate:
    """Certificate of the hub's own listeners, created and renewed by its own authority."""

    def __init__(
        self, data: Path, authority: KnownAuthority, names: Sequence[str], clients: Path | None = None
    ) -> None:
        """`names`: names and addresses of the hub, the subject's first. `clients`: file with the authorities of
        gateways' certificates; None for this authority alone."""
        self.file = data / FOLDER / SERVER
        self._clients = clients or data / FOLDER / PUBLIC
        self._authority = authority
        self.names = list(dict.fromkeys(str(name).lower() for name in names))
        self._due_at = float("-inf")

    @property
    def listener(self) -> TlsListener:
        """TLS settings of the listeners. Client certificates are optional: a client may enrol or use a password."""
        own = str(self.file)
        return TlsListener(certificate=own, key=own, client_ca=str(self._clients))

    def keep(self, now: float) -> bool:
        """Create the certificate if it is due (`is_due`) and the key of the authority is here.

        Return whether it is new. Raises `AuthorityFileError`.
        """
        if not isinstance(self._authority, OwnAuthority) or not self.is_due(now):
            return False
        key = new_key()
        made = self._authority.server_certificate(key.public_key(), self.names, now, SERVER_DAYS * 86_400.0)
        self.install(key, made.pem)
        return True

    def is_due(self, now: float) -> bool:
        """Return whether the certificate is missing, has other names or another authority, or is at two thirds of its
        validity."""
        if now < self._due_at and self.file.exists():
            return False
        found = self._read()
        self._due_at = _due_at(found) if found is not None else float("-inf")
        return now >= self._due_at

    def is_usable(self, now: float) -> bool:
        """Return whether there is a certificate with these names that has not ended."""
        found = self._read()
        return found is not None and now < found.not_valid_after_utc.timestamp()

    def install(self, key: ec.EllipticCurvePrivateKey, pem: str) -> None:
        """Store a certificate with its key. Raises `AuthorityFileError`."""
        try:
            replace_file(self.file, (key_pem(key) + pem).encode("ascii"))
        except OSError as error:
            raise AuthorityFileError(_unusable(self.file, error)) from error
        self._due_at = _due_at(x509.load_pem_x509_certificate(pem.encode("ascii")))

    def shown(self) -> SignedCertificate | None:
        """Return the current certificate; None without a valid one."""
        return _shown(self.file, self._authority)

    def _read(self) -> x509.Certificate | None:
        """Read the certificate; None if it can no longer be used."""
        try:
            found = x509.load_pem_x509_certificate(self.file.read_bytes())
            found.verify_directly_issued_by(self._authority.certificate)
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound, x509.InvalidVersion):
            return None
        return found if {str(each.value) for each in names} == set(self.names) else None


def hub_certificate(data: Path, authority: KnownAuthority) -> SignedCertificate | None:
    """Return the hub's own certificate; None without a valid one."""
    return _shown(data / FOLDER / SERVER, authority)


def _shown(file: Path, authority: KnownAuthority) -> SignedCertificate | None:
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
        found.verify_directly_issued_by(authority.certificate)
        key = found.public_key()
    except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        return None
    begins, ends = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return SignedCertificate(
        f"{found.serial_number:x}", found.public_bytes(Encoding.PEM).decode(), key_id(key), begins, ends
    )


def forget_certificate(data: Path) -> None:
    """Delete the hub's own certificate. A running hub creates the next one within seconds, else the next start does.
    Raises OSError."""
    (data / FOLDER / SERVER).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes that create its files; create it if missing."""
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _due_at(certificate: x509.Certificate) -> float:
    begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return begins + (ends - begins) * 2 / 3


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _unusable(path: Path, error: OSError) -> str:
    return f"{path} cannot be used: {error.strerror}; {write_advice(error)}"
