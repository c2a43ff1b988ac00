"""Certificate authority of the hub. No files and no clock: `now` is an argument.

`Authority` is the interface that enrolment needs. `KnownAuthority` is its certificate alone, where another process has
the key. `OwnAuthority` signs with its own key.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509 import ocsp
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

from bridge.certificate_signature import is_signed_by
from bridge.enrolment import COMMON_NAME_CHARACTERS_MAX, local_name
from bridge.landing_receipt import SIGNER_NAME
from cloud.hub.enrolment.limits import (
    AUTHORITY_BACKDATED_S,
    AUTHORITY_DAYS,
    BACKDATED_S,
    KEY_CURVES,
    REVOCATIONS_VALID_S,
    RSA_BITS,
)
from cloud.hub.peers import gateway_uri

DOCUMENT_SIGNING: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.3.36")
"""Purpose of a key: it signs documents (RFC 9336 section 3.1)."""

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class RequestError(ValueError):
    """The certificate signing request cannot be signed; the message says why."""


class SignedCertificate(NamedTuple):
    """Certificate signed by the authority."""

    serial: str
    """Serial number, hexadecimal."""
    pem: str
    """Certificate, followed by intermediates if there are any."""
    key_id: bytes
    """SHA-256 of the public key (its SubjectPublicKeyInfo)."""
    begins_at: float
    """UTC seconds since 1970, as `ends_at`."""
    ends_at: float


class RevokedCertificate(NamedTuple):
    """Revoked certificate."""

    serial: str
    at: float
    """UTC seconds since 1970."""


class AuthorityIdentity(Protocol):
    """Certificate of an authority."""

    @property
    def pem(self) -> str:
        """Certificate of the authority, PEM."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the authority's certificate (DER), as in tokens."""
        ...

    @property
    def certificate(self) -> x509.Certificate:
        """Certificate of the authority."""
        ...


