"""Every bound of what is written for people, with unit and reason."""

from __future__ import annotations

from typing import Final

LINE_CHARACTERS_MAX: Final = 4_000
"""Of one event's text: a reason of a peer may have 64 KiB, and nobody reads it."""

QUEUE_CHARACTERS_MAX: Final = 1_000_000
"""What waits for a stderr that is not read: some 8 000 lines, at most 4 MB of memory."""

FLUSH_S: Final = 2.0
"""How long the end of the program waits for the last lines; a pipe nobody reads must not keep it."""

REPETITION_S: Final = 10.0
"""Lines of one kind are counted over this time; then a line says how many were left out."""

REPETITION_OF_ONE_MAX: Final = 10
"""Lines of one kind about one peer, in `REPETITION_S`: more of them say nothing new."""

REPETITION_OF_ALL_MAX: Final = 50
"""Lines of one kind in `REPETITION_S`, whomever they are about: 5 a second fill no card (40 MB a day of each kind)."""

REPETITION_KINDS_MAX: Final = 1_000
"""(Kind, peer) pairs counted at a time, 200 B each; beyond it a kind is counted for all peers together."""
