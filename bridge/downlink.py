"""The hub's end of what goes down to gateways: plain AMQP messages, on a link of a gateway's connection for each kind.

A gateway attaches to receive from an address word (`bridge.hub_addresses`). A `DownlinkSource` has the messages of that
word. The gateway settles a message once it is on disk. The source sends again what is not settled when a link ends.
Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from bridge.engine import Condition, DeliveryState, Dispositions, Engine, Link
from bridge.forwarders.outcome import ForwardOutcome

_OUTCOMES: Final = {
    DeliveryState.ACCEPTED: ForwardOutcome.ACCEPTED,
    DeliveryState.REJECTED: ForwardOutcome.REJECTED,
    DeliveryState.MODIFIED_UNDELIVERABLE: ForwardOutcome.REJECTED,
}
"""Everything else means: not now."""

Key = tuple[str, str]
"""Tenant and name of a gateway."""


class GatewayLink:
    """One link down to a gateway, until the source hears that it has `ended`."""

    def __init__(self, gateway: Key, engine: Engine, link: Link, wake: Callable[[], None]) -> None:
        """`wake` is called when there are bytes to send."""
        self.gateway: Final = gateway
        self._engine = engine
        self._link = link
        self._wake = wake
        self._over = False

    @property
    def open(self) -> bool:
        """Messages may be sent, as far as there is credit."""
        return not self._over and not self._link.closed

    @property
    def credit(self) -> int:
        """Messages the gateway takes now."""
        return max(0, self._link.credit) if self.open else 0

    def send(self, tag: int, message: bytes) -> None:
        """Send one of `credit` messages. `tag` (0 <= tag < 2**64) names it in `DownlinkSource.settled`; it is
        unique among the unsettled messages of this link."""
        self._engine.send(self._link, tag, message)
        self._wake()

    def end(self) -> None:
        """For whoever holds the connection: nothing more is sent."""
        self._over = True


class DownlinkSource(Protocol):
    """Who has the messages of one address word. All calls are on the loop's thread, and none blocks."""

    def ready(self, line: GatewayLink) -> None:
        """The gateway has attached, or given credit: send up to `line.credit` messages now, or later while the line is
        open. A gateway that has connected anew may have two lines for a moment; the latest is the one that counts."""
        ...

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        """ACCEPTED: the gateway has it on disk. REJECTED: it never takes it, and `why`. RELEASED: not now."""
        ...

    def ended(self, line: GatewayLink) -> None:
        """The line is over: of what is not settled nobody knows whether the gateway has it. Once a line that was
        `ready`."""
        ...


class Downlink:
    """All lines of one connection."""

    def __init__(self, gateway: Key, sources: Mapping[str, DownlinkSource]) -> None:
        """`sources` by address word."""
        self._gateway = gateway
        self._sources = sources
        self._lines: dict[Link, tuple[GatewayLink, DownlinkSource]] = {}

    def serves(self, address: str) -> bool:
        """Somebody sends what has this address word."""
        return address in self._sources

    def attach(self, engine: Engine, link: Link, wake: Callable[[], None]) -> bool:
        """The gateway wants to receive; False when nobody sends what it asks for."""
        source = self._sources.get(link.source.address or "")
        if source is None:
            return False
        engine.accept(link)
        self._lines[link] = GatewayLink(self._gateway, engine, link, wake), source
        return True

    def flow(self, link: Link) -> None:
        """The credit of a link has changed."""
        found = self._lines.get(link)
        if found is None:
            return
        line, source = found
        if line.credit > 0:
            source.ready(line)

    def settled(self, engine: Engine, event: Dispositions) -> None:
        """The gateway has answered."""
        found = self._lines.get(event.link)
        if found is None:
            return
        line, source = found
        for tag, state, remotely_settled, detail in event.items:
            if not remotely_settled:
                if not state.terminal:
                    continue
                engine.settle_sent(event.link, tag)
            why = detail.description or detail.name if isinstance(detail, Condition) else ""
            source.settled(line, tag, _OUTCOMES.get(state, ForwardOutcome.RELEASED), why)
        if line.credit > 0:
            source.ready(line)

    def detached(self, link: Link) -> None:
        """The gateway takes nothing more on a link."""
        found = self._lines.pop(link, None)
        if found is not None:
            line, source = found
            line.end()
            source.ended(line)

    def end(self) -> None:
        """The connection is over, or about to be. Idempotent."""
        for link in list(self._lines):
            self.detached(link)
