"""Run seeds from a command line: print violations, the events around them, and a summary."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tests.simulation.checker import Violation
from tests.simulation.history import Event, History
from tests.simulation.scheduler import Scheduler

TRACE_EVENTS = 40
"""Number of events shown before a violation."""


class SimulatedWorld(Protocol):
    """World at the end of a run."""

    history: History
    scheduler: Scheduler
    errors: list[BaseException]


WorldType = TypeVar("WorldType", bound=SimulatedWorld)


def add_arguments(parser: argparse.ArgumentParser, *, span_s: float) -> None:
    """Add the options that every simulation has."""
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--seconds", type=float, default=span_s, help="virtual seconds of work")
    parser.add_argument("--trace", action="store_true", help="print the whole history")


def run_seeds(
    chosen: argparse.Namespace,
    run: Callable[[int], tuple[WorldType, list[Violation]]],
    *,
    summary: Callable[[list[Event]], object],
    explain: Callable[[int, WorldType], None] = lambda _seed, _world: None,
) -> None:
    """Run the chosen seeds; exit with status 1 when one fails. `explain` prints more about a failed seed."""
    failed, steps, began = 0, 0, time.process_time()
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        world, violations = run(seed)
        steps += world.scheduler.steps
        if chosen.trace:
            print(*world.history.events, sep="\n")
        if violations:
            failed += 1
            print(f"seed {seed}: {len(violations)} violations")
            show(world, violations)
            explain(seed, world)
        elif chosen.seeds == 1:
            print(f"seed {seed}: {world.scheduler.steps} steps, digest {world.history.digest[:16]}")
            print(summary(world.history.events))
    took_s = time.process_time() - began
    rate = steps / took_s * 60
    print(f"{chosen.seeds} seeds, {failed} failed, {steps} steps in {took_s:.1f} s of CPU: {rate:,.0f} a minute")
    sys.exit(bool(failed))


def show(world: SimulatedWorld, violations: Sequence[Violation]) -> None:
    """Print the events before the first violation, the violations, and the errors."""
    events = [event for event in world.history.events if event.step <= violations[0].step][-TRACE_EVENTS:]
    print(*events, *(f"  !! {violation}" for violation in violations[:20]), sep="\n")
    for error in world.errors[:3]:
        traceback.print_exception(error)
