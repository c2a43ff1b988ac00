"""The verdict: each claim of the demo with the actual result, the expected one, and their agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edge.output.amounts import counted, number
from tests.demo.accounting import Account

TITLE = "Waypost demo: acknowledged is in the lake, once"

ANOMALIES = (
    "The report shows anomalies: they are expected. The devices measure this machine, and its load jumps when the demo "
    "starts, cuts and kills."
)

BACKLOG_SHARE = 0.8
"""Waiting messages are counted up to a second before acknowledged ones; a cut that leaks would lose all of them."""


@dataclass(frozen=True, slots=True)
class Fact:
    """`value` and `expected` are the displayed texts; `ok` is True when they agree."""

    name: str
    value: object
    expected: object
    ok: bool


@dataclass(frozen=True, slots=True)
class Event:
    """An action on the system, in seconds since 1970; `until` for one with a duration."""

    at: float
    label: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """The faults, and evidence that they took effect."""

    gateway_cut: str
    cut_s: float
    acknowledged_meanwhile: int
    """Readings that the cut gateway acknowledged during the cut."""
    backlog_messages: int
    """Messages waiting for the hub at the end of the cut."""
    gateway_killed: str
    down_s: float
    """Seconds from SIGKILL until the gateway served again."""
    epoch_kept: bool | None
    """The killed gateway restarted with its store; None when it does not report this."""


@dataclass(frozen=True, slots=True)
class Proved:
    """Result of `waypost prove` without an unexplained difference."""

    accepted: int
    landed: int
    unstated: int
    """Accepted messages without a statement."""
    statements: int

    @property
    def complete(self) -> bool:
        """Return True when all messages are stated and all stated ones are in the lake."""
        return self.accepted == self.landed > 0 == self.unstated


def facts_of(
    accounts: Sequence[Account],
    everything: Account,
    trial: Trial,
    drained_s: float | None,
    proved: Proved | None,
) -> list[Fact]:
    """Return every fact of a run.

    `drained_s`: seconds until the backlog was empty, None if it never was; `proved`: None without a proof.
    """
    per_gateway = [
        _equal(f"{one.gateway}: acknowledged readings found in the lake", one.landed, one.acknowledged)
        for one in accounts
    ]
    return [
        _equal("Acknowledged readings found in the lake", everything.landed, everything.acknowledged),
        *per_gateway,
        _none("Duplicates: rows of one (gateway, epoch, address, sequence)", everything.duplicates),
        _none("Unexplained gaps: sequences neither in the lake nor in the ledger", everything.unexplained_gaps),
        _none("Rows of one reading beyond what its device sent", everything.unconfessed),
        _none("Readings left in the devices", everything.unacknowledged),
        _none("Readings given up by the devices", everything.dropped),
        Fact(
            f"Uplink of {trial.gateway_cut} cut for {trial.cut_s:.0f} s: messages stored and waiting at its end",
            trial.backlog_messages,
            f"about {number(trial.acknowledged_meanwhile)}",
            trial.acknowledged_meanwhile > 0 and trial.backlog_messages >= BACKLOG_SHARE * trial.acknowledged_meanwhile,
        ),
        Fact(
            f"{trial.gateway_killed} killed with SIGKILL under load: serving again, same store",
            f"after {trial.down_s:.1f} s" if trial.epoch_kept is not False else "with another store",
            "same store",
            trial.epoch_kept is not False,
        ),
        Fact(
            "Backlog drained after the devices stopped",
            "never" if drained_s is None else f"in {drained_s:.1f} s",
            "drained",
            drained_s is not None,
        ),
        Fact(
            "Proved: in the lake of what the gateways stated, signed and chained, that they accepted",
            _proved(proved),
            "nothing" if proved is None else number(proved.accepted),
            proved is not None and proved.complete,
        ),
    ]


def _proved(proved: Proved | None) -> str:
    if proved is None:
        return "nothing is stated"
    return f"{number(proved.landed)} in {counted(proved.statements, 'statement')}"


def notes_of(everything: Account, firmware: str) -> list[str]:
    """Return notes that a reader needs in addition to the facts."""
    notes = [_sent_again(everything), firmware, ANOMALIES]
    if everything.given_up:
        notes.append(f"Dropped by gateways, with an entry in the ledger: {counted(everything.given_up, 'sequence')}.")
    if everything.missing:
        shown = ", ".join(f"{device} #{seq}" for device, seq in everything.missing[:10])
        notes.append(f"Acknowledged and not in the lake: {shown}{', ...' if len(everything.missing) > 10 else ''}.")
    return notes


def _sent_again(everything: Account) -> str:
    what = f"After broken connections the devices sent {counted(everything.resent, 'reading')} again"
    if not everything.twice:
        return f"{what}; none of them was on disk before."
    return (
        f"{what}; {number(everything.twice)} of them were on disk already: their acknowledgement was lost on the way. "
        "Those are in the lake twice, as two messages with a sequence each."
    )


def passed(facts: Sequence[Fact]) -> bool:
    return bool(facts) and all(fact.ok for fact in facts)


def document(facts: Sequence[Fact], notes: Sequence[str], events: Sequence[Event]) -> dict[str, Any]:
    """Build `facts.json`, which `waypost report --facts` shows."""
    return {
        "title": TITLE,
        "verdict": "ok" if passed(facts) else "failed",
        "facts": [{"name": f.name, "value": f.value, "expected": f.expected, "ok": f.ok} for f in facts],
        "notes": list(notes),
        "events": [
            {"at": _iso(e.at), "label": e.label, "until": None if e.until is None else _iso(e.until)} for e in events
        ],
    }


def _equal(name: str, value: int, expected: int) -> Fact:
    return Fact(name, value, expected, value == expected and expected > 0)


def _none(name: str, value: int) -> Fact:
    return Fact(name, value, 0, value == 0)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
