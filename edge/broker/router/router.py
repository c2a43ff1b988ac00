"""The router: single owner of routes, subscriptions and retained messages, which it accesses by runs.

A run enters through `publish`. The route of its address delivers it to live consumers, or adds it to the store's open
group. When the group is on disk, `committed` releases the acknowledgements (`Answers`) and has the feeds of the logs
deliver the messages. The router is composed of parts; this module decides when they act. It never blocks, uses
no socket, and reads the time only through `clock_ns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from bridge.message import CLOCK_GOOD, Run, Stored
from edge.broker.delivery import LogSubscription, WaitingPool
from edge.broker.delivery.batches import offer_of
from edge.broker.delivery.dead_letters import DeadLetters
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.pattern import Joinable, Slices
from edge.broker.delivery.ready import ReadySet
from edge.broker.delivery.sweep import Sweeper
from edge.broker.limits import SCHEDULED_BYTES_MAX, SCHEDULED_SPACE_SHARE, Limits
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressTable, AddressType
from edge.broker.model.clock import MessageClock
from edge.broker.model.housekeeping import Housekeeping, Part
from edge.broker.model.interfaces import (
    AddressError,
    Consumer,
    MessageCounts,
    Origin,
    Refusal,
    SubscribeOptions,
)
from edge.broker.model.isolation import EventListeners, call_isolated, call_origin
from edge.broker.model.tracing import UNTRACED, Destination, Tracer
from edge.broker.retention.names import NameQuotas
from edge.broker.retention.quotas import Quotas
from edge.broker.router.answers import Answers
from edge.broker.router.batch import AnycastBatch, CollectedBatch, Publication, PublishBatch, RouteTargets
from edge.broker.router.commit_waits import CommitWaits
from edge.broker.router.competing_consumers import CompetingConsumers
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.connection_states import ConnectionStates
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.due_wills import DueWills
from edge.broker.router.durable_subscriptions import DurableSubscriptions
from edge.broker.router.flows import AddressFlows
from edge.broker.router.live_subscriptions import LiveSubscriptions, MergeLive, unmerged
from edge.broker.router.logs import Logs
from edge.broker.router.publish_sink import PublishSink
from edge.broker.router.queues import Queues
from edge.broker.router.retained import RetainedMessages
from edge.broker.router.route_table import RoutesMade, RouteTable
from edge.broker.router.routes import AnycastRoute, Route
from edge.broker.router.scheduled_messages import ScheduledMessages
from edge.broker.router.sender_credit import SenderCredit
from edge.broker.router.subscriptions import SubscriptionRegistry
from edge.broker.router.unrouted import UnroutedMessages
from edge.broker.store.contract import Store
from edge.broker.store.records import Committed

if TYPE_CHECKING:
    from edge.broker.router.networking.network import RouterNetwork
    from edge.broker.router.transactions.registry import Transactions

__all__ = ["AddressError", "MessageCounts", "Router", "SubscribeOptions"]

PROBE: Final = ("probe", "commit", b"")
"""Small state that is written to test whether the store can commit again: kind, key, value."""


class PublishSource(Protocol):
    """Collects messages during a turn and publishes them together."""

    def publish(self) -> None:
        """Publish the messages collected in this turn."""
        ...

    def forget_routes(self) -> None:
        """Forget all results of `Router.find_targets` and `RouteTable.prefix`."""
        ...

    def count_flows(self) -> None:
        """Add the messages that it collected since the last call to the flows of their targets."""
        ...


class CommitParticipant(Protocol):
    """Part that writes small state in commits, and acts when its tickets are decided."""

    def prepare(self) -> None:
        """Add to the open group: it is about to be sealed."""
        ...

    def committed(self, *, kept: bool) -> None:
        """Handle the end of a commit: tickets may be decided. `kept`: it succeeded."""
        ...


class Router:
    """Routes runs from origins to consumers through the store (see the module's docstring)."""

    _transactions: Transactions | None = None
    network: RouterNetwork | None = None
    """Network of routers; None: this one has had no neighbour."""

    def __init__(
        self,
        store: Store,
        table: AddressTable,
        *,
        clock_ns: Callable[[], int],
        clock_good: Callable[[], bool] = lambda: False,
        flush_soon: Callable[[], None] | None = None,
        policies: Mapping[str, AddressPolicy] | None = None,
        monotonic_s: Callable[[], float] | None = None,
        merge_live: MergeLive = unmerged,
        limits: Limits | None = None,
        soon: Callable[[Callable[[], None]], object] | None = None,
        schedules: bool = True,
        links_routers: bool = True,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`flush_soon` is called when something joined the open group: the shell calls `flush` once this turn ends.
        `soon` is that of `ReadySet`. `policies` are by pattern of the rule, those of subscriptions by ``topic::name``.
        `monotonic_s` times redeliveries (None: `clock_ns`). `merge_live` combines live subscriptions that get a single
        copy. `limits` bound names of clients (None: defaults). `schedules`: messages may request a delivery time,
        `links_routers`: routers may link to this one; `tracer` shows their messages."""
        now_s = monotonic_s or (lambda: clock_ns() / 1e9)
        self.now_ns, self.now_s, self.links_routers, self.tracer = clock_ns, now_s, links_routers, tracer
        self.clock = MessageClock(clock_ns, clock_good, now_s)
        self.figures, self._store, self._clock_good = MessageCounts(), store, clock_good
        self.flush_soon = flush_soon = flush_soon or self.flush
        self.address_listeners: EventListeners[[]] = EventListeners("changed addresses")
        """Called when addresses may have other types: subscriptions by the former type get nothing new."""
        self.loss_listeners: EventListeners[[]] = EventListeners("losses")
        """Called when entries of the loss ledger were committed."""
        self.commit_listeners: EventListeners[[Committed]] = EventListeners("commits")
        """Called at the end of each commit, before its answers are released: a packet trace shows results first."""
        self.tick_listeners: EventListeners[[]] = EventListeners("housekeeping")
        """Called at each tick, before the commit."""
        self._sources: list[PublishSource] = []
        self.addresses = ConfiguredAddresses(table, policies or {})
        self.deadletters = DeadLetters(store.cursors, store.commits, self._publish_counted, self.clock, now_s)
        self.ready, self.feeds = ReadySet(soon, now_s), LogFeeds(store.logs)
        self.pool = WaitingPool(self.ready, self._has_expired)
        self.names, self._limits = NameQuotas(limits := limits or Limits()), limits
        self.retained = RetainedMessages(store.state, self.names, self._ttl_ns)
        self._sweeper = Sweeper(store, self.clock, self._of_logs, flush_soon)
        self.quotas = self._make_quotas(store)
        self.answers = Answers(self.figures, now_s)
        self.waits, self.wills = CommitWaits(), DueWills(self.publish, self.ready)
        self.unrouted, self.connection_states = UnroutedMessages(self.figures, now_s), ConnectionStates()
        self._sink = PublishSink(store.logs, self.feeds, self.retained, self.answers, self.unrouted, flush_soon)
        self.scheduled = ScheduledMessages(store, self.clock, self.answers, self, now_s, supported=schedules)
        self._participants: list[CommitParticipant] = [self.scheduled]
        self._configure_policies()
        self._made = routes = RoutesMade(self._forget_targets)
        logs, self._watchers = Logs(store, self.deadletters, self.feeds), CreditWatchers()
        self.queues = Queues(
            store.state,
            store.logs,
            self.addresses,
            logs, self.names, unused_s=limits.queue_unused_s, forgotten=self._forget_queue,
        )  # fmt: skip
        self.feeds.call_for_unfollowed(self.queues.handle_unfollowed)
        self.durable_subscriptions = DurableSubscriptions(
            store, self.feeds, self.addresses, logs, self.names, routes.clear, limits.subscription_unused_s
        )
        self.subscriptions = self._make_subscriptions(store, merge_live, Slices(self.ready, now_s))
        self.routes = RouteTable(routes, self.addresses, self.subscriptions, logs, self.quotas, self.connection_states)
        self.credit = self._make_credit()
        self.housekeeping = Housekeeping(self._parts())
        store.commits.listeners.append(self.committed)
        self._count_kept(logs)

    def _make_quotas(self, store: Store) -> Quotas:
        first, other_bytes = self._sweeper.first, lambda: self.scheduled.bytes
        return Quotas(store.logs, store.retention, report_shortage=first, other_bytes=other_bytes)

    def _make_credit(self) -> SenderCredit:
        account, reaches = self.routes.account, self._reaches
        return SenderCredit(self.addresses, self.subscriptions, self._watchers, account, reaches)

    def _make_subscriptions(self, store: Store, merge_live: MergeLive, slices: Slices) -> SubscriptionRegistry:
        watchers, clear = self._watchers, self._made.clear
        return SubscriptionRegistry(
            store.logs,
            store.cursors,
            self.feeds,
            self.addresses,
            competing=CompetingConsumers(
                self.queues, self.addresses, self.figures, watchers, clear, self.now_s, slices
            ),
            durable=self.durable_subscriptions,
            live=LiveSubscriptions(self.pool, merge_live, self.names, clear),
            watchers=watchers,
            flush_soon=self.flush_soon,
        )

    # --- runs -------------------------------------------------------------------------------------------------

    def publish(self, batch: PublishBatch) -> None:
        """Route runs of one origin or of many."""
        if isinstance(batch, Publication):
            self._publish_counted(*batch)
        elif isinstance(batch, CollectedBatch):
            self._publish_collected(batch)
        else:
            self._publish_to_consumers(batch)

    def publish_members(self, batch: CollectedBatch) -> None:
        """Route each run of a batch, because its targets are out of date."""
        self._publish_each(batch.members())

    def _publish_counted(self, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Route a run that no source has counted."""
        self._publish(origin, run, tokens).flow.received += len(run.bodies)

    def _publish(self, origin: Origin, run: Run, tokens: Sequence[int]) -> Route:
        """Route a run, and return its route."""
        run.received_at = self.now_ns()
        if self._clock_good():
            run.flags |= CLOCK_GOOD
        self.figures.received += len(run.bodies)
        route = self._made.get(run.address)
        if route is None:
            route = self.routes.make(run.address, origin.user)
        route.publish(self._sink, origin, run, tokens)
        return route

    def time_of_day_ms(self) -> int | None:
        """Return milliseconds since 1970 (UTC); None while the clock is not known to be right."""
        return self.now_ns() // 1_000_000 if self._clock_good() else None

    @property
    def transactions(self) -> Transactions:
        """Transactions of clients; made on first use."""
        if self._transactions is None:
            from edge.broker.router.transactions.registry import Transactions  # noqa: PLC0415 - few gateways have any

            self._transactions = Transactions(self, self._store, self._limits, self.now_s)
            self.tick_listeners.add(self._transactions.tick)
        return self._transactions

    def join_network(self, name: str) -> RouterNetwork:
        """Return the network of routers, which this router joins under its name for the first neighbour."""
        if self.network is None:
            from edge.broker.router.networking.network import RouterNetwork  # noqa: PLC0415 - few gateways have one

            self.network = RouterNetwork(name, self, self._watchers)
            self.subscriptions.competing.follow_network(self.network)
            self.routes.follow_network(self.network)
        return self.network

    def _ttl_ns(self, run: Run) -> int | None:
        return ttl_ns(run, self.addresses.policy(run.address))

    def _reaches(self, kind: str, address: str) -> bool:
        return self.network is not None and self.network.reaches(kind, address)

    def stamp(self) -> tuple[int, int]:
        """Return the time of reception of a run that arrives now, and its flags for the clock."""
        return self.now_ns(), CLOCK_GOOD if self._clock_good() else 0

    def _publish_collected(self, batch: CollectedBatch) -> None:
        """Store and offer a batch as a whole, if no run has to be checked by itself."""
        sink = self._sink
        if not sink.takes_all(batch):
            self._publish_each(batch.members())
            return
        self.figures.received += batch.messages
        ticket = sink.keep_all(batch)
        for live, offer in batch.offers:
            for subscription in live:
                subscription.offer(offer)
        sink.answer_all(batch, ticket)

    def find_targets(self, address: str, qos: int) -> RouteTargets | None:
        """Return the targets of messages to an address, valid until `PublishSource.forget_routes` is called; None if
        each run has to go through `publish`."""
        route = self._made.get(address) or self._made.of_prefix(address)
        return route.targets(qos) if route is not None else None

    def destination(self, address: str, qos: int) -> Destination:
        """Return the destination of messages of this QoS to an address, for a packet trace."""
        route = self._made.get(address)
        if route is None:
            return Destination(self.addresses.type_of(address).value)
        found = route.destination(qos)
        if found.log is None:
            return found
        store = self._store
        return found._replace(
            log_name=store.logs.name(found.log), epoch=store.lineage.epoch, in_memory=store.logs.in_memory(found.log)
        )

    def _publish_to_consumers(self, batch: AnycastBatch) -> None:
        """Deliver as many messages as consumers take now, and route each of the others by itself."""
        route, taken = self._made.get(batch.address), 0
        if isinstance(route, AnycastRoute):
            taken = route.group.offer_batch(batch)
            self.figures.received += taken
            route.flow.received += taken
        with self.subscriptions.competing.gathered(batch.address):
            for origin, run, tokens in batch.members(taken):
                call_origin(origin, self._publish_counted, origin, run, tokens)

    def _publish_each(self, members: Iterable[tuple[Origin, Run, Sequence[int]]]) -> None:
        """Route each run; an exception ends only its origin."""
        for origin, run, tokens in members:
            call_origin(origin, self._publish, origin, run, tokens)

    def publish_live(self, run: Run) -> None:
        """Deliver a run of the broker's own to live subscribers. It is neither stored nor counted, and no publisher is
        held back for slow ones."""
        offer = offer_of(run, None)
        for sink in self.subscriptions.live.sinks(run.address):
            sink.offer(offer)

    def flush(self) -> None:
        """Publish collected messages, then start a commit."""
        self.publish_collected()
        self.start_commit()

    def publish_collected(self) -> None:
        """Have every source publish the messages it collected in this turn."""
        for source in self._sources:
            source.publish()

    def start_commit(self) -> None:
        """Start a commit of the open group, unless one is running. Answers are released only if decided."""
        self.answers.release()
        if self.feeds.taken:
            self.feeds.committed(())
        if self._store.commits.committing:
            return
        for participant in self._participants:
            call_isolated("a commit's participant", participant.prepare)
        self._store.commits.flush()

    def committed(self, commit: Committed) -> None:
        """Handle the end of a commit: release the answers, then deliver the committed messages."""
        self.credit.failing = commit.error is not None
        if commit.error is not None:
            self.quotas.commit_failed()
        if self.commit_listeners:
            self.commit_listeners.notify(commit)
        self.answers.release()
        self.waits.release()
        self._count_stored(commit)
        for participant in self._participants:
            call_isolated("a commit's participant", participant.committed, kept=commit.error is None)
        if commit.gave_up:
            self.loss_listeners.notify()  # before messages after the gap are delivered
        self.feeds.committed(commit.appended)
        self.flush()

    def add_source(self, source: PublishSource) -> None:
        """Have it publish at the beginning of each flush from now on."""
        self._sources.append(source)

    def participate(self, participant: CommitParticipant) -> None:
        """Let it write in each commit from now on."""
        self._participants.append(participant)

    def tick(self) -> None:
        """Do the housekeeping, every `limits.TICK_S`."""
        self.housekeeping.run()

    def _parts(self) -> Sequence[Part]:
        """Return the work of each tick, in order."""
        return (
            ("waiting messages of subscribers", self.pool.pressure.tick),
            ("quotas", self.quotas.tick),
            ("dead letters", self.deadletters.tick),
            ("answers", self.answers.expire),
            ("wills", self._tick_wills),
            ("scheduled messages", self._tick_scheduled),
            ("retained messages", self._purge),
            ("feeds of subscriptions", self.feeds.tick),
            ("unused queues", self._tick_queues),
            ("unused durable subscriptions", self._tick_durable),
            ("expired messages", self._sweep),
            ("credit of senders", self.credit.tick),
            ("listeners of the tick", self.tick_listeners.notify),
            ("commits", self.flush),
        )

    def _tick_wills(self) -> None:
        self.wills.tick(self.now_s(), failing=self.credit.failing)

    def _tick_scheduled(self) -> None:
        self.scheduled.tick(failing=self.credit.failing)

    def _purge(self) -> None:
        self.retained.purge(self.now_ns(), self.deadletters.expired)

    def _tick_queues(self) -> None:
        self.queues.tick(self.now_s(), self.now_ns())

    def _tick_durable(self) -> None:
        self.subscriptions.durable.tick(self.now_s(), self.now_ns())

    def _sweep(self) -> None:
        if self.credit.failing:
            self._store.state.put(*PROBE)  # without publishers no other write would show that commits work again
        else:
            self._sweeper.tick()

    # --- addresses --------------------------------------------------------------------------------------------

    def reconfigure(self, table: AddressTable, policies: Mapping[str, AddressPolicy] | None = None) -> None:
        """Apply new rules from the next run on. Stored messages stay in their logs, and are delivered from there."""
        self.addresses.configure(table, policies or {})
        self._configure_policies()
        self.subscriptions.follow_configuration()
        self._made.clear()
        self.routes.flows.keep_only(table.patterns)
        self.scheduled.retry()
        self.flush_soon()
        self.address_listeners.notify()

    def count_flows(self) -> AddressFlows:
        """Return the counts of messages by rule, up to date."""
        for source in self._sources:
            source.count_flows()
        return self.routes.flows

    def read_first(self, log: int, position: int, done: Callable[[Sequence[Stored]], None]) -> None:
        """Read the first message of a log from a position on (`MessageLogs.read`)."""
        self._store.logs.read(log, position, 1, done)

    def is_unrouted(self, address: str) -> bool:
        """Return True for a topic that no subscription, forwarder or connected client receives from."""
        if self.addresses.type_of(address) is not AddressType.TOPIC:
            return False
        subscriptions = self.subscriptions
        return subscriptions.durable.lowest_qos(address) is None and not subscriptions.live.match(address)

    def forget_origin(self, origin: Origin) -> None:
        """Forget an origin that has ended and needs no further credit. Its messages are still answered, as the packet
        identifiers of QoS 2 messages outlive their connection."""
        self._watchers.forget(origin)
        self.pool.pressure.forget(origin)

    def schedulable_type(self, address: str) -> AddressType | None:
        """See `RouteTable.schedulable_type`."""
        return self.routes.schedulable_type(address)

    def schedulable_bytes(self) -> int:
        """Return the bytes that scheduled messages may have: part of the space's quota, 0 below the floor."""
        space = self.quotas.space_bytes
        whole = SCHEDULED_BYTES_MAX if space is None else space // SCHEDULED_SPACE_SHARE
        return 0 if self.quotas.closed else whole

    # --- subscriptions ----------------------------------------------------------------------------------------

    def when_settled(
        self, consumer: Consumer, subscription: Joinable, notify: Callable[[Refusal | None], None]
    ) -> None:
        """Call `notify` with None once all acceptances of `subscription` are on disk, or with the refusal if the commit
        failed."""
        ticket = subscription.confirm() if isinstance(subscription, LogSubscription) else None
        if ticket is None:
            notify(None)
        else:
            self.waits.add(ticket, consumer, notify)
            self.flush_soon()

    def forget_routes(self) -> None:
        """Forget routes, because subscriptions are grouped in another way."""
        self._made.clear()

    # --- inside -----------------------------------------------------------------------------------------------

    def _count_stored(self, commit: Committed) -> None:
        in_memory = self._store.logs.in_memory
        self.figures.stored += sum(len(stored.run.bodies) for log, stored in commit.appended if not in_memory(log))

    def _count_kept(self, logs: Logs) -> None:
        """Count messages and losses of former processes, before any message is published."""
        self.subscriptions.competing.report_former_queues()
        self._store.ledger.account_for_crash()
        for log, pattern in logs.patterns(self.addresses.table):
            self.quotas.open(pattern, self.addresses.policy_of_rule(pattern), log)

    def _forget_queue(self, address: str, log: int) -> None:
        """Forget what refers to a queue that is about to be deleted."""
        self._made.pop(address, None)
        self._forget_targets()
        self.quotas.forget(log)

    def _forget_targets(self) -> None:
        self.publish_collected()
        for source in self._sources:
            source.forget_routes()

    def _of_logs(self) -> list[LogSubscription]:
        return self.subscriptions.of_logs()

    def _configure_policies(self) -> None:
        self.quotas.configure(self.addresses.rule_policies)
        self.pool.expect_expiry(expiring=self.addresses.expires)

    def left_ns(self, run: Run) -> int | None:
        """Return the nanoseconds until a run that a consumer has expires (`DeadLetters.left_ns`)."""
        return self.deadletters.left_ns(run, self.addresses.policy(run.address))

    def _has_expired(self, run: Run) -> bool:
        """Return True when a run that is not stored has outlived its time to live."""
        return self.deadletters.has_outlived_ttl(run, self.addresses.policy(run.address))
