"""Subjects, certificates and keys in the documents of devices, and their checks. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from bridge import certificate_subjects
from bridge.certificate_subjects import PLACEHOLDERS, WHOLE, SubjectError, placeholders_in
from bridge.limits import AUTH_ID_CHARACTERS_MAX
from cloud.hub.devices.documents import InvalidDocument

_OIDS: Final[Mapping[str, str]] = {
    "EMAILADDRESS": "1.2.840.113549.1.9.1",
    "E": "1.2.840.113549.1.9.1",
    "GIVENNAME": "2.5.4.42",
    "S": "2.5.4.8",
    "SERIALNUMBER": "2.5.4.5",
    "SURNAME": "2.5.4.4",
    "T": "2.5.4.12",
}
"""Attribute types that other programs write by name, and RFC 4514 by number."""
_TYPE: Final = re.compile(r"(^|(?<!\\)[,+])\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*")
_SPACE_BEFORE: Final = re.compile(r"(?<!\\)\s+(?=[,+])")


def decode_base64(text: str, what: str) -> bytes:
    """Decode Base64; `what` names the field in errors. Raises `InvalidDocument`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidDocument(f"{what} is not Base64") from None


def read_certificate(text: str, what: str) -> x509.Certificate:
    """Return a certificate from the Base64 form of its DER encoding. Raises `InvalidDocument`."""
    try:
        found = x509.load_der_x509_certificate(decode_base64(text, what))
        found.subject, found.issuer, found.public_key()
    except InvalidDocument:
        raise
    except Exception:  # the library raises many kinds for a damaged certificate
        raise InvalidDocument(f"{what} is not the DER encoding of an X.509 certificate") from None
    return found


def read_public_key(text: str, what: str) -> PublicKeyTypes:
    """Return a public key from the Base64 form of its DER encoding. Raises `InvalidDocument`."""
    raw = decode_base64(text, what)
    try:
        return load_der_public_key(raw)
    except Exception:  # as above
        raise InvalidDocument(f"{what} is not the DER encoding of a public key") from None


def encode_public_key(key: PublicKeyTypes) -> str:
    """Return the Base64 form of a public key."""
    return base64.b64encode(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


def algorithm_of(key: PublicKeyTypes, what: str) -> str:
    """Return Hono's name of the algorithm of a key. Raises `InvalidDocument` for one that it does not know."""
    if isinstance(key, rsa.RSAPublicKey):
        return "RSA"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "EC"
    raise InvalidDocument(f"{what} has a key of another kind than RSA and EC")


def normalize_subject(text: str, what: str) -> str:
    """Return a subject in the one form that is compared. Raises `InvalidDocument`."""
    if len(text) > AUTH_ID_CHARACTERS_MAX:
        raise InvalidDocument(f"{what} is longer than {AUTH_ID_CHARACTERS_MAX} characters")
    try:
        found = x509.Name.from_rfc4514_string(_TYPE.sub(_type_by_number, _SPACE_BEFORE.sub("", text.strip())))
    except ValueError:
        raise InvalidDocument(f"{what} is not a subject as RFC 4514 writes it, for example CN=pump,O=ACME") from None
    return subject_text(found, what)


def _type_by_number(found: re.Match[str]) -> str:
    """Return a separator and an attribute type as RFC 4514 writes them, without the spaces that RFC 2253 allows."""
    name = found[2].upper()
    return f"{found[1]}{_OIDS.get(name, name)}="


def subject_text(subject: x509.Name, what: str) -> str:
    """Return a subject as text. Raises `InvalidDocument` for an empty or long one."""
    try:
        return certificate_subjects.subject_text(subject, what)
    except SubjectError as error:
        raise InvalidDocument(str(error)) from None


def check_template(template: str, what: str) -> None:
    """Check the placeholders of a template. Raises `InvalidDocument`."""
    found = placeholders_in(template)
    if not found or any(each != WHOLE and each not in PLACEHOLDERS for each in found):
        names = ", ".join((WHOLE, *PLACEHOLDERS))
        raise InvalidDocument(f"{what} needs at least one of {names}, and no other placeholder")
    if len(template) > AUTH_ID_CHARACTERS_MAX:
        raise InvalidDocument(f"{what} is longer than {AUTH_ID_CHARACTERS_MAX} characters")


def apply_template(template: str, subject: x509.Name) -> str:
    """Return the identifier of a subject. Raises `InvalidDocument` if the subject lacks a part."""
    try:
        return certificate_subjects.apply_template(template, subject)
    except SubjectError as error:
        raise InvalidDocument(str(error)) from None
