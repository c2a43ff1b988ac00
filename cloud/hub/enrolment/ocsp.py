"""Whether one certificate of the authority counts: OCSP (RFC 6960), one certificate a request. Pure.

The list of all that was revoked (RFC 5280 section 5) is what gateways go by: it needs no hub for days. This is for
others, who look at a gateway's certificate, or the hub's, when it is shown to them.
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

from cloud.hub.enrolment.limits import OCSP_BACKDATED_S, OCSP_NONCE_BYTES_MAX, OCSP_VALID_S

MEDIA_TYPE: Final = "application/ocsp-response"
HASHES: Final = (hashes.SHA1, hashes.SHA256)
"""Of names and keys in a request; SHA-1 is what RFC 5019 section 2.1.1 has, and says here only who is meant."""


class Authority(Protocol):
    """Whose certificates are asked about."""

    @property
    def certificate(self) -> x509.Certificate:
        """Its own."""
        ...

    def sign_answer(self, answer: ocsp.OCSPResponseBuilder) -> bytes:
        """With its own key (RFC 6960 section 4.2.2.2), DER."""
        ...


class Standing(NamedTuple):
    """What is known of a certificate the authority has made."""

    revoked_at: float | None
    """UTC seconds since 1970; None: it was not revoked."""


class Question(NamedTuple):
    """A request that can be answered."""

    serial: int
    issuer_name_hash: bytes
    issuer_key_hash: bytes
    algorithm: hashes.HashAlgorithm
    nonce: bytes | None


def read(request: bytes) -> Question | None:
    """A request, DER; None where it is none, or asks about several certificates at once."""
    try:
        found = ocsp.load_der_ocsp_request(request)
        algorithm, nonce = found.hash_algorithm, _nonce(found)
        if not isinstance(algorithm, HASHES):
            return None
        return Question(found.serial_number, found.issuer_name_hash, found.issuer_key_hash, algorithm, nonce)
    except (ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm):
        return None


def is_about(question: Question, authority: Authority) -> bool:
    """The certificate asked about is one of this authority's, if there is one."""
    certificate = authority.certificate
    names = (_digest(question.algorithm, data) for data in (certificate.subject.public_bytes(), _key_bits(certificate)))
    return (question.issuer_name_hash, question.issuer_key_hash) == tuple(names)


def answer(authority: Authority, question: Question, standing: Standing | None, now: float) -> bytes:
    """What is said of a certificate; `standing` None: the authority has made none of that serial number."""
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
        .responder_id(ocsp.OCSPResponderEncoding.HASH, authority.certificate)
    )
    if question.nonce is not None:
        builder = builder.add_extension(x509.OCSPNonce(question.nonce), critical=False)
    return authority.sign_answer(builder)


def unanswered(why: ocsp.OCSPResponseStatus) -> bytes:
    """There is no answer: unsigned (RFC 6960 section 2.3)."""
    return ocsp.OCSPResponseBuilder.build_unsuccessful(why).public_bytes(Encoding.DER)


def _nonce(request: ocsp.OCSPRequest) -> bytes | None:
    """None where there is none, or one longer than any (RFC 9654 section 2.1): it is left out of the answer then."""
    try:
        nonce = request.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
    except x509.ExtensionNotFound:
        return None
    return nonce if len(nonce) <= OCSP_NONCE_BYTES_MAX else None


def _key_bits(certificate: x509.Certificate) -> bytes:
    """The public key without tag and length (RFC 6960 section 4.1.1)."""
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return key.public_bytes(Encoding.DER, PublicFormat.PKCS1)  # an authority's key is one or the other


def _digest(algorithm: hashes.HashAlgorithm, data: bytes) -> bytes:
    digest = hashes.Hash(algorithm)
    digest.update(data)
    return digest.finalize()


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
