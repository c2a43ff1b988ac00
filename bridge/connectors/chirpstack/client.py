"""Client of ChirpStack's MQTT integration: an MQTT client that sends downlinks in receive windows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from bridge.client_attempt import Answered, ConnectorTraffic
from bridge.connectors.chirpstack.downlinks import DownlinkQueue
from bridge.connectors.chirpstack.events import EventError, name_of, read_event
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.limits import LORAWAN_HELD_MAX, LORAWAN_TICK_S, READ_BYTES
from bridge.connectors.mqtt.client import MqttClient
from bridge.dialer import PeerEndpoint
from bridge.forwarders.inbox import ForwarderInbox, Incoming
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.publisher import publisher_name

log = logging.getLogger(__name__)

PEER: Final = "ChirpStack"


class ChirpStackClient:
    """`bridge.client_attempt.ConnectorClient` of a ChirpStack server; lives as long as the connector."""

    def __init__(self, client: MqttClient, downlinks: DownlinkQueue) -> None:
        self._client, self._downlinks = client, downlinks

    async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
        """Run one connection."""
        windowed = WindowedTraffic(traffic, self._downlinks)
        try:
            await first_to_end(self._client.run(endpoint, windowed), windowed.fill())
        finally:
            self._downlinks.disconnected()


class WindowedTraffic:
    """Traffic of one connection (`bridge.connectors.mqtt.client.MqttTraffic`). It reads the events that pass, gives the
    client the downlinks that are due, and settles a command with the network's answer instead of the PUBACK.
    """

    def __init__(self, traffic: ConnectorTraffic, downlinks: DownlinkQueue) -> None:
        self.inboxes: Sequence[ForwarderInbox] = traffic.inboxes
        self._traffic, self._downlinks = traffic, downlinks
        self._changed, self._up = asyncio.Event(), asyncio.Event()
        self._warned = False

    def up(self, peer: str) -> None:
        """Report that the peer takes messages."""
        self._traffic.up(f"{PEER}, {peer}")
        self._downlinks.connected()
        self._up.set()

    async def fill(self) -> None:
        """Take commands as they come, up to the limit of held ones."""
        await self._up.wait()
        while True:
            while self._downlinks.held >= LORAWAN_HELD_MAX:
                await asyncio.sleep(LORAWAN_TICK_S)
            for outgoing in await self._traffic.outgoing(1, READ_BYTES):
                self._downlinks.add(outgoing)
            self._settle_answered()
            self._changed.set()
            await asyncio.sleep(0)  # a backlog is taken without a wait; events come in between

    async def outgoing(self, messages_max: int, bytes_max: int) -> list[Outgoing]:
        """Return the downlinks that are due, at least one."""
        while True:
            self._changed.clear()
            due = self._downlinks.due(messages_max)
            self._settle_answered()
            if due:
                return due
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LORAWAN_TICK_S):
                    await self._changed.wait()

    def settle(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None:
        """Take note of the broker's answer; only a refusal ends a downlink."""
        if outcome is ForwardOutcome.REJECTED:
            self._downlinks.refused(ticket, why)
            self._settle_answered()

    async def receive(self, inbox: ForwarderInbox, message: Incoming, answered: Answered) -> None:
        """Read an event, then give it to its forwarder, as a message of its device."""
        name = name_of(message.run.address)
        if name is not None and message.run.bodies:
            try:
                self._downlinks.observe(name, read_event(message.run.bodies[0]))
            except EventError as error:
                if not self._warned:
                    self._warned = True
                    log.warning("an event of ChirpStack %s", error)
            self._settle_answered()
            self._changed.set()
            if not message.run.device:
                message.run.device = publisher_name(name.device, name.device)
        await self._traffic.receive(inbox, message, answered)

    def _settle_answered(self) -> None:
        for ticket, answer in self._downlinks.take_answers():
            self._traffic.settle(ticket, answer.outcome, answer.why)
