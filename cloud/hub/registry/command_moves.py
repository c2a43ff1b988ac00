"""Moves of commands: those for a device of the registry follow it from one gateway to another.

The number of moves of a command says how often it was given back. It is None if its device was not registered at its
gateway when it was sent. It is negative, and one less than zero minus that, if the command stays at its gateway because
other gateways have one of their own. How often it was given back is part of the name under which the command is sent,
as a gateway recognises repeats by their names: a command that comes back to a gateway is a new one there. Commands of a
registered device leave one by one, and none while an earlier one may still be delivered by a gateway that the device
has left. Runs in transactions of the registry; times are UTC microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.command import UNKNOWN_DEVICE
from cloud.hub.labels import Labels, parse_selector
from cloud.hub.registry.device_targets import GATEWAY, SELECTOR
from cloud.hub.registry.device_updates import device_name
from cloud.hub.registry.events import utc_us
from cloud.hub.registry.known_numbers import DOUBTED
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.names import is_known, known_gateways
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import PARAMETERS_MAX, commands, device_targets, device_tenants, devices

RETRY_S: Final = 2.0
"""Wait before a command is sent again to a gateway that does not know its device yet; doubled for each attempt."""
RETRY_S_MAX: Final = 60.0
"""Longest of these waits: a gateway without room for the device costs a command a minute until its time is over."""

LEFT: Final = "its device has moved, and this gateway has not given the command back yet"
"""Reason of a command at a gateway that its device has left."""

_WAITING: Final = "waiting"
_SENT: Final = "sent"
_UNSETTLED: Final = (_WAITING, _SENT, "queued")


class MovedCommand(NamedTuple):
    """Place of a command after a move."""

    gateway: str
    sent_to: str | None
    """Gateway that the sender named, if it is another one."""
    moves: int
    """See the module."""


class _DeviceState(msgspec.Struct, frozen=True):
    enabled: bool = True


class RegisteredPlaces:
    """Gateways at which a registered device may appear."""

    def __init__(self, tx: sa.Connection, tenant: str, targets: Collection[str]) -> None:
        self._tx = tx
        self._tenant = tenant
        self._named = {each.removeprefix(GATEWAY) for each in targets if each.startswith(GATEWAY)}
        self._selectors = [parse_selector(each.removeprefix(SELECTOR)) for each in targets if each.startswith(SELECTOR)]

    def has(self, gateway: str) -> bool:
        """Return whether the device may appear at a gateway."""
        if gateway in self._named:
            return True
        return bool(self._selectors) and self._chosen(labels_of(self._tx, self._tenant, (gateway,)).get(gateway, {}))

    @property
    def may_be_several(self) -> bool:
        """Return whether the device may appear at more than one gateway."""
        return len(self._named) > 1 or self.only is None

    @cached_property
    def only(self) -> str | None:
        """Return the known gateway at which the device appears; None without such a gateway, or more than one."""
        found = {name for name in self._named if is_known(self._tx, self._tenant, name)}
        if self._selectors and len(found) < 2:
            labelled = labels_of(self._tx, self._tenant)
            every = known_gateways(self._tx, self._tenant)
            found.update(name for name in every if self._chosen(labelled.get(name, {})))
        return found.pop() if len(found) == 1 else None

    def _chosen(self, labels: Labels) -> bool:
        return any(each.matches(labels) for each in self._selectors)


def registered_places(
    tx: sa.Connection, tenant: str, name: str, *, even_disabled: bool = False
) -> RegisteredPlaces | None:
    """Return the places of a device by its name at gateways of a tenant; None if it is not registered, or disabled."""
    device, devices_of = _split_name(tenant, name)
    owned = (device_tenants.c.tenant == devices_of, device_tenants.c.owner == tenant)
    mine = (devices.c.tenant == devices_of, devices.c.device == device, sa.exists().where(*owned))
    document = tx.execute(sa.select(devices.c.document).where(*mine)).scalar()
    if document is None or not (even_disabled or _is_enabled(document)):
        return None
    theirs = (device_targets.c.tenant == devices_of, device_targets.c.device == device, device_targets.c.present)
    return RegisteredPlaces(tx, tenant, tx.execute(sa.select(device_targets.c.target).where(*theirs)).scalars().all())


class DevicePlaces:
    """Places of devices in one transaction, each read once: a gateway gives back many commands together."""

    def __init__(self, tx: sa.Connection, *, even_disabled: bool = False) -> None:
        """`even_disabled`: also those of disabled devices."""
        self._tx = tx
        self._even_disabled = even_disabled
        self._known: dict[tuple[str, str], RegisteredPlaces | None] = {}

    def of(self, tenant: str, name: str) -> RegisteredPlaces | None:
        """Return the places of a device, as `registered_places` does."""
        key = (tenant, name)
        if key not in self._known:
            self._known[key] = registered_places(self._tx, tenant, name, even_disabled=self._even_disabled)
        return self._known[key]


def place_new(tx: sa.Connection, tenant: str, name: str, gateway: str, *, follows: bool) -> MovedCommand | None:
    """Return where a new command goes; None if its device is not one of the registry there. `follows`: it goes with its
    device; otherwise it stays at its gateway.

    A gateway that the device has left may have a user of its own by that name, if the registry does not remember the
    device there. A disabled device counts too: it may be enabled before its earlier commands are over.
    """
    places = registered_places(tx, tenant, name, even_disabled=True)
    if places is None:
        return None
    if places.has(gateway):
        return MovedCommand(gateway, None, 0 if follows else _staying(0))
    if not follows:
        return None
    device, devices_of = _split_name(tenant, name)
    before = (device_targets.c.tenant == devices_of, device_targets.c.device == device)
    was_there = sa.select(device_targets.c.device).where(*before, device_targets.c.target == f"{GATEWAY}{gateway}")
    if tx.execute(was_there).first() is None or (only := places.only) is None:
        return None
    return MovedCommand(only, gateway, 0)


def place_returned(
    places: RegisteredPlaces | None, gateway: str, sent_to: str | None, moves: int | None
) -> MovedCommand | None:
    """Return where a command goes that a gateway has given back; None if the device is at no gateway, or at several, or
    if the command does not follow it.

    A command without moves may be one of several for the device, so it stays where it is like those.
    """
    if places is None:
        return None
    to, after = gateway if places.has(gateway) else places.only, times_returned(moves) + 1
    if moves is None or moves < 0:
        return MovedCommand(gateway, sent_to, _staying(after)) if to == gateway else None
    if to is None:
        return None
    return MovedCommand(to, sent_to_after(gateway, sent_to, to), after)


def sent_to_after(gateway: str, sent_to: str | None, to: str) -> str | None:
    """Return the gateway that the sender named, after a move from `gateway`; None if the command is there."""
    named = gateway if sent_to is None else sent_to
    return None if named == to else named


def follow_device(tx: sa.Connection, owner: str, devices_of: str, device: str) -> None:
    """Let commands follow a device after a change of its registration. Those that no gateway has yet go where it is
    now; those that a former gateway may have are marked, and follow when that gateway gives them back."""
    name = device_name(owner, devices_of, device)
    mine = (commands.c.state.in_(_UNSETTLED), commands.c.tenant == owner, commands.c.device == name)
    columns = [commands.c[each] for each in ("number", "state", "gateway", "sent_to", "reason", "moves")]
    unsettled = tx.execute(sa.select(*columns).where(*mine, _in_order)).all()
    places = registered_places(tx, owner, name) if unsettled else None
    if places is None:
        return
    changed = [(row.number, values) for row in unsettled if (values := _after_move(places, row)) is not None]
    move = next_move(tx) if any("gateway" in values for _, values in changed) else None
    for number, values in changed:
        moved = {"moved": move} if "gateway" in values else {}
        tx.execute(commands.update().where(commands.c.number == number).values({**values, **moved}))
    if moved_to := {(owner, to) for _, values in changed if (to := values.get("gateway")) is not None}:
        notify(tx, NoticeTopic.COMMANDS, moved_to)


def _after_move(places: RegisteredPlaces, row: Any) -> dict[str, str | None] | None:
    """Return the new values of an unsettled command after a change of its device's registration; None without one."""
    if places.has(row.gateway):
        # the order among several gateways is not promised, and a gateway that was away gives nothing back
        return {"reason": ""} if row.reason == LEFT and places.may_be_several else None
    if row.state != _WAITING:
        return {"reason": LEFT} if row.reason not in (LEFT, DOUBTED) else None
    if row.moves < 0 or (to := places.only) is None:
        return None
    return {"gateway": to, "sent_to": sent_to_after(row.gateway, row.sent_to, to), "reason": ""}


