"""Incoming forwarder; the test ends its commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome


class StubInbox:
    """Incoming forwarder; the test decides when its commits end."""

    def __init__(self, remote: str = "far/#", credit: int = 500) -> None:
        self.name = self.remote = remote
        self.qos = 1
        self.got: list[Incoming] = []
        self.credit = credit
        self.settle: Settle | None = None
        self.credit_changed: Callable[[], None] | None = None

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self.settle, self.credit_changed = settle, credit_changed

    def detached(self) -> None:
        self.settle = None

    def receive(self, messages: Sequence[Incoming]) -> None:
        self.got += messages
        self.credit -= len(messages)

    def commit(self, *places: int, outcome: ForwardOutcome = ForwardOutcome.ACCEPTED) -> None:
        tokens = [token for place in places if (token := self.got[place].token) is not None]
        assert self.settle is not None
        self.settle(tokens, outcome, "")
