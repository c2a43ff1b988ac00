"""Connections that answer each byte with many, and an owner that does nothing."""

from __future__ import annotations

from collections.abc import Sequence

ANSWER = bytes(100)
"""Answer to every incoming byte."""


class TalkativeConnection:
    """Connection that answers each byte with a hundred bytes."""

    closed = False
    more = False
    deadline = None
    held_bytes = 0

    def __init__(self) -> None:
        self.received = 0
        self.unsent = 0

    def receive_data(self, data: bytes, now: float) -> Sequence[object]:
        self.received += len(data)
        self.unsent += len(data)
        return ()

    def receive_eof(self, now: float) -> Sequence[object]:
        return ()

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[object]:
        return ()

    def shed(self) -> Sequence[object]:
        return ()

    @property
    def spoken(self) -> str:
        return ""

    @property
    def has_output(self) -> bool:
        return True

    def data_to_send(self) -> bytes:
        count, self.unsent = self.unsent, 0
        return ANSWER * count


class LateConnection(TalkativeConnection):
    """Connection that answers nothing when it reads, and counts the calls for output."""

    deadline: float | None = None  # type: ignore[assignment]
    has_output = False  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.timeouts = 0

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[object]:
        self.timeouts += 1
        self.deadline = now + 0.01
        return ()

    def data_to_send(self) -> bytes:
        self.asked += 1
        return b""


class IdleOwner:
    """Owner that does nothing."""

    def handle(self, events: Sequence[object]) -> None:
        assert not events

    def writable(self) -> None: ...
