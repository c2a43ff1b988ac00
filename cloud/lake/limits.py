"""Limits of the landing, with unit and reason."""

from __future__ import annotations

GATHER_MS_DEFAULT = 625
"""Time to gather batches for a landing, and half the time between two landings: one file a second, including
compaction, and about a second to the lake. A landing starts earlier by size, or by silence after a backlog."""

GATHER_MS_MAX = 2_000
"""Maximum configurable gathering time: above it a gateway's window is exhausted on a slow uplink."""

QUIET_MS = 20
"""Silence after `QUIET_BYTES_MIN` of backlogs that starts a landing at once, because the gateways wait for answers;
also for the end of a backlog. Gateways with live messages do not wait."""

QUIET_BYTES_MIN = 256 * 1024
"""Bytes of backlogs that are worth an early file; below, the full gathering time applies."""

LANDING_BYTES_MAX = 48 * 1024 * 1024
"""Bytes of rows in one landing, except for one larger message. Bounds the memory of a commit (about four times this
while it is built; properties may expand by `JSON_BYTES_A_BYTE`) and its time, for which the next entry waits. With half
as much, a hub with 100 000 readings of 200 bytes a second would land twice as often."""

LANDING_ROWS_MAX = 150_000
"""Rows in one landing. Messages without a body cost too (about 150 bytes a row while columns are built); 150 000 rows
take 0.3 s. With fewer, a hub with 100 000 messages a second would land more than once a second."""

LANDING_S_MAX = 0.25
"""Seconds after which a landing stops making rows. Columns take nanoseconds a byte, but values of AMQP messages and
properties are read one by one, half a microsecond each."""

PART_BYTES_MAX = 256 * 1024
"""Bytes of rows at which a batch is split, except for one larger message: as much as an uplink puts into a batch, so
its batches stay whole."""

SLICE_BYTES_MAX = 64 * 1024
"""The same for a batch with messages read one by one, and their bytes between two checks of the clock: at worst 0.03 to
0.1 s."""

PART_ROWS_MAX = 8_192
"""Rows at which a batch is split: twice what an uplink puts into one."""

JSON_BYTES_A_BYTE = 6
"""Bytes of JSON text for one byte of a message's properties: a control character is written as six."""

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""Pending bytes at which the hub stops reading the gateways with the most; it resumes at half."""

PENDING_BYTES_LAST = 32 * 1024 * 1024
"""Pending bytes beyond that, for the gateways with little; then no gateway is read."""

HOLES_MAX = 4_096
"""Holes kept for one (gateway, epoch, address). Each costs about 20 bytes in the registry and is rewritten with the
row. An address with more (every second message thinned for hours) has its lowest hole closed."""

RETRY_S_FIRST = 0.5
"""First pause after a failed landing; doubled up to `RETRY_S_MAX`."""

RETRY_S_MAX = 2.0
"""Maximum pause between two attempts while nothing can land: how late the hub notices free space, or that its registry
or its bucket has returned. Gateways stay connected to it and wait, although another hub could serve them."""

HELD_RETRY_S_MAX = 10.0
"""Maximum pause between two attempts for content that cannot land while other content does: each costs the others some
milliseconds."""

FENCED_WITHIN = 40
"""Versions of other programs before our entry. Other hubs commit up to some times a second, and each attempt opens the
table, 0.3 s in a bucket."""

SMALL_FILE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a data file for compaction. A file may be rewritten with every `COMPACTED_FILES_MIN` others until it
has grown that large: less than 0.1 MB/s."""

COMPACTED_FILES_MIN = 64
"""Small files of one day that start a compaction: one minute's at one a second."""

COMPACTED_FILES_MAX = 256
"""Maximum files of one compaction, some 0.3 s, for which the landing waits."""

COMPACTED_BYTES_MAX = 24 * 1024 * 1024
"""Maximum bytes of one compaction: seven files of a hub with 100 000 readings a second, so that the compacted files are
fewer than one a second."""

SMALL_FILE_ROWS_MAX = 250_000
"""Maximum rows of a small file: files with little data per row are small in bytes, but not in work."""

COMPACTED_ROWS_MAX = 1_000_000
"""Maximum rows of one compaction: some 1 s, for which the landing waits."""

ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Bytes of rows in a row group of a compacted file. Only this and one small file are in memory: a file of 1 MB may hold
64 MB of equal rows."""

LOG_KEPT_DAYS = 7
"""Retention of log entries covered by a checkpoint, until `waypost lake` maintains the table: as long as replaced
files are kept. At one commit a second, a month of entries would be 2.6 million files, which every reader of the table
lists, at about 1 s of processor time a million."""

CHECKPOINT_EVERY = 20
"""Versions of a table between two checkpoints: a reader of a bucket needs a request for each version since the last."""

CHECKPOINT_SHARE = 0.01
"""Share of the time between two checkpoints that making one may take, with one version a second: 20 s for 0.2 s. A
checkpoint names every file of the table, so a larger table has fewer."""

CHECKPOINTS_A_CLEANUP = 50
"""Checkpoints of this hub until old log entries are deleted (`LOG_KEPT_DAYS`): that lists the whole log."""

PASSED_ENTRIES_MAX = 20
"""Versions of other programs that an append reads one by one; after more, opening the table takes fewer requests."""

APPEND_ATTEMPTS_MAX = 100
"""Versions that an append may find taken, before it fails and is tried again: 50 hubs take as many in two landings."""

WRITER_VERSION_FEATURES = 7
"""Writer version of the Delta protocol from which a table lists its features; lower ones imply them."""

REFUSED_CHECK_S = 60.0
"""Time after which a table that demands too much of a writer is read again while nothing is to be written to it: then
the problem ends."""

ENTRIES_SEARCHED_MAX = 200
"""Versions searched for a commit when its row in the registry is damaged, some 20 ms each in a bucket. Beyond, the
landed sequences of all gateways are read back from the lake."""

COMMITS_KEPT = 1_000
"""Confirmed commits kept in the registry for inspection; correctness needs only the last id."""

LEDGER_RANGE_BYTES = 512
"""Memory of a waiting ledger range, counted in `PENDING_BYTES_MAX`."""

STATEMENT_BYTES = 1_536
"""Memory of a waiting statement."""

LEDGER_PART_RANGES = 1_000
"""Ranges at which a ledger document is split, and between two checks of the clock: some 0.02 s, as each is looked up in
the registry."""

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Held bytes that may wait for their retry while others land; more is released to the gateways."""

LEFT_BEHIND_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of rows that land of a closed connection, counting the first parts of a larger batch: a gateway with short
connections makes progress, and one that left much uses memory and time for some seconds only."""

STALLED_S = 30.0
"""Age of the oldest unanswered entry at which landing counts as stalled: gathering, a pause and a large landing
together take a few seconds."""
