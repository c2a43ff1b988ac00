"""The file of an update: a root file system, signed, for RAUC to write into the slot of a card that does not run.

Of its format ``verity`` every block is verified as it is read, so that a bundle may come from anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from images import source
from images.disk import filesystem
from images.disk.signing import Keys
from images.programs import require, run
from images.steps import Steps, key, remove

COMPATIBLE: Final = "waypost-arm64"
"""What `rauc/system.conf` of a root says, too."""
PROGRAMS: Final = ("rauc", "mksquashfs")
PACKING: Final = "-comp zstd -Xcompression-level 9 -all-root"
"""Of mksquashfs: 15 s; what it takes by itself needs 80 s and saves a tenth."""
MANIFEST: Final = """\
[update]
compatible={compatible}
version={version}
build={build}

[bundle]
format=verity

[image.rootfs]
filename=rootfs.ext4
"""


class Bundle(NamedTuple):
    """The file of an update."""

    file: Path
    version: str
    build: str
    """SHA-256 of the root file system in it."""


def build(steps: Steps, system: Path, keys: Keys) -> Bundle:
    """The bundle of a system (`images.disk.building.system`). Raises ImageError."""
    require(*PROGRAMS)
    name = f"waypost-{source.version()}-arm64.raucb"
    build_id = (system / "root.sha256").read_text().strip()
    made = steps.result(
        "bundle-arm64",
        "bundle of an update",
        [system.name, key([keys.certificate]), MANIFEST, PACKING, source.version()],
        lambda folder, log: make(folder / name, system / "root.ext4", build_id, keys, log),
    )
    return Bundle(made / name, source.version(), build_id)


def resource(bundle: Bundle, folder: str) -> str:
    """What a hub tells gateways to have them run it (YAML, kind System). `folder`: URL of where the file will be."""
    spec = {
        "version": bundle.version,
        "build": bundle.build,
        "url": f"{folder.rstrip('/')}/{bundle.file.name}",
        "sha256": filesystem.digest(bundle.file),
        "size": bundle.file.stat().st_size,
    }
    document = {"apiVersion": "waypost/v1", "kind": "System", "metadata": {"name": "gateway"}, "spec": spec}
    return yaml.safe_dump(document, sort_keys=False)


def make(target: Path, root: Path, build_id: str, keys: Keys, log: Path, *, version: str | None = None) -> None:
    """Pack and sign. `build_id`: SHA-256 of the root's file. Raises ImageError."""
    content = target.with_name("content")
    content.mkdir()
    values = {"compatible": COMPATIBLE, "version": version or source.version(), "build": build_id}
    (content / "manifest.raucm").write_text(MANIFEST.format(**values))
    os.link(root, content / "rootfs.ext4")
    words = ("--cert", keys.certificate, "--key", keys.key, "--keyring", keys.certificate)
    run("rauc", "bundle", *words, f"--mksquashfs-args={PACKING}", content, target, log=log)
    remove(content)
