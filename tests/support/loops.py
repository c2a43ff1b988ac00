"""Both forms of the AMQP engine's inner loops, whatever the installation has: see `bridge.engine.choice`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

import hatch_build
from bridge.engine import choice
from bridge.engine.compiled import CompiledLoops
from bridge.engine.loops import InterpretedLoops
from tests.conftest import ROOT

LOOPS = Path("bridge", "engine", "loops.c")
FORMS = ("C", "Python")


@cache
def form(name: str) -> choice.Choice:
    """Skips the test where there is no compiler; one that finds fault with the source is a failure."""
    if name == "Python":
        return choice.Choice(InterpretedLoops(), name, f"{choice.SETTING}=python")
    with tempfile.TemporaryDirectory() as folder:  # once it is loaded the file may go
        try:
            return choice.Choice(CompiledLoops(hatch_build.compile_source(ROOT / LOOPS, Path(folder))), name)
        except hatch_build.CompileError as error:
            if "No such file" in str(error):
                pytest.skip(f"no compiler: {error}")
            raise


@contextmanager
def running(name: str) -> Iterator[None]:
    """Engines made inside run this form."""
    chosen, usual = form(name), choice.choice
    choice.choice = lambda: chosen  # type: ignore[assignment]
    try:
        yield
    finally:
        choice.choice = usual
