"""What the reader has to know before the figures, and what to do about it: on the page, and on the command line."""

from __future__ import annotations

from spark.report import formatting
from spark.report.queries import LakeFigures


def notices(known: LakeFigures, command: str = "waypost analytics run --lake DIR") -> list[str]:
    """One sentence or two each, commands between backticks; none when the page shows the lake as it is.

    `command` runs the jobs."""
    run = f"`{command}`"
    if not known.landed:
        return ["Nothing to draw: no gateway has forwarded messages to this hub yet."]
    count = formatting.count(known.landed)
    if not (known.completeness or known.freshness or known.flows):
        return [f"{count} messages have landed, but no job has run. Run {run} and draw the report again."]
    found = []
    if known.mixed:
        found.append(
            "The tables were made of different versions of the lake, so their totals may differ. "
            f"Run {run} without --job and draw the report again."
        )
    if not known.completeness:
        found.append(f"Duplicates and gaps are unknown: the job gaps has not run. Run {run}.")
    if known.landed_since:
        since = formatting.count(known.landed_since)
        found.append(f"{since} messages have landed since these tables were made. {run} takes them in.")
    return found
