"""Why messages to an address do not arrive: the way of a message step by step, from what the gateway knows.

Each step says what applies to this address, and what to do if it stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from edge.appliance.addresses.details import AddressDetails
from edge.appliance.addresses.documents import AddressDetail, AddressExplanation, AddressUsers, ExplanationStep
from edge.appliance.clients.refusals import page_of_refusals
from edge.appliance.crossing.documents import BridgeStatus
from edge.broker.model.addresses import AddressType
from edge.broker.retention.quotas import QuotaAccount
from edge.output.amounts import counted, size, span
from edge.output.text import line, word

NOTHING_WRONG: Final = "Nothing stands in the way: messages to this address arrive."
REFUSALS_NAMED_MAX: Final = 3
"""Refused clients that are named."""
_STORED: Final = (AddressType.QUEUE.value, AddressType.DEADLETTER.value)
_DIRECT: Final = (AddressType.ANYCAST.value, AddressType.MULTICAST.value)

Steps = Iterator[ExplanationStep]


class AddressExplainer:
    """Explains addresses of one gateway."""

    def __init__(self, details: AddressDetails, bridge: Callable[[], BridgeStatus], utc_s: Callable[[], float]) -> None:
        """`bridge` returns the state of connectors and forwarders."""
        self._details = details
        self._bridge = bridge
        self._utc_s = utc_s

    async def explain(self, address: str) -> AddressExplanation:
        """Explain one name or filter."""
        detail = await self._details.document(address)
        steps = [
            _rule(detail),
            *_users(detail, detail.senders, "send"),
            *self._arrivals(detail),
            *self._room(detail),
            *_users(detail, detail.receivers, "receive"),
            *_subscribers(detail),
            *self._waiting(detail),
            *self._forwarders(detail),
        ]
        first = next((step for step in steps if step.state == "wrong"), None)
        return AddressExplanation(address=address, verdict=NOTHING_WRONG if first is None else first.text, steps=steps)

    def _arrivals(self, detail: AddressDetail) -> Steps:
        """Yield what came from publishers, and who was refused."""
        refused = page_of_refusals(self._details.gate.refusals, limit=REFUSALS_NAMED_MAX, text=detail.address)
        for refusal in refused.refusals:
            if refusal.address == detail.address:
                name = line(refusal.user or refusal.client or refusal.remote)
                text = f"{name}: {refusal.what}, {counted(refusal.count, 'time')}"
                yield _step("arrivals", "wrong", text, refusal.next_step)
        rows = [row for row in detail.rows if row.received is not None]
        received = sum(row.received or 0 for row in rows)
        if received:
            names = "names of this rule" if rows and rows[0].id.startswith("rule/") else "it"
            yield _step("arrivals", "ok", f"{counted(received, 'message')} came to {names}.")
        elif rows:
            step = "look whether the publisher is connected: waypost client list; it may use another name"
            yield _step("arrivals", "wrong", "No message has come to it.", step)
        for each in self._details.router.unrouted:
            if each.address == detail.address:
                text = f"{counted(each.messages, 'message')} had no subscriber, and were dropped."
                step = f"subscribe, or store them: apply an Address {word(detail.address)} of type queue"
                yield _step("arrivals", "wrong", text, step)

    def _room(self, detail: AddressDetail) -> Steps:
        """Yield the quota, if it refuses messages."""
        account = self._details.router.quotas.get(detail.rule)
        if account is None:
            return
        if account.full:
            text = f"{_amount(account)} are used: new messages are refused."
            yield _step("room", "wrong", text, "find the consumer that does not take them, or raise spec.quota.bytes")
        elif account.refused:
            yield _step("room", "note", f"{counted(account.refused, 'message')} were refused when it was full.")
        elif account.policy.quota_bytes is not None:
            yield _step("room", "ok", f"{_amount(account)} are used.")

    def _waiting(self, detail: AddressDetail) -> Steps:
        """Yield where messages are now."""
        for row in detail.rows:
            if not row.waiting:
                continue
            name = f"subscription {line(row.subscription)}" if row.subscription else "the queue"
            age = "" if row.oldest_at is None else f", the oldest for {span(max(0.0, self._utc_s() - row.oldest_at))}"
            text = f"{counted(row.waiting, 'message')} in {name}{age}."
            if row.consumers or row.type == "forwarder":
                yield _step("waiting", "note", text)
            else:
                yield _step("waiting", "wrong", text, "connect a consumer: until then they stay here")
        if detail.dead_letters:
            text = f"{counted(detail.dead_letters, 'message')} in the dead letters {line(detail.deadletter)}."
            yield _step("waiting", "note", text, "look at them on the console's page Messages")

    def _forwarders(self, detail: AddressDetail) -> Steps:
        """Yield the way to the hub and other peers."""
        if not detail.forwarders:
            yield _step("forwarders", "note", "No forwarder carries it to the hub or another peer.")
            return
        states = {one.name: one for one in self._bridge().connectors}
        for forwarder in detail.forwarders:
            connector = states.get(forwarder.partition(":")[0])
            if connector is None:
                step = "add the connector to the AddressSpace: waypost apply"
                yield _step("forwarders", "wrong", f"{line(forwarder)}: there is no such connector.", step)
            elif connector.state != "connected":
                error = f": {line(connector.last_error)}" if connector.last_error else ""
                text = f"{line(forwarder)}: {connector.state}{error}. Messages wait on this gateway."
                yield _step("forwarders", "wrong", text, "waypost doctor looks at the network; waypost bridge status")
            else:
                text = f"{line(forwarder)}: connected, {counted(connector.backlog_messages, 'message')} wait."
                yield _step("forwarders", "ok", text)


def _step(part: str, state: str, text: str, next_step: str = "") -> ExplanationStep:
    return ExplanationStep(part=part, state=state, text=text, next_step=next_step)


def _rule(detail: AddressDetail) -> ExplanationStep:
    return _step("rule", "ok", f"The rule {line(detail.rule)} applies: a {detail.type}. {detail.policy[0]}")


def _users(detail: AddressDetail, users: AddressUsers, verb: str) -> Steps:
    """Yield the users with a right."""
    part = "senders" if verb == "send" else "receivers"
    if detail.everyone:
        if verb == "send":
            yield _step(part, "ok", "No sign-in is configured: every client may send and receive.")
    elif users.total:
        more = f" and {users.total - 3} more" if users.total > 3 else ""
        yield _step(part, "ok", f"May {verb}: {', '.join(map(line, users.names[:3]))}{more}.")
    else:
        address = word(detail.address)
        step = (
            f"waypost user allow USER send:{address}" if verb == "send" else f"waypost user allow USER recv:{address}"
        )
        yield _step(part, "wrong", f"No user may {verb} it.", step)


def _subscribers(detail: AddressDetail) -> Steps:
    """Yield the consumers, and those that do not keep up."""
    if not detail.consumers_total:
        yield _no_subscriber(detail)
        return
    yield _step("subscribers", "ok", f"{counted(detail.consumers_total, 'consumer')} connected.")
    for each in detail.consumers:
        if each.dropped:
            text = f"{line(each.name)} was too slow: {counted(each.dropped, 'message')} were dropped."
            yield _step("subscribers", "wrong", text, "give it a durable subscription, or fewer messages")
        elif each.can_take == 0:
            text = f"{line(each.name)} takes nothing now: it has not acknowledged what it has."
            yield _step("subscribers", "note", text, "look whether it still works, or disconnect it: waypost client")


def _no_subscriber(detail: AddressDetail) -> ExplanationStep:
    if detail.type in _STORED:
        return _step("subscribers", "wrong", "No consumer is connected.", "connect one: messages wait until then")
    if detail.type in _DIRECT:
        step = "connect one, or use a queue, which stores messages"
        return _step(
            "subscribers", "wrong", "No consumer is connected, and nothing is stored: senders are refused.", step
        )
    if any(row.subscription for row in detail.rows):
        return _step("subscribers", "note", "No subscriber is connected; durable subscriptions store its messages.")
    step = "look at the filter of the subscriber: waypost client show NAME"
    return _step("subscribers", "wrong", "No client subscribes to it: its messages are dropped.", step)


def _amount(account: QuotaAccount) -> str:
    return f"{size(account.used)} of {size(account.policy.quota_bytes)}"
