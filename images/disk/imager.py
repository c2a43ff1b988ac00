"""Manifest of an image for Raspberry Pi Imager 2: the boards for its first page, and a list of one system.

Imager opens it by a double click (`.rpi-imager-manifest`), and as a repository from a file or a server. It takes whole
addresses only, so the folder of the image has to be known: until then the entry waits in the image's folder. It is
therefore not among the signed files. Imager compares the image it writes with the sums in the entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from images.disk import filesystem

FILE: Final = "imager.json"
"""In the folder of an image, until its address is known."""
SUFFIX: Final = ".rpi-imager-manifest"


class Device(NamedTuple):
    """A board as Imager lists it on its first page, which it does not leave without one."""

    name: str
    description: str
    tags: tuple[str, ...]
    """Imager shows systems that have one of these."""

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "tags": list(self.tags),
            "matching_type": "exclusive",
            "architecture": "armv8",
            "default": True,
        }


DEVICES: Final = {
    "pi3": Device("Raspberry Pi 3", "Models B, B+ and A+, and Compute Module 3", ("pi3-64bit",)),
    "pi4": Device("Raspberry Pi 4", "Model B, 400, and Compute Module 4", ("pi4-64bit",)),
}
"""Keys are our names of boards. The emulator has no card, and so no manifest."""


def entry(title: str, image: Path, compressed: Path, date: str, device: Device) -> str:
    """Describe an image and the file it is compressed in. `date`: YYYY-MM-DD."""
    described = {
        "name": title,
        "description": "Messaging gateway that survives the power cut",
        "icon": "",
        "url": compressed.name,
        "bmap_url": f"{compressed.name.removesuffix(compressed.suffix)}.bmap",
        "extract_size": image.stat().st_size,
        "extract_sha256": filesystem.digest(image),
        "image_download_size": compressed.stat().st_size,
        "image_download_sha256": filesystem.digest(compressed),
        "release_date": date,
        # Its settings are in waypost.yaml. Where this is missing, Imager 1 writes scripts of Raspberry Pi OS.
        "init_format": "none",
        "architecture": "armv8",
        "devices": list(device.tags),
    }
    return json.dumps({"imager": {"devices": [device.described()]}, "os_list": [described]})


def manifest(waiting: str, folder: str) -> str:
    """Complete an entry with the URL of the folder that holds its files."""
    document = json.loads(waiting)
    for one in document["os_list"]:
        for key in ("url", "bmap_url"):
            one[key] = f"{folder.rstrip('/')}/{one[key]}"
    return json.dumps(document, indent=1) + "\n"
