"""What the reader has to know before the figures, and what to do about it: on the page, and on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from spark import amounts
from spark.report import formatting
from spark.report.queries import LakeFigures
from spark.report.snapshot import Doubt, Standing

_READINGS, _TRACKS = ("readings", "rejected values"), ("plots of devices",)


def notices(known: LakeFigures, command: str = "waypost analytics run --lake DIR") -> list[str]:
    """One sentence or two each, commands between backticks; none when the page shows the lake as it is.

    `command` runs the jobs."""
    run = f"`{command}`"
    found = [f"{_sentence(text)}. Nothing is drawn of it." for text in known.unreadable.values()]
    if not known.landed:
        return found or ["Nothing to draw: no gateway has forwarded messages to this hub yet."]
    landed = amounts.counted(known.landed, "message")
    if not (known.accounts.known or known.members or known.flows):
        return [*found, f"{landed} landed, but no job has run. Run {run} and draw the report again."]
    if known.mixed:
        found.append(
            "The tables were made of different versions of the lake, so their totals may differ. "
            f"Run {run} without --job and draw the report again."
        )
    if not known.accounts.known and not {"gaps", "completeness"} & known.unreadable.keys():
        found.append(f"Duplicates and gaps are unknown: the job gaps has not run. Run {run}.")
    if known.landed_since:
        since = amounts.counted(known.landed_since, "message")
        found.append(f"{since} landed since these tables were made. {run} takes them in.")
    if known.readings_at == known.tracks_at:
        parts: list[tuple[tuple[str, ...], Standing | None]] = [((*_READINGS, *_TRACKS), known.readings_at)]
    else:
        parts = [(_READINGS, known.readings_at), (_TRACKS, known.tracks_at)]
    return found + [_standing(names, at, run) for names, at in parts if at is not None]


def as_of(standing: Standing | None) -> str | None:
    """When what stands there landed: a clear moment, or else a version; None for what is of the page, or not known."""
    if standing is None or standing.of is None:
        return None
    committed_at = standing.of.committed_at
    return formatting.moment(committed_at) if committed_at is not None else f"telemetry version {standing.of.version}"


def _standing(names: Sequence[str], at: Standing, run: str) -> str:
    what = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    match at.doubt:
        case Doubt.BEHIND:
            return f"{_sentence(what)} are as of {as_of(at)}: later messages are not in them yet. {run} takes them in."
        case Doubt.AHEAD:
            text = f"{_sentence(what)} are as of {as_of(at)}, later than the rest of this page."
            return f"{text} Run {run} without --job and draw the report again."
        case Doubt.UNKNOWN:
            text = f"Which messages are in the {what} is not known: an earlier version of Waypost made these tables."
            return f"{text} They are drawn as they are now. Run {run} once more messages have landed."


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
