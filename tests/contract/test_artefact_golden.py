"""The format of artefacts is pinned: hubs, gateways and devices of other versions must read each other for ever.

`golden/artefacts/<name>.cose.hex` is a signed manifest, `<name>.pub.pem` its key, `<name>.json` its content. An
existing file never changes; a change of the format is a new format number with new files.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.artefacts.envelope import open_envelope
from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.manifest import encode_manifest
from bridge.artefacts.verification import verify_manifest
from cloud.fleet.artefacts import shown

FOLDER = Path(__file__).parent / "golden" / "artefacts"


@pytest.mark.parametrize("name", ["ed25519", "es256"])
def test_golden_artefact(name: str) -> None:
    content = bytes.fromhex((FOLDER / f"{name}.cose.hex").read_text())
    key = MakerPublicKey.parse((FOLDER / f"{name}.pub.pem").read_text())
    manifest = verify_manifest(content, [key], None)
    assert shown(manifest) == json.loads((FOLDER / f"{name}.json").read_text())
    assert encode_manifest(manifest) == open_envelope(content).payload
