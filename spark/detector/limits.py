"""Every number the detector was built with: unit and reason. None of them was fitted to labels by more than their order
of magnitude; `spark/README.md` says what was tried and how flat the result is around them."""

from __future__ import annotations

from typing import Final

MEMORY_DAYS: Final = 35
"""Days after which a record counts half. What was last seen then may be reported anew; a record that never faded would
silence the rule that made it."""
MEMORY_VALUES: Final = 10_000
"""The same in values, for whichever is longer: as many days at one value in five minutes."""
MARGIN: Final = 0.02
"""By which share a record must be exceeded to count in full: less is how records of ordinary noise are broken."""
VOTES: Final = 2.5
"""Records broken at once that make an anomaly, once the series is known: no single measure is trusted alone."""
LEARNING_DAYS: Final = 10
"""Young records are broken by chance: the votes needed begin at twice `VOTES`; this is the constant of the decline."""
LEARNING_VALUES: Final = 3_000
"""The same in values, for whichever is longer."""
WARM_UP_VALUES: Final = 150
"""Values before the first anomaly is reported at all: shorter histories have no records worth the name."""
QUIET_VALUES: Final = 100
"""Values after an anomaly in which only one of `LOUDER` times its strength is reported: one event, one report."""
LOUDER: Final = 3.0
"""See `QUIET_VALUES`."""
SUPPRESSED: Final = 0.45
"""Highest score, below the 0.5 of a report, of a value that belongs to an event reported already."""

VALUE_MAX: Final = 1e100
"""Largest size of a value that is learned from: sums of squares stay finite. A larger one is an anomaly by itself."""
BLOCK_VALUES: Final = 512
"""Values judged together at most, as columns, and after which sums begin anew: more would be no faster."""
FADING_BLOCKS: Final = 3
"""Blocks of values after which the mean of the last weeks has faded to a third: five days of one in five minutes."""
HISTORY_VALUES: Final = 1_024
"""Values kept one by one before a block; the longest window is seven times 144."""
DAY_S: Final = 86_400
"""Seconds of the season that is looked for: people, sun and tariffs go by the day."""
HOURS: Final = 24
"""Of a day."""
SLOTS: Final = 288
"""Parts of a day of which one value each is kept, five minutes long."""
DAYS: Final = 8
"""Days of slots kept: the same time one, two, three and seven days ago."""
SLOT_SEARCH: Final = 2
"""Slots to either side in which the same time of another day is looked for, as readings do not come on the second."""
SLOTS_WEEK: Final = 7 * SLOTS
"""Slots after which days of the week come again."""
SLOT_MAX: Final = 10**11
"""Slots since 1970 a time is taken for at most, a million years: further ones are no times."""
INTERVAL_S_MIN: Final = 0.001
"""Seconds between values that are told apart, for the number a day has."""
INTERVAL_VALUES: Final = 30
"""Values whose distances tell how often the series has one; before that no pattern is compared."""
STRIDE_VALUES_MAX: Final = 64
"""Values between two points of a pattern, at most: it bounds what is kept of a series with a value each second."""
COURSE_STEPS: Final = 1 << 22
"""Whole numbers to either side of 0 that points of a course are rounded to. Sums of 48 of their squares are exact in
double precision: distances are the same whatever order a processor adds them in."""
COURSE_STEPS_USUAL: Final = 1 << 10
"""Of these, how far a point is from the middle as a rule: one 4 000 times as far is as far as any."""
COURSE_PRODUCTS: Final = 1 << 18
"""Products of points of courses that are compared at once: from more on OpenBLAS would start threads, which cost more
than they bring, and distances would no longer stay in a processor's cache."""
BINS: Final = 12
"""Classes of size in which values are counted to compare what is common now with what was."""
BIN_VALUES: Final = 150
"""Values from which the classes are made, with as many in each."""

NUMBERING_STEPS: Final = 32
"""Values before it is said of a series named as if it numbered readings that it does not."""

NUMBERING_FALL_EACH: Final = 32
"""Steps of which one may go down in such a series: a counter of a byte starts over each 256, a device now and then."""
