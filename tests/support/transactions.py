"""Local transactions of Qpid Proton's blocking client."""

from __future__ import annotations

from typing import Any, Final

from proton import Delivery, Described, Message, Terminus, symbol, ulong
from proton.reactor import LinkOption
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender

from tests.support.amqp_client import WAIT_S

DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34


class Coordinator(LinkOption):
    """Target of the control link (AMQP 1.0 part 4, section 4.5.1)."""

    def apply(self, link: Any) -> None:
        link.target.type = Terminus.COORDINATOR
        link.target.address = None


class TransactionClient:
    """Controller of one connection, with one open transaction at a time."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.connection = connection
        self.control = connection.create_sender(None, name="control", options=Coordinator())
        self.name: Any = None
        """The txn-id."""

    def declare(self) -> None:
        delivery = self.request(Described(symbol("amqp:declare:list"), [None]))
        self._await(delivery)
        assert delivery.remote_state == DECLARED
        self.name = delivery.remote.data[0]
        delivery.settle()

    def request(self, body: Described) -> Delivery:
        """Send a request to the coordinator, without waiting for the answer."""
        delivery: Delivery = self.control.link.send(Message(body=body))
        return delivery

    def send_discharge(self, *, fail: bool = False) -> Delivery:
        """Send a discharge, and wait until it is written to the socket."""
        delivery = self.request(Described(symbol("amqp:discharge:list"), [self.name, fail]))
        transport = self.connection.conn.transport
        self.connection.wait(lambda: transport.pending() <= 0, timeout=WAIT_S)
        return delivery

    def discharge(self, *, fail: bool = False) -> bool:
        """End the transaction. Return True when it was accepted."""
        delivery = self.send_discharge(fail=fail)
        self._await(delivery)
        accepted = delivery.remote_state == Delivery.ACCEPTED
        delivery.settle()
        return accepted

    def post(self, sender: BlockingSender, body: str) -> None:
        """Send a message in the transaction, and wait for its provisional outcome."""
        delivery = sender.link.send(Message(body=body, durable=True))
        delivery.local.data = [self.name]
        delivery.update(TRANSACTIONAL)
        self._await(delivery)
        assert delivery.remote_state == TRANSACTIONAL
        assert delivery.remote.data[1].descriptor == Delivery.ACCEPTED
        delivery.settle()

    def take(self, receiver: BlockingReceiver) -> str:
        """Receive a message, and accept it in the transaction."""
        body = str(receiver.receive(timeout=WAIT_S).body)
        delivery = receiver.fetcher.unsettled.popleft()
        delivery.local.data = [self.name, Described(ulong(Delivery.ACCEPTED), [])]
        delivery.update(TRANSACTIONAL)
        delivery.settle()
        return body

    def _await(self, delivery: Delivery) -> None:
        self.connection.wait(lambda: delivery.settled, timeout=WAIT_S)


def drain(
    connection: BlockingConnection, address: str, messages_max: int, options: LinkOption | None = None
) -> list[str]:
    """Receive all messages of a queue or durable subscription, in the order of their bodies."""
    receiver = connection.create_receiver(address, credit=0, name=address, options=options)
    receiver.link.drain(messages_max)
    connection.wait(lambda: not receiver.link.credit, timeout=WAIT_S)
    found = []
    while receiver.fetcher.has_message:
        found.append(str(receiver.receive(timeout=WAIT_S).body))
        receiver.accept()
    receiver.close()
    return sorted(found)
