"""Simulated device without its protocol: it measures, keeps unacknowledged readings, and writes a journal.

The protocol modules (`mqtt`, `amqp`) call `measure` at each tick and send the readings of the outbox. This module opens
no socket.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass

from bridge.hidden import hides
from simulator.measuring.journal import SimulatorJournal
from simulator.measuring.probes import Probe
from simulator.outbox import DeviceOutbox, SimulatedReading

log = logging.getLogger(__name__)

RECONNECT_DELAY_S_MAX = 1.0
"""Longest pause before reconnecting; a device in the field would wait longer."""
RECONNECT_DELAY_S = 0.1
ACKNOWLEDGEMENT_TIMEOUT_S = 5
"""Time without an acknowledgement after which the connection counts as broken (amqtt's fixed limit for PUBACK)."""

PROGRESS_S = 1.0
"""Interval of progress records in the journal."""


@hides("password")
@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """Settings of one device.

    `interval_s`: seconds between readings. `count`: readings to take, None for no limit. `window`: most readings in
    flight. `drain_s`: time limit for the last acknowledgements after a stop.
    """

    name: str
    address: str
    kind: str
    url: str
    interval_s: float
    count: int | None
    window: int
    drain_s: float
    user: str | None = None
    """Name to log in with; None: without credentials."""
    password: str | None = None


class SimulatedDevice:
    """Device with its probe, outbox and journal."""

    def __init__(
        self, settings: SimulatorSettings, probe: Probe, outbox: DeviceOutbox, journal: SimulatorJournal
    ) -> None:
        self.settings = settings
        self.outbox = outbox
        self.journal = journal
        self._probe = probe
        self._seq = 0
        self._stopping = False
        self._progress_due = 0.0
        self.trouble = ""
        """Last reason why readings were not acknowledged; empty without one."""
        self.unreachable = False
        """True when the reason is that no gateway answers."""
        self._refused = False
        """True when the gateway refuses the device, and has never accepted a reading."""

    @property
    def measuring(self) -> bool:
        """True while more readings are to be taken."""
        count = self.settings.count
        return not (self._stopping or self._refused) and (count is None or self._seq < count)

    @property
    def finished(self) -> bool:
        """True when all readings are taken and acknowledged, or the gateway refuses the device."""
        return self._refused or (not self.measuring and not len(self.outbox))

    def stop(self) -> None:
        """Stop measuring; the readings in the outbox are still delivered."""
        self._stopping = True

    def measure(self) -> None:
        """Take one reading and put it into the outbox."""
        now = time.monotonic()
        record: dict[str, object] = {"device": self.settings.name, "seq": self._seq, "at": round(time.time(), 6)}
        record.update((name, round(value, 4)) for name, value in self._probe(now).items())
        dropped = self.outbox.add(SimulatedReading(self._seq, json.dumps(record, separators=(",", ":")).encode()))
        self._seq += 1
        if dropped is not None:
            self.journal.event("dropped", f"reading {dropped.seq} dropped: the buffer is full")
        if now >= self._progress_due:
            self._progress_due = now + PROGRESS_S
            self.journal.progress(self.outbox)

    def acknowledged(self, seq: int) -> None:
        """Record that the gateway acknowledged a reading."""
        sends = self.outbox.acknowledge(seq)
        if sends is not None:
            self.journal.acknowledged(seq, sends)

    def record_obstacle(self, why: str, *, unreachable: bool = False) -> None:
        """Record why readings are not acknowledged; a repeated cause is logged once."""
        self.unreachable = unreachable
        if why != self.trouble:
            self.trouble = why
            log.warning("%s: %s", self.settings.name, why)

    def refused(self, why: str) -> None:
        """Record that the gateway refuses this device's readings. If it has never accepted one, a retry is useless: the
        device is finished."""
        self.record_obstacle(why)
        self._refused = not self.outbox.acknowledged

    def connected(self) -> None:
        self.journal.event("connected", self.settings.url)

    def disconnected(self, why: str) -> None:
        """Record the end of the connection: readings in flight will be sent again."""
        self.outbox.take_all_back()
        self.journal.event("disconnected", why)
