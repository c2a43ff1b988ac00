"""Addresses of a running broker, one by one: queues, durable subscriptions, anycast groups, and rules for the rest."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bridge.message import Stored
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Consumer
from edge.broker.model.topics import matches
from edge.broker.router.durable_subscriptions import SubscriptionFigures, figures_of
from edge.broker.router.flows import AddressFlows
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError

QUEUE, SUBSCRIPTION, RULE, ANYCAST = "queue/", "subscription/", "rule/", "anycast/"
"""Prefixes of the identities of rows."""

PREPARED: Final = 50
"""Live subscriptions that are counted in one step."""

READ_S: Final = 1.0
"""Longest wait for the time of an oldest message; a slow card leaves it out."""


class AddressRow(NamedTuple):
    """Figures of one row at one time."""

    id: str
    address: str
    type: str
    subscription: str
    received: int | None
    delivered: int | None
    waiting: int
    consumers: int


class AddressSources:
    """Addresses of one broker."""

    def __init__(self, router: Router) -> None:
        self._router: Final = router

    def count(self) -> int:
        """Return the number of rows."""
        router = self._router
        rules = sum(1 for rule in router.addresses.table.rules if not _has_own_rows(rule.type))
        anycast = len(router.subscriptions.competing.anycast)
        return len(router.queues) + len(router.durable_subscriptions) + rules + anycast

    def walk(self) -> Iterator[AddressRow | None]:
        """Yield the figures of all rows, those in use first, and None now and then while it prepares one. Addresses may
        come and go in between."""
        router = self._router
        live: Counter[str] = Counter()
        for number, found in enumerate(list(router.subscriptions.live)):
            live[router.addresses.table.rule_of_filter(found.pattern).pattern] += len(found.group.consumers)
            if not number % PREPARED:
                yield None
        flows = router.count_flows()
        for rule in list(router.addresses.table.rules):
            if not _has_own_rows(rule.type):
                yield self._rule(rule.pattern, rule.type, flows, live[rule.pattern])
        for address, group in list(router.subscriptions.competing.anycast.items()):
            received, consumers = group.received, len(group.consumers)
            kind = AddressType.ANYCAST.value
            yield AddressRow(ANYCAST + address, address, kind, "", received, None, 0, consumers)
        for each in router.durable_subscriptions.figures():
            yield _subscription(each)
        queues = router.queues
        for address in list(queues.opened):
            if address in queues:
                yield self._queue(address)
        for address in queues.walk():
            if address not in queues.opened:
                yield self._queue(address)

    def of_address(self, address: str) -> Iterator[AddressRow]:
        """Yield the rows that messages to a name are counted in. Durable subscriptions that are not open are left out,
        except one of this very filter, as they are rows of the store."""
        router = self._router
        rule = router.addresses.table.rule_of_filter(address)
        if address in router.queues:
            yield self._queue(address)
        elif not _has_own_rows(rule.type):
            live = sum(len(each.group.consumers) for each in router.subscriptions.live.match(address))
            yield self._rule(rule.pattern, rule.type, router.count_flows(), live)
        group = router.subscriptions.competing.anycast.get(address)
        if group is not None:
            received, consumers = group.received, len(group.consumers)
            yield AddressRow(ANYCAST + address, address, rule.type.value, "", received, None, 0, consumers)
        for found in list(router.durable_subscriptions.opened.values()):
            if found.declaration.pattern == address or matches(found.declaration.pattern, address):
                yield _subscription(figures_of(found))

    def consumers(self, address: str) -> Iterator[tuple[Consumer, str, int]]:
        """Yield the consumers of an address, with the subscription and the dropped messages of each."""
        router = self._router
        queue = router.queues.opened.get(address)
        group = router.subscriptions.competing.anycast.get(address)
        competing = [
            *(queue.group.consumers if queue is not None else ()),
            *(group.consumers if group is not None else ()),
        ]
        yield from ((each, "", 0) for each in competing)
        for live in router.subscriptions.live.match(address):
            yield from ((each, live.pattern, live.dropped) for each in list(live.group.consumers))
        for found in list(router.durable_subscriptions.opened.values()):
            if found.declaration.pattern == address or matches(found.declaration.pattern, address):
                yield from ((each, found.declaration.name, 0) for each in found.consumers)

    async def oldest_at(self, row: AddressRow) -> float | None:
        """Return the time of the oldest waiting message of a row; None without one, or if it cannot be read soon."""
        if not row.waiting:
            return None
        try:
            places = list(self._first_waiting(row))
        except (KeyError, StoreError):
            return None
        times = await asyncio.gather(*(self._received_at(log, position) for log, position in places))
        return min((at for at in times if at is not None), default=None)

    # --- inside -------------------------------------------------------------------------------------------------

    def _first_waiting(self, row: AddressRow) -> Iterator[tuple[int, int]]:
        if row.id.startswith(QUEUE):
            yield self._router.queues.first_waiting(row.address)
        else:
            found = self._router.durable_subscriptions.opened.get(row.subscription)
            for part in () if found is None else found.parts:
                if part.backlog or part.outstanding:
                    yield part.log, part.lowest

    async def _received_at(self, log: int, position: int) -> float | None:
        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

        def read(runs: Sequence[Stored]) -> None:
            if not answer.done():
                answer.set_result(runs[0].run.received_at / 1e9 if runs else None)

        self._router.read_first(log, position, read)
        try:
            async with asyncio.timeout(READ_S):
                return await answer
        except TimeoutError:
            return None

    def _queue(self, address: str) -> AddressRow:
        router, queues = self._router, self._router.queues
        consumers = router.subscriptions.competing.consumers(address) or 0
        kind = router.addresses.type_of(address)
        return AddressRow(
            QUEUE + address,
            address,
            kind.value if kind.is_queue else AddressType.QUEUE.value,
            "",
            queues.received(address),
            queues.delivered(address),
            queues.backlog(address),
            consumers,
        )

    @staticmethod
    def _rule(pattern: str, kind: AddressType, flows: AddressFlows, live: int) -> AddressRow:
        flow = flows.find(pattern)
        received, delivered = (0, 0) if flow is None else (flow.received, flow.delivered)
        return AddressRow(RULE + pattern, pattern, kind.value, "", received, delivered, 0, live)


def _has_own_rows(kind: AddressType) -> bool:
    """Return True for types that have a row for each name, so that the rule needs none."""
    return kind.is_queue or kind in (AddressType.ANYCAST, AddressType.SUBSCRIPTION)


def _subscription(each: SubscriptionFigures) -> AddressRow:
    return AddressRow(
        SUBSCRIPTION + each.name,
        each.pattern,
        "forwarder" if each.name.startswith(FORWARDER_PREFIX) else AddressType.SUBSCRIPTION.value,
        each.name,
        None,
        each.delivered,
        each.backlog + each.outstanding,
        each.consumers,
    )
