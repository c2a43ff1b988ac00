"""Downlinks of LoRaWAN devices: each leaves when its device listens, and ends with the network's answer. Sans-I/O.

A device of class A listens for a moment after each of its uplinks. So a command is held here until an uplink comes, and
a newer one can still replace it. ChirpStack gets at most one downlink of a device at a time.

A downlink has an identifier that follows from its message's name. ChirpStack takes an identifier once while it is in
its queue, so a downlink may be handed over again after a restart.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from bridge.connectors.chirpstack.events import (
    COMMAND_TOPIC,
    DEV_EUI,
    DeviceClass,
    DeviceEvent,
    DownlinkCommand,
    DownlinkError,
    EventName,
    downlink_of,
    encode_command,
)
from bridge.connectors.limits import (
    LORAWAN_ANSWERS_REMEMBERED_MAX,
    LORAWAN_HANDED_AGAIN_S,
    LORAWAN_HANDED_AGAIN_UPLINKS,
    LORAWAN_QUIET_S,
    LORAWAN_TRIES_MAX,
)
from bridge.connectors.messages import ConnectorMessage, Translate, messages
from bridge.connectors.settings import DownlinkSettings
from bridge.connectors.ticket_answers import ACCEPTED, MessageAnswer
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run

log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_IDENTIFIERS: Final = uuid.UUID("8b7a3c0e-6a55-4a0b-9f43-2f7d4c1e9a10")
"""Namespace of the identifiers of downlinks (RFC 9562 section 5.5)."""
_EXPIRED: Final = "EXPIRED"
"""Code of ChirpStack's log for a downlink after its `expiresAt`."""
EXPIRED: Final = MessageAnswer(ForwardOutcome.RETURNED)
"""The address drops it, as its time to live is over."""


def _rejected(why: str) -> MessageAnswer:
    return MessageAnswer(ForwardOutcome.REJECTED, why)


@dataclass(slots=True)
class _Downlink:
    """Command that is held for its device."""

    outgoing: Outgoing
    """Topic, and the command in JSON, as ChirpStack gets them."""
    command: DownlinkCommand
    expires_ns: int | None
    tries: int = 0
    handed_at_s: float | None = None
    """Monotonic time at which ChirpStack got it; None: it has not."""
    uplinks: int = 0
    """Uplinks of the device since then."""
    sent: bool = False
    """A gateway has sent it; the device has to acknowledge it."""


@dataclass(slots=True)
class _Device:
    """Known state of a device."""

    name: str
    held: deque[_Downlink] = field(default_factory=deque)
    kind: DeviceClass | None = None
    """None before the first event."""
    open_until_s: float = 0.0
    """Monotonic time at which the receive window of its last uplink ends."""


