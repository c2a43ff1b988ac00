"""Where the authority and the hub's own certificate are kept: `DATA/authority`, for the hub's user alone.

A key and its certificate are one file, so that one rename replaces both: no crash leaves a key with another's
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

from bridge.enrolment import COMMON_NAME_CHARACTERS_MAX
from cloud.hub.enrolment.authority import (
    OwnAuthority,
    Signed,
    key_id,
    key_pem,
    new_key,
)
from cloud.hub.enrolment.est import EstClient, EstError, EstServer
from cloud.hub.enrolment.limits import SERVER_DAYS
from cloud.hub.enrolment.registration import Registration
from edge.broker.configuration import TlsListener
from edge.broker.security.private_file import FILE_MODE, FOLDER_MODE, write_private
from edge.output.system_errors import write_advice

FOLDER: Final = "authority"
OWN: Final = "authority.pem"
"""Key and certificate of the authority."""
PUBLIC: Final = "ca.pem"
"""The certificate alone, for whoever wants to trust it."""
SERVER: Final = "server.pem"
"""Key and certificate of the hub's listeners."""
LOCK: Final = "lock"
HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class AuthorityFileError(Exception):
    """A file of the authority cannot be used; the message names it, the reason and the next step."""


def own_authority(data: Path, now: float, name: str) -> OwnAuthority:
    """The authority of a data directory, which is there; made where there is none yet, and on disk on return. Raises
    `AuthorityFileError`."""
    folder = data / FOLDER
    file = folder / OWN
    try:
        with _alone(folder):  # a command and the hub's first start may both find none
            if not file.exists():
                made = OwnAuthority.make(name, now)
                write_private(file, made.key_pem + made.pem)
            found = read_authority(file, file)
            if not (folder / PUBLIC).exists() or (folder / PUBLIC).read_text("ascii", "replace") != found.pem:
                write_private(folder / PUBLIC, found.pem)
    except OSError as error:
        raise AuthorityFileError(_unusable(folder, error)) from error
    return found


def authority_of(data: Path, given: tuple[Path, Path] | None, now: float) -> OwnAuthority:
    """The authority of a hub: the one that was given, as (certificate, key), or its own. Raises
    `AuthorityFileError`."""
    if given is None:
        return own_authority(data, now, f"Waypost hub {socket.gethostname()}"[:COMMON_NAME_CHARACTERS_MAX])
    authority = read_authority(*given)
    (data / FOLDER).mkdir(mode=FOLDER_MODE, exist_ok=True)
    write_private(data / FOLDER / PUBLIC, authority.pem)
    return authority


