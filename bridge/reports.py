"""Reports of a gateway to its hub: status, configuration, loss ledger, manifests, clock offsets and devices.

Of status and configuration only the latest counts: status is sent at most once, configuration until the hub has it.
Each ledger entry, manifest and clock offset is kept until the hub has it. All are JSON documents, one per message, on
their own links, so that a report never waits behind telemetry. Sans-I/O: `bridge.hub_links` connects it to an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final

import msgspec

from bridge import plain
from bridge.clock_offset import CAPABILITY
from bridge.device_reports import REPORTS_MAX, DeviceReport
from bridge.documents import Documents
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link

log = logging.getLogger(__name__)

OLDER_COPY: Final = "waypost:older-copy"
"""Condition of a hub that rejects a lineage, as it knows a later opening of the store. The description is the id of the
last opening that both know, or empty."""

LEDGER_MAX: Final = 1024
"""Ledger documents in memory until the hub has them; the rest waits in the store."""

CONFIGURATIONS_MAX: Final = 4
"""Configuration reports in memory: a waiting one is replaced by the next; the others are on the way."""

MANIFESTS_MAX: Final = 8
"""Manifest documents in memory until the hub has them; the rest waits in the store."""

RECEIPT_REQUESTS_MAX: Final = 1
"""Requests for statements in memory until the hub has answered; the rest follows from the gateway's small state."""

CLOCK_OFFSETS_MAX: Final = 1
"""Clock documents in memory until the hub has them; the rest waits in the store."""


def _idle() -> None:
    """Do nothing: `wake` without a connection."""


