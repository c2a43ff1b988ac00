"""Limits of logs and other output for people."""

from __future__ import annotations

from typing import Final

LINE_CHARACTERS_MAX: Final = 4_000
"""Longest text of an event: a reason from a peer may have 64 KiB."""

QUEUE_CHARACTERS_MAX: Final = 1_000_000
"""Characters queued for a stderr that is not read: about 8 000 lines, at most 4 MB of memory."""

FLUSH_S: Final = 2.0
"""Longest wait for the last lines at exit: a pipe that is not read must not block it."""

REPETITION_S: Final = 10.0
"""Period over which lines of one kind are counted; then a line shows how many were omitted."""

REPETITION_OF_ONE_MAX: Final = 10
"""Lines of one kind about one peer within `REPETITION_S`."""

REPETITION_OF_ALL_MAX: Final = 50
"""Lines of one kind within `REPETITION_S`, about any peer: 5 a second are at most 40 MB a day of each kind."""

REPETITION_KINDS_MAX: Final = 1_000
"""(Kind, peer) pairs counted at a time, 200 B each; beyond that a kind is counted for all peers together."""

LINES_KEPT_MAX: Final = 2_000
"""Lines of the log in memory, for the console: about 600 kB, and half an hour of a busy gateway."""

EVENTS_KEPT_MAX: Final = 1_000
"""Events in memory, 300 kB: weeks of a gateway that is left alone."""

HISTORY_CHARACTERS_MAX: Final = 400_000
"""Characters of the lines in memory: 2 000 lines have 200 each; only exceptions and texts of peers are longer."""
