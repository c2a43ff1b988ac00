"""The guarantees hold in every order of events that the seeds give: see README.md."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.simulation.campaign import campaign
from tests.simulation.run import run
from tests.simulation.world import Options

SEEDS = 125
"""Number of seeds in every test run. They are fixed, so that only a change makes a test fail.

Each deliberate defect is found within 100 (`SIMULATION.seeds_max`); long runs try 10 000 new ones.
"""
SEEDS_SLOW = 10_000
"""Number of new seeds in a long run."""
REGRESSIONS = (136,)
"""Seeds that once found something, with `LONG`."""

LONG = Options(span_s=2.0, faults=6)
DIGEST = """
from tests.simulation.run import run
from tests.simulation.world import Options
for seed in (3, 4, 5):
    print(run(seed, Options(faults=8))[0].history.digest)
"""


def failures(seeds: range, options: Options) -> str:
    """Describe the seeds that failed; empty when none did."""
    steps, failed = campaign(seeds, options)
    print(f"seeds {seeds.start} to {seeds.stop - 1}: {steps} steps")
    lines = [f"python -m tests.simulation --seed {seed}: {'; '.join(said)}" for seed, said in failed.items()]
    return "\n".join([f"{len(failed)} of {len(seeds)} seeds failed", *lines[:10]]) if failed else ""


@pytest.mark.timeout(900)
def test_acknowledged_messages_arrive_once_in_any_order() -> None:
    found = failures(range(SEEDS), Options())
    assert not found, found


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_acknowledged_messages_arrive_once_with_many_new_seeds() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    found = failures(range(first, first + SEEDS_SLOW), LONG)
    assert not found, found


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_of_former_defects_pass(seed: int) -> None:
    world, violations = run(seed, LONG)
    assert not violations, [str(violation) for violation in violations[:5]]
    assert world.errors == []


def test_a_seed_is_the_same_history_in_every_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        ).stdout
        for hash_seed in ("0", "1", "random")
    }
    assert len(digests) == 1
    here = "".join(run(seed, Options(faults=8))[0].history.digest + "\n" for seed in (3, 4, 5))
    assert digests == {here}


def test_seeds_differ() -> None:
    assert run(1, Options())[0].history.digest != run(2, Options())[0].history.digest
