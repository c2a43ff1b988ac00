"""Remarks on the page itself and what to do about them, shown before the figures and on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from spark import amounts
from spark.report import formatting, limits
from spark.report.findings import ReportFinding, Severity, worst_first
from spark.report.missing_tables import KNOWN_FROM
from spark.report.queries import LakeFigures
from spark.report.snapshot import TableStanding, VersionDoubt

_SINGULAR = ("the last data of each gateway", "the health of devices")
_READINGS, _TRACKS = ("readings", "rejected values"), ("plots of devices",)


def list_notices(known: LakeFigures, command: str = "waypost lake run --lake DIR") -> list[str]:
    """Return each notice as one or two sentences, with commands between backticks, the worst first.

    The list is empty if the page shows the current lake and data has landed recently. `command` runs the jobs.
    """
    return [one.sentence for one in find_remarks(known, command)]


def find_remarks(known: LakeFigures, command: str = "waypost lake run --lake DIR") -> list[ReportFinding]:
    """Return the notices with their severity, the worst first."""
    found = [
        ReportFinding("wrong", f"{_capitalize(text)}.", "Nothing is drawn of it.", "lake")
        for text in known.unreadable.values()
    ]
    if not known.landed:
        nothing = ReportFinding("note", "Nothing to draw: no gateway has forwarded messages to this hub yet.")
        return found or [nothing]
    found += _check_recency(known)
    if not (known.accounts.known or known.members or known.flows):
        landed = amounts.counted(known.landed, "message")
        found.append(
            ReportFinding(
                "look", f"{landed} landed, but no job has run.", f"Run `{command}` and draw the report again."
            )
        )
        return worst_first(found)
    return worst_first([*found, *_check_tables(known, f"`{command}`")])


def _check_recency(known: LakeFigures) -> Iterator[ReportFinding]:
    """Compare the lake with the clock."""
    recency = known.recency
    if recency.landed_at is None or recency.silent_s is None:
        return
    at = formatting.moment(datetime.fromtimestamp(recency.landed_at, UTC))
    if recency.ahead_s > limits.FUTURE_S:
        ahead = formatting.age(recency.ahead_s)
        text = f"The newest data landed at {at} UTC, {ahead} in the future: a clock (here, or at the hub) is wrong."
        yield ReportFinding("wrong", text, "Ages on this page are wrong. Set the clock and draw the report again.")
    elif recency.silent_s > limits.SILENT_S:
        severity: Severity = "wrong" if recency.silent_s > limits.LAKE_DEAD_S else "look"
        text = f"Last data {formatting.ago(recency.silent_s)}: nothing has landed in this lake since {at} UTC."
        yield ReportFinding(severity, text, "Check the hub, and the connection of the gateways to it.")


def _check_tables(known: LakeFigures, run: str) -> Iterator[ReportFinding]:
    """Compare the tables with the lake."""
    if known.mixed:
        text = "The tables derive from different versions of the lake, so their totals may differ."
        yield ReportFinding("look", text, f"Run {run} without --job and draw the report again.")
    if known.never_made:
        jobs = ", ".join(dict.fromkeys(known.never_made.values()))
        one = len(set(known.never_made.values())) == 1
        what = _join_words([KNOWN_FROM[name] for name in known.never_made])
        text = f"{_capitalize(what)} {'is' if what in _SINGULAR else 'are'} unknown: "
        text += f"the job {jobs} has not run." if one else f"the jobs {jobs} have not run."
        yield ReportFinding("look", text, f"Run {run}.")
    if known.landed_since or known.recency.behind_s > limits.BEHIND_S:
        since = amounts.counted(known.landed_since, "message") if known.landed_since else "Messages"
        behind = known.recency.behind_s
        old = f", which know data until {formatting.ago(behind)}" if behind > limits.BEHIND_S else ""
        text = f"{since} landed since these tables were made{old}."
        yield ReportFinding("look" if old else "note", text, f"Run {run} to include them.")
    if known.readings_at == known.tracks_at:
        parts: list[tuple[tuple[str, ...], TableStanding | None]] = [((*_READINGS, *_TRACKS), known.readings_at)]
    else:
        parts = [(_READINGS, known.readings_at), (_TRACKS, known.tracks_at)]
    yield from (ReportFinding("note", _describe_standing(names, at, run)) for names, at in parts if at is not None)


def _join_words(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def as_of(standing: TableStanding | None) -> str | None:
    """Return when the shown data landed: a time, or else a version. None if it is the page's version, or not known."""
    if standing is None or standing.of is None:
        return None
    committed_at = standing.of.committed_at
    return formatting.moment(committed_at) if committed_at is not None else f"telemetry version {standing.of.version}"


def _describe_standing(names: Sequence[str], at: TableStanding, run: str) -> str:
    what = _join_words(names)
    match at.doubt:
        case VersionDoubt.BEHIND:
            return f"{_capitalize(what)} are as of {as_of(at)}. Run {run} to include later messages."
        case VersionDoubt.AHEAD:
            text = f"{_capitalize(what)} are as of {as_of(at)}, later than the rest of this page."
            return f"{text} Run {run} without --job and draw the report again."
        case VersionDoubt.UNKNOWN:
            text = f"It is unknown which messages are in the {what}: an earlier version of Waypost made these tables."
            return f"{text} The page shows their current rows. Run {run} after more messages have landed."


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]
