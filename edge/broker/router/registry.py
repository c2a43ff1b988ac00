"""The router's memory of who receives what: queues, subscriptions, and the routes made of them.

`Router` adds the runs that go over them. Subscribing, leaving and new rules change what is here and nothing else does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from edge.broker.delivery import (
    AnycastGroup,
    BrowsingSubscription,
    LogSubscription,
    SharedSubscription,
    TransientSubscription,
    WaitingPool,
)
from edge.broker.delivery.attempts import ATTEMPTS
from edge.broker.delivery.dead_letters import DeadLetters
from edge.broker.delivery.durable import Declaration, DurableSubscription, consumers_of
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.pattern import Joinable, PatternSubscription
from edge.broker.delivery.queue import queue_subscription
from edge.broker.limits import ROUTES_CACHED_MAX
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import AddressError, Consumer, Figures, Refusal, SubscribeOptions
from edge.broker.model.topics import FilterTree, is_filter, matches
from edge.broker.retention.quotas import Account, Quotas
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.routes import (
    AnycastRoute,
    MulticastRoute,
    QueueRoute,
    RefusingRoute,
    Route,
    Taker,
    TopicRoute,
)
from edge.broker.store.contract import Store

logger = logging.getLogger(__name__)

RESERVED = "$SYS/"
"""Names below it are the broker's own."""

QUEUE_CURSOR = "queue"
"""Name of the one cursor a queue has; its consumers share it."""

FORWARDER_PREFIX = "forwarder/"
"""Durable subscriptions of this name send on what they were given: a time to live runs out where it ends."""

PLAIN = AddressPolicy()


