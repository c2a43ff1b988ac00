"""What the broker itself answers: requests sent to `$management` and `$cbs`, over links like any other.

A request names where it wants its answer in reply-to: a dynamic address, or the target address of a receiver attached
to the service (as AMQP Management, working draft 9, section 3.3 and Claims-based Security, working draft 2 have it).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from bridge import sections as s
from bridge.amqp_values import DecodeError, Int, Ulong, encode
from bridge.engine import Condition, Engine, Link, State, Transfers
from bridge.message import AMQP, Run
from edge.broker.amqp.addressing import Unacceptable, check_to
from edge.broker.amqp.administration import Administration, Answer
from edge.broker.amqp.scheduler import Flusher
from edge.broker.limits import MANAGEMENT_RESULTS_MAX, SERVICE_CREDIT
from edge.broker.message.translation import outline
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import MANAGEMENT, Grant
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.router import Router

ADDRESS_TYPE: Final = "io.waypost.address"
NODE_TYPE: Final = "org.amqp.management"
ATTRIBUTES: Final = ("name", "identity", "type", "addressType", "messages", "unsettled", "consumers")
CHANGES: Final = ("CREATE", "UPDATE", "DELETE")
_ABOUT: Final[Mapping[str, Any]] = {
    "GET-TYPES": {ADDRESS_TYPE: [], NODE_TYPE: []},
    "GET-ATTRIBUTES": {ADDRESS_TYPE: list(ATTRIBUTES)},
    "GET-OPERATIONS": {
        ADDRESS_TYPE: [*CHANGES, "READ"],
        NODE_TYPE: ["QUERY", "GET-TYPES", "GET-ATTRIBUTES", "GET-OPERATIONS"],
    },
}
_CBS_NAMES: Final = "status-code status-description"
_REPLY_TO, _MESSAGE_ID, _CORRELATION_ID = 4, 0, 5


Decided = Callable[[str], None]
PutToken = Callable[[bytes, Decided], None]
"""(token, whom to tell what is wrong with it, or nothing): takes a token, now or later."""


_MANAGEMENT_NAMES: Final = "statusCode statusDescription"


class ServiceLink(Origin):
    """A link on which requests to one service come in. Origin of the answers."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        router: Router,
        driver: Flusher,
        service: str,
        *,
        name: str,
        replies: Mapping[str, str],
        grant: Grant | None,
        put_token: PutToken | None = None,
        administration: Administration | None = None,
    ) -> None:
        """`replies`: target address of a receiver of answers -> where the router finds it.

        Without a grant nobody has to say who he is, so any token will do; without `put_token` it is answered with 501,
        and so are changes of addresses without `administration`.
        """
        self.name = name
        self._engine = engine
        self._link = link
        self._router = router
        self._driver = driver
        self._service = service
        self._replies = replies
        self._grant = grant
        self._take_token = put_token
        self._administration = administration
        self._changing = 0
        """Changes not answered yet."""

    def received(self, event: Transfers) -> None:
        for i, message in enumerate(event.messages):
            state, condition = State.ACCEPTED, None
            try:
                self._request(message)
            except DecodeError as error:
                state, condition = State.REJECTED, Condition("amqp:decode-error", str(error))
            except Unacceptable as error:
                state, condition = State.REJECTED, error.condition
            if not event.settled:
                self._engine.settle(self._link, (event.deliveries[i],), state, condition)
        self.top_up()

    def top_up(self) -> None:
        link = self._link
        window = SERVICE_CREDIT - self._changing
        if not link.closed and window > 0 and link.credit * 2 <= window:
            self._engine.grant(link, window - link.credit)
            self._driver.flush_soon()

    def ended(self) -> None:
        """Nothing is under way."""

    def accepted(self, tokens: Sequence[int]) -> None:
        """Nobody waits for what becomes of an answer."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Nobody waits for what becomes of an answer."""

    def _request(self, message: bytes) -> None:
        _, start = s.bare_message(message)
        found = outline(message[start:])
        fields = [*found.properties, *[None] * (_CORRELATION_ID + 1)]
        reply_to = fields[_REPLY_TO]
        address = self._reply_address(reply_to)
        values = {str(name): value for name, value in found.application.items()}
        wanted = fields[_MESSAGE_ID] if fields[_CORRELATION_ID] is None else fields[_CORRELATION_ID]
        correlation = _identifier(wanted)
        if self._service == MANAGEMENT and values.get("operation") in CHANGES:
            self._change(values, found.body, lambda a: self._answer(address, correlation, a, _MANAGEMENT_NAMES))
        elif self._service == MANAGEMENT:
            self._answer(address, correlation, manage(self._router, values, found.body), _MANAGEMENT_NAMES)
        else:
            self._put_token(values, found.body, lambda a: self._answer(address, correlation, a, _CBS_NAMES))

    def _answer(self, address: str, correlation: Any, answer: Answer, names: str) -> None:
        application: dict[str, Any] = dict(zip(names.split(), (Int(answer.status), answer.description), strict=True))
        if answer.results is not None:
            application["count"] = Int(answer.results)
        body = _section(s.PROPERTIES, [None, None, None, None, None, correlation])
        body += _section(s.APPLICATION_PROPERTIES, application) + _section(s.VALUE, answer.body)
        self._router.publish(self, Run(address, self.name, AMQP | 1, b"", [body]), ())

    def _reply_address(self, reply_to: object) -> str:
        """Where the answer goes: nobody gets messages through us to where he must not send himself."""
        if not isinstance(reply_to, str):
            raise Unacceptable("amqp:invalid-field", "a request without reply-to")
        address = self._replies.get(reply_to)
        if address is None:
            address = check_to(str(reply_to))
            if self._grant is not None and not self._grant.may_send(address):
                raise Unacceptable("amqp:unauthorized-access", f"{self.name} must not send to {address!r}")
        return address

    def _change(self, values: Mapping[str, Any], body: bytes, answer: Callable[[Answer], None]) -> None:
        name = values.get("name", values.get("identity"))
        try:
            attributes: Any = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            attributes = None
        if self._administration is None:
            answer(Answer(501, "the addresses are in a file this gateway was started with: change that"))
        elif values.get("type") not in (None, ADDRESS_TYPE):
            answer(Answer(400, f"type: there is only {ADDRESS_TYPE}"))
        elif not isinstance(name, str) or not name:
            answer(Answer(400, "name: the address is missing"))
        elif not isinstance(attributes, dict):
            answer(Answer(400, "the body is a map of attributes"))
        else:
            self._changing += 1
            self._administration.change(str(values["operation"]), name, attributes, partial(self._changed, answer))

    def _changed(self, answer: Callable[[Answer], None], what: Answer) -> None:
        self._changing -= 1
        answer(what)
        self.top_up()

    def _put_token(self, values: Mapping[str, Any], token: bytes, answer: Callable[[Answer], None]) -> None:
        if values.get("operation") != "put-token":
            answer(Answer(400, "the operation is not put-token"))
        elif self._grant is None:
            answer(Answer(202, "accepted: nobody has to say who he is here"))
        elif self._take_token is None:
            answer(Answer(501, "tokens are not taken here; say who you are with SASL"))
        elif str(values.get("type", "jwt")).removeprefix("amqp:") != "jwt":
            answer(Answer(400, "the type of the token is not jwt"))
        else:
            self._take_token(token, lambda why: answer(Answer(401, why) if why else Answer(202, "accepted")))