class DownlinkQueue:
    """Downlinks of all devices of one connector; lives as long as the connector."""

    def __init__(
        self,
        settings: DownlinkSettings,
        translate: Translate,
        *,
        now_ns: Callable[[], int],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`now_ns` is UTC."""
        self._settings, self._translate = settings, translate
        self._now_ns, self._monotonic_s = now_ns, monotonic_s
        self._devices: dict[str, _Device] = {}
        self._busy: dict[str, _Device] = {}
        """Devices with commands."""
        self._answered: list[tuple[int, MessageAnswer]] = []
        self._early: dict[str, MessageAnswer] = {}
        """Answers about downlinks that are not held: they come again after a break."""
        self._handed: dict[str, _Downlink] = {}
        """Downlinks that ChirpStack got over an earlier connection, by identifier, until their commands come again."""
        self._quiet_until_s = 0.0
        """Monotonic time before which nothing leaves: events of before come first, and may answer a command."""

    # --- commands -----------------------------------------------------------------------------------------------------

    def add(self, outgoing: Outgoing) -> None:
        """Hold a command, which is the only message of its ticket."""
        try:
            name, downlink = self._read(outgoing)
        except DownlinkError as error:
            self._answered.append((outgoing.ticket, _rejected(str(error))))
            return
        early = self._early.pop(downlink.command.id, None)
        if early is not None:
            self._answered.append((outgoing.ticket, early))
            return
        before = self._handed.pop(downlink.command.id, None)
        if before is not None:
            downlink = replace(before, outgoing=downlink.outgoing)
        device = self._device(name)
        if self._settings.newest_wins:
            for older in [each for each in device.held if each.handed_at_s is None]:
                self._end(device, older, _rejected("a newer command has replaced it"))
        device.held.append(downlink)
        self._busy[name] = device

    def _read(self, outgoing: Outgoing) -> tuple[str, _Downlink]:
        """Return the device and the downlink of a command. Raises DownlinkError."""
        found = COMMAND_TOPIC.fullmatch(outgoing.address)
        if found is None or not DEV_EUI.fullmatch(found["device"]):
            raise DownlinkError(f"{outgoing.address} names no DevEUI of 16 hexadecimal digits in lower case")
        (message,) = messages(outgoing, self._translate)
        command = downlink_of(message.payload, self._settings.port, confirmed=self._settings.confirmed)
        command.dev_eui, command.id = found["device"], _identifier(message)
        expires_ns = None
        if message.properties.expiry_s is not None and message.received_at:
            expires_ns = message.received_at + message.properties.expiry_s * _NS
            moment = datetime.fromtimestamp(expires_ns // _NS, UTC)
            command.expires_at = moment.isoformat().replace("+00:00", "Z")
        run = outgoing.stored.run
        made = Run(run.address, run.device, 1, b"", [encode_command(command)], run.received_at)
        stored = outgoing.stored._replace(run=made)
        leaves = Outgoing(outgoing.ticket, outgoing.address, stored, outgoing.hop, outgoing.sending)
        return found["device"], _Downlink(leaves, command, expires_ns)

    # --- events -------------------------------------------------------------------------------------------------------

    def observe(self, name: EventName, event: DeviceEvent) -> None:
        """Take note of an event: an uplink opens a window, and an answer ends a downlink."""
        if not DEV_EUI.fullmatch(name.device):
            return
        device = self._device(name.device)
        device.kind = event.device_info.device_class_enabled
        match name.kind:
            case "txack":
                self._sent(device, event.queue_item_id)
            case "ack":
                self._acknowledged(device, event)
            case "log" if "queue_item_id" in event.context:
                why = f"ChirpStack discarded it: {event.code}"
                answer = EXPIRED if event.code == _EXPIRED else _rejected(why)
                self._answer(device, event.context["queue_item_id"], answer)
        if name.kind in ("up", "status") or (name.kind == "ack" and event.acknowledged):
            device.open_until_s = self._monotonic_s() + self._settings.window_s
            for each in device.held:
                each.uplinks += name.kind == "up"

    def _sent(self, device: _Device, identifier: str) -> None:
        downlink = _held(device, identifier)
        if downlink is not None and downlink.command.confirmed:
            downlink.sent, downlink.uplinks = True, 0
        else:
            self._answer(device, identifier, ACCEPTED)

    def _acknowledged(self, device: _Device, event: DeviceEvent) -> None:
        downlink = _held(device, event.queue_item_id)
        if event.acknowledged or downlink is None:
            answer = ACCEPTED if event.acknowledged else _rejected("the device did not acknowledge it")
            self._answer(device, event.queue_item_id, answer)
            return
        downlink.tries += 1
        if downlink.tries >= LORAWAN_TRIES_MAX:
            self._end(device, downlink, _rejected(f"the device did not acknowledge it in {downlink.tries} tries"))
        else:
            downlink.handed_at_s, downlink.sent = None, False  # once more, in the next window

    def _answer(self, device: _Device, identifier: str, answer: MessageAnswer) -> None:
        """End a downlink; remember the answer if the downlink is not here yet."""
        downlink = _held(device, identifier)
        if downlink is not None:
            self._end(device, downlink, answer)
        elif identifier:
            self._handed.pop(identifier, None)
            self._early[identifier] = answer
            while len(self._early) > LORAWAN_ANSWERS_REMEMBERED_MAX:
                del self._early[next(iter(self._early))]

    def _device(self, name: str) -> _Device:
        if name not in self._devices:
            self._devices[name] = _Device(name)
        return self._devices[name]

    def _end(self, device: _Device, downlink: _Downlink, answer: MessageAnswer) -> None:
        device.held.remove(downlink)
        if not device.held:
            del self._busy[device.name]
        self._answered.append((downlink.outgoing.ticket, answer))

    # --- what is due --------------------------------------------------------------------------------------------------

    def due(self, count_max: int) -> list[Outgoing]:
        """Return the downlinks that leave now, at most this many; they count as handed over."""
        now_s, found = self._monotonic_s(), list[Outgoing]()
        if now_s < self._quiet_until_s:
            return found
        for device in self._busy.values():
            downlink = device.held[0]
            if not _is_due(device, downlink, now_s):
                continue
            if len(found) == count_max:
                break
            downlink.handed_at_s, downlink.uplinks = now_s, 0
            found.append(downlink.outgoing)
        return found

    def expire(self) -> None:
        """Give back expired commands, unless the network has them."""
        now_ns = self._now_ns()
        for device in list(self._busy.values()):
            for each in [each for each in device.held if not each.sent]:
                if each.expires_ns is not None and each.expires_ns <= now_ns:
                    self._end(device, each, EXPIRED)

    def take_answers(self) -> Iterator[tuple[int, MessageAnswer]]:
        """Yield the tickets that have ended, with their answers."""
        answered, self._answered = self._answered, []
        yield from answered

    def refused(self, ticket: int, why: str) -> None:
        """End a downlink that the broker of ChirpStack refuses."""
        for device in self._busy.values():
            for each in device.held:
                if each.outgoing.ticket == ticket:
                    self._end(device, each, _rejected(why))
                    return

    def connected(self) -> None:
        """Begin with a connection: the events that its session has kept come first."""
        self._quiet_until_s = self._monotonic_s() + LORAWAN_QUIET_S

    def disconnected(self) -> None:
        """Forget the commands: they come again over the next connection. What is known of devices stays."""
        self._answered.clear()
        for device in self._busy.values():
            self._handed |= {each.command.id: each for each in device.held if each.handed_at_s is not None}
            device.held.clear()
        self._busy.clear()
        for device in self._devices.values():
            device.open_until_s = 0.0

    @property
    def held(self) -> int:
        """Commands that wait for their device, or for the network's answer."""
        return sum(len(device.held) for device in self._busy.values())


def _held(device: _Device, identifier: str) -> _Downlink | None:
    return next((each for each in device.held if each.command.id == identifier), None)


def _is_due(device: _Device, downlink: _Downlink, now_s: float) -> bool:
    """Return True if a downlink leaves now: its device listens, and the network does not have it already."""
    if device.kind is None or downlink.sent:
        return False
    if device.kind is DeviceClass.A and now_s >= device.open_until_s:
        return False
    if downlink.handed_at_s is None:
        return True
    if device.kind is DeviceClass.A:
        return downlink.uplinks >= LORAWAN_HANDED_AGAIN_UPLINKS
    return now_s - downlink.handed_at_s >= LORAWAN_HANDED_AGAIN_S


def _identifier(message: ConnectorMessage) -> str:
    (gateway, epoch), address, sequence = message.name
    return str(uuid.uuid5(_IDENTIFIERS, f"{gateway}/{epoch}/{address}/{sequence}"))