class Authority(AuthorityIdentity, Protocol):
    """Authority that signs the gateways' certificates."""

    def gateway_certificate(
        self, key: PublicKey, tenant: str, gateway: str, now: float, life_s: float
    ) -> SignedCertificate:
        """Sign a certificate for a gateway, named in its URI (`cloud.hub.peers.gateway_uri`). The caller has checked
        the identity."""
        ...

    def revocations(self, revoked: Iterable[RevokedCertificate], number: int, now: float) -> bytes:
        """Sign a list of revoked certificates (RFC 5280 section 5), DER. `number` never decreases."""
        ...

    def sign_answer(self, answer: ocsp.OCSPResponseBuilder) -> bytes:
        """Sign an OCSP response (RFC 6960), DER."""
        ...

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement with ECDSA, or RSA with PKCS #1 v1.5, over SHA-256.

        Only for statements with a prefix that no certificate begins with (`bridge.desired.SIGNED_PREFIX`).
        """
        ...


class KnownAuthority:
    """Certificate of an authority. Another process may have the key."""

    def __init__(self, certificate: x509.Certificate) -> None:
        self._certificate = certificate

    @property
    def certificate(self) -> x509.Certificate:
        return self._certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def fingerprint(self) -> bytes:
        return self.certificate.fingerprint(hashes.SHA256())

    def has_signed(self, statement: bytes, signature: bytes) -> bool:
        """Return whether a signature is that of `Authority.sign` over a statement."""
        return is_signed_by(self.certificate, signature, statement)


class OwnAuthority(KnownAuthority):
    """Authority with a key held by the hub. A generated one has a P-256 key and is self-signed."""

    def __init__(self, certificate: x509.Certificate, key: PrivateKey) -> None:
        super().__init__(certificate)
        self._key = key
        self._ocsp_url: str | None = None
        self._hub_names: Collection[str] = ()

    @classmethod
    def make(cls, name: str, now: float) -> OwnAuthority:
        """Create an authority with a new key."""
        key = new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS * 86_400.0, AUTHORITY_BACKDATED_S)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def name_hub(self, names: Collection[str], ocsp_url: str | None = None) -> None:
        """Set the names of the hub. Gateways recognise the hub by them, so no gateway's certificate gets one.

        `ocsp_url` is written into certificates (RFC 5280 section 4.2.2.1).
        """
        self._hub_names, self._ocsp_url = names, ocsp_url

    @property
    def key_pem(self) -> str:
        """Private key for the authority's file; secret."""
        return key_pem(self._key)

    def gateway_certificate(
        self, key: PublicKey, tenant: str, gateway: str, now: float, life_s: float
    ) -> SignedCertificate:
        attributes = ((NameOID.ORGANIZATION_NAME, tenant), (NameOID.COMMON_NAME, gateway[:COMMON_NAME_CHARACTERS_MAX]))
        subject = x509.Name([x509.NameAttribute(*each) for each in attributes])
        backdated_s = min(BACKDATED_S, life_s / 10)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        named: list[x509.GeneralName] = [x509.UniformResourceIdentifier(gateway_uri(tenant, gateway))]
        local = local_name(gateway)
        if local and local not in self._hub_names:  # devices of its network may reach the gateway over TLS by this name
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            named.append(x509.DNSName(local))
        builder = self._leaf(subject, key, now, life_s, backdated_s, *purposes)
        return self._signed(builder.add_extension(x509.SubjectAlternativeName(named), critical=False), key)

    def server_certificate(self, key: PublicKey, names: Sequence[str], now: float, life_s: float) -> SignedCertificate:
        """Sign a certificate for the hub itself with these names and addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:COMMON_NAME_CHARACTERS_MAX])])
        builder = self._leaf(subject, key, now, life_s, AUTHORITY_BACKDATED_S, ExtendedKeyUsageOID.SERVER_AUTH)
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._signed(builder.add_extension(alternatives, critical=False), key)

    def receipt_certificate(self, key: PublicKey, now: float, life_s: float) -> x509.Certificate:
        """Sign a certificate for a key that signs landing receipts, and nothing else (RFC 9336)."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "landing receipts")])
        name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(SIGNER_NAME)])
        return (
            _builder(subject, self.certificate.subject, key, now, life_s, AUTHORITY_BACKDATED_S)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([DOCUMENT_SIGNING]), critical=True)
            .add_extension(name, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def ocsp_certificate(self, key: PublicKey, now: float, life_s: float) -> x509.Certificate:
        """Sign a certificate for a key that signs OCSP responses, and nothing else (RFC 6960 section 4.2.2.2)."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "OCSP responses")])
        return (
            _builder(subject, self.certificate.subject, key, now, life_s, AUTHORITY_BACKDATED_S)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING]), critical=False)
            .add_extension(x509.OCSPNoCheck(), critical=False)
            .add_extension(self._key_identifier(), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def revocations(self, revoked: Iterable[RevokedCertificate], number: int, now: float) -> bytes:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(_utc(now - AUTHORITY_BACKDATED_S))
            .next_update(_utc(now + REVOCATIONS_VALID_S))
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(int(each.serial, 16)).revocation_date(_utc(each.at))
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.DER)

    def sign_answer(self, answer: ocsp.OCSPResponseBuilder) -> bytes:
        return answer.sign(self._key, hashes.SHA256()).public_bytes(Encoding.DER)

    def sign(self, statement: bytes) -> bytes:
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(statement, ec.ECDSA(hashes.SHA256()))
        return self._key.sign(statement, padding.PKCS1v15(), hashes.SHA256())

    # --- inside -----------------------------------------------------------------------------------------------------

    def _leaf(
        self,
        subject: x509.Name,
        key: PublicKey,
        now: float,
        life_s: float,
        backdated_s: float,
        *purposes: x509.ObjectIdentifier,
    ) -> x509.CertificateBuilder:
        builder = (
            _builder(subject, self.certificate.subject, key, now, life_s, backdated_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        if self._ocsp_url is None:
            return builder
        place = x509.UniformResourceIdentifier(self._ocsp_url)
        asked = x509.AuthorityInformationAccess([x509.AccessDescription(AuthorityInformationAccessOID.OCSP, place)])
        return builder.add_extension(asked, critical=False)

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())

    def _signed(self, builder: x509.CertificateBuilder, key: PublicKey) -> SignedCertificate:
        made = builder.sign(self._key, hashes.SHA256())
        begins, ends = made.not_valid_before_utc.timestamp(), made.not_valid_after_utc.timestamp()
        return SignedCertificate(
            f"{made.serial_number:x}", made.public_bytes(Encoding.PEM).decode(), key_id(key), begins, ends
        )


def read_request(pem: str) -> PublicKey:
    """Return the key of a certificate signing request with a valid self-signature. Raises `RequestError`.

    Everything else in the request is ignored: the hub decides about identities.
    """
    try:
        request = x509.load_pem_x509_csr(pem.encode("ascii", "replace"))
        proven = request.is_signature_valid
        key = request.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise RequestError("the certificate signing request cannot be read") from error
    if not proven:
        raise RequestError("the certificate signing request is not signed with its own key")
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in KEY_CURVES:
        return key
    if isinstance(key, rsa.RSAPublicKey) and RSA_BITS[0] <= key.key_size <= RSA_BITS[1]:
        return key
    raise RequestError("the key must be on elliptic curve P-256 or P-384, or RSA with 2048 to 4096 bits")


def new_key() -> ec.EllipticCurvePrivateKey:
    """Generate a key on P-256: every TLS library supports it, and a Raspberry Pi signs a handshake in a millisecond."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> str:
    """Serialize a key as PKCS #8 without a passphrase, because the hub starts unattended."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def key_id(key: PublicKey) -> bytes:
    """Return the SHA-256 of a key's SubjectPublicKeyInfo."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now: float, life_s: float, backdated_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_utc(now - backdated_s))
        .not_valid_after(_utc(now + life_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key usage of an authority, or of a certificate for TLS."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
