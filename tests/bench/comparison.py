"""A benchmark with one figure, compared with a peer's or a goal.

With a peer both brokers run at the same time, idle except in their turns, and the rounds alternate, so that load on the
machine affects both. Without one the figure is compared with a bound.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, NamedTuple

from tests.bench.brokers import Broker, WaypostBroker
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Goal, Result, at_least, at_most

ROUNDS: Final = 5


class Settings(NamedTuple):
    """Options of the command line."""

    rounds: int = ROUNDS
    full: bool = False
    """Sizes of the issue instead of quick ones."""


class Benchmark(NamedTuple):
    """Benchmark with a name for `waypost bench`."""

    name: str
    about: str
    seconds: int
    """Approximate duration with the default settings."""
    run: Callable[[LoadGenerators, Settings], list[Result]]
    """Function that runs it. Raises BrokerMissing, LoadFailed."""


class Comparison(NamedTuple):
    """Comparison of brokers by one figure. `prepare` and `measure` get a broker; `measure` returns a figure
    in `unit`.
    """

    name: str
    about: str
    seconds: int
    measure: Callable[[LoadGenerators, Broker], float]
    peer: Callable[[], Broker] | None
    goal: float
    """Least ratio to the peer, or least figure without one (most, where `lower_is_better`)."""
    prepare: Callable[[Broker], None] = lambda broker: None
    unit: str = "msg/s"
    lower_is_better: bool = False
    warm_rounds: int = 1
    memory_share: float | None = None
    """Largest share of the peer's resident memory."""
    ours: Callable[[], Broker] = WaypostBroker

    @property
    def benchmark(self) -> Benchmark:
        return Benchmark(self.name, self.about, self.seconds, self.run)

    def run(self, load: LoadGenerators, settings: Settings) -> list[Result]:
        with ExitStack() as stack:
            theirs = stack.enter_context(self.peer()) if self.peer is not None else None  # first: may be missing
            ours = stack.enter_context(self.ours())
            brokers = [broker for broker in (ours, theirs) if broker is not None]
            for broker in brokers:
                self.prepare(broker)
                for number in range(self.warm_rounds):
                    figure = self.measure(load, broker)
                    say(f"  {self.name} warm {number + 1}/{self.warm_rounds}: {broker.name} {figure:,.0f} {self.unit}")
            values: dict[str, list[float]] = {broker.name: [] for broker in brokers}
            for number in range(settings.rounds):
                for broker in brokers:
                    values[broker.name].append(self.measure(load, broker))
                said = ", ".join(f"{name} {found[-1]:,.0f} {self.unit}" for name, found in values.items())
                say(f"  {self.name} {number + 1}/{settings.rounds}: {said}")
            memory = {broker.name: broker.resident_mib for broker in brokers}
            return [self._result(values, theirs, memory)]

    def _result(self, values: dict[str, list[float]], theirs: Broker | None, memory: dict[str, float]) -> Result:
        value = statistics.median(values["waypost"])
        found = Result(
            self.name, self.about, self.unit, value, resident_mib=memory["waypost"],
            details={f"{name}_rounds": rounds for name, rounds in values.items()},
        )  # fmt: skip
        if theirs is None:
            bound = at_most if self.lower_is_better else at_least
            return found._replace(goal=bound(self.goal, value))
        peer = values[theirs.name]
        ratio = statistics.median(a / b for a, b in zip(values["waypost"], peer, strict=True))
        return found._replace(
            goal=self._goal(ratio, memory["waypost"] / memory[theirs.name]),
            peer=theirs.name,
            peer_value=statistics.median(peer),
            ratio=ratio,
            peer_resident_mib=memory[theirs.name],
        )

    def _goal(self, ratio: float, memory_share: float) -> Goal:
        goal = at_least(self.goal, ratio, " x")
        if self.memory_share is None:
            return goal
        memory = at_most(self.memory_share, memory_share)
        return Goal(f"{goal.words}, RAM {memory.words}", min(goal.share, memory.share), goal.met and memory.met)
