"""Pages of devices: what a hub sends to a gateway about the devices that may appear at it.

A page is signed by the hub's authority, and has the names of its gateway and the digest of the cursor that it
continues. So it is of use to that gateway only, and only once. The cursor is text that the hub alone reads: the gateway
stores it together with the page, and gives it back when it connects. Sans-I/O, and without cryptography.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Final

import msgspec

from bridge.hidden import hides
from bridge.limits import DEVICE_CURSOR_BYTES_MAX, DEVICE_PAGE_BYTES_MAX

FORMAT: Final = 1
"""Format number of a page; a gateway refuses a format that it does not know."""

SIGNED_PREFIX: Final = b"waypost devices 1\n"
"""Begin of the signed bytes, so that a signature for another purpose is never valid for a page."""

CURSOR: Final = "waypost-cursor"
"""Property of the gateway's link: the cursor that it has."""

RESTART: Final = "waypost-restart"
"""Property of the link of a gateway that wants all its devices again."""

ARGON2ID: Final = "argon2id"
SHA256: Final = "sha-256"
SHA512: Final = "sha-512"
HASH_FUNCTIONS: Final = frozenset({ARGON2ID, SHA256, SHA512})
"""Functions that a gateway verifies. Those of SHA hash salt and password; argon2id comes with SCRAM keys."""


_OUT_OF_STEP: Final = "the page does not continue the cursor: "


class DevicePageError(ValueError):
    """A page cannot be used; the message says why, and quotes no secret."""


