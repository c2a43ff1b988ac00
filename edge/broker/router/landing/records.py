"""Messages with a receipt to come, in memory and in the small state of the store.

A message gets its sequence in the commit that stores it. So a run with requests is recorded twice: with the group that
stores it, by its place in the log, and by the sequence of each message with the next group. After a crash in between
its messages are found again in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Final

import msgspec

from bridge.hidden import hides
from bridge.landing_receipt import WantedReceipt
from bridge.message import AMQP, Run, Stored
from bridge.publisher import device_of
from edge.broker.store.contract import SmallState
from edge.broker.store.ticket import Ticket

MESSAGES: Final = "landing-message"
"""Kind of the small state: number -> `AwaitedMessage`."""
RUNS: Final = "landing-run"
"""Kind of the small state: number -> `UnnumberedRun`."""
LEDGER_READ: Final = "landing-ledger"
"""Kind of the small state: the last entry of the loss ledger that was compared with these messages."""


@hides("correlation")
class AwaitedMessage(msgspec.Struct, frozen=True, array_like=True):
    """Message with a receipt to come."""

    address: str
    sequence: int
    device: str
    amqp: bool
    correlation: bytes
    requested_at: int
    """UTC nanoseconds."""
    reason: str = ""
    """Reason in the loss ledger; empty while the message is not dropped."""


class UnnumberedRun(msgspec.Struct, frozen=True, array_like=True):
    """Run with requests that waits for its commit."""

    log: int
    position: int
    """End of the log when the run was added: it is stored here or later."""
    address: str
    publisher: str
    received_at: int

    def is_same(self, run: Run) -> bool:
        """Return True for the run that was recorded."""
        return (run.address, run.device, run.received_at) == (self.address, self.publisher, self.received_at)


class AwaitedMessages(Mapping[int, AwaitedMessage]):
    """All messages with a receipt to come, by number. Every change joins the open group of the store."""

    def __init__(self, state: SmallState) -> None:
        self._state = state
        self._messages: dict[int, AwaitedMessage] = {}
        self._of_device: Counter[str] = Counter()
        self._numbers_by_name: dict[str, dict[int, int]] = {}
        """Number by address and sequence."""
        self.unnumbered: dict[int, UnnumberedRun] = {}
        """Runs of a commit before the last crash, which are to be found in their logs."""
        decode = msgspec.msgpack.decode
        for key, packed in state.items(MESSAGES):
            self._add(int(key), decode(packed, type=AwaitedMessage))
        for key, packed in state.items(RUNS):
            self.unnumbered[int(key)] = decode(packed, type=UnnumberedRun)
        kept = dict(state.items(LEDGER_READ)).get("", b"")
        self.ledger_read: int = int.from_bytes(kept, "big")
        self._numbers = count(max((*self._messages, *self.unnumbered), default=0) + 1)

    def __getitem__(self, number: int) -> AwaitedMessage:
        return self._messages[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add_run(self, log: int, position: int, run: Run) -> tuple[int, Ticket]:
        """Record a run that has joined the open group; return its number, and the ticket of that group."""
        number = next(self._numbers)
        record = UnnumberedRun(log, position, run.address, run.device, run.received_at)
        return number, self._state.put(RUNS, _key(number), msgspec.msgpack.encode(record))

    def forget_run(self, number: int) -> None:
        """Remove the record of a run that was not stored, or has its sequences."""
        self.unnumbered.pop(number, None)
        self._state.delete(RUNS, _key(number))

    def add_messages(self, stored: Stored, wanted: Iterable[WantedReceipt]) -> None:
        """Record the messages of a stored run that want receipts. The caller then forgets the record of the run."""
        run = stored.run
        for each in wanted:
            sequence = stored.sequence + each.index
            if sequence not in self._numbers_by_name.get(run.address, ()):
                names = (run.address, sequence, device_of(run.device), bool(run.flags & AMQP))
                self._put(next(self._numbers), AwaitedMessage(*names, each.correlation, run.received_at))

    def set_reason(self, number: int, reason: str) -> None:
        """Record that a message was dropped."""
        self._put(number, msgspec.structs.replace(self._messages[number], reason=reason))

    def remove(self, number: int) -> None:
        """Forget a message: its receipt is on its way, or will never come."""
        message = self._messages.pop(number)
        self._of_device[message.device] -= 1
        if not self._of_device[message.device]:
            del self._of_device[message.device]
        names = self._numbers_by_name[message.address]
        del names[message.sequence]
        if not names:
            del self._numbers_by_name[message.address]
        self._state.delete(MESSAGES, _key(number))

    def of_device(self, device: str) -> int:
        """Return the number of messages of a device."""
        return self._of_device[device]

    def within(self, address: str, first: int, last: int) -> list[int]:
        """Return the numbers of the messages ``first..last`` of an address, by sequence."""
        names = self._numbers_by_name.get(address)
        if not names:
            return []
        if last - first < len(names):
            return [names[sequence] for sequence in range(first, last + 1) if sequence in names]
        return [names[sequence] for sequence in sorted(names) if first <= sequence <= last]

    def keep_ledger_read(self, entry: int) -> None:
        """Record the last entry of the loss ledger that was compared."""
        self.ledger_read = entry
        self._state.put(LEDGER_READ, "", entry.to_bytes(8, "big"))

    def _put(self, number: int, message: AwaitedMessage) -> None:
        self._add(number, message)
        self._state.put(MESSAGES, _key(number), msgspec.msgpack.encode(message))

    def _add(self, number: int, message: AwaitedMessage) -> None:
        if number not in self._messages:
            self._of_device[message.device] += 1
        self._messages[number] = message
        self._numbers_by_name.setdefault(message.address, {})[message.sequence] = number


def _key(number: int) -> str:
    return f"{number:016}"
