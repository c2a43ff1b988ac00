"""Limits of the store with unit and reason. `StoreLimits` has the defaults of the product."""

from __future__ import annotations

from typing import Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB

POSITION_BITS: Final = 44
"""Bits of a segment key for the position. 2^44 messages of a log last 5 years at 100 000 messages a second. The 19 bits
left in SQLite's signed 64-bit key allow 524 287 logs."""

LOGS_MAX: Final = (1 << (63 - POSITION_BITS)) - 1
POSITION_MAX: Final = (1 << POSITION_BITS) - 1
"""Most logs of a store and positions of a log: both fit into a key of 63 bits."""
QUEUE_CURSOR: Final = "queue"
"""Name of the only cursor of a queue's log. The row of the log and that of this cursor are read together."""
LOG_PAGE_ROWS: Final = 500
"""Rows of table ``log`` read at once."""
SLOWEST_AGAIN_S: Final = 1.0
"""Pause between two searches for the slowest idle cursors. One takes 20 ms on the reading thread for 100 000
cursors."""
CURSORS_CHECKED_MAX: Final = 500
"""Unused cursors that one flush checks, 1 us each."""
PACKED_BYTES_MIN: Final = 512
"""Smallest segment that is compressed. A smaller one shares its page with others anyway."""
PAGE_BYTES_WAITING: Final = 1024
"""Page size of a store with delayed commits (``batch``). A commit writes 4 KiB in addition to the messages, not 16:
page 1 and one page each of the free list, the segments and the cursors. `decisions/0006` has figures."""
TEXT_BYTES_MAX: Final = 0xFFFF
"""UTF-8 bytes of an address or a device name. The names of both protocols fit (MQTT 5 section 1.5.4)."""

VALUE_BYTES_MAX: Final = 512 * MIB
"""Size of one value of small state: more than any MQTT packet (256 MiB), less than SQLite's billion bytes a row."""

STATEMENTS_KEPT: Final = 128
"""Prepared statements cached by the writing connection: a dozen for each table, and some others."""

STATE_PAGE_ROWS: Final = 256
"""Rows of state fetched at once at the start, so that no read delays a checkpoint for long."""

CHUNK_ROWS: Final = 1024
"""Segments that a tool reads in one transaction."""
CHUNK_BYTES: Final = 4 * MIB
"""Bytes that a tool reads in one transaction. A longer one would delay the gateway's checkpoints."""

LOG_TIMES_MAX: Final = 2
"""Times `StoreLimits.checkpoint_bytes`: the log size at which commits wait for the checkpoint, 32 MiB. Otherwise the
log would grow without bound on a slow medium."""
LOG_REST_SHARE: Final = 1 / 8
"""Share of `StoreLimits.checkpoint_bytes` that the writer's thread may move between two commits: 2 MiB, about 1 ms of a
PC's disk. When a reader delays a checkpoint, the log grows by this amount until the next attempt."""
LOG_KEPT_TIMES_MAX: Final = 16
"""Times `StoreLimits.checkpoint_bytes`: the log size at which commits are refused when the log cannot be moved because
the database file could not be synced, 256 MiB. The next start reads and writes all of it: 20 s on a card."""
NO_ROOM_PAUSE_S: Final = 1.0
"""Shortest time between two attempts to reset the log while the medium is full: each may write much of the log."""

OPENINGS_MAX: Final = 64
"""Openings that a store records. If a gateway starts more often than this between two connections to its hub, the only
cost is a new epoch."""

OPENING_LOGS_WHOLE_MAX: Final = 256
"""Logs up to which an opening stores all their ends, 4 KB. With more logs it stores the differences to an older
opening, unless half of them differ. Otherwise a start with 100 000 queues would write 1.5 MB, and keep it 64 times."""

NEIGHBOURS: Final = 64
NEIGHBOUR_BYTES: Final = 2 * MIB
"""Segments and bytes read on each side of a damaged segment to find out what is lost: a few ms."""

NEWEST_SEGMENTS: Final = 16
NEWEST_BYTES: Final = 4 * MIB
NEWEST_SEGMENTS_MAX: Final = 2_048
"""Newest segments that opening compares with the counters of addresses: segments of each log, bytes of all logs, and
segments of all logs. This takes a few ms, and 0.1 s with thousands of logs."""

