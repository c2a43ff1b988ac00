"""Manifests of a connector over a store, and a hub that accepts them."""

from __future__ import annotations

from typing import Any

import msgspec

from bridge import plain
from bridge.engine import DeliveryState, Link
from bridge.manifest import HOUR_NS, ManifestStatement
from bridge.message import Run
from bridge.reports import Reports
from edge.broker.retention.manifests import Manifests
from tests.contract.store.rig import AnyStore

HOUR = 490_000
"""Hour of the clock at the start, since 1970: in 2025."""


class StubSigner:
    """Signer that returns the first letters of the digest."""

    public_key = "ed25519:AAAA"

    def sign(self, digest: str) -> str:
        return digest[:8]


class RecordingEngine:
    """Engine that records what is sent; the test sends the answers."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, _link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        self.sent.append((tag, msgspec.json.decode(plain.body_of(message))))

    def settle_sent(self, _link: Link, _tag: int) -> None:
        """Do nothing: settled messages are not tracked."""


def manifests_of(store: AnyStore, *arguments: Any, **more: Any) -> Manifests:
    """Return the manifests of a connector over this store."""
    return Manifests(store.state, store.lineage, store.ledger, *arguments, **more)


class ManifestBench:
    """Manifests of a connector over a store, and a hub that accepts them."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.hours = float(HOUR)
        self.good = True
        self.begin()

    @property
    def store(self) -> AnyStore:
        return self.rig.store  # type: ignore[no-any-return]

    def begin(self, gateway: str = "gw") -> None:
        """Start a process with its connection."""
        self.reports, self.wire = Reports(), RecordingEngine()
        covers = lambda address: address.startswith("plant/")  # noqa: E731
        self.manifests = manifests_of(
            self.store, self.reports, "hub", gateway=gateway, covers=covers, signer=StubSigner()
        )
        self.link = Link(None, None, "manifests", is_sender=True, ours=True)
        self.link.credit = 1_000
        engine: Any = self.wire
        self.reports.attached(engine, manifests=self.link)
        self.rig.settle()
        self.look()

    def restart(self) -> None:
        self.rig.settle()
        self.rig.reopen()
        self.begin()

    def append(self, address: str, count: int) -> None:
        log = self.store.logs.open("topic plant/#")
        self.store.logs.append(log, Run(address, "d", 1, b"", [b"x"] * count, 0))
        self.rig.commit()

    def look(self) -> None:
        self.manifests.poll(int(self.hours * HOUR_NS), clock_good=self.good)
        self.rig.settle()

    def later(self, hours: float) -> None:
        """Move the clock by `hours`."""
        self.hours += hours
        self.look()

    def taken(self) -> list[ManifestStatement]:
        """Let the hub accept all statements; return them in order."""
        done = 0
        while True:
            self.manifests.feed()
            self.reports.flush()
            if done == len(self.wire.sent):
                break
            for tag, _ in self.wire.sent[done:]:
                done += 1
                self.reports.settled(self.link, [(tag, DeliveryState.ACCEPTED, True, None)])
            self.rig.settle()
        return [statement for _, document in self.wire.sent for statement in read_statements(document)]


def read_statements(document: Any) -> list[ManifestStatement]:
    assert all(one["signature"] == one["digest"][:8] for one in document["statements"])
    return msgspec.convert(document["statements"], list[ManifestStatement])
