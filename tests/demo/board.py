"""State of the demo for its views: written by the scenario and the watchers, read by the views."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.demo.facts import Event
from tests.demo.journals import Journal
from tests.demo.lake import Landed

HISTORY = 100_000
"""Samples kept for the sparklines, two a second: all of a normal run, bounded for one of hours."""

PHASES = ("start", "flow", "cut uplink", "kill gateway", "restore", "drain", "analyse", "done")


@dataclass(slots=True)
class GatewayBoard:
    """State of one gateway from its status, or of an unreachable one."""

    name: str
    console: str
    state: str = "starting"
    """State of the gateway: starting, serving, down."""
    uplink: str = "-"
    received: int = 0
    rate: float = 0.0
    """Messages received in a second."""
    backlog: int | None = None
    backlog_peak: int = 0
    epoch: str | None = None
    clients: int = 0
    acked: int = 0
    """Messages that the hub acknowledged since the gateway's start."""
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    backlogs: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _seen: tuple[float, int] | None = None

    def take(self, status: Mapping[str, Any], at: float) -> None:
        """Record a status read at `at` (seconds of any steady clock)."""
        uplink, messages = status.get("uplink") or {}, status.get("messages") or {}
        self.state = "serving"
        self.uplink = str(uplink.get("state", "off"))
        self.received = int(messages.get("received", 0))
        self.backlog = uplink.get("backlog_messages")
        self.backlog_peak = max(self.backlog_peak, self.backlog or 0)
        self.acked = int(uplink.get("acked") or 0)
        self.epoch = status.get("epoch")
        self.clients = sum(int(count) for count in (status.get("clients") or {}).values())
        seen, self._seen = self._seen, (at, self.received)
        if seen is not None and at > seen[0]:
            self.rate = max(0.0, (self.received - seen[1]) / (at - seen[0]))
        self.rates.append(self.rate)
        self.backlogs.append(self.backlog or 0)

    def lost(self) -> None:
        """Record that the gateway does not answer."""
        self.state = "starting" if self.state == "starting" else "down"
        self.uplink, self.rate, self._seen = "-", 0.0, None
        self.rates.append(0.0)
        self.backlogs.append(self.backlog or 0)


@dataclass(slots=True)
class DeviceBoard:
    """One device: its journal, how it is run, and its rate of acknowledgements."""

    name: str
    gateway: str
    protocol: str
    kind: str
    program: str
    journal: Journal
    rate: float = 0.0
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=5))

    def follow(self, at: float) -> None:
        """Read new lines of the journal; compute the rate over the last few looks."""
        self.journal.follow()
        self.recent.append((at, len(self.journal.sends)))
        (then, before), (now, after) = self.recent[0], self.recent[-1]
        self.rate = (after - before) / (now - then) if now > then else 0.0


@dataclass(slots=True)
class Board:
    """All data of the views."""

    folder: str
    started_at: float = field(default_factory=time.time)
    phase: int = 0
    doing: str = ""
    """Description of the current phase's work."""
    gateways: dict[str, GatewayBoard] = field(default_factory=dict)
    devices: list[DeviceBoard] = field(default_factory=list)
    hub_console: str = ""
    landed: Landed = field(default_factory=Landed)
    landed_rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    log: list[tuple[float, str, str]] = field(default_factory=list)
    """(seconds since 1970, text, style word: plain, good, bad)."""
    events: list[Event] = field(default_factory=list)
    looks: int = 0
    """Number of looks of the watcher."""

    @property
    def acknowledged(self) -> int:
        """Return the readings acknowledged to all devices."""
        return sum(len(device.journal.sends) for device in self.devices)

    def enter(self, phase: str, doing: str = "") -> None:
        """Enter a phase of `PHASES`."""
        self.phase = PHASES.index(phase)
        self.doing = doing

    def say(self, text: str, style: str = "plain") -> None:
        """Add a line to the event log."""
        self.log.append((time.time(), text, style))
