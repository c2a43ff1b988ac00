"""An image's entry for Raspberry Pi Imager: a list of one, which `rpi-imager --repo` reads from a file or a server.

Imager takes whole addresses only, so that where the image lies has to be known: the entry waits in the image's folder
until then, and is not among the files whose sums are signed. What it says of the image is held against what is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.disk import filesystem

FILE: Final = "imager.json"
"""In the folder of an image, until it is known where that will be."""


def entry(title: str, image: Path, compressed: Path, date: str, devices: Sequence[str]) -> str:
    """Of an image and the file it is compressed in. `date`: YYYY-MM-DD; `devices`: what Imager calls the boards."""
    described = {
        "name": title,
        "description": "Messaging gateway that survives the power cut",
        "icon": "",
        "url": compressed.name,
        "bmap_url": f"{compressed.name.removesuffix('.zst')}.bmap",
        "extract_size": image.stat().st_size,
        "extract_sha256": filesystem.digest(image),
        "image_download_size": compressed.stat().st_size,
        "image_download_sha256": filesystem.digest(compressed),
        "release_date": date,
        # Its settings are in waypost.yaml. Where this is missing, Imager 1 writes scripts of Raspberry Pi OS.
        "init_format": "none",
        "devices": list(devices),
    }
    return json.dumps(described)


def listed(described: str, folder: str) -> str:
    """The list, of an entry whose files are in the folder of this URL."""
    one = json.loads(described)
    for key in ("url", "bmap_url"):
        one[key] = f"{folder.rstrip('/')}/{one[key]}"
    return json.dumps({"os_list": [one]}, indent=1) + "\n"
