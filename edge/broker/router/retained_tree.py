"""Retained messages by topic name: a tree of levels, in which a name takes only as many levels as other names require.

A name that shares its beginning with no other is a single entry: for ``plant/7/temperature`` the tree has only
``plant`` while it is the only name below ``plant``. With a dict for every level of every name, a million of them
took twice the memory.
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
"""Names of one level up to which each string is shared by all levels: ``temperature`` is below every device. Larger
levels are mostly the devices themselves, for which sharing only costs memory."""


SHARED_BYTES_MIN: Final = 1_024
"""Size from which bodies are shared: a copy of 200 KB for each of 4 000 subscribers would be 800 MB until it is
written."""


@hides("timed_body", "large_body", "properties")
class RetainedMessage(msgspec.Struct, gc=False):
    """Retained message; its position in the tree is its topic name. Fields as in `bridge.message.Run`."""

    device: str
    flags: int
    properties: bytes
    timed_body: bytes
    """`Run.received_at` and the body: a separate number would take 32 bytes. Without the body of a large message."""
    user: str
    """User that made it."""
    rest: str = ""
    """Rest of its topic name below its level, with the slash before it."""
    large_body: bytes = b""
    """Body of a large message, which all subscribers share."""

    @classmethod
    def of(cls, run: Run, user: str) -> Self:
        """Return the last message of a run, made by `user`."""
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
        """Return the message for delivery."""
        (received_at,) = _RECEIVED_AT.unpack_from(self.timed_body)
        body = self.large_body or self.timed_body[_RECEIVED_AT.size :]
        return Run(address, self.device, self.flags, self.properties, [body], received_at)


class _Level:
    """Level of topic names with more than one name at or below it, now or formerly."""

    __slots__ = ("below", "message")

    def __init__(self) -> None:
        self.below: dict[str, _Level | RetainedMessage] = {}
        self.message: RetainedMessage | None = None
        """Message of the name that ends here."""

    def put_below(self, names: str, message: RetainedMessage) -> None:
        """Put `message` at the first of `names`, each with a slash before it, where no other message is."""
        name, rest = _first(names)
        message.rest = sys.intern(rest)
        self.below[sys.intern(name) if len(self.below) < NAMES_SHARED_MAX else name] = message


class RetainedTree:
    """At most one message for each topic name."""

    def __init__(self) -> None:
        self._root = _Level()

    def __bool__(self) -> bool:
        return bool(self._root.below)

    def get(self, address: str) -> RetainedMessage | None:
        """Return the message of a topic name."""
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
        """Set the message of this topic name. Return the one it replaces."""
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
        """Remove the message of a topic name and return it."""
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
        """Yield every topic name with its message."""
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
        """Yield the messages of every name that the filter matches, one name for each step, and None for other names:
        the caller can do other work in between. Concurrent changes may be seen or not."""
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
                yield None  # it was removed
            elif isinstance(below, RetainedMessage):
                met = _matches(below.rest, wanted, following)
                yield below.run(f"{visit.prefix}{name}{below.rest}") if met else None
            else:
                message = below.message if _matches("", wanted, following) else None
                yield message.run(f"{visit.prefix}{name}") if message is not None else None
                if following < len(wanted):
                    stack.append(_Visit(below, f"{visit.prefix}{name}/", wanted, following, with_dollar=True))


class _Visit:
    """Level that is being visited, name by name."""

    __slots__ = ("following", "level", "names", "prefix")

    def __init__(self, level: _Level, prefix: str, wanted: Sequence[str], at: int, *, with_dollar: bool) -> None:
        """`wanted[at]` is the filter's level for the names here; `prefix` is the topic name before them."""
        self.level = level
        self.prefix = prefix
        found: Sequence[str]
        if wanted[at] in _WILDCARDS:
            found = list(level.below) if with_dollar else [n for n in level.below if not n.startswith("$")]
        else:
            found = (wanted[at],) if wanted[at] in level.below else ()  # [MQTT-4.7.2-1]
        self.names: Final = iter(found)
        self.following: Final = at if wanted[at] == "#" else at + 1
        """Index of the filter's level for the names below."""


_WILDCARDS: Final = ("+", "#")


def _first(names: str) -> tuple[str, str]:
    """Split names, each with a slash before it, into the first and the others."""
    end = names.find("/", 1)
    return (names[1:], "") if end < 0 else (names[1:end], names[end:])


def _moved_below(message: RetainedMessage) -> _Level:
    """Return a level that replaces a message: another name goes through it, or ends at it."""
    level = _Level()
    if message.rest:
        level.put_below(message.rest, message)
    else:
        level.message = message
    return level


def _clear(path: Sequence[tuple[_Level, str]]) -> None:
    """Remove the entry at the end of a path, and levels that are empty then."""
    for level, name in reversed(path):
        del level.below[name]
        if level.below or level.message is not None:
            return


def _matches(rest: str, wanted: Sequence[str], at: int) -> bool:
    """Return True when the filter's levels from `at` on match `rest`, names with a slash before each."""
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
