"""What gateway and hub say to each other while a gateway enrols: the token a person carries, and the documents.

A token names itself, proves that whoever has it was given it, and says by the fingerprint of the hub's authority which
hub it is for: a gateway that has nothing else knows from it whether it talks to that hub. The gateway makes its key,
sends a certificate signing request (PKCS #10, RFC 2986) with the token over HTTPS, and gets a certificate. It renews
the certificate over the same port, and shows the one it has. Sans-I/O.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

import msgspec

from bridge.hidden import hides

AUTHORITY_PATH: Final = "/enrolment/authority.pem"
"""GET: the certificate of the hub's authority. It proves nothing by itself: compare its fingerprint."""
CERTIFICATE_PATH: Final = "/enrolment/certificate"
"""POST `EnrolmentRequest`: a certificate for a token."""
RENEWAL_PATH: Final = "/enrolment/renewal"
"""POST `RenewalRequest`, with a client certificate that is good: the next one."""
ATTESTATION_PATH: Final = "/enrolment/attestation"
"""POST `Attestation`, with a client certificate that is good: what a new gateway was set up with."""
REVOKED_PATH: Final = "/enrolment/revoked.crl"
"""GET: the authority's list of revoked certificates (RFC 5280 section 5), DER."""
ALPN: Final = "http/1.1"
"""What a gateway asks for in the TLS handshake (RFC 7301) where it wants HTTP of the hub's AMQP port."""

DOCUMENT_BYTES_MAX: Final = 64 << 10
"""Of each document: a certificate with its chain is 2 KiB, an RSA one of 4 096 bits 8 KiB."""

COMMON_NAME_CHARACTERS_MAX: Final = 64
"""RFC 5280, ub-common-name. It is for people: programs go by the URI, which has all of a gateway's name."""

_PREFIX: Final = "wpt1"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 20
"""160 random bits: nobody guesses them, so a plain digest of them may be kept."""
_FINGERPRINT_BYTES: Final = 32


_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def local_name(gateway: str) -> str:
    """Name under which devices find a gateway in their own network (RFC 6762); empty where it cannot be a host's."""
    return f"{gateway}.local" if _LABEL.fullmatch(gateway) else ""


class EnrolmentTokenError(ValueError):
    """A text is no token; the message says why."""


@hides("secret")
class EnrolmentToken(NamedTuple):
    """One right to enrol one gateway. As text: ``wpt1.ID.SECRET.FINGERPRINT``."""

    id: str
    secret: bytes
    authority: bytes
    """SHA-256 of the hub's authority certificate (DER)."""

    @classmethod
    def make(cls, authority: bytes) -> EnrolmentToken:
        """A new one, for the hub whose authority has this fingerprint."""
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_bytes(_SECRET_BYTES), authority)

    @classmethod
    def parse(cls, text: str) -> EnrolmentToken:
        """Raises `EnrolmentTokenError`, which quotes nothing of the text."""
        parts = text.strip().split(".")
        if len(parts) != 4 or parts[0] != _PREFIX:
            raise EnrolmentTokenError(
                f"this is no token: one has four parts with dots between and begins with {_PREFIX}"
            )
        _, name, secret, authority = parts
        try:
            token = cls(name, _bytes_of(secret), _bytes_of(authority))
        except (binascii.Error, ValueError):
            raise EnrolmentTokenError("the token has characters that are in none: was all of it copied?") from None
        sizes = len(name), len(token.secret), len(token.authority)
        if sizes != (2 * _ID_BYTES, _SECRET_BYTES, _FINGERPRINT_BYTES):
            raise EnrolmentTokenError("the token is too short or too long: was all of it copied?")
        return token

    @property
    def text(self) -> str:
        return f"{_PREFIX}.{self.id}.{_text_of(self.secret)}.{_text_of(self.authority)}"

    @property
    def digest(self) -> bytes:
        """What is kept of the secret."""
        return digest(self.secret)


