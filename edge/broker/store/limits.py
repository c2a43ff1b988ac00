"""Every bound of the store: name, unit, reason (`StoreLimits`, with the defaults of the product)."""

from __future__ import annotations

from typing import Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB

POSITION_BITS: Final = 44
"""Bits of a segment's key that hold the position. 2^44 messages a log are 5 years at 100 000 messages a second; the
19 bits left of SQLite's signed 64-bit key are 524 287 logs."""

LOGS_MAX: Final = (1 << (63 - POSITION_BITS)) - 1
POSITION_MAX: Final = (1 << POSITION_BITS) - 1
"""Logs of a store, and positions of a log, that fit into one key of 63 bits."""
QUEUE_CURSOR: Final = "queue"
"""Name of the one cursor that a queue's log has: found by it, a log and its cursor are read together."""
LOG_PAGE_ROWS: Final = 500
"""Rows of table ``log`` read at once."""
SLOWEST_AGAIN_S: Final = 1.0
"""Pause between two reads of table ``cursor`` for the slowest cursors that are rows only: one takes 20 ms for 100 000
cursors, on the thread that reads."""
CURSORS_LOOKED_AT_MAX: Final = 500
"""Unused cursors one flush looks at, 1 us each."""
PACKED_BYTES_MIN: Final = 512
"""A smaller segment is not compressed: it shares its page with others as it is."""
PAGE_BYTES_WAITING: Final = 1024
"""Database page of a store some of whose messages may wait for company: what such a commit writes beside the messages
(page 1, a page of the list of free ones, of the segments' tree, of cursors) is 4 KiB, not 16. README.md has figures."""
TEXT_BYTES_MAX: Final = 0xFFFF
"""UTF-8 bytes of an address or a device name: both protocols' names fit (MQTT 5 section 1.5.4), and 16 bits hold it."""

VALUE_BYTES_MAX: Final = 512 * MIB
"""One value of small durable state: above any MQTT packet (256 MiB), below SQLite's billion bytes a row."""

STATEMENTS_KEPT: Final = 128
"""Statements the writing connection keeps prepared: a dozen a table, for as many rows each, and what else there is."""

STATE_PAGE_ROWS: Final = 256
"""Rows of state fetched at once at start-up, so that no read holds back the checkpoint for long."""

CHUNK_ROWS: Final = 1024
"""Segments a tool reads in one transaction."""
CHUNK_BYTES: Final = 4 * MIB
"""Bytes a tool reads in one transaction: a longer one would hold back the gateway's checkpoints."""

LOG_TIMES_MAX: Final = 2
"""Times `StoreLimits.checkpoint_bytes`: the log size at which commits wait for the checkpoint, 32 MiB. On a medium that
cannot keep up the log would grow without end."""
LOG_REST_SHARE: Final = 1 / 8
"""Share of `StoreLimits.checkpoint_bytes` that the writer's thread may move between two commits: 2 MiB, about 1 ms of a
PC's disk. Where a reader holds a checkpoint back, the log grows by as much until the next attempt."""
LOG_KEPT_TIMES_MAX: Final = 16
"""Times `StoreLimits.checkpoint_bytes`: the log size at which commits are refused when the log cannot be moved because
the database file could not be synced, 256 MiB. The next start reads and writes all of it: 20 s on a card."""
NO_ROOM_PAUSE_S: Final = 1.0
"""Shortest time between two attempts to reset the log while the medium is full: each may write much of the log."""

OPENINGS_MAX: Final = 64
"""Openings of a store that it remembers: a gateway may start so often between two meetings with its hub. More cost a
new epoch when they meet, and nothing else."""

OPENING_LOGS_WHOLE_MAX: Final = 256
"""Logs up to which an opening keeps all their ends: 4 KB. Of more it keeps those that are others than at an older one,
as long as that is not half of them: a start with 100 000 queues would write 1.5 MB, and keep it 64 times."""

NEIGHBOURS: Final = 64
NEIGHBOUR_BYTES: Final = 2 * MIB
"""Segments, and bytes of them, looked at on each side of a damaged one to name what is lost: a few ms."""

NEWEST_SEGMENTS: Final = 16
NEWEST_BYTES: Final = 4 * MIB
NEWEST_SEGMENTS_MAX: Final = 2_048
"""Newest segments of each log, bytes of them over all logs, and how many over all, that opening a store compares with
the counters of addresses: a few ms, 0.1 s where there are thousands of logs."""

