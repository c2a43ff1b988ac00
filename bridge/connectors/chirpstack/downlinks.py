"""Downlinks of LoRaWAN devices: each leaves when its device listens, and ends with the network's answer. Sans-I/O.

A device of class A listens for a moment after each of its uplinks. So a command is held here until an uplink comes, and
a newer one can still replace it. ChirpStack gets at most one downlink of a device at a time.

A downlink has an identifier that follows from its message's name. ChirpStack takes an identifier once while it is in
its queue, so a downlink may be handed over again after a restart.

The router judges whether a command has expired (`left_ns`). No other clock decides that, and an expired command is
settled for good, so that the router never delivers it again.
"""

from __future__ import annotations

import heapq
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
    LORAWAN_ACKNOWLEDGE_S,
    LORAWAN_ACKNOWLEDGE_UPLINKS,
    LORAWAN_DEVICES_MAX,
    LORAWAN_EXPIRY_CHECK_S,
    LORAWAN_EXPIRY_GRACE_S,
    LORAWAN_HAND_OVERS_MAX,
    LORAWAN_HANDED_AGAIN_S,
    LORAWAN_HANDED_AGAIN_UPLINKS,
    LORAWAN_HELD_PER_DEVICE_MAX,
    LORAWAN_QUIET_S,
    LORAWAN_REMEMBERED_MAX,
    LORAWAN_TRIES_MAX,
)
from bridge.connectors.messages import ConnectorMessage, Translate, messages
from bridge.connectors.settings import DownlinkSettings
from bridge.connectors.ticket_answers import ACCEPTED, MessageAnswer
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run

_NS: Final = 1_000_000_000
_IDENTIFIERS: Final = uuid.UUID("8b7a3c0e-6a55-4a0b-9f43-2f7d4c1e9a10")
"""Namespace of the identifiers of downlinks (RFC 9562 section 5.5)."""
_EXPIRED: Final = "EXPIRED"
"""Code of ChirpStack's log for a downlink after its `expiresAt`."""
EXPIRED: Final = MessageAnswer(ForwardOutcome.EXPIRED)


def _rejected(why: str) -> MessageAnswer:
    return MessageAnswer(ForwardOutcome.REJECTED, why)


@dataclass(slots=True)
class _Progress:
    """Known progress of a downlink at ChirpStack. It outlives a connection, and may be known before the command."""

    handed_at_s: float | None = None
    """Monotonic time at which ChirpStack got it; None: it has not, or has to get it again."""
    hand_overs: int = 0
    """Times that ChirpStack got it since its last answer."""
    uplinks: int = 0
    """Uplinks of the device since it was handed over, or sent."""
    sent_at_s: float | None = None
    """Monotonic time at which a gateway sent it; a device may have to acknowledge it."""
    tries: int = 0
    """Times that it was sent, and the device did not acknowledge it."""
    answer: MessageAnswer | None = None
    """Answer that came before the command."""

    @property
    def begun(self) -> bool:
        """True when ChirpStack may have it."""
        return self.handed_at_s is not None or self.sent_at_s is not None

    def note_sent(self, now_s: float) -> None:
        """Note that a gateway has sent it."""
        self.sent_at_s, self.uplinks, self.hand_overs = now_s, 0, 0

    def count_try(self) -> MessageAnswer | None:
        """Count a try that the device did not acknowledge. Return the answer after the last one."""
        self.tries += 1
        self.handed_at_s = self.sent_at_s = None
        if self.tries < LORAWAN_TRIES_MAX:
            return None
        return _rejected(f"the device did not acknowledge it in {self.tries} tries")


@dataclass(slots=True, eq=False)
class _Downlink:
    """Command that is held for its device."""

    outgoing: Outgoing
    """Topic, and the command in JSON, as ChirpStack gets them."""
    command: DownlinkCommand
    run: Run
    """The command as the router stores it."""
    progress: _Progress = field(default_factory=_Progress)
    judge_at_s: float = 0.0
    """Monotonic time of the next look whether it has expired."""


@dataclass(slots=True, eq=False)
class _Device:
    """Known state of a device."""

    name: str
    held: deque[_Downlink] = field(default_factory=deque)
    kind: DeviceClass | None = None
    """None before the first event."""
    open_until_s: float = 0.0
    """Monotonic time at which the receive window of its last uplink ends."""
    review_at_s: float = math.inf
    """Monotonic time of its earliest entry in the schedule."""


