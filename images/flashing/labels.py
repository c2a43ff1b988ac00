"""What is on the label of a gateway: of a card that was written, and nothing of it is a secret."""

from __future__ import annotations

from typing import NamedTuple


class Label(NamedTuple):
    """One."""

    name: str
    hostname: str
    hub: str
    address: str
    image: str
    card: str
    """The card's own serial number, or where it was."""

    def scanned(self, date: str) -> str:
        """What a scanner reads: a line `key: value` for each thing the label says."""
        pairs = {**self._asdict(), "date": date}
        return "\n".join(f"{key}: {value}" for key, value in pairs.items() if value)
