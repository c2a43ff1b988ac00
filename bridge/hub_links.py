"""Links of a gateway to a hub: telemetry, reports, and messages down to the inboxes.

The links belong to one connection; the uplink, the reports and the inboxes outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.amqp_connection import AmqpConnection
from bridge.batch import CAPABILITY
from bridge.clock_offset import CAPABILITY as CLOCK_OFFSETS
from bridge.engine import Accepted, Condition, Detached, Dispositions, Link, LinkFlow, Transfers, describe_condition
from bridge.forwarders.inbox import ForwarderInbox
from bridge.forwarders.receivers import Receivers
from bridge.hub_addresses import DESIRED, DEVICES, LEDGER, MANIFESTS, RECEIPTS, RECONNECT_AFTER_MS, STATUS, TELEMETRY
from bridge.limits import RECONNECT_AFTER_S_MAX
from bridge.reports import Reports
from bridge.uplink import Uplink, UplinkShell


class HubLinks:
    """`bridge.amqp_connection.ConnectionLinks` of one connection."""

    def __init__(
        self,
        uplink: Uplink,
        reports: Reports | None = None,
        *,
        target: str = TELEMETRY,
        inboxes: Sequence[ForwarderInbox] = (),
    ) -> None:
        """`target`: the peer's address for telemetry. `inboxes` receive from the hub, each from an address of
        `bridge.hub_addresses`.

        A peer that refuses the links for status, ledger and manifests gets none of these; one that refuses the links of
        the inboxes has no messages for them.
        """
        self._uplink = uplink
        self._reports = reports
        self._receivers = Receivers(inboxes, again=False)
        self._target = target
        self._connection: AmqpConnection | None = None
        """None: the peer has not opened, or the links are leaving."""
        self._telemetry: Link | None = None
        self._status: Link | None = None
        self._ledger: Link | None = None
        self._manifests: Link | None = None
        self._configuration: Link | None = None
        self._receipts: Link | None = None
        self._devices: Link | None = None
        self._waiting: Link | None = None
        """Telemetry link that waits for the hub to compare lineages."""
        self._leaving = False

    @property
    def deadline(self) -> float | None:
        every = (self._uplink.due_at, self._receivers.deadline)
        return min((each for each in every if each is not None), default=None)

    def driven_by(self, driver: UplinkShell) -> None:
        self._uplink.set_shell(driver)
        if self._reports is not None:
            self._reports.set_wake(driver.flush_soon)

    def count_bytes(self, size: int) -> None:
        self._uplink.count_bytes(size)

    def opened(self, connection: AmqpConnection, now: float) -> None:
        self._connection = connection
        attach = connection.engine.attach_sender
        if self._reports is not None:
            self._reports.hold()
            self._ledger = attach(LEDGER, LEDGER)
            self._status = attach(STATUS, STATUS)
        self._telemetry = attach(TELEMETRY, self._target, desired_capabilities=(CAPABILITY,))

    def attached(self, link: Link) -> bool:
        connection = self._connection
        if connection is None:
            return False
        if link is self._telemetry:
            self._on_telemetry(connection, link)
        elif self._reports is not None and link is self._status:
            self._reports.attached(connection.engine, status=link)
        elif self._reports is not None and link is self._ledger:
            self._reports.attached(connection.engine, ledger=link)
        elif self._reports is not None and link is self._manifests:
            self._reports.attached(connection.engine, manifests=link)
        elif self._reports is not None and link is self._configuration:
            self._reports.attached(connection.engine, configuration=link)
        elif self._reports is not None and link is self._receipts:
            self._reports.attached(connection.engine, receipts=link)
        elif self._reports is not None and link is self._devices:
            self._reports.attached(connection.engine, devices=link)
        else:
            return self._receivers.attached(link)
        return True

    def detached(self, event: Detached, now: float) -> None:
        if event.link is not self._telemetry:
            self._receivers.detached(event, now)
        elif self._connection is not None:
            self._connection.close(f"the peer detached {self._target!r}: {describe_condition(event.condition)}")

    def settled(self, event: Dispositions, now: float) -> None:
        connection = self._connection
        if connection is None:
            return
        if event.link is self._telemetry:
            self._uplink.settled(event.items, now)
        elif self._reports is not None and event.link in self._report_links:
            self._reports.settled(event.link, event.items)
            if self._reports.stuck:
                connection.disconnect("the hub requests a new epoch, and the store cannot begin one")
            else:
                self._begin(connection)

    def progressed(self, event: LinkFlow | Accepted) -> None:
        """Do nothing: each flush sends as far as there is credit."""

    def received(self, event: Transfers, now: float) -> bool:
        return self._receivers.received(event)

    def handle_timeout(self, now: float) -> None:
        if self._leaving:  # before that nothing is due: links that the hub refused are not attached again
            self._receivers.handle_timeout(now)

    def flush(self) -> None:
        if self._reports is not None:
            self._reports.flush()
        self._uplink.flush()

    def leave(self, left: Callable[[], None]) -> None:
        self._detach()
        self._receivers.leave(left)

    def end(self) -> None:
        if not self._leaving:  # otherwise another connection may have the uplink already
            self._detach()
        self._receivers.end()

    def wait_s(self, condition: Condition | None) -> float:
        return requested_wait_s(condition)

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _report_links(self) -> tuple[Link | None, ...]:
        """Links with documents that the peer settles."""
        return self._ledger, self._manifests, self._configuration, self._receipts, self._devices

    def _on_telemetry(self, connection: AmqpConnection, link: Link) -> None:
        self._waiting = link
        batching = CAPABILITY in link.offered_capabilities
        if self._reports is not None and batching:
            self._reports.announce()
            attach = connection.engine.attach_sender
            self._manifests = attach(MANIFESTS, MANIFESTS, desired_capabilities=(CLOCK_OFFSETS,))
            if self._reports.sends_configuration:
                self._configuration = attach(DESIRED, DESIRED)
            if self._reports.sends_receipt_requests:
                self._receipts = attach(RECEIPTS, RECEIPTS)
            if self._reports.sends_devices:
                self._devices = attach(DEVICES, DEVICES)
        elif self._reports is not None:
            self._reports.release()
        if batching:
            self._receivers.begin(connection.engine, connection.wake, connection.disconnect)
        self._begin(connection)

    def _begin(self, connection: AmqpConnection) -> None:
        """Open the telemetry link for messages, unless the hub is still comparing lineages."""
        link = self._waiting
        if link is None or (self._reports is not None and self._reports.held):
            return
        self._waiting = None
        self._uplink.attached(connection.engine, link, connection.disconnect)
        connection.up(batching=self._uplink.batching)

    def _detach(self) -> None:
        self._leaving, self._connection = True, None
        self._uplink.detached()
        if self._reports is not None:
            self._reports.detached()


def requested_wait_s(condition: Condition | None) -> float:
    """Return the seconds for which a hub asks a gateway to wait in its close; 0 without such a hint."""
    text = dict(condition.info).get(RECONNECT_AFTER_MS, "") if condition is not None else ""
    return min(int(text[:9]) / 1_000, RECONNECT_AFTER_S_MAX) if text.isascii() and text.isdigit() else 0.0
