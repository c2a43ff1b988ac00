"""Gateways at other hubs: what has changed between two looks at the registry.

A thread compares the rows of a look with those of the one before, and decodes what is new. The event loop takes over
the changes only, in slices, so that 10 000 gateways delay no landing. No clock decides what has changed: the rows do.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cloud.hub.fleet import FleetState
from cloud.hub.groups import Key
from cloud.hub.limits import FOLLOWED_AT_ONCE
from cloud.hub.observed import ObservedState, decode_observed
from cloud.hub.registry.directory import GatewayRecord


class ElsewhereLook(NamedTuple):
    """Result of one look."""

    records: Mapping[Key, GatewayRecord]
    """All gateways with their last connection to another hub."""
    changed: Sequence[tuple[GatewayRecord, ObservedState | None]]
    """New and changed ones, with their observations if these are new and can be read."""
    gone: Sequence[Key]
    """Gateways of the look before that are not among them any more."""


def compare(before: Mapping[Key, GatewayRecord], found: Iterable[GatewayRecord]) -> ElsewhereLook:
    """Compare a look with the one before, in any thread. Equal records are kept, not their copies."""
    records: dict[Key, GatewayRecord] = {}
    changed: list[tuple[GatewayRecord, ObservedState | None]] = []
    for record in found:
        key = record.tenant, record.name
        known = before.get(key)
        if known == record:
            records[key] = known
            continue
        records[key] = record
        text = record.observed
        new = text is not None and (known is None or known.observed != text)
        changed.append((record, decode_observed(text) if new and text is not None else None))
    return ElsewhereLook(records, changed, [key for key in before if key not in records])


class ElsewhereGateways:
    """Gateways at other hubs, as the fleet has taken them over. For the event loop."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self.records: Mapping[Key, GatewayRecord] = {}
        """Gateways of the last look that was taken over to its end."""
        self._there: frozenset[str] = frozenset()

    def take_over(self, look: ElsewhereLook, there: Collection[str]) -> Generator[None, None, None]:
        """Take over a look that was compared with `records`, in steps: others may run between them. `there`: writer
        ids of the hubs that are there. If it does not reach its end, the next look repeats it."""
        fleet = self._fleet
        unsettled, fleet.unsettled = fleet.unsettled, set()
        todo = [*look.changed, *((record, None) for record in self._again(look, unsettled, there))]
        try:
            for start in range(0, len(todo), FOLLOWED_AT_ONCE):
                fleet.follow(todo[start : start + FOLLOWED_AT_ONCE], there)
                yield
            for start in range(0, len(look.gone), FOLLOWED_AT_ONCE):
                fleet.come_back(look.gone[start : start + FOLLOWED_AT_ONCE])
                yield
        except BaseException:
            fleet.unsettled |= unsettled | {(record.tenant, record.name) for record, _ in todo}
            raise
        self.records, self._there = look.records, frozenset(there)

    def _again(
        self, look: ElsewhereLook, unsettled: Collection[Key], there: Collection[str]
    ) -> Iterator[GatewayRecord]:
        """Return the gateways that count again although their records may be the same."""
        yield from (look.records[key] for key in unsettled if key in look.records)
        other = self._there ^ frozenset(there)
        if other:
            new = {(record.tenant, record.name) for record, _ in look.changed}
            yield from (
                look.records[key] for key in look.records if key not in new and look.records[key].writer in other
            )
