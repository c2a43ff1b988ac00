"""Uplink with a live lane and a backlog lane over one recording wire."""

from __future__ import annotations

from typing import Any

from bridge import plain
from bridge.batch import CAPABILITY, decode
from bridge.engine import DeliveryState, Link
from bridge.flow import Outcomes
from bridge.message import Run, Stored
from bridge.pace import Pacer
from bridge.plain import Hop
from bridge.transport.tcp_path import TcpPath
from bridge.uplink import Uplink, UplinkLimits
from tests.unit.bridge.uplink_ends import RecordingSubscription, RecordingWire

LIMITS = UplinkLimits(batch_bytes=1_000, batches_undelayed=100, gather_s=0.2, gather_last_s=1.0)


class FlushCounter:
    """Driver as an uplink sees it."""

    def __init__(self) -> None:
        self.path = TcpPath()
        self.flushes = 0

    def flush_soon(self) -> None:
        self.flushes += 1


class LaneBench:
    def __init__(self, *, batching: bool = True, credit: int = 100, pacer: Pacer | None = None) -> None:
        self.now = 100.0
        self.uplink = Uplink(
            "uplink",
            Hop("gw1", "epoch"),
            space="s",
            outcomes=Outcomes("accepted", "rejected"),
            limits=LIMITS,
            clock=lambda: self.now,
            pacer=pacer,
        )
        self.shell = FlushCounter()
        self.uplink.set_shell(self.shell)
        self.wire: Any = RecordingWire()
        self.link = Link(None, None, "telemetry", is_sender=True, ours=True)
        self.link.credit = credit
        self.link.offered_capabilities = (CAPABILITY,) if batching else ()
        self.live, self.old = RecordingSubscription(), RecordingSubscription()
        self.uplink.live.add(self.live)
        self.uplink.backlog.add(self.old)
        self.uplink.attached(self.wire, self.link, lambda _reason: None)

    def come(self, *bodies: bytes, position: int = 1_000) -> None:
        run = Run("plant", "dev", 1, b"", list(bodies), 5)
        self.uplink.live.deliver(self.live, [Stored(position, position, run)])

    def left(self, *bodies: bytes, position: int = 0) -> None:
        run = Run("plant", "dev", 1, b"", list(bodies), 5)
        self.uplink.backlog.deliver(self.old, [Stored(position, position, run)])

    def flush(self) -> list[tuple[str, list[bytes]]]:
        """Return (lane, bodies) of each batch sent by it."""
        before = len(self.wire.sent)
        self.uplink.flush()
        batches = [decode(plain.body_of(message)) for _, message in self.wire.sent[before:]]
        return [(batch.lane.name, batch.bodies) for batch in batches]

    def accept(self, index: int = -1) -> None:
        self.uplink.settled([(self.wire.sent[index][0], DeliveryState.ACCEPTED, True, None)], self.now)
