"""Name of a card's file on the first partition, which any machine can read."""

from __future__ import annotations

from typing import Final

FILE: Final = "waypost.yaml"
