"""Run seeds of the fleet from the command line: print the seed, the violations, and the events around them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulation.checker import Violation
from tests.simulation.fleet.checker import check, summary
from tests.simulation.fleet.world import ACTS, FleetWorld, Options, simulate

TRACE_EVENTS = 40
"""Number of events shown before a violation."""


def run(seed: int, options: Options) -> tuple[FleetWorld, list[Violation]]:
    """Simulate and judge one seed."""
    world = simulate(seed, options)
    return world, check(world.history.events)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds; exit with status 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fleet", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--seconds", type=float, default=Options().span_s, help="virtual seconds of work")
    parser.add_argument("--only", nargs="*", choices=sorted(ACTS), help="what happens; default: everything")
    parser.add_argument("--trace", action="store_true", help="print the whole history")
    chosen = parser.parse_args(arguments)
    options = Options(span_s=chosen.seconds, acts=tuple(chosen.only or ACTS))
    failed, steps, began = 0, 0, time.process_time()
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        world, violations = run(seed, options)
        steps += world.scheduler.steps
        if chosen.trace:
            print(*world.history.events, sep="\n")
        if violations:
            failed += 1
            print(f"seed {seed}: {len(violations)} violations")
            print(
                *[event for event in world.history.events if event.step <= violations[0].step][-TRACE_EVENTS:], sep="\n"
            )
            print(*[f"  !! {violation}" for violation in violations[:20]], sep="\n")
        elif chosen.seeds == 1:
            print(f"seed {seed}: {world.scheduler.steps} steps, digest {world.history.digest[:16]}")
            print(summary(world.history.events))
    took_s = time.process_time() - began
    print(f"{chosen.seeds} seeds, {failed} failed, {steps} steps in {took_s:.1f} s of CPU")
    sys.exit(bool(failed))