class DownlinkQueue:
    """Downlinks of all devices of one connector; lives as long as the connector."""

    def __init__(
        self,
        settings: DownlinkSettings,
        translate: Translate,
        *,
        left_ns: Callable[[Run], int | None],
        utc_ns: Callable[[], int | None],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`left_ns` is the router's judgement of expiry. `utc_ns` returns None while the clock may be wrong."""
        self._settings, self._translate = settings, translate
        self._left_ns, self._utc_ns, self._monotonic_s = left_ns, utc_ns, monotonic_s
        self._devices: dict[str, _Device] = {}
        """Devices, the one without an event or command for the longest time first."""
        self._held: dict[int, tuple[_Device, _Downlink]] = {}
        """Held commands by ticket."""
        self._answered: list[tuple[int, MessageAnswer]] = []
        self._remembered: dict[str, _Progress] = {}
        """Progress of downlinks without a command here, by identifier: it comes again after a break."""
        self._changed: dict[str, _Device] = {}
        """Devices to review."""
        self._due: dict[str, _Device] = {}
        """Devices with a downlink that was due at their last review."""
        self._schedule: list[tuple[float, str]] = []
        """Heap of monotonic times of reviews."""
        self._quiet_until_s = 0.0
        """Monotonic time before which nothing leaves or expires: events of before come first, and may answer it."""

    # --- commands -----------------------------------------------------------------------------------------------------

    def add(self, outgoing: Outgoing) -> None:
        """Hold a command, which is the only message of its ticket."""
        try:
            name, downlink = self._read(outgoing)
        except DownlinkError as error:
            self._answered.append((outgoing.ticket, _rejected(str(error))))
            return
        device = self._device(name)
        self._hold(device, downlink)
        progress = self._remembered.pop(downlink.command.id, None)
        if progress is not None:
            downlink.progress = progress
            sent = progress.sent_at_s is not None and not downlink.command.confirmed
            answer = progress.answer or (ACCEPTED if sent else None)
            if answer is not None:
                self._end(device, downlink, answer)
                return
        if self._settings.newest_wins:
            for older in [each for each in device.held if each is not downlink and not each.progress.begun]:
                self._end(device, older, _rejected("a newer command has replaced it"))
        if len(device.held) > LORAWAN_HELD_PER_DEVICE_MAX:
            self._end(device, downlink, _rejected(f"{LORAWAN_HELD_PER_DEVICE_MAX} commands wait for the device"))

    def _read(self, outgoing: Outgoing) -> tuple[str, _Downlink]:
        """Return the device and the downlink of a command. Raises DownlinkError."""
        found = COMMAND_TOPIC.fullmatch(outgoing.address)
        if found is None or not DEV_EUI.fullmatch(found["device"]):
            raise DownlinkError(f"{outgoing.address} names no DevEUI of 16 hexadecimal digits in lower case")
        (message,) = messages(outgoing, self._translate)
        command = downlink_of(message.payload, self._settings.port, confirmed=self._settings.confirmed)
        command.dev_eui, command.id = found["device"], _identifier(message)
        run = outgoing.stored.run
        left_ns, utc_ns = self._left_ns(run), self._utc_ns()
        if left_ns is not None and utc_ns is not None:
            moment = datetime.fromtimestamp((utc_ns + left_ns) // _NS, UTC)
            command.expires_at = moment.isoformat().replace("+00:00", "Z")
        made = Run(run.address, run.device, 1, b"", [encode_command(command)], run.received_at)
        stored = outgoing.stored._replace(run=made)
        leaves = Outgoing(outgoing.ticket, outgoing.address, stored, outgoing.hop, outgoing.sending)
        return found["device"], _Downlink(leaves, command, run)

    def _hold(self, device: _Device, downlink: _Downlink) -> None:
        device.held.append(downlink)
        self._held[downlink.outgoing.ticket] = device, downlink
        self._changed[device.name] = device

    def _end(self, device: _Device, downlink: _Downlink, answer: MessageAnswer) -> None:
        ticket = downlink.outgoing.ticket
        device.held.remove(downlink)
        del self._held[ticket]
        self._answered.append((ticket, answer))
        self._changed[device.name] = device

    # --- events -------------------------------------------------------------------------------------------------------

    def observe(self, name: EventName, event: DeviceEvent) -> None:
        """Take note of an event: an uplink opens a window, and an answer ends a downlink."""
        if not DEV_EUI.fullmatch(name.device):
            return
        device = self._device(name.device)
        device.kind = event.device_info.device_class_enabled
        match name.kind:
            case "txack" if event.queue_item_id:
                self._note_sent(device, event.queue_item_id)
            case "ack" if event.queue_item_id:
                self._note_acknowledgement(device, event.queue_item_id, acknowledged=event.acknowledged)
            case "log" if identifier := event.context.get("queue_item_id"):
                why = f"ChirpStack discarded it: {event.code}"
                self._answer(device, identifier, EXPIRED if event.code == _EXPIRED else _rejected(why))
        if name.kind in ("up", "status") or (name.kind == "ack" and event.acknowledged):
            device.open_until_s = self._monotonic_s() + self._settings.window_s
            for each in device.held:
                each.progress.uplinks += name.kind == "up"
        if device.held:
            self._changed[device.name] = device

    def _note_sent(self, device: _Device, identifier: str) -> None:
        """Note a `txack`, which ends a downlink unless its device has to acknowledge it."""
        downlink = _held(device, identifier)
        if downlink is not None and not downlink.command.confirmed:
            self._end(device, downlink, ACCEPTED)
        else:
            self._progress(downlink, identifier).note_sent(self._monotonic_s())

    def _note_acknowledgement(self, device: _Device, identifier: str, *, acknowledged: bool) -> None:
        downlink = _held(device, identifier)
        answer = ACCEPTED if acknowledged else self._progress(downlink, identifier).count_try()
        if answer is not None:
            self._answer(device, identifier, answer)
        elif downlink is not None:
            downlink.judge_at_s = 0.0  # the network no longer has it

    def _answer(self, device: _Device, identifier: str, answer: MessageAnswer) -> None:
        """End a downlink; remember the answer if the downlink is not here yet."""
        downlink = _held(device, identifier)
        if downlink is not None:
            self._end(device, downlink, answer)
        else:
            self._progress(None, identifier).answer = answer

    def _progress(self, downlink: _Downlink | None, identifier: str) -> _Progress:
        """Return the progress of a downlink, which is remembered if its command is not here."""
        if downlink is not None:
            return downlink.progress
        found = self._remembered.pop(identifier, None) or _Progress()
        self._remember(identifier, found)
        return found

    def _remember(self, identifier: str, progress: _Progress) -> None:
        self._remembered[identifier] = progress
        while len(self._remembered) > LORAWAN_REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]

    def _device(self, name: str) -> _Device:
        """Return a device, and forget the quietest ones without commands."""
        device = self._devices.pop(name, None) or _Device(name)
        self._devices[name] = device
        while len(self._devices) > LORAWAN_DEVICES_MAX:
            oldest = self._devices.pop(next(iter(self._devices)))
            if oldest.held:
                self._devices[oldest.name] = oldest
        return device

    # --- what is due --------------------------------------------------------------------------------------------------

    def due(self, count_max: int) -> list[Outgoing]:
        """Return the downlinks that leave now, at most this many; they count as handed over."""
        self.review()
        now_s, found = self._monotonic_s(), list[Outgoing]()
        for device in list(self._due.values()):
            if len(found) == count_max:
                break
            del self._due[device.name]
            if device.held and _is_due(device, device.held[0], now_s):
                progress = device.held[0].progress
                progress.handed_at_s, progress.uplinks = now_s, 0
                progress.hand_overs += 1
                found.append(device.held[0].outgoing)
                self._plan(device, now_s)
        return found

    def review(self) -> None:
        """End the commands that have expired or that the network does not answer, and find those that are due."""
        now_s = self._monotonic_s()
        if now_s < self._quiet_until_s:
            return
        while self._schedule and self._schedule[0][0] <= now_s:
            at_s, name = heapq.heappop(self._schedule)
            device = self._devices.get(name)
            if device is not None and device.review_at_s == at_s:
                device.review_at_s = math.inf
                self._changed[name] = device
        while self._changed:
            name, device = self._changed.popitem()
            self._due.pop(name, None)
            self._end_over(device, now_s)
            if name not in self._changed and device.held:
                if _is_due(device, device.held[0], now_s):
                    self._due[name] = device
                self._plan(device, now_s)

    def _end_over(self, device: _Device, now_s: float) -> None:
        """End the commands of a device that are over; it is reviewed again after an end."""
        for each in [each for each in device.held if each.judge_at_s <= now_s]:
            self._judge(device, each, now_s)
        if not device.held:
            return
        first = device.held[0]
        progress = first.progress
        if _is_lost(device, progress, now_s):
            answer = progress.count_try()
            first.judge_at_s = 0.0
            self._changed[device.name] = device
            if answer is not None:
                self._end(device, first, answer)
        elif progress.hand_overs >= LORAWAN_HAND_OVERS_MAX and _is_due(device, first, now_s):
            self._end(device, first, _rejected(f"ChirpStack got it {progress.hand_overs} times and did not answer"))

    def _judge(self, device: _Device, downlink: _Downlink, now_s: float) -> None:
        """End a command if it has expired, unless the network has just got it or waits for its device."""
        left_ns, progress = self._left_ns(downlink.run), downlink.progress
        wait_s = LORAWAN_EXPIRY_CHECK_S
        if left_ns is not None and progress.sent_at_s is None:
            left_s = left_ns / _NS
            if left_s <= 0 and progress.handed_at_s is not None:
                left_s += LORAWAN_EXPIRY_GRACE_S
            if left_s <= 0:
                self._end(device, downlink, EXPIRED)
                return
            wait_s = min(wait_s, left_s)
        downlink.judge_at_s = now_s + wait_s

    def _plan(self, device: _Device, now_s: float) -> None:
        """Schedule the next review of a device that has no event until then."""
        at_s = min(each.judge_at_s for each in device.held)
        progress = device.held[0].progress
        if device.kind is not DeviceClass.A and progress.sent_at_s is not None:
            at_s = min(at_s, progress.sent_at_s + LORAWAN_ACKNOWLEDGE_S)
        elif device.kind is not DeviceClass.A and progress.handed_at_s is not None:
            at_s = min(at_s, max(now_s, progress.handed_at_s + LORAWAN_HANDED_AGAIN_S))
        if at_s < device.review_at_s:
            device.review_at_s = at_s
            heapq.heappush(self._schedule, (at_s, device.name))

    def take_answers(self) -> Iterator[tuple[int, MessageAnswer]]:
        """Yield the tickets that have ended, with their answers."""
        answered, self._answered = self._answered, []
        yield from answered

    def refused(self, ticket: int, why: str) -> None:
        """End a downlink that the broker of ChirpStack refuses."""
        if ticket in self._held:
            self._end(*self._held[ticket], _rejected(why))

    def connected(self) -> None:
        """Begin with a connection: the events that its session has kept come first."""
        self._quiet_until_s = self._monotonic_s() + LORAWAN_QUIET_S

    def disconnected(self) -> None:
        """Forget the commands: they come again over the next connection. What is known of devices stays."""
        self._answered.clear()
        for device, downlink in self._held.values():
            if downlink.progress.begun or downlink.progress.tries:
                self._remember(downlink.command.id, downlink.progress)
            device.held.clear()
        for held in (self._held, self._changed, self._due, self._schedule):
            held.clear()
        for device in self._devices.values():
            device.open_until_s, device.review_at_s = 0.0, math.inf

    @property
    def held(self) -> int:
        """Commands that wait for their device, or for the network's answer."""
        return len(self._held)


def _held(device: _Device, identifier: str) -> _Downlink | None:
    return next((each for each in device.held if each.command.id == identifier), None)


def _is_due(device: _Device, downlink: _Downlink, now_s: float) -> bool:
    """Return True if a downlink leaves now: its device listens, and the network does not have it already."""
    progress = downlink.progress
    if device.kind is None or progress.sent_at_s is not None:
        return False
    if device.kind is DeviceClass.A and now_s >= device.open_until_s:
        return False
    if progress.handed_at_s is None:
        return True
    if device.kind is DeviceClass.A:
        return progress.uplinks >= LORAWAN_HANDED_AGAIN_UPLINKS
    return now_s - progress.handed_at_s >= LORAWAN_HANDED_AGAIN_S


def _is_lost(device: _Device, progress: _Progress, now_s: float) -> bool:
    """Return True if the `ack` of a downlink that was sent should have come long ago."""
    if progress.sent_at_s is None:
        return False
    if device.kind is DeviceClass.A:
        return progress.uplinks >= LORAWAN_ACKNOWLEDGE_UPLINKS
    return now_s - progress.sent_at_s >= LORAWAN_ACKNOWLEDGE_S


def _identifier(message: ConnectorMessage) -> str:
    (gateway, epoch), address, sequence = message.name
    return str(uuid.uuid5(_IDENTIFIERS, f"{gateway}/{epoch}/{address}/{sequence}"))
