"""Deliberate defects that break what a fleet guarantees; the simulation has to find each of them.

This module is built like `tests.simulation.mutations`. `python -m tests.simulation.fleet.mutations` prints the number
of seeds that each defect needed.
"""

from __future__ import annotations

from typing import Any, Final

from cloud.hub.registry import configurations, forgetting, rollouts, selectors
from cloud.hub.registry.selectors import SelectorRecord
from cloud.hub.rollout import RolloutState, RolloutStep
from tests.simulation.checker import Violation
from tests.simulation.fleet.run import run
from tests.simulation.fleet.world import Options
from tests.simulation.mutation import Mutation, Simulation


def _nothing(*_: Any) -> None:
    """Do nothing: the present value stays."""


def _every_state(*_: Any) -> Any:
    return tuple(state.value for state in RolloutState)


def _selectors_first(said_for: str | None, decided_at: int, best: SelectorRecord | None) -> bool:
    if best is None:
        return said_for is None
    return (said_for, decided_at) == (best.selector, best.decided_at)


def _held_by_nobody(_tx: Any, _tenant: str) -> dict[str, tuple[str | None, int]]:
    return {}


_plan_step = rollouts.plan_step


def _never_halts(wave: int, pace: Any, known: Any, seen: Any, confirm_s: float, now_us: int) -> RolloutStep:
    step = _plan_step(wave, pace._replace(failures_max=1_000), known, seen, confirm_s, now_us)
    if step.state is not RolloutState.HALTED:
        return step
    following = [each for each in known if each.wave == wave + 1]
    state = RolloutState.RUNNING if following else RolloutState.DONE
    return RolloutStep(wave + 1 if following else wave, state, "", step.members, following)


def _numbers_from_one(tx: Any, key: Any, now_us: int) -> None:
    tx.exec_driver_sql("DELETE FROM configurations WHERE gateway = ?", (key[1],))
    tx.exec_driver_sql("DELETE FROM configured WHERE gateway = ?", (key[1],))


MUTATIONS: Final = (
    Mutation(
        "what was said by name is for the next gateway of that name",
        [(forgetting, "_withdraw_versions", _nothing)],
        ("say by name", "forget", "say for selector", "kill hub"),
    ),
    Mutation(
        "numbers of versions are given again",
        [(forgetting, "_withdraw_versions", _numbers_from_one)],
        ("say by name", "forget"),
    ),
    Mutation(
        "commands are for the next gateway of that name",
        [(forgetting, "_reject_commands", _nothing)],
        ("send", "forget", "part"),
    ),
    Mutation(
        "a halted roll-out goes on offering",
        [(configurations, "_SENT", _every_state())],
        ("begin roll-out", "step roll-out", "part", "cut"),
    ),
    Mutation("a roll-out does not halt", [(rollouts, "plan_step", _never_halts)], ("begin roll-out",)),
    Mutation(
        "selectors count before names",
        [(selectors, "_stays", _selectors_first)],
        ("say by name", "say for selector", "label"),
    ),
    Mutation(
        "a roll-out counts before what was said since",
        [(rollouts, "held_in", _held_by_nobody)],
        ("say by name", "begin roll-out"),
    ),
)


def _judge(mutation: Mutation, seed: int) -> list[Violation]:
    return run(seed, Options(acts=tuple(mutation.kinds)))[1]


SIMULATION: Final = Simulation(_judge, seeds_max=60)


if __name__ == "__main__":
    SIMULATION.table(MUTATIONS)
