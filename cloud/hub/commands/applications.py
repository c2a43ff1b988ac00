"""Commands over AMQP: applications send them in their tenant's space, and receive the outcomes there.

- ``command/<gateway>/<device>``: target for commands; a message is `accepted` when the command is on disk. The
  message-id is an idempotency key: a repeated message is the same command. With the application property ``delivery``:
  ``online`` the message is `accepted` when the device has accepted the command; otherwise it is `rejected`, with the
  reason code as condition (``waypost:device-not-connected``).
- ``command-receipt/<gateway>/<device>``, ``command-response/<gateway>/<device>``: topics with all outcomes.
- ``command-reply/...``, or a dynamic node, given as `reply-to`: outcomes for one application, kept for a day.

Rights on these addresses are checked as for any address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import DecodeError, Int, Symbol, Uint
from bridge.command import RECEIPTS, RESPONSES, OnlineReason
from bridge.engine import Engine, Link
from bridge.message import AMQP, DURABLE, Run, Stored
from cloud.hub.commands.documents import (
    STORED,
    CommandDocument,
    Delivery,
    InvalidCommand,
    check_command,
    command_document,
)
from cloud.hub.commands.limits import ONLINE_SENDING_MAX, OUTCOME_S_MAX, REPLY_TTL_S, SENDING_MAX
from cloud.hub.commands.service import ApplicationsUnavailable, CommandsBusy, Draft
from cloud.hub.limits import ONLINE_ANSWER_S
from cloud.hub.peers import DEFAULT_TENANT, InvalidPeer, PeerKind, parse_user
from cloud.hub.registry.commands import CommandNews, CommandRecord, CommandRefusal, CommandRefused, CommandState
from cloud.hub.spaces import COMMANDS, Spaces, TenantSpace
from cloud.lake.faults import RegistryError
from edge.broker.amqp.addressing import AttachRefused
from edge.broker.amqp.incoming import TranslatedMessage
from edge.broker.amqp.interception import LinkInterception, LinkInterceptor
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.scheduler import Scheduler
from edge.broker.delivery.anycast import AnycastGroup
from edge.broker.message.translation import parse_message, read_header
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import (
    Consumer,
    DeliveryOutcome,
    Explanation,
    Origin,
    Refusal,
    SubscribeOptions,
    Subscription,
)
from edge.broker.router.batch import Publication

log = logging.getLogger(__name__)

Send = Callable[[Draft], Awaitable[CommandRecord]]
Wait = Callable[[str, float], Awaitable[CommandRecord | None]]
"""Waits at most some seconds until a command is completed, and returns it."""
_MESSAGE_ID, _SUBJECT, _REPLY_TO, _CORRELATION, _CONTENT_TYPE = 0, 3, 4, 5, 6
KEY: Final = "idempotency-key"
"""Application property for senders that reuse message-ids after a restart."""
DELIVERY: Final = "delivery"
"""Application property: `stored` or `online`, see `cloud.hub.commands.documents.CommandDocument`."""
CONDITION: Final = "waypost:"
"""Begin of the conditions of rejected online commands; the reason code follows."""
_ONLINE_WAIT_S: Final = ONLINE_ANSWER_S + 3.0
"""Longest wait for an outcome after the end of an online command: the registry completes it by then."""
_MS: Final = 1000


def read_command(
    tenant: str, address: str, header: bytes, body: bytes, sent_by: str = "", replies: str | None = None
) -> Draft:
    """Read the command that an application sent to an address. Raises `InvalidCommand`.

    `replies`: begin of allowed reply addresses at a message broker; None: those of the tenant's space.
    """
    _, _, place = address.partition("/")
    gateway, _, device = place.rpartition("/")
    try:
        found = parse_message(body)
    except DecodeError as error:
        raise InvalidCommand(str(error)) from None
    fields: list[Any] = [*found.properties, *[None] * (_CONTENT_TYPE + 1)]
    name, reply_to, correlation = fields[_SUBJECT], fields[_REPLY_TO], fields[_CORRELATION]
    if not isinstance(name, str):
        raise InvalidCommand("the subject is missing; it is the name of the command")
    ttl_ms = read_header(header).ttl_ms
    document = CommandDocument(
        gateway=gateway,
        device=device,
        name=name,
        content_type=str(fields[_CONTENT_TYPE]) if fields[_CONTENT_TYPE] is not None else None,
        delivery=_delivery_in(found.application.get(DELIVERY, STORED)),
        ttl_s=None if ttl_ms is None else ttl_ms / _MS,
        response=reply_to is not None,
        correlation_id=str(correlation) if correlation is not None else None,
        reply_to=str(reply_to) if reply_to is not None else None,
    )
    key = found.application.get(KEY, fields[_MESSAGE_ID])
    return check_command(document, tenant, sent_by, found.body, _text(key), replies)


def _delivery_in(value: Any) -> Delivery:
    """Return the value of the application property. Raises `InvalidCommand`."""
    try:
        found: Delivery = msgspec.convert(value, Delivery)
    except msgspec.ValidationError:
        raise InvalidCommand(f"the application property {DELIVERY} must be stored or online") from None
    return found


def _text(key: Any) -> str | None:
    """Return a message-id as text. Ids of different types (AMQP 1.0 section 3.2.4) get different texts."""
    if key is None or isinstance(key, str):
        return key
    return f"{type(key).__name__}:{key.hex() if isinstance(key, bytes) else key}"


class _Relay:
    """Checks a command before it is accepted, so that its sender gets the error."""

    def __init__(self, tenant: str, address: str) -> None:
        self._tenant = tenant
        self._address = address

    def translated(self, header: bytes, body: bytes, *, settled: bool) -> TranslatedMessage | None:
        """Check a message. Raises `AttachRefused`."""
        try:
            read_command(self._tenant, self._address, header, body)
        except InvalidCommand as error:
            raise AttachRefused("amqp:invalid-field", str(error)) from None
        return TranslatedMessage(self._address, "", header, body)


class _CommandLinks(LinkInterceptor):
    """Intercepts the links of one connection."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant

    def relay(self, address: str | None) -> _Relay | None:
        if address is None or not address.startswith(f"{COMMANDS}/"):
            return None
        return _Relay(self._tenant, address)

    def receiver(
        self, engine: Engine, link: Link, driver: Scheduler, name: str, clock_ns: Callable[[], int]
    ) -> OutgoingLink | None:
        """Refuse receivers of commands. Raises `AttachRefused`."""
        if (link.source.address or "").split("/")[0] == COMMANDS:
            raise AttachRefused("amqp:not-allowed", f"commands go to devices; receive their outcomes from {RECEIPTS}/#")
        return None