def held_numbers(tx: sa.Connection, key: tuple[str, str], now_us: int) -> dict[str, int] | None:
    """Return for each device with waiting commands at a gateway the number from which they have to wait; None if no
    command of a registered device waits there.

    A command waits for an earlier one of its device that a gateway it has left may deliver or give back within its time
    to live, that is on its way to this gateway, or that this gateway has refused a moment ago. The device may be back
    at this gateway, which may be giving back what it had for it before. Commands that stay at other gateways hold none.
    """
    tenant, gateway = key
    names = list(tx.execute(sa.select(commands.c.device).where(*_waiting_at(key)).distinct()).scalars())
    if not names:
        return None
    held, places = dict[str, int](), DevicePlaces(tx, even_disabled=True)
    wanted = [commands.c[name] for name in _HELD_BY]
    among = (commands.c.state.in_(_UNSETTLED), commands.c.tenant == tenant, _in_order, _may_hold(gateway, now_us))
    most = PARAMETERS_MAX - 20
    for start in range(0, len(names), most):
        query = sa.select(*wanted).where(*among, commands.c.device.in_(names[start : start + most]))
        for row in tx.execute(query):
            if _holds(row, gateway, now_us) and not _is_at(places, row, gateway):
                held[row.device] = min(row.number, held.get(row.device, row.number))
    return held


