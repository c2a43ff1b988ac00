"""Durable subscriptions of a space, by name and by filter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bridge.message import Run
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.durable import FORWARDER_PREFIX, Declaration, DurableSubscription, FormerFilter
from edge.broker.delivery.expiry import SWEEP_AGAIN_NS
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.limits import (
    SUBSCRIPTION_LINGER_S,
    SUBSCRIPTIONS_CHECKED_MAX,
    SUBSCRIPTIONS_CLOSED_MAX,
    SUBSCRIPTIONS_OPEN_MAX,
)
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import AddressError, Consumer, Refusal, SubscribeOptions
from edge.broker.model.topics import FilterTree, matches
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.router.absent_subscriptions import CHECK, AbsentCursor, AbsentSubscriptions, UnusedSince
from edge.broker.router.configured import PLAIN, ConfiguredAddresses
from edge.broker.router.logs import Logs
from edge.broker.router.running_time import RunningTime
from edge.broker.router.unused_subscriptions import UnusedSubscriptions
from edge.broker.store.contract import Store
from edge.broker.store.limits import QUEUE_CURSOR
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)

KIND = "subscription"
"""Kind of the small state with every declaration, by name."""


class SubscriptionFigures(NamedTuple):
    """One durable subscription, for status pages."""

    name: str
    pattern: str
    backlog: int
    """Messages not delivered yet; an upper bound with a condition on messages."""
    outstanding: int
    consumers: int
    delivered: int
    """Messages given to its consumers since it was opened."""


class DurableSubscriptions(Mapping[str, DurableSubscription]):
    """Declared subscriptions, which survive restarts, with a cursor in every log of topics that their filters reach.

    A subscription without a client is rows of the store (`absent_subscriptions`); access by name *opens* it.
    """

    def __init__(
        self,
        store: Store,
        feeds: LogFeeds,
        addresses: ConfiguredAddresses,
        logs: Logs,
        names: NameQuotas,
        matches_changed: Callable[[], None],
        unused_s: int,
    ) -> None:
        """`matches_changed` is called when an address may have other subscriptions than before. `unused_s`: seconds
        that a subscription of an AMQP client is kept without a client."""
        self.opened: dict[str, DurableSubscription] = {}
        """Open subscriptions by name (other modules only read it)."""
        self.bases: dict[str, int] = {}
        """First sequence for forwarders, by address, of addresses that had messages before any forwarder."""
        self._store = store
        self._feeds = feeds
        self._addresses = addresses
        self._logs = logs
        self._names = names
        self._matches_changed = matches_changed
        self._tree: FilterTree[DurableSubscription] = FilterTree()
        """Open subscriptions by filter."""
        self._absent = AbsentSubscriptions(store.cursors, feeds, self.declared, self._policy, lambda: addresses.expires)
        self._running = RunningTime(store.state)
        self._unused = UnusedSubscriptions(self._running, addresses, unused_s, write=self._put, end=self._forget)
        self._idle: dict[str, float] = {}
        """Open subscriptions without a client, and since when (monotonic seconds)."""
        self._looking: Iterator[str] = iter(())
        store.cursors.set_filters(self._wants_of)
        self._restore()

    def __getitem__(self, name: str) -> DurableSubscription:
        found = self.opened.get(name)
        return self._reopen(name) if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self.opened or (isinstance(name, str) and self._store.state.get(KIND, name) is not None)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names one by one; one that is made or removed concurrently may be missed."""
        return (name for name, _ in self._store.state.items(KIND))

    def __len__(self) -> int:
        return len(self.opened) + len(self._absent)

    def lowest_qos(self, address: str) -> int | None:
        """Return the lowest quality of service of messages to an address that are kept; None: none are."""
        found = self._tree.match(address)
        if any(each.declaration.all_qos for each in found):
            return 0
        absent = self._absent.lowest_qos(address)
        return 1 if found and absent is None else absent

    def deciding_levels(self, address: str) -> int:
        """Return how many first levels of an address decide which subscriptions match
        (`FilterTree.deciding_levels`)."""
        return max(self._tree.deciding_levels(address), self._absent.deciding_levels(address))

    def held(self, pattern: str) -> list[DurableSubscription]:
        """Return open subscriptions with exactly this filter."""
        return [found for found in self._tree.match(pattern) if found.declaration.pattern == pattern]

    def parts(self) -> list[LogSubscription]:
        """Return all parts of open subscriptions."""
        return [part for subscription in self.opened.values() for part in subscription.parts]

    def figures(self) -> Iterator[SubscriptionFigures]:
        """Yield the figures of each subscription, without opening it."""
        for found in list(self.opened.values()):
            yield figures_of(found)
        for declaration in self._absent_declarations():
            left = self.absent_backlog(declaration)
            yield SubscriptionFigures(declaration.name, declaration.pattern, left, 0, 0, 0)

    def absent_backlogs(self) -> Iterator[tuple[str, str, int]]:
        """Yield name, filter and unsettled messages of absent subscriptions that have some, one place at a time."""
        return self._absent.backlogs()

    def _absent_declarations(self) -> Iterator[Declaration]:
        """Yield the declarations of subscriptions that are not open."""
        for name, value in self._store.state.items(KIND):
            if name not in self.opened:
                yield msgspec.msgpack.decode(value, type=Declaration)

    def declared(self, name: str) -> Declaration:
        """Read the declaration of a subscription that is not open. Raises KeyError, StoreError."""
        value = self._store.state.get(KIND, name)
        if value is None or name in self.opened:
            raise KeyError(name)
        return msgspec.msgpack.decode(value, type=Declaration)

    def left_by_forwarders(self) -> list[SubscriptionFigures]:
        """Return subscriptions of forwarders that are no longer configured. They keep new messages, as the
        forwarders may come back."""
        opened = [each for each in self.opened.values() if not (_is_clients(each.declaration) or each.consumers)]
        return [figures_of(each) for each in opened]

    def join(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> DurableSubscription:
        """Join the subscription named in the options, which is made if it is new.

        Raises AddressError when another consumer holds it and it is not shared.
        """
        name = options.durable_name or ""
        not_from = options.client or consumer.name if options.no_local else None
        declaration = Declaration(
            name=name,
            pattern=pattern,
            all_qos=options.all_qos,
            not_from=not_from,
            selector=options.selector,
            user=consumer.user,
            timeout_s=options.timeout_s,
        )
        found = self.get(name)
        if found is not None and declaration.replaces(found.declaration):
            if options.shared and found.consumers:
                raise AddressError(
                    Refusal.ADDRESS_INVALID, f"other consumers share {name!r} with another topic or selector"
                )
            _steal(found, consumer)
            self._forget(found)
        subscription = self.declare(declaration)
        if not options.shared:
            _steal(subscription, consumer)
        self._unused.keep(subscription)
        subscription.serve(exclusive=not options.shared)
        subscription.join(consumer)
        return subscription

    def join_remainder(
        self, consumer: Consumer, name: str, *, pattern: str | None = None, shared: bool = False
    ) -> DurableSubscription | None:
        """Let `consumer` receive the messages that the durable subscription `name` kept while its address was a topic.
        Return None if it does not exist. `pattern`: its filter from now on; `shared`: others may join it too."""
        found = self.get(name)
        if found is not None:
            if pattern is not None:
                found = self.declare(msgspec.structs.replace(found.declaration, pattern=pattern))
            self._unused.keep(found)
            found.serve(exclusive=not shared)
            found.join(consumer)
        return found

    def declare(self, declaration: Declaration) -> DurableSubscription:
        """Make or find a subscription. A forwarder's continues with another filter, and with the messages of the
        previous one. Raises AddressError when a client's has another filter, or when there are too many."""
        found = self.get(declaration.name)
        if found is None:
            return self._make(declaration)
        if not found.declaration.is_like(declaration):
            self._change(found, declaration)
            return found
        if found.declaration.timeout_s != declaration.timeout_s:
            found.declare(msgspec.structs.replace(found.declaration, timeout_s=declaration.timeout_s))
            self._put(found)
        if found.made is not None and found.made.error is not None:
            self._write(found)  # its last commit failed: write it again
        return found

    def _make(self, declaration: Declaration) -> DurableSubscription:
        if not self._has_room(declaration):
            raise AddressError(Refusal.NAMES, self._names.refusal_text(NameKind.SUBSCRIPTION, declaration.user))
        if not _is_clients(declaration):
            self._note_bases(declaration)
        subscription = self._open(declaration)
        self._write(subscription)
        return subscription

    def _change(self, subscription: DurableSubscription, declaration: Declaration) -> None:
        """Continue with other options. Consumers keep their messages; waiting messages are matched again."""
        before = subscription.declaration
        former = before.former
        if before.pattern != declaration.pattern:
            if _is_clients(declaration):
                raise AddressError(
                    Refusal.ADDRESS_INVALID,
                    f"subscription {declaration.name!r} exists with filter {before.pattern!r}",
                )
            self._note_bases(declaration)
            former = self._pending_filters(subscription)
        self._unregister(subscription)
        subscription.declare(msgspec.structs.replace(declaration, former=former))
        self._register(subscription)
        for part in subscription.parts:
            self._feeds.detach(part)  # feeds know it by its filter
            part.match(declaration.pattern)
            self._feeds.attach(part)
            self._configure(part, subscription.declaration)
            part.restart()
            part.pump()
        self._open_parts(subscription)
        self._write(subscription)

    def forget(self, name: str) -> Ticket | None:
        """Delete a subscription with its backlog, by the commit of this ticket; None for an unknown name."""
        found = self.opened.get(name)
        if found is not None:
            return self._forget(found)
        if name not in self:
            return None
        declaration, cursors = self.declared(name), self._store.cursors.named(name)
        self._absent.take(declaration, [each.cursor for each in cursors])
        for each in cursors:
            self._logs.forget_part(name, each.log, each.cursor)
        self._count_removed(declaration)
        return self._store.state.delete(KIND, name)

    def follow_configuration(self) -> None:
        """Apply changed rules or policies: stored messages stay in their logs, and are delivered from there."""
        for name in [each.name for each in self._absent_declarations() if self._is_changed(each)]:
            self._reopen(name)
        self._absent.recheck_expiry()
        for subscription in self.opened.values():
            for part in subscription.parts:
                part.follow_policy(self._policy(subscription.declaration.name, part.log))
            self._open_parts(subscription)
        self._report_former_topics()

    def _is_changed(self, declaration: Declaration) -> bool:
        """Return True when an absent subscription reaches other logs, or starts or stops to end by itself."""
        reached, name = set(self._reached_logs(declaration.pattern)), declaration.name
        if not reached <= {each.log for each in self._store.cursors.named(name)}:
            return True
        return self._absent.is_scheduled(name) == (self._unused.kept_s(declaration) is None)

    # --- opening and closing ---------------------------------------------------------------------------------

    def tick(self, now_s: float, now_ns: int) -> None:
        """Open subscriptions in which messages may have expired, or that may have been unused for too long; close those
        without a client. Called every `limits.TICK_S`."""
        self._running.tick(now_s, counts=self._unused.counts)
        for due in (*self._absent.tick(now_s, now_ns), *self._absent.names_to_check(self._running.now)):
            if due not in self.opened:
                self._reopen(due)
        began, left = False, SUBSCRIPTIONS_CLOSED_MAX
        linger_s = SUBSCRIPTION_LINGER_S if len(self.opened) <= SUBSCRIPTIONS_OPEN_MAX else 0.0
        for _ in range(SUBSCRIPTIONS_CHECKED_MAX):
            name = next(self._looking, None)
            if name is None:
                if began or not self.opened:
                    return
                self._looking, began = iter(list(self.opened)), True
                continue
            found = self.opened.get(name)
            if found is not None and not found.consumers:
                self._unused.check(found)
                found = self.opened.get(name)  # it may have ended
            if found is None or found.consumers or not (_is_clients(found.declaration) and found.can_close):
                self._idle.pop(name, None)
            elif now_s - self._idle.setdefault(name, now_s) >= linger_s:
                self._close(found, now_ns)
                left -= 1
                if not left:
                    return

    def consumer_left(self, subscription: DurableSubscription, now_ns: int) -> None:
        """Note that a consumer has left. With very many open the subscription is closed now, as bursts leave within a
        tick."""
        name = subscription.declaration.name
        if (
            len(self.opened) <= SUBSCRIPTIONS_OPEN_MAX
            or subscription.consumers
            or self.opened.get(name) is not subscription
        ):
            return
        self._unused.check(subscription)
        if name in self.opened and _is_clients(subscription.declaration) and subscription.can_close:
            self._close(subscription, now_ns)

    @property
    def unused_s(self) -> int:
        """Longest time that a subscription is kept without a client."""
        return self._unused.unused_s

    def _close(self, subscription: DurableSubscription, now_ns: int) -> None:
        """Drop the object, unless the rows of the store are behind."""
        declaration, places = subscription.declaration, list[AbsentCursor]()
        for part in subscription.parts:
            if not self._store.cursors.make_idle(part.cursor):
                return
            due_ns = part.expiry.due_ns
            soon = None if due_ns is None else min(due_ns, now_ns + SWEEP_AGAIN_NS)
            places.append(AbsentCursor(part.log, part.cursor, part.behind or bool(part.window.returned), soon))
        if not places:
            return
        self._idle.pop(declaration.name, None)
        del self.opened[declaration.name]
        self._tree.remove(declaration.pattern, subscription)
        # Before the parts go: a log without a follower for a moment is followed from its end on, and messages that were
        # committed but not yet delivered would be skipped.
        self._absent.put(declaration, places, self._unused_since(declaration, subscription.left_at))
        for part in subscription.parts:
            part.release()
        subscription.parts.clear()

    def _unused_since(self, declaration: Declaration, left_at: int | None) -> UnusedSince:
        return UnusedSince(left_at, self._unused.check_time(declaration, left_at))

    def _reopen(self, name: str) -> DurableSubscription:
        """Make an object from the rows. Raises KeyError for an unknown name, StoreError."""
        declaration, left_at = self.declared(name), self._absent.left_at(name)
        cursors = self._store.cursors.named(name)
        self._absent.take(declaration, [each.cursor for each in cursors])
        subscription = self.opened[name] = DurableSubscription(declaration, left_at)
        self._tree.add(declaration.pattern, subscription)
        for each in cursors:
            part = self._logs.reopen_part(declaration.pattern, each.cursor)
            self._configure(part, declaration)
            subscription.add(part)
        return subscription

    def absent_backlog(self, declaration: Declaration) -> int:
        """Return the number of messages after the cursors of an absent subscription; 0 where it wants none of them."""
        cursors = [each.cursor for each in self._store.cursors.named(declaration.name)]
        behind = (cursor for cursor in cursors if self._absent.is_behind(declaration.pattern, cursor))
        return sum(self._store.cursors.backlog(cursor) for cursor in behind)

    # --- inside -----------------------------------------------------------------------------------------------

    def _open(
        self, declaration: Declaration, kept: Sequence[int] = (), left_at: int | None = None
    ) -> DurableSubscription:
        """Make it with its cursors; `kept` as `_open_parts` takes it, `left_at` as `DurableSubscription`."""
        subscription = DurableSubscription(declaration, left_at)
        self._open_parts(subscription, kept)
        self._register(subscription)
        return subscription

    def _register(self, subscription: DurableSubscription) -> None:
        declaration = subscription.declaration
        self.opened[declaration.name] = subscription
        if _is_clients(declaration):
            self._names.add(NameKind.SUBSCRIPTION, declaration.user, declaration.size)
        self._tree.add(declaration.pattern, subscription)
        self._matches_changed()

    def _write(self, subscription: DurableSubscription) -> None:
        """Write the declaration; answers to consumers that attach wait for this commit."""
        subscription.record_write(self._put(subscription))

    def _put(self, subscription: DurableSubscription) -> Ticket:
        declaration = subscription.declaration
        return self._store.state.put(KIND, declaration.name, msgspec.msgpack.encode(declaration))

    def _wants_of(self, name: str) -> Callable[[Run], bool] | None:
        """Return the filter of an idle cursor of this name; the cursor of an open subscription may be idle as well."""
        found = self.opened.get(name)
        if found is not None:
            return found.declaration.may_deliver
        value = None if name == QUEUE_CURSOR else self._store.state.get(KIND, name)
        return None if value is None else msgspec.msgpack.decode(value, type=Declaration).may_deliver

    def _has_room(self, declaration: Declaration) -> bool:
        if not _is_clients(declaration):
            return True
        return self._names.has_room(NameKind.SUBSCRIPTION, declaration.user, declaration.size)

    def _reached_logs(self, pattern: str) -> list[int]:
        """Return the topic logs that names of a filter could be in."""
        return [self._logs.of_topics(rule) for rule in self._addresses.table.topic_rules(pattern)]

    def _open_parts(self, subscription: DurableSubscription, kept: Sequence[int] = ()) -> None:
        """Open cursors in all topic logs that the filter reaches, and in the logs of `kept`, stored under former
        rules."""
        declaration = subscription.declaration
        known = {part.log for part in subscription.parts}
        consumers = subscription.consumers
        for log in dict.fromkeys((*kept, *self._reached_logs(declaration.pattern))):
            if log in known:
                continue
            part = self._logs.open_part(declaration.pattern, declaration.name, log)
            self._configure(part, declaration)
            for consumer in consumers:
                part.join(consumer)
            subscription.add(part)
            if consumers:
                part.pump()

    def _pending_filters(self, subscription: DurableSubscription) -> tuple[FormerFilter, ...]:
        """Return all filters of a forwarder, the present one included, for which messages are still waiting."""
        ends = {part.log: self._store.logs.bounds(part.log)[1] for part in subscription.parts}
        declaration = subscription.declaration
        formers = (FormerFilter(declaration.pattern, ends), *declaration.former)
        waiting = {part.log: self._store.cursors.record(part.cursor).position for part in subscription.parts}
        left = (
            FormerFilter(each.pattern, {log: end for log, end in each.ends.items() if waiting.get(log, end) < end})
            for each in formers
        )
        return tuple(each for each in left if each.ends)

    def _configure(self, part: LogSubscription, declaration: Declaration) -> None:
        begins = self._store.cursors.record(part.cursor).position if declaration.former else 0
        ends = [(each.pattern, each.ends.get(part.log, 0)) for each in declaration.former]
        part.follow_policy(self._policy(declaration.name, part.log))
        part.select(
            declaration.accepts,
            former=[(pattern, end) for pattern, end in ends if begins < end],
            expires=not declaration.name.startswith(FORWARDER_PREFIX),
        )

    def _report_former_topics(self) -> None:
        """Log messages of subscriptions to addresses that are no longer topics; they stay."""
        type_of = self._addresses.type_of
        found = [each for each in self.figures() if type_of(each.pattern) is not AddressType.TOPIC]
        left = {each.name: each.backlog + each.outstanding for each in found if each.backlog + each.outstanding}
        if left:
            logger.warning(
                "the type of topics was changed while subscriptions had messages: up to %d messages in %d durable "
                "subscriptions, for example %r; MQTT sessions and forwarders that hold these still get them",
                sum(left.values()),
                len(left),
                next(iter(left)),
            )

    def _policy(self, name: str, log: int) -> AddressPolicy:
        """Return the policy of the subscription itself, if configured, or of the addresses in a log."""
        own = self._addresses.policy_of_subscription(name)
        rule = self._logs.rule_of(log)
        return own or (self._addresses.policy_of_rule(rule) if rule is not None else PLAIN)

    def _note_bases(self, new: Declaration) -> None:
        """Store where a new forwarder begins, for addresses without another forwarder: it does not send earlier
        messages."""
        others = [each.declaration for each in self.opened.values() if not _is_clients(each.declaration)]
        for address, following in self._store.lineage.sequences():
            if following and matches(new.pattern, address) and not any(matches(d.pattern, address) for d in others):
                self.bases[address] = following
                self._store.state.put("base", address, following.to_bytes(8, "big"))

    def _forget(self, subscription: DurableSubscription) -> Ticket:
        self._unregister(subscription)
        for part in subscription.parts:
            part.close()
        return self._store.state.delete(KIND, subscription.declaration.name)

    def _unregister(self, subscription: DurableSubscription) -> None:
        declaration = subscription.declaration
        del self.opened[declaration.name]
        self._idle.pop(declaration.name, None)
        self._tree.remove(declaration.pattern, subscription)
        self._count_removed(declaration)

    def _count_removed(self, declaration: Declaration) -> None:
        if _is_clients(declaration):
            self._names.remove(NameKind.SUBSCRIPTION, declaration.user, declaration.size)
        self._matches_changed()

    # --- restore ---------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Restore subscriptions from the store, without clients."""
        self.bases.update((address, int.from_bytes(value, "big")) for address, value in self._store.state.items("base"))
        for _, value in self._store.state.items(KIND):
            self._restore_one(msgspec.msgpack.decode(value, type=Declaration))
        self._matches_changed()

    def _restore_one(self, declaration: Declaration) -> None:
        """Leave a subscription to its rows, or open it if its filter does not reach all logs of its cursors any
        more."""
        left_at, table = self._unused.restore(declaration), self._store.cursors
        cursors, reached = table.named(declaration.name), set(self._reached_logs(declaration.pattern))
        absent = bool(cursors) and _is_clients(declaration) and reached <= {each.log for each in cursors}
        if not (absent and all(not each.acknowledged and table.make_idle(each.cursor) for each in cursors)):
            self._open(declaration, [each.log for each in cursors], left_at)
            return
        self._names.add(NameKind.SUBSCRIPTION, declaration.user, declaration.size)
        places = list[AbsentCursor]()
        for each in cursors:
            behind = each.position < self._store.logs.bounds(each.log)[1]
            # it is unknown which of its messages expire
            places.append(AbsentCursor(each.log, each.cursor, behind, CHECK if behind else None))
        self._absent.put(declaration, places, self._unused_since(declaration, left_at))


def unsettled_messages(subscriptions: DurableSubscriptions, name: str) -> int:
    """Return the number of unsettled messages of a subscription, without opening it; 0 for an unknown name.

    Raises StoreError.
    """
    found = subscriptions.opened.get(name)
    if found is not None:
        return sum(part.backlog + part.outstanding for part in found.parts)
    try:
        return subscriptions.absent_backlog(subscriptions.declared(name))
    except KeyError:
        return 0


def figures_of(found: DurableSubscription) -> SubscriptionFigures:
    """Return the figures of an open subscription."""
    backlog, outstanding = sum(part.backlog for part in found.parts), sum(part.outstanding for part in found.parts)
    return SubscriptionFigures(
        found.declaration.name,
        found.declaration.pattern,
        backlog,
        outstanding,
        len(found.consumers),
        sum(part.deliveries.delivered for part in found.parts),
    )


def _is_clients(declaration: Declaration) -> bool:
    """Return True when a client made it: then it is counted, and there may be many. Configured forwarders make the
    others."""
    return not declaration.name.startswith(FORWARDER_PREFIX)


def _steal(subscription: DurableSubscription, consumer: Consumer) -> None:
    """Take the subscription from other connections of this device. Raises AddressError when another device holds it."""
    for other in subscription.consumers:
        if other is consumer:
            continue
        # the same device again: its old connection is dead, but not closed yet
        if other.name != consumer.name or not other.stolen():
            name = subscription.declaration.name
            raise AddressError(Refusal.NOT_AUTHORIZED, f"subscription {name!r} is in use by {other.name!r}")
