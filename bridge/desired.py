"""Desired configuration: the document that a hub sends to a gateway, and the gateway's report about it.

A document is signed by the hub's authority. It contains the name of its gateway and a version number. A gateway rejects
documents for other gateways, and version numbers that are not above all earlier ones. It needs no clock for this: the
time in a document is for people. To restore an older configuration, the hub sends it with a new number.

Sans-I/O. The callers have the keys for signing and verifying.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
from typing import Annotated, Any, Final

import msgspec

from bridge.hidden import hides
from bridge.limits import DESIRED_BYTES_MAX

FORMAT: Final = 1
"""Format number of the document; a gateway refuses a format it does not know."""

SIGNED_PREFIX: Final = b"waypost configuration 1\n"
"""Prefix of the signed bytes. Certificates and revocation lists are DER and begin with 0x30, so a signature over one
of them is never valid for a document."""

CONFIRM_S: Final = 300.0
"""Default duration of the trial of a version. A cellular modem needs minutes to dial."""


class DesiredError(ValueError):
    """This program cannot apply a document; the message gives the reason."""


@hides("resources")
class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """The hub's part of the configuration of one gateway."""

    format: int = FORMAT
    tenant: str
    gateway: str
    version: int
    """Number from 1, without gaps for each gateway."""
    made_at: int
    """UTC microseconds since 1970, by the hub's clock."""
    confirm_s: float = CONFIRM_S
    """Seconds after which the gateway rolls back unless the hub has confirmed this version."""
    restart: bool = False
    """True when the gateway may restart if a change needs it. Otherwise it refuses such a version."""
    resources: list[dict[str, Any]]
    """All resources that the hub manages. The gateway manages again a resource that only an earlier version had."""


@hides("content")
class SignedDesired(msgspec.Struct, frozen=True):
    """Signed document, as the hub sends it."""

    content: str
    """JSON of a `Desired`, as it was signed."""
    signature: str
    """Base64 of the authority's signature over `to_sign(content)`: ECDSA or RSA (PKCS #1 v1.5) with SHA-256."""

    @property
    def signature_bytes(self) -> bytes:
        """The decoded signature. Raises `DesiredError`."""
        try:
            return base64.b64decode(self.signature, validate=True)
        except (binascii.Error, ValueError):
            raise DesiredError("the signature is not valid Base64") from None


VersionNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Version number as a gateway reports it: the hub continues from it, and its database stores 63 bits."""


class VerifiedDesired(msgspec.Struct, frozen=True):
    """Document with a valid signature, for the gateway that reads it."""

    desired: Desired
    authority: str
    """SHA-256 of the certificate that signed it, hexadecimal."""


class ApplyOutcome(enum.Enum):
    """Outcome of a version that failed."""

    REFUSED = "refused"
    """The version was never in force."""
    ROLLED_BACK = "rolled-back"
    """The version was tried, and the previous one was restored."""


class ApplyFailure(msgspec.Struct, frozen=True):
    """Version that failed, and why."""

    version: VersionNumber
    """0: the document had no version that can be trusted."""
    outcome: ApplyOutcome
    why: str


class SystemPhase(enum.Enum):
    """Progress of a gateway's update to the system that its hub wants."""

    WAITING = "waiting"
    """The update has not started."""
    FETCHING = "fetching"
    INSTALLING = "installing"
    TRYING = "trying"
    """The new system runs on trial."""
    KEPT = "kept"
    REFUSED = "refused"
    """The new system never ran."""
    ROLLED_BACK = "rolled-back"
    """The new system ran and failed its trial; the previous one was restored."""


class SystemReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gateway's report about the system that its hub wants it to run."""

    version: str
    """Version of Waypost in the wanted system."""
    phase: SystemPhase
    why: str = ""
    """Reason for waiting, or for the failure."""
    percent: int = 0
    """Fetched share of the bundle, in whole tens."""

    @property
    def failed(self) -> bool:
        return self.phase in (SystemPhase.REFUSED, SystemPhase.ROLLED_BACK)

    @property
    def under_way(self) -> bool:
        return not self.failed and self.phase is not SystemPhase.KEPT


class DesiredReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gateway's report about its configuration."""

    version: VersionNumber = 0
    """The hub's version that is confirmed, and in force unless another one is on trial; 0: none."""
    trying: VersionNumber | None = None
    """Version on trial, in force until it is confirmed or rolled back."""
    newest: VersionNumber = 0
    """The highest version that the gateway has accepted or refused."""
    failure: ApplyFailure | None = None
    """Failure of the newest version, unless one was confirmed since."""
    kept: tuple[str, ...] = ()
    """Kind/name of resources that were changed at the gateway and override the hub's."""
    digest: str = ""
    """`digest_of` the document in force. A hub that was restored from an older copy of its registry may use a
    number twice, so it compares digests. Empty when the gateway does not know it."""
    system: SystemReport | None = None
    """Report about the system that `version` wants; None: it wants none."""


def digest_of(content: str) -> str:
    """Return the SHA-256 of a document's text, hexadecimal, which identifies the document."""
    return hashlib.sha256(content.encode()).hexdigest()


def to_sign(content: str) -> bytes:
    """Return the bytes that are signed."""
    return SIGNED_PREFIX + content.encode()


def written(desired: Desired) -> str:
    """Encode a document. Raises `DesiredError` when it is larger than a gateway accepts."""
    text = msgspec.json.encode(desired).decode()
    if len(text.encode()) > DESIRED_BYTES_MAX:
        raise DesiredError(f"the configuration has {len(text)} bytes; a gateway accepts up to {DESIRED_BYTES_MAX}")
    return text


def read(content: str) -> Desired:
    """Decode a document. Raises `DesiredError`."""
    if len(content) > DESIRED_BYTES_MAX:
        raise DesiredError(f"it has more than {DESIRED_BYTES_MAX} bytes")
    try:
        desired = msgspec.json.decode(content, type=Desired)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DesiredError(f"it is not a configuration document: {error}") from None
    if desired.format != FORMAT:
        raise DesiredError(f"it has format {desired.format}; this gateway supports {FORMAT}: update this gateway")
    if desired.version < 1 or not 0 < desired.confirm_s < float("inf"):
        raise DesiredError("`version` and `confirm_s` must be above 0")
    return desired


def signed_text(signature: bytes) -> str:
    """Return a signature in the form of `SignedDesired.signature`."""
    return base64.b64encode(signature).decode()