class CommandInterception(LinkInterception):
    """Intercepts links to command addresses on all connections of a hub."""

    def links(self, grant: Grant | None) -> LinkInterceptor:
        return _CommandLinks(_tenant_of(grant.user if grant is not None else None))


class CommandEntry(Consumer):
    """Consumer of one tenant's commands; accepts a message when the command is on disk."""

    def __init__(self, space: TenantSpace, send: Send, wait: Wait) -> None:
        """Needs the running loop."""
        self.name = "commands"
        self._tenant = space.tenant
        self._send = send
        self._wait = wait
        self._waiting = 0
        """Online commands that wait for their outcome; they use no credit."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._joined = space.router.subscriptions.subscribe(self, f"{COMMANDS}/#", SubscribeOptions())

    @property
    def credit(self) -> int:
        return max(0, SENDING_MAX + self._waiting - len(self._tasks))

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        for stored in batch:
            for i, body in enumerate(stored.run.bodies):
                work = self._take(subscription, stored.position + i, stored.run, body)
                task = asyncio.get_running_loop().create_task(work)
                self._tasks.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._joined.pump()

    async def _take(self, subscription: Subscription, position: int, run: Run, body: bytes) -> None:
        explanation: Explanation | None = Explanation()
        draft: Draft | None = None
        try:
            draft = read_command(self._tenant, run.address, run.properties, body, run.device)
            explanation = await (self._send_online(draft) if draft.online else self._store(draft))
        except (InvalidCommand, CommandRefused) as error:
            log.info("command of %s refused: %s", run.device, error)
            if isinstance(error, CommandRefused) and error.why is CommandRefusal.NOT_CONNECTED:
                explanation = Explanation(CONDITION + OnlineReason.GATEWAY_NOT_CONNECTED.value, str(error))
        except (CommandsBusy, RegistryError) as error:
            log.warning("command of %s cannot be stored now: %s", run.device, error)
            if isinstance(error, RegistryError) and draft is not None and draft.online:  # it may be stored, and sent
                explanation = Explanation(CONDITION + _UNKNOWN, str(error))
            elif isinstance(error, CommandsBusy):
                explanation = Explanation("amqp:resource-limit-exceeded", str(error))
        if position < 0:
            return
        if explanation is not None and explanation.condition and isinstance(subscription, AnycastGroup):
            subscription.explain(self, position, explanation)
        outcome = DeliveryOutcome.ACCEPTED if explanation is None else DeliveryOutcome.REJECTED
        subscription.settle(self, position, position, outcome)

    async def _store(self, draft: Draft) -> None:
        await self._send(draft)

    async def _send_online(self, draft: Draft) -> Explanation | None:
        """Send an online command, and wait for its outcome. Return None when its device has accepted it, else the
        reason. Raises `CommandRefused`, `CommandsBusy`, `RegistryError`."""
        if self._waiting >= ONLINE_SENDING_MAX:
            raise CommandsBusy(f"{ONLINE_SENDING_MAX} online commands wait for their outcome")
        sent, seconds = await self._send(draft), draft.ttl_s + _ONLINE_WAIT_S
        self._waiting += 1
        self._joined.pump()
        try:
            found = await self._wait(sent.id, seconds) or sent
        except (CommandsBusy, RegistryError) as error:
            return Explanation(CONDITION + _UNKNOWN, str(error))
        finally:
            self._waiting -= 1
        if found.state == CommandState.DELIVERED.value:
            return None
        code = found.reason_code or (found.state if CommandState(found.state).final else _UNKNOWN)
        return Explanation(CONDITION + code, found.reason or "no outcome arrived in time")


_UNKNOWN: Final = OnlineReason.OUTCOME_UNKNOWN.value


class _OutcomeOrigin(Origin):
    """Waits until one message is stored or passed on."""

    name = "commands"

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def accepted(self, tokens: Sequence[int]) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if not self.over.done():
            if why in (Refusal.STORE_FAILED, Refusal.FULL):
                self.over.set_exception(ApplicationsUnavailable(why.value))
            else:
                self.over.set_result(None)  # it cannot be received there


class CommandApplications:
    """Publishes outcomes of commands in the spaces of all tenants."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces

    async def publish_outcome(self, news: CommandNews, command: CommandRecord) -> None:
        """Publish the outcome of a command in the tenant's space. Raises `ApplicationsUnavailable`."""
        space = self._spaces.get(command.tenant)
        if space is None:
            return
        kind = RESPONSES if news.response is not None else RECEIPTS
        addresses = [f"{kind}/{command.sent_to or command.gateway}/{command.device}"]  # as the sender knows it
        if command.reply_to is not None:
            addresses.append(command.reply_to)
        for address in addresses:
            origin = _OutcomeOrigin()
            header = plain.section(s.HEADER, [True, None, Uint(int(REPLY_TTL_S * _MS))])
            message = outcome_message(news, command, address)
            run = Run(address, command.device, AMQP | DURABLE | 1, header, [message], space.router.now_ns())
            space.router.publish(Publication(origin, run, (0,)))
            try:
                async with asyncio.timeout(OUTCOME_S_MAX):
                    await origin.over
            except TimeoutError:
                raise ApplicationsUnavailable("the tenant's space does not answer") from None


def outcome_message(news: CommandNews, command: CommandRecord, address: str) -> bytes:
    """Return the bare message of an outcome."""
    subject = "response" if news.response is not None else command.state
    name = f"{command.id}/{subject}"
    content_type = news.content_type if news.response is not None else "application/json"
    properties: list[Any] = [name, None, address, subject, None, command.correlation_id or command.id]
    if content_type is not None and content_type.isascii():
        properties.append(Symbol(content_type))
    application: dict[str, Any] = {"command": command.id, "gateway": command.gateway, "device": command.device}
    if news.response is not None and news.status is not None:
        application["status"] = Int(news.status)
    body = news.response if news.response is not None else msgspec.json.encode(command_document(command))
    return b"".join(
        (
            plain.section(s.PROPERTIES, properties),
            plain.section(s.APPLICATION_PROPERTIES, application),
            plain.data_section(body),
        )
    )


def _tenant_of(name: str | None) -> str:
    if name is None:
        return DEFAULT_TENANT
    try:
        return parse_user(name, PeerKind.APPLICATION).tenant
    except InvalidPeer:
        return DEFAULT_TENANT
