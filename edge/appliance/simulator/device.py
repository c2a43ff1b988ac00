"""A simulated device without its protocol: it measures, keeps what is not acknowledged, and keeps its journal.

The protocol shells (`mqtt`, `amqp`) call `measure` at every tick and move readings through the outbox. No socket here.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass

from bridge.hidden import hides
from edge.appliance.simulator.journal import SimulatorJournal
from edge.appliance.simulator.outbox import DeviceOutbox, SimulatedReading
from edge.appliance.simulator.probes import Probe

log = logging.getLogger(__name__)

RECONNECT_DELAY_S_MAX = 1.0
"""A device on the bench reconnects eagerly; one in the field would wait longer."""
RECONNECT_DELAY_S = 0.1
ACKNOWLEDGEMENT_TIMEOUT_S = 5
"""No acknowledgement for this long: the connection is taken for broken (amqtt's own, fixed limit for PUBACK)."""

PROGRESS_S = 1.0
"""How often the journal says how the device stands."""


@hides("password")
@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """What one device is and how it behaves.

    `interval_s`: seconds between readings; `count`: readings to take, None for no end; `window`: readings in flight
    at most; `drain_s`: how long to wait for the last acknowledgements once it was told to stop.
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
    """One device: probe, outbox, journal and the clock of its readings."""

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
        """Why readings were not acknowledged, as last seen; empty while nothing went wrong."""
        self.unreachable = False
        """The trouble is that nobody answers."""
        self._refused = False
        """The gateway has said no, and never took anything."""

    @property
    def measuring(self) -> bool:
        """More readings are to come."""
        count = self.settings.count
        return not (self._stopping or self._refused) and (count is None or self._seq < count)

    @property
    def finished(self) -> bool:
        """Nothing more to measure and nothing left to acknowledge, or nobody who would."""
        return self._refused or (not self.measuring and not len(self.outbox))

    def stop(self) -> None:
        """Measure no more; what is in the outbox is still delivered."""
        self._stopping = True

    def measure(self) -> None:
        """Take one reading into the outbox."""
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
        """The gateway acknowledged a reading."""
        sends = self.outbox.acknowledge(seq)
        if sends is not None:
            self.journal.acknowledged(seq, sends)

    def hindered(self, why: str, *, unreachable: bool = False) -> None:
        """Something keeps readings from being acknowledged; each cause is logged once in a row."""
        self.unreachable = unreachable
        if why != self.trouble:
            self.trouble = why
            log.warning("%s: %s", self.settings.name, why)

    def refused(self, why: str) -> None:
        """The gateway does not take this device's readings. Where it never took one, name, password or rights are wrong
        and trying again is of no use: the device is finished."""
        self.hindered(why)
        self._refused = not self.outbox.acknowledged

    def connected(self) -> None:
        self.journal.event("connected", self.settings.url)

    def disconnected(self, why: str) -> None:
        """The connection is gone: what was in flight will be sent again."""
        self.outbox.take_all_back()
        self.journal.event("disconnected", why)
