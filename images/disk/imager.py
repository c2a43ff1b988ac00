"""Manifest of an image for Raspberry Pi Imager 2: the boards for its first page, and a list of one system.

Imager opens it by a double click (`.rpi-imager-manifest`), and as a repository from a file or a server. It takes
absolute URLs only, so the folder of the image has to be known; until then the entry waits in the image's folder. For
that reason it is not among the signed files. Imager compares the image that it writes with the checksums in the entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from images.disk import filesystem

FILE: Final = "imager.json"
"""Entry in the folder of an image, until its URL is known."""
SUFFIX: Final = ".rpi-imager-manifest"


class ImagerDevice(NamedTuple):
    """Board on the first page of Imager, which requires a choice."""

    name: str
    description: str
    tags: tuple[str, ...]
    """Imager shows systems that have one of these."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "tags": list(self.tags),
            "matching_type": "exclusive",
            "architecture": "armv8",
            "default": True,
        }


DEVICES: Final = {
    "pi3": ImagerDevice("Raspberry Pi 3", "Models B, B+ and A+, and Compute Module 3", ("pi3-64bit",)),
    "pi4": ImagerDevice("Raspberry Pi 4", "Model B, 400, and Compute Module 4", ("pi4-64bit",)),
    "pi5": ImagerDevice("Raspberry Pi 5", "Model B", ("pi5-64bit",)),
    "zero2w": ImagerDevice("Raspberry Pi Zero 2 W", "Imager counts it among the models 3", ("pi3-64bit",)),
}
"""Boards by our names of them. The emulator has no card, and so no manifest."""


def make_entry(title: str, image: Path, compressed: Path, date: str, device: ImagerDevice) -> str:
    """Describe an image and its compressed file. `date`: YYYY-MM-DD."""
    described = {
        "name": title,
        "description": "Messaging gateway that survives the power cut",
        "icon": "",
        "url": compressed.name,
        "bmap_url": f"{compressed.name.removesuffix(compressed.suffix)}.bmap",
        "extract_size": image.stat().st_size,
        "extract_sha256": filesystem.compute_sha256(image),
        "image_download_size": compressed.stat().st_size,
        "image_download_sha256": filesystem.compute_sha256(compressed),
        "release_date": date,
        # A gateway reads host name, Wi-Fi and SSH keys from the files that Imager writes then (`edge.card.imager`).
        # Without this field Imager 1 writes scripts of Raspberry Pi OS.
        "init_format": "cloudinit",
        "architecture": "armv8",
        "devices": list(device.tags),
    }
    return json.dumps({"imager": {"devices": [device.to_json()]}, "os_list": [described]})


def make_manifest(waiting: str, folder: str) -> str:
    """Complete an entry with the URL of the folder that holds its files."""
    document = json.loads(waiting)
    for one in document["os_list"]:
        for key in ("url", "bmap_url"):
            one[key] = f"{folder.rstrip('/')}/{one[key]}"
    return json.dumps(document, indent=1) + "\n"
