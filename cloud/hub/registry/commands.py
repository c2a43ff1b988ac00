"""Commands of a fleet: what was sent to which device, and what became of it.

For the hub, in a thread of its own, and for programs beside it: each opens the database for itself. Times are UTC
microseconds since 1970. A command is one row; its state goes one way:

``waiting``  on disk here
``sent``     on its way: whether its gateway has it nobody knows
``queued``   on disk at its gateway
``cancelling``  somebody has cancelled what no gateway has: it goes nowhere, and who waits for it is told
``rejecting``  its gateway was forgotten: as above
``delivered``, ``expired``, ``rejected``, ``cancelled``  for good: the first receipt counts. What is ``sent`` does
not expire here, as its gateway may have it: it is sent again, and the gateway says what became of it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.registry import command_keys
from cloud.hub.registry.command_keys import OtherContent, content_digest
from cloud.hub.registry.names import is_known
from cloud.hub.registry.opening import opened
from cloud.hub.registry.schema import commands
from cloud.hub.tenants import full


class CommandState(enum.Enum):
    """See the module."""

    WAITING = "waiting"
    SENT = "sent"
    QUEUED = "queued"
    CANCELLING = "cancelling"
    REJECTING = "rejecting"
    DELIVERED = "delivered"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = (CommandState.DELIVERED, CommandState.EXPIRED, CommandState.REJECTED, CommandState.CANCELLED)
OPEN = tuple(state.value for state in CommandState if not state.final)
LATE_NUMBERS = 1_000
"""On PostgreSQL a number is given before the transaction ends: others that are larger may be seen before it."""
ENDING = (CommandState.CANCELLING.value, CommandState.REJECTING.value)
"""States of what is over once who waits for it has been told."""
DOWN = (CommandState.WAITING.value, CommandState.SENT.value)
"""States of what its gateway may not have."""


@hides("payload", "response", "correlation_id")
class CommandRecord(NamedTuple):
    """A command as the registry knows it."""

    number: int
    """In the order they were sent; 0: not kept yet."""
    id: str
    tenant: str
    gateway: str
    device: str
    name: str
    content_type: str | None
    payload: bytes
    correlation_id: str | None
    """The application's own; None: it has none."""
    reply_to: str | None
    """Where at the hub the application wants to hear of it."""
    wants_response: bool
    sent_by: str
    """User; empty: nobody had to say who he is."""
    created_at: int
    expires_at: int
    state: str
    reason: str
    changed_at: int
    response_status: int | None = None
    response_type: str | None = None
    response: bytes | None = None
    responded_at: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Tenant and gateway."""
        return self.tenant, self.gateway

    @property
    def digest(self) -> str:
        """Of what it says. Where its sender listens is no part of that: a dynamic node ends with its connection."""
        payload, response = self.payload.hex(), self.wants_response
        return content_digest(*self.key, self.device, self.name, self.content_type, payload, response)


class News(NamedTuple):
    """What a gateway says of a command, or the hub."""

    id: str
    tenant: str
    gateway: str
    device: str
    at: int
    state: CommandState | None = None
    """A receipt says this."""
    reason: str = ""
    status: int | None = None
    content_type: str | None = None
    response: bytes | None = None
    """A response says this; None: it is a receipt."""
    waiting: bool = False
    """It is so only if the command is still waiting here."""


class Refused(enum.Enum):
    """Why a command is not taken."""

    NO_GATEWAY = "no gateway"
    FULL = "full"
    TENANT_FULL = "tenant full"
    OTHER_CONTENT = "other content"
    """Its key is that of another command."""


class CommandRefused(Exception):
    """A command is not taken; the message tells a person why and what to do."""

    def __init__(self, why: Refused, words: str) -> None:
        super().__init__(words)
        self.why = why


class TooLate(Exception):
    """A command is not cancelled; the message tells a person why."""

    def __init__(self, command: CommandRecord) -> None:
        place = "its gateway has it" if command.state == CommandState.QUEUED.value else "it may be at its gateway"
        words = place if not CommandState(command.state).final else "it is over"
        super().__init__(f"command {command.id} is {command.state}: {words}, and it cannot be cancelled any more")
        self.command = command


class Wanted(NamedTuple):
    """Which commands a list is to have; None: any."""

    tenant: str | None = None
    gateway: str | None = None
    device: str | None = None
    state: str | None = None
    before: int | None = None
    """Sent before the one of this number."""


class Commands:
    """For the thread that makes it. Every method is one transaction, durable on return; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Opens the registry, and makes it where there is none."""
        self._database = opened(url).database

    def close(self) -> None:
        self._database.close()

    def add(
        self,
        command: CommandRecord,
        *,
        gateway_max: int,
        tenant_max: int,
        known: bool = False,
        key: str | None = None,
    ) -> CommandRecord:
        """Keep a new one; `gateway_max`, `tenant_max`: how many may be open; `known`: its gateway is known to be there,
        whatever the registry says yet; `key`: its sender's idempotency key, under which it is one command however often
        it is sent: then returns the one that is there. Raises `CommandRefused`."""

        def work(tx: sa.Connection) -> CommandRecord:
            if key is not None and (there := _sent_before(tx, command, key)) is not None:
                return there
            if not known:
                _require_gateway(tx, command)
            _require_room(tx, command, gateway_max, tenant_max)
            values = command._asdict()
            del values["number"]
            number = tx.execute(commands.insert().values(**values)).inserted_primary_key
            if key is not None:
                times = (command.created_at, command.expires_at)
                command_keys.keep(tx, (command.tenant, command.sent_by), key, command.digest, command.id, times)
            return command._replace(number=int(number[0]) if number is not None else 0)

        return self._database.transaction(work)

    def cancel(self, identifier: str, by: str, now_us: int) -> CommandRecord | None:
        """Keep a command from its gateway; one that is cancelled already is as it was. None: there is none. Raises
        `TooLate` where its gateway may have it, or it is over."""

        def work(tx: sa.Connection) -> CommandRecord | None:
            found = _one(tx, identifier)
            if found is None or found.state in (CommandState.CANCELLING.value, CommandState.CANCELLED.value):
                return found
            if found.state != CommandState.WAITING.value:
                raise TooLate(found)
            reason = f"cancelled by {by}" if by else "cancelled"
            after = found._replace(state=CommandState.CANCELLING.value, reason=reason, changed_at=now_us)
            values = {"state": after.state, "reason": reason, "changed_at": now_us}
            tx.execute(commands.update().where(commands.c.id == identifier).values(**values))
            return after

        return self._database.transaction(work)

    def take(self, key: tuple[str, str], but: Collection[str], limit: int, now_us: int) -> list[CommandRecord]:
        """What is to be sent to a gateway next, in order, but those of these identifiers: whether the gateway has it
        nobody knows from now on."""
        here = (commands.c.tenant == key[0], commands.c.gateway == key[1], commands.c.id.not_in(but))
        still = sa.or_(commands.c.state == CommandState.SENT.value, commands.c.expires_at > now_us)
        there = sa.select(*_COMMAND).where(commands.c.state.in_(DOWN), still, *here)
        query = there.order_by(commands.c.number).limit(limit)
        values = {"state": CommandState.SENT.value, "changed_at": now_us}

        def work(tx: sa.Connection) -> list[CommandRecord]:
            found = [CommandRecord(*row) for row in tx.execute(query)]
            waiting = [each.id for each in found if each.state == CommandState.WAITING.value]
            if waiting:
                tx.execute(commands.update().where(commands.c.id.in_(waiting)).values(**values))
            return found

        return self._database.transaction(work)

    def newest(self) -> int:
        """The number of the last command."""
        query = sa.select(sa.func.max(commands.c.number))
        return self._database.transaction(lambda tx: tx.execute(query).scalar()) or 0

    def gateways_of(self, after: int) -> set[tuple[str, str]]:
        """Gateways for whom commands have come since the one of this number, or shortly before."""
        late = commands.c.number > after - LATE_NUMBERS
        query = sa.select(commands.c.tenant, commands.c.gateway).where(late, commands.c.state.in_(DOWN)).distinct()
        rows = self._database.transaction(lambda tx: tx.execute(query).all())
        return {(tenant, gateway) for tenant, gateway in rows}

    def changed_by(self, news: Iterable[News]) -> list[tuple[News, CommandRecord]]:
        """What of this is news, and each command as it would be."""
        return self._database.transaction(
            lambda tx: [(each, found) for each in news if (found := _changed(tx, each)[0])]
        )

    def keep(self, news: Iterable[News]) -> list[CommandRecord]:
        """What gateways said of commands, and the hub. Returns those it has changed."""
        return self._database.transaction(lambda tx: [found for each in news if (found := _take(tx, each))])

    def over(self, now_us: int, limit: int) -> list[CommandRecord]:
        """What no gateway gets any more: its time is over, or somebody has cancelled it, or forgotten the gateway."""
        late = sa.and_(commands.c.state == CommandState.WAITING.value, commands.c.expires_at <= now_us)
        ending = commands.c.state.in_(ENDING)
        return self._rows(sa.select(*_COMMAND).where(sa.or_(late, ending)).limit(limit))

    def get(self, identifier: str) -> CommandRecord | None:
        """One command."""
        found = self._rows(sa.select(*_COMMAND).where(commands.c.id == identifier))
        return found[0] if found else None

    def page(self, wanted: Wanted, limit: int) -> list[CommandRecord]:
        """Commands, the newest first."""
        query = sa.select(*_COMMAND).order_by(commands.c.number.desc()).limit(limit)
        equal = {"tenant": wanted.tenant, "gateway": wanted.gateway, "device": wanted.device, "state": wanted.state}
        for name, value in equal.items():
            if value is not None:
                query = query.where(commands.c[name] == value)
        if wanted.before is not None:
            query = query.where(commands.c.number < wanted.before)
        return self._rows(query)

    def counts(self) -> dict[str, int]:
        """How many there are, by state."""
        query = sa.select(commands.c.state, sa.func.count()).group_by(commands.c.state)
        return {str(row[0]): int(row[1]) for row in self._database.transaction(lambda tx: tx.execute(query).all())}

    def forget(self, before_us: int, limit: int, now_us: int) -> int:
        """Delete what has not changed since, and what it may still become is over, and keys that are kept no longer;
        returns how many commands."""
        old = sa.select(commands.c.number).where(commands.c.changed_at < before_us, commands.c.expires_at < before_us)

        def work(tx: sa.Connection) -> int:
            numbers = [row[0] for row in tx.execute(old.limit(limit))]
            tx.execute(commands.delete().where(commands.c.number.in_(numbers)))
            command_keys.forget(tx, now_us)
            return len(numbers)

        return self._database.transaction(work)

    def _rows(self, query: sa.Select[Any]) -> list[CommandRecord]:
        return [CommandRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]


_COMMAND = [commands.c[name] for name in CommandRecord._fields]


def _one(tx: sa.Connection, identifier: str) -> CommandRecord | None:
    row = tx.execute(sa.select(*_COMMAND).where(commands.c.id == identifier)).first()
    return CommandRecord(*row) if row is not None else None


def _sent_before(tx: sa.Connection, command: CommandRecord, key: str) -> CommandRecord | None:
    """The command of this key. Raises `CommandRefused`."""
    try:
        identifier = command_keys.known(tx, (command.tenant, command.sent_by), key, command.digest, command.created_at)
    except OtherContent:
        words = f"another command was sent with the idempotency key {key[:64]!r}: each command has a key of its own"
        raise CommandRefused(Refused.OTHER_CONTENT, words) from None
    there = _one(tx, identifier) if identifier is not None else None
    if there is None or there.reply_to == command.reply_to:
        return there
    tx.execute(commands.update().where(commands.c.id == there.id).values(reply_to=command.reply_to))
    return there._replace(reply_to=command.reply_to)


def _require_gateway(tx: sa.Connection, command: CommandRecord) -> None:
    if is_known(tx, command.tenant, command.gateway):
        return
    words = f"tenant {command.tenant} has no gateway {command.gateway}"
    raise CommandRefused(Refused.NO_GATEWAY, f"{words}: waypost fleet list shows those that have enrolled")


def _require_room(tx: sa.Connection, command: CommandRecord, gateway_max: int, tenant_max: int) -> None:
    still = sa.select(sa.func.count()).where(commands.c.state.in_(OPEN), commands.c.tenant == command.tenant)
    if (tx.execute(still).scalar() or 0) >= tenant_max:
        words = f"{full(command.tenant, 'commands')}: {tenant_max} are not over"
        raise CommandRefused(Refused.TENANT_FULL, f"{words}; wait, or send with a shorter time to live")
    if (tx.execute(still.where(commands.c.gateway == command.gateway)).scalar() or 0) >= gateway_max:
        words = f"gateway {command.gateway} has {gateway_max} commands that are not over"
        raise CommandRefused(Refused.FULL, f"{words}; wait, or send with a shorter time to live")


def _take(tx: sa.Connection, news: News) -> CommandRecord | None:
    """Write what somebody says of one command; None where it changes nothing."""
    found, values = _changed(tx, news)
    if found is not None:
        tx.execute(commands.update().where(commands.c.id == news.id).values(**values))
    return found


def _changed(tx: sa.Connection, news: News) -> tuple[CommandRecord | None, dict[str, Any]]:
    """The command as it is then, and what of it is new."""
    found = _one(tx, news.id)
    if found is None or found.key != (news.tenant, news.gateway) or found.device != news.device:
        return None, {}
    values = _response(found, news) if news.response is not None else _receipt(found, news)
    return (found._replace(**values), values) if values else (None, {})


def _response(found: CommandRecord, news: News) -> dict[str, Any]:
    if found.responded_at is not None:
        return {}
    return {
        "response_status": news.status,
        "response_type": news.content_type,
        "response": news.response,
        "responded_at": news.at,
        "changed_at": news.at,
    }


def _receipt(found: CommandRecord, news: News) -> dict[str, Any]:
    before, state = CommandState(found.state), news.state
    if news.waiting and before is not CommandState.WAITING:
        return {}
    if state is None or before.final:
        return {}
    if state is CommandState.QUEUED and before.value in (CommandState.QUEUED.value, *ENDING):
        return {}
    return {"state": state.value, "reason": news.reason, "changed_at": news.at}
