"""Commands of a fleet in the registry, with their states.

For the hub, in a thread of its own, and for commands of the CLI next to it: each opens the database itself. Times are
UTC microseconds since 1970. A command is one row; its state only advances:

``waiting``  on disk here
``sent``     on its way; it is unknown whether its gateway has it
``queued``   on disk at its gateway
``cancelling``  cancelled before any gateway had it; the application has not been notified yet
``rejecting``  its gateway was forgotten; the application has not been notified yet
``delivered``, ``expired``, ``rejected``, ``cancelled``  final: the first receipt counts

A ``sent`` command does not expire here, because its gateway may have it: it is sent again, and the gateway reports the
outcome. One that its gateway gives back, as its device has left, is ``waiting`` again (`command_moves`). An online
command is sent at most once, and never goes to another gateway. If no outcome arrives in its time, it is ``expired``
with the reason code ``outcome-unknown``, which a later receipt replaces. So is a command of a restored registry, as its
outcome may have been reported to the original only.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from itertools import islice, starmap
from typing import Any, NamedTuple

import sqlalchemy as sa

from bridge.command import OnlineReason
from bridge.hidden import hides
from cloud.hub.labels import LabelSelector
from cloud.hub.limits import DOUBTED_ANSWER_S, ONLINE_ANSWER_S
from cloud.hub.registry import command_keys, command_moves
from cloud.hub.registry.command_keys import OtherContent, content_digest
from cloud.hub.registry.command_moves import DevicePlaces
from cloud.hub.registry.database import Database
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event
from cloud.hub.registry.known_numbers import DOUBTED
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.names import is_connected, is_known, known_gateways
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import PARAMETERS_MAX, commands, gateways
from cloud.hub.tenants import quota_message


class CommandState(enum.Enum):
    """State of a command, see the module."""

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
"""Margin for late numbers: PostgreSQL assigns numbers before transactions end, so larger ones may appear first."""
ENDING = (CommandState.CANCELLING.value, CommandState.REJECTING.value)
"""States that end once the application has been notified."""
AT_GATEWAY = (CommandState.SENT.value, CommandState.QUEUED.value)
"""States in which the gateway may have the command, and reports its outcome."""
DOWN = (CommandState.WAITING.value, CommandState.SENT.value)
"""States in which the gateway may not have the command."""


@hides("payload", "response", "correlation_id")
class CommandRecord(NamedTuple):
    """Command in the registry."""

    number: int
    """Order of sending; 0 before it is stored."""
    id: str
    tenant: str
    gateway: str
    device: str
    name: str
    content_type: str | None
    payload: bytes
    correlation_id: str | None
    """Identifier of the application; None without one."""
    reply_to: str | None
    """Address at the hub that gets the outcome."""
    wants_response: bool
    sent_by: str
    """User; empty in development mode."""
    created_at: int
    expires_at: int
    state: str
    reason: str
    changed_at: int
    response_status: int | None = None
    response_type: str | None = None
    response: bytes | None = None
    responded_at: int | None = None
    online: bool | None = None
    """True if the device has to take it now; otherwise it waits for its device."""
    reason_code: str | None = None
    """Value of a `bridge.command.OnlineReason`; None: another reason, or none. A stored command has `outcome-unknown`
    only."""
    sent_to: str | None = None
    """Gateway that the sender named, if the command has moved to another one with its device."""
    moves: int | None = None
    """Times that the command was given back, see `command_moves`; None: its device is not one of the registry."""

    @property
    def key(self) -> tuple[str, str]:
        """(tenant, gateway)."""
        return self.tenant, self.gateway

    @property
    def digest(self) -> str:
        """Digest of the content. The reply address is not part of it, because a dynamic node ends with its
        connection."""
        payload, response = self.payload.hex(), self.wants_response
        more = ("online",) if self.online else ()
        return content_digest(*self.key, self.device, self.name, self.content_type, payload, response, *more)


class CommandNews(NamedTuple):
    """News of a command, from its gateway or from the hub."""

    id: str
    tenant: str
    gateway: str
    device: str
    at: int
    state: CommandState | None = None
    """State reported by a receipt."""
    reason: str = ""
    status: int | None = None
    content_type: str | None = None
    response: bytes | None = None
    """Content of a response; None for a receipt."""
    waiting: bool = False
    """Apply only if the command is still waiting here."""
    code: OnlineReason | None = None
    """Reason code of an online command, or of one with an unknown outcome."""
    again_until: int = 0
    """Time until which the hub tries again to store it (UTC microseconds)."""
    returned: bool = False
    """The gateway does not have the command any more, or has never had it, as it does not know the device."""
    moves: int | None = None
    """Times that the command had been given back when it was sent; None: not known."""
    sent_at: int | None = None
    """Time of the sending that a gateway has refused; None: news about none."""


class CommandRefusal(enum.Enum):
    """Reason why a command is refused."""

    NO_GATEWAY = "no gateway"
    FULL = "full"
    TENANT_FULL = "tenant full"
    OTHER_CONTENT = "other content"
    """Its key was used for another command."""
    NOT_CONNECTED = "not connected"
    """The command is an online one, and its gateway is not connected."""


class CommandRefused(Exception):
    """The command is refused; the message says why and what to do."""

    def __init__(self, why: CommandRefusal, words: str) -> None:
        super().__init__(words)
        self.why = why


class CancelTooLate(Exception):
    """The command cannot be cancelled; the message says why."""

    def __init__(self, command: CommandRecord) -> None:
        place = "its gateway has it" if command.state == CommandState.QUEUED.value else "it may be at its gateway"
        words = place if not CommandState(command.state).final else "it is completed"
        super().__init__(f"command {command.id} is {command.state}: {words}, and it cannot be cancelled any more")
        self.command = command


class CommandOutlook(NamedTuple):
    """Expectation for a command to one gateway."""

    gateway: str
    connected: bool
    """It gets the command at once; otherwise when it connects before the end of the time to live."""
    last_seen: int | None
    """UTC microseconds; None for never."""
    why_not: str
    """Reason why the command would be refused; empty if it would be sent."""


class CommandFilter(NamedTuple):
    """Filter of a list of commands; None matches any value."""

    tenant: str | None = None
    gateway: str | None = None
    device: str | None = None
    state: str | None = None
    before: int | None = None
    """Only commands with smaller numbers."""


class Commands:
    """Commands in the registry, for the thread that creates it. Every method is one transaction, durable on return;
    raises `RegistryError`."""

    def __init__(self, url: sa.URL, *, reading: bool = False) -> None:
        """Open the registry; create a missing one. `reading`: it exists, nothing is changed, and no writer is
        delayed."""
        self._database = Database(url, reading=True) if reading else open_registry(url).database
        self._held: dict[tuple[str, str], None] = {}
        """Gateways with commands that waited for others at the last look, by the time of that look."""

    def close(self) -> None:
        self._database.close()

    def add(
        self,
        command: CommandRecord,
        *,
        gateway_max: int,
        tenant_max: int,
        known: bool = False,
        connected: bool = False,
        hub: str = "",
        key: str | None = None,
        follows: bool = True,
    ) -> CommandRecord:
        """Store a new command. Raises `CommandRefused`.

        `gateway_max`, `tenant_max`: limits of open commands. `known`: the gateway has connected, whatever the registry
        says yet; `connected`: it is connected to this hub now. `hub`: writer id of this hub. `follows`: it goes with
        its device, unless it is an online one. `key`: idempotency key of the sender; if a command was sent under it,
        return that one.
        """

        def work(tx: sa.Connection) -> CommandRecord:
            if key is not None and (there := _sent_before(tx, command, key)) is not None:
                return there
            placed = command if command.online else _placed(tx, command, follows=follows)
            if not known or placed.gateway != command.gateway:
                _require_gateway(tx, placed)
            if command.online and not connected:
                _require_connection(tx, command, hub)
            _require_room(tx, placed, gateway_max, tenant_max)
            values = placed._asdict()
            del values["number"]
            number = tx.execute(commands.insert().values(**values)).inserted_primary_key
            if key is not None:
                times = (command.created_at, command.expires_at)
                command_keys.store_key(tx, (command.tenant, command.sent_by), key, command.digest, command.id, times)
            notify(tx, NoticeTopic.COMMANDS, (placed.key,))
            return placed._replace(number=int(number[0]) if number is not None else 0)

        return self._database.transaction(work)

    def cancel(self, identifier: str, by: str, now_us: int) -> CommandRecord | None:
        """Cancel a command; a cancelled one is returned unchanged, None if unknown. Raises `CancelTooLate` if its
        gateway may have it, or it is completed."""

        def work(tx: sa.Connection) -> CommandRecord | None:
            found = _one(tx, identifier)
            if found is None or found.state in (CommandState.CANCELLING.value, CommandState.CANCELLED.value):
                return found
            if found.state != CommandState.WAITING.value:
                raise CancelTooLate(found)
            reason = f"cancelled by {by}" if by else "cancelled"
            after = found._replace(state=CommandState.CANCELLING.value, reason=reason, changed_at=now_us)
            values = {"state": after.state, "reason": reason, "changed_at": now_us}
            tx.execute(commands.update().where(commands.c.id == identifier).values(**values))
            notify(tx, NoticeTopic.COMMANDS)
            return after

        return self._database.transaction(work)

    def take(self, key: tuple[str, str], but: Collection[str], limit: int, now_us: int) -> list[CommandRecord]:
        """Mark the next commands of a gateway as sent, in order, except those in `but`, and those that wait for earlier
        ones of their device. From now on it is unknown whether the gateway has them. An online command is returned only
        once, to one hub."""
        again = (commands.c.state == CommandState.SENT.value) & commands.c.online.is_not(True)
        still = sa.or_(again, (commands.c.state == CommandState.WAITING.value) & (commands.c.expires_at > now_us))
        mine = (commands.c.tenant == key[0], commands.c.gateway == key[1])
        down = (commands.c.state.in_(DOWN), still, *mine)

        def work(tx: sa.Connection) -> list[CommandRecord]:
            query = sa.select(*_COMMAND).where(*down, commands.c.id.not_in(but)).order_by(commands.c.number)
            held = command_moves.held_numbers(tx, key, now_us)
            some: list[int] | None = None
            if held is not None:
                some = command_moves.sendable_numbers(tx, down, held, but, limit)
                query = query.where(commands.c.number.in_(some))
            found = [CommandRecord(*row) for row in tx.execute(query.limit(limit))] if some != [] else []
            taken = _mark_sent(tx, found, now_us)
            self._held.pop(key, None)
            if held is not None and command_moves.has_waiting(tx, key):
                self._held[key] = None
            return taken

        return self._database.transaction(work)

    def rehearse(
        self, tenant: str, chosen: Collection[str] | LabelSelector, *, gateway_max: int, tenant_max: int, most: int
    ) -> tuple[list[CommandOutlook], int]:
        """Return what would happen to a command for each of these gateways, up to `most` of them by name, and the
        number of all. Nothing is changed."""

        def work(tx: sa.Connection) -> tuple[list[CommandOutlook], int]:
            known = known_gateways(tx, tenant)
            if isinstance(chosen, LabelSelector):
                labelled = labels_of(tx, tenant)
                names = [name for name in known if chosen.matches(labelled.get(name, {}))]
            else:
                names = sorted(chosen)
            still = sa.select(commands.c.gateway, sa.func.count()).where(
                commands.c.state.in_(OPEN), commands.c.tenant == tenant
            )
            counted = {row[0]: row[1] for row in tx.execute(still.group_by(commands.c.gateway))}
            seen = _last_seen(tx, tenant)
            full = quota_message(tenant, "commands") if sum(counted.values()) + len(names) > tenant_max else ""
            found = []
            for name in names[:most]:
                why = full or (f"it has {gateway_max} open commands" if counted.get(name, 0) >= gateway_max else "")
                why = why if name in known else f"tenant {tenant} has no gateway {name}"
                found.append(CommandOutlook(name, known.get(name, False), seen.get(name), why))
            return found, len(names)

        return self._database.transaction(work)

    def newest(self) -> int:
        """Return the number of the last command."""
        query = sa.select(sa.func.max(commands.c.number))
        return self._database.transaction(lambda tx: tx.execute(query).scalar()) or 0

    def gateways_of(self, after: int) -> set[tuple[str, str]]:
        """Return gateways with commands to send that have this number or a larger one, with a margin for late
        numbers."""
        late = commands.c.number > after - LATE_NUMBERS
        query = sa.select(commands.c.tenant, commands.c.gateway).where(late, commands.c.state.in_(DOWN)).distinct()
        rows = self._database.transaction(lambda tx: tx.execute(query).all())
        return {(tenant, gateway) for tenant, gateway in rows}

    def newest_move(self) -> int:
        """Return the number of the last move of a command."""
        return self._database.transaction(command_moves.newest_move)

    def gateways_moved_to(self, after: int) -> Sequence[tuple[str, str]]:
        """Return gateways to which commands have moved after another move."""
        return self._database.transaction(lambda tx: command_moves.gateways_moved_to(tx, after))

    def held_gateways(self, limit: int) -> list[tuple[str, str]]:
        """Return gateways with commands that had to wait at the last `take`, the longest first, and forget them until
        the next `take`."""
        found = list(islice(self._held, limit))
        for key in found:
            del self._held[key]
        return found

    def effective_news(self, news: Iterable[CommandNews]) -> list[tuple[CommandNews, CommandRecord]]:
        """Return the effective news, each with the command as it would become. One that ends a command which cannot go
        elsewhere does so too if it is kept later."""

        def work(tx: sa.Connection) -> list[tuple[CommandNews, CommandRecord]]:
            places = DevicePlaces(tx)
            effective: list[tuple[CommandNews, CommandRecord]] = []
            after: dict[str, CommandRecord] = {}
            for each in news:
                before = after.get(each.id) or _one(tx, each.id)
                found = None if before is None else _changed(places, before, each)
                if found is not None:
                    after[each.id] = found
                    ended = each.returned and CommandState(found.state).final
                    effective.append((each._replace(returned=False) if ended else each, found))
            return effective

        return self._database.transaction(work)

    def keep(self, news: Iterable[CommandNews]) -> list[CommandRecord]:
        """Apply news; return the changed commands."""

        def work(tx: sa.Connection) -> list[CommandRecord]:
            places = DevicePlaces(tx)
            effective = [(each, found) for each in news if (found := _take(tx, places, each))]
            if effective:
                _notify_changed(tx, [found for _, found in effective])
                told = [each for each in effective if each[1].state != CommandState.WAITING.value]
                append_events(tx, starmap(_command_event, told))
            return [found for _, found in effective]

        return self._database.transaction(work)

    def next_gateways(self, changed: Iterable[CommandRecord]) -> set[tuple[str, str]]:
        """Return the gateways to which commands may leave after changes: those that wait again, and those that had to
        wait at the last `take` for one that has changed. A response frees none."""
        following = [each for each in changed if each.moves is not None and each.responded_at != each.changed_at]
        waiting = CommandState.WAITING.value
        return {each.key for each in following if each.state == waiting or each.key in self._held}

    def find_pending(self, identifiers: Collection[str]) -> set[str]:
        """Return those of these commands that are not completed, including a wanted response."""
        awaited = (commands.c.state == CommandState.DELIVERED.value) & commands.c.wants_response
        pending = commands.c.responded_at.is_(None) & (commands.c.state.in_(OPEN) | awaited)
        names, most = sorted(identifiers), PARAMETERS_MAX - 10
        parts = [names[start : start + most] for start in range(0, len(names), most)]
        queries = [sa.select(commands.c.id).where(commands.c.id.in_(part), pending) for part in parts]
        return self._database.transaction(lambda tx: {row.id for query in queries for row in tx.execute(query)})

    def over(self, now_us: int, limit: int) -> list[CommandRecord]:
        """Return commands that no gateway will get: expired, cancelled, or with a forgotten gateway; and sent online
        commands without an outcome in their time."""
        late = sa.and_(commands.c.state == CommandState.WAITING.value, commands.c.expires_at <= now_us)
        ending = commands.c.state.in_(ENDING)
        found = self._rows(sa.select(*_COMMAND).where(sa.or_(late, ending)).limit(limit))
        before_us = now_us - int(ONLINE_ANSWER_S * 1e6)
        unanswered = (commands.c.state.in_(AT_GATEWAY), commands.c.expires_at <= before_us)
        query = sa.select(*_COMMAND).where(commands.c.online.is_(True), *unanswered)
        return found + self._rows(query.limit(limit - len(found)))

    def doubted(self, now_us: int, limit: int) -> list[CommandRecord]:
        """Return commands of a restored registry that its gateways had, and have not reported in their time."""
        late = commands.c.expires_at <= now_us - int(DOUBTED_ANSWER_S * 1e6)
        doubted = (commands.c.state.in_(AT_GATEWAY), commands.c.reason == DOUBTED, late)
        return self._rows(sa.select(*_COMMAND).where(*doubted).limit(limit))

    def get(self, identifier: str) -> CommandRecord | None:
        """Return a command; None if unknown."""
        found = self._rows(sa.select(*_COMMAND).where(commands.c.id == identifier))
        return found[0] if found else None

    def describe(self, identifier: str, now_us: int) -> CommandRecord | None:
        """Return a command; None if unknown. One that waits for an earlier one of its device has that as its reason."""

        def work(tx: sa.Connection) -> CommandRecord | None:
            found = _one(tx, identifier)
            if found is None or found.state != CommandState.WAITING.value or found.moves is None or found.online:
                return found
            hold = command_moves.find_hold(tx, found, now_us)
            return found if hold is None else found._replace(reason=hold)

        return self._database.transaction(work)

    def page(self, wanted: CommandFilter, limit: int) -> list[CommandRecord]:
        """Return commands, the newest first."""
        query = sa.select(*_COMMAND).order_by(commands.c.number.desc()).limit(limit)
        equal = {"tenant": wanted.tenant, "gateway": wanted.gateway, "device": wanted.device, "state": wanted.state}
        for name, value in equal.items():
            if value is not None:
                query = query.where(commands.c[name] == value)
        if wanted.before is not None:
            query = query.where(commands.c.number < wanted.before)
        return self._rows(query)

    def counts(self) -> dict[str, int]:
        """Return the number of commands by state."""
        query = sa.select(commands.c.state, sa.func.count()).group_by(commands.c.state)
        return {str(row[0]): int(row[1]) for row in self._database.transaction(lambda tx: tx.execute(query).all())}

    def forget(self, before_us: int, limit: int, now_us: int) -> int:
        """Delete old commands that can no longer change, and expired keys; return the number of commands."""
        old = sa.select(commands.c.number).where(commands.c.changed_at < before_us, commands.c.expires_at < before_us)

        def work(tx: sa.Connection) -> int:
            numbers = [row[0] for row in tx.execute(old.limit(limit))]
            tx.execute(commands.delete().where(commands.c.number.in_(numbers)))
            command_keys.delete_expired(tx, now_us)
            return len(numbers)

        return self._database.transaction(work)

    def _rows(self, query: sa.Select[Any]) -> list[CommandRecord]:
        return [CommandRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]


_COMMAND = [commands.c[name] for name in CommandRecord._fields]


def _one(tx: sa.Connection, identifier: str) -> CommandRecord | None:
    row = tx.execute(sa.select(*_COMMAND).where(commands.c.id == identifier)).first()
    return CommandRecord(*row) if row is not None else None


def _sent_before(tx: sa.Connection, command: CommandRecord, key: str) -> CommandRecord | None:
    """Return the command of a key; None without one. Raises `CommandRefused`."""
    try:
        identifier = command_keys.find_command(
            tx, (command.tenant, command.sent_by), key, command.digest, command.created_at
        )
    except OtherContent:
        words = f"another command was sent with the idempotency key {key[:64]!r}: use a new key for each command"
        raise CommandRefused(CommandRefusal.OTHER_CONTENT, words) from None
    there = _one(tx, identifier) if identifier is not None else None
    if there is None or there.reply_to == command.reply_to:
        return there
    tx.execute(commands.update().where(commands.c.id == there.id).values(reply_to=command.reply_to))
    return there._replace(reply_to=command.reply_to)


def _notify_changed(tx: sa.Connection, changed: Sequence[CommandRecord]) -> None:
    """Tell other hubs of completed commands, for which requests may wait there, and of those that wait again, as their
    gateway may be connected there."""
    completed = [(each.id,) for each in changed if CommandState(each.state).final or each.responded_at is not None]
    waiting = [each.key for each in changed if each.state == CommandState.WAITING.value]
    if completed:
        notify(tx, NoticeTopic.RECEIPTS, completed)
    if waiting:
        notify(tx, NoticeTopic.COMMANDS, waiting)


def _last_seen(tx: sa.Connection, tenant: str) -> dict[str, int]:
    query = sa.select(gateways.c.name, gateways.c.last_seen).where(gateways.c.tenant == tenant)
    return {row.name: row.last_seen for row in tx.execute(query)}


def _require_gateway(tx: sa.Connection, command: CommandRecord) -> None:
    if is_known(tx, command.tenant, command.gateway):
        return
    words = f"tenant {command.tenant} has no gateway {command.gateway}"
    raise CommandRefused(CommandRefusal.NO_GATEWAY, f"{words}: waypost gateway list shows the enrolled ones")


def _require_connection(tx: sa.Connection, command: CommandRecord, hub: str) -> None:
    """Check that the gateway is connected to another hub."""
    if is_connected(tx, command.tenant, command.gateway, but=hub):
        return
    words = f"gateway {command.gateway} is not connected, and an online command does not wait"
    raise CommandRefused(CommandRefusal.NOT_CONNECTED, words)


def _claim(tx: sa.Connection, command: CommandRecord, now_us: int) -> bool:
    """Mark a waiting online command as sent. Return False if another hub has done so."""
    mine = (commands.c.id == command.id, commands.c.state == CommandState.WAITING.value)
    values = {"state": CommandState.SENT.value, "changed_at": now_us}
    return tx.execute(commands.update().where(*mine).values(**values)).rowcount == 1


def _mark_sent(tx: sa.Connection, found: Sequence[CommandRecord], now_us: int) -> list[CommandRecord]:
    """Mark commands as sent. Return them without online ones that another hub has taken."""
    # a repeated sending is another one: an answer to the former says nothing about it
    sent_at = max([now_us, *(each.changed_at + 1 for each in found)])
    stored = [each.number for each in found if not each.online]
    if stored:
        sent = commands.update().where(commands.c.number.in_(stored))
        tx.execute(sent.values(state=CommandState.SENT.value, changed_at=sent_at))
    mine = [each for each in found if not each.online or _claim(tx, each, sent_at)]
    return [each._replace(changed_at=sent_at) for each in mine]


def _require_room(tx: sa.Connection, command: CommandRecord, gateway_max: int, tenant_max: int) -> None:
    still = sa.select(sa.func.count()).where(commands.c.state.in_(OPEN), commands.c.tenant == command.tenant)
    if (tx.execute(still).scalar() or 0) >= tenant_max:
        words = f"{quota_message(command.tenant, 'commands')}: {tenant_max} are open"
        raise CommandRefused(CommandRefusal.TENANT_FULL, f"{words}; wait, or send with a shorter time to live")
    if (tx.execute(still.where(commands.c.gateway == command.gateway)).scalar() or 0) >= gateway_max:
        words = f"gateway {command.gateway} has {gateway_max} open commands"
        raise CommandRefused(CommandRefusal.FULL, f"{words}; wait, or send with a shorter time to live")


def _placed(tx: sa.Connection, command: CommandRecord, *, follows: bool) -> CommandRecord:
    """Return a new command with its place, if its device is one of the registry."""
    found = command_moves.place_new(tx, command.tenant, command.device, command.gateway, follows=follows)
    return command if found is None else command._replace(**found._asdict())


def _take(tx: sa.Connection, places: DevicePlaces, news: CommandNews) -> CommandRecord | None:
    """Apply news to a command; return it if it changed."""
    before = _one(tx, news.id)
    found = None if before is None else _changed(places, before, news)
    if found is not None and before is not None:
        values = {name: value for name, value in found._asdict().items() if value != getattr(before, name)}
        if found.state == CommandState.WAITING.value:
            values["moved"] = command_moves.next_move(tx)
        tx.execute(commands.update().where(commands.c.id == news.id).values(**values))
    return found


def _changed(places: DevicePlaces, found: CommandRecord, news: CommandNews) -> CommandRecord | None:
    """Return the command after the news; None without a change."""
    if not _is_about(places, found, news):
        return None
    if news.returned and not found.online:  # an online one goes nowhere else: it is rejected
        return _returned(places, found, news)
    values = _response(found, news) if news.response is not None else _receipt(found, news)
    return found._replace(**values) if values else None


def _is_about(places: DevicePlaces, found: CommandRecord, news: CommandNews) -> bool:
    """Return whether news of a gateway may be about a command: that gateway has it, or its device responds from where
    it is now."""
    if (found.tenant, found.device) != (news.tenant, news.device):
        return False
    if found.gateway == news.gateway or news.response is None or found.moves is None:
        return found.gateway == news.gateway
    now = places.of(found.tenant, found.device)
    return now is not None and now.has(news.gateway)


def _returned(places: DevicePlaces, found: CommandRecord, news: CommandNews) -> CommandRecord | None:
    """Return a command that its gateway has given back: it goes where its device is, or it is rejected."""
    if found.state not in (CommandState.SENT.value, CommandState.QUEUED.value) or _is_outdated(found, news):
        return None
    to = command_moves.place_returned(places.of(found.tenant, found.device), found.gateway, found.sent_to, found.moves)
    if to is None:
        return found._replace(state=CommandState.REJECTED.value, reason=news.reason, changed_at=news.at)
    reason = news.reason if to.gateway == found.gateway else f"moved with its device from {found.gateway}"
    state = CommandState.WAITING.value
    return found._replace(**to._asdict(), state=state, reason=reason, changed_at=news.at)


def _is_outdated(found: CommandRecord, news: CommandNews) -> bool:
    """Return whether news is about a former sending of a command that was given back since."""
    if news.sent_at is not None and (found.state != CommandState.SENT.value or found.changed_at != news.sent_at):
        return True  # it was sent again since, and that sending has an answer of its own
    return news.moves is not None and news.moves != command_moves.times_returned(found.moves)


def _command_event(news: CommandNews, after: CommandRecord) -> FleetEvent:
    """Return the event about a command, as it is after the news."""
    about: dict[str, Any] = {"device": after.device, "name": after.name}
    if after.reason_code is not None:
        about["reason_code"] = after.reason_code
    if news.response is not None:
        kind, about["status"] = EventType.COMMAND_RESPONSE, news.status
    else:
        kind, about["state"], about["reason"] = EventType.COMMAND_RECEIPT, after.state, after.reason or None
    return make_event(news.at, kind, *after.key, after.id, **about)


def _response(found: CommandRecord, news: CommandNews) -> dict[str, Any]:
    if found.responded_at is not None:
        return {}
    return {
        "response_status": news.status,
        "response_type": news.content_type,
        "response": news.response,
        "responded_at": news.at,
        "changed_at": news.at,
    }


def _receipt(found: CommandRecord, news: CommandNews) -> dict[str, Any]:
    before, state = CommandState(found.state), news.state
    if news.waiting and before is not CommandState.WAITING:
        return {}
    unknown = before is CommandState.EXPIRED and found.reason_code == OnlineReason.OUTCOME_UNKNOWN.value
    if state is None or (before.final and (not unknown or news.code is OnlineReason.OUTCOME_UNKNOWN)):
        return {}
    if state is CommandState.QUEUED and (
        unknown or before.value in (CommandState.QUEUED.value, *ENDING) or _is_outdated(found, news)
    ):
        return {}
    kept = state is CommandState.QUEUED and found.reason in (command_moves.LEFT, DOUBTED)
    code = None if news.code is None else news.code.value
    reason = found.reason if kept else news.reason
    return {"state": state.value, "reason": reason, "reason_code": code, "changed_at": news.at}
