"""What a gateway tells its hub about itself: status (the latest counts, at most once), how it is configured (the latest
counts, until the hub has it), ledger, manifests and how far its clock was off (each one counts, and is kept).

All are JSON documents, one a message, on links of their own, so that a report never waits behind telemetry. Sans-I/O:
`bridge.hub_links` binds it to an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final

import msgspec

from bridge import plain
from bridge.clock_offset import CAPABILITY
from bridge.documents import Documents
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link

log = logging.getLogger(__name__)

OLDER_COPY: Final = "waypost:older-copy"
"""Condition a hub rejects a lineage with: it knows of a later life of the store. The description is the id of the
last one both know, or empty."""

LEDGER_MAX: Final = 1024
"""Ledger documents held here until the hub has them; the rest waits in the store."""

CONFIGURATIONS_MAX: Final = 4
"""Reports of the configuration held here: the one that waits is replaced by the next, others are on the way."""

MANIFESTS_MAX: Final = 8
"""Manifest documents held here until the hub has them; the rest waits in the store."""

CLOCK_OFFSETS_MAX: Final = 1
"""Documents of how far the clock was off held here until the hub has them; the rest waits in the store."""


def _idle() -> None:
    """What `wake` does while there is no connection."""


class Reports:
    """Status, ledger and manifests of one gateway towards one hub. One object for the life of the connector."""

    def __init__(
        self,
        lineage: Callable[[], Mapping[str, Any]] | None = None,
        fork: Callable[[str], bool] = lambda _shared: False,
    ) -> None:
        """`lineage` names the store and its known openings; it leaves before everything else. `fork` is called when the
        store is an older copy of one the hub knows, with the last opening both know; True: the store has a new lineage,
        which leaves next."""
        self.wake: Callable[[], None] = _idle
        self._lineage, self._fork = lineage, fork
        self.stuck = False
        """The hub does not take the lineage, and there is no other: the connection is of no use."""
        self._held = False
        self._due = False
        """The lineage is to be told."""
        self._announcement: int | None = None
        self._status: bytes | None = None
        self._tags = count()
        self._ledger = Documents("ledger document", LEDGER_MAX, self._tags)
        self.manifests = Documents("manifest", MANIFESTS_MAX, self._tags)
        self.clock_offsets = Documents("report of the clock", CLOCK_OFFSETS_MAX, self._tags)
        """Sent over the link for manifests, to a peer that understands them."""
        self._configuration = Documents("report of the configuration", CONFIGURATIONS_MAX, self._tags)
        self.tells_configuration = False
        """There are such reports: the hub decides about the configuration, too."""
        self._engine: Engine | None = None
        self._status_link: Link | None = None

    def begin_configuration(self, tell: Callable[[], None]) -> None:
        """Ask the peer for a link for reports of the configuration; `tell` is called each time it takes the link."""
        self.tells_configuration = True
        self._configuration.call_when_taken(tell)

    def woken_by(self, wake: Callable[[], None]) -> None:
        """A new connection: `wake` is called when there is something to send."""
        self.wake = wake

    def status(self, document: Mapping[str, Any]) -> None:
        """Send this status as soon as the link takes it; one that has not left yet is replaced by the next."""
        self._status = plain.data_section(msgspec.json.encode(document))
        self.wake()

    @property
    def ledger_credit(self) -> int:
        """Ledger documents it still takes."""
        return self._ledger.credit

    def ledger(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a ledger document until the hub has it durable: ``done(True)``, or called it malformed: ``done(False)``.

        Not more than `ledger_credit` of them.
        """
        self._ledger.put(document, done)
        self.wake()

    def manifest(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """The same for a manifest; not more than `manifests.credit` of them."""
        self.manifests.put(document, done)
        self.wake()

    def tell_clock_offsets(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """The same for how far the clock was off (`bridge.clock_offset`); not more than `clock_offsets.credit`."""
        self.clock_offsets.put(document, done)
        self.wake()

    def tell_configuration(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Tell the hub how the gateway is configured; ``done(True)`` once that is durable there."""
        self._configuration.clear()
        self._configuration.put(document, done)
        self.wake()

    def clear(self) -> None:
        """Forget the documents that have not left: they will be made anew."""
        self._ledger.clear()
        self.manifests.clear()
        self.clock_offsets.clear()

    # --- towards the link -------------------------------------------------------------------------------------

    def attached(
        self,
        engine: Engine,
        *,
        status: Link | None = None,
        ledger: Link | None = None,
        manifests: Link | None = None,
        configuration: Link | None = None,
    ) -> None:
        """The peer took a link."""
        self._engine = engine
        self._status_link = status or self._status_link
        if ledger is not None:
            self._ledger.attach(ledger)
        if manifests is not None:
            self.manifests.attach(manifests)
            if CAPABILITY in manifests.offered_capabilities:
                self.clock_offsets.attach(manifests)
        if configuration is not None:
            self._configuration.attach(configuration)

    @property
    def held(self) -> bool:
        """The ledger, and whatever else names messages, waits for the hub's word on the lineage."""
        return self._held

    def hold(self) -> None:
        """A connection begins: nothing that names messages leaves before `announce` or `release`."""
        self._held, self.stuck, self._due, self._announcement = self._lineage is not None, False, False, None

    def release(self) -> None:
        """The peer is no hub that compares lineages."""
        self._held = False

    def announce(self) -> None:
        """Tell the hub the lineage; `held` until it has answered."""
        if self._lineage is None or self._engine is None or self._ledger.link is None:
            self.release()
            return
        self._due = True
        self.wake()

    def detached(self) -> None:
        """The links are over; what is unsettled goes back to the front."""
        self._engine = self._status_link = None
        self._ledger.detached()
        self.manifests.detached()
        self.clock_offsets.detached()
        self._configuration.detached()

    def flush(self) -> None:
        """Send what the links take. Called before telemetry: a loss is known at the hub before the gap is seen."""
        engine, status, ledger = self._engine, self._status_link, self._ledger.link
        if engine is None:
            return
        if ledger is not None and ledger.credit > 0 and self._due and self._lineage is not None:
            self._due, self._announcement = False, next(self._tags)
            engine.send(
                ledger, self._announcement, plain.data_section(msgspec.json.encode({"lineage": self._lineage()}))
            )
        self._configuration.flush(engine)
        if not self._held:
            self._ledger.flush(engine)
            self.clock_offsets.flush(engine)
            self.manifests.flush(engine)
        if status is not None and status.credit > 0 and self._status is not None:
            engine.send(status, next(self._tags), self._status, settled=True)
            self._status = None

    def settled(self, link: Link, items: Iterable[tuple[int, DeliveryState, bool, Detail]]) -> None:
        """The peer's dispositions of documents. What it gave back is sent again over the next connection."""
        for tag, state, remotely_settled, condition in items:
            if not remotely_settled and self._engine is not None:
                self._engine.settle_sent(link, tag)
            if state not in (DeliveryState.ACCEPTED, DeliveryState.REJECTED):
                continue
            if tag == self._announcement:
                self._answered(state, condition)
            elif link is self._configuration.link:
                self._configuration.settled(tag, state, condition)
            elif link is self.manifests.link:
                self.manifests.settled(tag, state, condition)
                self.clock_offsets.settled(tag, state, condition)
            else:
                self._ledger.settled(tag, state, condition)

    def _answered(self, state: DeliveryState, condition: Detail) -> None:
        """The hub has compared the lineage with what it knows."""
        self._announcement = None
        if state is DeliveryState.REJECTED and isinstance(condition, Condition) and condition.name == OLDER_COPY:
            if self._fork(condition.description or ""):
                self.announce()
            else:
                self.stuck = True
            return
        if state is DeliveryState.REJECTED:
            log.info("the hub compares no lineages: %s", condition)
        self.release()
