"""Keys, certificate signing requests, and checks of issued certificates, without I/O."""

from __future__ import annotations

from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bridge.enrolment import COMMON_NAME_CHARACTERS_MAX, IssuedCertificate


class CertificateMismatch(ValueError):
    """The hub sent a certificate that is not for this gateway. The message says why."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key on curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a key as PKCS #8, without a passphrase, as a gateway starts unattended."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def signing_request(key: ec.EllipticCurvePrivateKey, gateway_uri: str = "") -> str:
    """Return a request (PKCS #10, PEM), signed by the key. The hub decides the name in the certificate; `gateway_uri`
    is for an authority behind the hub that takes the name of the request."""
    common_name = unquote(gateway_uri.rpartition("/")[2])[:COMMON_NAME_CHARACTERS_MAX]
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    if gateway_uri:
        named = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(gateway_uri)])
        request = request.add_extension(named, critical=False)
    return request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def gateway_uri_in(certificate: x509.Certificate) -> str:
    """Return the only URI in a gateway's certificate; empty when there are none or several."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ""
    uris = found.get_values_for_type(x509.UniformResourceIdentifier)
    return uris[0] if len(uris) == 1 else ""


def server_names(certificate: x509.Certificate) -> list[str]:
    """Return the names of a server in the certificate; none when it is for clients only."""
    extensions = certificate.extensions
    try:
        purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    if ExtendedKeyUsageOID.SERVER_AUTH not in purposes:
        return []
    return list(names.get_values_for_type(x509.DNSName))


def only_first(pem: str) -> str:
    """Return the first certificate of a text alone, as every certificate in a trusted text is trusted.

    Raises ValueError.
    """
    return x509.load_pem_x509_certificate(pem.encode("ascii")).public_bytes(Encoding.PEM).decode()


def fingerprint(pem: str) -> bytes:
    """Return the SHA-256 of the first certificate of a text. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem.encode("ascii")).fingerprint(hashes.SHA256())


def require_ours(issued: IssuedCertificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Check that a certificate is from the hub's authority or the issuer it names, for this key, and valid by the hub's
    clock. Raises `CertificateMismatch`."""
    try:
        own, *between = x509.load_pem_x509_certificates(issued.certificate.encode("ascii"))
        authority = x509.load_pem_x509_certificate((issued.issuer or issued.authority).encode("ascii"))
        (between[-1] if between else own).verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, x509.InvalidVersion) as error:
        raise CertificateMismatch("the hub sent a certificate that is not from its authority") from error
    if own.public_key() != key.public_key():
        raise CertificateMismatch("the hub sent a certificate for another key")
    if not own.not_valid_before_utc.timestamp() <= issued.now < own.not_valid_after_utc.timestamp():
        raise CertificateMismatch("the hub sent a certificate that is not valid by the hub's own clock")
