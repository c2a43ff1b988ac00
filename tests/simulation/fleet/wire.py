"""Connection between a machine and its hub, without bytes: calls arrive late, in order, or never."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from cloud.hub.groups import Key
from tests.simulation.scheduler import Process, Scheduler

LATE_S: Final = 0.03
HALF_OPEN_S: Final = 0.6
"""Longest time until an end notices a broken connection; the peer may have reconnected by then."""


class Wire:
    """Connection. When it breaks, `machine_lost` and `hub_lost` are called once, unless that end is dead."""

    def __init__(self, scheduler: Scheduler, random: Random, machine: Process, hub: Process) -> None:
        self.machine_lost: Callable[[], None] = lambda: None
        self.hub_lost: Callable[[], None] = lambda: None
        self.broken = False
        self._scheduler = scheduler
        self._random = random
        self._ends = {"machine": machine, "hub": hub}
        self._arrives_s = {"machine": 0.0, "hub": 0.0}

    def to_hub(self, call: Callable[..., object], *args: Any) -> None:
        self._carry("hub", call, args)

    def to_machine(self, call: Callable[..., object], *args: Any) -> None:
        self._carry("machine", call, args)

    def cut(self) -> None:
        """Break the connection: nothing more arrives, and each end notices at its own time. Idempotent."""
        if self.broken:
            return
        self.broken = True
        for end, lost in (("machine", self._tell_machine), ("hub", self._tell_hub)):
            delay_s = HALF_OPEN_S * self._random.random() ** 2
            self._scheduler.after(max(delay_s, self._arrives_s[end] - self._scheduler.now_s), self._ends[end], lost)

    def _tell_machine(self) -> None:
        self.machine_lost()

    def _tell_hub(self) -> None:
        self.hub_lost()

    def _carry(self, end: str, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.broken:
            return
        at_s = max(self._scheduler.now_s + LATE_S * self._random.random(), self._arrives_s[end])
        self._arrives_s[end] = at_s
        self._scheduler.at(at_s, self._ends[end], self._arrive, call, args)

    def _arrive(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.broken:
            call(*args)


class SimulatedLine:
    """The hub's end of a link down (`bridge.downlink.GatewayLink`)."""

    def __init__(self, gateway: Key, wire: Wire, receive: Callable[[int, bytes], None]) -> None:
        self.gateway = gateway
        self._wire = wire
        self._receive = receive
        self._sent = 0
        self._limit = 0
        self._over = False

    @property
    def open(self) -> bool:
        return not self._over

    @property
    def credit(self) -> int:
        return 0 if self._over else max(0, self._limit - self._sent)

    def flow(self, limit: int) -> None:
        """Grant the hub credit for this many messages in total."""
        self._limit = limit

    def send(self, tag: int, message: bytes) -> None:
        self._sent += 1
        self._wire.to_machine(self._receive, tag, message)

    def end(self) -> None:
        self._over = True