def manage(router: Router, values: Mapping[str, Any], body: bytes) -> Answer:
    """Answer a management request; `values` are its application properties, `body` its body as JSON text."""
    operation = values.get("operation")
    if operation == "QUERY":
        return _query(router, values, body)
    if operation == "READ":
        return _read(router, values)
    about = _ABOUT.get(str(operation))
    return Answer(400, f"unknown operation {operation!r}") if about is None else Answer(200, "OK", about)


def _read(router: Router, values: Mapping[str, Any]) -> Answer:
    name = values.get("name", values.get("identity"))
    if values.get("type") in (None, ADDRESS_TYPE) and isinstance(name, str):
        if name in router.queues:
            return Answer(200, "OK", _of_queue(router, name))
        there = (entry() for entry in chain(_rules(router), _durable_subscriptions(router)))
        if (found := next((entry for entry in there if entry["name"] == name), None)) is not None:
            return Answer(200, "OK", found)
    return Answer(404, f"there is no address {name!r}")


def entries(router: Router) -> Iterator[Callable[[], dict[str, Any]]]:
    """What makes the entry of each address there is something to say of: the rules that are names, queues, durable
    subscriptions.

    In an order that stays as long as none comes or goes, and no queue is opened for it: clients make them by the
    thousands, and a client is told of a part of them at a time.
    """
    queues = (partial(_of_queue, router, address) for address in router.queues)
    return chain(_rules(router), queues, _durable_subscriptions(router))


def _rules(router: Router) -> Iterator[Callable[[], dict[str, Any]]]:
    for rule in router.table.rules:
        if rule.pattern not in router.queues:
            yield partial(_entry, rule.pattern, rule.type, 0, 0, 0)


def _of_queue(router: Router, address: str) -> dict[str, Any]:
    kind, queue = router.address_type(address), router.queues.opened.get(address)
    if queue is None:
        return _entry(address, kind, router.queues.backlog(address), 0, 0)
    return _entry(address, kind, queue.backlog, queue.outstanding, len(queue.group.consumers))


def _durable_subscriptions(router: Router) -> Iterator[Callable[[], dict[str, Any]]]:
    for each in router.durable_subscriptions.figures():
        yield partial(_entry, each.name, AddressType.SUBSCRIPTION, each.backlog, each.outstanding, each.consumers)


def _entry(name: str, kind: AddressType, messages: int, unsettled: int, consumers: int) -> dict[str, Any]:
    figures = (name, name, ADDRESS_TYPE, kind.value, messages, unsettled, consumers)
    return dict(zip(ATTRIBUTES, figures, strict=True))


def _query(router: Router, values: Mapping[str, Any], body: bytes) -> Answer:
    try:
        wanted = json.loads(body)["attributeNames"] if body else []
    except (ValueError, KeyError, TypeError, RecursionError):
        wanted = []
    if not isinstance(wanted, list) or any(name not in ATTRIBUTES for name in wanted):
        return Answer(400, f"attributes are {', '.join(ATTRIBUTES)}")
    names = wanted or list(ATTRIBUTES)
    offset, count = values.get("offset", 0), values.get("count", MANAGEMENT_RESULTS_MAX)
    if not isinstance(offset, int) or not isinstance(count, int) or offset < 0 or count < 0:
        return Answer(400, "offset and count are numbers from 0 on")
    if values.get("entityType") not in (None, ADDRESS_TYPE):
        return Answer(400, f"entityType: there is only {ADDRESS_TYPE}")
    found = entries(router)
    first = min(offset, sys.maxsize - MANAGEMENT_RESULTS_MAX)
    part = (entry() for entry in islice(found, first, first + min(count, MANAGEMENT_RESULTS_MAX)))
    results = [[entry[name] for name in names] for entry in part]
    return Answer(200, "OK", {"attributeNames": names, "results": results}, len(results))


def _identifier(value: Any) -> Any:
    """An identifier to be written again: a number is a ulong (section 3.2.11), everything else is what it was."""
    return Ulong(value) if type(value) is int else value


def _section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)