def find_hold(tx: sa.Connection, waiting: Any, now_us: int) -> str | None:
    """Return what a waiting command of a registered device waits for, in words; None if it may leave."""
    mine = (commands.c.tenant == waiting.tenant, commands.c.device == waiting.device)
    before = (*mine, commands.c.number < waiting.number)
    here = (commands.c.state == _WAITING) & (commands.c.gateway == waiting.gateway)
    among = (commands.c.state.in_(_UNSETTLED), _in_order, here | _may_hold(waiting.gateway, now_us))
    wanted = [commands.c[name] for name in ("id", *_HELD_BY)]
    places = DevicePlaces(tx, even_disabled=True)
    for row in tx.execute(sa.select(*wanted).where(*before, *among).order_by(commands.c.number)):
        is_first = row.state == _WAITING and row.gateway == waiting.gateway
        if is_first or (_holds(row, waiting.gateway, now_us) and not _is_at(places, row, waiting.gateway)):
            return f"waits for command {row.id} at {row.gateway}"
    return None


def sendable_numbers(
    tx: sa.Connection,
    down: Collection[sa.ColumnElement[bool]],
    held: dict[str, int],
    but: Collection[str],
    limit: int,
) -> list[int]:
    """Return the numbers of the next commands to send, in order: the first one of each device that has moves, if it
    waits for nothing, and all others. `down`: condition of those that the gateway may not have; `but`: identifiers of
    those with an unsettled former sending; later ones of their devices wait for them."""
    columns = commands.c
    others = sa.select(columns.number).where(*down, columns.moves.is_(None), columns.id.not_in(but))
    chosen = list(tx.execute(others.order_by(columns.number).limit(limit)).scalars())
    # by an expression: SQLite would read all of the tenant in the order of an index with the device
    by_device = columns.device.concat("")
    first = sa.select(sa.func.min(columns.number)).where(*down, _in_order).group_by(by_device)
    firsts = sa.select(columns.number, columns.id, columns.device, columns.state).where(columns.number.in_(first))
    room = limit + len(held) + len(but)  # each of these leaves out one at most
    for row in tx.execute(firsts.order_by(columns.number).limit(room)):
        until = held.get(row.device, row.number + 1)
        waits = row.number > until or (row.number == until and row.state == _WAITING)
        if not waits and row.id not in but:
            chosen.append(row.number)
    return sorted(chosen)[:limit]


def has_waiting(tx: sa.Connection, key: tuple[str, str]) -> bool:
    """Return whether a command of a registered device waits for a gateway."""
    return tx.execute(sa.select(commands.c.device).where(*_waiting_at(key)).limit(1)).first() is not None


