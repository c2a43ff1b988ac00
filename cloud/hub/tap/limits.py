"""Limits of the tap, with unit and reason."""

from __future__ import annotations

from typing import Final

POLL_S: Final = 1.0
"""Interval of looking for the next commit: a hub lands about once a second."""

SEEN_S: Final = 15.0
"""Interval at which the hub that holds a tap writes that it is there."""

SILENT_S: Final = 60.0
"""Silence after which another hub takes a tap over. The brokers fence the first one, so a wrong guess costs a
reconnection and no message."""

CLAIM_S: Final = 10.0
"""Interval of attempts to claim a tap that another hub holds."""

RETRY_S_MIN: Final = 1.0
"""Pause after a failure, doubled with each further one."""

RETRY_S_MAX: Final = 30.0
"""Longest pause after a failure: brokers that are back are noticed soon, and each attempt costs a connection."""

LATE_S: Final = 120.0
"""Age of the first message that waits for the tap above which it is a problem: a broker that restarts takes less."""

ROWS_AT_ONCE: Final = 1_000
"""Rows of a data file that are read and sent at a time: about 1 MB, sent within a tenth of a second."""

BYTES_AT_ONCE: Final = 1024 * 1024
"""Bytes sent before their answers are awaited: 30 s are enough on a link of 50 kB/s."""

BATCH_BYTES: Final = 256 * 1024
"""Bytes of one batch of a partition: a quarter of what a topic accepts by default (``max.message.bytes``)."""

TRANSACTION_TIMEOUT_S: Final = 300.0
"""Time after which brokers abort a transaction of a hub that ended: less than their bound of 15 minutes
(``transaction.max.timeout.ms``), more than 48 MiB, the largest commit, need at 200 kB/s."""

COMMIT_TIMEOUT_S: Final = 30.0
"""Longest wait for the end of a transaction."""

NEWEST_STEPS: Final = 1_000
"""Versions that one look for the newest one passes: a quarter of an hour of commits, some seconds in a bucket."""

LOOK_S: Final = 5.0
"""Interval of reading the state of the tap for health, metrics and API."""

RESTART_S: Final = 5.0
"""Pause before a process that has ended is started again."""

END_S: Final = 5.0
"""Longest wait for the process at the end of the hub; then it is killed, and the brokers abort its transaction."""

HEADER_BYTES: Final = 32
"""Bytes that a record or one of its headers takes in addition to its content, rounded up."""
