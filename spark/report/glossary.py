"""The legend of the page."""

from __future__ import annotations

from typing import Final

WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("accepted", "A gateway acknowledged the message to its device: it is on the disk of the gateway."),
    ("landed", "The message is in the lake."),
    ("waiting", "Accepted, and still at its gateway. It lands once there is an uplink."),
    ("given up", "Discarded by its gateway for the reason shown, as the loss ledger says: its quota or time ran out."),
    ("unexplained", "Accepted, but not landed, waiting or given up: a loss."),
    ("duplicate", "A message that is in the lake more than once."),
    ("not stated yet", "Counted by its number; the statement of the gateway for that hour has not landed."),
    ("settled", "An hour of an address of which all has landed or is explained: its figures do not change any more."),
    ("in time", "In the lake within 60 seconds of its reception at the gateway."),
    ("late", "Came over the backlog lane, or took more than 60 seconds."),
    ("lag", "Time from the reception at the gateway to the commit in the lake; p95: 95 of 100 messages took less."),
    ("suspect", "Its time is before 2020, or more than 5 minutes after its landing: a clock was wrong."),
    ("silent", "A gateway: no data for 15 minutes, counted from now. A device: none for more than 5 of its intervals."),
    ("needs a look", "Works, but something is unusual; the column state says what."),
    ("outage", "Messages of a gateway waited and came over the backlog lane; the drain is the time they came in."),
    ("anomaly", "A value that is unusual for its series; the score goes from 0.5 to 1, use 0.75 for alarms."),
    ("expected", "The value that is usual according to the rule."),
    ("as of", "The landing time of the newest data in the tables of a section."),
)
"""Each term and its meaning, in the order in which a message meets them."""
