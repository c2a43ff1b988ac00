"""Every bound of the landing, with unit and reason."""

from __future__ import annotations

GATHER_MS_DEFAULT = 625
"""How long the first batch of a landing waits for company, and half the time between two landings: one file a second,
with those that small files are put together to, and about a second to the lake. By size, and of a backlog by quiet, a
hub lands sooner."""

GATHER_MS_MAX = 2_000
"""Longest gather that may be configured: above it a gateway's window runs dry on a slow uplink."""

QUIET_MS = 20
"""With `QUIET_BYTES_MIN` of backlogs gathered and nothing new for so long, the gateways wait for us: land at once. So
does what comes after such a landing, the end of a backlog. Of what is live no gateway waits for an answer."""

QUIET_BYTES_MIN = 256 * 1024
"""Bytes of backlogs that make a file worth writing early; below it the full gather time is waited."""

LANDING_BYTES_MAX = 48 * 1024 * 1024
"""Bytes of rows in one landing, one larger message aside: bounds the memory of a commit (about four times this while it
is being built, properties may be `JSON_BYTES_A_BYTE` times as long), and its time: who comes next waits for it. With
half as much a hub that takes 100 000 readings of 200 bytes a second would land twice as often."""

LANDING_ROWS_MAX = 150_000
"""Rows in one landing: messages without a body are not free (about 150 bytes a row while columns are built), and
150 000 take 0.3 s. With fewer a hub that takes 100 000 a second would land more often than once a second."""

LANDING_S_MAX = 0.25
"""Seconds after which no more rows are made for a landing. Columns take nanoseconds a byte, but the values of an AMQP
message and properties are looked at one by one, half a microsecond each."""

PART_BYTES_MAX = 256 * 1024
"""Bytes of rows a batch is cut at, one larger message aside: as much as an uplink puts into one, so its are whole."""

SLICE_BYTES_MAX = 64 * 1024
"""The same for a batch whose messages are looked at one by one, and bytes of such between two looks at the clock: at
worst 0.03 to 0.1 s."""

PART_ROWS_MAX = 8_192
"""Rows a batch is cut at: twice what an uplink puts into one."""

JSON_BYTES_A_BYTE = 6
"""Bytes of JSON text that one byte of a message's properties may become: a control character is written as six."""

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""Bytes gathered and not landed at which the hub stops reading the gateways of which most waits; resumes at half."""

PENDING_BYTES_LAST = 32 * 1024 * 1024
"""Bytes beyond that for the gateways of which little waits; then no gateway is read."""

HOLES_MAX = 4_096
"""Holes kept for one (gateway, epoch, address). Each costs about 20 bytes in the registry and is rewritten with the
row; an address with more (every second message thinned for hours) has its lowest hole closed."""

RETRY_S_FIRST = 0.5
"""First pause after the lake or the registry refused a landing; doubles up to `RETRY_S_MAX`."""

RETRY_S_MAX = 30.0
"""Longest pause between two tries: how late the hub notices that there is space again."""

FENCED_WITHIN = 10
"""Versions that others may take before an entry of ours: only an optimize or vacuum by somebody else commits beside the
hub, seconds or more for each."""

SMALL_FILE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a data file that is put together with others of its day; a larger one is left as it is. Each of these may
be written anew with every `COMPACTED_FILES_MIN` others until it has grown that large: less than 0.1 MB/s."""

COMPACTED_FILES_MIN = 64
"""Small files of one day that are put together: at one a second a minute's."""

COMPACTED_FILES_MAX = 256
"""Files put together at once, of a table that has more of them: some 0.3 s, for which the landing waits."""

COMPACTED_BYTES_MAX = 24 * 1024 * 1024
"""Bytes of files put together at once: seven of a hub's that takes 100 000 readings a second, so that with what they
become there is less than one a second."""

SMALL_FILE_ROWS_MAX = 250_000
"""Rows of such a file: those that say little for their number are small files, but no little work."""

COMPACTED_ROWS_MAX = 1_000_000
"""Rows put together at once: some 1 s, for which the landing waits."""

ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Bytes of rows from which a row group of a file that is put together is written. No more than that and one small file
are in memory: a file of 1 MB may hold rows of 64 MB that say the same."""

LOG_KEPT_DAYS = 7
"""How long the entries of a table's log stay that a checkpoint has made superfluous, until `waypost analytics` looks
after it: as long as the files that compaction has replaced. With one commit a second a month of entries would be 2.6
million files, and whoever opens the table lists them all: about 1 s of processor time a million."""

COMMITS_KEPT = 1_000
"""Confirmed commits kept in the registry, for the people who look at it; correctness needs only the last id."""

LEDGER_RANGE_BYTES = 512
"""What a ledger range costs while it waits: counted into `PENDING_BYTES_MAX`."""

STATEMENT_BYTES = 1_536
"""What a manifest's statement costs while it waits."""

LEDGER_PART_RANGES = 1_000
"""Ranges a ledger document is cut at, and between two looks at the clock: some 0.02 s, as the registry is asked for
each."""

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that may wait for a retry of their own while others land; what is above goes back to its gateways."""

LEFT_BEHIND_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of rows that land of what a connection sent that is gone, one larger batch's first parts among them: a gateway
whose connections are short gets on, and one that left much behind keeps memory and time for some seconds only."""

STANDS_S = 30.0
"""Age of the oldest thing without an answer at which landing counts as standing: the gather, a pause and a large
landing together take a few seconds."""