def next_move(tx: sa.Connection) -> int:
    """Return the number of the next move, which is larger than those of all before, also of deleted commands.
    Transactions of moves follow each other."""
    return max(newest_move(tx) + 1, utc_us())


def newest_move(tx: sa.Connection) -> int:
    """Return the number of the last move; 0 without one."""
    return tx.execute(sa.select(sa.func.max(commands.c.moved)).where(commands.c.moved.is_not(None))).scalar() or 0


def gateways_moved_to(tx: sa.Connection, after: int) -> Sequence[tuple[str, str]]:
    """Return the gateways of commands that have moved after another move."""
    moved = (commands.c.moved.is_not(None), commands.c.moved > after)
    rows = tx.execute(sa.select(commands.c.tenant, commands.c.gateway).where(*moved).distinct())
    return [(row.tenant, row.gateway) for row in rows]


def sending_name(identifier: str, moves: int | None) -> str:
    """Return the name under which a command is sent."""
    times = times_returned(moves)
    return f"{identifier}~{times}" if times else identifier


def split_sending(name: str) -> tuple[str, int]:
    """Return the identifier of a command, and how often it was given back, from the name under which it was sent."""
    identifier, mark, times = name.partition("~")
    if mark and times.isascii() and times.isdigit() and len(times) < 10:
        return identifier, int(times)
    return name, 0


def times_returned(moves: int | None) -> int:
    """Return how often a command was given back."""
    return max(moves, _staying(moves)) if moves is not None else 0


def _staying(times: int) -> int:
    """Return the moves of a command that stays at its gateway; also the inverse."""
    return -1 - times


_HELD_BY: Final = ("tenant", "device", "gateway", "number", "state", "expires_at", "changed_at", "reason", "moves")
"""Columns by which a command holds later ones."""


_in_order: Final = commands.c.moves.is_not(None)
"""Condition of commands of registered devices."""


def _waiting_at(key: tuple[str, str]) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition of commands of registered devices that wait for a gateway."""
    return commands.c.state == _WAITING, commands.c.tenant == key[0], commands.c.gateway == key[1], _in_order


def _may_hold(gateway: str, now_us: int) -> sa.ColumnElement[bool]:
    """Return the condition of commands for which `_holds` may be true."""
    columns = commands.c
    still = columns.expires_at > now_us
    elsewhere = (columns.gateway != gateway) & (columns.state != _WAITING) & (columns.moves >= 0) & still
    here = (columns.state == _SENT) | ((columns.reason == LEFT) & still) | columns.reason.startswith(UNKNOWN_DEVICE)
    return elsewhere | ((columns.gateway == gateway) & here)


def _is_at(places: DevicePlaces, row: Any, gateway: str) -> bool:
    """Return whether a command waits at another gateway for its device, which may appear at several. A device that is
    not registered any more is a user of each gateway."""
    if row.gateway == gateway or row.reason == LEFT:
        return False
    its = places.of(row.tenant, row.device)
    return its is None or its.has(row.gateway)


def _holds(row: Any, gateway: str, now_us: int) -> bool:
    """Return whether a command holds later ones of its device back at a gateway."""
    if row.gateway != gateway:
        return bool(row.state != _WAITING and row.moves >= 0 and row.expires_at > now_us)
    if row.state == _SENT or (row.reason == LEFT and row.expires_at > now_us):
        return True
    if row.state != _WAITING or not row.reason.startswith(UNKNOWN_DEVICE):
        return False
    wait_s = min(RETRY_S * 2.0 ** min(times_returned(row.moves), 10), RETRY_S_MAX)
    return now_us < int(row.changed_at) + int(wait_s * 1e6)


def _split_name(tenant: str, name: str) -> tuple[str, str]:
    """Return id and tenant of a device by its name at gateways of a tenant."""
    device, at, devices_of = name.rpartition("@")
    return (device, devices_of) if at else (name, tenant)


def _is_enabled(document: str) -> bool:
    try:
        return msgspec.json.decode(document, type=_DeviceState).enabled
    except (msgspec.MsgspecError, UnicodeError):
        return False
