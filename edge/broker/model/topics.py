"""Topic names and topic filters (MQTT 5 section 4.7): matching of one filter, and a tree that matches many at once.

The functions are pure. A filter must be valid; the protocol machines check that. A filter that begins with a wildcard
does not match names that begin with ``$`` [MQTT-4.7.2-1]. MQTT 3.1 does not have this exception: its filters are stored
with ``$+`` or ``$#`` at the front. No client can send such a filter, because a wildcard must be a whole level.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

EVERY_NAME = {"+": "$+", "#": "$#"}
"""First level of a filter that also matches names with ``$``, by its wildcard."""

_ALL_BELOW = {"#"}

_WILDCARD = {wide: wildcard for wildcard, wide in EVERY_NAME.items()}


def widen(pattern: str) -> str:
    """Return the filter that also matches names with ``$``; unchanged unless it begins with a wildcard."""
    return f"${pattern}" if pattern.startswith(("+", "#")) else pattern


def is_wide(pattern: str) -> bool:
    """Return True when the filter begins with a wildcard that also matches names with ``$``."""
    return pattern.startswith(("$+", "$#"))


def filter_levels(pattern: str) -> list[str]:
    """Return the levels of a filter, with ``$+`` and ``$#`` as plain wildcards."""
    levels = pattern.split("/")
    if levels[0] in _WILDCARD:
        levels[0] = _WILDCARD[levels[0]]
    return levels


def is_filter(name: str) -> bool:
    """Return True when the name contains a wildcard character."""
    return "+" in name or "#" in name


def matches(pattern: str, name: str) -> bool:
    """Return True when the topic filter matches the topic name."""
    if pattern == name:
        return True
    if name.startswith("$") and not pattern.startswith("$"):
        return False
    levels, name_levels = filter_levels(pattern), name.split("/")
    for i, level in enumerate(levels):
        if level == "#":
            return True  # also the parent level [MQTT-4.7.1-2]
        if i >= len(name_levels) or level not in ("+", name_levels[i]):
            return False
    return len(levels) == len(name_levels)


def covers(outer: str, inner: str) -> bool:
    """Return True when `outer` matches every name that `inner` matches, ignoring names with ``$``."""
    outer_levels, inner_levels = filter_levels(outer), filter_levels(inner)
    for i, level in enumerate(outer_levels):
        if level == "#":
            return True
        if i >= len(inner_levels) or inner_levels[i] == "#" or level not in ("+", inner_levels[i]):
            return False
    return len(outer_levels) == len(inner_levels)


def overlaps(a: str, b: str) -> bool:
    """Return True when some name matches both filters."""
    a_levels, b_levels = filter_levels(a), filter_levels(b)
    for i in range(max(len(a_levels), len(b_levels))):
        x = a_levels[i] if i < len(a_levels) else None
        y = b_levels[i] if i < len(b_levels) else None
        if x == "#" or y == "#":
            return True  # "#" matches its parent level too
        if x is None or y is None:
            return False  # one filter has ended, and the other continues without "#"
        if "+" not in (x, y) and x != y:
            return False
    return True


class _Node(Generic[T]):
    """Node of the tree. Dicts are created on demand: an empty one takes 64 bytes, and one with one value 184."""

    __slots__ = ("children", "more", "one")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] | None = None
        self.one: T | None = None
        """The value when there is exactly one; otherwise None."""
        self.more: dict[T, None] | None = None
        """The values when there are several. A dict keeps their order, so that delivery order is reproducible."""

    @property
    def is_empty(self) -> bool:
        return self.one is None and not self.more and not self.children

    def below(self, level: str) -> _Node[T] | None:
        return self.children.get(level) if self.children is not None else None

    def make_below(self, level: str) -> _Node[T]:
        if self.children is None:
            self.children = {}
        found = self.children.get(level)
        if found is None:
            found = self.children[level] = _Node()
        return found

    def add(self, value: T) -> bool:
        """Add a value. Return False when it is there already."""
        if self.more is not None:
            if value in self.more:
                return False
            self.more[value] = None
        elif self.one is None:
            self.one = value
        elif self.one == value:
            return False
        else:
            self.more, self.one = {self.one: None, value: None}, None
        return True

    def remove(self, value: T) -> bool:
        """Remove a value. Return False when it is not there."""
        if self.more is None:
            if self.one is None or self.one != value:
                return False
            self.one = None
            return True
        if value not in self.more:
            return False
        del self.more[value]
        if len(self.more) == 1:
            self.one, self.more = next(iter(self.more)), None
        return True

    def gather(self, found: dict[T, None]) -> None:
        """Add the values of the node to `found`."""
        if self.one is not None:
            found[self.one] = None
        elif self.more is not None:
            found.update(self.more)


