"""Connector to a hub: dials forever, and is the consumer of its forwarders' subscriptions.

To the router an uplink is a consumer of durable subscriptions. So a forwarder has everything that a subscription has:
cursor, backlog in the store, redelivery after a break. The module is imported only if such a connector is configured.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from bridge.amqp_connection import AmqpConnection
from bridge.backoff import Backoff, BackoffPolicy
from bridge.dialer import Attempt, Dialer, PeerEndpoint
from bridge.flow import Outcomes, Pump
from bridge.forwarders.inbox import ForwarderInbox
from bridge.hub_addresses import INSTANCE
from bridge.hub_links import HubLinks
from bridge.lane import BatchLane
from bridge.limits import LIVE_BATCHES_UNDELAYED, LIVE_GATHER_LAST_S, LIVE_GATHER_S
from bridge.pace import Pacer, Spent
from bridge.plain import Hop
from bridge.reports import Reports
from bridge.socket_attempt import SocketAttempt
from bridge.uplink import Uplink, UplinkFigures, UplinkLimits
from edge.broker.configuration import Connector, Direction, Forwarder
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.model.addresses import AddressType
from edge.broker.model.backfill import Backfill
from edge.broker.model.clock import WallClock
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.model.topics import matches
from edge.broker.retention.clock_offsets import ClockOffsetReports
from edge.broker.retention.loss_reports import LEDGER_RANGES, LossReports
from edge.broker.retention.manifests import Manifests, Signer
from edge.broker.router.commands.inbox import CommandInbox
from edge.broker.router.connector_types import engine_of
from edge.broker.router.forwarding import Forwarding
from edge.broker.router.landing.exchange import ReceiptExchange
from edge.broker.router.landing.receipts import LandingReceipts
from edge.broker.router.peer_connector import dialed
from edge.broker.router.router import Router
from edge.broker.security.peer_tls import peer_context, peer_stamps
from edge.broker.store.contract import SmallState, Store

log = logging.getLogger(__name__)

OUTCOMES: Final = Outcomes(DeliveryOutcome.ACCEPTED, DeliveryOutcome.REJECTED)

BACKOFF: Final = BackoffPolicy(first_s=0.5, limit_s=15.0, stable_s=30.0)
"""Delays between attempts: 7.5 to 15 s while the hub is down. 10 000 gateways make about 900 attempts a second, and
waiting messages are sent within 15 s of the hub's return."""

UPLINK_LIMITS: Final = UplinkLimits(
    gather_s=LIVE_GATHER_S, gather_last_s=LIVE_GATHER_LAST_S, batches_undelayed=LIVE_BATCHES_UNDELAYED
)

BEFORE_FORWARDER = "before forwarder"
"""Reason in the ledger: stored for other consumers before the forwarder existed, so not for this peer."""


BEFORE_EPOCH = "before epoch"
"""Reason in the ledger: these sequences were used in the previous epoch, and are sent under its name."""


LINEAGE_LOGS_MAX: Final = 20_000
"""Log ends reported with the lineage, 200 KB of JSON: always those of the newest opening, and as many more as fit."""


BUDGET: Final = "budget"
"""Kind of the small state with the spent part of a month's budget: name of the connector -> `bridge.pace.Spent`."""

BUDGET_KEPT_PARTS: Final = 100
"""Divisor of the budget: at most this part is spent before it is written, and may be forgotten in a crash."""


class UplinkProgress(msgspec.Struct, frozen=True):
    """Progress of a connector with the messages for its peer."""

    live_messages: int
    """Messages stored since the link came up that the peer has not accepted."""
    backlog_messages: int
    """Earlier messages that the peer has not accepted."""
    bytes_s: float
    """Recent rate of the link; 0 when unknown."""
    left_s: float | None
    """Seconds until all are sent, at this rate; None when unknown."""
    budget_bytes: int | None
    """Budget of a month; None: unlimited."""
    spent_bytes: int
    """Bytes of it spent this month (UTC)."""
    quiet: bool
    """True while a backlog waits for the end of the quiet hours."""


