"""Report of a comparison: a document on disk that commands read, as rows by address, and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.durable_file import replace_file
from edge.appliance.shadow.address_comparison import AddressComparison, ComparedBroker, Difference
from edge.appliance.shadow.limits import STATE_BYTES_MAX
from edge.appliance.shadow.retained_comparison import RetainedState
from edge.appliance.shadow.traffic_comparison import SightGap, TrafficComparison
from edge.output.errors import CommandError
from edge.output.listing import Listing
from edge.output.times import moment

FILE: Final = "shadow.json"
"""File in the data directory of the gateway."""
ROWS: Final = Listing(
    "shadow-address", "address",
    ("address", "old", "here", "missing", "extra", "order", "twice", "unsure", "retained"),
    ("equal", "verdict", "examples"), "no message has been compared",
)  # fmt: skip
NAMES: Final = {ComparedBroker.OLD: "old broker", ComparedBroker.HERE: "gateway"}


class ExampleInReport(msgspec.Struct, frozen=True):
    """Example of a difference."""

    difference: str
    broker: str
    """ComparedBroker that delivered the message: ``old`` or ``here``."""
    number: int
    """Its number among the messages of its address there."""
    at: float
    """Arrival, in seconds since 1970."""
    digest: str
    head: str
    """Beginning of its payload, as text."""


class AddressInReport(msgspec.Struct, frozen=True):
    """Result of one address."""

    address: str
    old: int
    """Messages of the old broker."""
    here: int
    """Messages of the gateway."""
    equal: int
    """Pairs of equal messages."""
    missing: int
    extra: int
    reordered: int
    duplicated: int
    not_compared: int
    retained: str | None
    """State of the retained message; None: there is none, or it was not compared."""
    examples: Sequence[ExampleInReport] = ()

    @property
    def verdict(self) -> str:
        """Result in one word: the gravest difference, `equal`, or `not-compared`."""
        for name, count in (
            ("missing", self.missing), ("reordered", self.reordered), ("duplicated", self.duplicated),
            ("extra", self.extra),
        ):  # fmt: skip
            if count:
                return name
        if self.retained not in (None, RetainedState.EQUAL.value):
            return f"retained-{self.retained}"
        return "equal" if self.equal or self.retained else "not-compared"


class ProblemInReport(msgspec.Struct, frozen=True):
    """Problem that the comparison found."""

    name: str
    severity: str
    """``error`` or ``warning``."""
    what: str
    next: str


class GapInReport(msgspec.Struct, frozen=True):
    """Time at which a broker was not seen; nothing of it was compared."""

    broker: str
    since: float
    until: float | None
    why: str


class ShadowReport(msgspec.Struct, frozen=True):
    """Result of a comparison. Times are seconds since 1970."""

    started: float
    at: float
    """Time of the report."""
    running: bool
    filters: Sequence[str]
    addresses: Sequence[AddressInReport]
    further: Sequence[int] = (0, 0)
    """Messages of the old broker and of the gateway of addresses beyond the limit, which are not compared."""
    gaps: Sequence[GapInReport] = ()
    gaps_further: int = 0
    retained_at: float | None = None
    """Time of the last comparison of the retained messages."""
    retained_further: int = 0
    """Retained messages beyond the limit, which are not compared."""
    problems: Sequence[ProblemInReport] = ()

    @property
    def differs(self) -> bool:
        """True if a message is missing, was delivered twice or in another order, or a retained message differs."""
        return any(each.verdict not in ("equal", "extra", "not-compared", "retained-extra") for each in self.addresses)


def addresses_in_report(traffic: TrafficComparison, retained: Mapping[str, RetainedState]) -> list[AddressInReport]:
    """Return the results by address, the worst first."""
    none = AddressComparison()
    names = {**dict.fromkeys(traffic.addresses), **dict.fromkeys(retained)}
    found = [_address(name, traffic.addresses.get(name, none), retained.get(name)) for name in names]
    return sorted(found, key=_gravity)


def gaps_in_report(gaps: Iterable[SightGap]) -> list[GapInReport]:
    """Return the gaps."""
    return [GapInReport(NAMES[each.broker], each.since, each.until, each.why) for each in gaps]


def row_of(each: AddressInReport) -> dict[str, Any]:
    """Return the row of an address for `ROWS`."""
    return {
        "address": each.address,
        "old": each.old,
        "here": each.here,
        "equal": each.equal,
        "missing": each.missing,
        "extra": each.extra,
        "order": each.reordered,
        "twice": each.duplicated,
        "unsure": each.not_compared,
        "retained": each.retained,
        "verdict": each.verdict,
        "examples": [msgspec.to_builtins(example) for example in each.examples],
    }


def summary(report: ShadowReport) -> list[str]:
    """Return the report in sentences."""
    counts = dict[str, int]()
    for each in report.addresses:
        counts[each.verdict] = counts.get(each.verdict, 0) + 1
    pairs = sum(each.equal for each in report.addresses)
    words = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
    lines = [f"{len(report.addresses):,} addresses: {words}; {pairs:,} messages are equal"]
    unsure = sum(each.not_compared for each in report.addresses)
    if unsure or any(report.further):
        further = sum(report.further)
        lines.append(f"not compared: {unsure:,} messages, and {further:,} of addresses beyond the limit")
    for gap in report.gaps[-3:]:
        until = "now" if gap.until is None else moment(gap.until)
        lines.append(f"{gap.broker} not seen from {moment(gap.since)} to {until}: {gap.why}")
    if report.retained_at is None:
        lines.append("retained messages were not compared yet")
    elif report.retained_further:
        lines.append(f"{report.retained_further:,} retained messages beyond the limit were not compared")
    return lines


def write_report(data: Path, report: ShadowReport) -> None:
    """Write the report into the data directory. Raises OSError."""
    replace_file(data / FILE, msgspec.json.encode(report))


def read_report(data: Path) -> ShadowReport | None:
    """Return the last report; None without one. Raises CommandError."""
    path = data / FILE
    try:
        if not path.exists():
            return None
        if path.stat().st_size > STATE_BYTES_MAX:
            raise CommandError(f"{path} is too large for a report", hint="delete it", error="file-not-accessible")
        return msgspec.json.decode(path.read_bytes(), type=ShadowReport)
    except OSError as why:
        raise CommandError(f"{path} cannot be read: {why.strerror}", error="file-not-accessible") from None
    except msgspec.MsgspecError as why:
        raise CommandError(f"{path} is damaged: {why}", hint="delete it", error="file-not-accessible") from None


# --- inside -----------------------------------------------------------------------------------------------------------

_ORDER: Final = ("missing", "reordered", "duplicated", "retained-missing", "retained-differs", "extra",
                 "retained-extra", "not-compared", "equal")  # fmt: skip


def _gravity(each: AddressInReport) -> tuple[int, int, str]:
    return _ORDER.index(each.verdict), -each.missing, each.address


def _address(name: str, found: AddressComparison, retained: RetainedState | None) -> AddressInReport:
    counts = found.found
    return AddressInReport(
        address=name,
        old=found.counts[ComparedBroker.OLD],
        here=found.counts[ComparedBroker.HERE],
        equal=found.equal,
        missing=counts.get(Difference.MISSING, 0),
        extra=counts.get(Difference.EXTRA, 0),
        reordered=counts.get(Difference.REORDERED, 0),
        duplicated=counts.get(Difference.DUPLICATED, 0),
        not_compared=found.not_compared,
        retained=None if retained is None else retained.value,
        examples=[
            ExampleInReport(
                each.difference.value,
                each.broker.name.lower(),
                each.number,
                each.at,
                each.digest.hex(),
                each.head.decode("utf-8", "replace"),
            )
            for each in found.examples
        ],
    )
