"""What a topic filter is: gateways, hubs, and who writes a card's file hold a text against one rule."""

from __future__ import annotations

from typing import Final

NAME_BYTES_MAX: Final = 65_535
"""A topic name or filter (MQTT 5 section 4.7.3)."""


def filter_fault(pattern: str) -> str:
    """Why this is no topic filter (MQTT 5 section 4.7.1); empty when it is one."""
    levels = pattern.split("/")
    if len(pattern.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX or "\0" in pattern:
        return f'longer than {NAME_BYTES_MAX} bytes, or with a null character: "{pattern[:40]}…"'
    if any("#" in level and level != "#" for level in levels) or "#" in levels[:-1]:
        return f'"{pattern}": # stands alone in the last level'
    if any("+" in level and level != "+" for level in levels):
        return f'"{pattern}": + stands alone in its level'
    return ""
