"""Findings of all sections, the worst first: the headline of the page and the list below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from spark import amounts
from spark.report import formatting, limits
from spark.report.accounts import Balance
from spark.report.devices import DeviceHealth
from spark.report.fleet import GatewaySummary
from spark.report.storage import Storage

Severity = Literal["wrong", "look", "note"]
_RANK: Final = {"wrong": 2, "look": 1, "note": 0}
_SIGNS: Final = {
    "silent": ("is silent", "are silent", "check power, radio and battery there"),
    "battery": (
        "has a battery that ends within 30 days",
        "have a battery that ends within 30 days",
        "plan a replacement",
    ),
    "reboots": ("restarts often", "restart often", "check power and firmware"),
    "clock": ("has a wrong clock", "have a wrong clock", "set up a time source"),
}


class ReportFinding(msgspec.Struct):
    """`text` is one sentence; `step` is what to do, with commands between backticks.

    `section` is the id of the section that shows it; empty: no section does.
    """

    severity: Severity
    text: str
    step: str = ""
    section: str = ""

    @property
    def sentence(self) -> str:
        """Return text and step as one paragraph."""
        return f"{self.text} {self.step}".rstrip()


def find_problems(
    members: Sequence[GatewaySummary], balance: Balance, health: DeviceHealth, storage: Storage, alone: bool
) -> list[ReportFinding]:
    """Return the problems that figures show, the worst first.

    `notices` reports problems of making the page. `alone`: the figures are of one gateway.
    """
    found = [
        *_find_losses(balance),
        *_find_damage(storage),
        *_find_gateway_problems(members, alone),
        *_find_device_problems(health),
    ]
    return worst_first(found)


def worst_first(found: Sequence[ReportFinding]) -> list[ReportFinding]:
    """Return findings by severity; findings of equal severity keep their order."""
    return sorted(found, key=lambda one: -_RANK[one.severity])


def _find_losses(balance: Balance) -> Iterator[ReportFinding]:
    if balance.unexplained:
        lost = amounts.counted(balance.unexplained, "message")
        text = f"{lost} {_is(balance.unexplained)} missing without an explanation."
        yield ReportFinding(
            "wrong", text, "Look at the missing ranges, and at the store of that gateway.", "completeness"
        )
    if balance.duplicates:
        twice = amounts.counted(balance.duplicates, "message")
        text = f"{twice} {_is(balance.duplicates)} in the lake twice."
        yield ReportFinding("wrong", text, "Look at the addresses concerned.", "completeness")
    if balance.given_up:
        count = sum(balance.given_up.values())
        reasons = ", ".join(balance.given_up)
        text = f"{amounts.counted(count, 'message')} {_was(count)} given up: {reasons}."
        yield ReportFinding("look", text, "Give these addresses a larger quota, or more time.", "completeness")


def _find_damage(found: Storage) -> Iterator[ReportFinding]:
    if found.set_aside_total:
        files = amounts.counted(found.set_aside_total, "damaged file")
        text = f"{files} {_was(found.set_aside_total)} set aside."
        yield ReportFinding("wrong", text, "Restore it from a copy, then run `waypost lake rebuild`.", "lake")
    quarantined = sum(number for _, number in found.quarantined)
    if quarantined:
        text = f"{amounts.counted(quarantined, 'batch', 'batches')} {_is(quarantined)} in quarantine."
        yield ReportFinding("wrong", text, "The reasons are in the section of the lake.", "lake")


def _find_gateway_problems(members: Sequence[GatewaySummary], alone: bool) -> Iterator[ReportFinding]:
    """Return silent and late gateways; on the page of a gateway only the problems of that gateway."""
    section = "" if alone else "fleet"
    total = len(members)
    silent = [one.silent_s for one in members if one.silent_s is not None and one.silent_s > limits.SILENT_S]
    if silent:
        longest = formatting.ago(max(silent))
        subject = "This gateway is" if alone else f"{_of(len(silent), total)} {_is(len(silent))}"
        since = "its last data landed" if len(silent) == 1 else "the first one sent its last data"
        text = f"{subject} silent: {since} {longest}."
        yield ReportFinding("look", text, "Check power and uplink there.", section)
    late = [one for one in members if one.within_share is not None and one.within_share < limits.WITHIN_SHARE]
    if late:
        subject = "This gateway has" if alone else f"{_of(len(late), total)} {_has(len(late))}"
        target = formatting.percent(limits.WITHIN_SHARE)
        text = f"{subject} less than {target} of messages in the lake within 60 s."
        yield ReportFinding("look", text, "Look at their outages and uplinks.", "delivery")
    suspect = sum(one.suspect > 0 for one in members)
    if suspect:
        subject = "This gateway has" if alone else f"{_of(suspect, total)} {_has(suspect)}"
        text = f"{subject} messages with a suspect time."
        yield ReportFinding("look", text, "A clock there was wrong: set up a time source.", "freshness")


def _find_device_problems(health: DeviceHealth) -> Iterator[ReportFinding]:
    for sign, count in health.signs.items():
        if count:
            one, several, step = _SIGNS[sign]
            text = f"{_of(count, health.devices, 'device')} {one if count == 1 else several}."
            yield ReportFinding("look", text, f"{step[0].upper()}{step[1:]}.", "devices")


def _of(count: int, total: int, noun: str = "gateway") -> str:
    return f"{amounts.count(count)} of {amounts.counted(total, noun)}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"
