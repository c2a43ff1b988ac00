"""Details of one address: its rule, figures, consumers and rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from bridge.resources.resource import Resource
from edge.appliance.addresses.directory import AddressDirectory
from edge.appliance.addresses.documents import AddressConsumer, AddressDetail, AddressUsers
from edge.appliance.addresses.wording import policy_sentences
from edge.appliance.paging import SLICE_ROWS, WorkSlices
from edge.broker.configuration import BrokerConfiguration, Direction
from edge.broker.http.preconditions import tag_of
from edge.broker.model.authorization import EVERYTHING, Operation, substitute
from edge.broker.model.interfaces import Consumer
from edge.broker.model.topics import overlaps
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator

CONSUMERS_SHOWN_MAX: Final = 50
"""Consumers of an address that a document lists."""

USERS_SHOWN_MAX: Final = 50
"""Users with a right that a document lists."""

OVERLAPPING_SHOWN_MAX: Final = 20
"""Overlapping rules that a document lists."""

CREDIT_SHOWN_MAX: Final = 1 << 24
"""Credit above which a consumer takes everything."""

_CLIENT: Final = "%c"


class AddressDetails:
    """Details of the addresses of one gateway."""

    def __init__(
        self,
        directory: AddressDirectory,
        router: Router,
        gate: Authenticator,
        configuration: Callable[[], BrokerConfiguration],
        resource_of: Callable[[str], Resource | None],
    ) -> None:
        """`resource_of` returns the Address resource with a pattern; None without one."""
        self.directory: Final = directory
        self.router: Final = router
        self.gate: Final = gate
        self.configuration: Final = configuration
        self._resource_of = resource_of

    async def document(self, address: str) -> AddressDetail:
        """Return the details of a name or filter."""
        router = self.router
        rule = router.addresses.table.rule_of_filter(address)
        policy = router.addresses.policy_of_filter(address)
        found = list(self.directory.sources.consumers(address))
        resource = self._resource_of(rule.pattern)
        letters = policy.deadletter or ""
        return AddressDetail(
            address=address,
            type=rule.type.value,
            rule=rule.pattern,
            resource=resource.name if resource is not None else "",
            etag=tag_of(resource.document["spec"]) if resource is not None else "",
            overlapping=self._overlapping(address, rule.pattern),
            policy=policy_sentences(rule.type, policy),
            rows=await self.directory.documents(address),
            consumers=[_consumer(*each) for each in islice(found, CONSUMERS_SHOWN_MAX)],
            consumers_total=len(found),
            senders=await self.users(Operation.SEND, address),
            receivers=await self.users(Operation.RECV, address),
            everyone=self.gate.open,
            forwarders=self.forwarders(address),
            deadletter=letters,
            dead_letters=router.queues.backlog(letters) if letters in router.queues else 0,
        )

    def _overlapping(self, address: str, own: str) -> list[str]:
        others = (each.pattern for each in self.router.addresses.table.rules if each.pattern not in (own, EVERYTHING))
        return list(islice((each for each in others if overlaps(each, address)), OVERLAPPING_SHOWN_MAX))

    async def users(self, operation: Operation, address: str) -> AddressUsers:
        """Return the users with a right for an address, or for a part of a filter."""
        slices, names = WorkSlices(), list[str]()
        for number, user in enumerate(self.gate.users.values()):
            filters = (each for rule in user.rules if operation in rule.operations for each in rule.addresses)
            if _reaches(filters, user.name, address):
                names.append(user.name)
            if not number % SLICE_ROWS:
                await slices.pause()
        return AddressUsers(names=sorted(names)[:USERS_SHOWN_MAX], total=len(names))

    def forwarders(self, address: str) -> list[str]:
        """Return the forwarders that carry messages of an address away."""
        return [
            f"{each.connector}: {each.filter}"
            for each in self.configuration().forwarders
            if each.direction is Direction.OUT and overlaps(each.filter, address)
        ]


def _reaches(filters: Iterable[str], user: str, address: str) -> bool:
    for pattern in filters:
        allowed = substitute(pattern.replace(_CLIENT, "+"), user, "")
        if allowed is not None and overlaps(allowed, address):
            return True
    return False


def _consumer(consumer: Consumer, subscription: str, dropped: int) -> AddressConsumer:
    try:
        credit: int | None = consumer.credit
    except Exception:  # a connection that ends; a status must not fail for it
        credit = None
    can_take = None if credit is None or credit >= CREDIT_SHOWN_MAX else credit
    return AddressConsumer(
        name=consumer.name, user=consumer.user, subscription=subscription, can_take=can_take, dropped=dropped
    )
