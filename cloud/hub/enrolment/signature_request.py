"""Requests of hubs without the authority's key, and the authority's decision about them. Pure.

A hub has checked the gateway's token or certificate. The authority signs four kinds of certificates, configurations,
and pages of devices (`device_page_request`), and nothing else, with its own settings for names and validity. So a hub
in wrong hands can neither copy the key nor use it for another purpose, and the authority's log names all that it has
had signed.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from bridge.desired import DesiredError, read, signed_text, to_sign
from cloud.hub.enrolment.authority import OwnAuthority, PublicKey, RequestError, read_request
from cloud.hub.enrolment.limits import (
    OCSP_SIGNER_DAYS,
    RECEIPT_SIGNER_DAYS,
    REQUESTED_NAMES_MAX,
    SERVER_DAYS,
    SIGNATURE_REQUEST_CHARACTERS_MAX,
)
from cloud.hub.peers import gateway_fault, tenant_fault
from cloud.hub.registry.signatures import UnsignedVersion

DAY_S: Final = 86_400.0

UNKNOWN_REQUEST: Final = "this program does not know such a request"
"""Begin of the refusal of a process that is older than the hub."""


class SignatureRefused(Exception):
    """The authority does not sign this; the message says why."""


class SignerPurpose(enum.Enum):
    """Purpose of a hub's own key."""

    RECEIPTS = "receipts"
    OCSP = "ocsp"


class GatewaySignature(msgspec.Struct, frozen=True, tag="gateway"):
    """Request for a certificate of a gateway."""

    request: str
    """Certificate signing request, PEM."""
    tenant: str
    gateway: str


class ServerSignature(msgspec.Struct, frozen=True, tag="server"):
    """Request for the certificate of a hub's listeners."""

    key: str
    """Public key, PEM."""
    names: list[str]


class SignerSignature(msgspec.Struct, frozen=True, tag="signer"):
    """Request for the certificate of a key with which a hub signs by itself."""

    key: str
    purpose: SignerPurpose


SignatureRequest: TypeAlias = GatewaySignature | ServerSignature | SignerSignature


class SigningRules(NamedTuple):
    """Settings of the authority's process."""

    names: Collection[str]
    """Names and addresses of hubs, lower case."""
    life_s: float
    """Validity of a gateway's certificate."""


class SignedAnswer(NamedTuple):
    """Answer to a request."""

    pem: str
    """Certificate."""
    subject: str
    """Holder of the certificate, for the log."""


def answer_request(text: str, authority: OwnAuthority, rules: SigningRules, now: float) -> SignedAnswer:
    """Return the certificate that a request is for. Raises `SignatureRefused`."""
    if len(text) > SIGNATURE_REQUEST_CHARACTERS_MAX:
        raise SignatureRefused(f"the request has more than {SIGNATURE_REQUEST_CHARACTERS_MAX} characters")
    try:
        request = msgspec.json.decode(text, type=SignatureRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SignatureRefused(f"{UNKNOWN_REQUEST}: {error}") from None
    if isinstance(request, GatewaySignature):
        subject = f"gateway {request.gateway} of tenant {request.tenant}"
        return SignedAnswer(_gateway_certificate(request, authority, rules, now), subject)
    if isinstance(request, ServerSignature):
        return SignedAnswer(_server_certificate(request, authority, rules, now), f"hub {', '.join(request.names)}")
    key = read_public_key(request.key)
    if request.purpose is SignerPurpose.OCSP:
        made = authority.ocsp_certificate(key, now, OCSP_SIGNER_DAYS * DAY_S)
    else:
        made = authority.receipt_certificate(key, now, RECEIPT_SIGNER_DAYS * DAY_S)
    return SignedAnswer(made.public_bytes(Encoding.PEM).decode(), f"a key of a hub, for {request.purpose.value}")


def sign_version(version: UnsignedVersion, authority: OwnAuthority) -> str:
    """Return the signature of a configuration, for the gateway that its row names. Raises `SignatureRefused`."""
    try:
        desired = read(version.content)
    except DesiredError as error:
        raise SignatureRefused(str(error)) from None
    if (desired.tenant, desired.gateway, desired.version) != (version.tenant, version.gateway, version.version):
        raise SignatureRefused("the content is for another gateway or version")
    return signed_text(authority.sign(to_sign(version.content)))


def public_pem(key: PublicKey) -> str:
    """Return a public key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def read_public_key(pem: str) -> PublicKey:
    """Parse a public key. Raises `SignatureRefused`."""
    try:
        key = load_pem_public_key(pem.encode("ascii", "replace"))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SignatureRefused("the public key cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise SignatureRefused("a hub's key must be an elliptic curve key or RSA")
    return key


def _gateway_certificate(request: GatewaySignature, authority: OwnAuthority, rules: SigningRules, now: float) -> str:
    if fault := tenant_fault(request.tenant) or gateway_fault(request.gateway):
        raise SignatureRefused(fault)
    try:
        key = read_request(request.request)
    except RequestError as error:
        raise SignatureRefused(str(error)) from None
    return authority.gateway_certificate(key, request.tenant, request.gateway, now, rules.life_s).pem


def _server_certificate(request: ServerSignature, authority: OwnAuthority, rules: SigningRules, now: float) -> str:
    if not 0 < len(request.names) <= REQUESTED_NAMES_MAX:
        raise SignatureRefused(f"the certificate of a hub has 1 to {REQUESTED_NAMES_MAX} names")
    for name in request.names:
        if name not in rules.names and not _is_own_name(name):
            step = "add it to `names` of the authority's configuration"
            raise SignatureRefused(f"{name[:64]} is no name of a hub: {step}")
    return authority.server_certificate(read_public_key(request.key), request.names, now, SERVER_DAYS * DAY_S).pem


def _is_own_name(name: str) -> bool:
    """Return whether a name means the machine itself: a loopback name, or a host name without a domain, as of a pod.

    Gateways of a site have names under ``.local``, and hubs that gateways reach from outside have a domain.
    """
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return 0 < len(name) <= 63 and all(each.isascii() and (each.isalnum() or each == "-") for each in name)
