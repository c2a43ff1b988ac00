"""A power cut before any call that changes files."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.support.simulated_kill import SimulatedKill

CALLS = ("replace", "rename", "fsync", "unlink", "mkdir", "open")


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that cuts the power before the n-th call that changes files."""
    left = [1 << 30]

    def counted(name: str) -> None:
        before = getattr(os, name)

        def call(*arguments: object, **named: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise SimulatedKill
            return None if name == "fsync" else before(*arguments, **named)

        monkeypatch.setattr(os, name, call)

    for name in CALLS:
        counted(name)

    def after(count: int) -> None:
        left[0] = count

    return after
