"""Topic names and topic filters (MQTT 5 section 4.7): matching one, and a tree that matches many at once.

Pure functions over strings. A filter is assumed valid (the protocol machines check); names beginning with ``$`` are not
matched by a filter that begins with a wildcard [MQTT-4.7.2-1]. MQTT 3.1 knows no such exception: a filter that is to
match them too begins with ``$+`` or ``$#`` here, which no client can write, as a wildcard has a level of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

EVERY_NAME = {"+": "$+", "#": "$#"}
"""First level of a filter, by the wildcard it is, when it is to match names that begin with ``$`` too."""

_ALL_BELOW = {"#"}

_WILDCARD = {wide: wildcard for wildcard, wide in EVERY_NAME.items()}


def widened(pattern: str) -> str:
    """The filter with names that begin with ``$``; itself unless it begins with a wildcard."""
    return f"${pattern}" if pattern.startswith(("+", "#")) else pattern


def is_wide(pattern: str) -> bool:
    """True when the filter begins with a wildcard that matches names with ``$`` too."""
    return pattern.startswith(("$+", "$#"))


def filter_levels(pattern: str) -> list[str]:
    """The levels of a filter, wildcards written as such."""
    levels = pattern.split("/")
    if levels[0] in _WILDCARD:
        levels[0] = _WILDCARD[levels[0]]
    return levels


def is_filter(name: str) -> bool:
    """True when the name contains a wildcard character."""
    return "+" in name or "#" in name


def matches(pattern: str, name: str) -> bool:
    """True when the topic filter matches the topic name."""
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
    """True when every name the filter `inner` matches is matched by `outer` too (``$`` names aside)."""
    outer_levels, inner_levels = filter_levels(outer), filter_levels(inner)
    for i, level in enumerate(outer_levels):
        if level == "#":
            return True
        if i >= len(inner_levels) or inner_levels[i] == "#" or level not in ("+", inner_levels[i]):
            return False
    return len(outer_levels) == len(inner_levels)


def overlaps(a: str, b: str) -> bool:
    """True when some name is matched by both filters."""
    a_levels, b_levels = filter_levels(a), filter_levels(b)
    for i in range(max(len(a_levels), len(b_levels))):
        x = a_levels[i] if i < len(a_levels) else None
        y = b_levels[i] if i < len(b_levels) else None
        if x == "#" or y == "#":
            return True  # "#" matches its parent level too
        if x is None or y is None:
            return False  # one ends here, and the other goes on with something else than "#"
        if "+" not in (x, y) and x != y:
            return False
    return True


class _Node(Generic[T]):
    """Dicts are made when they are needed: an empty one takes 64 bytes, and one with one value 184."""

    __slots__ = ("children", "more", "one")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] | None = None
        self.one: T | None = None
        """The only value; None: there are none, or several."""
        self.more: dict[T, None] | None = None
        """Several values; a dict keeps order, so delivery order is reproducible."""

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
        """False when it is there already."""
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
        """False when it is not there."""
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
        """Add the values."""
        if self.one is not None:
            found[self.one] = None
        elif self.more is not None:
            found.update(self.more)


class FilterTree(Generic[T]):
    """A multimap from topic filter to values that finds all filters matching a name.

    Cost of a match is bounded by the nodes of the tree and by 2^levels, whichever is less: at each level a name can
    only go down its own literal and ``+``; the level limit of `edge.broker.limits` bounds it.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, value: T) -> None:
        """Idempotent."""
        node = self._root
        for level in pattern.split("/"):
            node = node.make_below(level)
        self._count += node.add(value)

    def remove(self, pattern: str, value: T) -> bool:
        """Remove one value and the branches it leaves empty. Return False when it is not there."""
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
        """Values of every filter that matches the name, each value once."""
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

    def deciding_levels(self, name: str) -> int:
        """How many first levels of a name decide which filters match it, at least one: the same filters match every
        name that has these levels, and any others behind them. As many as the name has: only the whole of it does."""
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
