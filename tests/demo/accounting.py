"""Accounting: are acknowledged messages in the lake, once, without gaps? Pure: journals and rows in, sums out.

Three numbers are kept apart. A *duplicate* is a message that is in the lake twice under one name (gateway, epoch,
address, sequence): there must be none. A *gap* is a sequence missing between 0 and the last one of an address that the
ledger does not explain: there must be none. A reading that a device sent *again*, because the acknowledgement was lost
with the connection, is two messages to the gateway and may be in the lake twice; the device's journal must list each of
those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Reading = tuple[str, int]
"""(device, seq): a device's identifier of a reading."""


class Row(NamedTuple):
    """Row of the lake's `telemetry`: its name, and the reading in its body (None: the body is not a reading)."""

    gateway: str
    epoch: str
    address: str
    sequence: int
    reading: Reading | None


class Given(NamedTuple):
    """Row of the lake's `ledger`: dropped sequences, both ends included."""

    gateway: str
    epoch: str
    address: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Journal of one device: how often it sent each acknowledged reading, and the outcome of the others."""

    device: str
    gateway: str
    sends: Mapping[int, int]
    unacknowledged: int = 0
    dropped: int = 0
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Account:
    """Sums of one gateway, or of all."""

    gateway: str
    acknowledged: int = 0
    """Readings that the gateway acknowledged to its devices."""
    landed: int = 0
    """Acknowledged readings found in the lake."""
    rows: int = 0
    duplicates: int = 0
    unexplained_gaps: int = 0
    """Missing sequences without an entry in the ledger."""
    given_up: int = 0
    """Sequences in the ledger."""
    resent: int = 0
    """Repeated sends of acknowledged readings."""
    twice: int = 0
    """Repeated rows of a reading, under another sequence."""
    unconfessed: int = 0
    """Repeated rows that the device's journal does not explain."""
    unacknowledged: int = 0
    """Readings that devices still hold without an acknowledgement."""
    dropped: int = 0
    """Readings that devices dropped."""
    unacknowledged_landed: int = 0
    """Readings in the lake, although the device never saw the acknowledgement."""
    foreign: int = 0
    """Rows that are not readings of these devices."""
    missing: Sequence[Reading] = field(default=(), repr=False)
    """Acknowledged readings that are not in the lake."""

    @property
    def adds_up(self) -> bool:
        """Return True when every acknowledged reading is in the lake once, and nothing is unexplained."""
        wrong = (self.duplicates, self.unexplained_gaps, self.unconfessed, self.unacknowledged, self.dropped)
        return self.acknowledged > 0 and self.landed == self.acknowledged and not any(wrong)


def account(gateway: str, deliveries: Iterable[Deliveries], rows: Iterable[Row], ledger: Iterable[Given]) -> Account:
    """Compute the account of one gateway from its devices' journals, its rows and its ledger; rows of others are
    ignored.
    """
    deliveries = [one for one in deliveries if one.gateway == gateway]
    rows = [row for row in rows if row.gateway == gateway]
    ledger = [given for given in ledger if given.gateway == gateway]
    sends: dict[Reading, int] = {(d.device, seq): times for d in deliveries for seq, times in d.sends.items()}
    devices = {one.device for one in deliveries}
    once = {row[:4]: row.reading for row in rows}
    copies = Counter(reading for reading in once.values() if reading is not None and reading[0] in devices)
    missing = sorted(sends.keys() - copies.keys())
    return Account(
        gateway=gateway,
        acknowledged=len(sends),
        landed=len(sends) - len(missing),
        rows=len(rows),
        duplicates=len(rows) - len(once),
        unexplained_gaps=_unexplained(once, ledger),
        given_up=sum(given.last - given.first + 1 for given in ledger),
        resent=sum(times - 1 for times in sends.values()),
        twice=sum(times - 1 for times in copies.values()),
        unconfessed=sum(max(0, found - sends[reading]) for reading, found in copies.items() if reading in sends),
        unacknowledged=sum(one.unacknowledged for one in deliveries),
        dropped=sum(one.dropped for one in deliveries),
        unacknowledged_landed=len(copies.keys() - sends.keys()),
        foreign=sum(1 for reading in once.values() if reading is None or reading[0] not in devices),
        missing=missing,
    )


def total(accounts: Sequence[Account]) -> Account:
    """Return the sum over gateways, named ``all``."""
    counted = [name for name in Account.__slots__ if name not in ("gateway", "missing")]
    sums = {name: sum(getattr(one, name) for one in accounts) for name in counted}
    return Account(gateway="all", missing=[reading for one in accounts for reading in one.missing], **sums)


def _unexplained(names: Iterable[tuple[str, str, str, int]], ledger: Iterable[Given]) -> int:
    """Count sequences from 0 to the last of each (gateway, epoch, address) that neither landed nor are in the
    ledger.
    """
    present: dict[tuple[str, str, str], set[int]] = {}
    for gateway, epoch, address, sequence in names:
        present.setdefault((gateway, epoch, address), set()).add(sequence)
    for given in ledger:
        present.setdefault((given.gateway, given.epoch, given.address), set()).update(
            range(given.first, given.last + 1)
        )
    return sum(max(sequences) + 1 - len(sequences) for sequences in present.values())
