"""What a gateway tells its hub about itself: status (the latest counts, at most once) and ledger (each counts, kept).

Both are JSON documents, one a message, on links of their own, so that a report never waits behind telemetry. Sans-I/O:
`bridge.gateway_link` binds it to an engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from bridge import plain
from bridge.engine import Condition, Detail, Engine, Link, State
from bridge.hidden import hides

log = logging.getLogger(__name__)

OLDER_COPY: Final = "waypost:older-copy"
"""Condition a hub rejects a lineage with: it knows of a later life of the store. The description is the id of the
last one both know, or empty."""

LEDGER_MAX: Final = 1024
"""Ledger documents held here until the hub has them; the rest waits in the store."""


@hides("message")
class _Entry(NamedTuple):
    message: bytes
    done: Callable[[bool], None]


def _idle() -> None:
    """What `wake` does while there is no connection."""


class Reports:
    """Status and ledger of one gateway towards one hub. One object for the life of the connector."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _idle
        self.lineage: Callable[[], Mapping[str, Any]] | None = None
        """What is told before everything else: which store this is, and which openings of it are known."""
        self.forked: Callable[[str], bool] = lambda _shared: False
        """The store is an older copy of one the hub knows; the argument is the last opening both know. True: it has a
        new lineage, which is told next."""
        self.stuck = False
        """The hub does not take the lineage, and there is no other: the connection is of no use."""
        self._held = False
        self._due = False
        """The lineage is to be told."""
        self._announcement: int | None = None
        self._status: bytes | None = None
        self._ledger: deque[_Entry] = deque()
        self._unsettled: dict[int, _Entry] = {}
        self._tags = count()
        self._engine: Engine | None = None
        self._status_link: Link | None = None
        self._ledger_link: Link | None = None

    def status(self, document: Mapping[str, Any]) -> None:
        """Send this status as soon as the link takes it; one that has not left yet is replaced by the next."""
        self._status = plain.data_section(msgspec.json.encode(document))
        self.wake()

    @property
    def ledger_credit(self) -> int:
        """Ledger documents it still takes."""
        return max(LEDGER_MAX - len(self._ledger) - len(self._unsettled), 0)

    def ledger(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a ledger document until the hub has it durable: ``done(True)``, or called it malformed: ``done(False)``.

        Not more than `ledger_credit` of them.
        """
        self._ledger.append(_Entry(plain.data_section(msgspec.json.encode(document)), done))
        self.wake()

    def clear(self) -> None:
        """Forget the ledger documents that have not left: they will be made anew."""
        self._ledger.clear()

    # --- towards the link -------------------------------------------------------------------------------------

    def attached(self, engine: Engine, *, status: Link | None = None, ledger: Link | None = None) -> None:
        """The peer took a link."""
        self._engine = engine
        self._status_link = status or self._status_link
        self._ledger_link = ledger or self._ledger_link

    @property
    def held(self) -> bool:
        """The ledger, and whatever else names messages, waits for the hub's word on the lineage."""
        return self._held

    def hold(self) -> None:
        """A connection begins: nothing that names messages leaves before `announce` or `release`."""
        self._held, self.stuck, self._due, self._announcement = self.lineage is not None, False, False, None

    def release(self) -> None:
        """The peer is no hub that compares lineages."""
        self._held = False

    def announce(self) -> None:
        """Tell the hub the lineage; `held` until it has answered."""
        if self.lineage is None or self._engine is None or self._ledger_link is None:
            self.release()
            return
        self._due = True
        self.wake()

    def detached(self) -> None:
        """The links are over; what is unsettled goes back to the front."""
        self._engine = self._status_link = self._ledger_link = None
        self._ledger.extendleft(reversed(self._unsettled.values()))
        self._unsettled.clear()

    def flush(self) -> None:
        """Send what the links take. Called before telemetry: a loss is known at the hub before the gap is seen."""
        engine, status, ledger = self._engine, self._status_link, self._ledger_link
        if engine is None:
            return
        if ledger is not None and ledger.credit > 0 and self._due and self.lineage is not None:
            self._due, self._announcement = False, next(self._tags)
            engine.send(
                ledger, self._announcement, plain.data_section(msgspec.json.encode({"lineage": self.lineage()}))
            )
        while ledger is not None and ledger.credit > 0 and self._ledger and not self._held:
            tag, entry = next(self._tags), self._ledger.popleft()
            self._unsettled[tag] = entry
            engine.send(ledger, tag, entry.message)
        if status is not None and status.credit > 0 and self._status is not None:
            engine.send(status, next(self._tags), self._status, settled=True)
            self._status = None

    def settled(self, items: Iterable[tuple[int, State, bool, Detail]]) -> None:
        """The peer's dispositions of ledger documents. What it gave back is sent again over the next connection."""
        for tag, state, remotely_settled, condition in items:
            if not remotely_settled and self._engine is not None and self._ledger_link is not None:
                self._engine.settle_sent(self._ledger_link, tag)
            if state not in (State.ACCEPTED, State.REJECTED):
                continue
            if tag == self._announcement:
                self._answered(state, condition)
                continue
            entry = self._unsettled.pop(tag, None)
            if entry is None:
                continue
            if state is State.REJECTED:
                log.error("the hub rejected a ledger document: %s", condition)
            entry.done(state is State.ACCEPTED)

    def _answered(self, state: State, condition: Detail) -> None:
        """The hub has compared the lineage with what it knows."""
        self._announcement = None
        if state is State.REJECTED and isinstance(condition, Condition) and condition.name == OLDER_COPY:
            if self.forked(condition.description or ""):
                self.announce()
            else:
                self.stuck = True
            return
        if state is State.REJECTED:
            log.info("the hub compares no lineages: %s", condition)
        self.release()
