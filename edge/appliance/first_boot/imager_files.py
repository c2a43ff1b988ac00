"""Turn the files of Raspberry Pi Imager on a card into the card's own file of settings.

The own file is written first, as a whole, and Imager's files are removed after it. So an interrupted run merges the
same values again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bridge.resources.document import Document, documents
from edge.appliance.first_boot.places import CardPaths, remove_secret, write_whole
from edge.card.imager import INSTANCE, KERNEL, NETWORK, SCRIPT, USER, merge_into, read_imager
from edge.card.location import FILE
from edge.card.resource import FILE_BYTES_MAX, Plain
from edge.card.text import text_of

_SCRIPT_IGNORED: Final = f"{SCRIPT} (scripts are not run: open the image by its manifest in Raspberry Pi Imager)"


def take_over(places: CardPaths) -> tuple[str, ...]:
    """Merge Imager's settings into the card's file, which has precedence; return the names of those without effect.

    Without an own file on the card, the settings that were applied before have precedence: Imager knows no hub.
    Raises OSError, and ConfigurationRejected when a file cannot be read.
    """
    script = (_SCRIPT_IGNORED,) if (places.card / SCRIPT).exists() else ()
    contents = {name: _content(places.card / name) for name in (USER, NETWORK, KERNEL)}
    if not contents[USER] and not contents[NETWORK]:
        return script
    found = read_imager(contents[USER], contents[NETWORK], contents[KERNEL])
    readable, draft = _draft(_content(places.file))
    if not readable:
        return script  # the errors of the own file are reported; the next start merges
    kept = _draft(_content(places.kept))[1] if draft is None else None
    merged = merge_into(draft or kept, found)
    if (found.name is not None or found.spec) and (kept is None or merged != kept):
        write_whole(places.file, text_of(merged).encode(), mode=0o644)
    for name in (USER, NETWORK, INSTANCE):
        remove_secret(places.card / name)
    spec = (kept or {}).get("spec") or {}
    staying = (
        f"{key} (the gateway has another: {FILE} changes it)"
        for key in found.spec
        if key in spec and spec[key] != found.spec[key]
    )
    return (*found.ignored, *staying, *script)


def _draft(text: bytes) -> tuple[bool, Plain | None]:
    """Return whether a file can be merged, and its document, if any."""
    found = list(documents(text.removeprefix(b"\xef\xbb\xbf"), FILE))
    if not found:
        return True, None
    [first, *others] = found
    if others or not isinstance(first, Document) or not isinstance(first.value, dict):
        return False, None
    return True, first.value


def _content(file: Path) -> bytes:
    """Return a file's content, bounded in size; empty without a file. Raises OSError."""
    try:
        with file.open("rb") as source:
            return source.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return b""
