"""Update bundles that a hub serves to its gateways: their names, and the URL that means "from your hub".

A gateway requests them over HTTPS on the port of its uplink, with its certificate. Sans-I/O.
"""

from __future__ import annotations

import re
from typing import Final

from bridge.block_index import SUFFIX

SCHEME: Final = "hub:"
"""``hub:NAME`` is the bundle of this name at the gateway's own hub."""
PATH: Final = "/bundles"
"""GET ``/bundles/NAME?sha256=DIGEST``, with a valid client certificate, also in ranges (RFC 9110 section 14)."""
SHA256: Final = "sha256"
"""Parameter with the SHA-256 of the bundle, also for its index. Two hubs may have different files of one name: parts of
both would make a file that is neither. Without it any file of the name is meant."""
BUNDLE: Final = ".raucb"
NAME_CHARACTERS_MAX: Final = 128
"""Characters of a name: `waypost-0.1.0-arm64.raucb` has 25. With the suffix of its index it is a file name."""
NAME_WORDS: Final = (
    f"a bundle's name has letters, digits, '.', '_' and '-', ends with {BUNDLE}, and has {NAME_CHARACTERS_MAX} "
    "characters at most"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.raucb", re.ASCII)


def is_bundle_name(name: str) -> bool:
    """Return whether a bundle at a hub may have this name."""
    return len(name) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(name) is not None


def is_served_name(name: str) -> bool:
    """Return whether this is the name of a bundle, or of its index."""
    return is_bundle_name(name.removesuffix(SUFFIX))


def name_in(url: str) -> str | None:
    """Return the name of the bundle at the hub that a URL means; None for another URL."""
    return url.removeprefix(SCHEME) if url.startswith(SCHEME) else None


def target_of(name: str, sha256: str) -> str:
    """Return the path and query of a bundle at a hub."""
    return f"{PATH}/{name}?{SHA256}={sha256}"
