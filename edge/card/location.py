"""Where a card's file is: its name on the first partition, which every machine can open."""

from __future__ import annotations

from typing import Final

FILE: Final = "waypost.yaml"
