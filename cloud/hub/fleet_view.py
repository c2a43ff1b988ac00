"""The fleet as people look at it: gateways in danger first, and those with one likely cause together.

Danger is what may be lost first: a gateway without room, then one that is away, by the room that is left on its card,
then one that is behind. `FleetView` keeps the list of one scope for some seconds, and reads it in slices, between which
gateways are served.
"""

from __future__ import annotations

import asyncio
import base64
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from cloud.hub.committer import Committer
from cloud.hub.fleet import FleetState, GatewayState
from cloud.hub.groups import Key
from cloud.hub.labels import Labels, LabelSelector
from cloud.hub.limits import GATEWAYS_MAX
from cloud.hub.registry.notices import ChangeHint

FRESH_S: Final = 2.0
"""Age up to which a list is shown again."""
LABELS_FRESH_S: Final = 20.0
"""Age up to which labels are used again, unless a notice says that some have changed; the registry has them."""
SLICE: Final = 500
"""Gateways classified at a time, about 2 ms."""
BEHIND_S: Final = 300.0
"""Age of the oldest waiting message of a connected gateway from which it is behind."""
TOGETHER_S: Final = 300.0
"""Time within which troubles of gateways with a label in common began, if one cause is likely."""
CAUSE_GATEWAYS_MIN: Final = 5
"""Gateways from which one cause is likely."""
_NO_ROOM_KNOWN: Final = 1e15
"""Hours in the order of gateways that do not report their room: after all others."""
SITES_SHOWN_MAX: Final = 60
SITE: Final = "site"
"""Label by which gateways are grouped into sites."""


class FleetCondition(StrEnum):
    """Condition of a gateway, the most dangerous first."""

    REFUSING = "refusing"
    OFFLINE = "offline"
    BEHIND = "behind"
    NEVER = "never"
    """Enrolled, and never connected."""
    WELL = "well"


_RANK: Final = {condition: rank for rank, condition in enumerate(FleetCondition)}


@dataclass(frozen=True, slots=True)
class SeenGateway:
    """A gateway with its condition. `since_us`: begin of the trouble, UTC microseconds; 0: not known."""

    gateway: GatewayState
    condition: FleetCondition
    why: str
    next_step: str
    since_us: int
    room_hours: float | None
    """Hours until its card is full, from its last report and the time since then; None: not reported."""
    labels: Labels

    @property
    def key(self) -> Key:
        """Tenant and name."""
        return self.gateway.tenant, self.gateway.name

    @property
    def danger(self) -> tuple[int, float, str, str]:
        """Order of the list: condition, then the least room."""
        return _RANK[self.condition], self._room, *self.key

    @property
    def _room(self) -> float:
        return self.room_hours if self.room_hours is not None else _NO_ROOM_KNOWN


def classify(gateway: GatewayState, labels: Labels, now_us: int) -> SeenGateway:
    """Return a gateway with its condition at this time."""
    status = gateway.status or {}
    room, reported_us = status.get("room_hours"), (status.get("reported_at") or 0) * 1_000
    if room is not None and not gateway.connected:
        room = max(0.0, room - max(0, now_us - reported_us) / 3.6e9)
    oldest_us = (status.get("backlog_oldest_at") or 0) * 1_000
    condition, why, next_step, since_us = FleetCondition.WELL, "", "", 0
    if not gateway.connected:
        condition, since_us = FleetCondition.OFFLINE, gateway.last_seen
        why = "it is not connected" if gateway.status is not None else "it has not connected since the hub started"
        next_step = "check power and network at the gateway; `waypost doctor` on it tries each step"
    elif status.get("room_hours") == 0:
        condition, since_us = FleetCondition.REFUSING, reported_us
        why = "its card is full: new messages are refused, or old ones dropped"
        next_step = "raise its quotas or remove a backlog: `waypost store info` on it shows what takes the room"
    elif oldest_us and now_us - oldest_us > BEHIND_S * 1e6:
        condition, since_us = FleetCondition.BEHIND, oldest_us
        why = "messages arrive at it faster than they leave"
        next_step = "look at its bridge: rate, data budget and quiet hours (`waypost bridge status` on it)"
    return SeenGateway(gateway, condition, why, next_step, since_us, room, labels)


