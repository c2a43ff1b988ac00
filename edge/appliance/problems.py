"""What is wrong with a running gateway: one list for `/healthz`, console, `edge status`, metrics and doctor.

A problem is what keeps clients from being served: commits that fail, logs that cannot be read, tokens that cannot be
checked, and no room, so that publishes are refused. An address that gives up its old messages is none: it was told to.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from edge.appliance.program import as_called
from edge.appliance.store.shared import size
from edge.broker.model.address_policy import WhenFull
from edge.broker.retention.names import NamesOf
from edge.broker.retention.quotas import Room

REFUSED_S: Final = 60.0
"""An address that refused a message for want of room has a problem for so long: devices that try again are slow."""

_BACKLOG_STEP: Final = "see who does not take the backlog: waypost store info; or raise"


class Found(NamedTuple):
    """A problem as it is seen now; `what` has no figures that change while it lasts."""

    name: str
    what: str
    next_step: str


class Problem(msgspec.Struct, frozen=True):
    """A problem, and when it was first seen."""

    name: str
    what: str
    since: str
    """ISO 8601, UTC."""
    next_step: str


class ProblemList:
    """Remembers since when each problem is there."""

    def __init__(self, utc_s: Callable[[], float] = time.time) -> None:
        self._utc_s = utc_s
        self._since: dict[tuple[str, str], str] = {}

    def update(self, found: Iterable[Found]) -> list[Problem]:
        """The list as it is now, oldest first; what is not found any more is over."""
        now = datetime.datetime.fromtimestamp(self._utc_s(), datetime.UTC).isoformat(timespec="seconds")
        named = [one._replace(what=as_called(one.what), next_step=as_called(one.next_step)) for one in found]
        problems = [
            Problem(one.name, one.what, self._since.get((one.name, one.what), now), one.next_step) for one in named
        ]
        self._since = {(one.name, one.what): one.since for one in problems}
        return sorted(problems, key=lambda one: one.since)


class Refusals:
    """Which addresses have refused messages lately, by their counters."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._counted: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def lately(self, refused: Mapping[str, int]) -> frozenset[str]:
        """`refused`: the counters of the addresses that have refused anything since the start."""
        now = self._monotonic_s()
        for address, count in refused.items():
            if count > self._counted.get(address, 0):
                self._until[address] = now + REFUSED_S
        self._counted = dict(refused)
        self._until = {address: until for address, until in self._until.items() if until > now}
        return frozenset(self._until)


def store_problems(texts: Sequence[str]) -> Iterator[Found]:
    """Those of the store's medium, which say themselves what helps."""
    for text in texts:
        step = "do what it says, or ask `waypost doctor` with --data; until then nothing more may be acknowledged"
        yield Found("store", text, step)


def token_problem(overdue: str) -> Found:
    """The token issuer's keys are not known, or too old."""
    step = "check network, clock and authenticationService.oidc.issuer; passwords and certificates are taken meanwhile"
    return Found("token issuer", overdue, step)


def name_problems(names: Iterable[NamesOf], lately: frozenset[str]) -> Iterator[Found]:
    """Where clients may not make what they need. `lately`: the kinds of `Refusals`."""
    for one in names:
        if one.kind.value in lately:
            what = f"clients were refused {one.kind.value} in the last minute: they, or the space, have too many"
            step = f"see who makes them ({one.names} of {one.space_max} are there), or raise spec.limits of the Gateway"
            yield Found(one.kind.value, what, step)


def room_problems(
    rooms: Sequence[Room], *, space_bytes: int | None, at_floor: bool, floor_bytes: int, lately: frozenset[str]
) -> Iterator[Found]:
    """Where messages are refused for want of room. `lately`: the addresses of `Refusals`; `space_bytes`: quota of the
    space; `at_floor`: the medium has less than `floor_bytes` free."""
    if at_floor:
        what = (
            f"the card has less than {size(floor_bytes)} free (limits.freeFloorBytes): messages beyond an "
            "address's reserve are refused, or old ones given up"
        )
        yield Found("free space", what, "free space on the card; see who does not take the backlog: waypost store info")
    space_full = space_bytes is not None and _refusing(rooms, space_bytes)
    if space_full:
        what = f"the space's quota of {size(space_bytes)} is used up: messages are refused"
        yield Found("space", what, f"{_BACKLOG_STEP} spec.quota.bytes of the AddressSpace")
    for room in rooms:
        if room.quota is not None and room.when_full == WhenFull.REJECT.value and room.used >= room.quota:
            what = f"its quota of {size(room.quota)} is used up: messages are refused"
            yield Found(f"address {room.address}", what, f"{_BACKLOG_STEP} spec.quota.bytes of the Address")
        elif room.address in lately and not at_floor and not space_full:
            what = "messages were refused in the last minute: there was no room for them"
            yield Found(f"address {room.address}", what, f"{_BACKLOG_STEP} spec.quota.bytes of the Address")


def _refusing(rooms: Sequence[Room], space_bytes: int) -> bool:
    """True when the space is used up, nobody gives way any more, and somebody wants more than was set aside for it."""
    if sum(max(room.used, room.reserve) for room in rooms) < space_bytes:
        return False
    refusing = [room for room in rooms if room.when_full == WhenFull.REJECT.value]
    giving_way = any(room.used > room.reserve for room in rooms if room.when_full != WhenFull.REJECT.value)
    return not giving_way and any(room.used >= room.reserve for room in refusing)
