"""Dispatch of commands to gateways: commands in flight, and the gateways' answers. No I/O.

Commands come from a store, which marks them as `sent` before they leave: from then on only the gateway knows their
outcome. Commands without an answer when a line ends are sent again over the next one. The gateway recognises them by
their identifier and stores them once.

An online command is sent at most once. One that cannot be sent now is rejected; the outcome of one without an answer is
unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Final, Protocol

from bridge.command import ONLINE_COMMANDS, UNKNOWN_DEVICE, HubCommand, OnlineReason, message, split_refusal
from bridge.downlink import GatewayLink, Key
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.commands.limits import UNDER_WAY_MAX
from cloud.hub.limits import ONLINE_ANSWER_S
from cloud.hub.registry.command_moves import sending_name, times_returned
from cloud.hub.registry.commands import CommandNews, CommandRecord, CommandState

log = logging.getLogger(__name__)


class CommandStore(Protocol):
    """Store of commands. Both methods return at once, and answer on the loop's thread."""

    def take(
        self, key: Key, but: Collection[str], limit: int, then: Callable[[Sequence[CommandRecord] | None], None]
    ) -> None:
        """Mark the next commands of a gateway as sent, except those in `but`, and pass them to `then`; None if the
        store fails."""
        ...

    def keep(self, news: CommandNews, then: Callable[[], None]) -> None:
        """Store the answer of a gateway, then call `then`, also on failure; then the command is sent again. News with
        `again_until` is stored later if that fails now."""
        ...


class _Gateway:
    """Connected gateway."""

    def __init__(self, line: GatewayLink) -> None:
        self.line = line
        self.under_way: dict[int, CommandRecord] = {}
        """Commands in flight by delivery tag."""
        self.answered: set[str] = set()
        """Identifiers of commands with an answer that is not stored yet."""
        self.asking = False
        """A request to the store is pending."""
        self.again = False
        """More commands may have arrived since, or there was no room for them."""