def digest(secret: bytes) -> bytes:
    """SHA-256 of a token's secret."""
    return hashlib.sha256(secret).digest()


def same(one: bytes, other: bytes) -> bool:
    """Compare digests in a time that tells nothing of them."""
    return hmac.compare_digest(one, other)


class RefusalReason(enum.Enum):
    """Why a hub gives no certificate; the word is what programs compare."""

    MALFORMED = "malformed"
    """The request cannot be read, or its key is of no use."""
    NAMELESS = "request-without-name"
    """Another authority makes the certificates, by what a request says: it has to name the gateway as
    `EnrolmentRefusal.gateway_uri` does. The token stays good."""
    UNKNOWN = "token-unknown"
    EXPIRED = "token-expired"
    REVOKED = "token-revoked"
    SPENT = "token-spent"
    """Another key has used it."""
    OTHER_GATEWAY = "token-for-another-gateway"
    NAME_TAKEN = "name-taken"
    """Who replaces a gateway needs a token that was made for its name."""
    NO_CERTIFICATE = "no-certificate"
    """The certificate shown is none of this hub, or was revoked."""
    TOO_MANY = "too-many-certificates"
    TENANT_FULL = "tenant-full"
    """Its tenant has as many gateways as it may have."""
    UNAVAILABLE = "unavailable"
    """The hub cannot do it now; ask again."""


@hides("secret")
class EnrolmentRequest(msgspec.Struct, frozen=True):
    """A gateway asks for its first certificate. `request` is a certificate signing request, PEM."""

    token_id: str
    secret: str
    """Of the token, as the token has it."""
    gateway: str
    request: str


class RenewalRequest(msgspec.Struct, frozen=True):
    """A gateway asks for its next certificate: a certificate signing request, PEM."""

    request: str


class IssuedCertificate(msgspec.Struct, frozen=True):
    """A certificate for a gateway."""

    tenant: str
    gateway: str
    certificate: str
    """PEM: the gateway's own, then those between it and the authority."""
    authority: str
    """PEM: what the hub's certificate is of."""
    now: float
    """The hub's time, UTC seconds since 1970: a gateway's clock may not be set yet."""
    issuer: str = ""
    """PEM: the authority of `certificate` where that is not the hub's; it says nothing about the hub's certificate."""


class Attestation(msgspec.Struct, frozen=True):
    """What a gateway that was set up by the file on its card says of itself, as it found it and not as it was told."""

    settings: str
    """SHA-256 of the file it has taken up."""
    hostname: str
    networks: tuple[str, ...]
    """Its interfaces with their addresses: ``eth0 192.168.1.20/24``."""
    certificate: str
    """Serial number, hexadecimal."""
    certificate_ends: str
    """ISO 8601, UTC."""
    clock: str
    """Its time, ISO 8601, UTC, and whether a time service keeps it right."""
    root: str
    """SHA-256 of the root file system it runs; empty: it runs none of ours."""
    root_expected: str
    """The one its card, or its last update, was made with."""
    version: str


class EnrolmentRefusal(msgspec.Struct, frozen=True):
    """No certificate."""

    error: str
    """For a person: what is wrong, and what to do."""
    reason: str = RefusalReason.UNAVAILABLE.value
    now: float = 0.0
    gateway_uri: str = ""
    """With `RefusalReason.NAMELESS`: what the request has to have as its subjectAltName."""


def enrolment_request(token: EnrolmentToken, gateway: str, request: str) -> EnrolmentRequest:
    """What a gateway sends with its token."""
    return EnrolmentRequest(token.id, _text_of(token.secret), gateway, request)


def secret_of(request: EnrolmentRequest) -> bytes:
    """The secret in it. Raises `EnrolmentTokenError`."""
    try:
        return _bytes_of(request.secret)
    except (binascii.Error, ValueError):
        raise EnrolmentTokenError("the token's secret cannot be read") from None


def _text_of(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
