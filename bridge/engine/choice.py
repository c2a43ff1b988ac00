"""Which form of the hot loops runs: the compiled one where it is there; where another one does, that is said."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from bridge import libraries
from bridge.engine.compiled import CompiledLoops, library_path
from bridge.engine.loops import InterpretedLoops, Loops

log = logging.getLogger(__name__)

SETTING: Final = libraries.SETTING


class Choice(NamedTuple):
    """A form, what it is called, and why it is not the compiled one (empty when it is)."""

    loops: Loops
    name: str
    why: str = ""

    @property
    def fallen_back(self) -> bool:
        """Interpreted, and nobody asked for it."""
        return self.name == "Python" and not self.why.startswith(SETTING)


def choose(environment: Mapping[str, str]) -> Choice:
    """Raises ValueError for a setting that means nothing."""
    setting = environment.get(SETTING, "")
    if setting not in ("", "c", "python"):
        raise ValueError(f"{SETTING}={setting} is neither c nor python")
    if setting == "python":
        return Choice(InterpretedLoops(), "Python", f"{SETTING}=python")
    try:
        return Choice(CompiledLoops(library_path()), "C")
    except OSError as error:
        return Choice(InterpretedLoops(), "Python", str(error))


@cache
def choice() -> Choice:
    """The one of this process."""
    chosen = choose(os.environ)
    if chosen.fallen_back:
        log.warning("the AMQP engine's inner loops run in Python, at half the speed: %s", chosen.why)
    return chosen