FINDINGS_MAX: Final = 1000
"""Findings a verification keeps; the others are counted. A card that rots everywhere must not fill the memory."""
POSITIONS_LOST_MAX: Final = 1 << 32
"""Missing positions at the end of a log that a repair believes in: more than any card holds messages."""
CHECK_LINES_MAX: Final = 100
"""Lines SQLite's own check may answer (its default)."""

MEMORY_MESSAGE_BYTES: Final = 64
"""What a message that is in memory only takes beyond its body, about: the bytes object and its share of the run."""
MEMORY_RESERVE_LEFT: Final = 1 / 4
"""Of the numbers reserved together: so many are left when more are reserved, 5 s at the present rate, longer than a
commit takes. A crash makes the ledger name about all of them, so the fewer the better; the rest of them says how often
they are reserved."""
MEMORY_AHEAD_SHARE: Final = 16
"""Part of a ring that is freed at once when it is full: looking who waits for what goes costs less for many at once."""
MEMORY_LOSSES_MAX: Final = 1_024
"""Ranges of lost messages that wait for a commit at most, about 300 bytes each."""
OFFSET_MAX: Final = (1 << 31) - 1
"""Positions a sparse segment may span before it is told in two: an offset in it has 32 bits."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one store may use; the defaults fit a gateway with 512 MiB of memory and an SD card."""

    segment_bytes_max: int = MIB
    """Bodies packed into one row; a single larger message gets a row of its own. Reading from the middle of a row
    costs reading the row, so rows must not grow with the commit."""
    moves_delay_s: float = 0.05
    """Longest wait of a cursor move for its commit. A move on its own is worth no fsync: 20 a second wear no card, and
    what is lost with it is at worst delivered a second time."""
    batch_bytes_max: int = 4 * MIB
    """Bytes of messages that wait for company at most: what a power cut may take before anybody was told otherwise, and
    what a commit is worth on any card."""
    memory_bytes_max: int = 24 * MIB
    """``durability: memory``: bytes of the ring of one log (bodies and `MEMORY_MESSAGE_BYTES` each). Beyond it the
    oldest messages are dropped. An uplink has less in flight (16 MiB of bodies), and those are the oldest."""
    memory_total_bytes_max: int = 48 * MIB
    """The same bound over all logs: a tenth of the memory of a small Pi."""
    memory_ledger_s: float = 20.0
    """Longest wait of messages that a full ring dropped for their ledger entry: at most three small commits a minute. A
    crash within that time names the same messages, with reason ``memory``."""
    memory_reserve_s: float = 20.0
    """Numbers are reserved for about as long, at the present rate: four small commits a minute, and after a crash the
    ledger names about as many, whatever was lost of them."""
    memory_reserve_min: int = 48
    """Fewest numbers reserved: what the ledger names after a crash for an address that sends now and then."""
    memory_reserve_max: int = 1 << 20
    """Most numbers reserved, which is 2 s at the highest rate seen: a crash must not make a hub believe in more."""
    memory_idle_s: float = 3600.0
    """An address that sent nothing for so long, or up to twice as long, gives back its reservation."""
    memory_addresses_max: int = 16_384
    """Addresses that may have a reservation, about 400 bytes each. For another one an address without a message in
    memory gives its own back; where all have some, it is refused."""
    retry_delay_s: float = 1.0
    """Pause before state kept from a failed commit is tried again by itself; a new append tries at once."""
    counted_commits_max: int = 64
    """Commits between two updates of the counters: what opening has to read again after a crash."""
    counted_commits_many_max: int = 2_048
    """The same where more than `counted_at_once` counters wait: an update writes most pages of the table, 0.5 MB for
    10 000 addresses, and commits of a few messages each made one 20 times a second. Opening reads 0.1 s longer."""
    counted_bytes_max: int = 8 * MIB
    """Bytes, of bodies and of addresses that changed in a commit, between two updates of the counters, for the same
    reason."""
    counted_bytes_many_max: int = 16 * MIB
    """The same where more than `counted_at_once` counters wait."""
    counted_bytes_deleting_max: int = 512 * KIB
    """The same where more than `counted_at_once` counters wait and there is something to delete: only what is counted
    is deleted, and room that a quota counts comes back no sooner."""
    counted_addresses_max: int = 4_096
    """Addresses whose counter waits to be written where one commit writes them all, in some 8 ms."""
    counted_addresses_many_max: int = 32_768
    """The same where commits write some each, some 110 bytes each: of 40 000 addresses in use 60 of the 80 in a page
    wait then, and each page is written for all of them. With 4 096 it was written for 8."""
    counted_at_once: int = 256
    """Counters that a commit writes at least, in order of their names, where commits write some each: neighbours share
    pages, 0.4 ms. Of no more than these all are written at once."""
    counted_logs_few: int = 16
    """Logs up to which counters are written in such parts. Where more of them wait the counters are written together:
    a log that is not counted stays in memory (`log_cache`)."""
    reclaim_rows_max: int = 2048
    """Segments one commit may delete: about 3 ms on the machine of README.md, were each one message."""
    reclaim_bytes_max: int = 4 * MIB
    """Bytes one commit may delete, or twice what it appends when that is more, so that deleting keeps up."""
    reclaim_logs_max: int = 8
    """Logs one commit deletes from; the others take their turn in the next."""
    evict_bytes_max: int = 8 * MIB
    """Bytes of bodies one commit may evict, or twice what it appends when that is more, so that it keeps up: they are
    read to name what is lost, about 30 ms on a Pi."""
    thin_bytes_max: int = 8 * MIB
    """Bytes of bodies one commit may read to thin them."""
    thin_messages_max: int = 40_000
    """Messages one commit may read for that, and what more its last piece has: 0.2 s on the writer's thread of a PC for
    JSON, up to 1 s for AMQP messages with properties or a map."""
    ledger_entries_max: int = 10_000
    """Entries of the loss ledger, about 150 bytes each. Beyond it ranges grow over what lies between them; at twice as
    many the oldest go."""
    ledger_growing_max: int = 1_024
    """Ledger entries kept in memory because they may grow; others begin a new row."""
    logs_in_use_max: int = 1_024
    """Logs that are objects in memory, with their cursor about 500 bytes each. Of more than these, logs that are not in
    use are rows only (`log_cache`), and objects again when they are needed, which takes 15 us."""
    logs_in_use_calm_max: int = 256
    """The same once no others have come into use for a while (`log_cache.CALM_S`)."""
    counted_logs_calm_max: int = 1_024
    """Logs that may wait then to be counted; of more all are, in a commit of their own, as others cannot rest."""
    addresses_cached_max: int = 65_536
    """Address counters kept in memory, about 150 bytes each; beyond it they are read again when needed."""
    addresses_new_max: int = 512
    """Addresses that came for the first time and are kept until as many others have: a second time is soon, or after
    10 us. 20 000 names that were used once left a megabyte of holes between what else came meanwhile."""
    addresses_kept: int = 16_384
    """So many that came again stay, however seldom (`counters.ADDRESS_AGE_S`), 92 B each: 500 devices with 20 each
    have 10 000. To forget and find again those of a fleet took a sixth of its messages a second, with 2 048 of them."""
    addresses_characters_max: int = 8 * MIB
    """Characters of these addresses: some 128 of 64 KiB. Beyond it the counters are written, and read again."""
    segments_cached_max: int = 8
    """Decoded segments the reader keeps because only a part was delivered, each up to `segment_bytes_max`."""
    checkpoint_bytes: int = 16 * MIB
    """Write-ahead log size that starts a checkpoint. Larger writes each page less often, and keeps more to replay."""
    restart_wait_s: float = 0.5
    """Longest wait of a commit for programs that read the log, once the log has `LOG_TIMES_MAX` times that size. When
    they still read it then, the log grows by `checkpoint_bytes` until the next attempt."""
    cache_bytes: int = 256 * KIB
    """Pages of the file kept by the connection that writes; the kernel has them too, a read of one takes 2 us. SQLite's
    own 2 MB stay taken after any burst, a tenth of what the gateway needs while it does nothing."""
    commit_cache_bytes: int = 2 * MIB
    """Those a commit changes are kept to its end; beyond this some are written earlier, and again if changed again."""
    reader_cache_bytes: int = 128 * KIB
    """The same of each of the two connections that read: one reads segments in order, and none twice, the other asks
    for single rows."""
    busy_timeout_s: float = 5.0
    """Wait for a lock another program (`sqlite3`, `sqlite-utils`) holds on the file."""
    page_bytes: int = 4096
    """Database page of a new store; one that exists keeps its own. Smaller ones write less (PAGE_BYTES_WAITING) and
    cost a busy store more: 1 024 bytes 5 to 15 % of the gateway's processor time for messages of 100 bytes."""
