"""Services of the broker itself: requests to `$management` and `$cbs`, over ordinary links.

The answer goes to the reply-to of the request: a dynamic address, or the target address of a receiver attached to the
service (AMQP Management, working draft 9, section 3.3; Claims-based Security, working draft 2).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from bridge import sections as s
from bridge.amqp_values import DecodeError, Int, Ulong, encode
from bridge.engine import Condition, DeliveryState, Engine, Link, Transfers
from bridge.message import AMQP, Run
from edge.broker.amqp import dispatch
from edge.broker.amqp.addressing import AttachRefused, check_to
from edge.broker.amqp.administration import Administration, ManagementResponse
from edge.broker.amqp.containers import ContainerRegistry
from edge.broker.amqp.entries import ADDRESS_ATTRIBUTES, ADDRESS_TYPE, address_entries, entry_of
from edge.broker.amqp.scheduler import Flusher
from edge.broker.limits import MANAGEMENT_RESULTS_MAX, SERVICE_CREDIT
from edge.broker.message.translation import parse_message
from edge.broker.model.authorization import MANAGEMENT, Grant
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router

NODE_TYPE: Final = "org.amqp.management"
CHANGES: Final = ("CREATE", "UPDATE", "DELETE")
_ABOUT: Final[Mapping[str, Any]] = {
    "GET-TYPES": {ADDRESS_TYPE: [], NODE_TYPE: [], **{name: [] for name in dispatch.TYPES}},
    "GET-ATTRIBUTES": {
        ADDRESS_TYPE: list(ADDRESS_ATTRIBUTES),
        **{name: list(each.attributes) for name, each in dispatch.TYPES.items()},
    },
    "GET-MGMT-NODES": [],
    "GET-OPERATIONS": {
        ADDRESS_TYPE: [*CHANGES, "READ"],
        NODE_TYPE: ["QUERY", "GET-TYPES", "GET-ATTRIBUTES", "GET-OPERATIONS", "GET-MGMT-NODES"],
    },
}
_CBS_NAMES: Final = "status-code status-description"
_REPLY_TO, _MESSAGE_ID, _CORRELATION_ID = 4, 0, 5


Decided = Callable[[str], None]
PutToken = Callable[[bytes, Decided], None]
"""Processes a token and calls back, now or later, with an error text or an empty one."""


_MANAGEMENT_NAMES: Final = "statusCode statusDescription"


class ServiceLink(Origin):
    """Link with requests to one service; origin of the answers."""

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
        containers: ContainerRegistry,
    ) -> None:
        """`replies`: target address of a receiver of answers -> its address at the router.

        Without a grant (no authentication) any token is accepted. Tokens without `put_token`, and changes of addresses
        without `administration`, are answered with 501.
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
        self._managed = dispatch.ManagedBroker(router, containers, engine.container_id)
        self.delivered = 0
        """Requests since the attach."""
        self._changing = 0
        """Changes in progress."""

    @property
    def unsettled(self) -> int:
        """Number of unanswered requests."""
        return self._changing

    def received(self, event: Transfers) -> None:
        self.delivered += len(event.messages)
        for i, message in enumerate(event.messages):
            state, condition = DeliveryState.ACCEPTED, None
            try:
                self._request(message)
            except DecodeError as error:
                state, condition = DeliveryState.REJECTED, Condition("amqp:decode-error", str(error))
            except AttachRefused as error:
                state, condition = DeliveryState.REJECTED, error.condition
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
        """Do nothing."""

    def accepted(self, tokens: Sequence[int]) -> None:
        """Ignore the outcome of an answer."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Ignore the outcome of an answer."""

    def _request(self, message: bytes) -> None:
        _, start = s.bare_message(message)
        found = parse_message(message[start:])
        fields = [*found.properties, *[None] * (_CORRELATION_ID + 1)]
        reply_to = fields[_REPLY_TO]
        address = self._reply_address(reply_to)
        values = {str(name): value for name, value in found.application.items()}
        wanted = fields[_MESSAGE_ID] if fields[_CORRELATION_ID] is None else fields[_CORRELATION_ID]
        correlation = _identifier(wanted)
        if self._service == MANAGEMENT and values.get("operation") in CHANGES:
            self._change(values, found.body, lambda a: self._answer(address, correlation, a, _MANAGEMENT_NAMES))
        elif self._service == MANAGEMENT:
            answer = manage(self._managed, values, found.body)
            self._answer(address, correlation, answer, _MANAGEMENT_NAMES)
        else:
            self._put_token(values, found.body, lambda a: self._answer(address, correlation, a, _CBS_NAMES))

    def _answer(self, address: str, correlation: Any, answer: ManagementResponse, names: str) -> None:
        application: dict[str, Any] = dict(zip(names.split(), (Int(answer.status), answer.description), strict=True))
        if answer.results is not None:
            application["count"] = Int(answer.results)
        body = _section(s.PROPERTIES, [None, None, None, None, None, correlation])
        body += _section(s.APPLICATION_PROPERTIES, application) + _section(s.VALUE, answer.body)
        self._router.publish(Publication(self, Run(address, self.name, AMQP | 1, b"", [body]), ()))

    def _reply_address(self, reply_to: object) -> str:
        """Return the address for the answer. Raises AttachRefused unless the client may send there itself."""
        if not isinstance(reply_to, str):
            raise AttachRefused("amqp:invalid-field", "a request without reply-to")
        address = self._replies.get(reply_to)
        if address is None:
            address = check_to(str(reply_to))
            if self._grant is not None and not self._grant.may_send(address):
                raise AttachRefused("amqp:unauthorized-access", f"{self.name} must not send to {address!r}")
        return address

    def _change(self, values: Mapping[str, Any], body: bytes, answer: Callable[[ManagementResponse], None]) -> None:
        name = values.get("name", values.get("identity"))
        try:
            attributes: Any = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            attributes = None
        if self._administration is None:
            answer(ManagementResponse(501, "addresses come from the file given to --config: change that file"))
        elif values.get("type") not in (None, ADDRESS_TYPE):
            answer(ManagementResponse(400, f"type: only {ADDRESS_TYPE} is supported"))
        elif not isinstance(name, str) or not name:
            answer(ManagementResponse(400, "name: the address is missing"))
        elif not isinstance(attributes, dict):
            answer(ManagementResponse(400, "the body must be a map of attributes"))
        else:
            self._changing += 1
            self._administration.change(str(values["operation"]), name, attributes, partial(self._changed, answer))

    def _changed(self, answer: Callable[[ManagementResponse], None], what: ManagementResponse) -> None:
        self._changing -= 1
        answer(what)
        self.top_up()

    def _put_token(self, values: Mapping[str, Any], token: bytes, answer: Callable[[ManagementResponse], None]) -> None:
        if values.get("operation") != "put-token":
            answer(ManagementResponse(400, "the operation is not put-token"))
        elif self._grant is None:
            answer(ManagementResponse(202, "accepted: authentication is off"))
        elif self._take_token is None:
            answer(ManagementResponse(501, "tokens are not supported: authenticate with SASL"))
        elif str(values.get("type", "jwt")).removeprefix("amqp:") != "jwt":
            answer(ManagementResponse(400, "the type of the token is not jwt"))
        else:
            self._take_token(
                token, lambda why: answer(ManagementResponse(401, why) if why else ManagementResponse(202, "accepted"))
            )


