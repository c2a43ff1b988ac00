"""Enrolment of a gateway at a hub: the token that an operator hands over, and the documents on the wire.

A token has an identifier, a secret that proves the right to enrol, and the fingerprint of the hub's authority. With the
fingerprint a new gateway verifies that it talks to the right hub. The gateway creates its key, sends a certificate
signing request (PKCS #10, RFC 2986) with the token over HTTPS, and gets a certificate. It renews the certificate over
the same port, authenticated by the current one. Sans-I/O.
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
"""POST `RenewalRequest`, with a valid client certificate: the next certificate."""
ATTESTATION_PATH: Final = "/enrolment/attestation"
"""POST `Attestation`, with a valid client certificate: the settings of a new gateway."""
REVOKED_PATH: Final = "/enrolment/revoked.crl"
"""GET: the authority's certificate revocation list (RFC 5280 section 5), DER."""
ALPN: Final = "http/1.1"
"""Protocol that a gateway requests in the TLS handshake (RFC 7301) for HTTP on the hub's AMQP port."""

DOCUMENT_BYTES_MAX: Final = 64 << 10
"""Largest document: a certificate with its chain has 2 KiB, with RSA keys of 4 096 bits 8 KiB."""

COMMON_NAME_CHARACTERS_MAX: Final = 64
"""RFC 5280, ub-common-name. It is for people: programs use the URI, which has the whole name of the gateway."""

TOKEN_PREFIX: Final = "wpt1"  # noqa: S105 - the beginning of each token
TOKEN_ID_BYTES: Final = 6
TOKEN_SECRET_BYTES: Final = 20
"""160 random bits cannot be guessed, so a plain digest of them is safe to store."""
TOKEN_FINGERPRINT_BYTES: Final = 32


_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def local_name(gateway: str) -> str:
    """Return the mDNS name of a gateway in its local network (RFC 6762); empty where it cannot be a host name."""
    return f"{gateway}.local" if _LABEL.fullmatch(gateway) else ""


class EnrolmentTokenError(ValueError):
    """A text is not a valid token; the message says why."""


@hides("secret")
class EnrolmentToken(NamedTuple):
    """The right to enrol one gateway once. As text: ``wpt1.ID.SECRET.FINGERPRINT``."""

    id: str
    secret: bytes
    authority: bytes
    """SHA-256 of the hub's authority certificate (DER)."""

    @classmethod
    def make(cls, authority: bytes) -> EnrolmentToken:
        """Create a token for the hub with this fingerprint of its authority."""
        return cls(secrets.token_hex(TOKEN_ID_BYTES), secrets.token_bytes(TOKEN_SECRET_BYTES), authority)

    @classmethod
    def parse(cls, text: str) -> EnrolmentToken:
        """Parse the text of a token. Raises `EnrolmentTokenError`, which quotes nothing of the text."""
        parts = text.strip().split(".")
        if len(parts) != 4 or parts[0] != TOKEN_PREFIX:
            raise EnrolmentTokenError(
                f"this is not a token: a token starts with {TOKEN_PREFIX} and has four parts separated by dots"
            )
        _, name, secret, authority = parts
        try:
            token = cls(name, _bytes_of(secret), _bytes_of(authority))
        except (binascii.Error, ValueError):
            raise EnrolmentTokenError("the token has invalid characters: copy all of it again") from None
        sizes = len(name), len(token.secret), len(token.authority)
        if sizes != (2 * TOKEN_ID_BYTES, TOKEN_SECRET_BYTES, TOKEN_FINGERPRINT_BYTES):
            raise EnrolmentTokenError("the token is too short or too long: copy all of it again")
        return token

    @property
    def text(self) -> str:
        return f"{TOKEN_PREFIX}.{self.id}.{_text_of(self.secret)}.{_text_of(self.authority)}"

    @property
    def digest(self) -> bytes:
        """Digest of the secret, which the hub stores."""
        return digest(self.secret)


