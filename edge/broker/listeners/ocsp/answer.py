"""Requests and responses of OCSP (RFC 6960), without I/O."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.x509 import ocsp
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID

from edge.broker.listeners.ocsp.limits import OCSP_CLOCK_S

_HASHES: Final = ("sha256", "sha384", "sha512")
"""Hashes of signatures that are accepted."""


class OcspError(Exception):
    """There is no usable response. The message says why."""


class StatusVerdict(enum.Enum):
    """Status of a certificate (RFC 6960 section 2.2)."""

    GOOD = "good"
    REVOKED = "revoked"


class StatusAnswer(NamedTuple):
    """Verified answer about one certificate. Times are UTC seconds."""

    verdict: StatusVerdict
    read_at: float
    """Time of the request. The responder may have made the response days before."""
    this_update: float
    """Time at which the responder knew the status to be correct (thisUpdate)."""
    until: float | None
    """Time by which newer information is available; None: it always is."""


class StatusQuestion(NamedTuple):
    """Request about a certificate."""

    certificate: x509.Certificate
    issuer: x509.Certificate
    request: bytes
    """Request in DER."""
    urls: tuple[str, ...]
    """Responders that the certificate names (RFC 5280 section 4.2.2.1)."""


def question_about(certificate: bytes, authorities: Iterable[x509.Certificate]) -> StatusQuestion:
    """Return the request about a client certificate (DER). Raises OcspError when no authority has issued it."""
    shown = x509.load_der_x509_certificate(certificate)
    issuer = next((each for each in authorities if _issued(each, shown)), None)
    if issuer is None:
        raise OcspError("its issuer is not in clientCa")
    # SHA-1 names the issuer (section 4.3); it protects nothing here, and some responders know no other hash.
    builder = ocsp.OCSPRequestBuilder().add_certificate(shown, issuer, hashes.SHA1())  # noqa: S303
    return StatusQuestion(
        shown, issuer, builder.build().public_bytes(serialization.Encoding.DER), tuple(_responders(shown))
    )


def read_answer(response: bytes, question: StatusQuestion, now_s: float, age_s_max: float) -> StatusAnswer:
    """Verify a response and return its answer. `now_s`: UTC seconds. `age_s_max`: age of a response that does not say
    when newer information is available; without it a response could be replayed for years. Raises OcspError.

    It has to be about the certificate, signed by its issuer or by a responder that the issuer authorized (section
    4.2.2.2), and current (section 4.2.2.1).
    """
    try:
        return _answer(ocsp.load_der_ocsp_response(response), question, now_s, age_s_max)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OcspError(f"the response cannot be read: {error}") from None


# --- inside -----------------------------------------------------------------------------------------------------------


def _answer(response: ocsp.OCSPResponse, question: StatusQuestion, now_s: float, age_s_max: float) -> StatusAnswer:
    if response.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
        raise OcspError(f"the responder answered {response.response_status.name.lower()}")
    _require_signature(response, question.issuer, now_s)
    asked = ocsp.load_der_ocsp_request(question.request)
    single = next((each for each in response.responses if _is_about(each, asked)), None)
    if single is None:
        raise OcspError("the response is about another certificate")
    until = single.next_update_utc.timestamp() if single.next_update_utc is not None else None
    this_update = single.this_update_utc.timestamp()
    if this_update > now_s + OCSP_CLOCK_S:
        raise OcspError("the response begins in the future: check the clock of the gateway")
    ends = until if until is not None else this_update + age_s_max
    if ends + OCSP_CLOCK_S <= now_s:
        raise OcspError("the response has expired")
    if single.certificate_status is ocsp.OCSPCertStatus.UNKNOWN:
        raise OcspError("the responder does not know the certificate")
    revoked = single.certificate_status is ocsp.OCSPCertStatus.REVOKED
    return StatusAnswer(StatusVerdict.REVOKED if revoked else StatusVerdict.GOOD, now_s, this_update, until)


def _is_about(single: ocsp.OCSPSingleResponse, asked: ocsp.OCSPRequest) -> bool:
    return (
        single.serial_number == asked.serial_number
        and isinstance(single.hash_algorithm, type(asked.hash_algorithm))
        and single.issuer_name_hash == asked.issuer_name_hash
        and single.issuer_key_hash == asked.issuer_key_hash
    )


def _require_signature(response: ocsp.OCSPResponse, issuer: x509.Certificate, now_s: float) -> None:
    """Raise OcspError unless the issuer signed the response, or a responder with a certificate by the issuer itself and
    the purpose of signing responses (section 4.2.2.2)."""
    delegates = [each for each in response.certificates if _is_delegate(each, issuer, now_s)]
    signers: Sequence[x509.Certificate] = [issuer, *delegates]
    if not any(_is_signer(each, response) for each in signers):
        raise OcspError(
            "the response is not signed by the issuer of the certificate, or a responder that it authorized"
        )


def _is_delegate(certificate: x509.Certificate, issuer: x509.Certificate, now_s: float) -> bool:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return False
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.OCSP_SIGNING in purposes and _issued(issuer, certificate)


def _is_signer(certificate: x509.Certificate, response: ocsp.OCSPResponse) -> bool:
    """Return whether the responder's id is that of the certificate, and its key signed the response."""
    named = response.responder_name
    if named is not None and named != certificate.subject:
        return False
    if response.responder_key_hash is not None:
        own = x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest
        if response.responder_key_hash != own:
            return False
    hashed = response.signature_hash_algorithm
    key, signature, signed = certificate.public_key(), response.signature, response.tbs_response_bytes
    try:
        if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
            key.verify(signature, signed)
        elif hashed is None or hashed.name not in _HASHES:
            return False
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, signed, ec.ECDSA(hashed))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, signed, padding.PKCS1v15(), hashed)
        else:
            return False
    except InvalidSignature:
        return False
    return True


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _responders(certificate: x509.Certificate) -> list[str]:
    """Return the addresses of responders in a certificate."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    except x509.ExtensionNotFound:
        return []
    return [
        each.access_location.value
        for each in found
        if each.access_method == AuthorityInformationAccessOID.OCSP
        and isinstance(each.access_location, x509.UniformResourceIdentifier)
    ]