class ConnectorUplink:
    """One connector with its forwarders: dials forever, and sends the messages that match their filters."""

    _exchange: ReceiptExchange | None = None
    """Exchange about landed messages; None: no device may want receipts."""

    def __init__(
        self,
        connector: Connector,
        *,
        space: str,
        hop: Hop,
        router: Router,
        store: Store,
        signer: Signer,
        commands: CommandInbox,
        carried: Sequence[Forwarder] = (),
        clock: WallClock | None = None,
        fork: Callable[[str], bool] = lambda _shared: False,
    ) -> None:
        """`hop` names this gateway and its store's epoch to the peer. `commands` takes commands of the hub. `carried`
        are forwarders that need no configuration. `clock` stamps messages (None: clock offsets are not reported).
        `fork` starts a new epoch of the store (see `Reports`). `start` of the dialer starts to dial."""
        self.connector, self._gateway = connector, hop.gateway
        self.inboxes: list[ForwarderInbox] = [commands]
        """Takers of messages from the hub; add to them before `start`."""
        self._commands = commands
        self._carried = tuple(carried)
        self.reports = Reports(self._lineage, fork)
        state, lineage, ledger = store.state, store.lineage, store.ledger
        self._losses = LossReports(state, lineage, ledger, self.reports, connector.name)
        router.loss_listeners.add(self._losses.feed)
        router.tick_listeners.add(self._tick)
        self.manifests = Manifests(
            state,
            lineage,
            ledger,
            self.reports,
            connector.name,
            gateway=hop.gateway,
            covers=self._covers,
            signer=signer,
        )
        self.clock_offsets = (
            None
            if clock is None
            else ClockOffsetReports(state, lineage, self.reports, connector.name, clock=clock, sends=self._forwards)
        )
        self.uplink = Uplink(
            f"uplink {connector.name}",
            hop,
            space=space,
            outcomes=OUTCOMES,
            bases=router.durable_subscriptions.bases,
            epochs=lineage.epochs,
            log_of=_log_of,
            reached=lambda: lineage.reached,
            clock=router.now_s,
            limits=UPLINK_LIMITS,
            pacer=_pacer(connector, hop.gateway, router, state),
            begin=self._split_lanes,
        )
        self._instance = secrets.token_hex(8)
        self._spent_kept = 0
        """Bytes of the month's budget in the store."""
        self._router = router
        self._store = store
        self._forwardings: dict[str, Forwarding] = {}
        self.forwarders: dict[str, Forwarder] = {}
        """Bound forwarders by name."""
        self.dialer = Dialer(
            dialed(connector),
            lambda dialer, endpoint: self._attempt(dialer, endpoint, hop.gateway),
            backoff=Backoff(BACKOFF, random.Random().random),  # noqa: S311 - jitter, no secret
            stamps=partial(peer_stamps, connector.tls),
        )

    def forward(self, forwarders: Sequence[Forwarder]) -> None:
        """Bind these forwarders and no others: messages that match their filters are kept from now on, and sent. If one
        has changed, all are bound again, in their order."""
        forwarders = [forwarder for forwarder in forwarders if forwarder.direction is Direction.OUT]
        altered = any(self.forwarders.get(forwarder.name, forwarder) != forwarder for forwarder in forwarders)
        self.forwarders = {forwarder.name: forwarder for forwarder in forwarders}
        self._bind_all([*forwarders, *self._carried], altered=altered)

    def _bind_all(self, forwarders: Sequence[Forwarder], *, altered: bool) -> None:
        wanted = {forwarder.name for forwarder in forwarders}
        for name in [name for name in self._forwardings if altered or name not in wanted]:
            self._unbind(name, gone=name not in wanted)
        for forwarder in forwarders:
            if forwarder.name not in self._forwardings:
                name = f"{FORWARDER_PREFIX}{self.connector.name}/{forwarder.name}"
                self._forwardings[forwarder.name] = Forwarding(self._router, self.uplink.live, name, forwarder.filter)
                self._forwardings[forwarder.name].newest = Backfill.parse(forwarder.backfill).newest
        backfills = [Backfill.parse(forwarder.backfill) for forwarder in forwarders]
        self.uplink.set_live_share(min((backfill.live_share for backfill in backfills), default=1.0))
        self._follow()

    def _follow(self) -> None:
        for forwarding in self._forwardings.values():
            before = forwarding.subscriptions
            forwarding.follow()
            self._remove([each for each in before if each not in forwarding.subscriptions])
        if self.uplink.connected:
            self._split_lanes()
        for forwarding in self._forwardings.values():
            for subscription in forwarding.subscriptions:
                self.uplink.live.add(subscription)

    def _split_lanes(self) -> None:
        """Split lanes when the link is up: stored messages are backlog, new ones are live."""
        for forwarding in self._forwardings.values():
            before = forwarding.lanes
            forwarding.split_lanes(self._store.logs, self._store.cursors, self.uplink.backlog)
            for lane in before:
                if lane not in forwarding.lanes:
                    self.uplink.backlog.remove(lane)
            for lane in forwarding.lanes:
                self.uplink.backlog.add(lane)

    def explain(self) -> None:
        """Report to the peer's ledger where its addresses begin. The peer recognises repeated ranges, so this is sent
        at each start."""
        patterns = [forwarding.pattern for forwarding in self._forwardings.values()]
        epochs = self._store.lineage.epochs
        names = [
            (*part, address, BEFORE_FORWARDER)
            for address, base in self._router.durable_subscriptions.bases.items()
            for part in epochs.parts(address, 0, base - 1)
        ]
        names += [(epoch, 0, last, address, BEFORE_EPOCH) for epoch, address, last in epochs.before()]
        ranges = [
            {"epoch": epoch, "address": address, "first_sequence": first, "last_sequence": last, "reason": reason}
            for epoch, first, last, address, reason in names
            if any(matches(pattern, address) for pattern in patterns)
        ]
        for start in range(0, len(ranges), LEDGER_RANGES):
            self.reports.ledger({"ranges": ranges[start : start + LEDGER_RANGES]}, lambda _kept: None)
        self._losses.feed()

    def restate(self) -> None:
        """Report again what was not sent yet, because messages have other names now."""
        self.reports.clear()
        self._losses.restart()
        self.manifests.restate()
        if self.clock_offsets is not None:
            self.clock_offsets.restate()
        self.explain()

    def _covers(self, address: str) -> bool:
        """Return True when all messages of this address go to this peer; other consumers of a queue may have taken
        some."""
        return self._forwards(address) and self._router.addresses.type_of(address) is not AddressType.QUEUE

    def _forwards(self, address: str) -> bool:
        return any(matches(forwarding.pattern, address) for forwarding in self._forwardings.values())

    def _lineage(self) -> dict[str, Any]:
        """Return the lineage as `cloud.hub.documents.Lineage` reads it."""
        lineage, reported = self._store.lineage, list[list[int] | None]()
        size = 0
        for ends in lineage.opening_ends():
            size += 0 if ends is None else len(ends)
            if reported and size > LINEAGE_LOGS_MAX:
                break
            reported.append(None if ends is None else [number for pair in ends.items() for number in pair])
        return {"epoch": lineage.epoch, "openings": list(lineage.openings), "ends": reported[::-1]}

    @property
    def has_no_commands(self) -> bool:
        """True if no command that has come is on its way to its queue."""
        return self._commands.is_empty

    @property
    def figures(self) -> UplinkFigures:
        """Counters since the connector was made."""
        return self.uplink.figures

    def poll(self, now_ns: int, *, clock_good: bool) -> None:
        """Check for due manifests, a changed certificate and the budget. Called every few seconds."""
        self.dialer.check_files()
        self._losses.retry_read()
        self.manifests.poll(now_ns, clock_good=clock_good)
        if self.clock_offsets is not None:
            self.clock_offsets.poll()
        pacer = self.uplink.pacer
        if pacer is not None and pacer.pace.monthly_budget is not None:
            pacer.check_month(clock_good=clock_good)
            if abs(pacer.spent.bytes - self._spent_kept) * BUDGET_KEPT_PARTS >= pacer.pace.monthly_budget:
                self.keep_spent()

    def keep_spent(self) -> None:
        """Write the spent part of the month's budget."""
        pacer = self.uplink.pacer
        if pacer is not None and pacer.spent.bytes != self._spent_kept:
            self._spent_kept = pacer.spent.bytes
            self._store.state.put(BUDGET, self.connector.name, msgspec.json.encode(pacer.spent))

    def progress(self) -> UplinkProgress:
        """Return the progress with the messages for the peer."""
        figures, pacer, waiting = self.uplink.figures, self.uplink.pacer, self.backlog
        lanes = [lane for forwarding in self._forwardings.values() for lane in forwarding.lanes]
        left, rate = sum(lane.count for lane in lanes), self.uplink.rate.bytes_s
        each = figures.bytes_accepted / figures.messages_accepted if figures.messages_accepted else 0.0
        return UplinkProgress(
            live_messages=max(waiting - left, 0),
            backlog_messages=left,
            bytes_s=rate,
            left_s=waiting * each / rate if rate and each else None,
            budget_bytes=pacer.pace.monthly_budget if pacer is not None else None,
            spent_bytes=pacer.spent.bytes if pacer is not None else 0,
            quiet=pacer is not None and pacer.is_quiet(BatchLane.BACKLOG),
        )

    def tell_status(self, document: dict[str, Any]) -> None:
        """Report our status to the hub; the latest replaces earlier ones."""
        self.reports.status(document)

    def give_receipts(self, receipts: LandingReceipts) -> None:
        """Exchange requests for receipts with the hub from now on; idempotent. A present connection ends, because its
        links are attached when it opens."""
        if self._exchange is not None:
            return
        self._exchange = ReceiptExchange(
            self.connector.name, self.reports, self._forwards, lambda: self.uplink.connected, self._gateway
        )
        receipts.set_exchange(self.connector.name, self._exchange)
        self.inboxes.append(self._exchange)
        self.reports.begin_receipt_requests()
        self.uplink.watch_landed(receipts.settled)
        self.uplink.reconnect("receipts of landed messages are wanted")

    def release(self) -> None:
        """Unbind all forwarders, and stop reporting."""
        self.keep_spent()
        if self.clock_offsets is not None:
            self.clock_offsets.release()
        self._router.loss_listeners.remove(self._losses.feed)
        self._router.tick_listeners.remove(self._tick)
        self._commands.release()
        self._carried = ()
        self.forward(())

    def _unbind(self, name: str, *, gone: bool) -> None:
        forwarding = self._forwardings.pop(name)
        parts = forwarding.parts
        self._remove([*forwarding.subscriptions, *parts, *forwarding.lanes])
        forwarding.end()
        if gone:
            left = sum(part.backlog for part in parts)
            log.warning("forwarder %s was removed; up to %d messages stay in the store for it", name, left)

    def _remove(self, subscriptions: Sequence[Pump]) -> None:
        for subscription in subscriptions:
            self.uplink.remove(subscription)

    def _tick(self) -> None:
        self._commands.inbound.try_again()
        if self.faults:
            self._follow()

    @property
    def faults(self) -> dict[str, str]:
        """Reasons why forwarders take nothing from their addresses, by name."""
        return {name: each.fault for name, each in self._forwardings.items() if each.fault is not None}

    @property
    def backlog(self) -> int:
        """Messages for the peer that it has not accepted (an upper bound while behind)."""
        return sum(part.backlog + part.outstanding for part in self.parts)

    @property
    def parts(self) -> list[LogSubscription]:
        """Subscriptions of the forwarders in the logs of the store."""
        return list(dict.fromkeys(part for forwarding in self._forwardings.values() for part in forwarding.parts))

    def _attempt(self, dialer: Dialer, endpoint: PeerEndpoint, container: str) -> Attempt:
        connector = self.connector
        engine = engine_of(connector, container, endpoint.host, {INSTANCE: self._instance})
        connection = AmqpConnection(engine, HubLinks(self.uplink, self.reports, inboxes=self.inboxes))
        return SocketAttempt(
            dialer,
            endpoint,
            connection,
            tls=partial(peer_context, connector.tls) if connector.tls is not None else None,
            interface=connector.interface,
            proxy=connector.proxy,
        )


def _pacer(connector: Connector, gateway: str, router: Router, state: SmallState) -> Pacer | None:
    """Return the pacer; None for a connector without a pace."""
    if connector.pace is None:
        return None
    spent = Spent()
    for name, kept in state.items(BUDGET):
        if name == connector.name:
            spent = msgspec.json.decode(kept, type=Spent)
    return Pacer(connector.pace, gateway, utc_s=lambda: router.now_ns() / 1e9, spent=spent)


def _log_of(subscription: Any) -> int | None:
    return subscription.log if isinstance(subscription, LogSubscription) else None
