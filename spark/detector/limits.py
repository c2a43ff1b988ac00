"""Numbers of the detector, with unit and reason.

None was fitted to labels by more than its order of magnitude; decision 0006 says what was tried, and how little the
result depends on them.
"""

from __future__ import annotations

from typing import Final

MEMORY_DAYS: Final = 35
"""Days after which a record counts half.

An event that old may be reported again; a record that never faded would silence its rule.
"""
MEMORY_VALUES: Final = 10_000
"""The same in values; the longer one applies: as many days at one value in five minutes."""
MARGIN: Final = 0.02
"""Share above a record that counts in full: ordinary noise breaks records by less."""
VOTES: Final = 2.5
"""Records broken at once that make an anomaly in a known series: no single measure is trusted alone."""
LEARNING_DAYS: Final = 10
"""Time constant of the threshold, which begins at twice `VOTES`: young records are broken by chance."""
LEARNING_VALUES: Final = 3_000
"""The same in values; the longer one applies."""
WARM_UP_VALUES: Final = 150
"""Values before the first report: shorter histories have no meaningful records."""
QUIET_VALUES: Final = 100
"""Values after an anomaly in which only one of `LOUDER` times its strength is reported: one event, one report."""
LOUDER: Final = 3.0
"""See `QUIET_VALUES`."""
SUPPRESSED: Final = 0.45
"""Highest score, below the 0.5 of a report, of a value that belongs to a reported event."""

VALUE_MAX: Final = 1e100
"""Largest value that is learned from, so that sums of squares stay finite. Larger ones are anomalies."""
BLOCK_VALUES: Final = 512
"""Most values judged together, as columns; sums restart after each block. More would not be faster."""
FADING_BLOCKS: Final = 3
"""Blocks of values after which the mean of the last weeks has faded to a third: five days of one in five minutes."""
HISTORY_VALUES: Final = 1_024
"""Single values kept before a block; the longest window is seven times 144."""
DAY_S: Final = 86_400
"""Seconds of the season that is compared: people, sun and tariffs follow the day."""
HOURS: Final = 24
"""Hours of a day."""
SLOTS: Final = 288
"""Slots of a day with one value each, five minutes long."""
DAYS: Final = 8
"""Days of slots kept: the same time one, two, three and seven days ago."""
SLOT_SEARCH: Final = 2
"""Slots to either side that are searched for the same time of another day, as readings are not exact to the second."""
SLOTS_WEEK: Final = 7 * SLOTS
"""Slots after which days of the week repeat."""
SLOT_MAX: Final = 10**11
"""Largest slot since 1970, a million years: later times are invalid."""
INTERVAL_S_MIN: Final = 0.001
"""Shortest interval between values, in seconds, for the number of values per day."""
INTERVAL_VALUES: Final = 30
"""Values from which the usual interval of a series is derived; before that no pattern is compared."""
STRIDE_VALUES_MAX: Final = 64
"""Most values between two points of a pattern; it bounds the memory of a series with a value each second."""
COURSE_STEPS: Final = 1 << 22
"""Whole numbers to either side of 0 that points of a course are rounded to.

Sums of 48 of their squares are exact in double precision, so distances do not depend on the order of additions.
"""
COURSE_STEPS_USUAL: Final = 1 << 10
"""Steps for the usual distance of a point from the median; beyond 4 000 times that, all count the same."""
COURSE_PRODUCTS: Final = 1 << 18
"""Products of points of courses that are computed at once.

With more OpenBLAS would start threads, which cost more than they save, and distances would not fit a processor's cache.
"""
BINS: Final = 12
"""Classes of size in which values are counted, to compare common values now and before."""
BIN_VALUES: Final = 150
"""Values from which the classes are derived, with as many in each."""

NUMBERING_STEPS: Final = 32
"""Values before a series with the name of a numbering is judged not to be one."""

NUMBERING_FALL_EACH: Final = 32
"""One step in this many may go down in such a series: a byte counter wraps at 256, a device restarts."""