def digest(secret: bytes) -> bytes:
    """Return the SHA-256 of a token's secret."""
    return hashlib.sha256(secret).digest()


def same(one: bytes, other: bytes) -> bool:
    """Compare digests in constant time."""
    return hmac.compare_digest(one, other)


class RefusalReason(enum.Enum):
    """Reason why a hub issues no certificate; programs compare the value."""

    MALFORMED = "malformed"
    """The request cannot be read, or its key is not usable."""
    NAMELESS = "request-without-name"
    """An external authority issues the certificates from the request alone: it has to name the gateway as
    `EnrolmentRefusal.gateway_uri` does. The token stays valid."""
    UNKNOWN = "token-unknown"
    EXPIRED = "token-expired"
    REVOKED = "token-revoked"
    SPENT = "token-spent"
    """The token was used with another key."""
    OTHER_GATEWAY = "token-for-another-gateway"
    NAME_TAKEN = "name-taken"
    """To replace a gateway, use a token that was made for its name."""
    NO_CERTIFICATE = "no-certificate"
    """The client certificate is not from this hub, or was revoked."""
    TOO_MANY = "too-many-certificates"
    TENANT_FULL = "tenant-full"
    """The tenant has reached its limit of gateways."""
    UNAVAILABLE = "unavailable"
    """The hub cannot do it now; try again."""


@hides("secret")
class EnrolmentRequest(msgspec.Struct, frozen=True):
    """Request for a gateway's first certificate. `request` is a certificate signing request, PEM."""

    token_id: str
    secret: str
    """Secret of the token, encoded as in its text."""
    gateway: str
    request: str


class RenewalRequest(msgspec.Struct, frozen=True):
    """Request for a gateway's next certificate. `request` is a certificate signing request, PEM."""

    request: str


class IssuedCertificate(msgspec.Struct, frozen=True):
    """A certificate for a gateway."""

    tenant: str
    gateway: str
    certificate: str
    """PEM: the gateway's own, then the intermediate ones up to the authority."""
    authority: str
    """PEM: the authority of the hub's certificate."""
    now: float
    """The hub's time, UTC seconds since 1970: a gateway's clock may not be set yet."""
    issuer: str = ""
    """PEM: the authority of `certificate` where it is not the hub's; it does not vouch for the hub's certificate."""


class Attestation(msgspec.Struct, frozen=True):
    """Facts that a gateway measured about itself after it was set up by the file on its card."""

    settings: str
    """SHA-256 of the settings file that it applied."""
    hostname: str
    networks: tuple[str, ...]
    """Network interfaces with their addresses: ``eth0 192.168.1.20/24``."""
    certificate: str
    """Serial number, hexadecimal."""
    certificate_ends: str
    """ISO 8601, UTC."""
    clock: str
    """Time of the gateway, ISO 8601, UTC, and the state of its time synchronization."""
    root: str
    """SHA-256 of the root file system it runs; empty: it does not run a Waypost image."""
    root_expected: str
    """SHA-256 of the root file system on its card or in its last update."""
    version: str
    medium: str = ""
    """Kind, model and serial numbers of the card or disk; empty when unknown."""


class EnrolmentRefusal(msgspec.Struct, frozen=True):
    """Refusal of a certificate."""

    error: str
    """Message for people: the fault and the next step."""
    reason: str = RefusalReason.UNAVAILABLE.value
    now: float = 0.0
    gateway_uri: str = ""
    """With `RefusalReason.NAMELESS`: the subjectAltName that the request must have."""


def enrolment_request(token: EnrolmentToken, gateway: str, request: str) -> EnrolmentRequest:
    """Return the request that a gateway sends with its token."""
    return EnrolmentRequest(token.id, _text_of(token.secret), gateway, request)


def secret_of(request: EnrolmentRequest) -> bytes:
    """Return the secret in a request. Raises `EnrolmentTokenError`."""
    try:
        return _bytes_of(request.secret)
    except (binascii.Error, ValueError):
        raise EnrolmentTokenError("the token's secret cannot be read") from None


def _text_of(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
