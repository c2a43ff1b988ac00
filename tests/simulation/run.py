"""Run seeds from the command line: print the seed, the violations, and the events around them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.simulation.checker import Violation, check, summary
from tests.simulation.nemesis import WEIGHTS, Fault
from tests.simulation.seed_runs import add_arguments, run_seeds
from tests.simulation.world import Options, World, simulate


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds; exit with status 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    add_arguments(parser, span_s=Options().span_s)
    parser.add_argument("--steps", type=int, default=Options().steps_max, help="most events of one run")
    parser.add_argument("--faults", type=int, default=Options().faults, help="faults in that time")
    parser.add_argument("--only", nargs="*", choices=sorted(WEIGHTS), help="kinds of faults; default: all")
    parser.add_argument("--without", nargs="*", choices=sorted(WEIGHTS), default=[], help="and which not")
    parser.add_argument("--minimise", action="store_true", help="print the faults a failing seed needs")
    chosen = parser.parse_args(arguments)
    kinds = tuple(kind for kind in chosen.only or Options().kinds if kind not in chosen.without)
    options = Options(span_s=chosen.seconds, faults=chosen.faults, steps_max=chosen.steps, kinds=kinds)

    def explain(seed: int, _world: World) -> None:
        if chosen.minimise:
            print(*minimise(seed, options), sep="\n")

    run_seeds(chosen, lambda seed: run(seed, options), summary=summary, explain=explain)
