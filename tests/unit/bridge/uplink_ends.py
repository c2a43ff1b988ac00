"""Both ends of an uplink: a wire and a subscription that record what the uplink does."""

from __future__ import annotations

from typing import Any

from bridge.engine import Link


class RecordingWire:
    """The part of an engine that an uplink uses."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.settled: list[int] = []
        self.drains = 0

    def send(self, link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        link.credit -= 1
        self.sent.append((tag, message))

    def settle_sent(self, link: Link, tag: int) -> None:
        self.settled.append(tag)

    def drained(self, link: Link) -> None:
        self.drains += 1


class RecordingSubscription:
    def __init__(self) -> None:
        self.outcomes: list[tuple[int, int, str]] = []
        self.pumps = 0

    def settle(self, consumer: Any, first: int, last: int, outcome: str) -> None:
        self.outcomes.append((first, last, outcome))

    def pump(self) -> None:
        self.pumps += 1