FINDINGS_MAX: Final = 1000
"""Findings that a verification lists. Others are only counted, so that a failing card cannot fill the memory."""
POSITIONS_LOST_MAX: Final = 1 << 32
"""Missing positions at the end of a log that a repair accepts: more messages than any card holds."""
CHECK_LINES_MAX: Final = 100
"""Lines of SQLite's integrity check (its default)."""

MEMORY_MESSAGE_BYTES: Final = 64
"""Approximate memory of a message in a ring in addition to its body: the bytes object and its share of the run."""
MEMORY_RESERVE_LEFT: Final = 1 / 4
"""Share of the reserved numbers that is left when more are reserved: 5 s at the current rate, longer than a commit.
After a crash the ledger names about all reserved numbers, so fewer are better; but fewer also mean more commits."""
MEMORY_AHEAD_SHARE: Final = 16
"""A full ring frees one part in this number at once, because finding the affected cursors is cheaper in bulk."""
MEMORY_LOSSES_MAX: Final = 1_024
"""Most ranges of lost messages that wait for a commit, about 300 bytes each."""
OFFSET_MAX: Final = (1 << 31) - 1
"""Positions that one sparse segment may span, as its offsets have 32 bits."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one store. The defaults fit a gateway with 512 MiB of memory and an SD card."""

    segment_bytes_max: int = MIB
    """Bytes of bodies packed into one row. A single larger message gets its own row. A read from the middle of a row
    reads the whole row, so rows must not grow with the commit."""
    moves_delay_s: float = 0.05
    """Longest wait of a cursor move for a commit. A move alone does not justify an fsync; 20 a second are harmless for
    a card, and a lost move only causes a second delivery."""
    batch_bytes_max: int = 4 * MIB
    """Most bytes of messages that wait in a delayed commit. A power cut may lose them, as they are not acknowledged
    yet, and this size makes a commit efficient on any card."""
    memory_bytes_max: int = 24 * MIB
    """``durability: memory``: bytes of the ring of one log (bodies plus `MEMORY_MESSAGE_BYTES` each). Beyond it the
    oldest messages are dropped. It exceeds the messages in flight on an uplink (16 MiB of bodies), which are the
    oldest."""
    memory_total_bytes_max: int = 48 * MIB
    """The same limit for all logs: a tenth of the memory of a small Pi."""
    memory_ledger_s: float = 20.0
    """Longest wait for the ledger entry of messages that a full ring dropped: at most three small commits a minute.
    After a crash within that time the ledger names the same messages, with reason ``memory``."""
    memory_reserve_s: float = 20.0
    """Numbers are reserved for about this time at the current rate: four small commits a minute. After a crash the
    ledger names about that many messages, however many were lost."""
    memory_reserve_min: int = 48
    """Fewest numbers reserved. The ledger names that many after a crash for an address with few messages."""
    memory_reserve_max: int = 1 << 20
    """Most numbers reserved: 2 s at the highest rate measured. It bounds what a crash reports as lost to a hub."""
    memory_idle_s: float = 3600.0
    """An address without messages for this time, or up to twice as long, releases its reservation."""
    memory_addresses_max: int = 16_384
    """Addresses that may have a reservation, about 400 bytes each. For a new one, an address without messages in memory
    releases its reservation. Otherwise the message is refused."""
    retry_delay_s: float = 1.0
    """Pause before changes of a failed commit are retried. A new append retries at once."""
    counted_commits_max: int = 64
    """Commits between two updates of the counters. Opening reads their messages again after a crash."""
    counted_commits_many_max: int = 2_048
    """The same when more than `counted_at_once` counters wait. An update writes most pages of the table, 0.5 MB for 10
    000 addresses, and small commits caused 20 of them a second. Opening takes 0.1 s longer."""
    counted_bytes_max: int = 8 * MIB
    """Bytes of bodies and of changed addresses between two updates of the counters, for the same reason."""
    counted_bytes_many_max: int = 16 * MIB
    """The same when more than `counted_at_once` counters wait."""
    counted_bytes_deleting_max: int = 512 * KIB
    """The same when more than `counted_at_once` counters wait and there are messages to delete. Only counted messages
    are deleted, and a quota gets its space back only then."""
    counted_addresses_max: int = 4_096
    """Waiting counters of addresses that one commit writes together, in about 8 ms."""
    counted_addresses_many_max: int = 32_768
    """The same when commits write the counters in parts, about 110 bytes each. With 40 000 addresses in use, 60 of the
    80 counters in a page wait then, and one write covers them all. With 4 096 it covered 8."""
    counted_at_once: int = 256
    """Fewest counters that a commit writes when they are written in parts, in order of names that share pages, 0.4 ms.
    Up to this number, all are written at once."""
    counted_logs_few: int = 16
    """Logs up to which counters are written in parts. If more logs wait, all counters are written together, because
    logs that are not counted stay in memory (`log_cache`)."""
    reclaim_rows_max: int = 2048
    """Segments that one commit may delete: about 3 ms on a PC if each has one message."""
    reclaim_bytes_max: int = 4 * MIB
    """Bytes that one commit may delete, or twice what it appends if that is more, so that deletion keeps up."""
    reclaim_logs_max: int = 8
    """Logs that one commit deletes from. The others follow in later commits."""
    evict_bytes_max: int = 8 * MIB
    """Bytes of bodies that one commit may evict, or twice what it appends if that is more. They are read to name the
    losses, about 30 ms on a Pi."""
    thin_bytes_max: int = 8 * MIB
    """Bytes of bodies that one commit may read for thinning."""
    thin_messages_max: int = 40_000
    """Messages that one commit may read for thinning, plus the rest of the last piece: 0.2 s on the writer's thread of
    a PC for JSON, up to 1 s for AMQP messages with properties or a map."""
    ledger_entries_max: int = 10_000
    """Entries of the loss ledger, about 150 bytes each. Beyond it ranges are merged across gaps. At twice as many the
    oldest are deleted."""
    ledger_growing_max: int = 1_024
    """Ledger entries in memory that may grow. Other losses start a new row."""
    logs_in_use_max: int = 1_024
    """Logs that are objects in memory, about 500 bytes each with their cursor. Beyond this number unused logs are only
    rows (`log_cache`). Loading one again takes 15 us."""
    logs_in_use_calm_max: int = 256
    """The same after a while without newly used logs (`log_cache.CALM_S`)."""
    counted_logs_calm_max: int = 1_024
    """Uncounted logs that may wait in that case. If there are more, a commit counts all, as only counted logs can
    become idle."""
    addresses_cached_max: int = 65_536
    """Counters of addresses in memory, about 150 bytes each. Others are read when needed."""
    addresses_new_max: int = 512
    """New addresses that are kept until this many others were used. A later use of a dropped one costs 10 us. Without
    this limit 20 000 names used once left a megabyte of fragmented memory."""
    addresses_kept: int = 16_384
    """Repeatedly used addresses that stay in memory regardless of age (`counters.ADDRESS_AGE_S`), 92 B each. 500
    devices with 20 each have 10 000. A limit of 2 048 cost a fleet a sixth of its message rate."""
    addresses_characters_max: int = 8 * MIB
    """Total length of these addresses: 128 of 64 KiB. Beyond it the counters are written and dropped."""
    segments_cached_max: int = 8
    """Partly delivered segments in the cache of the reader, each up to `segment_bytes_max`."""
    checkpoint_bytes: int = 16 * MIB
    """Size of the write-ahead log that starts a checkpoint. A larger log writes each page less often, but takes longer
    to recover."""
    restart_wait_s: float = 0.5
    """Longest wait of a commit for readers of the log, once the log has `LOG_TIMES_MAX` times that size. If they still
    read it then, the log grows by `checkpoint_bytes` until the next attempt."""
    cache_bytes: int = 256 * KIB
    """Page cache of the writing connection. The kernel caches the pages too, and a read takes 2 us. SQLite's default of
    2 MB stays allocated after any burst: a tenth of the memory of an idle gateway."""
    commit_cache_bytes: int = 2 * MIB
    """Cache for the pages that a commit changes. Beyond it pages are written early, and again if they change again."""
    reader_cache_bytes: int = 128 * KIB
    """Page cache of each of the two reading connections: one reads segments in order, the other reads single rows."""
    busy_timeout_s: float = 5.0
    """Wait for a lock that another program (`sqlite3`, `sqlite-utils`) holds on the file."""
    page_bytes: int = 4096
    """Page size of a new store; an existing one keeps its own. Smaller pages write less (PAGE_BYTES_WAITING) but cost a
    busy store more: 1 024 bytes take 5 to 15 % more processor time for messages of 100 bytes."""
