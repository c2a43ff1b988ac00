"""Update bundle: a signed root file system that RAUC writes into the inactive slot of a card.

In the format ``verity`` every block is verified when it is read, so a bundle may come from anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from bridge import block_index as shared_index
from bridge.block_index import BLOCK_BYTES, LEVEL, SUFFIX
from bridge.hub_bundles import SCHEME
from images import source
from images.disk import block_index, filesystem
from images.disk.signing import SigningKeys
from images.programs import require, run
from images.steps import BuildSteps, make_key, remove

COMPATIBLE: Final = "waypost-arm64"
"""Also stated in `rauc/system.conf` of a root."""
PROGRAMS: Final = ("rauc", "mksquashfs")
PACKING: Final = f"-comp gzip -Xcompression-level {LEVEL} -b {BLOCK_BYTES} -all-root"
"""Options of mksquashfs. Every zlib of Debian compresses the same way, so a gateway can make blocks again that its
running system has (decision 0009); zstd would save a tenth, but differs from release to release."""
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


class UpdateBundle(NamedTuple):
    """File of an update."""

    file: Path
    version: str
    build: str
    """SHA-256 of the root file system in it."""

    @property
    def block_index(self) -> Path:
        """File with the index of its blocks."""
        return self.file.with_name(f"{self.file.name}{SUFFIX}")


def build(steps: BuildSteps, system: Path, keys: SigningKeys) -> UpdateBundle:
    """Return the bundle of a system (`images.disk.building.build_system`). Raises ImageError."""
    require(*PROGRAMS)
    name = f"waypost-{source.read_version()}-arm64.raucb"
    build_id = (system / "root.sha256").read_text().strip()

    def fill(folder: Path, log: Path) -> None:
        make(folder / name, system / "root.ext4", build_id, keys, log)
        block_index.write_index(folder / name, system / "root.ext4")

    made = steps.result(
        "bundle-arm64",
        "bundle of an update",
        [
            system.name,
            make_key([keys.certificate]),
            MANIFEST,
            PACKING,
            source.read_version(),
            *(Path(str(each.__file__)) for each in (block_index, shared_index)),
        ],
        fill,
    )
    return UpdateBundle(made / name, source.read_version(), build_id)


def resource_name(bundle: UpdateBundle) -> str:
    """Return the name of the file with a bundle's resource."""
    return f"{bundle.file.name.removesuffix('.raucb')}.system.yaml"


def make_resource(bundle: UpdateBundle, folder: str) -> str:
    """Return the resource (YAML, kind System) that makes a hub send this system to gateways.

    `folder`: URL of the folder that will hold the file, or ``hub:``.
    """
    spec = {
        "version": bundle.version,
        "build": bundle.build,
        "url": f"{folder if folder == SCHEME else folder.rstrip('/') + '/'}{bundle.file.name}",
        "sha256": filesystem.compute_sha256(bundle.file),
        "size": bundle.file.stat().st_size,
    }
    document = {"apiVersion": "waypost/v1", "kind": "System", "metadata": {"name": "gateway"}, "spec": spec}
    return yaml.safe_dump(document, sort_keys=False)


def make(target: Path, root: Path, build_id: str, keys: SigningKeys, log: Path, *, version: str | None = None) -> None:
    """Pack and sign a bundle. `build_id`: SHA-256 of the root file system. Raises ImageError."""
    content = target.with_name("content")
    content.mkdir()
    values = {"compatible": COMPATIBLE, "version": version or source.read_version(), "build": build_id}
    (content / "manifest.raucm").write_text(MANIFEST.format(**values))
    os.link(root, content / "rootfs.ext4")
    words = ("--cert", keys.certificate, "--key", keys.key, "--keyring", keys.certificate)
    run("rauc", "bundle", *words, f"--mksquashfs-args={PACKING}", content, target, log=log)
    remove(content)
