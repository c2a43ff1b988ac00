"""Runs as a store returns them."""

from __future__ import annotations

from bridge.message import Run, Stored


def stored_from(position: int, runs: list[Run]) -> list[Stored]:
    stored = []
    for number, run in enumerate(runs):
        stored.append(Stored(position, number * 1000, run))
        position += len(run)
    return stored
