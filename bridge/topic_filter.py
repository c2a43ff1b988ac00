"""Validation of MQTT topic filters, shared by gateways, hubs and the writer of a card's file."""

from __future__ import annotations

from typing import Final

NAME_BYTES_MAX: Final = 65_535
"""Bytes of a topic name or filter (MQTT 5 section 4.7.3)."""
_SHARE: Final = "$share/"


def without_share(pattern: str) -> str:
    """Return the filter in that of a shared subscription, ``$share/GROUP/FILTER`` (MQTT 5 section 4.8.2); any other
    filter as it is. Topics of messages match the filter alone."""
    if not pattern.startswith(_SHARE):
        return pattern
    return pattern.removeprefix(_SHARE).partition("/")[2] or pattern


def filter_fault(pattern: str) -> str:
    """Return why this is not a topic filter (MQTT 5 section 4.7.1); empty when it is one."""
    levels = pattern.split("/")
    if len(pattern.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX or "\0" in pattern:
        return f'longer than {NAME_BYTES_MAX} bytes, or with a null character: "{pattern[:40]}…"'
    if any("#" in level and level != "#" for level in levels) or "#" in levels[:-1]:
        return f'"{pattern}": # must be alone in the last level'
    if any("+" in level and level != "+" for level in levels):
        return f'"{pattern}": + must be alone in its level'
    return ""