def waiting_gateway(key: Key, enrolled_us: int, labels: Labels) -> SeenGateway:
    """Return a gateway that has enrolled and never connected."""
    why = "it has enrolled, and never connected"
    step = "start it (`waypost run` on it); then `waypost doctor` on it tries each step to the hub. Or revoke it here"
    gateway = GatewayState(*key, enrolled_us, 0)
    return SeenGateway(gateway, FleetCondition.NEVER, why, step, enrolled_us, None, labels)


class Trouble(NamedTuple):
    """Trouble of one gateway, to be grouped with others by likely cause."""

    key: Key
    kind: str
    """Troubles of different kinds have different causes."""
    since_us: int
    """Begin, UTC microseconds."""
    labels: Labels


class CauseGroup(NamedTuple):
    """Troubles with one likely cause: the same kind, a label in common, started about the same time."""

    kind: str
    tenant: str
    selector: str
    """The label in common."""
    troubles: Sequence[Trouble]
    """The earliest first."""


def group_by_cause(troubles: Iterable[Trouble]) -> list[CauseGroup]:
    """Return groups of at least `CAUSE_GATEWAYS_MIN` troubles, the largest first.

    A gateway is in one group of a kind at most.
    """
    shared: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in troubles:
        for label, value in one.labels.items():
            shared.setdefault((one.kind, one.key[0], f"{label}={value}"), []).append(one)
    taken: set[tuple[str, Key]] = set()
    found = []
    for (kind, tenant, selector), members in sorted(shared.items(), key=lambda item: -len(item[1])):
        left = [one for one in members if (kind, one.key) not in taken]
        group = _densest(sorted(left, key=lambda one: one.since_us))
        if len(group) >= CAUSE_GATEWAYS_MIN:
            taken.update((kind, one.key) for one in group)
            found.append(CauseGroup(kind, tenant, selector, group))
    return found


def find_causes(seen: Iterable[SeenGateway]) -> list[dict[str, Any]]:
    """Return groups of gateways with the same trouble since about the same time and a label in common, largest first.

    A gateway is in one group at most.
    """
    troubled = {one.key: one for one in seen if one.condition is not FleetCondition.WELL and one.since_us}
    causes = group_by_cause(Trouble(key, one.condition, one.since_us, one.labels) for key, one in troubled.items())
    return [_cause_document(cause, [troubled[one.key] for one in cause.troubles]) for cause in causes]


def _cause_document(cause: CauseGroup, members: Sequence[SeenGateway]) -> dict[str, Any]:
    since_us = cause.troubles[0].since_us
    seconds = (cause.troubles[-1].since_us - since_us) // 1_000_000
    rooms = [one.room_hours for one in members if one.room_hours is not None]
    return {
        "key": f"{cause.tenant} {cause.kind} {cause.selector} {since_us}",
        "kind": cause.kind,
        "what": f"all within {max(1, seconds)} s, with the label {cause.selector} in common",
        "tenant": cause.tenant,
        "selector": cause.selector,
        "count": len(members),
        "since": since_us // 1_000,
        "room_hours": min(rooms, default=None),
    }


def _densest(ordered: Sequence[Trouble]) -> Sequence[Trouble]:
    """Return the largest group with troubles that began within `TOGETHER_S`. `ordered`: by that time."""
    best, start = ordered[:0], 0
    for end, one in enumerate(ordered):
        while one.since_us - ordered[start].since_us > TOGETHER_S * 1e6:
            start += 1
        if end + 1 - start > len(best):
            best = ordered[start : end + 1]
    return best


def count_sites(seen: Iterable[SeenGateway]) -> list[dict[str, Any]]:
    """Return the number of gateways of each site by condition, the worst first; none without any label `SITE`."""
    sites: dict[str, Counter[str]] = {}
    for one in seen:
        sites.setdefault(one.labels.get(SITE, ""), Counter())[one.condition.value] += 1
    if set(sites) <= {""}:
        return []

    def badness(item: tuple[str, Counter[str]]) -> tuple[tuple[int, ...], str]:
        name, states = item
        return tuple(-states[condition] for condition in FleetCondition if condition != "well"), name

    rows = [
        {"label": SITE, "value": name, "total": states.total(), "states": dict(states)}
        for name, states in sorted(sites.items(), key=badness)
    ]
    return rows[:SITES_SHOWN_MAX]


