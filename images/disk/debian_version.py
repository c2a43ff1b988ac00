"""Order of Debian's versions (deb-version(7))."""

from __future__ import annotations

import re
from typing import Final

_PARTS: Final = re.compile(r"(\D*)(\d*)", re.ASCII)
_LAST_LETTER: Final = 256
"""Letters sort before all other characters; the end of a part before letters, and a tilde before that end."""
VersionKey = tuple[int, tuple[tuple[tuple[int, ...], int], ...], tuple[tuple[tuple[int, ...], int], ...]]


def make_version_key(version: str) -> VersionKey:
    """Return a key that sorts as dpkg does."""
    epoch, colon, rest = version.partition(":")
    if not colon or not epoch.isdecimal():
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch), _make_part_key(upstream), _make_part_key(revision)


def _make_part_key(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    found = [
        ((*(_rank(letter) for letter in letters), 0), int(digits or 0))
        for letters, digits in _PARTS.findall(text)
        if letters or digits
    ]
    return (*found, ((0,), 0))  # the end, which a tilde sorts before


def _rank(letter: str) -> int:
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + _LAST_LETTER
