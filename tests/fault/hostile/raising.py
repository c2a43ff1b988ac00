"""Run the program with calls that raise: each named call at its second and fifth time.

``python -m tests.fault.hostile.raising FILE MODULE:NAME… -- ARGUMENTS``; FILE gets a line for each call that raised.
The exception quotes the customers' message as badly as any library's exception could.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

MARKER: Final = "marker-b64f-17"
"""Marker in every body, property and password of the test."""
AT: Final = (2, 5)


def raising(target: str, told: Path, original: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in AT:
            with told.open("a") as file:
                file.write(f"{target}\n")
            raise ValueError(f"{MARKER}: cannot use {arguments!r} {named!r}", arguments)
        return original(*arguments, **named)

    return call


def patch(target: str, told: Path) -> None:
    place, _, name = target.partition(":")
    owner: Any = importlib.import_module(place)
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    setattr(owner, last, raising(target, told, getattr(owner, last)))


if __name__ == "__main__":
    split = sys.argv.index("--")
    for wanted in sys.argv[2:split]:
        patch(wanted, Path(sys.argv[1]))
    sys.argv = ["waypost", *sys.argv[split + 1 :]]
    from edge.appliance.main import main

    main()
