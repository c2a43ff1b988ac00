"""Content of the label of a gateway, taken from a card that was written. Nothing in it is a secret."""

from __future__ import annotations

from typing import NamedTuple


class Label(NamedTuple):
    """Text of one label."""

    name: str
    hostname: str
    hub: str
    address: str
    image: str
    card: str
    """Serial number of the card, or the device it was written in."""

    def code_text(self, date: str) -> str:
        """Return the text of the QR code: a line `key: value` for each field."""
        pairs = {**self._asdict(), "date": date}
        return "\n".join(f"{key}: {value}" for key, value in pairs.items() if value)
