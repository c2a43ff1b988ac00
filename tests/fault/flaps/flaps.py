"""Failures of links and of both their ends: each flap is one of `KINDS`, in an order drawn from a seed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from tests.fault.flaps.fleet import Fleet, Gateway
from tests.support.cut_link import End

BATCH_BYTES: Final = 20_000
"""Range in which a batch is cut."""
HANDSHAKE_BYTES: Final = 7_000
"""Bytes in both directions until a link is up: TLS with both certificates, SASL, opening, attaching."""
SHORTEST_S, LONGEST_S = 0.05, 1.0
"""Shortest and longest duration of a flap, and of the pause between two flaps."""
LEFT_BROKEN: Final = 0.25
"""Share of flaps after which the next one does not wait until the link is up."""


class Flaps:
    """Strikes one flap after another."""

    def __init__(self, fleet: Fleet, chance: Random) -> None:
        self.struck: Counter[str] = Counter()
        self._fleet = fleet
        self._chance = chance

    def strike(self, count: int, between: Callable[[int], None]) -> None:
        """Strike this many flaps, each kind equally often. `between` is called before each, with its number."""
        kinds: list[str] = []
        for number in range(count):
            between(number)
            if not kinds:
                kinds = self._chance.sample(sorted(KINDS), len(KINDS))
            kind, gateway = kinds.pop(), self._chance.choice(self._fleet.gateways)
            self._wait()
            KINDS[kind](self, gateway)
            self.struck[kind] += 1
            if self._chance.random() > LEFT_BROKEN and not gateway.revoked:
                gateway.come_up()
        for gateway in self._fleet.gateways:
            gateway.link.end_half_open()
            gateway.come_up()

    def _wait(self) -> None:
        time.sleep(self._chance.uniform(SHORTEST_S, LONGEST_S))  # the random moment

    def _cut(self, gateway: Gateway) -> None:
        gateway.link.cut(reset=self._chance.random() < 0.5)

    def _in_a_batch(self, gateway: Gateway) -> None:
        gateway.link.cut_after(self._chance.randrange(1, BATCH_BYTES))
        self._wait()

    def _in_a_handshake(self, gateway: Gateway) -> None:
        after = [self._chance.randrange(1, HANDSHAKE_BYTES) for _ in range(self._chance.randint(1, 3))]
        gateway.link.cut_next(after)
        gateway.link.cut()

    def _half_open(self, gateway: Gateway) -> None:
        """Leave one end of the connection open.

        Either the hub still holds the old connection when the gateway reconnects, or the gateway waits for answers of a
        hub that has already closed the connection.
        """
        told = self._chance.choice(list(End))
        gateway.link.half_open(told)
        self._wait()
        if told is End.FAR:
            gateway.link.end_half_open()

    def _down(self, gateway: Gateway) -> None:
        gateway.link.down(True)
        self._wait()
        gateway.link.down(False)

    def _kill_hub(self, _gateway: Gateway) -> None:
        self._fleet.hub.kill()
        self._fleet.hub.start()

    def _kill_gateway(self, gateway: Gateway) -> None:
        gateway.process.kill()
        gateway.process.start()

    def _kill_both(self, gateway: Gateway) -> None:
        self._fleet.hub.kill()
        gateway.process.kill()
        gateway.process.start()
        self._wait()
        self._fleet.hub.start()


KINDS: Final[dict[str, Callable[[Flaps, Gateway], None]]] = {
    "cut": Flaps._cut,
    "cut in a batch": Flaps._in_a_batch,
    "cut in a handshake": Flaps._in_a_handshake,
    "half-open": Flaps._half_open,
    "down": Flaps._down,
    "hub killed": Flaps._kill_hub,
    "gateway killed": Flaps._kill_gateway,
    "both killed": Flaps._kill_both,
}
