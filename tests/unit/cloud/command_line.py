"""Line to a gateway that accepts commands when the test decides."""

from __future__ import annotations

from bridge.command import read
from bridge.downlink import Key
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.commands.dispatch import Dispatch

GATEWAY: Key = ("acme", "hall")


class StubLine:
    """Line to a gateway. The accepted commands stay across its connections, by identifier."""

    gateway = GATEWAY

    def __init__(self, kept: dict[str, int], credit: int = 500) -> None:
        self.kept = kept
        self.credit = credit
        self.open = True
        self.sent: dict[int, str] = {}

    def send(self, tag: int, message: bytes) -> None:
        assert self.open
        assert self.credit > 0
        assert tag not in self.sent
        self.credit -= 1
        self.sent[tag] = read(message).id

    def answer(
        self, dispatch: Dispatch, outcome: ForwardOutcome = ForwardOutcome.ACCEPTED, *, told: bool = True
    ) -> None:
        """Let the gateway keep the oldest command; the parameter `told` decides about the report to the hub."""
        tag = next(iter(self.sent))
        identifier = self.sent.pop(tag)
        self.credit += 1
        if outcome is ForwardOutcome.ACCEPTED and identifier not in self.kept:
            self.kept[identifier] = len(self.kept)
        if told:
            dispatch.settled(self, tag, outcome, "no")  # type: ignore[arg-type]
            dispatch.ready(self)  # type: ignore[arg-type]