class FilterTree(Generic[T]):
    """Multimap from topic filters to values that finds all filters matching a name.

    The cost of a match is bounded by the number of nodes and by 2^levels, whichever is less. At each level a name
    follows only its own literal and ``+``. `edge.broker.limits` limits the levels.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, value: T) -> None:
        """Add a value for a filter; idempotent."""
        node = self._root
        for level in pattern.split("/"):
            node = node.make_below(level)
        self._count += node.add(value)

    def remove(self, pattern: str, value: T) -> bool:
        """Remove one value and the branches that become empty. Return False when it is not there."""
        path = [self._root]
        levels = pattern.split("/")
        for level in levels:
            child = path[-1].below(level)
            if child is None:
                return False
            path.append(child)
        if not path[-1].remove(value):
            return False
        self._count -= 1
        for i in range(len(levels), 0, -1):
            above = path[i - 1]
            if not path[i].is_empty or above.children is None:
                break
            del above.children[levels[i - 1]]
        return True

    def match(self, name: str) -> list[T]:
        """Return the values of every filter that matches the name, each value once."""
        levels = name.split("/")
        found: dict[T, None] = {}
        stack = [(self._root, 0)]
        hidden = name.startswith("$")
        every, one = self._root.below("$#"), self._root.below("$+")
        if every is not None:
            every.gather(found)
        if one is not None:
            stack.append((one, 1))
        while stack:
            node, i = stack.pop()
            wildcards = not (hidden and i == 0)
            children = node.children
            if children is not None and wildcards and "#" in children:
                children["#"].gather(found)
            if i == len(levels):
                node.gather(found)
                continue
            if children is None:
                continue
            if wildcards and "+" in children:
                stack.append((children["+"], i + 1))
            literal = children.get(levels[i])
            if literal is not None and levels[i] not in ("+", "#"):
                stack.append((literal, i + 1))
        return list(found)

    def of(self, pattern: str) -> list[T]:
        """Return the values of one filter."""
        node: _Node[T] | None = self._root
        for level in pattern.split("/"):
            node = None if node is None else node.below(level)
        found: dict[T, None] = {}
        if node is not None:
            node.gather(found)
        return list(found)

    def deciding_levels(self, name: str) -> int:
        """Return the number of leading levels, at least one, that decide which filters match a name.

        The same filters match every longer name that begins with these levels. If the result is the number of levels of
        the name, this holds for the name only.
        """
        levels = name.split("/")
        if name.startswith("$"):
            return len(levels)
        nodes, wildcards = [self._root], ["+", EVERY_NAME["+"]]
        for count, level in enumerate(levels[:-1], 1):
            below = (node.below(each) for node in nodes for each in (level, *wildcards))
            nodes, wildcards = [node for node in below if node is not None], ["+"]
            if all(node.children is None or node.children.keys() <= _ALL_BELOW for node in nodes):
                return count
        return len(levels)

    def __iter__(self) -> Iterator[T]:
        seen: dict[T, None] = {}
        stack = [self._root]
        while stack:
            node = stack.pop()
            node.gather(seen)
            if node.children is not None:
                stack.extend(node.children.values())
        return iter(seen)
