"""Names of resources, made from names of another broker."""

from __future__ import annotations

import itertools
import re
from typing import Final

NAME_CHARACTERS_MAX: Final = 60
"""Characters taken from a name, so that a number fits behind it."""


class ResourceNames:
    """Unique names of the resources of one kind."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix`: of each name."""
        self._prefix = prefix
        self._taken: set[str] = set()

    def make(self, text: str, otherwise: str) -> str:
        """Return a name that resembles a text. `otherwise`: for a text without a letter or digit."""
        wanted = re.sub("[^a-z0-9]+", "-", text.lower())[:NAME_CHARACTERS_MAX].strip("-") or otherwise
        free = (
            f"{self._prefix}{wanted}-{number}" if number else f"{self._prefix}{wanted}" for number in itertools.count()
        )
        name = next(each for each in free if each not in self._taken)
        self._taken.add(name)
        return name
