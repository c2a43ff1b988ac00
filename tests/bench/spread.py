"""The same load spread over more and more senders, as in a fleet where each device waits for its answer.

The cost of a message should not depend on the number of senders. Each number of senders therefore has a bound, and a
least share of the rate with the fewest senders.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from tests.bench.brokers import Broker, WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Goal, Result, at_least
from tests.bench.unlike import FILES_BESIDE, allow_files


class Spread(NamedTuple):
    """Comparison over numbers of senders; `measure` gets a broker and a number, and returns messages a second."""

    name: str
    about: str
    seconds: int
    measure: Callable[[LoadGenerators, Broker, int], float]
    counts: tuple[int, ...]
    """Numbers of senders, the lowest first."""
    least: float = 0.0
    """Lowest rate with any number of senders, or lowest ratio to the peer if there is one; 0: no bound."""
    share: float = 0.0
    """Lowest share of the rate with the fewest senders."""
    peer: Callable[[], Broker] | None = None

    @property
    def benchmark(self) -> Benchmark:
        return Benchmark(self.name, self.about, self.seconds, self.run)

    def run(self, load: LoadGenerators, settings: Settings) -> list[Result]:
        allow_files(max(self.counts) + FILES_BESIDE)
        with ExitStack() as stack:
            theirs = stack.enter_context(self.peer()) if self.peer is not None else None  # first: may be missing
            ours: Broker = stack.enter_context(WaypostBroker())
            brokers = [broker for broker in (ours, theirs) if broker is not None]
            rates: dict[str, dict[int, list[float]]] = {
                broker.name: {count: [] for count in self.counts} for broker in brokers
            }
            for number in range(-1, settings.rounds):
                for count in self.counts:
                    found = {broker.name: self.measure(load, broker, count) for broker in brokers}
                    said = ", ".join(f"{name} {rate:,.0f} msg/s" for name, rate in found.items())
                    say(f"  {self.name} {number + 1}/{settings.rounds}, {count} senders: {said}")
                    if number >= 0:  # the first round warms up
                        for name, rate in found.items():
                            rates[name][count].append(rate)
            memory = ours.resident_mib
            return [
                self._result(count, rates["waypost"], rates[theirs.name] if theirs is not None else None, memory)
                ._replace(peer=theirs.name if theirs is not None else "")
                for count in self.counts
            ]  # fmt: skip

    def _result(
        self, count: int, ours: dict[int, list[float]], theirs: dict[int, list[float]] | None, memory: float
    ) -> Result:
        value = statistics.median(ours[count])
        left = statistics.median(a / b for a, b in zip(ours[count], ours[self.counts[0]], strict=True))
        found = Result(
            f"{self.name} {count}", f"{self.about}; {count} senders", "msg/s", value, resident_mib=memory,
            details={"waypost_rounds": ours[count], "share_of_fewest": left},
        )  # fmt: skip
        if theirs is None:
            return found._replace(goal=self._goal(at_least(self.least, value), left)) if self.least else found
        ratio = statistics.median(a / b for a, b in zip(ours[count], theirs[count], strict=True))
        return found._replace(
            goal=self._goal(at_least(self.least, ratio, " x"), left),
            peer_value=statistics.median(theirs[count]),
            ratio=ratio,
        )

    def _goal(self, goal: Goal, left: float) -> Goal:
        if not self.share:
            return goal
        kept = at_least(self.share, left)
        words = f"{goal.words}, {self.share:g} of {self.counts[0]}'s"
        return Goal(words, min(goal.share, kept.share), goal.met and kept.met)
