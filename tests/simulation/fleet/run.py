"""Run seeds of the fleet from the command line: print the seed, the violations, and the events around them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.simulation.checker import Violation
from tests.simulation.fleet.checker import check, summary
from tests.simulation.fleet.world import ACTS, FleetWorld, Options, simulate
from tests.simulation.seed_runs import add_arguments, run_seeds


def run(seed: int, options: Options) -> tuple[FleetWorld, list[Violation]]:
    """Simulate and judge one seed."""
    world = simulate(seed, options)
    return world, check(world.history.events)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds; exit with status 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fleet", description=__doc__)
    add_arguments(parser, span_s=Options().span_s)
    parser.add_argument("--only", nargs="*", choices=sorted(ACTS), help="what happens; default: everything")
    chosen = parser.parse_args(arguments)
    options = Options(span_s=chosen.seconds, acts=tuple(chosen.only or ACTS))
    run_seeds(chosen, lambda seed: run(seed, options), summary=summary)
