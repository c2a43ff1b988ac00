"""Check a history: a pure function from recorded events to violations.

The checker reads these events, by `Event.what`:

- ``subscription`` name, filter (None for ``queue``), QoS 2: a durable subscription that exists from the first start on;
- ``send`` producer, address, messages, QoS · ``acked`` producer, messages · ``refused`` producer, messages, reason;
- ``durable`` log, position, address, epoch, sequence, messages: a commit made a run durable;
- ``receipt waits`` receipt: a commit made durable that the receipt is to be published;
- ``opened`` cursor, name, log, position · ``cursor`` cursor, name, log, position, ranges above · ``dropped`` cursor;
- ``ledger`` subscription, address, ((epoch, first, last), ...), messages, reason: an entry of the gateway's ledger;
- ``connected`` device: a new connection, over which the device may receive again what it took;
- ``delivered`` consumer, subscription, address, messages · ``took`` consumer, subscription, messages;
- ``landed`` epoch, address, sequence, message, lane: a row of the lake;
- ``stated`` epoch, address, first, last, discarded (JSON), digest of the one before, digest: a row of manifests;
- ``all stated``: the gateway has reported everything that it accepted to the hub;
- ``let in`` serial number, seconds: a gateway is connected with a revoked certificate, and the hub could know of the
  revocation for this long;
- ``hub ledger`` epoch, address, first, last, reason;
- ``forked`` ((log, position, epoch, address, sequence, messages), ...): a new epoch, and the new names of all messages;
- ``put back``: an older copy of the store with ((log, position, epoch, address, sequence, messages), ...) and cursors
  ((cursor, name, log, position), ...);
- ``command`` command, state: the hub has stored what a gateway reported of a command;
- ``forwards`` name: a forwarder is configured, and sends, also before its cursor is on disk;
- ``wanted`` mark, kind: the operator requests a version of the gateway's configuration; each version has its own mark;
- ``versions`` newest, confirmed, its mark, tried, its mark: the hub's versions that the gateway has on disk;
- ``followed`` mark: the gateway applies this version of its hub, 0: none;
- ``told`` version: the hub has on disk that the gateway tries this version, 0: none;
- ``known of versions`` mark, state: the hub's view of the newest version that it requests;
- ``versions put back``: the hub's registry of versions is an older copy;
- ``configured at last`` mark, mark: the version that the hub requests, and the version that the gateway applies;
- ``raised`` process, error: an exception that no callback may raise.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bridge.manifest import GENESIS
from cloud.hub.registry.commands import CommandState
from edge.broker.model.topics import matches
from tests.simulation.history import Event
from tests.simulation.medium import RECEIPT
from tests.simulation.versions import Versions

Name = tuple[str, str, int]
"""Name of a message: (epoch, address, sequence)."""

COMMANDS = "command/"
RECEIPTS = "command-receipt/"
"""Prefix of the addresses on which a gateway reports the outcomes of commands."""

INTERRUPTIONS = frozenset({"power cut", "kill", "stop", "put back"})
"""Interruptions after which consumers may receive messages again: the move of the cursor was not on disk."""


REVOKED_S = 2.0
"""Time in which a hub notices a revoked certificate: it looks each second, and its registry takes some time."""

REASONS = frozenset({"evicted"})
"""Allowed reasons for dropping messages in this world: nothing expires, and nothing is to be rejected."""


class Kept(NamedTuple):
    """Message in a log; `index` is the event that made it durable."""

    message: str
    name: Name
    index: int


class Violation(NamedTuple):
    """Broken rule; `step` is the step in which it was noticed."""

    step: int
    text: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


def check(events: Iterable[Event]) -> list[Violation]:
    """Return every violation, in the order in which they were noticed."""
    return Checker().check(events)


class Checker:
    """Walks through a history once."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []
        self._step = self._index = 0
        self._since: dict[str, int] = {}
        """Event from which on messages are kept, by subscription."""
        self._filters: dict[str, str | None] = {}
        self._exactly_once: set[str] = set()
        """Subscriptions over MQTT at QoS 2."""
        self._sent: dict[str, tuple[str, str, int]] = {}
        self._sends: Counter[str] = Counter()
        self._acked: dict[str, None] = {}
        self._ever: set[str] = set()
        """Messages that were durable at some time."""
        self._logs: dict[str, dict[int, Kept]] = defaultdict(dict)
        self._opened: dict[int, tuple[str, str, int]] = {}
        """Name, log and first position to deliver, by cursor."""
        self._passed: dict[int, set[int]] = defaultdict(set)
        self._forgiven: set[tuple[str, Name]] = set()
        """(subscription, name) in the gateway's ledger."""
        self._once_given_up: set[Name] = set()
        """Names in the gateway's ledger, now or before an older copy was restored."""
        self._taken: dict[str, dict[str, int]] = defaultdict(dict)
        """Number of interruptions when a message was taken, by subscription and message."""
        self._given: dict[tuple[str, str], int] = {}
        """Highest position that was delivered for the first time, by (subscription, log)."""
        self._seen: dict[str, set[str]] = defaultdict(set)
        self._interruptions = 0
        self._connections: Counter[str] = Counter()
        self._failed = self._put_back = False
        self._last: dict[tuple[str, str], int] = {}
        """Number of the newest message, by (producer, log)."""
        self._landed: dict[Name, str] = {}
        self._rows: Counter[str] = Counter()
        self._order: dict[tuple[str, str, str, str], int] = {}
        """Newest sequence that landed, by (epoch, log, address, lane).

        A change of rules puts an address into two logs.
        """
        self._log_of: dict[Name, str] = {}
        self._forwarders: set[str] = set()
        """Names of forwarders. With several, the backlog of one may land after newer messages of another."""
        self._stated: dict[tuple[str, str], tuple[int, str]] = {}
        """Last sequence stated and the digest of its statement, by (epoch, address)."""
        self._digests: set[str] = set()
        """Digests of all statements: a repeated digest means the same statement."""
        self._given_up: dict[tuple[str, str, Name], int] = {}
        """Growing count of messages that a ledger entry drops for the hub, by subscription, address and message."""
        self._stated_gone: Counter[str] = Counter()
        """Count of messages that manifests state as dropped, by address."""
        self._hub_ledger: list[tuple[str, str, int, int]] = []
        self._commands: dict[str, str] = {}
        """State that the hub knows, by command."""
        self._versions = Versions(self._wrong)
        self._undone: set[str] = set()
        """Messages that an older copy does not contain."""

    def check(self, events: Iterable[Event]) -> list[Violation]:
        on: dict[str, Callable[..., None]] = {
            "subscription": self._on_subscription,
            "send": self._on_send,
            "acked": self._on_acked,
            "forwards": self._forwarders.add,
            "durable": self._on_durable,
            "opened": self._on_opened,
            "cursor": self._on_cursor,
            "dropped": self._on_dropped,
            "ledger": self._on_ledger,
            "delivered": self._on_delivered,
            "took": self._on_took,
            "landed": self._on_landed,
            "stated": self._on_stated,
            "all stated": self._on_all_stated,
            "let in": self._on_let_in,
            "hub ledger": self._on_hub_ledger,
            "command": self._on_command,
            "receipt waits": self._ever.add,
            **self._versions.on,
            "put back": self._on_put_back,
            "forked": self._on_forked,
            "failed": self._on_failed,
            "connected": self._on_connected,
            "raised": lambda process, error: self._wrong(f"{process} raised {error}"),
            "stuck": lambda what: self._wrong(f"no progress: {what}"),
        }
        for self._index, event in enumerate(events):
            self._step = event.step
            if event.what in INTERRUPTIONS or (event.what == "nemesis" and event.fields[0] == "raises"):
                self._interruptions += 1
            take = on.get(event.what)
            if take is not None:
                take(*event.fields)
        self._at_the_end()
        return self._violations

    def _wrong(self, text: str) -> None:
        self._violations.append(Violation(self._step, text))

    # --- producers --------------------------------------------------------------------------------------------

    def _on_subscription(self, name: str, pattern: str | None, exactly_once: bool) -> None:
        self._filters[name] = pattern
        if exactly_once:
            self._exactly_once.add(name)

    def _on_send(self, producer: str, address: str, messages: tuple[str, ...], qos: int) -> None:
        for message in messages:
            self._sent[message] = (producer, address, qos)
            self._sends[message] += 1

    def _on_acked(self, producer: str, messages: tuple[str, ...]) -> None:
        for message in messages:
            if message in self._sent and self._sent[message][2] == 2 and self._put_back:
                continue  # the packet identifiers of a session are as old as the copy: README.md
            if message not in self._ever:
                self._wrong(f"{message} is acknowledged to {producer} and not on disk")
            self._acked[message] = None

    def _on_command(self, command: str, state: str) -> None:
        before = CommandState(self._commands.get(command, CommandState.WAITING.value))
        if before.final:
            self._wrong(f"{command} was {before.value}, and is {state}")
        if command not in self._ever:
            self._wrong(f"{command} is {state} for the hub, and was never on disk at its gateway")
        if state == CommandState.REJECTED.value or state == CommandState.EXPIRED.value:
            self._wrong(f"{command} is {state}: its time is not over, and its device refuses nothing")
        self._commands[command] = state

    def _on_failed(self, _why: str) -> None:
        self._failed = True

    # --- the store --------------------------------------------------------------------------------------------

    def _on_durable(
        self, log: str, position: int, address: str, epoch: str, sequence: int, messages: tuple[str, ...]
    ) -> None:
        kept = self._logs[log]
        for i, message in enumerate(messages):
            if position + i in kept:
                self._wrong(f"position {position + i} of {log} is given to {kept[position + i].message} and {message}")
            kept[position + i] = Kept(message, (epoch, address, sequence + i), self._index)
            self._log_of[epoch, address, sequence + i] = log
            if message in self._ever and address.startswith(COMMANDS) and not self._put_back:
                self._wrong(f"{message}, a command, is kept twice")
            if address.startswith(RECEIPTS):
                self._ever.add(message)
                continue
            producer, number = message.rsplit(".", 1)
            if message not in self._ever:
                key = (producer, address)
                if int(number) < self._last.get(key, -1) and not (self._failed or self._put_back):
                    self._wrong(f"{message} is stored behind {producer}.{self._last[key]}")
                self._last[key] = int(number)
            self._ever.add(message)

    def _on_opened(self, cursor: int, name: str, log: str, position: int) -> None:
        self._since.setdefault(name, self._index)
        if name.startswith("forwarder/"):
            self._forwarders.add(name)
        self._opened[cursor] = (name, log, position)
        self._passed[cursor] = set()

    def _on_dropped(self, cursor: int) -> None:
        self._opened.pop(cursor, None)
        self._passed.pop(cursor, None)

    def _on_cursor(self, cursor: int, name: str, log: str, position: int, above: tuple[tuple[int, int], ...]) -> None:
        first = self._opened[cursor][2]
        passed, kept = self._passed[cursor], self._logs[log]
        for low, high in ((first, position - 1), *above):
            for place in range(low, high + 1):
                if place not in passed:
                    passed.add(place)
                    if place in kept:
                        self._passes(name, log, kept[place])

    def _passes(self, name: str, log: str, kept: Kept) -> None:
        if not self._done(name, kept):
            self._wrong(f"the cursor {name} in {log} passed {kept.message}, which nobody took")
        if kept.name[1].startswith(COMMANDS) and f"{RECEIPT}{kept.message}" not in self._ever:
            self._wrong(f"{kept.message} has left its queue, and no receipt of it is on disk")

    def _on_ledger(
        self, subscription: str, address: str, parts: tuple[tuple[str, int, int], ...], messages: int, reason: str
    ) -> None:
        if reason not in REASONS:
            self._wrong(f"{messages} messages of {address} are given up for {subscription}: {reason}")
        named = 0
        for epoch, first, last in parts:
            named += last - first + 1
            for sequence in range(first, last + 1):
                self._forgiven.add((subscription, (epoch, address, sequence)))
                self._once_given_up.add((epoch, address, sequence))
        if subscription.startswith("forwarder/"):
            self._given_up[subscription, address, (parts[0][0], address, parts[0][1])] = messages
        if named > messages:
            self._wrong(f"the ledger names {named} messages of {address} for {messages} given up ({reason})")

    def _done(self, subscription: str, kept: Kept) -> bool:
        """Return whether the message is settled: taken for good, in the ledger, or not for this subscription."""
        pattern = self._filters.get(subscription)
        if pattern is not None and not matches(pattern, kept.name[1]):
            return True
        if (subscription, kept.name) in self._forgiven:
            return True
        if self._put_back and subscription in self._exactly_once:
            return True
        landed = self._landed.get(kept.name) == kept.message
        if subscription.startswith("forwarder/"):
            return landed
        taken = kept.message in self._taken[subscription]
        return taken or (subscription == "queue" and landed)  # a forwarder may be one of its consumers

    def _on_put_back(
        self,
        contents: tuple[tuple[str, int, str, str, int, tuple[str, ...]], ...],
        cursors: tuple[tuple[int, str, str, int], ...],
    ) -> None:
        """Restore the state of the copy: messages outside of it are gone for everything but the lake."""
        before = {kept.message: kept.index for log in self._logs.values() for kept in log.values()}
        self._logs.clear()
        for log, position, epoch, address, sequence, messages in contents:
            for i, message in enumerate(messages):
                kept = Kept(message, (epoch, address, sequence + i), before.get(message, 0))
                self._logs[log][position + i] = kept
        self._opened = {number: (name, log, position) for number, name, log, position in cursors}
        names = {name for _, name, _, _ in cursors}
        self._since = {name: index for name, index in self._since.items() if name in names}
        after = {kept.message for log in self._logs.values() for kept in log.values()}
        self._undone |= before.keys() - after
        self._put_back = True
        self._versions.put_back()
        self._passed = defaultdict(set, {cursor: set() for cursor in self._opened})
        self._given.clear()
        self._seen.clear()

    def _on_forked(self, contents: tuple[tuple[str, int, str, str, int, tuple[str, ...]], ...]) -> None:
        """Start a new epoch: messages have other names."""
        for log, position, epoch, address, sequence, messages in contents:
            for i in range(len(messages)):
                kept = self._logs[log][position + i]
                name = (epoch, address, sequence + i)
                self._logs[log][position + i] = kept._replace(name=name)
                self._log_of[name] = log

    # --- consumers --------------------------------------------------------------------------------------------

    def _on_delivered(self, consumer: str, subscription: str, address: str, messages: tuple[str, ...]) -> None:
        if subscription == "queue":
            return
        for message in messages:
            if message not in self._ever and not self._put_back:
                self._wrong(f"{message} is delivered to {consumer} and not on disk")

    def _on_took(self, consumer: str, subscription: str, messages: tuple[str, ...]) -> None:
        taken, now = self._taken[subscription], self._interruptions + self._connections[consumer]
        for message in messages:
            if taken.get(message) == now and self._sends[message] == 1:
                self._wrong(f"{message} is given to {subscription} again, which took it ({consumer})")
            taken[message] = now

    def _on_connected(self, device: str) -> None:
        self._connections[device] += 1

    # --- the lake ---------------------------------------------------------------------------------------------

    def _on_landed(self, epoch: str, address: str, sequence: int, message: str, lane: str) -> None:
        name = (epoch, address, sequence)
        if name in self._landed:
            self._wrong(f"{name} is in the lake twice: {self._landed[name]} and {message}")
        self._landed[name] = message
        self._rows[message] += 1
        if message not in self._ever:
            self._wrong(f"{message} is in the lake and was never on disk")
        key = (epoch, self._log_of.get(name, ""), address, lane)
        in_order = sum(matches(self._filters[name] or "", address) for name in self._forwarders) == 1
        brought_back = self._put_back and name in self._once_given_up  # by a copy from before that
        if in_order and sequence <= self._order.get(key, -1) and not brought_back:
            self._wrong(f"{message} is in the lake behind a later one of {address}")
        self._order[key] = sequence
        if address.startswith(RECEIPTS):
            return  # one receipt for each delivery of its command
        _producer, sent_to, qos = self._sent[message]
        if sent_to != address:
            self._wrong(f"{message} was sent to {sent_to} and landed as {address}")
        most = 1 if qos == 2 else self._sends[message]
        if self._rows[message] > most and not self._put_back:
            self._wrong(f"{message} is in the lake {self._rows[message]} times, sent {self._sends[message]} times")

    def _on_hub_ledger(self, epoch: str, address: str, first: int, last: int, reason: str) -> None:
        if reason != "evicted":  # a message that is evicted in flight is in the ledger, and arrives
            self._hub_ledger.append((epoch, address, first, last))

    def _on_let_in(self, serial: str, known_s: float) -> None:
        if known_s > REVOKED_S:
            self._wrong(f"certificate {serial} was revoked, and its gateway is connected {known_s:g} s later")

    def _on_stated(
        self, epoch: str, address: str, first: int, last: int, given_up: str, previous: str, digest: str
    ) -> None:
        """Check that stated messages were accepted, and that each has landed, was dropped or is still stored."""
        if digest in self._digests or self._put_back:
            return
        self._digests.add(digest)
        end, before = self._stated.get((epoch, address), (-1, GENESIS))
        if (first, previous) != (end + 1, before):
            self._wrong(f"{address} {first}-{last} is stated behind the statement of {end}")
        unknown = [sequence for sequence in range(first, last + 1) if (epoch, address, sequence) not in self._log_of]
        if unknown:
            self._wrong(f"{address} {first}-{last} is stated, and {unknown} were never on disk")
        self._stated[epoch, address] = (last, digest)
        self._stated_gone[address] += sum(json.loads(given_up).values())

    def _on_all_stated(self) -> None:
        if self._put_back:
            return
        ends: dict[tuple[str, str], int] = {}
        for epoch, address, sequence in self._log_of:
            if any(matches(self._filters[name] or "", address) for name in self._forwarders):
                ends[epoch, address] = max(sequence, ends.get((epoch, address), -1))
        for stream, end in ends.items():
            if self._stated.get(stream, (-1, ""))[0] != end:
                self._wrong(f"{stream} goes to {end}, and is stated to {self._stated.get(stream, (-1, ''))[0]}")
        gone: Counter[str] = Counter()
        for (_, address, _), messages in self._given_up.items():
            gone[address] += messages
        if gone != self._stated_gone:
            self._wrong(f"the ledger gives up {dict(gone)}, stated is {dict(self._stated_gone)}")

    # --- rules for the end of a run ---------------------------------------------------------------------------

    def _at_the_end(self) -> None:
        here: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for log, kept in self._logs.items():
            for position, one in kept.items():
                here[one.message].append((log, position))
        for message in self._acked:
            if message not in here and message not in self._undone:
                self._wrong(f"{message} was acknowledged, and no log has it")
        for command, state in self._commands.items():
            if not CommandState(state).final and command not in self._undone and not self._put_back:
                self._wrong(f"{command} is {state} for the hub, and its device took it")
        owed = self._owed()
        for log, kept in self._logs.items():
            for subscription, pattern in self._filters.items():
                if subscription == "queue" or (pattern is None) or not log.startswith("topic "):
                    continue
                first, since = owed.get((subscription, log)), self._since.get(subscription, self._index)
                for position, one in kept.items():
                    if one.index > since and not self._done(subscription, one):
                        why = "has no cursor there" if first is None or position < first else "was not given it"
                        self._wrong(f"{one.message} at {position} of {log}: {subscription} {why}")
            if log.startswith(("queue work/", f"queue {COMMANDS}")):
                for position, one in kept.items():
                    if not self._done("queue", one):
                        self._wrong(f"{one.message} at {position} of {log} was given to nobody")
        self._check_hub_ledger()

    def _owed(self) -> dict[tuple[str, str], int]:
        return {(name, log): position for name, log, position in self._opened.values()}

    def _check_hub_ledger(self) -> None:
        """Check that messages in the hub's ledger did not arrive."""
        for epoch, address, first, last in self._hub_ledger:
            arrived = [s for s in range(first, last + 1) if (epoch, address, s) in self._landed]
            if arrived:
                self._wrong(f"the hub's ledger gives up {address} {first}-{last}, and {len(arrived)} of it arrived")


def summary(events: Iterable[Event]) -> dict[str, Any]:
    """Count the events, for people."""
    counts = Counter(event.what for event in events)
    for what in ("send", "acked", "took"):
        counts[f"{what} messages"] = sum(len(e.fields[2 if what != "acked" else 1]) for e in events if e.what == what)
    return dict(counts)