@hides("hashed", "salt", "stored_key", "server_key")
class DeviceSecretHash(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Password of a device, as its hash. Times are UTC seconds since 1970; None: no limit."""

    id: str
    function: str
    """One of `HASH_FUNCTIONS`; a gateway ignores a secret with another one."""
    hashed: str
    """Text of argon2id, or Base64."""
    salt: bytes = b""
    stored_key: bytes = b""
    """Keys of SCRAM-SHA-256."""
    server_key: bytes = b""
    not_before: float | None = None
    not_after: float | None = None


@hides("secrets", "salt")
class DeviceAccount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """User name of a device, without its tenant, and its passwords."""

    auth_id: str
    salt: bytes = b""
    """Salt of the SCRAM keys."""
    iterations: int = 0
    secrets: tuple[DeviceSecretHash, ...] = ()


class DeviceSubject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identifier in the certificates of a device. Times are UTC seconds since 1970; None: no limit."""

    auth_id: str
    """Its subject (RFC 4514), or what `TrustAnchor.auth_id_template` makes of it."""
    not_before: float | None = None
    not_after: float | None = None
    enabled: bool = True
    """False: its certificates are refused."""

    def is_valid(self, at_s: float) -> bool:
        """Return whether it counts at a time, UTC seconds."""
        return self.enabled and (self.not_before or 0.0) <= at_s and (self.not_after is None or at_s < self.not_after)


class TrustAnchor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Authority that a tenant trusts for the certificates of its devices."""

    id: str
    certificate: bytes
    """DER. Its subject, key and validity count; its signature does not: the registry may know the key only."""
    auth_id_template: str | None = None
    """Makes the identifier of a certificate; None: its whole subject."""
    provisions: bool = False
    """A device with a certificate of this authority is registered when it first appears."""
    device_id_template: str | None = None
    """Makes the id of such a device; None: a UUID."""


class OfferedUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Version of an artefact that a campaign of the hub offers to a device."""

    artefact: str
    version: str
    withheld: bool = False
    """The device may report about it, and not fetch it now."""
    campaign: str = ""
    """Id of the campaign; empty from a hub that does not name it."""
    begun_at: int = 0
    """Begin of the campaign, UTC seconds since 1970; 0 from a hub that does not name it."""
    done: bool = False
    """The hub knows by the reports of the device that it has installed the version."""


class DeviceEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device of a tenant."""

    device: str
    enabled: bool = True
    logins: tuple[DeviceAccount, ...] = ()
    subjects: tuple[DeviceSubject, ...] = ()
    offers: tuple[OfferedUpdate, ...] = ()


class DeviceRange(msgspec.Struct, frozen=True):
    """Ids that a page of a snapshot replaces: those it has no entry for are removed."""

    after: str
    """Exclusive; empty: from the first."""
    until: str | None
    """Inclusive; None: to the last."""

    def covers(self, device: str) -> bool:
        """Return whether an id is in the range."""
        return device > self.after and (self.until is None or device <= self.until)


Digest = Annotated[str, msgspec.Meta(max_length=64)]


class DevicePage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes of one tenant of devices, for one gateway."""

    format: int = FORMAT
    tenant: str
    """Tenant of the gateway."""
    gateway: str
    base: Digest
    """`digest_of` the cursor that the gateway has before the page; empty: it has none."""
    cursor: str
    """Cursor that it has afterwards."""
    devices_of: str
    """Tenant of the devices."""
    enabled: bool = True
    """False: all devices of the tenant are refused."""
    range: DeviceRange | None = None
    """None: only the devices named change."""
    entries: tuple[DeviceEntry, ...] = ()
    removed: tuple[str, ...] = ()
    """Ids of devices that the gateway must not have."""
    anchors: tuple[TrustAnchor, ...] | None = None
    """Authorities of the tenant, all of them; None: as before."""


@hides("content")
class SignedDevicePage(msgspec.Struct, frozen=True):
    """Signed page, as the hub sends it."""

    content: str
    """JSON of a `DevicePage`, as it was signed."""
    signature: str
    """Base64 of the authority's signature over `to_sign(content)`: ECDSA or RSA (PKCS #1 v1.5) with SHA-256."""

    @property
    def signature_bytes(self) -> bytes:
        """The decoded signature. Raises `DevicePageError`."""
        try:
            return base64.b64decode(self.signature, validate=True)
        except (binascii.Error, ValueError):
            raise DevicePageError("the signature is not valid Base64") from None


def to_sign(content: str) -> bytes:
    """Return the bytes that are signed."""
    return SIGNED_PREFIX + content.encode()


def digest_of(cursor: str) -> str:
    """Return the SHA-256 of a cursor, hexadecimal; empty without one."""
    return hashlib.sha256(cursor.encode()).hexdigest() if cursor else ""


def read_signed(body: bytes) -> SignedDevicePage:
    """Decode a signed page. Raises `DevicePageError`."""
    if len(body) > 2 * DEVICE_PAGE_BYTES_MAX:  # each quote in the content is two bytes of the text
        raise DevicePageError(f"it has more than {2 * DEVICE_PAGE_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=SignedDevicePage)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise DevicePageError(f"it cannot be decoded: {error}") from None


def read_page(content: str) -> DevicePage:
    """Decode a page, without a check of its signature. Raises `DevicePageError`."""
    try:
        page = msgspec.json.decode(content, type=DevicePage)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DevicePageError(f"it is not a page of devices: {error}") from None
    if page.format != FORMAT:
        raise DevicePageError(f"it has format {page.format}; this gateway supports {FORMAT}: update this gateway")
    if not 0 < len(page.cursor.encode()) <= DEVICE_CURSOR_BYTES_MAX:
        raise DevicePageError(f"its cursor has not 1 to {DEVICE_CURSOR_BYTES_MAX} bytes")
    if page.range is not None and not all(page.range.covers(each.device) for each in page.entries):
        raise DevicePageError("it has a device outside its range")
    return page


def out_of_step(cursor: str) -> str:
    """Return the reason for which a gateway refuses a page that does not continue its cursor."""
    return f"{_OUT_OF_STEP}{cursor}"


def cursor_in(why: str) -> str | None:
    """Return the cursor in the reason of a refusal; None if it has none."""
    return why.removeprefix(_OUT_OF_STEP) if why.startswith(_OUT_OF_STEP) else None
