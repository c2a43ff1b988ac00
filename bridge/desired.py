"""Configuration from the hub: the document a hub wants a gateway to follow, and the report of what became of it.

A document is text that the hub's authority has signed. It names the gateway it is for and has a number: a gateway takes
none whose number is not above every one it has decided about. So neither another gateway's document nor an older one
counts, whoever sends it, and no clock is asked: the time in a document is for people. An older content comes back as a
document with a new number.

Sans-I/O; who signs and who verifies has the keys.
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
"""Of the document; a gateway refuses one it does not know."""

SIGNED_PREFIX: Final = b"waypost configuration 1\n"
"""Before the text in what is signed: no certificate and no list of revoked ones begins like it (those are DER, and
begin with 0x30), so that a signature over one of them is none over a document."""

CONFIRM_S: Final = 300.0
"""How long a gateway tries a version for, where its document says nothing: a cellular modem takes minutes to dial."""


class DesiredError(ValueError):
    """A document is none this program can follow; the message says why."""


@hides("resources")
class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway is to be configured with, as far as its hub decides."""

    format: int = FORMAT
    tenant: str
    gateway: str
    version: int
    """From 1, without gaps for each gateway."""
    made_at: int
    """UTC microseconds since 1970, by the hub's clock."""
    confirm_s: float = CONFIRM_S
    """The previous version returns when the hub has not confirmed this one so many seconds after it was taken up."""
    restart: bool = False
    """The gateway may restart where a change needs that; else it refuses such a version."""
    resources: list[dict[str, Any]]
    """All that the hub decides: what it decided before and is not named any more is as the gateway itself has it."""


@hides("content")
class SignedDesired(msgspec.Struct, frozen=True):
    """A document as it crosses."""

    content: str
    """JSON of a `Desired`, as it was signed."""
    signature: str
    """Base64 of the authority's signature over `to_sign(content)`: ECDSA or RSA (PKCS #1 v1.5) with SHA-256."""

    @property
    def signature_bytes(self) -> bytes:
        """Raises `DesiredError`."""
        try:
            return base64.b64decode(self.signature, validate=True)
        except (binascii.Error, ValueError):
            raise DesiredError("the signature cannot be read") from None


VersionNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""What a gateway says of one: the hub gives the next numbers, and a database keeps them in 63 bits."""


class VerifiedDesired(msgspec.Struct, frozen=True):
    """A document with a good signature, for the gateway that reads it."""

    desired: Desired
    authority: str
    """SHA-256 of the certificate that it was signed with, hexadecimal."""


class ApplyOutcome(enum.Enum):
    """What became of a version that is not in force."""

    REFUSED = "refused"
    """It was never in force."""
    ROLLED_BACK = "rolled-back"
    """It was tried, and the version before it has returned."""


class ApplyFailure(msgspec.Struct, frozen=True):
    """A version that is not in force, and why."""

    version: VersionNumber
    """0: of a document that says none that can be believed."""
    outcome: ApplyOutcome
    why: str


class SystemPhase(enum.Enum):
    """How far a gateway is with the system its hub wants it to run."""

    WAITING = "waiting"
    """It does nothing about it yet."""
    FETCHING = "fetching"
    INSTALLING = "installing"
    TRYING = "trying"
    """The new system runs, and has to show itself."""
    KEPT = "kept"
    REFUSED = "refused"
    """It never ran."""
    ROLLED_BACK = "rolled-back"
    """It ran, was not as well as the one before, and that has returned."""


class SystemReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a gateway says of the system its hub wants it to run."""

    version: str
    """Of Waypost, in the system that is wanted."""
    phase: SystemPhase
    why: str = ""
    """What it waits for, or why it failed."""
    percent: int = 0
    """So much of it is fetched, in whole tens."""

    @property
    def failed(self) -> bool:
        return self.phase in (SystemPhase.REFUSED, SystemPhase.ROLLED_BACK)

    @property
    def under_way(self) -> bool:
        return not self.failed and self.phase is not SystemPhase.KEPT


class DesiredReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a gateway says of its configuration."""

    version: VersionNumber = 0
    """Of the hub's, confirmed and in force where none is tried; 0: none."""
    trying: VersionNumber | None = None
    """This version is in force, until it is confirmed or the one before it returns."""
    newest: VersionNumber = 0
    """The highest version it has decided about."""
    failure: ApplyFailure | None = None
    """Of the newest version that failed, if none was confirmed since."""
    kept: tuple[str, ...] = ()
    """Kind/name of resources that are as somebody at the gateway said, in place of the hub's."""
    digest: str = ""
    """`digest_of` the document in force: numbers mean nothing to a hub whose registry is an older copy, and which gives
    them a second time. Empty where the gateway does not know it."""
    system: SystemReport | None = None
    """Of the one that `version` wants; None: it wants none."""


def digest_of(content: str) -> str:
    """SHA-256 of a document's text, hexadecimal: which document it is."""
    return hashlib.sha256(content.encode()).hexdigest()


def to_sign(content: str) -> bytes:
    """The bytes a signature is over."""
    return SIGNED_PREFIX + content.encode()


def written(desired: Desired) -> str:
    """The text of a document. Raises `DesiredError` when it is larger than a gateway takes."""
    text = msgspec.json.encode(desired).decode()
    if len(text.encode()) > DESIRED_BYTES_MAX:
        raise DesiredError(f"a gateway's configuration has {DESIRED_BYTES_MAX} bytes at most, and this one {len(text)}")
    return text


def read(content: str) -> Desired:
    """The document of a text. Raises `DesiredError`."""
    if len(content) > DESIRED_BYTES_MAX:
        raise DesiredError(f"it has more than {DESIRED_BYTES_MAX} bytes")
    try:
        desired = msgspec.json.decode(content, type=Desired)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DesiredError(f"it is not the document that is wanted: {error}") from None
    if desired.format != FORMAT:
        raise DesiredError(f"it has format {desired.format}, this program knows {FORMAT}: it needs a newer program")
    if desired.version < 1 or not 0 < desired.confirm_s < float("inf"):
        raise DesiredError("its version or its deadline is no number above 0")
    return desired


def signed_text(signature: bytes) -> str:
    """A signature as `SignedDesired` has it."""
    return base64.b64encode(signature).decode()
