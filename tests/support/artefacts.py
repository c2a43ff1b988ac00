"""Artefacts for tests: keys, manifests and images."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from bridge.artefacts.envelope import seal
from bridge.artefacts.keys import ArtefactAlgorithm, MakerPrivateKey
from bridge.artefacts.manifest import ArtefactKind, ArtefactManifest, encode_manifest

IMAGE: Final = b"\x7fELF" + bytes(range(256)) * 20
KEY: Final = MakerPrivateKey.generate(ArtefactAlgorithm.ED25519)
OTHER_KEY: Final = MakerPrivateKey.generate(ArtefactAlgorithm.ES256)


def manifest_of(image: bytes = IMAGE, **fields: Any) -> ArtefactManifest:
    """Return a manifest of an image; `fields` replace its own."""
    given: dict[str, Any] = {
        "kind": ArtefactKind.FIRMWARE,
        "name": "blinker",
        "version": "1.2.0",
        "sequence": 12,
        "boards": ("pico-w",),
        "size": len(image),
        "sha256": hashlib.sha256(image).digest(),
    }
    return ArtefactManifest(**{**given, **fields})


def sealed(image: bytes = IMAGE, key: MakerPrivateKey = KEY, **fields: Any) -> bytes:
    """Return a signed manifest of an image."""
    return seal(encode_manifest(manifest_of(image, **fields)), key)
