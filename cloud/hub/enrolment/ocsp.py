"""OCSP (RFC 6960): status of one certificate of the authority for each request. Pure.

Gateways use the revocation list (RFC 5280 section 5), which needs no hub for days. OCSP is for other programs that
verify a gateway's or the hub's certificate.
"""

from __future__ import annotations

import datetime
from typing import Final, NamedTuple, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import ocsp

from cloud.hub.enrolment.authority import AuthorityIdentity
from cloud.hub.enrolment.delegated_key import CertifiedKey
from cloud.hub.enrolment.limits import OCSP_BACKDATED_S, OCSP_NONCE_BYTES_MAX, OCSP_VALID_S

MEDIA_TYPE: Final = "application/ocsp-response"
HASHES: Final = (hashes.SHA1, hashes.SHA256)
"""Hashes of names and keys in a request. SHA-1 is required by RFC 5019 section 2.1.1, and only identifies the issuer
here."""


class OcspSigner(Protocol):
    """Signer of responses: the authority, or a key that it has certified for this (RFC 6960 section 4.2.2.2)."""

    @property
    def certificate(self) -> x509.Certificate:
        """Certificate of the signer."""
        ...

    def sign_answer(self, answer: ocsp.OCSPResponseBuilder) -> bytes:
        """Sign a response, DER."""
        ...


class DelegatedResponder:
    """Key that an authority lets sign responses (RFC 6960 section 4.2.2.2); its certificate goes with each response."""

    def __init__(self, own: CertifiedKey) -> None:
        self._own = own

    @property
    def certificate(self) -> x509.Certificate:
        return self._own.certificate

    def sign_answer(self, answer: ocsp.OCSPResponseBuilder) -> bytes:
        signed = answer.certificates([self._own.certificate]).sign(self._own.key, hashes.SHA256())
        return signed.public_bytes(Encoding.DER)


class RevocationStatus(NamedTuple):
    """Status of a certificate that the authority signed."""

    revoked_at: float | None
    """Time of the revocation, UTC seconds since 1970; None if valid."""


class OcspQuery(NamedTuple):
    """Parsed request."""

    serial: int
    issuer_name_hash: bytes
    issuer_key_hash: bytes
    algorithm: hashes.HashAlgorithm
    nonce: bytes | None


def parse_request(request: bytes) -> OcspQuery | None:
    """Parse a request, DER; None if it is invalid or about several certificates."""
    try:
        found = ocsp.load_der_ocsp_request(request)
        algorithm, nonce = found.hash_algorithm, _nonce(found)
        if not isinstance(algorithm, HASHES):
            return None
        return OcspQuery(found.serial_number, found.issuer_name_hash, found.issuer_key_hash, algorithm, nonce)
    except (ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm):
        return None


def is_about(question: OcspQuery, authority: AuthorityIdentity) -> bool:
    """Return whether the request is about certificates of this authority."""
    certificate = authority.certificate
    names = (_digest(question.algorithm, data) for data in (certificate.subject.public_bytes(), _key_bits(certificate)))
    return (question.issuer_name_hash, question.issuer_key_hash) == tuple(names)


def make_response(signer: OcspSigner, question: OcspQuery, standing: RevocationStatus | None, now: float) -> bytes:
    """Make a response. `standing` None: the authority signed no certificate with that serial number."""
    status = ocsp.OCSPCertStatus.UNKNOWN if standing is None else ocsp.OCSPCertStatus.GOOD
    revoked_at = None
    if standing is not None and standing.revoked_at is not None:
        status, revoked_at = ocsp.OCSPCertStatus.REVOKED, _utc(standing.revoked_at)
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response_by_hash(
            issuer_name_hash=question.issuer_name_hash,
            issuer_key_hash=question.issuer_key_hash,
            serial_number=question.serial,
            algorithm=question.algorithm,
            cert_status=status,
            this_update=_utc(now - OCSP_BACKDATED_S),
            next_update=_utc(now + OCSP_VALID_S),
            revocation_time=revoked_at,
            revocation_reason=None,
        )
        .responder_id(ocsp.OCSPResponderEncoding.HASH, signer.certificate)
    )
    if question.nonce is not None:
        builder = builder.add_extension(x509.OCSPNonce(question.nonce), critical=False)
    return signer.sign_answer(builder)


def error_response(why: ocsp.OCSPResponseStatus) -> bytes:
    """Make an unsigned error response (RFC 6960 section 2.3)."""
    return ocsp.OCSPResponseBuilder.build_unsuccessful(why).public_bytes(Encoding.DER)


def _nonce(request: ocsp.OCSPRequest) -> bytes | None:
    """Return the nonce; None without one, or if it is too long (RFC 9654 section 2.1) and left out of the response."""
    try:
        nonce = request.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
    except x509.ExtensionNotFound:
        return None
    return nonce if len(nonce) <= OCSP_NONCE_BYTES_MAX else None


def _key_bits(certificate: x509.Certificate) -> bytes:
    """Return the public key without tag and length (RFC 6960 section 4.1.1)."""
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return key.public_bytes(Encoding.DER, PublicFormat.PKCS1)  # the only other kind of key of an authority


def _digest(algorithm: hashes.HashAlgorithm, data: bytes) -> bytes:
    digest = hashes.Hash(algorithm)
    digest.update(data)
    return digest.finalize()


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
