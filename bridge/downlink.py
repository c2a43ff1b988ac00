"""Sends AMQP messages from a hub to its gateways. Each kind of message has a link of its own. Sans-I/O.

A gateway attaches a receiving link to an address word (`bridge.hub_addresses`), and the `DownlinkSource` of that word
provides the messages. The gateway settles a message once it is on disk. After the end of a link, its source sends
unsettled messages again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from bridge.engine import Condition, DeliveryState, Dispositions, Engine, Link
from bridge.forwarders.outcome import ForwardOutcome

_OUTCOMES: Final = {
    DeliveryState.ACCEPTED: ForwardOutcome.ACCEPTED,
    DeliveryState.REJECTED: ForwardOutcome.REJECTED,
    DeliveryState.MODIFIED_UNDELIVERABLE: ForwardOutcome.REJECTED,
}
"""Outcome by delivery state; every other state means `RELEASED`."""

Key = tuple[str, str]
"""Tenant and name of a gateway."""


class GatewayLink:
    """One link to a gateway, valid until `DownlinkSource.ended`."""

    def __init__(self, gateway: Key, engine: Engine, link: Link, wake: Callable[[], None]) -> None:
        """`wake` is called when there are bytes to send."""
        self.gateway: Final = gateway
        self._engine = engine
        self._link = link
        self._wake = wake
        self._over = False

    @property
    def open(self) -> bool:
        """True while messages may be sent, within `credit`."""
        return not self._over and not self._link.closed

    @property
    def properties(self) -> Mapping[Any, Any]:
        """Properties that the gateway has given the link."""
        return self._link.properties

    @property
    def credit(self) -> int:
        """Number of messages that the gateway accepts now."""
        return max(0, self._link.credit) if self.open else 0

    def send(self, tag: int, message: bytes) -> None:
        """Send a message, which uses one `credit`. Its `tag` (0 <= tag < 2**64) is passed to `DownlinkSource.settled`,
        and is unique among the unsettled messages of this link."""
        self._engine.send(self._link, tag, message)
        self._wake()

    def end(self) -> None:
        """Stop sending. Called by the owner of the connection."""
        self._over = True


class DownlinkSource(Protocol):
    """Source of the messages of one address word. Its methods run on the event loop's thread and do not block."""

    def ready(self, line: GatewayLink) -> None:
        """Handle a gateway that attached or granted credit: send up to `line.credit` messages, now or while the link is
        open. A gateway that reconnects may have two links for a moment; only the latest one counts."""
        ...

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        """Handle the outcome of a message. ACCEPTED: it is on the gateway's disk. REJECTED: the gateway will never
        accept it; `why` is the reason. RELEASED: send it again later."""
        ...

    def ended(self, line: GatewayLink) -> None:
        """Handle the end of a link. The gateway may or may not have the unsettled messages. Called once for each link
        that was `ready`."""
        ...


class Downlink:
    """All downward links of one connection."""

    def __init__(self, gateway: Key, sources: Mapping[str, DownlinkSource]) -> None:
        """`sources` by address word."""
        self._gateway = gateway
        self._sources = sources
        self._lines: dict[Link, tuple[GatewayLink, DownlinkSource]] = {}

    def serves(self, address: str) -> bool:
        """Return True when this address word has a source."""
        return address in self._sources

    def attach(self, engine: Engine, link: Link, wake: Callable[[], None]) -> bool:
        """Accept a link of a gateway that wants to receive; return False when there is no source for its address."""
        source = self._sources.get(link.source.address or "")
        if source is None:
            return False
        engine.accept(link)
        self._lines[link] = GatewayLink(self._gateway, engine, link, wake), source
        return True

    def flow(self, link: Link) -> None:
        """Handle new credit of a link."""
        found = self._lines.get(link)
        if found is None:
            return
        line, source = found
        if line.credit > 0:
            source.ready(line)

    def settled(self, engine: Engine, event: Dispositions) -> None:
        """Handle dispositions of the gateway."""
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
        """Handle the end of a link."""
        found = self._lines.pop(link, None)
        if found is not None:
            line, source = found
            line.end()
            source.ended(line)

    def end(self) -> None:
        """End all links, when the connection ends. Idempotent."""
        for link in list(self._lines):
            self.detached(link)
