"""Comparison of the messages of all addresses at two brokers. Without I/O; `now` is an argument.

Only messages of times at which both brokers were seen are judged. After a break the first messages may have a
counterpart from before, so for as long as a counterpart may take they count as not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from edge.appliance.shadow.address_comparison import AddressComparison, ComparedBroker
from edge.appliance.shadow.limits import ADDRESSES_MAX, WAITING_MAX


class SightGap(NamedTuple):
    """Time at which a broker was not seen."""

    broker: ComparedBroker
    since: float
    until: float | None
    why: str


GAPS_MAX: Final = 50
"""Gaps that are listed; further ones are counted."""


class TrafficComparison:
    """Comparison of all addresses."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: time in which the counterpart of a message has to arrive."""
        self.addresses: dict[str, AddressComparison] = {}
        self.further = [0, 0]
        """Messages by broker of addresses beyond the limit, which are not compared."""
        self.gaps: list[SightGap] = []
        self.gaps_further = 0
        """Gaps that are not listed."""
        self._patience_s = patience_s
        self._seen = [False, False]
        self._sure_from = 0.0
        self._held_until = 0.0
        self._waiting: set[str] = set()
        """Addresses with waiting messages."""
        self.waiting = 0
        """Messages that wait for their counterpart."""

    @property
    def is_seen(self) -> bool:
        """True while both brokers are seen."""
        return all(self._seen)

    def up(self, broker: ComparedBroker, now: float) -> None:
        """Note that the messages of a broker arrive from now on."""
        self._seen[broker] = True
        for place, gap in enumerate(self.gaps):
            if gap.broker is broker and gap.until is None:
                self.gaps[place] = gap._replace(until=now)
        if self.is_seen:
            self._sure_from = now + self._patience_s

    def down(self, broker: ComparedBroker, now: float, why: str) -> None:
        """Note that the connection to a broker is lost."""
        if not self._seen[broker]:
            return
        self._seen[broker] = False
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append(SightGap(broker, now, None, why))
        else:
            self.gaps_further += 1
        self._forget()

    def hold(self, now: float) -> None:
        """Note that the mirror is not connected: what waits may still come."""
        self._held_until = now + self._patience_s
        self._sure_from = max(self._sure_from, self._held_until)

    def arrived(self, broker: ComparedBroker, address: str, payload: bytes, now: float) -> None:
        """Record a message."""
        found = self.addresses.get(address)
        if found is None:
            if len(self.addresses) >= ADDRESSES_MAX:
                self.further[broker] += 1
                return
            found = self.addresses[address] = AddressComparison()
        if broker is ComparedBroker.OLD:
            found.note_repeat(payload, now)
        if not self.is_seen or (self.waiting >= WAITING_MAX and not found.awaits(broker)):
            found.passed(broker)
            if self.is_seen:  # its counterpart will wait in vain
                self._sure_from = now + self._patience_s
            return
        before = found.waiting
        found.arrived(broker, payload, now)
        self._note_waiting(address, found, before)

    def expire(self, now: float) -> None:
        """Judge the messages without a counterpart in time."""
        if now < self._held_until:
            return
        for name in list(self._waiting):
            found = self.addresses[name]
            before = found.waiting
            found.expire(now - self._patience_s, self._sure_from)
            self._note_waiting(name, found, before)

    def end(self) -> None:
        """Count what still waits as not compared: the comparison ends."""
        self._forget()

    def looping(self, now: float) -> Iterator[str]:
        """Yield addresses where the same message comes again and again."""
        return (name for name, each in self.addresses.items() if each.is_looping(now))

    def _note_waiting(self, address: str, found: AddressComparison, before: int) -> None:
        """Follow the number of waiting messages of an address."""
        self.waiting += found.waiting - before
        if found.waiting:
            self._waiting.add(address)
        else:
            self._waiting.discard(address)

    def _forget(self) -> None:
        for name in self._waiting:
            self.addresses[name].forget_waiting()
        self._waiting.clear()
        self.waiting = 0
