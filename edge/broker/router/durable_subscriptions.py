"""The durable subscriptions of a space: by name for who joins them, by filter for what is published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from edge.broker.delivery import LogSubscription
from edge.broker.delivery.durable import Declaration, DurableSubscription
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import AddressError, Consumer, Refusal, SubscribeOptions
from edge.broker.model.topics import FilterTree, matches
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.router.configured import PLAIN, ConfiguredAddresses
from edge.broker.router.logs import QUEUE_CURSOR, Logs
from edge.broker.store.contract import Store

logger = logging.getLogger(__name__)

FORWARDER_PREFIX = "forwarder/"
"""Durable subscriptions of this name send on what they were given: a time to live runs out where it ends."""


class DurableSubscriptions:
    """What is declared stays over restarts, with a cursor in every log of topics its filter reaches."""

    def __init__(
        self,
        store: Store,
        addresses: ConfiguredAddresses,
        logs: Logs,
        names: NameQuotas,
        matches_changed: Callable[[], None],
    ) -> None:
        """`matches_changed` is called when an address may have other subscriptions than before."""
        self.by_name: dict[str, DurableSubscription] = {}
        self.bases: dict[str, int] = {}
        """First sequence the forwarders owe of an address that had messages before there was a forwarder for it."""
        self._store = store
        self._addresses = addresses
        self._logs = logs
        self._names = names
        self._matches_changed = matches_changed
        self._tree: FilterTree[DurableSubscription] = FilterTree()
        self._restore()

    def match(self, address: str) -> list[DurableSubscription]:
        """Those that want what is published to an address."""
        return self._tree.match(address)

    def parts(self) -> list[LogSubscription]:
        """Every place in a log that is served."""
        return [part for subscription in self.by_name.values() for part in subscription.parts]

    def join(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> DurableSubscription:
        """Join the one of the options' name, which is made when it is new.

        Raises AddressError when another consumer holds it and it is not shared.
        """
        name = options.durable_name or ""
        not_from = consumer.name if options.no_local else None
        declaration = Declaration(
            name=name,
            pattern=pattern,
            all_qos=options.all_qos,
            not_from=not_from,
            selector=options.selector,
            user=consumer.user,
        )
        found = self.by_name.get(name)
        if found is not None and declaration.replaces(found.declaration):
            if options.shared and found.consumers:
                raise AddressError(Refusal.ADDRESS_INVALID, f"others share {name!r} with another topic or selector")
            _steal(found, consumer)
            self._forget(found)
        subscription = self.declare(declaration)
        if not options.shared:
            _steal(subscription, consumer)
        subscription.serve(exclusive=not options.shared)
        subscription.join(consumer)
        return subscription

    def join_remainder(self, consumer: Consumer, name: str, *, shared: bool) -> DurableSubscription | None:
        """As `Router.join_remainder`."""
        found = self.by_name.get(name)
        if found is not None:
            found.serve(exclusive=not shared)
            found.join(consumer)
        return found

    def declare(self, declaration: Declaration) -> DurableSubscription:
        """Make it, or find it; messages are kept for it from now on. Raises AddressError when it has another filter, or
        when there are too many.
        """
        found = self.by_name.get(declaration.name)
        kept: list[int] = []
        consumers: list[Consumer] = []
        if found is not None:
            if found.declaration.is_like(declaration):
                if found.made is not None and found.made.error is not None:
                    self._write(found)  # with a ticket of its own: it is not on disk yet
                return found
            if found.declaration.pattern != declaration.pattern:
                raise AddressError(
                    Refusal.ADDRESS_INVALID,
                    f"subscription {declaration.name!r} exists with filter {found.declaration.pattern!r}",
                )
            consumers, kept = found.consumers, [part.log for part in found.parts]
            self._drop(found)
        elif not self._has_room(declaration):
            raise AddressError(Refusal.NAMES, self._names.why(NameKind.SUBSCRIPTION, declaration.user))
        elif declaration.all_qos:
            self._note_bases(declaration.pattern)
        subscription = self._open(declaration, kept)
        subscription.serve(exclusive=found is not None and found.exclusive)
        self._write(subscription)
        for consumer in consumers:
            subscription.join(consumer)
        return subscription

    def forget(self, name: str) -> None:
        """Delete one with its backlog; nothing happens when there is none."""
        found = self.by_name.get(name)
        if found is not None:
            self._forget(found)

    def follow_configuration(self) -> None:
        """Rules or policies have changed: what is stored stays where it is, and is delivered from there."""
        for subscription in self.by_name.values():
            for part in subscription.parts:
                part.policy = self._policy(subscription.declaration, part.log)
            self._open_parts(subscription)
        self._report_former_topics()

    # --- inside -----------------------------------------------------------------------------------------------

    def _open(self, declaration: Declaration, kept: Sequence[int] = ()) -> DurableSubscription:
        """Make it with its cursors; `kept` as `_open_parts` takes it."""
        subscription = DurableSubscription(declaration)
        self._open_parts(subscription, kept)
        self.by_name[declaration.name] = subscription
        if _is_counted(declaration):
            self._names.made(NameKind.SUBSCRIPTION, declaration.user, declaration.size)
        self._tree.add(declaration.pattern, subscription)
        self._matches_changed()
        return subscription

    def _write(self, subscription: DurableSubscription) -> None:
        declaration = subscription.declaration
        subscription.made = self._store.put("subscription", declaration.name, msgspec.msgpack.encode(declaration))

    def _has_room(self, declaration: Declaration) -> bool:
        if not _is_counted(declaration):
            return True
        return self._names.has_room(NameKind.SUBSCRIPTION, declaration.user, declaration.size)

    def _open_parts(self, subscription: DurableSubscription, kept: Sequence[int] = ()) -> None:
        """Open a cursor in every topic log the filter reaches and that has none of it yet, and in the logs of `kept`:
        what came under rules that are no more is delivered from where it is."""
        declaration = subscription.declaration
        known = {part.log for part in subscription.parts}
        consumers = subscription.consumers
        reached = map(self._logs.of_topics, self._addresses.table.topic_rules(declaration.pattern))
        for log in dict.fromkeys((*kept, *reached)):
            if log in known:
                continue
            part = self._logs.open_part(declaration.pattern, declaration.name, log)
            part.policy = self._policy(declaration, log)
            part.accepts = declaration.accepts
            part.expires = not declaration.name.startswith(FORWARDER_PREFIX)
            for consumer in consumers:
                part.join(consumer)
            subscription.add(part)
            if consumers:
                part.pump()

    def _report_former_topics(self) -> None:
        """What topics left to subscriptions whose addresses are none now stays theirs."""
        left = {
            name: sum(part.backlog + part.outstanding for part in subscription.parts)
            for name, subscription in self.by_name.items()
            if self._addresses.type_of(subscription.declaration.pattern) is not AddressType.TOPIC
        }
        left = {name: count for name, count in left.items() if count}
        if left:
            logger.warning(
                "messages left by topics that are of another type now: up to %d for %d durable subscriptions, %r is "
                "one; they stay for MQTT sessions and forwarders that hold these, or until these are topics again",
                sum(left.values()),
                len(left),
                next(iter(left)),
            )

    def _policy(self, declaration: Declaration, log: int) -> AddressPolicy:
        """The policy of the subscription itself, where it is configured, or of the addresses in a log."""
        own = self._addresses.policy_of_subscription(declaration.name)
        rule = self._logs.rule_of(log)
        return own or (self._addresses.policy_of_rule(rule) if rule is not None else PLAIN)

    def _note_bases(self, pattern: str) -> None:
        """A new forwarder owes nothing of what came before it: keep where it begins, for addresses no other one has."""
        others = [found.declaration for found in self.by_name.values() if found.declaration.all_qos]
        for address, following in self._store.sequences():
            if following and matches(pattern, address) and not any(matches(d.pattern, address) for d in others):
                self.bases[address] = following
                self._store.put("base", address, following.to_bytes(8, "big"))

    def _forget(self, subscription: DurableSubscription) -> None:
        self._drop(subscription)
        for part in subscription.parts:
            part.close()
        self._store.delete("subscription", subscription.declaration.name)

    def _drop(self, subscription: DurableSubscription) -> None:
        for part in subscription.parts:
            part.retire()
        declaration = subscription.declaration
        del self.by_name[declaration.name]
        if _is_counted(declaration):
            self._names.gone(NameKind.SUBSCRIPTION, declaration.user, declaration.size)
        self._tree.remove(declaration.pattern, subscription)
        self._matches_changed()

    def _restore(self) -> None:
        """Bring back what the store kept."""
        self.bases.update((address, int.from_bytes(value, "big")) for address, value in self._store.items("base"))
        logs: dict[str, list[int]] = {}
        for record in self._store.cursors(but=QUEUE_CURSOR):
            logs.setdefault(record.name, []).append(record.log)
        for _, value in self._store.items("subscription"):
            declaration = msgspec.msgpack.decode(value, type=Declaration)
            self._open(declaration, logs.get(declaration.name, ()))


def _is_counted(declaration: Declaration) -> bool:
    """A client made it; a forwarder's is the configuration's."""
    return not declaration.name.startswith(FORWARDER_PREFIX)


def _steal(subscription: DurableSubscription, consumer: Consumer) -> None:
    """Nobody else is to hold it. Raises AddressError when another device does."""
    for other in subscription.consumers:
        if other is consumer:
            continue
        # the same device again: its old connection is dead, and does not know it yet
        if other.name != consumer.name or not other.stolen():
            name = subscription.declaration.name
            raise AddressError(Refusal.NOT_AUTHORIZED, f"subscription {name!r} is in use by {other.name!r}")