class Registry:
    """See `edge.broker.router.router.Router`."""

    def __init__(
        self,
        store: Store,
        table: AddressTable,
        flush_soon: Callable[[], None],
        deadletters: DeadLetters,
        pool: WaitingPool,
        policies: Mapping[str, AddressPolicy],
    ) -> None:
        """`policies` as `Router` takes them."""
        self.bases: dict[str, int] = {}
        """First sequence the forwarders owe of an address that had messages before there was a forwarder for it."""
        self.figures = Figures()
        self.table = table
        self._store = store
        self.quotas = Quotas(store)
        self.deadletters = deadletters
        self.pool = pool
        self.feeds = LogFeeds(store)
        self._flush_soon = flush_soon
        self._routes: dict[str, Route] = {}
        self._queues: dict[str, LogSubscription] = {}
        self._anycast: dict[str, AnycastGroup] = {}
        self._durable: dict[str, DurableSubscription] = {}
        self._durable_tree: FilterTree[DurableSubscription] = FilterTree()
        self._live_tree: FilterTree[TransientSubscription] = FilterTree()
        self._shares: dict[str, TransientSubscription] = {}
        self._temporary: dict[str, SharedSubscription] = {}
        self._rule_of_log: dict[int, str] = {}
        self._attempts: dict[str, bytes] = {}
        """How often messages failed before the start, of cursors that are not open yet."""
        self._pattern_consumers: FilterTree[Consumer] = FilterTree()
        self._credit = CreditWatchers()
        self.merge_live: Callable[[list[TransientSubscription]], Sequence[Taker]] = lambda live: live
        """One taker for live subscriptions that belong together; looked at when a route is made."""
        self._set_policies(policies)

    # --- subscriptions ----------------------------------------------------------------------------------------

    def address_type(self, address: str) -> AddressType:
        """The type of an address, or of every name a filter covers."""
        return self.table.rule_of_filter(address).type

    def subscribe(self, consumer: Consumer, address: str, options: SubscribeOptions) -> Joinable:
        """Let `consumer` receive what `address` (a name or a filter) delivers; it is pumped by the caller.

        Raises AddressError when the durable subscription is held by another consumer and is not shared.
        """
        kind = self.address_type(address)
        if kind is AddressType.SUBSCRIPTION:
            raise AddressError(Refusal.ADDRESS_INVALID, f"{address!r} is a subscription: AMQP's, as topic::name")
        self._check_consumers(address, options)
        subscription: Joinable
        if address in self._temporary:
            subscription = self._temporary[address]
            subscription.join(consumer)
        elif options.browse and kind.is_queue:
            subscription = BrowsingSubscription(self._store, self.feeds, self._queue(address))
            subscription.join(consumer)
        elif kind.is_queue or kind is AddressType.ANYCAST:
            subscription = self._compete(consumer, address, kind)
        elif options.durable_name is not None and kind is not AddressType.MULTICAST:
            subscription = self._join_durable(consumer, address, options)
        else:
            subscription = self._join_live(consumer, address, options)
        self._credit.changed(address)
        return subscription

    def unsubscribe(self, consumer: Consumer, subscription: Joinable, *, forget: bool, keep: bool = False) -> None:
        """The consumer is done; `forget` deletes a durable subscription nobody else holds. `keep`: what is outstanding
        to it is so until it has been settled."""
        subscription.leave(consumer, keep=keep)
        if isinstance(subscription, PatternSubscription):
            self._pattern_consumers.remove(subscription.pattern, consumer)
            self._credit.changed(subscription.pattern)
        elif isinstance(subscription, TransientSubscription):
            self._leave_live(subscription)
        elif isinstance(subscription, AnycastGroup):
            self._credit.changed(subscription.pattern)
        elif isinstance(subscription, DurableSubscription) and forget and not subscription.consumers:
            self._forget(subscription)

    def declare(self, declaration: Declaration) -> DurableSubscription:
        """Make the durable subscription, or find it; messages are kept for it from now on."""
        found = self._durable.get(declaration.name)
        kept: list[int] = []
        if found is not None:
            if found.declaration == declaration:
                return found
            consumers, kept = found.consumers, [part.log for part in found.parts]
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
        subscription = self._open(declaration, kept)
        self._store.put("subscription", declaration.name, msgspec.msgpack.encode(declaration))
        for consumer in consumers:
            subscription.join(consumer)
        self._flush_soon()
        return subscription

    def make_temporary_queue(self, address: str) -> None:
        """What is sent to `address` (a topic nobody subscribes to) waits in memory for consumers that compete."""
        queue = SharedSubscription(address, self.pool, lasting=True)
        queue.share_name = address
        self._temporary[address] = queue
        self._live_tree.add(address, queue)
        self._routes.clear()

    def end_temporary_queue(self, address: str) -> None:
        """Delete it with what is in it; its consumers get nothing more."""
        queue = self._temporary.pop(address)
        queue.lasting = False
        for consumer in list(queue.group.consumers):
            queue.leave(consumer)
        self._leave_live(queue)

    @property
    def temporary_queues(self) -> Mapping[str, SharedSubscription]:
        """Temporary queues by address (to be read only)."""
        return self._temporary

    def forget(self, name: str) -> None:
        """Delete a durable subscription with its backlog; nothing happens when there is none."""
        found = self._durable.get(name)
        if found is not None:
            self._forget(found)

    def policy(self, address: str) -> AddressPolicy:
        """What is promised of an address beyond its type."""
        return self._policies.get(self.table.rule(address).pattern, PLAIN)

    def reconfigure(self, table: AddressTable, policies: Mapping[str, AddressPolicy] | None = None) -> None:
        """Follow new rules from the next run on. What is stored stays where it is, and is delivered from there."""
        self.table = table
        self._set_policies(policies or {})
        for address, queue in self._queues.items():
            queue.policy = self.policy(address)
        for subscription in self._durable.values():
            for part in subscription.parts:
                part.policy = self._policy_of(subscription.declaration, part.log)
        for subscription in self._durable.values():
            self._open_parts(subscription)
        self._routes.clear()
        self._report_former_queues()
        self._flush_soon()

    def _set_policies(self, policies: Mapping[str, AddressPolicy]) -> None:
        self._policies = dict(policies)
        self.quotas.configure({name: policy for name, policy in policies.items() if "::" not in name})
        self.pool.expiring = any(policy.ttl_max_s is not None for policy in policies.values())

    @property
    def queues(self) -> dict[str, LogSubscription]:
        """Queues by address (to be read only)."""
        return self._queues

    def former_queues(self, pattern: str = "#") -> dict[str, LogSubscription]:
        """Queues below a filter whose addresses are of another type now, with what they had left then."""
        return {
            address: queue
            for address, queue in self._queues.items()
            if matches(pattern, address) and not self.table.rule(address).type.is_queue
        }

    def _report_former_queues(self) -> None:
        """What is left in them comes to nobody but forwarders before they are queues again."""
        left = {address: queue.backlog + queue.outstanding for address, queue in self.former_queues().items()}
        left = {address: count for address, count in left.items() if count}
        if left:
            logger.warning(
                "messages left in queues whose addresses are of another type now: %d in %d queues, %r is one; "
                "they stay in the store for forwarders that match, or until these are queues again",
                sum(left.values()),
                len(left),
                next(iter(left)),
            )

    @property
    def durable_subscriptions(self) -> dict[str, DurableSubscription]:
        """Durable subscriptions by name (to be read only)."""
        return self._durable

    def _log_subscriptions(self) -> list[LogSubscription]:
        """Every cursor that is served."""
        parts = (part for subscription in self._durable.values() for part in subscription.parts)
        return [*self._queues.values(), *parts]

    # --- inside: routes ---------------------------------------------------------------------------------------

    def _resolve(self, address: str) -> Route:
        rule = self.table.rule(address)
        route: Route
        if address.startswith(RESERVED):
            route = RefusingRoute(Refusal.NOT_AUTHORIZED)
        elif rule.type is AddressType.SUBSCRIPTION:
            route = RefusingRoute(Refusal.ADDRESS_INVALID)
        elif rule.type.is_queue:
            queue = self._queue(address)
            route = QueueRoute(queue, self._account(rule, queue.log))
        elif rule.type is AddressType.ANYCAST:
            route = AnycastRoute(self._anycast_group(address))
        elif rule.type is AddressType.MULTICAST:
            route = MulticastRoute(self.merge_live(self._live_tree.match(address)))
        else:
            route = self._topic_route(address, rule)
        if len(self._routes) >= ROUTES_CACHED_MAX:
            self._routes.clear()
        self._routes[address] = route
        return route

    def _topic_route(self, address: str, rule: AddressRule) -> TopicRoute:
        durable = self._durable_tree.match(address)
        live = self.merge_live(self._live_tree.match(address))
        if not durable:
            return TopicRoute(0, None, (), live, keeps_qos0=False)
        log = self._topic_log(rule)
        parts = [part for found in durable for part in found.parts if part.log == log]
        keeps_qos0 = any(found.declaration.all_qos for found in durable)
        return TopicRoute(log, self._account(rule, log), parts, live, keeps_qos0=keeps_qos0)

    def account(self, address: str) -> Account | None:
        """What a stored address may keep; None where nothing is kept of it."""
        rule = self.table.rule(address)
        return self.quotas.get(rule.pattern)

    def _account(self, rule: AddressRule, log: int) -> Account:
        return self.quotas.open(rule.pattern, self._policies.get(rule.pattern, PLAIN), log)

    def _topic_log(self, rule: AddressRule) -> int:
        log = self._store.log(f"topic {rule.pattern}")
        self._rule_of_log[log] = rule.pattern
        return log

    def _queue(self, address: str) -> LogSubscription:
        queue = self._queues.get(address)
        if queue is None:
            log = self._store.log(f"queue {address}")
            queue = self._log_subscription(address, QUEUE_CURSOR, log, 0, self.policy(address))
            self._queues[address] = queue
            self._store.put("queue", address, b"")
            for consumer in self._pattern_consumers.match(address):
                queue.join(consumer)
        return queue

    def _anycast_group(self, address: str) -> AnycastGroup:
        group = self._anycast.get(address)
        if group is None:
            group = self._anycast[address] = AnycastGroup(address, self.figures)
            group.changed = lambda: self._credit.changed(address)
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
        declaration = Declaration(
            name=name, pattern=pattern, all_qos=options.all_qos, not_from=not_from, selector=options.selector
        )
        found = self._durable.get(name)
        if found is not None and declaration.replaces(found.declaration):
            if options.shared and found.consumers:
                raise AddressError(Refusal.ADDRESS_INVALID, f"others share {name!r} with another topic or selector")
            self._steal(found, consumer)
            self._forget(found)
        subscription = self.declare(declaration)
        if not options.shared:
            self._steal(subscription, consumer)
        for part in subscription.parts:
            part.exclusive = not options.shared
        subscription.join(consumer)
        return subscription

    def _steal(self, subscription: DurableSubscription, consumer: Consumer) -> None:
        """Nobody else is to hold it. Raises AddressError when another device does."""
        for other in subscription.consumers:
            if other is consumer:
                continue
            # the same device again: its old connection is dead, and does not know it yet
            if other.name != consumer.name or not other.stolen():
                name = subscription.declaration.name
                raise AddressError(Refusal.NOT_AUTHORIZED, f"subscription {name!r} is in use by {other.name!r}")

    def _check_consumers(self, address: str, options: SubscribeOptions) -> None:
        """No more consumers than the address, or the subscription ``topic::name``, is configured to have."""
        name = options.durable_name
        highest = self._policies[name].consumers_max if name in self._policies else self.policy(address).consumers_max
        if highest is None:
            return
        if name is not None and name in self._policies:
            durable = [self._durable[name]] if name in self._durable else []
            present = consumers_of(durable)
        elif (group := self._queues.get(address) or self._anycast.get(address)) is not None:
            present = len(group.group.consumers)
        else:
            durable = [found for found in self._durable_tree.match(address) if found.declaration.pattern == address]
            live = [found for found in self._live_tree.match(address) if found.pattern == address]
            present = consumers_of(durable) + sum(len(found.group.consumers) for found in live)
        if present >= highest:
            raise AddressError(Refusal.FULL, f"{address!r} has {present} consumers, as many as it may have")

    def _join_live(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> TransientSubscription:
        name = options.share_name
        subscription = self._shares.get(name) if name is not None else None
        if subscription is None:
            not_from = consumer.name if options.no_local else None
            if name is None or options.qos0_only:
                subscription = TransientSubscription(pattern, self.pool, qos0_only=options.qos0_only, not_from=not_from)
            else:
                subscription = SharedSubscription(pattern, self.pool, not_from=not_from)
            subscription.share_name = name
            subscription.selector = options.selector
            if name is not None:
                self._shares[name] = subscription
            self._live_tree.add(pattern, subscription)
            self._routes.clear()
        elif subscription.selector != options.selector:
            raise AddressError(Refusal.ADDRESS_INVALID, f"others share {name!r} with another selector")
        subscription.join(consumer)
        return subscription

    def _leave_live(self, subscription: TransientSubscription) -> None:
        if subscription.group or subscription.pattern in self._temporary:
            return
        if subscription.share_name is not None:
            self._shares.pop(subscription.share_name, None)
        self._live_tree.remove(subscription.pattern, subscription)
        self._routes.clear()
        self._credit.changed(subscription.pattern)

    def _open(self, declaration: Declaration, kept: Sequence[int] = ()) -> DurableSubscription:
        """Make the subscription with its cursors and enter it into the routes; `kept` as `_open_parts` takes it."""
        subscription = DurableSubscription(declaration)
        self._open_parts(subscription, kept)
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

    def _open_parts(self, subscription: DurableSubscription, kept: Sequence[int] = ()) -> None:
        """Open a cursor in every topic log the filter reaches and that has none of it yet, and in the logs of `kept`:
        what came under rules that are no more is delivered from where it is."""
        declaration = subscription.declaration
        known = {part.log for part in subscription.parts}
        consumers = subscription.consumers
        reached = map(self._topic_log, self.table.topic_rules(declaration.pattern))
        for log in dict.fromkeys((*kept, *reached)):
            if log in known:
                continue
            policy = self._policy_of(declaration, log)
            end = self._store.bounds(log)[1]
            part = self._log_subscription(declaration.pattern, declaration.name, log, end, policy)
            part.accepts = declaration.accepts
            part.expires = not declaration.name.startswith(FORWARDER_PREFIX)
            for consumer in consumers:
                part.join(consumer)
            subscription.parts.append(part)
            if consumers:
                part.pump()

    def _policy_of(self, declaration: Declaration, log: int) -> AddressPolicy:
        """The policy of the subscription itself, where it is configured, or of the addresses in a log."""
        own = self._policies.get(declaration.name)
        return own or self._policies.get(self._rule_of_log.get(log, ""), PLAIN)

    def _log_subscription(
        self,
        pattern: str,
        name: str,
        log: int,
        position: int,
        policy: AddressPolicy,
    ) -> LogSubscription:
        """The subscription with cursor `name` in a log, where the store left it or new at `position`."""
        cursor = self._store.open_cursor(name, log, position)
        make = queue_subscription if name == QUEUE_CURSOR else LogSubscription
        subscription = make(
            self._store, self._store.cursor(cursor), pattern, deadletters=self.deadletters, feeds=self.feeds
        )
        subscription.policy = policy
        self._recall_attempts(subscription)
        if name != QUEUE_CURSOR:
            self._store.set_filter(cursor, subscription.owed)
        return subscription

    def _recall_attempts(self, subscription: LogSubscription) -> None:
        packed = self._attempts.pop(subscription.name_in_log, None)
        if packed is not None:
            try:
                subscription.recall_attempts(packed)
            except msgspec.MsgspecError as error:
                logger.warning("%s: how often messages failed cannot be read: %s", subscription.name, error)

    def _forget(self, subscription: DurableSubscription) -> None:
        self._drop(subscription)
        for part in subscription.parts:
            part.close()
        self._store.delete("subscription", subscription.declaration.name)
        self._flush_soon()

    def _drop(self, subscription: DurableSubscription) -> None:
        for part in subscription.parts:
            part.retire()
        del self._durable[subscription.declaration.name]
        self._durable_tree.remove(subscription.declaration.pattern, subscription)
        self._routes.clear()

    def _restore(self) -> None:
        """Bring back queues and durable subscriptions as the store kept them."""
        self._attempts = dict(self._store.items(ATTEMPTS))
        self.bases.update((address, int.from_bytes(value, "big")) for address, value in self._store.items("base"))
        for address, _ in self._store.items("queue"):
            log = self._store.log(f"queue {address}")
            policy = self.policy(address)
            self._queues[address] = self._log_subscription(address, QUEUE_CURSOR, log, 0, policy)
        logs: dict[str, list[int]] = {}
        for record in self._store.cursors():
            logs.setdefault(record.name, []).append(record.log)
        for _, value in self._store.items("subscription"):
            declaration = msgspec.msgpack.decode(value, type=Declaration)
            self._open(declaration, logs.get(declaration.name, ()))
        self._report_former_queues()
