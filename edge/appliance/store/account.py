"""`waypost store account`: the messages that a store accepted for a forwarder, to compare with a lake."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bridge.store_account import AccountLoss, AccountRange, AddressAccount, StoreAccount
from edge.appliance.store.recovery.inspection import Inspection
from edge.appliance.store.selection import SkippedSegments, StoreSelection, select
from edge.broker.delivery.durable import FORWARDER_PREFIX, Declaration
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.router.durable_subscriptions import KIND as SUBSCRIPTIONS
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreDamaged, StoreError


class ForwarderUnknown(StoreError):
    """The store has no forwarder of this name, or several and no name was given."""


def account_of(path: Path, forwarder: str | None) -> StoreAccount:
    """Return the account of a forwarder (CONNECTOR/NAME; None: the only one there is). Raises StoreError.

    A gateway may run at the same time. The order of reading ensures that messages it settles are not missing.
    """
    with Inspection.open(path) as inspection:
        declaration = _declaration(inspection, forwarder)
        ends = _ends(inspection, declaration)
        waiting, _ = _sequences(inspection, StoreSelection(cursor=declaration.name))
        losses = _losses(inspection, declaration.name)
        taken_at = time.time_ns()
        epochs = inspection.epochs(inspection.meta("epoch") or "")
        addresses = [
            account
            for address, end in sorted(ends.items())
            for account in _accounts(epochs, address, end, losses.get(address, ()), waiting.get(address) or Ranges())
        ]
    return StoreAccount(declaration.name.removeprefix(FORWARDER_PREFIX), taken_at, tuple(addresses))


def _declaration(inspection: Inspection, forwarder: str | None) -> Declaration:
    rows = inspection.query("SELECT value FROM state WHERE kind = ?", (SUBSCRIPTIONS,))
    try:
        every = [msgspec.msgpack.decode(value, type=Declaration) for (value,) in rows if isinstance(value, bytes)]
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"a subscription cannot be read: {error}") from error
    found = {one.name: one for one in every if one.name.startswith(FORWARDER_PREFIX)}
    known = ", ".join(sorted(name.removeprefix(FORWARDER_PREFIX) for name in found)) or "none"
    if forwarder is None and len(found) == 1:
        return next(iter(found.values()))
    if forwarder is None:
        raise ForwarderUnknown(f"give the forwarder with --forwarder: the store has {known}")
    if FORWARDER_PREFIX + forwarder not in found:
        raise ForwarderUnknown(f"the store has no forwarder {forwarder}: it has {known}")
    return found[FORWARDER_PREFIX + forwarder]


def _sequences(inspection: Inspection, selection: StoreSelection) -> tuple[dict[str, Ranges], dict[str, int]]:
    """Return the sequences of a selection by address, and the number after the highest."""
    found: dict[str, Ranges] = {}
    ends: dict[str, int] = {}
    skipped = SkippedSegments()
    for _, stored in select(inspection, selection, skipped):
        last = stored.sequence + len(stored.run.bodies) - 1
        found.setdefault(stored.run.address, Ranges()).add(stored.sequence, last)
        ends[stored.run.address] = max(ends.get(stored.run.address, 0), last + 1)
    if skipped.segments:
        raise StoreDamaged(f"{skipped.messages} messages cannot be read")
    return found, ends


def _losses(inspection: Inspection, subscription: str) -> dict[str, list[AccountLoss]]:
    rows = inspection.query("SELECT address, first, last, reason FROM ledger WHERE subscription = ?", (subscription,))
    losses: dict[str, list[AccountLoss]] = {}
    for address, first, last, reason in rows:
        losses.setdefault(str(address), []).append(AccountLoss(int(str(first)), int(str(last)), str(reason)))
    return losses


def _ends(inspection: Inspection, declaration: Declaration) -> dict[str, int]:
    """Return the next sequence of each address of a forwarder, from its counter or its newest messages."""
    _, ends = _sequences(inspection, StoreSelection(address=declaration.pattern))
    for name, following in inspection.query("SELECT name, next FROM address"):
        address = str(name)
        if matches(declaration.pattern, address):
            ends[address] = max(ends.get(address, 0), int(str(following)))
    return {address: end for address, end in ends.items() if end}


def _accounts(
    epochs: Epochs, address: str, end: int, losses: Sequence[AccountLoss], waiting: Ranges
) -> Iterator[AddressAccount]:
    """Yield an account for each epoch of an address."""
    for epoch, first, last in epochs.parts(address, 0, end - 1):
        gone = [
            AccountLoss(max(first, one.first), min(last, one.last), one.reason)
            for one in losses
            if one.first <= last and one.last >= first
        ]
        left = [
            AccountRange(max(first, low), min(last, high)) for low, high in waiting if low <= last and high >= first
        ]
        yield AddressAccount(epoch, address, first, last, tuple(gone), tuple(left))
