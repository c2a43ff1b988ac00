"""Client with local transactions, over the engines of `broker`."""

from __future__ import annotations

from typing import Any

from cproton import ffi, lib

from bridge.amqp_values import DescribedValue, Ulong, encode
from bridge.engine import Condition, DeliveryState, Link, Terminus, TerminusKind, TransactionalState
from tests.unit.amqp.broker import Client, Site
from tests.unit.amqp.wire import message

DECLARE, DISCHARGE = 0x31, 0x32


def request(descriptor: int, *fields: Any) -> bytes:
    """Return the message of a declare or discharge."""
    return b"\x00\x53\x77" + encode(DescribedValue(Ulong(descriptor), list(fields)))


def make_transactional(link: Link, tag: int, name: bytes) -> None:
    """Make a message that has just been sent part of a transaction, as its frames have not left yet."""
    delivery = ffi.cast("pn_delivery_t *", link._sent[tag])
    raw = encode([name])
    lib.pn_data_decode(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), ffi.from_buffer(raw), len(raw))
    lib.pn_delivery_update(delivery, DeliveryState.TRANSACTIONAL)


class Controller:
    """Transactional resource and controller of one connection (part 4, section 4.2)."""

    def __init__(self, site: Site, container_id: str = "controller") -> None:
        self.site = site
        self.client: Client = site.client(container_id)
        self.link = self.client.sender(Terminus(kind=TerminusKind.COORDINATOR), "control")
        self._tag = 0

    def ask(self, message: bytes) -> int:
        """Send a request to the coordinator; return its tag."""
        tag, self._tag = self._tag, self._tag + 1
        self.client.engine.send(self.link, tag, message)
        self.site.turn()
        return tag

    def answer(self, tag: int) -> tuple[DeliveryState, Any] | None:
        """Return the answer to a request, if there is one."""
        return next(((state, detail) for at, state, detail in self.client.outcomes(self.link) if at == tag), None)

    def declare(self) -> bytes:
        """Begin a transaction; return its txn-id."""
        answer = self.answer(self.ask(request(DECLARE, None)))
        assert answer is not None
        assert answer[0] is DeliveryState.DECLARED, answer
        return bytes(answer[1])

    def discharge(self, name: bytes, *, fail: bool = False) -> Condition | None:
        """End a transaction; return the error, if any."""
        tag = self.ask(request(DISCHARGE, name, fail))
        self.site.settle_down()
        answer = self.answer(tag)
        assert answer is not None
        state, detail = answer
        assert state is (DeliveryState.ACCEPTED if detail is None else DeliveryState.REJECTED)
        return detail

    def post(self, link: Link, tag: int, body: bytes, name: bytes) -> None:
        """Send a message in a transaction."""
        self.client.engine.send(link, tag, message(body, durable=True))
        make_transactional(link, tag, name)
        self.site.turn()

    def retire(
        self,
        link: Link,
        deliveries: list[int],
        name: bytes,
        outcome: DeliveryState = DeliveryState.ACCEPTED,
        detail: Condition | None = None,
    ) -> None:
        """Settle deliveries in a transaction."""
        state = TransactionalState(name, outcome, detail)
        self.client.engine.settle(link, deliveries, DeliveryState.TRANSACTIONAL, state)
        self.site.turn()

    def retire_unsettled(self, link: Link, number: int, name: bytes) -> None:
        """Accept a delivery in a transaction, without settling it."""
        delivery = ffi.cast("pn_delivery_t *", link._unsettled[number])
        raw = encode([name, DescribedValue(Ulong(0x24), [])])
        lib.pn_data_decode(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), ffi.from_buffer(raw), len(raw))
        lib.pn_delivery_update(delivery, DeliveryState.TRANSACTIONAL)
        self.site.turn()
