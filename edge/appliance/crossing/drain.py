"""Wait until no message waits for a peer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from edge.appliance.crossing.documents import BridgeStatus
from edge.output.amounts import counted, verb

POLL_S: Final = 0.5
MANIFEST_S: Final = 30.0
"""Time limit for the manifest after the backlog is empty: the gateway checks once a second, the hub has to land it, and
the machine may be busy."""


class Drained(msgspec.Struct, frozen=True):
    """Result of draining."""

    drained: bool
    waiting: int
    """Messages that still wait."""
    seconds: float
    why: str


def wait_drained(
    status: Callable[[], BridgeStatus],
    state: Callable[[], object],
    timeout_s: float,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Drained:
    """Poll `status` until nothing waits, then request the manifest by `state`. Raises what these two raise."""
    began, most, asked = clock_s(), 0, False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty(), console=Console(stderr=True)) as progress:
        task = progress.add_task("drained", total=None)
        while True:
            bridge, passed = status(), clock_s() - began
            waiting = sum(one.backlog_messages for one in bridge.connectors)
            most = max(most, waiting)
            progress.update(task, total=most, completed=most - waiting)
            if not waiting and not asked:
                state()
                asked, stating = True, clock_s()
            elif not waiting and _manifests_are_complete(bridge) and clock_s() - stating >= 2 * POLL_S:
                left = {name: count for name, count in bridge.left.items() if count}
                return Drained(not left, sum(left.values()), passed, _describe_left(left))
            elif not waiting and clock_s() - stating >= MANIFEST_S:
                return Drained(False, 0, passed, "no message waits, but the hub has not confirmed the manifest")
            if passed >= timeout_s and waiting:
                return Drained(False, waiting, passed, _describe_waiting(bridge, waiting, timeout_s))
            pause(POLL_S)


def _manifests_are_complete(bridge: BridgeStatus) -> bool:
    return all(not one.manifest_waiting and not one.manifest_due for one in bridge.connectors)


def _describe_left(left: Mapping[str, int]) -> str:
    if not left:
        return ""
    names = ", ".join(f"{name} ({count:,} at most)" for name, count in left.items())
    step = "apply them again, or drop their messages with waypost store purge"
    return f"messages wait for forwarders that are no longer configured: {names}; {step}"


def _describe_waiting(bridge: BridgeStatus, waiting: int, timeout_s: float) -> str:
    names = ", ".join(f"{one.name} ({one.state})" for one in bridge.connectors if one.backlog_messages)
    return f"{counted(waiting, 'message')} still {verb(waiting, 'waits', 'wait')} after {timeout_s:g} s: {names}"
