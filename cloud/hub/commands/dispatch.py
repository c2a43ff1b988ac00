"""Commands on their way down: which are under way to which gateway, and what it answered. Sans-I/O.

What is to be sent is asked of a store, and what was sent is `sent` there before it leaves: from then on only the
gateway can say what became of it. What has no answer when a line ends is sent again over the next one; the gateway
knows it by its identifier, and keeps it once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Protocol

from bridge.command import HubCommand, message
from bridge.downlink import GatewayLink, Key
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.commands.limits import UNDER_WAY_MAX
from cloud.hub.registry.commands import CommandRecord, CommandState, News

log = logging.getLogger(__name__)


class CommandStore(Protocol):
    """Where commands are kept. Both return at once, and answer on the loop's thread."""

    def take(
        self, key: Key, but: Collection[str], limit: int, then: Callable[[Sequence[CommandRecord] | None], None]
    ) -> None:
        """The next commands of a gateway, but those of these identifiers; they count as sent. None: they cannot be had
        now."""
        ...

    def keep(self, news: News, then: Callable[[], None]) -> None:
        """A gateway has answered. Where that cannot be kept, which is told as well, the command is sent again."""
        ...


class _Gateway:
    """One that is connected."""

    def __init__(self, line: GatewayLink) -> None:
        self.line = line
        self.under_way: dict[int, CommandRecord] = {}
        """By delivery tag."""
        self.answered: set[str] = set()
        """Identifiers of those whose answer is not kept yet."""
        self.asking = False
        """The store has been asked what is to be sent."""
        self.again = False
        """There may be more since."""


class Dispatch:
    """Of one hub (`bridge.downlink.DownlinkSource`)."""

    def __init__(self, store: CommandStore, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self._store = store
        self._now_us = now_us
        self._gateways: dict[Key, _Gateway] = {}
        self._tags = count()

    def look(self, key: Key) -> None:
        """There may be something for this gateway."""
        gateway = self._gateways.get(key)
        if gateway is None:
            return
        if gateway.asking:
            gateway.again = True
            return
        room = min(gateway.line.credit, UNDER_WAY_MAX - len(gateway.under_way))
        if room > 0:
            gateway.asking, gateway.again = True, False
            but = {command.id for command in gateway.under_way.values()} | gateway.answered
            self._store.take(key, but, room, lambda found: self._send(key, gateway, found))

    def look_again(self) -> None:
        """Now and then: what was not to be had, or was given back, is tried again."""
        for key, gateway in list(self._gateways.items()):
            if gateway.again and not gateway.asking:
                self.look(key)

    # --- Source -------------------------------------------------------------------------------------------------------

    def ready(self, line: GatewayLink) -> None:
        known = self._gateways.get(line.gateway)
        if known is None or known.line is not line:
            self._gateways[line.gateway] = _Gateway(line)
        self.look(line.gateway)

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        gateway = self._gateways.get(line.gateway)
        command = gateway.under_way.pop(tag, None) if gateway is not None and gateway.line is line else None
        if gateway is None or command is None:
            return
        if outcome is ForwardOutcome.RELEASED:
            gateway.again = True
            return
        state = CommandState.QUEUED if outcome is ForwardOutcome.ACCEPTED else CommandState.REJECTED
        news = News(command.id, *command.key, command.device, self._now_us(), state, why)
        gateway.answered.add(command.id)
        self._store.keep(news, lambda: gateway.answered.discard(command.id))

    def ended(self, line: GatewayLink) -> None:
        gateway = self._gateways.get(line.gateway)
        if gateway is not None and gateway.line is line:
            del self._gateways[line.gateway]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _send(self, key: Key, gateway: _Gateway, found: Sequence[CommandRecord] | None) -> None:
        gateway.asking = False
        if found is None:
            gateway.again = True
            return
        if self._gateways.get(key) is not gateway or not gateway.line.open:
            return  # they are sent over the next line
        now_us = self._now_us()
        for command in found:
            tag = next(self._tags)
            gateway.under_way[tag] = command
            gateway.line.send(tag, message(as_sent(command, now_us)))
        if found or gateway.again:
            self.look(key)


def as_sent(command: CommandRecord, now_us: int) -> HubCommand:
    """With what is left of its time. One whose time is over is sent all the same when its gateway may have it: only the
    gateway knows, and gives it up at once where it is new there."""
    return HubCommand(
        id=command.id,
        device=command.device,
        name=command.name,
        payload=command.payload,
        content_type=command.content_type,
        ttl_ms=max(1, (command.expires_at - now_us) // 1_000),
        response=command.wants_response,
    )