class Reports:
    """Reports of one gateway to one hub; lives as long as the connector."""

    def __init__(
        self,
        lineage: Callable[[], Mapping[str, Any]] | None = None,
        fork: Callable[[str], bool] = lambda _shared: False,
    ) -> None:
        """`lineage` returns the store's name and known openings; it is sent before everything else. `fork` is called
        with the last opening that both know when the store is an older copy of one that the hub knows; it returns True
        when the store has a new lineage, which is sent next."""
        self.wake: Callable[[], None] = _idle
        self._lineage, self._fork = lineage, fork
        self.stuck = False
        """True after the hub rejected the only lineage: the connection cannot be used."""
        self._held = False
        self._due = False
        """The lineage is to be sent."""
        self._announcement: int | None = None
        self._status: bytes | None = None
        self._tags = count()
        self._ledger = Documents("ledger document", LEDGER_MAX, self._tags)
        self.manifests = Documents("manifest", MANIFESTS_MAX, self._tags)
        self.clock_offsets = Documents("report of the clock", CLOCK_OFFSETS_MAX, self._tags)
        """Documents for the link for manifests, to a peer that understands them."""
        self._configuration = Documents("report of the configuration", CONFIGURATIONS_MAX, self._tags)
        self.sends_configuration = False
        """True when the hub decides about the configuration, so there are configuration reports."""
        self.receipt_requests = Documents("request for receipts", RECEIPT_REQUESTS_MAX, self._tags)
        self.sends_receipt_requests = False
        """True when a device may want receipts, so the link for requests is attached."""
        self.devices = Documents("report of a device", REPORTS_MAX, self._tags)
        self.sends_devices = False
        """True when the hub has a registry of devices, so the link for reports about devices is attached."""
        self._engine: Engine | None = None
        self._status_link: Link | None = None

    def begin_configuration(self, report: Callable[[], None]) -> None:
        """Attach a link for configuration reports; `report` is called each time the peer accepts it."""
        self.sends_configuration = True
        self._configuration.call_when_accepted(report)

    def begin_receipt_requests(self) -> None:
        """Attach a link for requests for receipts, from the next connection on."""
        self.sends_receipt_requests = True

    def begin_devices(self, report: Callable[[], None]) -> None:
        """Attach a link for reports of devices; `report` is called each time the peer accepts it."""
        self.sends_devices = True
        self.devices.call_when_accepted(report)

    def report_device(self, report: DeviceReport, decided: Callable[[str | None], None]) -> None:
        """Send a report until the hub has decided about it: `decided` gets None, or why the hub refuses. At most
        `devices.credit` of them."""
        self.devices.ask(report, decided)
        self.wake()

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Set the connection: `wake` is called when there is something to send."""
        self.wake = wake

    def status(self, document: Mapping[str, Any]) -> None:
        """Send this status as soon as there is credit; a waiting status is replaced by the next."""
        self._status = plain.data_section(msgspec.json.encode(document))
        self.wake()

    @property
    def ledger_credit(self) -> int:
        """Number of ledger documents that `ledger` still takes."""
        return self._ledger.credit

    def ledger(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a ledger document until the hub has it on disk (``done(True)``) or rejects it (``done(False)``).

        At most `ledger_credit` of them.
        """
        self._ledger.put(document, done)
        self.wake()

    def manifest(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a manifest, as `ledger`; at most `manifests.credit` of them."""
        self.manifests.put(document, done)
        self.wake()

    def send_clock_offsets(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a `bridge.clock_offset.ClockDocument`, as `ledger`; at most `clock_offsets.credit` of them."""
        self.clock_offsets.put(document, done)
        self.wake()

    def send_configuration(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a configuration report, which replaces a waiting one; ``done(True)`` once the hub has it on disk."""
        self._configuration.clear()
        self._configuration.put(document, done)
        self.wake()

    def request_receipts(self, document: Mapping[str, Any], done: Callable[[bool], None]) -> None:
        """Send a `bridge.landing_receipt.ReceiptRequest`; ``done(True)`` once the hub has sent its answer. At most
        `receipt_requests.credit` of them."""
        self.receipt_requests.put(document, done)
        self.wake()

    def clear(self) -> None:
        """Drop unsent documents: the caller creates them again."""
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
        receipts: Link | None = None,
        devices: Link | None = None,
    ) -> None:
        """Use a link that the peer accepted."""
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
        if receipts is not None:
            self.receipt_requests.attach(receipts)
        if devices is not None:
            self.devices.attach(devices)

    @property
    def held(self) -> bool:
        """True while documents that name messages wait for the hub's answer to the lineage."""
        return self._held

    def hold(self) -> None:
        """Hold everything that names messages until `announce` is answered or `release`. Called for each connection."""
        self._held, self.stuck, self._due, self._announcement = self._lineage is not None, False, False, None

    def release(self) -> None:
        """Send held documents: the peer does not compare lineages, or has accepted ours."""
        self._held = False

    def announce(self) -> None:
        """Send the lineage to the hub; `held` until it has answered."""
        if self._lineage is None or self._engine is None or self._ledger.link is None:
            self.release()
            return
        self._due = True
        self.wake()

    def detached(self) -> None:
        """Handle the end of the links: unsettled documents return to the front of their queues."""
        self._engine = self._status_link = None
        self._ledger.detached()
        self.manifests.detached()
        self.clock_offsets.detached()
        self._configuration.detached()
        self.receipt_requests.detached()
        self.devices.detached()

    def flush(self) -> None:
        """Send as much as the links take. Called before telemetry: the hub knows a loss before it sees the gap."""
        engine, status, ledger = self._engine, self._status_link, self._ledger.link
        if engine is None:
            return
        if ledger is not None and ledger.credit > 0 and self._due and self._lineage is not None:
            self._due, self._announcement = False, next(self._tags)
            engine.send(
                ledger, self._announcement, plain.data_section(msgspec.json.encode({"lineage": self._lineage()}))
            )
        self._configuration.flush(engine)
        self.devices.flush(engine)
        if not self._held:
            self._ledger.flush(engine)
            self.clock_offsets.flush(engine)
            self.manifests.flush(engine)
            self.receipt_requests.flush(engine)
        if status is not None and status.credit > 0 and self._status is not None:
            engine.send(status, next(self._tags), self._status, settled=True)
            self._status = None

    def settled(self, link: Link, items: Iterable[tuple[int, DeliveryState, bool, Detail]]) -> None:
        """Handle the peer's dispositions of documents. Released ones are sent again over the next connection."""
        for tag, state, remotely_settled, condition in items:
            if not remotely_settled and self._engine is not None:
                self._engine.settle_sent(link, tag)
            if state not in (DeliveryState.ACCEPTED, DeliveryState.REJECTED):
                continue
            if tag == self._announcement:
                self._answered(state, condition)
            elif link is self._configuration.link:
                self._configuration.settled(tag, state, condition)
            elif link is self.devices.link:
                self.devices.settled(tag, state, condition)
            elif link is self.receipt_requests.link:
                self.receipt_requests.settled(tag, state, condition)
            elif link is self.manifests.link:
                self.manifests.settled(tag, state, condition)
                self.clock_offsets.settled(tag, state, condition)
            else:
                self._ledger.settled(tag, state, condition)

    def _answered(self, state: DeliveryState, condition: Detail) -> None:
        """Handle the hub's answer to the lineage."""
        self._announcement = None
        if state is DeliveryState.REJECTED and isinstance(condition, Condition) and condition.name == OLDER_COPY:
            if self._fork(condition.description or ""):
                self.announce()
            else:
                self.stuck = True
            return
        if state is DeliveryState.REJECTED:
            log.info("the hub does not compare lineages: %s", condition)
        self.release()
