"""Sends JSON documents over a link of their own, and keeps each until the hub has it on disk. Sans-I/O."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from bridge import plain
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link
from bridge.hidden import hides

log = logging.getLogger(__name__)


@hides("message")
class _QueuedDocument(NamedTuple):
    message: bytes
    done: Callable[[bool, Detail], None]


class Documents:
    """Queue of documents of one kind, from one gateway to one hub; it outlives connections."""

    def __init__(self, kind: str, documents_max: int, tags: Iterator[int]) -> None:
        """`kind`: name of a document in log lines. `tags`: source of delivery tags, shared with other senders."""
        self.link: Link | None = None
        """The link, once the peer has accepted it."""
        self._accepted_callbacks: list[Callable[[], None]] = []
        self._kind = kind
        self._max = documents_max
        self._tags = tags
        self._waiting: deque[_QueuedDocument] = deque()
        self._unsettled: dict[int, _QueuedDocument] = {}

    @property
    def credit(self) -> int:
        """Number of documents that `put` may add now."""
        return max(self._max - len(self._waiting) - len(self._unsettled), 0)

    def call_when_accepted(self, call: Callable[[], None]) -> None:
        """Call `call` each time the peer accepts the link."""
        self._accepted_callbacks.append(call)

    def attach(self, link: Link) -> None:
        """Use a link that the peer has accepted."""
        self.link = link
        for call in self._accepted_callbacks:
            call()

    def put(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a document until the hub has it on disk (``done(True)``) or rejects it (``done(False)``).

        Call it at most `credit` times.
        """

        def settled(kept: bool, condition: Detail) -> None:
            if not kept:
                log.error("the hub rejected a %s: %s", self._kind, condition)
            done(kept)

        self._waiting.append(_QueuedDocument(plain.data_section(msgspec.json.encode(document)), settled))

    def ask(self, document: msgspec.Struct, decided: Callable[[str | None], None]) -> None:
        """Send a document until the hub has decided about it: `decided` gets None, or the reason of a refusal.

        Call it at most `credit` times.
        """

        def settled(kept: bool, condition: Detail) -> None:
            why = condition.description or condition.name if isinstance(condition, Condition) else "no reason"
            decided(None if kept else why)

        self._waiting.append(_QueuedDocument(plain.data_section(msgspec.json.encode(document)), settled))

    def clear(self) -> None:
        """Drop unsent documents; the caller creates them again."""
        self._waiting.clear()

    def detached(self) -> None:
        """Handle the end of the link: unsettled documents return to the front of the queue."""
        self.link = None
        self._waiting.extendleft(reversed(self._unsettled.values()))
        self._unsettled.clear()

    def flush(self, engine: Engine) -> None:
        """Send waiting documents while the link has credit."""
        while self.link is not None and self.link.credit > 0 and self._waiting:
            tag, entry = next(self._tags), self._waiting.popleft()
            self._unsettled[tag] = entry
            engine.send(self.link, tag, entry.message)

    def settled(self, tag: int, state: DeliveryState, condition: Detail) -> None:
        """Handle the peer's disposition of a delivery; ignore tags of other connections."""
        entry = self._unsettled.pop(tag, None)
        if entry is None:
            return
        entry.done(state is DeliveryState.ACCEPTED, condition)