class FleetSummary(NamedTuple):
    """A list of gateways in numbers."""

    total: int
    states: Mapping[str, int]
    """Gateways by condition."""
    causes: Sequence[Mapping[str, Any]]
    sites: Sequence[Mapping[str, Any]]


def summarize(seen: Sequence[SeenGateway]) -> FleetSummary:
    """Return the summary of a list."""
    states = Counter(one.condition.value for one in seen)
    return FleetSummary(len(seen), states, find_causes(seen), count_sites(seen))


_SORTS: Final[Mapping[str, Callable[[SeenGateway], tuple[int | float | str, ...]]]] = {
    "danger": lambda one: one.danger,
    "name": lambda one: (one.gateway.name, one.gateway.tenant),
    "waiting": lambda one: ((one.gateway.status or {}).get("backlog_messages") or 0, *one.key),
    "room": lambda one: (one.danger[1], *one.key),
    "seen": lambda one: (int(not one.gateway.connected), -one.gateway.last_seen, *one.key),
}
"""Order of gateways by the name of a sort. No two gateways are equal, so a page follows the last row before it."""
SORTS: Final = tuple(_SORTS)


class InvalidRow(ValueError):
    """The text does not name the row of a page with this sort."""


@dataclass(frozen=True, slots=True)
class GatewayQuery:
    """Which gateways to list, and how."""

    part: str = ""
    """Part of the name, case ignored."""
    state: str = ""
    """A condition; ``danger``: all but those that are well; empty: all."""
    selector: LabelSelector | None = None
    sort: str = "danger"
    down: bool = False

    def matches(self, seen: SeenGateway) -> bool:
        """Return True for a gateway that the query asks for."""
        well = seen.condition is FleetCondition.WELL
        wanted = not self.state or (not well if self.state == "danger" else self.state == seen.condition)
        named = self.part.casefold() in seen.gateway.name.casefold()
        return wanted and named and (self.selector is None or self.selector.matches(seen.labels))

    def row(self, seen: SeenGateway) -> str:
        """Return the place of a gateway in the order, for the page that follows it."""
        rank = msgspec.json.encode(_SORTS[self.sort](seen))
        return base64.urlsafe_b64encode(rank).rstrip(b"=").decode()

    def following(self, ordered: Sequence[SeenGateway], row: str) -> int:
        """Return the index of the first gateway after a row, which may be gone. Raises `InvalidRow`."""
        key = _SORTS[self.sort]
        try:
            text = base64.b64decode(row + "=" * (-len(row) % 4), altchars=b"-_", validate=True)
            rank = tuple(msgspec.json.decode(text, type=list[int | float | str]))
            if self.down:
                return len(ordered) - bisect_left(ordered[::-1], rank, key=key)
            return bisect_right(ordered, rank, key=key)
        except (ValueError, TypeError) as error:  # binascii.Error and msgspec.DecodeError are ValueErrors
            raise InvalidRow(row) from error


class Registered(NamedTuple):
    """Labels and enrolments of gateways in the registry."""

    labels: Mapping[Key, Labels]
    waiting: Mapping[Key, int]
    """Enrolled gateways that have never connected, with the time of their enrolment."""


