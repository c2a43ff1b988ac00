"""Names of recent messages of one incoming forwarder, to recognise repeated ones.

After a lost connection a peer sends again all messages without an answer. These are the last ones before the break, and
some of them are stored here. Their names are written in the commit that stores the messages, in slots that are reused
in rotation, so that committed names are known after a power cut as well. A name that is not unique forever counts once
after a break: peers that give one name to many messages lose nothing while the connection lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from typing import Final

from bridge.limits import INBOX_NAMES_MAX
from edge.broker.store.contract import SmallState

KIND: Final = "arrived"
"""Kind of the store's small state with the names, by forwarder and slot."""

DIGEST_BYTES: Final = 16
SLOT_NAMES: Final = 64
"""Names of a full slot: at most 1 KiB is written again for each commit."""
SLOTS: Final = INBOX_NAMES_MAX // SLOT_NAMES
"""Number of slots: the newest ones hold all remembered names, even if each has few."""
_TURN_BYTES: Final = 8


def digest(name: bytes) -> bytes:
    """Return the digest of a name."""
    return blake2b(name, digest_size=DIGEST_BYTES).digest()


class RecentNames:
    """Names of one forwarder, as digests."""

    def __init__(self, kept: Iterable[bytes] = ()) -> None:
        """`kept` are the stored values of its slots."""
        slots = sorted((int.from_bytes(value[:_TURN_BYTES]), value[_TURN_BYTES:]) for value in kept)
        self._turn = slots[-1][0] if slots else 0
        self._slot: dict[bytes, None] = dict.fromkeys(_split(slots[-1][1])) if slots else {}
        self._full: deque[tuple[int, int]] = deque()
        """Number and size of earlier slots in use."""
        self._full_names = 0
        self._changed: dict[int, bytes] = {}
        self._names: dict[bytes, None] = {}
        for turn, names in slots:
            self._names.update(dict.fromkeys(_split(names)))
            if turn != self._turn:
                self._filled(turn, len(names) // DIGEST_BYTES)
        self._forget()
        self._suspects: set[bytes] = set(self._names)
        self._undecided: set[bytes] = set()

    def connection_lost(self) -> None:
        """Expect repeated messages from now on."""
        self._suspects = set(self._names)

    def undecided(self, name: bytes) -> bool:
        """Return True when a message of this name is in a commit that is not over."""
        return name in self._undecided

    def is_duplicate(self, name: bytes, *, unique: bool) -> bool:
        """Return True when a message of this name was taken before; if the name is not unique, before the break. Called
        once for each message."""
        if unique:
            return name in self._names
        if name not in self._suspects:
            return False
        self._suspects.discard(name)
        return True

    def add(self, names: Iterable[bytes]) -> None:
        """Add names of messages that are about to join the open group. Called once for all that may fail together."""
        if len(self._slot) >= SLOT_NAMES:
            self._filled(self._turn, len(self._slot))
            self._turn += 1
            self._slot = {}
        for name in names:
            self._slot[name] = None
            self._names.pop(name, None)
            self._names[name] = None
            self._undecided.add(name)
        self._forget()
        self._keep()

    def confirm(self, names: Iterable[bytes]) -> None:
        """Note that the messages of these names are stored."""
        self._undecided.difference_update(names)

    def withdraw(self, names: Iterable[bytes]) -> None:
        """Remove those of the last added names that were not stored."""
        for name in names:
            self._names.pop(name, None)
            self._slot.pop(name, None)
            self._suspects.discard(name)
            self._undecided.discard(name)
        self._keep()

    def changed(self) -> dict[int, bytes]:
        """Return the slots to write, which count as written then."""
        changed, self._changed = self._changed, {}
        return changed

    def _forget(self) -> None:
        while len(self._names) > INBOX_NAMES_MAX:
            del self._names[next(iter(self._names))]

    def _filled(self, turn: int, names: int) -> None:
        """Start a new slot, and empty slots that are no longer needed."""
        self._full.append((turn, names))
        self._full_names += names
        while self._full_names - self._full[0][1] >= INBOX_NAMES_MAX:
            old, fewer = self._full.popleft()
            self._full_names -= fewer
            if old > turn - SLOTS:  # otherwise its slot was reused
                self._changed[old % SLOTS] = old.to_bytes(_TURN_BYTES)

    def _keep(self) -> None:
        self._changed[self._turn % SLOTS] = self._turn.to_bytes(_TURN_BYTES) + b"".join(self._slot)


class NamesByForwarder:
    """Names of all incoming forwarders of a space; takes part in the commits (`router.CommitParticipant`)."""

    def __init__(self, state: SmallState) -> None:
        self._state = state
        self._slots: dict[str, dict[int, bytes]] = {}
        for key, value in state.items(KIND):
            forwarder, _, slot = key.rpartition("/")
            self._slots.setdefault(forwarder, {})[int(slot)] = value
        self._by_forwarder: dict[str, RecentNames] = {}

    def of(self, forwarder: str) -> RecentNames:
        """Return the names of one forwarder, by its connector and name. It is the same object each time, as messages of
        an earlier configuration may still be on their way to disk."""
        names = self._by_forwarder.get(forwarder)
        if names is None:
            names = RecentNames(self._slots.pop(forwarder, {}).values())
            self._by_forwarder[forwarder] = names
        return names

    def forget_all_but(self, forwarders: Collection[str]) -> None:
        """Forget the names of forwarders that are no longer configured."""
        for forwarder in [one for one in (*self._slots, *self._by_forwarder) if one not in forwarders]:
            self._slots.pop(forwarder, None)
            self._by_forwarder.pop(forwarder, None)
            for slot in range(SLOTS):
                self._state.delete(KIND, f"{forwarder}/{slot}")

    def prepare(self) -> None:
        """Write new names into the group that is about to be sealed."""
        for forwarder, names in self._by_forwarder.items():
            for slot, value in names.changed().items():
                self._state.put(KIND, f"{forwarder}/{slot}", value)

    def committed(self, *, kept: bool) -> None:
        """Do nothing: after a failed commit the values join the next group."""


def _split(names: bytes) -> Iterator[bytes]:
    return (names[start : start + DIGEST_BYTES] for start in range(0, len(names), DIGEST_BYTES))
