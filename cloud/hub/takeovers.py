"""Takeovers: new connections of a gateway that replace its open one. Pure.

A gateway takes over its own connection after that broke unnoticed. Two machines with one identity (a copied card)
displace each other in turns: a machine returns that was displaced before. The third such takeover within
`TAKEOVERS_WITHIN_S` is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cloud.hub.limits import TAKEOVERS_SHARED, TAKEOVERS_WITHIN_S

GatewayKey = tuple[str, str]
"""Tenant and gateway."""


class RemoteProgram(NamedTuple):
    """Far side of a connection: the id of its program run, and its address."""

    instance: str
    address: str


class Takeover(NamedTuple):
    """One replacement of a connection by another."""

    at_s: float
    displaced: RemoteProgram
    arrived: RemoteProgram


class Takeovers:
    """Counts takeovers for each gateway."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock: Final = clock
        self._recent: dict[GatewayKey, deque[Takeover]] = {}
        """Recent takeovers by gateway, ordered by the last takeover."""

    def add(self, key: GatewayKey, displaced: RemoteProgram, arrived: RemoteProgram) -> str | None:
        """Count a takeover. Return the addresses of the two machines that use the gateway's identity; None if it is one
        machine."""
        self._forget()
        takeovers = self._recent.pop(key, deque(maxlen=TAKEOVERS_SHARED))
        takeovers.append(Takeover(self._clock(), displaced, arrived))
        self._recent[key] = takeovers
        return self._addresses(takeovers)

    def shared(self) -> Iterator[tuple[GatewayKey, str]]:
        """Yield the gateways with an identity that two machines use now, and the addresses of the machines."""
        self._forget()
        for key, takeovers in self._recent.items():
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
        for key in [key for key, takeovers in self._recent.items() if takeovers[-1].at_s < oldest]:
            del self._recent[key]
