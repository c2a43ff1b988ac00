"""The router: single owner of routes, subscriptions and retained messages; everything reaches it in runs.

A run comes in through `publish`, meets the route of its address, and either is handed on or joins the store's open
group. When the group is on disk, `committed` releases the acknowledgements and hands the messages to those who wait.
The router never blocks, never looks at a socket and never asks for the time other than through `clock_ns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bridge.message import CLOCK_GOOD, Run
from edge.broker.addresses import AddressRule, AddressTable, AddressType
from edge.broker.contract import Consumer, Origin, Refusal
from edge.broker.durable import Declaration, DurableSubscription
from edge.broker.limits import ROUTES_CACHED_MAX, SENDER_CREDIT
from edge.broker.retained import RetainedMessages
from edge.broker.routes import AnycastRoute, MulticastRoute, QueueRoute, Route, TopicRoute
from edge.broker.store.contract import Committed, Store, StoreFull
from edge.broker.subscriptions import AnycastGroup, LogSubscription, TransientSubscription, WaitingPool
from edge.broker.subscriptions.pattern import Joinable, PatternSubscription
from edge.broker.topics import FilterTree, is_filter, matches

QUEUE_CURSOR = "queue"
"""Name of the one cursor a queue has; its consumers share it."""


class AddressError(Exception):
    """An address cannot be used as asked."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


class SubscribeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer wants to receive.

    `durable_name`  the subscription outlives its consumers, under this name; None: it ends with the consumer.
    `share_name`    consumers that give the same name take turns (a shared subscription that is not durable).
    `shared`        several consumers may hold the durable subscription at once.
    `all_qos`       a durable subscription keeps QoS 0 messages as well.
    `qos0_only`     a live subscription for the QoS 0 messages that its durable twin does not keep.
    """

    qos: int = 1
    durable_name: str | None = None
    share_name: str | None = None
    shared: bool = False
    browse: bool = False
    no_local: bool = False
    all_qos: bool = False
    qos0_only: bool = False


class Figures(msgspec.Struct):
    """Messages since start."""

    received: int = 0
    acknowledged: int = 0
    refused: int = 0


class Router:
    """Routes runs from origins to consumers through the store (see the module's docstring)."""

    def __init__(
        self,
        store: Store,
        table: AddressTable,
        *,
        clock_ns: Callable[[], int],
        clock_good: Callable[[], bool] = lambda: False,
        flush_soon: Callable[[], None] | None = None,
    ) -> None:
        """`flush_soon` is called when something joined the open group: the shell calls `flush` once this turn ends."""
        self.figures = Figures()
        self.bases: dict[str, int] = {}
        """First sequence the forwarders owe of an address that had messages before there was a forwarder for it."""
        self.table = table
        self._store = store
        self._clock_ns = clock_ns
        self._clock_good = clock_good
        self._flush_soon = flush_soon or self.flush
        self._routes: dict[str, Route] = {}
        self._queues: dict[str, LogSubscription] = {}
        self._anycast: dict[str, AnycastGroup] = {}
        self._durable: dict[str, DurableSubscription] = {}
        self._durable_tree: FilterTree[DurableSubscription] = FilterTree()
        self._live_tree: FilterTree[TransientSubscription] = FilterTree()
        self._shares: dict[str, TransientSubscription] = {}
        self._pattern_consumers: FilterTree[Consumer] = FilterTree()
        self._credit_watchers: dict[str, dict[Origin, None]] = {}
        self._pool = WaitingPool()
        self.retained = RetainedMessages(store)
        self._gathered: list[tuple[Origin, Sequence[int]]] = []
        self._committing: list[tuple[Origin, Sequence[int]]] = []
        self._unanswered: dict[Origin, int] = {}
        store.on_commit = self.committed
        self._restore()

    # --- runs -------------------------------------------------------------------------------------------------

    def publish(self, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Route a run. `tokens` (one a message, empty when nothing is to be answered) come back through
        `origin.accepted` or `origin.refused`, in the order given."""
        run.received_at = self._clock_ns()
        if self._clock_good():
            run.flags |= CLOCK_GOOD
        self.figures.received += len(run.bodies)
        route = self._routes.get(run.address)
        if route is None:
            route = self._resolve(run.address)
        route.publish(self, origin, run, tokens)

    def keep(self, log: int, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Append to a log; `tokens` are answered when that is on disk."""
        self._store.append(log, run)
        self.done_on_disk(origin, tokens)

    def retain(self, run: Run) -> bool:
        """Make it the retained message of its address; True when that has to reach the disk before the answer."""
        return self.retained.put(run)

    def done_on_disk(self, origin: Origin, tokens: Sequence[int]) -> None:
        """Answer `tokens` when the open group is on disk."""
        if tokens:
            self._gathered.append((origin, tokens))
            self._unanswered[origin] = self._unanswered.get(origin, 0) + 1
        self._flush_soon()

    def done(self, origin: Origin, tokens: Sequence[int]) -> None:
        """Nothing to wait for; yet answers keep the order of what was sent [MQTT-4.6.0-2]."""
        if not tokens:
            return
        if origin in self._unanswered:
            self.done_on_disk(origin, tokens)
        else:
            self.figures.acknowledged += len(tokens)
            origin.accepted(tokens)

    def flush(self) -> None:
        """Start a commit of what was gathered, unless one is running."""
        if self._store.committing:
            return
        if self._store.flush():
            self._committing, self._gathered = self._gathered, []
        elif self._gathered and not self._store.committing:
            answers, self._gathered = self._gathered, []
            self._answer(answers, None)

    def committed(self, commit: Committed) -> None:
        """The store finished a commit: release the acknowledgements, then deliver what it made durable."""
        answers, self._committing = self._committing, []
        # The promise: an acknowledgement is released by the commit that made its message durable, and here only.
        self._answer(answers, commit)
        touched: set[LogSubscription] = set()
        routes = self._routes
        for _, stored in commit.appended:
            route = routes.get(stored.run.address)
            if route is None:
                route = self._resolve(stored.run.address)
            route.arrived(stored, touched)
        for subscription in touched:
            subscription.pump()
        self.flush()

    def _answer(self, answers: Sequence[tuple[Origin, Sequence[int]]], commit: Committed | None) -> None:
        error = commit.error if commit is not None else None
        unanswered = self._unanswered
        for origin, tokens in answers:
            left = unanswered.pop(origin) - 1
            if left:
                unanswered[origin] = left
            if error is None:
                self.figures.acknowledged += len(tokens)
                origin.accepted(tokens)
            else:
                self.figures.refused += len(tokens)
                origin.refused(tokens, Refusal.FULL if isinstance(error, StoreFull) else Refusal.STORE_FAILED)

    # --- subscriptions ----------------------------------------------------------------------------------------

    def address_type(self, address: str) -> AddressType:
        """The type of an address, or of every name a filter covers."""
        return self.table.rule_of_filter(address).type

    def subscribe(self, consumer: Consumer, address: str, options: SubscribeOptions) -> Joinable:
        """Let `consumer` receive what `address` (a name or a filter) delivers; it is pumped by the caller.

        Raises AddressError when the durable subscription is held by another consumer and is not shared.
        """
        kind = self.address_type(address)
        subscription: Joinable
        if kind.is_queue or kind is AddressType.ANYCAST:
            subscription = self._compete(consumer, address, kind)
        elif options.durable_name is not None and kind is not AddressType.MULTICAST:
            subscription = self._join_durable(consumer, address, options)
        else:
            subscription = self._join_live(consumer, address, options)
        self._credit_changed(address)
        return subscription

    def unsubscribe(self, consumer: Consumer, subscription: Joinable, *, forget: bool) -> None:
        """The consumer is done; `forget` deletes a durable subscription nobody else holds."""
        subscription.leave(consumer, keep=False)
        if isinstance(subscription, PatternSubscription):
            self._pattern_consumers.remove(subscription.pattern, consumer)
            self._credit_changed(subscription.pattern)
        elif isinstance(subscription, TransientSubscription):
            self._leave_live(subscription)
        elif isinstance(subscription, AnycastGroup):
            self._credit_changed(subscription.pattern)
        elif isinstance(subscription, DurableSubscription) and forget and not subscription.consumers:
            self._forget(subscription)

    def declare(self, declaration: Declaration) -> DurableSubscription:
        """Make the durable subscription, or find it; messages are kept for it from now on."""
        found = self._durable.get(declaration.name)
        if found is not None:
            if found.declaration == declaration:
                return found
            consumers = found.consumers
            if found.declaration.pattern != declaration.pattern:
                raise AddressError(
                    Refusal.ADDRESS_INVALID,
                    f"subscription {declaration.name!r} exists with filter {found.declaration.pattern!r}",
                )
            self._drop(found)
        else:
            consumers = []
        if declaration.all_qos and found is None:
            self._note_bases(declaration.pattern)
        subscription = self._open(declaration)
        self._store.put("subscription", declaration.name, msgspec.msgpack.encode(declaration))
        for consumer in consumers:
            subscription.join(consumer)
        self._flush_soon()
        return subscription

    def forget(self, name: str) -> None:
        """Delete a durable subscription with its backlog; nothing happens when there is none."""
        found = self._durable.get(name)
        if found is not None:
            self._forget(found)

    def forget_origin(self, origin: Origin) -> None:
        """The origin is gone: it asks for no credit any more. What it sent is answered all the same, as the packet
        identifiers of a QoS 2 message outlive the connection they came over."""
        for watchers in self._credit_watchers.values():
            watchers.pop(origin, None)

    def sender_credit(self, origin: Origin, address: str) -> int:
        """Messages a sender to `address` may have under way; a direct address gives what its consumers can take.

        For direct addresses `origin.credit_changed(address)`, where it has that method, is called when it may differ.
        """
        kind = self.address_type(address)
        if kind is AddressType.ANYCAST:
            self._credit_watchers.setdefault(address, {})[origin] = None
            group = self._anycast.get(address)
            return min(SENDER_CREDIT, group.credit) if group is not None else 0
        if kind is AddressType.MULTICAST:
            self._credit_watchers.setdefault(address, {})[origin] = None
            return SENDER_CREDIT if self._live_tree.match(address) else 0
        return SENDER_CREDIT

    def reconfigure(self, table: AddressTable) -> None:
        """Follow new rules from the next run on. What is stored stays where it is, and is delivered from there."""
        self.table = table
        for subscription in self._durable.values():
            self._open_parts(subscription)
        self._routes.clear()
        self._flush_soon()

    def tick(self) -> None:
        """Housekeeping, every `limits.TICK_S`."""
        for durable in self._durable.values():
            for part in durable.parts:
                part.idle()
        self.flush()

    @property
    def queues(self) -> dict[str, LogSubscription]:
        """Queues by address (to be read only)."""
        return self._queues

    @property
    def durable_subscriptions(self) -> dict[str, DurableSubscription]:
        """Durable subscriptions by name (to be read only)."""
        return self._durable

    # --- inside: routes ---------------------------------------------------------------------------------------

    def _resolve(self, address: str) -> Route:
        rule = self.table.rule(address)
        route: Route
        if rule.type.is_queue:
            route = QueueRoute(self._queue(address))
        elif rule.type is AddressType.ANYCAST:
            route = AnycastRoute(self._anycast_group(address))
        elif rule.type is AddressType.MULTICAST:
            route = MulticastRoute(self._live_tree.match(address))
        else:
            route = self._topic_route(address, rule)
        if len(self._routes) >= ROUTES_CACHED_MAX:
            self._routes.clear()
        self._routes[address] = route
        return route

    def _topic_route(self, address: str, rule: AddressRule) -> TopicRoute:
        durable = self._durable_tree.match(address)
        live = self._live_tree.match(address)
        if not durable:
            return TopicRoute(0, (), live, keeps_qos0=False)
        log = self._topic_log(rule)
        parts = [part for found in durable for part in found.parts if part.log == log]
        return TopicRoute(log, parts, live, keeps_qos0=any(found.declaration.all_qos for found in durable))

    def _topic_log(self, rule: AddressRule) -> int:
        return self._store.log(f"topic {rule.pattern}")

    def _queue(self, address: str) -> LogSubscription:
        queue = self._queues.get(address)
        if queue is None:
            log = self._store.log(f"queue {address}")
            queue = self._log_subscription(address, QUEUE_CURSOR, log, 0)
            self._queues[address] = queue
            self._store.put("queue", address, b"")
            for consumer in self._pattern_consumers.match(address):
                queue.join(consumer)
        return queue

    def _anycast_group(self, address: str) -> AnycastGroup:
        group = self._anycast.get(address)
        if group is None:
            group = self._anycast[address] = AnycastGroup(address)
            group.changed = lambda: self._credit_changed(address)
            for consumer in self._pattern_consumers.match(address):
                group.join(consumer)
        return group

    # --- inside: subscriptions --------------------------------------------------------------------------------

    def _compete(self, consumer: Consumer, address: str, kind: AddressType) -> Joinable:
        """Consume from a queue or anycast address, or from all a filter matches."""
        if not is_filter(address):
            one: Joinable = self._queue(address) if kind.is_queue else self._anycast_group(address)
            one.join(consumer)
            return one
        known: Mapping[str, Joinable] = self._queues if kind.is_queue else self._anycast

        def parts() -> Iterator[Joinable]:
            return (part for name, part in list(known.items()) if matches(address, name))

        self._pattern_consumers.add(address, consumer)
        many = PatternSubscription(address, parts)
        many.join(consumer)
        return many

    def _join_durable(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> DurableSubscription:
        name = options.durable_name or ""
        not_from = consumer.name if options.no_local else None
        declaration = Declaration(name=name, pattern=pattern, all_qos=options.all_qos, not_from=not_from)
        subscription = self.declare(declaration)
        others = [other for other in subscription.consumers if other is not consumer]
        if others and not options.shared:
            raise AddressError(Refusal.NOT_AUTHORIZED, f"subscription {name!r} is in use by {others[0].name!r}")
        subscription.join(consumer)
        return subscription

    def _join_live(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> TransientSubscription:
        name = options.share_name
        subscription = self._shares.get(name) if name is not None else None
        if subscription is None:
            not_from = consumer.name if options.no_local else None
            subscription = TransientSubscription(pattern, self._pool, qos0_only=options.qos0_only, not_from=not_from)
            subscription.share_name = name
            if name is not None:
                self._shares[name] = subscription
            self._live_tree.add(pattern, subscription)
            self._routes.clear()
        subscription.join(consumer)
        return subscription

    def _leave_live(self, subscription: TransientSubscription) -> None:
        if subscription.group:
            return
        if subscription.share_name is not None:
            self._shares.pop(subscription.share_name, None)
        self._live_tree.remove(subscription.pattern, subscription)
        self._routes.clear()
        self._credit_changed(subscription.pattern)

    def _open(self, declaration: Declaration) -> DurableSubscription:
        """Make the subscription with its cursors and enter it into the routes."""
        subscription = DurableSubscription(declaration)
        self._open_parts(subscription)
        self._durable[declaration.name] = subscription
        self._durable_tree.add(declaration.pattern, subscription)
        self._routes.clear()
        return subscription

    def _note_bases(self, pattern: str) -> None:
        """A new forwarder owes nothing of what came before it: keep where it begins, for addresses no other one has."""
        others = [found.declaration for found in self._durable.values() if found.declaration.all_qos]
        for address, following in self._store.sequences():
            if following and matches(pattern, address) and not any(matches(d.pattern, address) for d in others):
                self.bases[address] = following
                self._store.put("base", address, following.to_bytes(8, "big"))

    def _open_parts(self, subscription: DurableSubscription) -> None:
        """Open a cursor in every topic log the filter reaches and that has none of it yet."""
        declaration = subscription.declaration
        known = {part.log for part in subscription.parts}
        consumers = subscription.consumers
        for rule in self.table.topic_rules(declaration.pattern):
            log = self._topic_log(rule)
            if log in known:
                continue
            part = self._log_subscription(declaration.pattern, declaration.name, log, self._store.bounds(log)[1])
            part.accepts = declaration.accepts
            for consumer in consumers:
                part.join(consumer)
            subscription.parts.append(part)

    def _log_subscription(self, pattern: str, name: str, log: int, position: int) -> LogSubscription:
        """The subscription with cursor `name` in a log, where the store left it or new at `position`."""
        cursor = self._store.open_cursor(name, log, position)
        record = self._store.cursor(cursor)
        return LogSubscription(
            self._store, pattern, log, cursor, position=record.position, acknowledged=record.acknowledged
        )

    def _forget(self, subscription: DurableSubscription) -> None:
        self._drop(subscription)
        for part in subscription.parts:
            part.close()
        self._store.delete("subscription", subscription.declaration.name)
        self._flush_soon()

    def _drop(self, subscription: DurableSubscription) -> None:
        del self._durable[subscription.declaration.name]
        self._durable_tree.remove(subscription.declaration.pattern, subscription)
        self._routes.clear()

    def _credit_changed(self, pattern: str) -> None:
        for address, watchers in self._credit_watchers.items():
            if address == pattern or matches(pattern, address):
                for origin in list(watchers):
                    changed = getattr(origin, "credit_changed", None)
                    if changed is not None:
                        changed(address)

    def _restore(self) -> None:
        """Bring back queues and durable subscriptions as the store kept them."""
        self.bases.update((address, int.from_bytes(value, "big")) for address, value in self._store.items("base"))
        for address, _ in self._store.items("queue"):
            log = self._store.log(f"queue {address}")
            self._queues[address] = self._log_subscription(address, QUEUE_CURSOR, log, 0)
        for _, value in self._store.items("subscription"):
            self._open(msgspec.msgpack.decode(value, type=Declaration))
