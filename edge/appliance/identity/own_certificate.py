"""Certificate of a gateway's listeners with TLS, where the configuration names none.

It is the identity from the hub, if that is a server's certificate; else a self-signed one, which is made here and
renewed after two thirds of its time. The key stays the same, for clients that trust the key. A first line in the file
says when it is due, so that a running gateway does not load `cryptography` (10 MiB) to look.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.durable_file import FOLDER_MODE, replace_file
from edge.appliance.identity.location import identity_file

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SELF_SIGNED: Final = "self-signed.pem"
DAYS: Final = 820
"""Validity: some systems accept at most 825 days."""
DUE_DAYS: Final = DAYS * 2 // 3
BEFORE: Final = timedelta(days=1)
"""It is valid from a day before, for clients with a clock that is late."""
_DUE: Final = re.compile(r"\ARenewed from (\S+)\n")
_HOST: Final = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_COMMON_NAME_CHARACTERS_MAX: Final = 64


class OwnCertificate:
    """Certificate of one gateway, in its data directory."""

    def __init__(self, data: Path, name: str) -> None:
        """`name`: name of the gateway. Which certificate it is is decided now, until the gateway starts again."""
        identity = identity_file(data)
        self._name = name
        self._made = identity.with_name(SELF_SIGNED)
        self.file = identity if _is_of_server(identity) else self._made
        """File with key and certificate (PEM)."""
        self._due_at: datetime | None = None

    def due(self, now_s: float) -> bool:
        """Return True when `keep` has something to do. `now_s`: UTC seconds since 1970."""
        if self.file != self._made:
            return False  # its renewal is the hub's
        now = datetime.fromtimestamp(now_s, UTC)
        if self._due_at is None:
            self._due_at = self._read_due()
        # A clock that starts in the past does not make a new one at each start.
        return self._due_at is None or now >= self._due_at

    def keep(self, now_s: float) -> None:
        """Make the certificate if it is missing or due. Takes some 100 ms then. Raises OSError."""
        if not self.due(now_s):
            return
        from edge.appliance.identity.request import key_pem, new_key  # noqa: PLC0415 - see above

        now = datetime.fromtimestamp(now_s, UTC)
        key = self._kept_key() or new_key()
        due_at = (now + timedelta(days=DUE_DAYS)).replace(microsecond=0)
        self._made.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        head = f"Renewed from {due_at.isoformat()}\n"
        replace_file(self._made, (head + key_pem(key) + _self_signed(key, self._name, now)).encode())
        self._due_at = due_at

    def _read_due(self) -> datetime | None:
        try:
            found = _DUE.match(self._made.read_text("ascii", "replace"))
            return datetime.fromisoformat(found[1]) if found else None
        except (OSError, ValueError):
            return None

    def _kept_key(self) -> ec.EllipticCurvePrivateKey | None:
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

        try:
            kept = load_pem_private_key(self._made.read_bytes(), None)
        except (OSError, ValueError, TypeError):
            return None
        return kept if isinstance(kept, ec.EllipticCurvePrivateKey) else None


def fingerprint_of(file: Path) -> str:
    """Return the SHA-256 of the first certificate of a PEM file, as browsers show it. Raises OSError, ValueError."""
    _, begin, rest = file.read_text("ascii", "replace").partition(ssl.PEM_HEADER)
    body, end, _ = rest.partition(ssl.PEM_FOOTER)
    if not end:
        raise ValueError(f"{file} has no certificate")
    return fingerprint(ssl.PEM_cert_to_DER_cert(begin + body + end))


def fingerprint(der: bytes) -> str:
    """Return the SHA-256 of a certificate as browsers show it: ``AB:CD:…``."""
    return hashlib.sha256(der).digest().hex(":").upper()


def _is_of_server(identity: Path) -> bool:
    """Return True if the identity exists and is a server's certificate too; that of another authority may not be."""
    if not identity.exists():
        return False
    from cryptography import x509  # noqa: PLC0415

    from edge.appliance.identity.request import server_names  # noqa: PLC0415

    try:
        return bool(server_names(x509.load_pem_x509_certificate(identity.read_bytes())))
    except (OSError, ValueError):
        return False


def _self_signed(key: ec.EllipticCurvePrivateKey, name: str, now: datetime) -> str:
    """Return a certificate for the names of this machine (PEM), which signs no other certificate."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    common_name = name[:_COMMON_NAME_CHARACTERS_MAX] or "waypost"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now - BEFORE + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(list(_names(name))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
        .decode()
    )


def _names(name: str) -> Iterator[x509.GeneralName]:
    """Yield the names and addresses under which clients reach this machine."""
    import ipaddress  # noqa: PLC0415

    from cryptography import x509  # noqa: PLC0415

    machine = socket.gethostname()
    names = [name, f"{name}.local", machine, f"{machine.partition('.')[0]}.local", "localhost"]
    for each in dict.fromkeys(names):
        if len(each) <= 253 and _HOST.fullmatch(each):
            yield x509.DNSName(each.lower())
    for address in ("127.0.0.1", "::1", lan_address()):
        if address is not None:
            yield x509.IPAddress(ipaddress.ip_address(address))


def lan_address() -> str | None:
    """Return the address of this machine towards other networks; None without a network. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737): connecting a datagram socket only chooses a route
        except OSError:
            return None
        return str(sock.getsockname()[0])