def manage(managed: dispatch.ManagedBroker, values: Mapping[str, Any], body: bytes) -> ManagementResponse:
    """Answer a management request; `values` are its application properties, `body` its body as JSON text."""
    operation = values.get("operation")
    if operation == "QUERY":
        return _query(managed, values, body)
    if operation == "READ":
        return _read(managed.router, values)
    about = _ABOUT.get(str(operation))
    return (
        ManagementResponse(400, f"unknown operation {operation!r}")
        if about is None
        else ManagementResponse(200, "OK", about)
    )


def _read(router: Router, values: Mapping[str, Any]) -> ManagementResponse:
    name = values.get("name", values.get("identity"))
    if values.get("type") in (None, ADDRESS_TYPE) and isinstance(name, str):
        found = entry_of(router, name)
        if found is not None:
            return ManagementResponse(200, "OK", found)
    return ManagementResponse(404, f"address {name!r} not found")


def _query(managed: dispatch.ManagedBroker, values: Mapping[str, Any], body: bytes) -> ManagementResponse:
    """Answer with a page of the entities of one type. Unknown attributes of Dispatch's types are left out, as its
    versions differ in them."""
    try:
        wanted = json.loads(body)["attributeNames"] if body else []
    except (ValueError, KeyError, TypeError, RecursionError):
        wanted = []
    entity = values.get("entityType")
    shown = dispatch.TYPES.get(entity) if isinstance(entity, str) else None
    if shown is not None and isinstance(wanted, list):
        attributes, found = shown.attributes, shown.entries(managed)
        names = [name for name in wanted if name in attributes] if wanted else list(attributes)
    elif entity not in (None, ADDRESS_TYPE):
        return ManagementResponse(400, f"entityType is one of {', '.join((ADDRESS_TYPE, *dispatch.TYPES))}")
    elif not isinstance(wanted, list) or any(name not in ADDRESS_ATTRIBUTES for name in wanted):
        return ManagementResponse(400, f"attributes are {', '.join(ADDRESS_ATTRIBUTES)}")
    else:
        names, found = wanted or list(ADDRESS_ATTRIBUTES), address_entries(managed.router)
    offset, count = values.get("offset", 0), values.get("count", MANAGEMENT_RESULTS_MAX)
    if not isinstance(offset, int) or not isinstance(count, int) or offset < 0 or count < 0:
        return ManagementResponse(400, "offset and count must be integers from 0")
    first = min(offset, sys.maxsize - MANAGEMENT_RESULTS_MAX)
    part = (entry() for entry in islice(found, first, first + min(count, MANAGEMENT_RESULTS_MAX)))
    results = [[entry[name] for name in names] for entry in part]
    return ManagementResponse(200, "OK", {"attributeNames": names, "results": results}, len(results))


def _identifier(value: Any) -> Any:
    """Return an identifier to encode: a number as a ulong (section 3.2.11), others unchanged."""
    return Ulong(value) if type(value) is int else value


def _section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)