def read_authority(certificate: Path, key: Path) -> OwnAuthority:
    """An authority in PEM files. Raises `AuthorityFileError`."""
    try:
        own = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        raise AuthorityFileError(_unusable(Path(error.filename or certificate), error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        words = f"{certificate} with key {key} is no authority in PEM without a passphrase"
        raise AuthorityFileError(f"{words}; put back a copy of it: without it gateways have to enrol anew") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise AuthorityFileError(f"{key}: an authority's key is an elliptic curve's, or RSA")
    public = own.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) or (
        key_id(public) != key_id(private.public_key())
    ):
        raise AuthorityFileError(f"{key} is not the key of {certificate}; put both from the same copy there")
    if not _signs(own):
        raise AuthorityFileError(f"{certificate} is no authority's certificate: it may sign no others")
    return OwnAuthority(own, private)


def registration_of(data: Path, authority: OwnAuthority, server: EstServer) -> Registration:
    """With the authority of this server, whose certificates are known: of now, or of the last time where it is away.
    Raises `AuthorityFileError`. Blocks."""
    made = Registration(EstClient(server), data / FOLDER, authority.certificate)
    try:
        made.fetch()
    except EstError as error:
        if not made.recall():
            step = "the hub needs its certificates once before it starts; see `est` of the configuration"
            raise AuthorityFileError(f"{error}; {step}") from error
        made.trouble = str(error)
    except OSError as error:
        raise AuthorityFileError(_unusable(made.file, error)) from error
    return made


class Enroller(NamedTuple):
    """What a hub needs to let gateways enrol."""

    authority_files: tuple[Path, Path] | None
    """(certificate, key) of the authority that makes their certificates; None: the hub's own."""
    names: Sequence[str]
    """Names and addresses gateways reach the hub under."""
    life_s: float
    """Of a gateway's certificate."""
    ocsp_url: str | None = None
    """Where others can ask about certificates, as it is written into them; None: nowhere."""
    est: EstServer | None = None
    """Of another authority, which makes the gateways' certificates; None: the hub's does."""


def own_names() -> list[str]:
    """What this machine is called, and how it is reached from itself."""
    machine = socket.gethostname().lower()
    return [*([machine] if HOST.fullmatch(machine) else []), "localhost", "127.0.0.1", "::1"]


class ServerCertificate:
    """The certificate of the hub's own listeners: made, and renewed in time, by its own authority."""

    def __init__(self, data: Path, authority: OwnAuthority, names: Sequence[str], clients: Path | None = None) -> None:
        """`names` and addresses gateways reach the hub under, that of the subject first. `clients`: who certifies
        gateways; None: this authority alone."""
        self.file = data / FOLDER / SERVER
        self._clients = clients or data / FOLDER / PUBLIC
        self._authority = authority
        self._names = list(dict.fromkeys(str(name).lower() for name in names))
        self._due_at = float("-inf")

    @property
    def listener(self) -> TlsListener:
        """What listens with it. A client may come without a certificate: to enrol, or with a password."""
        own = str(self.file)
        return TlsListener(certificate=own, key=own, client_ca=str(self._clients))

    def keep(self, now: float) -> bool:
        """Make it where there is none, where it has other names or another authority, and at two thirds of its life;
        True when it is new. Raises `AuthorityFileError`."""
        if now < self._due_at and self.file.exists():
            return False
        found = self._read()
        if found is not None and now < _due_at(found):
            self._due_at = _due_at(found)
            return False
        key = new_key()
        made = self._authority.server_certificate(key.public_key(), self._names, now, SERVER_DAYS * 86_400.0)
        try:
            write_private(self.file, key_pem(key) + made.pem)
        except OSError as error:
            raise AuthorityFileError(_unusable(self.file, error)) from error
        self._due_at = now + (made.ends_at - now) * 2 / 3
        return True

    def shown(self) -> Signed | None:
        """What is there; None: nothing of its authority."""
        return _shown(self.file, self._authority)

    def _read(self) -> x509.Certificate | None:
        """None where it is of no use any more."""
        try:
            found = x509.load_pem_x509_certificate(self.file.read_bytes())
            found.verify_directly_issued_by(self._authority.certificate)
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound, x509.InvalidVersion):
            return None
        return found if {str(each.value) for each in names} == set(self._names) else None


def shown_certificate(data: Path, authority: OwnAuthority) -> Signed | None:
    """The hub's own, which its authority has made; None where there is none."""
    return _shown(data / FOLDER / SERVER, authority)


def _shown(file: Path, authority: OwnAuthority) -> Signed | None:
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
        found.verify_directly_issued_by(authority.certificate)
        key = found.public_key()
    except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        return None
    begins, ends = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return Signed(f"{found.serial_number:x}", found.public_bytes(Encoding.PEM).decode(), key_id(key), begins, ends)


def forget_certificate(data: Path) -> None:
    """The hub's own is thrown away: a hub that runs makes the next one within seconds, else at its start. Raises
    OSError."""
    (data / FOLDER / SERVER).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, made where there is none, against others who would make what is in it."""
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


def _signs(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _unusable(path: Path, error: OSError) -> str:
    return f"{path} cannot be used: {error.strerror}; {write_advice(error)}"
