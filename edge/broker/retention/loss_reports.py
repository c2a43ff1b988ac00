"""The loss ledger on its way to a peer: what its forwarders will not be given, told before the gap can be seen.

One document is under way at a time. What the peer has confirmed is remembered in the store, by the number of the last
entry, so that it is told once, and told again after a power cut only when it may not have heard.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from edge.broker.store.contract import EpochLineage, LossLedger, SmallState
from edge.broker.store.errors import StoreError
from edge.broker.store.records import LedgerEntry

if TYPE_CHECKING:
    from bridge.reports import Reports  # with the AMQP engine, which a gateway without AMQP does not load

log = logging.getLogger(__name__)

KIND: Final = "ledger"
"""Kind of the store's small state that holds, by connector, the last entry its peer confirmed (8 bytes, big-endian)."""

INBOUND_PREFIX: Final = "inbound/"
"""Begins the names of incoming forwarders in the ledger. Every peer with a ledger gets their entries."""
LEDGER_RANGES: Final = 500
"""Ranges of one ledger document: some 50 KiB of JSON."""


class LossReports:
    """The ledger of one store towards the peer of one connector."""

    def __init__(
        self, state: SmallState, lineage: EpochLineage, ledger: LossLedger, reports: Reports, connector: str
    ) -> None:
        self._ledger = ledger
        self._state = state
        self._lineage = lineage
        self._reports = reports
        self._connector = connector
        self._subscriptions = (f"forwarder/{connector}/", INBOUND_PREFIX)
        self._under_way = False
        self._unread = False
        """The store could not say what is new."""
        self._confirmed = int.from_bytes(dict(state.items(KIND)).get(connector, b""), "big")

    def feed(self) -> None:
        """Send what is new, unless something is under way: its end comes back here."""
        while not self._under_way and self._reports.ledger_credit > 0:
            try:
                entries = self._newest()
            except StoreError as error:
                log.warning("the ledger cannot be read, and is sent later: %s", error)
                self._unread = True
                return
            self._unread = False
            if not entries:
                return
            self._under_way = True
            self._reports.ledger(self._document(entries), partial(self._told, entries[-1].entry))

    def _newest(self) -> Sequence[LedgerEntry]:
        """Return the oldest entries that the peer has not confirmed, in the order of their numbers. Raises
        StoreError."""
        found = [self._ledger.entries(self._confirmed, LEDGER_RANGES, each) for each in self._subscriptions]
        return sorted(chain.from_iterable(found))[:LEDGER_RANGES]

    def look(self) -> None:
        """Called every few seconds: what could not be read may be readable by now."""
        if self._unread:
            self.feed()

    def restart(self) -> None:
        """What was under way is not any more."""
        self._under_way = False

    def _told(self, last: int, kept: bool) -> None:
        """The peer has it on disk, or will never understand it (which `Reports` has said in the log)."""
        self._under_way = False
        if kept:
            log.info("connector %s: losses up to entry %d are known at the peer", self._connector, last)
        self._confirmed = last
        self._state.put(KIND, self._connector, last.to_bytes(8, "big"))
        self.feed()

    def _document(self, entries: Sequence[LedgerEntry]) -> dict[str, Any]:
        """As `cloud.hub.documents.Ledger` reads it."""
        return {
            "ranges": [
                {
                    "epoch": epoch,
                    "address": entry.address,
                    "first_sequence": first,
                    "last_sequence": last,
                    "bytes": entry.bytes * (last + 1 - first) // (entry.last + 1 - entry.first),
                    "reason": entry.reason,
                    "decided_at": entry.decided_at,
                }
                for entry in entries
                for epoch, first, last in self._lineage.epochs.parts(entry.address, entry.first, entry.last)
            ]
        }
