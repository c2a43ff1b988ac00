"""Problems of a running gateway: one list for `/healthz`, console, `waypost status`, metrics and doctor.

A problem keeps clients from being served: commits that fail, logs that cannot be read, tokens that cannot be verified,
and publishes refused for lack of space. An address that drops its oldest messages is not a problem when it is
configured to do so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

from edge.broker.model.address_policy import WhenFull
from edge.broker.retention.names import NamesOf
from edge.broker.retention.quotas import QuotaUsage
from edge.health.problems import FoundProblem, Severity
from edge.output.amounts import counted, size, verb
from edge.output.text import line, word

ADDRESSES_NAMED_MAX: Final = 3
"""Addresses that a notice lists: more do not fit on one line of a terminal."""

_BACKLOG_STEP: Final = "find the consumer that does not take its backlog (waypost store info), or raise"


def store_problems(texts: Sequence[str]) -> Iterator[FoundProblem]:
    """Yield the problems of the store's medium; their texts say what to do."""
    for text in texts:
        step = "follow its advice, or run `waypost doctor` with --data; until then messages may not be acknowledged"
        yield FoundProblem("store", text, step)


def token_problem(overdue: str) -> FoundProblem:
    """Return the problem that the token issuer's keys are unknown or too old."""
    step = "check network, clock and authenticationService.oidc.issuer; passwords and certificates still work"
    return FoundProblem("token issuer", overdue, step)


def scheduled_problem(messages: int) -> FoundProblem:
    """Return the problem that due messages stay in the schedule, because their addresses refuse them."""
    due = f"{counted(messages, 'scheduled message')} {verb(messages, 'is', 'are')} due"
    what = f"{due}, and refused by {verb(messages, 'its address', 'their addresses')}: kept, and tried again"
    step = "see the reasons: waypost message scheduled list; give the addresses room, or make them queues or topics"
    return FoundProblem("scheduled messages", what, step, Severity.WARNING)


def unrouted_problem(addresses: Sequence[str], forward: str) -> FoundProblem:
    """Return the notice for topics without a subscriber. `forward`: the command that forwards a filter, with ``{}`` in
    place of the filter."""
    names = ", ".join(line(address) for address in addresses[:ADDRESSES_NAMED_MAX])
    more = len(addresses) - ADDRESSES_NAMED_MAX
    what = f"messages reach no subscriber, and are not stored: {names}" + (f" and {more} more" if more > 0 else "")
    level, slash, _ = addresses[0].partition("/")
    step = f"subscribe to them, or forward them to the hub: {forward.format(word(f'{level}/#' if slash else level))}"
    return FoundProblem("no subscriber", what, step, Severity.NOTICE)


def name_problems(names: Iterable[NamesOf], lately: frozenset[str]) -> Iterator[FoundProblem]:
    """Yield limits that clients have reached. `lately`: kinds of names that were refused within the last minute."""
    for one in names:
        if one.kind.value in lately:
            what = f"clients were refused {one.kind.value} in the last minute: a limit of user or space is reached"
            step = f"find the client ({one.names} of {one.space_max} exist), or raise spec.limits of the Gateway"
            yield FoundProblem(one.kind.value, what, step)


def memory_problems(*, bytes_max: int, exceeded: bool, lately: Container[str]) -> Iterator[FoundProblem]:
    """Yield problems of connections that are closed or refused, for lack of memory or by a limit of their number.

    `exceeded`: the process uses more than `bytes_max`. `lately`: ``shed``, ``refused``, if it happened in the last
    minute.
    """
    step = "the log names the clients; with enough memory, raise spec.limits.memoryBytesMax of the Gateway"
    if exceeded:
        what = f"the process uses more than {size(bytes_max)} (limits.memoryBytesMax): new connections are refused"
        yield FoundProblem("memory", what, step)
    elif "shed" in lately:
        what = "connections were closed in the last minute because they held too much memory"
        yield FoundProblem("memory", what, step, Severity.WARNING)
    if "refused" in lately:
        what = "users or remote addresses with many connections were refused further ones in the last minute"
        step = "find clients with many connections; or raise spec.limits.connectionsMax of the Gateway"
        yield FoundProblem("places", what, step, Severity.WARNING)


def room_problems(
    rooms: Sequence[QuotaUsage], *, space_bytes: int | None, at_floor: bool, floor_bytes: int, lately: frozenset[str]
) -> Iterator[FoundProblem]:
    """Yield problems of messages that are refused for lack of space.

    `lately`: addresses that refused messages within the last minute. `space_bytes`: quota of the address space.
    `at_floor`: the medium has less than `floor_bytes` free.
    """
    if at_floor:
        what = (
            f"the card has less than {size(floor_bytes)} free (limits.freeFloorBytes): messages beyond an "
            "address's reserve are refused, or old ones dropped"
        )
        yield FoundProblem(
            "free space",
            what,
            "free space on the card, or find the consumer that does not take its backlog (waypost store info)",
        )
    space_full = space_bytes is not None and _refusing(rooms, space_bytes)
    if space_full:
        what = f"the space's quota of {size(space_bytes)} is used up: messages are refused"
        yield FoundProblem("space", what, f"{_BACKLOG_STEP} spec.quota.bytes of the AddressSpace")
    for room in rooms:
        if room.quota is not None and room.when_full == WhenFull.REJECT.value and room.used >= room.quota:
            what = f"its quota of {size(room.quota)} is used up: messages are refused"
            yield FoundProblem(f"address {room.address}", what, f"{_BACKLOG_STEP} spec.quota.bytes of the Address")
        elif room.address in lately and not at_floor and not space_full:
            what = "messages were refused in the last minute: their address or the space was full"
            yield FoundProblem(f"address {room.address}", what, f"{_BACKLOG_STEP} spec.quota.bytes of the Address")


def _refusing(rooms: Sequence[QuotaUsage], space_bytes: int) -> bool:
    """Return True when the space is used up: no address drops messages for others, and one needs more than its
    reserve."""
    if sum(max(room.used, room.reserve) for room in rooms) < space_bytes:
        return False
    refusing = [room for room in rooms if room.when_full == WhenFull.REJECT.value]
    giving_way = any(room.used > room.reserve for room in rooms if room.when_full != WhenFull.REJECT.value)
    return not giving_way and any(room.used >= room.reserve for room in refusing)
