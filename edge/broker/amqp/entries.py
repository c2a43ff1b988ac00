"""Entries of the addresses of a broker for management."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from edge.broker.model.addresses import AddressType
from edge.broker.router.router import Router

ADDRESS_TYPE: Final = "io.waypost.address"
ADDRESS_ATTRIBUTES: Final = ("name", "identity", "type", "addressType", "messages", "unsettled", "consumers")

MakeEntry = Callable[[], dict[str, Any]]
"""Returns the attributes of one entity."""


def address_entries(router: Router) -> Iterator[MakeEntry]:
    """Yield a function for the entry of each address: rules, queues and durable subscriptions.

    The order is stable while none is added or removed. No queue is opened for it: there may be thousands, and an
    answer has only some of them.
    """
    queues = (partial(_of_queue, router, address) for address in router.queues)
    return chain(_rules(router), queues, _durable_subscriptions(router))


def entry_of(router: Router, name: str) -> dict[str, Any] | None:
    """Return the entry of one address, or None."""
    if name in router.queues:
        return _of_queue(router, name)
    entries = (entry() for entry in chain(_rules(router), _durable_subscriptions(router)))
    return next((entry for entry in entries if entry["name"] == name), None)


def _rules(router: Router) -> Iterator[MakeEntry]:
    for rule in router.addresses.table.rules:
        if rule.pattern not in router.queues:
            yield partial(_entry, rule.pattern, rule.type, 0, 0, 0)


def _of_queue(router: Router, address: str) -> dict[str, Any]:
    kind, queue = router.addresses.type_of(address), router.queues.opened.get(address)
    if queue is None:
        return _entry(address, kind, router.queues.backlog(address), 0, 0)
    return _entry(address, kind, queue.backlog, queue.outstanding, len(queue.group.consumers))


def _durable_subscriptions(router: Router) -> Iterator[MakeEntry]:
    for each in router.durable_subscriptions.figures():
        yield partial(_entry, each.name, AddressType.SUBSCRIPTION, each.backlog, each.outstanding, each.consumers)


def _entry(name: str, kind: AddressType, messages: int, unsettled: int, consumers: int) -> dict[str, Any]:
    figures = (name, name, ADDRESS_TYPE, kind.value, messages, unsettled, consumers)
    return dict(zip(ADDRESS_ATTRIBUTES, figures, strict=True))
