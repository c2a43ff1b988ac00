"""Manifest of an artefact: what it is, for which boards, and the checksum of its image.

It is a CBOR map (RFC 8949) with small integers as keys, in the deterministic encoding of section 4.2.1: a manifest has
one encoding, so a changed byte is a changed manifest.
"""

from __future__ import annotations

import enum
import io
from typing import Annotated, Any, Final

import cbor2
import msgspec

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.limits import (
    BOARDS_MAX,
    DEPTH_MAX,
    FROM_VERSIONS_MAX,
    IMAGE_BYTES_MAX,
    NAME_LENGTH_MAX,
)

FORMAT: Final = 1
"""Format number of a manifest; a reader refuses a format that it does not know."""
DIGEST_BYTES: Final = 32

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]*\Z", max_length=NAME_LENGTH_MAX)]
"""Name of an artefact: safe in a path, a URL and a topic."""
Version = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]*\Z", max_length=NAME_LENGTH_MAX)]
Board = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=NAME_LENGTH_MAX)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799)]
"""UTC seconds since 1970, until the end of the year 9999."""


class ArtefactKind(enum.Enum):
    """Use of an image by a device."""

    FIRMWARE = "firmware"
    """Program that the device starts."""
    CONFIGURATION = "configuration"
    """Settings that the device reads."""
    MODEL = "model"
    """Model that the device infers with."""


class ArtefactManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Statement of the maker about one image."""

    kind: ArtefactKind
    name: Name
    version: Version
    """Version for people; it is not compared."""
    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    """Number that rises with every artefact of this name, as in SUIT (RFC 9124 section 3.2): what is compared."""
    boards: Annotated[tuple[Board, ...], msgspec.Meta(min_length=1, max_length=BOARDS_MAX)]
    """Boards on which it runs."""
    from_versions: Annotated[tuple[Version, ...], msgspec.Meta(max_length=FROM_VERSIONS_MAX)] = ()
    """Versions over which it may be installed; empty: over any."""
    size: Annotated[int, msgspec.Meta(ge=1, le=IMAGE_BYTES_MAX)]
    """Bytes of the image."""
    sha256: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """SHA-256 of the image."""
    not_before: Moment | None = None
    """Time from which it is valid."""

    @property
    def digest(self) -> str:
        """SHA-256 of the image, in hexadecimal digits."""
        return self.sha256.hex()

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"


KEYS: Final[dict[str, int]] = {
    "kind": 2,
    "name": 3,
    "version": 4,
    "sequence": 5,
    "boards": 6,
    "from_versions": 7,
    "size": 8,
    "sha256": 9,
    "not_before": 10,
}
"""Key of each field in the map; key 1 is the format."""
_FIELDS: Final = {key: name for name, key in KEYS.items()}


def encode_manifest(manifest: ArtefactManifest) -> bytes:
    """Return the manifest in CBOR. Raises `ArtefactRefused` for a field that is not allowed."""
    content = cbor2.dumps(_document(manifest), canonical=True)
    decode_manifest(content)  # what is signed is what a reader accepts
    return content


def _document(manifest: ArtefactManifest) -> dict[int, Any]:
    found: dict[int, Any] = {1: FORMAT}
    for name, key in KEYS.items():
        value = getattr(manifest, name)
        if value is None or value == ():
            continue
        found[key] = value.value if isinstance(value, enum.Enum) else list(value) if isinstance(value, tuple) else value
    return found


def decode_manifest(content: bytes) -> ArtefactManifest:
    """Return the manifest of a CBOR map. Raises `ArtefactRefused`."""
    document = _decode_map(content)
    if document.get(1) != FORMAT:
        words = f"the manifest has format {str(document.get(1))[:20]}, and this version knows {FORMAT}; update Waypost"
        raise ArtefactRefused(ArtefactFault.UNSUPPORTED_VERSION, words)
    unknown = sorted(str(key)[:20] for key in document if key not in _FIELDS and key != 1)
    if unknown:
        raise ArtefactRefused(ArtefactFault.MALFORMED, f"the manifest has unknown fields: {', '.join(unknown[:5])}")
    fields = {_FIELDS[key]: value for key, value in document.items() if key != 1}
    try:
        manifest = msgspec.convert(fields, ArtefactManifest)
    except msgspec.ValidationError as error:
        raise ArtefactRefused(ArtefactFault.MALFORMED, f"the manifest is not allowed: {error}") from None
    if cbor2.dumps(_document(manifest), canonical=True) != content:
        raise ArtefactRefused(ArtefactFault.MALFORMED, "the manifest is not in the deterministic encoding")
    return manifest


def _decode_map(content: bytes) -> dict[Any, Any]:
    stream = io.BytesIO(content)
    decoder = cbor2.CBORDecoder(stream, max_depth=DEPTH_MAX, allow_indefinite=False, allow_duplicate_keys=False)
    try:
        document = decoder.decode()
    except cbor2.CBORDecodeEOF:
        raise ArtefactRefused(ArtefactFault.TRUNCATED, "the manifest ends too early") from None
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError):
        raise ArtefactRefused(ArtefactFault.MALFORMED, "the manifest is not CBOR") from None
    if stream.tell() != len(content) or not isinstance(document, dict):
        raise ArtefactRefused(ArtefactFault.MALFORMED, "the manifest is not one map of CBOR")
    return document
