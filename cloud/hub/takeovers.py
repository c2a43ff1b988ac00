"""Takeovers: connections of a gateway that take the place of one of the same gateway. Pure.

A gateway takes its own place after its connection broke unnoticed. Two machines with one identity (a copied card)
displace each other in turns: a machine comes back that was displaced before. The third takeover of that kind within
`TAKEOVERS_WITHIN_S` is the sign.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cloud.hub.limits import TAKEOVERS_SHARED, TAKEOVERS_WITHIN_S

GatewayKey = tuple[str, str]
"""Tenant and gateway."""


class Machine(NamedTuple):
    """The far side of a connection: which run of which program it says it is, and its address."""

    instance: str
    address: str


class Takeover(NamedTuple):
    """A connection that took the place of another."""

    at_s: float
    displaced: Machine
    arrived: Machine


class Takeovers:
    """Counts takeovers, gateway by gateway."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds that do not go back."""
        self._clock: Final = clock
        self._lately: dict[GatewayKey, deque[Takeover]] = {}
        """In the order of the last takeover of each gateway."""

    def add(self, key: GatewayKey, displaced: Machine, arrived: Machine) -> str | None:
        """Count a takeover. Return the addresses of the two machines that use the gateway's identity; None for one."""
        self._forget()
        takeovers = self._lately.pop(key, deque(maxlen=TAKEOVERS_SHARED))
        takeovers.append(Takeover(self._clock(), displaced, arrived))
        self._lately[key] = takeovers
        return self._addresses(takeovers)

    def shared(self) -> Iterator[tuple[GatewayKey, str]]:
        """Yield the gateways that two machines use now, with the machines' addresses."""
        self._forget()
        for key, takeovers in self._lately.items():
            if (addresses := self._addresses(takeovers)) is not None:
                yield key, addresses

    def _addresses(self, takeovers: deque[Takeover]) -> str | None:
        if len(takeovers) < TAKEOVERS_SHARED or self._clock() - takeovers[0].at_s > TAKEOVERS_WITHIN_S:
            return None
        before = {each.displaced.instance for each in takeovers}
        if takeovers[-1].arrived.instance not in before - {takeovers[-1].displaced.instance}:
            return None
        return ", ".join(sorted({each.arrived.address for each in takeovers}))

    def _forget(self) -> None:
        """Forget gateways without a takeover within `TAKEOVERS_WITHIN_S`."""
        oldest = self._clock() - TAKEOVERS_WITHIN_S
        for key in [key for key, takeovers in self._lately.items() if takeovers[-1].at_s < oldest]:
            del self._lately[key]
