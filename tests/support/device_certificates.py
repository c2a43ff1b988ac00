"""Authorities and certificates of devices, made in the process, and handshakes with them in memory."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ssl
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

_DAY: Final = datetime.timedelta(days=1)


def named(common_name: str, organization: str = "ACME", *, printable: bool = False) -> x509.Name:
    """Return a subject; `printable`: with another type of text than the library takes."""
    kind = _ASN1Type.PrintableString if printable else None
    parts = ((NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name))
    return x509.Name([x509.NameAttribute(oid, value, kind) for oid, value in parts])


class DeviceCertificate:
    """Certificate with its key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self.key = key

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def text(self) -> str:
        """Base64, as in Hono's documents."""
        return base64.b64encode(self.der).decode()

    def write(self, folder: Path, name: str, *above: DeviceCertificate) -> Path:
        """Write the certificate, those above it, and the key into one file."""
        file = folder / f"{name}.pem"
        chain = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in (self, *above))
        file.write_bytes(chain + self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return file


class DeviceAuthority(DeviceCertificate):
    """Authority that issues certificates of devices."""

    @classmethod
    def make(cls, name: str = "devices", *, printable: bool = False) -> Self:
        """Make one that has signed itself."""
        key, subject = ec.generate_private_key(ec.SECP256R1()), named(name, printable=printable)
        return cls(_signed(subject, key, subject, key, authority=True, days=2), key)

    def issue(self, common_name: str, *, days: int = 1, issuer: x509.Name | None = None) -> DeviceCertificate:
        """Issue the certificate of a device; `days`: its life, negative after its end; `issuer`: another name."""
        key = ec.generate_private_key(ec.SECP256R1())
        by = issuer or self.certificate.subject
        return DeviceCertificate(_signed(named(common_name), key, by, self.key, authority=False, days=days), key)

    def subordinate(self, subject: x509.Name) -> DeviceAuthority:
        """Issue the certificate of another authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _signed(subject, key, self.certificate.subject, self.key, authority=True, days=2)
        return DeviceAuthority(made, key)

    def document(self, **more: Any) -> dict[str, Any]:
        """Return the authority as an entry of Hono's `trusted-ca`."""
        return {"cert": self.text, **more}

    def key_document(self) -> dict[str, Any]:
        """Return the same, with the public key in place of the certificate."""
        found = self.certificate
        key = found.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return {
            "subject-dn": found.subject.rfc4514_string(),
            "public-key": base64.b64encode(key).decode(),
            "not-before": found.not_valid_before_utc.isoformat(),
            "not-after": found.not_valid_after_utc.isoformat(),
        }


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
    days: int,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    begin, end = (now - _DAY, now + days * _DAY) if days > 0 else (now + 2 * days * _DAY, now + days * _DAY)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
    made = made.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    return made.sign(by, hashes.SHA256())


def shake_hands(context: ssl.SSLContext, client: Path | None, authority: Path) -> ssl.SSLObject:
    """Do a handshake in memory; return the server's side. `client`: its certificate and key; `authority`: of the
    server. Raises ssl.SSLError if the server refuses."""
    trusting = ssl.create_default_context(cafile=str(authority))
    trusting.check_hostname = False
    if client is not None:
        trusting.load_cert_chain(client)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(up, down, server_side=True)
    peer = trusting.wrap_bio(down, up)
    waiting = {server, peer}
    for _ in range(20):
        for side in (server, peer):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.discard(side)
        if not waiting:
            return server
    raise AssertionError("the handshake does not end")
