"""Verification of artefacts: one function for the manifest, one for the image. Hub and gateway use both.

`verify_manifest` checks, in this order: size and form of the envelope, key, signature, fields, first valid time. What
depends on the place is checked by `check_sequence`, `check_board` and `check_installed`. `ImageVerifier` checks the
image while its bytes pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import BinaryIO, Final

from bridge.artefacts.envelope import open_envelope
from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.limits import READ_BYTES
from bridge.artefacts.manifest import ArtefactManifest, decode_manifest


def verify_manifest(envelope: bytes, keys: Iterable[MakerPublicKey], now_s: float | None) -> ArtefactManifest:
    """Return the manifest of an envelope that a trusted key has signed.

    `now_s`: UTC seconds; None when the clock is not known to be right, and the first valid time is not checked. Raises
    `ArtefactRefused`.
    """
    found = open_envelope(envelope)
    key = next((each for each in keys if each.id == found.key_id), None)
    if key is None:
        words = f"it is signed with key {found.key_id}, which is not trusted"
        raise ArtefactRefused(ArtefactFault.UNKNOWN_KEY, words)
    if not found.is_signed_by(key):
        words = f"its signature is not from key {key.id}: the manifest was changed, or comes from another maker"
        raise ArtefactRefused(ArtefactFault.FORGED, words)
    manifest = decode_manifest(found.payload)
    if now_s is not None and manifest.not_before is not None and now_s < manifest.not_before:
        words = f"{manifest.label} is valid in {manifest.not_before - now_s:.0f} s; check the clock, or wait"
        raise ArtefactRefused(ArtefactFault.NOT_YET_VALID, words)
    return manifest


def check_sequence(manifest: ArtefactManifest, known: int | None) -> None:
    """Check that no later artefact of this name is known. `known`: highest sequence so far; None: none. Raises
    `ArtefactRefused`."""
    if known is not None and manifest.sequence < known:
        words = f"{manifest.label} has sequence {manifest.sequence}, and sequence {known} of it is known already"
        raise ArtefactRefused(ArtefactFault.DOWNGRADED, words)


def check_board(manifest: ArtefactManifest, board: str) -> None:
    """Check that an artefact is for a board. Raises `ArtefactRefused`."""
    if board not in manifest.boards:
        words = f"{manifest.label} is for {', '.join(manifest.boards[:5])}, and not for {board}"
        raise ArtefactRefused(ArtefactFault.WRONG_BOARD, words)


def check_installed(manifest: ArtefactManifest, installed: str) -> None:
    """Check that an artefact may be installed over a version. Raises `ArtefactRefused`."""
    if manifest.from_versions and installed not in manifest.from_versions:
        words = f"{manifest.label} may be installed over {', '.join(manifest.from_versions[:5])}, not over {installed}"
        raise ArtefactRefused(ArtefactFault.WRONG_FROM_VERSION, words)


class ImageVerifier:
    """Checks size and checksum of an image while its bytes pass."""

    def __init__(self, manifest: ArtefactManifest) -> None:
        self._manifest: Final = manifest
        self._digest = hashlib.sha256()
        self.size = 0
        """Bytes so far."""

    def add(self, content: bytes) -> None:
        """Add the next bytes. Raises `ArtefactRefused` as soon as there are more than stated."""
        self.size += len(content)
        if self.size > self._manifest.size:
            words = f"the image of {self._manifest.label} has more than the {self._manifest.size} bytes of its manifest"
            raise ArtefactRefused(ArtefactFault.TOO_LARGE, words)
        self._digest.update(content)

    def finish(self) -> None:
        """Check the whole image. Raises `ArtefactRefused`."""
        manifest = self._manifest
        if self.size < manifest.size:
            words = f"the image of {manifest.label} ends after {self.size} of {manifest.size} bytes"
            raise ArtefactRefused(ArtefactFault.TRUNCATED, words)
        if self._digest.digest() != manifest.sha256:
            words = f"the image of {manifest.label} has the SHA-256 {self._digest.hexdigest()}, not {manifest.digest}"
            raise ArtefactRefused(ArtefactFault.FORGED, words)


def verify_image(manifest: ArtefactManifest, image: BinaryIO) -> None:
    """Check an image that is in a file. Raises `ArtefactRefused`, OSError."""
    verifier = ImageVerifier(manifest)
    while content := image.read(READ_BYTES):
        verifier.add(content)
    verifier.finish()
