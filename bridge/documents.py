"""JSON documents on a link of their own, each kept until the hub has it durable. Sans-I/O."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from bridge import plain
from bridge.engine import DeliveryState, Detail, Engine, Link
from bridge.hidden import hides

log = logging.getLogger(__name__)


@hides("message")
class _QueuedDocument(NamedTuple):
    message: bytes
    done: Callable[[bool], None]


class Documents:
    """Those of one kind, of one gateway towards one hub; it outlives connections."""

    def __init__(self, kind: str, documents_max: int, tags: Iterator[int]) -> None:
        """`kind`: one of them, in words. `tags`: delivery tags, shared by whoever sends on the same links."""
        self.link: Link | None = None
        """The link that the peer has taken for them; None without one."""
        self._taken: list[Callable[[], None]] = []
        self._kind = kind
        self._max = documents_max
        self._tags = tags
        self._waiting: deque[_QueuedDocument] = deque()
        self._unsettled: dict[int, _QueuedDocument] = {}

    @property
    def credit(self) -> int:
        """How many more it takes."""
        return max(self._max - len(self._waiting) - len(self._unsettled), 0)

    def call_when_taken(self, call: Callable[[], None]) -> None:
        """Have `call` called each time the peer takes the link."""
        self._taken.append(call)

    def attach(self, link: Link) -> None:
        """Send over this link, which the peer has taken."""
        self.link = link
        for call in self._taken:
            call()

    def put(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send this until the hub has it durable: ``done(True)``, or called it malformed: ``done(False)``.

        Not more than `credit` of them.
        """
        self._waiting.append(_QueuedDocument(plain.data_section(msgspec.json.encode(document)), done))

    def clear(self) -> None:
        """Forget what has not left: it will be made anew."""
        self._waiting.clear()

    def detached(self) -> None:
        """The link is over; what is unsettled goes back to the front."""
        self.link = None
        self._waiting.extendleft(reversed(self._unsettled.values()))
        self._unsettled.clear()

    def flush(self, engine: Engine) -> None:
        """Send what the link takes."""
        while self.link is not None and self.link.credit > 0 and self._waiting:
            tag, entry = next(self._tags), self._waiting.popleft()
            self._unsettled[tag] = entry
            engine.send(self.link, tag, entry.message)

    def settled(self, tag: int, state: DeliveryState, condition: Detail) -> None:
        """The peer has decided; another connection's tag is passed over."""
        entry = self._unsettled.pop(tag, None)
        if entry is None:
            return
        if state is DeliveryState.REJECTED:
            log.error("the hub rejected a %s: %s", self._kind, condition)
        entry.done(state is DeliveryState.ACCEPTED)