@dataclass(slots=True)
class FleetView:
    """List of the gateways of one scope. `tenant`: None for all."""

    fleet: FleetState
    tenant: str | None
    now_us: Callable[[], int]
    clock: Callable[[], float]
    read_registered: Callable[[], Awaitable[Registered]]
    count_label_changes: Callable[[], int] = lambda: 0
    """Returns the number of notices about labels."""
    _seen: Sequence[SeenGateway] = ()
    _seen_at: float = float("-inf")
    _labels: Mapping[Key, Labels] = field(default_factory=dict)
    _waiting: Mapping[Key, int] = field(default_factory=dict)
    _labels_at: float = float("-inf")
    _label_changes: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _every: tuple[Sequence[SeenGateway], Sequence[SeenGateway]] | None = None
    """List, and the same with gateways that have never connected."""
    _summary: tuple[Sequence[SeenGateway], FleetSummary] | None = None
    """List, and its summary."""
    _summarizing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def gateways(self) -> Sequence[SeenGateway]:
        """Return the gateways, the most dangerous first, at most `FRESH_S` old. Raises RegistryError."""
        async with self._reading:
            if self.clock() - self._seen_at < FRESH_S:
                return self._seen
            await self._refresh_labels()
            keys = iter([key for key in self.fleet.gateways if self.tenant in (None, key[0])])
            seen: list[SeenGateway] = []
            while some := list(islice(keys, SLICE)):
                there = ((key, self.fleet.gateways[key]) for key in some if key in self.fleet.gateways)
                seen += [classify(gateway, self._labels.get(key, {}), self.now_us()) for key, gateway in there]
                await asyncio.sleep(0)
            seen.sort(key=lambda one: one.danger)
            self._seen, self._seen_at = seen, self.clock()
            return seen

    async def every(self) -> Sequence[SeenGateway]:
        """Return the gateways with those that have never connected, the most dangerous first. Raises RegistryError."""
        seen = await self.gateways()
        if self._every is None or self._every[0] is not seen:
            waiting = [self._waiting_one(key) for key in self._waiting if self._is_waiting(key)]
            merged = sorted([*seen, *waiting], key=lambda one: one.danger) if waiting else seen
            self._every = seen, merged
        return self._every[1]

    def _is_waiting(self, key: Key) -> bool:
        return self.tenant in (None, key[0]) and key in self._waiting and key not in self.fleet.gateways

    def _waiting_one(self, key: Key) -> SeenGateway:
        return waiting_gateway(key, self._waiting[key], self._labels.get(key, {}))

    async def summary(self) -> FleetSummary:
        """Return the summary of the gateways. Raises RegistryError.

        It is made once for each list, on a thread: that of 10 000 gateways takes 70 ms, and pages read it every 5 s.
        """
        seen = await self.every()
        async with self._summarizing:
            if self._summary is None or self._summary[0] is not seen:
                self._summary = seen, await asyncio.to_thread(summarize, seen)
            return self._summary[1]

    async def one(self, key: Key) -> SeenGateway | None:
        """Return one gateway; None if the scope does not have it. Raises RegistryError."""
        if self.tenant not in (None, key[0]):
            return None
        async with self._reading:
            await self._refresh_labels()
        gateway = self.fleet.gateways.get(key)
        if gateway is None:
            return self._waiting_one(key) if self._is_waiting(key) else None
        return classify(gateway, self._labels.get(key, {}), self.now_us())

    async def select(self, query: GatewayQuery) -> list[SeenGateway]:
        """Return the gateways of a query, in its order. Raises RegistryError."""
        found = [one for one in await self.every() if query.matches(one)]
        if query.sort != "danger" or query.down:
            found.sort(key=_SORTS[query.sort], reverse=query.down)
        return found

    async def _refresh_labels(self) -> None:
        changes = self.count_label_changes()
        if changes != self._label_changes or self.clock() - self._labels_at >= LABELS_FRESH_S:
            self._label_changes = changes
            (self._labels, self._waiting), self._labels_at = await self.read_registered(), self.clock()


class FleetViews:
    """Lists of gateways by scope."""

    def __init__(
        self,
        fleet: FleetState,
        committer: Committer,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        hint: ChangeHint | None = None,
    ) -> None:
        """`hint` is given when labels change."""
        self._fleet = fleet
        self._committer = committer
        self._now_us = now_us
        self._clock = clock
        self._hint = hint or ChangeHint()
        self._label_changes = 0
        self._views: dict[str | None, FleetView] = {}
        """Lists by tenant; None: of the whole fleet."""

    def of(self, tenant: str | None) -> FleetView:
        """Return the list of a tenant; None: of the whole fleet."""
        found = self._views.get(tenant)
        if found is None:

            async def read_registered() -> Registered:
                return await self._committer.read(
                    lambda registry: Registered(registry.directory.labels(), registry.directory.waiting(GATEWAYS_MAX))
                )

            found = FleetView(
                self._fleet, tenant, self._now_us, self._clock, read_registered, self._count_label_changes
            )
            self._views[tenant] = found
        return found

    def _count_label_changes(self) -> int:
        self._label_changes += self._hint.take()
        return self._label_changes
