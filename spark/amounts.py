"""Whole numbers as commands and the report write them, the same as `edge.output.amounts` in the other programs."""

from __future__ import annotations


def count(number: int) -> str:
    """Return `52800` as `52,800`."""
    return f"{number:,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 message`, `2 messages` or, with the plural `entries`, `1,000 entries`."""
    return f"{count(number)} {noun if number == 1 else plural or f'{noun}s'}"
