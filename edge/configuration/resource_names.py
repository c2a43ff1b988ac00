"""Names of resources, made from texts such as addresses or names of another broker."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Final

NAME_CHARACTERS_MAX: Final = 240
"""Characters taken from a text: prefix and number fit next to them into the 253 of a name."""


class ResourceNames:
    """Unique names of the resources of one kind."""

    def __init__(self, prefix: str = "", taken: Iterable[str] = ()) -> None:
        """`prefix`: of each name; `taken`: names that there are."""
        self._prefix = prefix
        self._taken = set(taken)

    def make(self, text: str, otherwise: str) -> str:
        """Return a name that resembles a text. `otherwise`: for a text without a letter or digit."""
        wanted = re.sub("[^a-z0-9]+", "-", text.lower())[:NAME_CHARACTERS_MAX].strip("-") or otherwise
        free = (
            f"{self._prefix}{wanted}-{number}" if number else f"{self._prefix}{wanted}" for number in itertools.count()
        )
        name = next(each for each in free if each not in self._taken)
        self._taken.add(name)
        return name
