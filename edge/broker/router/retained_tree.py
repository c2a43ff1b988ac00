"""Retained messages by topic name: a tree of levels in which a name takes no more of them than others make necessary.

A name that shares its beginning with no other is one entry, whatever its levels: of ``plant/7/temperature`` the tree
has ``plant`` alone while there is no second name below ``plant``. With a dict for every level of every name a million
of them took twice the memory.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final, Self

import msgspec

from bridge.hidden import hides
from bridge.message import Run
from edge.broker.model.topics import filter_levels, is_wide

_RECEIVED_AT: Final = struct.Struct("<q")

NAMES_SHARED_MAX: Final = 256
"""Names of one level up to which each is kept once for all levels: ``temperature`` stands below every device, and what
there are more of at one level are the devices themselves, for which the table of shared names would only be larger."""


SHARED_BYTES_MIN: Final = 1_024
"""Bodies from here on are kept as they are: a copy of 200 KB for each of 4 000 subscribers would be 800 MB until it is
written."""


@hides("timed_body", "large_body", "properties")
class RetainedMessage(msgspec.Struct, gc=False):
    """A retained message; its topic name is where it stands. Fields as in `bridge.message.Run`."""

    device: str
    flags: int
    properties: bytes
    timed_body: bytes
    """`Run.received_at` and the body: a number of its own would take 32 bytes. Of a large message the former alone."""
    user: str
    """Who made it."""
    rest: str = ""
    """What of its topic name follows the level it stands at, with the slash before it."""
    large_body: bytes = b""
    """The body of a large message: all that are sent it have one between them, and not a copy each."""

    @classmethod
    def of(cls, run: Run, user: str) -> Self:
        """The last message of a run, made by `user`."""
        body, large = run.bodies[-1], b""
        if len(body) >= SHARED_BYTES_MIN:
            body, large = b"", body
        timed = _RECEIVED_AT.pack(run.received_at) + body
        return cls(run.device, run.flags, run.properties, timed, user, large_body=large)

    @property
    def body_bytes(self) -> int:
        """Length of the body."""
        return len(self.timed_body) - _RECEIVED_AT.size + len(self.large_body)

    def run(self, address: str) -> Run:
        """The message as it is delivered."""
        (received_at,) = _RECEIVED_AT.unpack_from(self.timed_body)
        body = self.large_body or self.timed_body[_RECEIVED_AT.size :]
        return Run(address, self.device, self.flags, self.properties, [body], received_at)


class _Level:
    """A level of topic names with more than one name at or below it, as far as it was ever needed."""

    __slots__ = ("below", "message")

    def __init__(self) -> None:
        self.below: dict[str, _Level | RetainedMessage] = {}
        self.message: RetainedMessage | None = None
        """Of the name that ends here."""

    def put_below(self, names: str, message: RetainedMessage) -> None:
        """`message` stands where no other does: at the first of `names`, each with a slash before it."""
        name, rest = _first(names)
        message.rest = sys.intern(rest)
        self.below[sys.intern(name) if len(self.below) < NAMES_SHARED_MAX else name] = message


class RetainedTree:
    """At most one message a topic name."""

    def __init__(self) -> None:
        self._root = _Level()

    def __bool__(self) -> bool:
        return bool(self._root.below)

    def get(self, address: str) -> RetainedMessage | None:
        """The message of a topic name."""
        level, names = self._root, f"/{address}"
        while names:
            name, names = _first(names)
            below = level.below.get(name)
            if below is None:
                return None
            if isinstance(below, RetainedMessage):
                return below if below.rest == names else None
            level = below
        return level.message

    def put(self, address: str, message: RetainedMessage) -> RetainedMessage | None:
        """`message` is the one of this topic name; returns the one it replaces."""
        level, names = self._root, f"/{address}"
        while True:
            name, rest = _first(names)
            below = level.below.get(name)
            if below is None:
                level.put_below(names, message)
                return None
            if isinstance(below, RetainedMessage):
                if below.rest == rest:
                    message.rest = below.rest
                    level.below[name] = message
                    return below
                below = level.below[name] = _moved_below(below)
            if not rest:
                replaced, below.message = below.message, message
                return replaced
            level, names = below, rest

    def pop(self, address: str) -> RetainedMessage | None:
        """Take the message of a topic name away."""
        level, names = self._root, f"/{address}"
        path: list[tuple[_Level, str]] = []
        while names:
            name, names = _first(names)
            path.append((level, name))
            below = level.below.get(name)
            if below is None:
                return None
            if isinstance(below, RetainedMessage):
                if below.rest != names:
                    return None
                _clear(path)
                return below
            level = below
        found, level.message = level.message, None
        if found is not None and not level.below:
            _clear(path)
        return found

    def __iter__(self) -> Iterator[tuple[str, RetainedMessage]]:
        """Every topic name and its message."""
        stack: list[tuple[str, _Level]] = [("", self._root)]
        while stack:
            prefix, level = stack.pop()
            for name, below in level.below.items():
                if isinstance(below, RetainedMessage):
                    yield f"{prefix}{name}{below.rest}", below
                    continue
                if below.message is not None:
                    yield f"{prefix}{name}", below.message
                stack.append((f"{prefix}{name}/", below))

    def walk(self, pattern: str) -> Iterator[Run | None]:
        """The messages of every name the filter matches, one name a step, and None for a name looked at in vain: for
        who has other work in between. What changes meanwhile may be met or not."""
        wanted = filter_levels(pattern)
        stack = [_Visit(self._root, "", wanted, 0, with_dollar=is_wide(pattern))]
        while stack:
            visit = stack[-1]
            name = next(visit.names, None)
            if name is None:
                stack.pop()
                continue
            below, following = visit.level.below.get(name), visit.following
            if below is None:
                yield None  # it went meanwhile
            elif isinstance(below, RetainedMessage):
                met = _matches(below.rest, wanted, following)
                yield below.run(f"{visit.prefix}{name}{below.rest}") if met else None
            else:
                message = below.message if _matches("", wanted, following) else None
                yield message.run(f"{visit.prefix}{name}") if message is not None else None
                if following < len(wanted):
                    stack.append(_Visit(below, f"{visit.prefix}{name}/", wanted, following, with_dollar=True))


class _Visit:
    """A level whose names are looked at one by one."""

    __slots__ = ("following", "level", "names", "prefix")

    def __init__(self, level: _Level, prefix: str, wanted: Sequence[str], at: int, *, with_dollar: bool) -> None:
        """`wanted[at]` is what the filter has for the names of this level; `prefix` is the topic name up to them."""
        self.level = level
        self.prefix = prefix
        found: Sequence[str]
        if wanted[at] in _WILDCARDS:
            found = list(level.below) if with_dollar else [n for n in level.below if not n.startswith("$")]
        else:
            found = (wanted[at],) if wanted[at] in level.below else ()  # [MQTT-4.7.2-1]
        self.names: Final = iter(found)
        self.following: Final = at if wanted[at] == "#" else at + 1
        """What the filter has for the level below."""


_WILDCARDS: Final = ("+", "#")


def _first(names: str) -> tuple[str, str]:
    """The first of some names, each with a slash before it, and the others."""
    end = names.find("/", 1)
    return (names[1:], "") if end < 0 else (names[1:end], names[end:])


def _moved_below(message: RetainedMessage) -> _Level:
    """A level in place of the message that stood there: another name goes through it, or ends at it."""
    level = _Level()
    if message.rest:
        level.put_below(message.rest, message)
    else:
        level.message = message
    return level


def _clear(path: Sequence[tuple[_Level, str]]) -> None:
    """Take away what stands at the end of a path, and what is empty then."""
    for level, name in reversed(path):
        del level.below[name]
        if level.below or level.message is not None:
            return


def _matches(rest: str, wanted: Sequence[str], at: int) -> bool:
    """The filter's levels from `at` on match `rest`, names with a slash before each."""
    while rest:
        if at == len(wanted):
            return False
        if wanted[at] == "#":
            return True
        name, rest = _first(rest)
        if wanted[at] not in ("+", name):
            return False
        at += 1
    return at == len(wanted) or wanted[at] == "#"  # also the parent level [MQTT-4.7.1-2]
