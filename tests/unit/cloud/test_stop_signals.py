"""Signals that stop a hub."""

from __future__ import annotations

import asyncio
import signal

import pytest

from cloud.hub.stop_signals import FORWARDED_S_MAX, REPEATED_S_MAX, StopSignals

INT, TERM = int(signal.SIGINT), int(signal.SIGTERM)


@pytest.mark.parametrize(
    ("second", "after_s", "left"),
    [
        (TERM, FORWARDED_S_MAX / 2, []),
        (TERM, FORWARDED_S_MAX, [128 + TERM]),
        (INT, REPEATED_S_MAX / 2, []),
        (INT, REPEATED_S_MAX * 2, [128 + INT]),
    ],
)
def test_only_a_second_wish_ends_the_hub_at_once(second: int, after_s: float, left: list[int]) -> None:
    now_s, statuses = [5.0], list[int]()
    stop = asyncio.Event()
    signals = StopSignals(stop, lambda: now_s[0], statuses.append)
    signals.arrived(INT)
    assert stop.is_set()
    assert statuses == []
    now_s[0] += after_s
    signals.arrived(second)
    assert statuses == left
