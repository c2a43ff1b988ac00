"""Limits of campaigns at a hub. Those of the registry are in `cloud.hub.limits`."""

from __future__ import annotations

from typing import Final

CHECK_INTERVAL_S: Final = 2.0
"""Seconds between two looks at the campaigns: as long as a changed device takes to its gateway."""

SETTLING_S: Final = 900.0
"""Seconds after the start of a hub, or the return of its registry, in which silence does not count: gateways bring the
reports that they have kept until then."""

QUERIES_MAX: Final = 64
"""Requests that wait for the registry; more are answered with 503."""

STEPS_AT_ONCE_MAX: Final = 100
"""Steps of one campaign before the others have their turn: 50 000 offers, in some seconds."""

DONE_AT_ONCE_MAX: Final = 4
"""Campaigns that are done of which one look examines the devices: with 100 000 devices each, one second. If there are
more they take turns, so of the 64 of a tenant each is examined every half a minute."""

HALTED_SHOWN_MAX: Final = 20
"""Halted campaigns among the problems of a hub."""

NOTE_CHARACTERS_MAX: Final = 1_000
"""Characters of a note: a paragraph."""

PATTERNS_MAX: Final = 100
"""Patterns of ids in one request: each is compared with each device."""

SECONDS_MAX: Final = 366 * 86_400
"""Longest soak time and absence: a device that sleeps for longer than a year is not waited for."""