class Dispatch:
    """Sends commands to the gateways of one hub (`bridge.downlink.DownlinkSource`)."""

    def __init__(self, store: CommandStore, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self._store = store
        self._now_us = now_us
        self._gateways: dict[Key, _Gateway] = {}
        self._online: dict[GatewayLink, dict[int, CommandRecord]] = {}
        """Online commands in flight by delivery tag, with their lines, which may have been replaced by others."""
        self._tags = count()

    def send_pending(self, key: Key) -> None:
        """Send pending commands to a gateway."""
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
        else:
            gateway.again = True

    def is_connected(self, key: Key) -> bool:
        """Return whether a gateway receives commands from this hub."""
        gateway = self._gateways.get(key)
        return gateway is not None and gateway.line.open

    def retry_pending(self) -> None:
        """Retry gateways with a failed request or a released command. Called at intervals."""
        for key, gateway in list(self._gateways.items()):
            if gateway.again and not gateway.asking:
                self.send_pending(key)

    # --- Source -------------------------------------------------------------------------------------------------------

    def ready(self, line: GatewayLink) -> None:
        known = self._gateways.get(line.gateway)
        if known is None or known.line is not line:
            self._gateways[line.gateway] = _Gateway(line)
        self.send_pending(line.gateway)

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        online = self._online.get(line, {}).pop(tag, None)
        gateway = self._gateways.get(line.gateway)
        if gateway is None or gateway.line is not line:
            if online is not None:  # it is not sent again over the next line, so this answer counts
                self._store.keep(self._answer_news(online, outcome, why), lambda: None)
            return
        command = gateway.under_way.pop(tag, None)
        if command is None:
            return
        if outcome is ForwardOutcome.RELEASED and not command.online:
            gateway.again = True
            return
        news = self._answer_news(command, outcome, why)
        gateway.answered.add(command.id)
        self._store.keep(news, lambda: gateway.answered.discard(command.id))

    def ended(self, line: GatewayLink) -> None:
        self._online.pop(line, None)
        gateway = self._gateways.get(line.gateway)
        if gateway is not None and gateway.line is line:
            del self._gateways[line.gateway]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _send(self, key: Key, gateway: _Gateway, found: Sequence[CommandRecord] | None) -> None:
        gateway.asking = False
        if found is None:
            gateway.again = True
            return
        now_us = self._now_us()
        there = self._gateways.get(key) is gateway and gateway.line.open
        for command in found:
            reason = _unsendable(gateway.line, there, command, now_us) if command.online else None
            if reason is not None:
                self._reject(command, reason)
            if reason is not None or not there:
                continue  # the others are sent over the next line
            tag = next(self._tags)
            gateway.under_way[tag] = command
            if command.online:
                self._online.setdefault(gateway.line, {})[tag] = command
            gateway.line.send(tag, message(command_to_send(command, now_us)))
        if there and (found or gateway.again):
            self.send_pending(key)

    def _answer_news(self, command: CommandRecord, outcome: ForwardOutcome, why: str) -> CommandNews:
        """Return the news of a gateway's answer."""
        state = CommandState.QUEUED if outcome is ForwardOutcome.ACCEPTED else CommandState.REJECTED
        reason: OnlineReason | None = None
        if command.online and outcome is ForwardOutcome.RELEASED:
            reason, why = OnlineReason.GATEWAY_BUSY, "the gateway was about to disconnect"
        elif command.online:
            reason, why = split_refusal(why)
        mine = (command.id, *command.key, command.device, self._now_us(), state, why)
        if command.online:
            return CommandNews(*mine, code=reason, again_until=_answered_until(command))
        refused = state is CommandState.REJECTED and why.startswith(UNKNOWN_DEVICE)
        sent_at = command.changed_at if refused else None
        return CommandNews(*mine, returned=refused, moves=times_returned(command.moves), sent_at=sent_at)

    def _reject(self, command: CommandRecord, reason: OnlineReason) -> None:
        """Reject an online command that was not sent."""
        state = CommandState.EXPIRED if reason is OnlineReason.NOT_SENT else CommandState.REJECTED
        mine = (command.id, *command.key, command.device, self._now_us(), state, _WORDS[reason])
        self._store.keep(CommandNews(*mine, code=reason, again_until=_answered_until(command)), lambda: None)


def _answered_until(command: CommandRecord) -> int:
    """Return until when the outcome of an online command is worth storing (UTC microseconds)."""
    return command.expires_at + int(ONLINE_ANSWER_S * 1e6)


_WORDS: Final = {
    OnlineReason.GATEWAY_NOT_CONNECTED: "the gateway disconnected before the command was sent",
    OnlineReason.GATEWAY_TOO_OLD: "the gateway runs a version without online commands: update it",
    OnlineReason.GATEWAY_BUSY: "the gateway gave no credit",
    OnlineReason.NOT_SENT: "the hub was held up for longer than its time",
}


def _unsendable(line: GatewayLink, there: bool, command: CommandRecord, now_us: int) -> OnlineReason | None:
    """Return why an online command cannot be sent over a line now; None if it can. `there`: the line is open."""
    if command.expires_at <= now_us:  # the registry or this process was held up
        return OnlineReason.NOT_SENT
    if not there:
        return OnlineReason.GATEWAY_NOT_CONNECTED
    if ONLINE_COMMANDS not in line.properties:
        return OnlineReason.GATEWAY_TOO_OLD
    return None if line.credit > 0 else OnlineReason.GATEWAY_BUSY


def command_to_send(command: CommandRecord, now_us: int) -> HubCommand:
    """Return the command with its remaining time to live: at most the whole one, as clocks of hubs may differ.

    An expired command is sent too if its gateway may have it already: only the gateway knows, and discards a new one at
    once.
    """
    return HubCommand(
        id=sending_name(command.id, command.moves),
        device=command.device,
        name=command.name,
        payload=command.payload,
        content_type=command.content_type,
        ttl_ms=max(1, min(command.expires_at - now_us, command.expires_at - command.created_at) // 1_000),
        response=command.wants_response,
        online_until_ms=command.expires_at // 1_000 if command.online else None,
    )
