"""Report of an import: counts, and a row for each part that was not taken over as it is."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any, Final, NamedTuple


class RegistryOutcome(enum.Enum):
    """Result for a tenant, a device, or a part of one; those that need a person first."""

    REFUSED = "refused"
    """The registry of the hub does not take it."""
    WITHHELD = "withheld"
    """The hub lacks it, and may have had it: someone may have removed or revoked it there."""
    LEFT_OUT = "left out"
    """A field without a counterpart here."""
    DIFFERS = "differs"
    """The hub has other content, which was not changed."""
    STORED = "stored only"
    """Imported; gateways do not use it."""
    ADDED = "added"
    UNCHANGED = "unchanged"
    """The hub has the same already."""


TO_READ: Final = (
    RegistryOutcome.REFUSED,
    RegistryOutcome.WITHHELD,
    RegistryOutcome.LEFT_OUT,
    RegistryOutcome.DIFFERS,
    RegistryOutcome.STORED,
)
_ORDER: Final = tuple(RegistryOutcome)


class RegistryNote(NamedTuple):
    """Result for one part. It has no secrets."""

    outcome: RegistryOutcome
    tenant: str
    device: str
    """Empty: it is about the tenant, or about several devices."""
    setting: str
    words: str
    """The reason; ends without a full stop."""
    number: int = 1
    """Devices, or tenants, that it is about."""

    @property
    def row(self) -> dict[str, Any]:
        """Row of a table."""
        return {**self._asdict(), "outcome": self.outcome.value}


class RegistryReport:
    """Results of one import."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[RegistryOutcome]] = {
            "tenants": Counter(),
            "devices": Counter(),
            "credentials": Counter(),
        }
        """Number of tenants, devices, and devices with credentials, by outcome."""
        self._notes: list[RegistryNote] = []
        self._tallies: Counter[tuple[RegistryOutcome, str, str, str]] = Counter()

    def count(self, what: str, outcome: RegistryOutcome) -> None:
        """Count one of `counts`."""
        self.counts[what][outcome] += 1

    def note(self, outcome: RegistryOutcome, tenant: str, device: str, setting: str, words: str) -> None:
        """Note the result for one part."""
        self._notes.append(RegistryNote(outcome, tenant, device, setting, words))

    def tally(self, outcome: RegistryOutcome, tenant: str, setting: str, words: str) -> None:
        """Note a result that is the same for many devices of a tenant: one row with their number."""
        self._tallies[outcome, tenant, setting, words] += 1

    @property
    def notes(self) -> list[RegistryNote]:
        """Notes, those that need a person first."""
        tallied = [
            RegistryNote(outcome, tenant, "", setting, words, count)
            for (outcome, tenant, setting, words), count in self._tallies.items()
        ]
        return sorted([*self._notes, *tallied], key=lambda each: _ORDER.index(each.outcome))

    def count_document(self) -> dict[str, dict[str, int]]:
        """Return the counts as a document."""
        return {what: {each.value: found[each] for each in _ORDER} for what, found in self.counts.items()}
