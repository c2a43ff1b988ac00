"""Run seeds from the command line: print the seed, the violations, and the events around them."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from tests.simulation.checker import Violation, check, summary
from tests.simulation.nemesis import WEIGHTS, Fault
from tests.simulation.world import Options, World, simulate

TRACE_EVENTS = 40
"""Number of events shown before a violation."""


def run(seed: int, options: Options, schedule: Sequence[Fault] | None = None) -> tuple[World, list[Violation]]:
    """Simulate and judge one seed."""
    world = simulate(seed, options, schedule)
    return world, check(world.history.events)


def minimise(seed: int, options: Options) -> list[Fault]:
    """Remove one fault of the seed after another, as long as the run still fails; return the rest."""
    world, _ = run(seed, options)
    left = world.faults()
    for fault in list(left):
        fewer = [each for each in left if each is not fault]
        if run(seed, options, fewer)[1]:
            left = fewer
    return left


def show(world: World, violations: Sequence[Violation]) -> None:
    """Print a failed run for people."""
    first = violations[0]
    events = [event for event in world.history.events if event.step <= first.step][-TRACE_EVENTS:]
    for event in events:
        print(event)
    for violation in violations[:20]:
        print(f"  !! {violation}")
    for error in world.errors[:3]:
        traceback.print_exception(error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds; exit with status 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--steps", type=int, default=Options().steps_max, help="most events of one run")
    parser.add_argument("--seconds", type=float, default=Options().span_s, help="virtual seconds of work")
    parser.add_argument("--faults", type=int, default=Options().faults, help="faults in that time")
    parser.add_argument("--only", nargs="*", choices=sorted(WEIGHTS), help="kinds of faults; default: all")
    parser.add_argument("--without", nargs="*", choices=sorted(WEIGHTS), default=[], help="and which not")
    parser.add_argument("--trace", action="store_true", help="print the whole history")
    parser.add_argument("--minimise", action="store_true", help="print the faults a failing seed needs")
    chosen = parser.parse_args(arguments)
    kinds = tuple(kind for kind in chosen.only or Options().kinds if kind not in chosen.without)
    options = Options(span_s=chosen.seconds, faults=chosen.faults, steps_max=chosen.steps, kinds=kinds)
    failed, steps, began = 0, 0, time.process_time()
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        world, violations = run(seed, options)
        steps += world.scheduler.steps
        if chosen.trace:
            print(*world.history.events, sep="\n")
        if violations:
            failed += 1
            print(f"seed {seed}: {len(violations)} violations")
            show(world, violations)
            if chosen.minimise:
                print(*minimise(seed, options), sep="\n")
        elif chosen.seeds == 1:
            print(f"seed {seed}: {world.scheduler.steps} steps, digest {world.history.digest[:16]}")
            print(summary(world.history.events))
    took_s = time.process_time() - began
    rate = steps / took_s * 60
    print(f"{chosen.seeds} seeds, {failed} failed, {steps} steps in {took_s:.1f} s of CPU: {rate:,.0f} a minute")
    sys.exit(bool(failed))
