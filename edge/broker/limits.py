"""Every bound of the broker in one place: name, unit, reason. A peer can make nothing grow that has no bound here."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from bridge.resources.fields import Count, Positive, ResourcePart, Restart

KIB: Final = 1024
MIB: Final = 1024 * KIB

NAMES_REMEMBERED_MAX: Final = 32_768
"""Addresses in the cache of resolved rules and routes: four for each of 8 000 devices. An entry takes some 600 bytes
with what lanes cache of it, and more where many clients subscribe. When the cache is full it is cleared; resolving an
address again takes 10 us."""

NAMES_REMEMBERED_AT_ONCE: Final = 256
"""Addresses that enter that cache at their first message; later ones enter it at their second."""

NAMES_NOTED_MAX: Final = 65_536
"""Size of the Bloom filter of addresses seen once: 64 KiB. It is twice the size of the cache, so that each address of a
fleet that publishes in rotation comes a second time before the filter is cleared."""

UNROUTED_ADDRESSES_MAX: Final = 64
"""Topics without a subscriber that are listed by name: 20 KiB, and more than a person reads. When the list is full, the
topic that was published to longest ago is removed. The counter includes all messages."""

UNROUTED_S: Final = 600.0
"""Seconds that a topic without a subscriber is reported after its last message. A device that sends every five
minutes is reported without a gap."""

UNAUTHENTICATED_SHARE: Final = 4
"""Divisor of `Limits.memory_bytes_max` for connections that have not authenticated, all together. 64 MiB are 16 000
devices over MQTT, or 1 800 over AMQP, that return at once after a power cut. Beyond it the oldest connection of the
address with the most of them is closed."""

CONNECTIONS_SHARE: Final = 3
"""The same for all other connections of a space: half-sent messages, unread answers, links. A message takes twice its
size while it is assembled. Messages that wait for the disk take up to `PENDING_BYTES_MAX`, and messages that wait
for subscribers up to `TRANSIENT_POOL_BYTES_MAX`."""

BODIES_SHARE: Final = 8
"""The same for bodies of HTTP requests."""

ACCOUNT_SHARE_MAX: Final = 2
"""Divisor of a pool for one user, or one remote address: at most a half, so that the rest is left to others. Many
devices may share a user, and many share an address behind a router."""

TENANT_SPACES_MAX: Final = 16
"""Further address spaces of one gateway. Each idle one takes 1.1 MB, and all share memory and connections equally."""

STRAINED_SHARE: Final = 4
"""A pool is strained when less than this part of it is left. Then only one connection of the largest account is read,
so that its message is completed before others start."""

SHED_S: Final = 0.0005
"""Seconds of one turn of the loop for closing connections until a pool is strained no longer. Memory above the pool's
size is returned at once. Closing one connection takes 0.05 to 0.2 ms."""

ADMISSION_CHECK_S: Final = 0.0005
"""Seconds of one turn of the loop for checking how much connections hold: 0.5 us each, and 5 us where one is paused."""

STRAINED_S_MAX: Final = 3.0
"""Seconds that a pool may be strained before the connection that holds most is closed. A message of 16 MiB takes this
long at 45 Mbit/s; a slower one gets through while no pool is strained."""

STRAINED_CHECK_S: Final = 0.02
"""Seconds between two choices of the connection that is read while a pool is strained: 20 ms bring 2.5 MB at 1
Gbit/s."""

TRIM_AGAIN_S_MIN: Final = 2.0
"""Shortest time between two requests to the allocator to return memory to the kernel; one takes up to 0.1 s."""

TRIM_AGAIN_S_MAX: Final = 600.0
"""The same while the last request returned nothing, because the memory is in use."""

TRIM_CALM_S: Final = 1.0
"""Seconds without a disconnect, and without memory freed, before the allocator is asked: once for a whole group of
clients that leave."""

TRIM_LATEST_S: Final = 6.0
"""Longest wait for such a pause: freed memory is returned within 10 s while clients come and go."""

TRIM_GROWTH_BYTES: Final = 16 * MIB
"""Growth of the process between two trims that allows the shortest time between them."""

TRIM_SETTLED_BYTES: Final = 2 * MIB
TRIM_SETTLED_S: Final = 6.0
"""Growth of the process that triggers a trim by itself, and seconds without further growth before it. Half of the
memory of a burst of new names is in use only while the burst lasts."""

PACKETS_HELD_MAX: Final = 2
"""Largest messages (`Limits.packet_bytes_max`) that one connection may hold, half-sent or unread: an AMQP client may
have started a second one on another link."""

LINKS_HELD_BYTES_MAX: Final = 8 * MIB
"""Bytes that one connection may hold where messages are small: all AMQP links it may have take 6 KiB each."""

MEMORY_MESSAGES_MIN: Final = 8
"""Largest messages that `Limits.memory_bytes_max` has to hold. With less, two senders could not send theirs at once."""

RESERVED_CONNECTIONS_SHARE: Final = 10
"""The last tenth of `connections_max` is reserved for users and addresses with few connections. A client that opens all
the connections it can leaves these to others."""

FEW_CONNECTIONS_SHARE: Final = 100
"""Divisor of `connections_max`: up to the quotient, a number of connections counts as few."""

MQTT_CONNECTION_BYTES: Final = 3 * KIB
"""Measured memory of an idle connection: machine, handler, driver and the loop's part. It is counted until the peer has
authenticated; after that the number of connections and the memory of the process are bounded."""

AMQP_CONNECTION_BYTES: Final = 36 * KIB
"""The same for AMQP, with the buffers of its engine."""

TLS_CONNECTION_BYTES: Final = 10 * KIB
"""Memory that TLS adds to a connection; measured some 7 KiB."""

WEBSOCKET_CONNECTION_BYTES: Final = 12 * KIB
"""Memory that WebSocket adds to a connection."""

WRITE_BUFFER_BYTES_MAX: Final = 256 * KIB
"""Bytes that a peer may leave unread in our socket buffer before deliveries to it pause."""

ADDRESSES_MATCHED_MAX: Final = 100_000
"""Addresses in the cache of matching subscriptions of one log; then the cache is cleared."""

SLEEPERS_MAX: Final = 8
"""Largest number of subscriptions of a log that are asked at each commit whether one of them needs to see its messages.
If none does, no message is looked at. With more subscriptions the question would cost what it saves."""

FEEDS_CHECKED_MAX: Final = 1_000
"""Logs checked in one tick for messages that no subscription was notified of; with more logs, a round takes several
ticks."""

CURSORS_MOVED_MAX: Final = 2_000
"""Cursors moved in one tick past messages that their subscriptions do not want; each is a row of a later commit."""

UNREAD_BYTES_MAX: Final = 4 * MIB
"""Bytes of answers that a peer may leave unread before reading from its socket stops; deliveries have paused long
before. It is a million PUBACKs, so that a client which sends everything before it reads is not blocked unless it
overdoes it."""

ANYCAST_ANSWER_S_MAX: Final = 30.0
"""Seconds that the consumer of an anycast message may take to answer before its MQTT sender gets a refusal: as long as
a sender over HTTP waits (`HTTP_ANSWER_S_MAX`). All later answers to that sender wait, because they keep their order."""

PENDING_BYTES_MAX: Final = 32 * MIB
"""Message bytes collected and not yet on disk. Above it sockets are not read: a slow card slows its senders down
instead of filling the memory of a 512 MiB Pi."""

PENDING_BYTES_LOW: Final = 16 * MIB
"""Reading resumes below this. It is half the limit, so that reading does not stop and start at every commit."""

SUBSCRIPTION_BUFFER_BYTES_MAX: Final = MIB
"""Message bytes buffered for one subscription that is being served. The rest stays in the store and is read when it is
needed."""

TRANSIENT_BUFFER_BYTES_MIN: Final = MIB
"""Message bytes that may always wait for a subscriber that is not durable. Beyond its limit newer messages are dropped
for it and counted, because its session promises nothing."""

TRANSIENT_BUFFER_BYTES_LEAST: Final = 4 * KIB
"""The same when a quarter more than `TRANSIENT_POOL_BYTES_MAX` waits for all of them: 10 000 subscribers that do not
read take 40 MiB."""

TRANSIENT_BUFFER_BYTES_MAX: Final = 16 * MIB
"""The same while others leave room in the pool: a burst of 150 000 small messages is buffered before any is dropped."""

TRANSIENT_POOL_BYTES_MAX: Final = 64 * MIB
"""Message bytes waiting for all such subscribers together; above it each is limited to the minimum."""

UNSELECTED_MAX: Final = 10_000
"""Messages that wait in a temporary queue because no consumer selects them. Further ones are dropped and counted: each
is checked again when an older message is returned."""

LIVE_BEHIND_BYTES_MAX: Final = 2 * MIB
"""Message bytes waiting for one live subscriber above which its publishers are held back. Each publisher may still have
one read of 256 KiB under way, so 50 of them stay below `TRANSIENT_BUFFER_BYTES_MAX`."""

LIVE_BEHIND_BYTES_LOW: Final = 256 * KIB
"""Publishers resume below this. It is also the limit of one subscriber once half of the pool is used."""

LIVE_HOLD_S_MAX: Final = 2.0
"""Seconds that publishers are held back for a subscriber that is behind: longer than a pause of a loaded reader,
shorter than a publisher's patience."""

LIVE_PUMP_BYTES_MAX: Final = 256 * KIB
"""Message bytes given to a live subscriber's connection at once, before checking whether the socket takes them."""

LANE_HOLES_MAX: Final = 1_024
"""Settled ranges above a cursor's position; with this many, the lanes of a forwarder stop splitting. They take 8 KiB in
the cursor's row, written 20 times a second at most. One range is added each time the link fails while a backlog is
being sent. The hub keeps four times as many for an address."""

BACKLOG_CHUNK_POSITIONS: Final = 4_096
"""Positions of a backlog sent newest first that are delivered in order before the chunk below them."""

READ_BYTES_MAX: Final = 512 * KIB
"""Message bytes of one read from the store: large enough to be sequential, small enough not to block the loop."""

TICK_S: Final = 0.25
"""Period of housekeeping: idle cursors, session expiry, delayed wills, status figures."""

WILLS_AFTER_START_S: Final = 10.0
"""Seconds after a start that the wills of clients connected before it wait. In this time devices notice that the
connection is lost, and return. A client that returns has a new connection with a new will."""

EVICT_AHEAD_SHARE: Final = 64
"""Divisor of the quota of an address that evicts old messages: this much more is evicted than necessary. A commit that
evicts reads and names these messages, so it should not be every commit."""

EVICT_AHEAD_BYTES_MAX: Final = MIB
"""Most bytes that are evicted ahead of need."""

YIELDING_LOGS_MAX: Final = 8
"""Logs of one address that make room at once for messages of another address; each is an eviction in the commit."""

WILLS_AGAIN_S: Final = 5.0
"""Seconds between two attempts to store wills that the store could not take when their clients left."""

WILLS_PUT_OFF_BYTES_MAX: Final = 16 * MIB
"""Bytes of such wills held in memory, in addition to their copies on disk. Only disconnected clients leave one; there
is room for 10 000 of a KiB each."""

WILLS_AT_ONCE: Final = 16
"""Wills published in one turn of the loop, some 0.1 ms each where their addresses are new."""

FLOOR_HYSTERESIS_BYTES: Final = 4 * MIB
"""Free space above the floor at which messages are accepted again, so that accepting does not flap."""

NAME_CHARACTERS: Final = 256
"""Characters that count as one more name of the user, in a queue, subscription, retained message (with its body) or
session: a thousand names must not take a thousand times 64 KiB."""

ADDRESS_REMEMBERED_CHARACTERS_MAX: Final = 512
"""Longer addresses are not cached: 100 000 of them with 64 KiB each would take 6 GB."""

QUEUES_CHECKED_MAX: Final = 500
"""Queues checked in one tick for being unused, 0.5 ms; with more queues, a round takes several ticks."""

QUEUES_OPENED_MAX: Final = 50
"""Queues without consumers opened in one tick because messages in them may have expired; 0.1 ms each."""

READY_S: Final = 0.005
"""Seconds of one turn of the loop for work that earlier turns put off (`edge.broker.delivery.ready`). A call that takes
longer is completed; the rest waits for the next turn."""

PATTERN_SLICE_S: Final = 0.005
"""Seconds of one turn of the loop for joining a consumer to the queues that a filter matches, or for serving it from
them. The rest follows in the next turns. Opening a queue takes 0.1 ms and more."""

RECEIPTS_WAITING_MAX: Final = 10_000
"""Receipts of commands that wait in memory for room in the store, some 300 bytes each; then the oldest is dropped."""

RETURNED_DEVICES_MAX: Final = 20
"""Departed devices of one tick; their queues of commands are looked at, some microseconds each."""

RETURNED_COMMANDS_BYTES: Final = 64 * 1024
"""Bytes of one read of commands to return to the hub: the largest command is as large."""

RETURNED_KEPT_S: Final = 60.0
"""Seconds that a queue of commands stays empty before its departed device is forgotten: commits take less."""

LANDING_REQUESTS_MAX: Final = 10_000
"""Messages with a receipt to come, in memory and in the store: some 500 bytes and 250 bytes each. A message beyond it
gets no receipt, so its device keeps its copy."""

LANDING_DEVICE_SHARE: Final = 4
"""Divisor of `LANDING_REQUESTS_MAX` for one device: at most a quarter, so that the rest is left to others."""

LANDING_REQUESTS_KEPT_S: Final = 30 * 86_400.0
"""Seconds after which the gateway gives up on a receipt: its forwarder may have been removed."""

LANDING_LEDGER_ENTRIES_MAX: Final = 500
"""Entries of the loss ledger read in one tick for messages with a receipt to come, 2 ms."""

LANDING_GAP_MAX: Final = 4_096
"""Messages between two requested ones of an address that one range still covers at the first attempt: a landing's usual
range."""

LANDING_RETRY_S_FIRST: Final = 1.0
"""Seconds until a message without a statement is requested again; twice as long each time."""

LANDING_RETRY_S_MAX: Final = 60.0
"""Longest wait until a message without a statement is requested again: some 200 bytes a minute."""

LANDING_RECOVERY_BYTES: Final = 1 << 20
"""Bytes of a log read at a time to find the messages of the last commit before a crash."""

LANDING_RECEIPT_TTL_S: Final = 7 * 86_400.0
"""Default time to live of a receipt in the queue of its device, which may be away."""

LANDING_RECEIPTS_BYTES: Final = 16 << 20
"""Default quota of all receipts in the queues of devices, 10 000 of 1.6 KB."""

QUEUE_LINGER_S: Final = 5.0
"""Seconds that a queue without consumers stays open, for clients that connect again for every message. Then it is rows
of the store, and some 100 bytes of memory instead of 3 KiB."""

QUEUES_IDLE_MAX: Final = 256
"""Open queues without consumers (1 MiB) above which all of them are closed: after a start every queue with messages is
opened once."""

QUEUES_COUNTED_MAX: Final = 1_000
"""Closed queues with a count of their deliveries, 100 bytes each; the counts of others start again at zero."""

SUBSCRIPTION_LINGER_S: Final = 2.0
"""Seconds that the objects of a durable subscription are kept after its client left, for clients that reconnect. Then
it is rows of the store, and some 100 bytes of memory instead of 3 KiB."""

SUBSCRIPTIONS_CHECKED_MAX: Final = 4_000
"""Durable subscriptions checked in one tick for being held by a client, 0.5 us each; with more, a round takes several
ticks."""

SUBSCRIPTIONS_CLOSED_MAX: Final = 2_000
"""Durable subscriptions without a client that are closed in one tick, 20 us each."""

SUBSCRIPTIONS_OPEN_MAX: Final = 250
"""Open durable subscriptions above which those without a client are closed early. The objects of a burst fragment the
allocator's memory, which the process then keeps."""

ABSENT_DECLARATIONS_MAX: Final = 1_024
"""Cached declarations of durable subscriptions without a client, 300 bytes each: those with No Local, which decide
about each message to their topics."""

SUBSCRIPTIONS_OPENED_MAX: Final = 50
"""Durable subscriptions without a client opened in one tick because messages for them may have expired; 0.1 ms each."""

SUBSCRIPTION_LEFT_KEPT_S: Final = 600
"""Seconds after a client left a durable subscription before the time is written. A client that connects for each
message causes no write; after a crash the time counts from the next start."""

SUBSCRIPTION_ENDED_AFTER_START_S: Final = 300
"""Seconds that a durable subscription that is due to end is kept after a start: its client may return once the gateway
is up."""

RUNNING_TIME_KEPT_S: Final = 3_600
"""Seconds between two writes of the running time of the gateway while something ends by it: a small commit an hour. A
crash lets such a subscription live an hour longer at most."""

SUBSCRIPTIONS_PASSED_S: Final = 5.0
"""Seconds between two moves of the cursors of durable subscriptions without a client past messages they do not want.
Each move is a row of a later commit; until then the log may keep messages that no subscription wants."""

ANYCAST_GROUPS_MAX: Final = 10_000
"""Anycast addresses without consumers that are remembered, about 1 KiB each; then all of them are forgotten."""

EXCLUDED_MAX: Final = 100_000
"""Pairs of a message of one subscription and a consumer that must not get it again, about 100 bytes each. Beyond it the
oldest are forgotten, and such a message may be delivered there again."""

RETAINED_PURGED_MAX: Final = 500
"""Expired retained messages removed in one tick, some 5 ms of the loop's time. The others are removed in the next
ticks, and are not delivered in the meantime."""

RETAINED_STEPS_MAX: Final = 500
"""Topic names checked for one client's retained messages in one turn of the loop: 0.1 ms where none matches, 5 ms where
all match and are sent."""

CONNECTION_STATES_MAX: Final = 1_000
"""States of other brokers' bridges kept below ``$SYS/broker/connection``, one for each client identifier. They usually
take some 200 bytes each, and all are looked at when a client subscribes to ``$SYS``."""

CONNECTION_STATE_BYTES_MAX: Final = 64
"""Bytes of one such state: bridges publish ``0`` or ``1``."""

RETAINED_STALE_MAX: Final = 1_000
"""Expiries remembered beyond those of current retained messages, about 150 bytes each. A topic that is retained every
second with a year to live must not leave one each time."""

RETAINED_JUDGED_AGAIN_S: Final = 3_600
"""Seconds until a retained message of unknown age is checked again: the clock was set after the message arrived."""

SESSIONS_ENDED_MAX: Final = 20
"""Sessions of absent clients checked in one tick for their expiry: ending one with 1 000 filters takes 30 ms, a usual
one 0.1 ms."""

SESSION_LINGER_S: Final = 2.0
"""Seconds that the object of a session is kept after its client left, for clients that reconnect. Then the session is
rows of the store, and 200 bytes of memory instead of 2 KiB."""

SESSIONS_CHECKED_MAX: Final = 1_000
"""Sessions of absent clients checked in one tick for objects that can be dropped, 30 us for each drop."""

SESSIONS_AWAY_MAX: Final = 1_000
"""Objects of absent clients' sessions, and of their subscriptions, above which none is kept for `SESSION_LINGER_S`: see
`SUBSCRIPTIONS_OPEN_MAX`."""

SUBSCRIPTIONS_PER_SESSION_MAX: Final = 1_000
"""Filters of one session: a device needs a handful, and a hostile client would slow down every route."""

ATTEMPTS_TRACKED_MAX: Final = 100_000
"""Messages of one subscription with counted failed deliveries, about 150 bytes each. Only messages that were delivered
and failed are counted, so a consumer has to fail on purpose to reach this."""

RETURNED_WAIT_S: Final = 5.0
"""Seconds that a message of a queue waits for another consumer after one released it or failed: by then most consumers
have settled what they have. After that the same consumer may get it again, as the others may never have credit."""

RETURNED_BY_MAX: Final = 8
"""Consumers that returned one message and are skipped for it; with more, the first may get it again. This bounds the
memory of `ATTEMPTS_TRACKED_MAX` messages."""

ATTEMPTS_KEPT_MAX: Final = 1_000
"""Messages of one subscription with a count that is kept over a restart, those that failed most: 6 to 11 bytes each,
written again when one changes."""

ATTEMPTS_WRITTEN_S: Final = 1.0
"""Seconds between two writes of these counts: each may be a commit of its own."""

ATTEMPTS_ANNOTATION_BYTES_MAX: Final = MIB
"""Bytes of annotations that consumers of one subscription added to returned messages; further ones are not added."""

GIVING_UP_MAX: Final = 10_000
"""Messages of one subscription on their way to a dead letter address. Above it the subscription reads no further until
they are on disk, so that an expired backlog does not fill the memory faster than the card can write."""

GIVEN_UP_READ_BYTES: Final = 4 * KIB
"""Bytes read for each message that is to be dropped, and one run at least: a rejected message must not cost as much as
the backlog behind it."""

SWEEP_READ_BYTES_MAX: Final = 128 * KIB
"""Message bytes checked at once for expired messages that no client reads, some 1 000 small ones."""

SWEEP_BYTES_MAX: Final = 4 * MIB
"""Message bytes checked for that in one tick: 16 MiB a second, as fast as a card takes new messages."""

SWEEP_RUNS_MAX: Final = 4_000
"""Runs checked for that in one tick. Each takes 5 to 10 us of the loop's time, in all a sixth of it on a PC."""

SWEEP_VISITS_MAX: Final = 1_000
"""Subscriptions checked at once for anything due; with more, a round takes several ticks."""

SWEEP_RANGES_MAX: Final = 1_000
"""Ranges of expired messages dropped out of order, between others that live longer: 8 bytes each, written with every
move of the cursor."""

SWEEP_AGAIN_S: Final = 600.0
"""Seconds until a backlog is checked again that could not be read to its end, or that is of unknown age."""

CLOCK_STEP_S_MAX: Final = 2.0
"""Largest difference in seconds between the clock and the monotonic clock over one tick; a larger one means that the
clock was set. Time services adjust the clock by less than a thousandth."""

VIEW_READ_BYTES_MAX: Final = 64 * KIB
"""Message bytes that one consumer of a queue with selectors, groups or priorities looks at in one go: some 600 small
messages at 5 to 10 us each, so that a selector that scans a backlog does not delay others."""

TAKEN_RANGES_MAX: Final = 50_000
"""Ranges of a queue's messages taken out of order, about 200 bytes each; all of them are written with the cursor, 8
bytes each. Above it a selector with scattered messages waits until the messages between them are taken."""

SELECTIONS_REMEMBERED_MAX: Final = 64
"""Selectors remembered of former consumers of a queue, each with the position below which nothing matches. A client
that attaches again for every message does not cause a scan of the backlog each time."""

PRIORITY_RANGES_MAX: Final = 10_000
"""Ranges of a queue's messages of other than normal priority, about 100 bytes each for the queue and for each consumer;
further messages keep the order in which they arrived."""

GROUP_BUCKETS: Final = 1_024
"""Buckets for the message groups of a queue; a bucket goes to one consumer. There are many more buckets than consumers,
so that each gets its share, and few enough to go through when a consumer leaves."""

SELECTOR_LENGTH_MAX: Final = 4_096
"""Characters of a receiver's selector: it is evaluated for every message."""

SELECTOR_TERMS_MAX: Final = 512
"""Names, values and operators of a selector."""

SELECTOR_TEXT_CHARACTERS_MAX: Final = 16 * KIB
"""Characters of a value that LIKE evaluates. For a longer value its result is unknown, so the message is not
selected."""

SELECTOR_SEARCHES_MAX: Final = 8
"""Pieces with ``_`` between ``%`` in all LIKE of a selector: each takes 0.1 us for each character of its text."""

SELECTOR_DEPTH_MAX: Final = 32
"""Nested parentheses of a selector: a peer's nesting must not exhaust our stack."""

JSON_CONDITION_LENGTH_MAX: Final = 1_024
"""Characters of a forwarder's condition on JSON bodies: it is evaluated for every message."""

JSON_CONDITION_TERMS_MAX: Final = 64
"""Paths, values and operators of such a condition."""

JSON_CONDITION_BODY_BYTES_MAX: Final = 64 * KIB
"""Bytes of a body that it parses: some 0.3 ms. For a larger body every condition is false."""

SERVICE_CREDIT: Final = 50
"""Requests to $management or $cbs that a peer may have under way on one link: each is answered in the turn it
arrives."""

MANAGEMENT_RESULTS_MAX: Final = 500
"""Entities in one answer of $management: 100 KiB of links, which have the most attributes, and some 20 ms of work. A
client requests more with an offset; qdstat requests 500 at a time, and takes fewer as the last ones."""

WILL_BYTES_MAX: Final = 65_535
"""Bytes of an AMQP client's last will, held while it is connected; as many as MQTT 3.1.1 allows."""

ANYCAST_QUICK_S: Final = 0.005
"""Seconds within which a consumer of an anycast address counts as quick: splitting a few messages among several such
consumers does not pay."""

ANYCAST_TOGETHER_MAX: Final = 32
"""Messages that a quick consumer gets at once while others have none."""

SCHEDULED_MESSAGES_MAX: Final = 10_000
"""Messages that wait for their delivery time, in one store. Each takes about 0.5 KiB of memory besides its body on
disk, so all of them 5 MiB."""

SCHEDULED_BYTES_MAX: Final = 64 << 20
"""Their bytes, which belong to no address until they are due."""

SCHEDULED_SPACE_SHARE: Final = 4
"""Part of the quota of the space that they may use: a quarter, so that addresses have room."""

SCHEDULED_USER_SHARE: Final = 2
"""One user, or one device without authentication, may use this part of both limits: a half. So a faulty application
leaves room for the others."""

SCHEDULED_AHEAD_MS_MAX: Final = 400 * 86_400_000
"""Longest wait in milliseconds, 400 days: a yearly date with a month to spare. A longer one is from a wrong clock."""

SCHEDULED_AT_ONCE: Final = 100
"""Due messages that are published in one housekeeping (`TICK_S`): each is read from disk, 0.1 ms for a small one."""

SCHEDULED_AT_ONCE_BYTES: Final = 1 << 20
"""Bytes of the same, with one message more: some 0.1 s of the event loop on an SD card."""

SCHEDULED_AGAIN_S: Final = (5.0, 300.0)
"""First and longest wait, in seconds, until an address that refused a due message is tried again with one message. The
wait doubles with each refusal, as each try is a read of the card."""

SCHEDULED_TRIALS_MAX: Final = 10
"""Addresses that are tried again in one housekeeping: they must not delay those that take messages."""

ANYCAST_HELD_MAX: Final = 100
"""Messages of one MQTT connection before version 5 that wait for the consumer of an anycast address: the protocol
cannot report its absence. Beyond it, or after `ANYCAST_ANSWER_S_MAX`, the connection ends and the client sends again.
Most clients have 20 messages under way at most."""

ANYCAST_HELD_BYTES_MAX: Final = 16 * MIB
"""Bytes of such messages of all connections, with `ANYCAST_HELD_MESSAGE_BYTES` for each."""

ANYCAST_HELD_MESSAGE_BYTES: Final = 512
"""Bytes that one of them takes in addition to its body: run, positions, and the pending reply."""

ANYCAST_REQUEUED_MAX: Final = 1_000
"""Messages of an anycast address that consumers returned and that wait for another consumer (bytes:
`TRANSIENT_BUFFER_BYTES_MIN`). The sender of one more gets its answer at once. Each is checked, 1 us, when a consumer
without credit gets some."""

HEADER_USUAL_BYTES_MAX: Final = 32
"""Longest AMQP header section that is cached decoded: its five fields take 20 bytes at most."""

HEADERS_USUAL_MAX: Final = 1_000
"""Header sections that are cached: the messages of a device have one header while they have the same time to live."""

TRANSACTIONS_PER_CONNECTION_MAX: Final = 100
"""Open transactions of one AMQP connection. A JMS client has one for each transacted session."""

TRANSACTIONS_MAX: Final = 1_000
"""Open transactions of a space: ten connections with all they may have. An empty one takes 1 KiB."""

TRANSACTION_MORE_BYTES: Final = 2 * MIB
"""Memory of one transaction beyond one of the largest messages (`Limits.packet_bytes_max`): 18 MiB by default. It is
less than a connection may hold, so a larger one is refused before its connection is closed."""

TRANSACTIONS_SHARE: Final = 6
"""Divisor of `Limits.memory_bytes_max` for all transactions of a space: 42 MiB by default. They count in the accounts
of their connections too."""

TRANSACTIONS_USER_SHARE: Final = 2
"""Divisor of both limits of a space, of number and of memory, for one user."""

TRANSACTION_IDLE_S: Final = 300.0
"""Seconds without a change after which a transaction that holds messages or deliveries is rolled back. A client that
works on a delivery for longer would hold back the messages behind it. An empty transaction has no limit: JMS clients
declare one when a session begins, and may wait for a message for days."""

POSTED_MESSAGE_BYTES: Final = 600
"""Memory of a posted message besides its content."""

RETIRED_DELIVERY_BYTES: Final = 400
"""Memory of a retired delivery. 18 MiB are 47 000 of them."""

SENDER_CREDIT: Final = 1_000
"""AMQP messages that a sender may have under way to a stored address: enough to fill a commit, few enough to hold."""


NETWORK_ROUTERS_MAX: Final = 128
"""Routers of a network that a router knows, itself included: the paths between 128 routers with 4 links each take 20 ms
of a PC. Further ones are ignored and logged."""

NETWORK_NEIGHBOURS_MAX: Final = 32
"""Links between routers that one router has: each new statement is sent over all of them."""

NETWORK_ANNOUNCED_MAX: Final = 4_096
"""Direct addresses with consumers that a router announces to its network; each takes its name and 100 bytes at all
routers. Consumers of further ones get messages of their own router only."""

NETWORK_ANNOUNCED_PER_USER_MAX: Final = 1_024
"""The same of one user, or of one client without authentication. While all places are taken, the user with the most
gives up one for a user with fewer, so a client that consumes from ever new addresses takes no place of another one."""

NETWORK_ANNOUNCE_S: Final = 0.2
"""Shortest time between two statements of a router about its consumers. The first change is stated at once, and those
of the next 0.2 s together: clients that come and go cost every router of the network five statements a second."""

NETWORK_NAME_BYTES_MAX: Final = 256
"""Bytes of an announced address as JSON. 4 096 of the longest make a statement of 1 MiB."""

NETWORK_STATEMENT_BYTES_MAX: Final = 2 * MIB
"""Bytes of one statement of a router: the largest has `NETWORK_ANNOUNCED_MAX` addresses and their quotes."""

NETWORK_STATEMENTS_WAITING_BYTES_MAX: Final = 16 * MIB
"""Bytes of statements that wait for a neighbour that does not read. Beyond it the link is closed; the neighbour gets
the present state over the next one."""

NETWORK_HELLOS_MISSED_MAX: Final = 3
"""Greetings in a row that a neighbour may miss: a link that is silent for 1.5 s is lost, so another path is used
within two seconds."""

NETWORK_HOPS_MAX: Final = 16
"""Routers that a message passes at most. Messages have the names of the routers they have passed, so none passes a
router twice; this bounds the size of these names."""

NETWORK_LINKS_MAX: Final = 1_000
"""AMQP links that a router attaches to one neighbour: one for each pair of a destination and an address in use, and one
for each multicast address. About 6 KiB each at both ends. Further addresses take turns (`NETWORK_LINK_TURN_S`)."""

NETWORK_LINK_TURN_S: Final = 1.0
"""Shortest time for which an address keeps its link when all `NETWORK_LINKS_MAX` are in use and others wait: then the
one that is unused for longest is detached. So 3 000 addresses in use have a link each a third of the time."""

NETWORK_LINK_IDLE_S: Final = 60.0
"""Time after which an unused link to a neighbour is detached; the next message attaches it again, which takes a round
trip."""

NETWORK_LINK_RETRY_S: Final = 5.0
"""Time after which a link that a neighbour has refused is attached again."""

NETWORK_DRAIN_S: Final = 5.0
"""Time that an orderly stop waits for the answers to messages on their way through the router. Those that are still
unanswered then are refused as `PATH_LOST`."""

NETWORK_IN_FLIGHT_BYTES_MAX: Final = 32 * MIB
"""Bytes of messages that a neighbour has not answered; above it only links without unanswered messages send to it."""

NETWORK_LINK_BYTES_MAX: Final = 4 * MIB
"""The same of one link between routers, which is for one address: a consumer that never answers stops no others."""

NETWORK_MESSAGE_BYTES: Final = 200
"""Memory of an unanswered message besides its body, counted with it."""

NETWORK_GONE_S: Final = 60.0
"""Time for which the last statement of a router that cannot be reached is kept: it may come back over another link."""

TURNED_AWAY_MAX: Final = 64
"""Connections beyond `connections_max` kept at one time until they can be refused in their protocol, about 10 KiB each;
further ones are closed without an answer."""

TURNED_AWAY_S: Final = 2.0
"""Seconds that such a client has to show which protocol it speaks: a round trip of a slow link."""

TLS_HANDSHAKES_MAX: Final = 128
"""TLS handshakes under way on one listener; each holds a socket and some 50 KiB. One remote address has at most half of
them. Further connections wait, and addresses are served in rotation. So a fleet that returns at once does not fill the
memory, and one that stalls does not lock out others."""

TLS_PARKED_MAX: Final = 1_024
"""Connections that wait for their handshake on one listener, a socket each. Beyond it the last connection of the
address with the most of them is closed."""

TLS_STALLED_S: Final = 3.0
"""Seconds that a handshake may take while others wait: several round trips of a slow link."""

CERTIFICATES_CHECK_S: Final = 2.0
"""Seconds between two checks of the certificate files for changes: three stat(2)."""

GRANT_VERDICTS_MAX: Final = 256
"""Decisions on addresses cached for one connection in each direction. Further ones are computed again, some 2 us for
each rule."""

GRANT_ADDRESS_CHARACTERS_MAX: Final = 512
"""Decisions on longer addresses are not cached: a client must not make us keep 256 topics of 64 KiB."""


PacketIdentifiers = Annotated[int, msgspec.Meta(gt=0, le=65_535)]
"""Number of packet identifiers of MQTT at most."""


class Limits(ResourcePart, frozen=True, kw_only=True):
    """Bounds that a configuration may change (resource `Gateway`, ``spec.limits``)."""

    connections_max: Restart[Count] = 10_000
    """Open sockets in all; each costs about 3 KiB."""
    packet_bytes_max: Restart[Count] = 16 * MIB
    """Size of one MQTT packet, or of one AMQP message."""
    inflight_max: Restart[PacketIdentifiers] = 1_000
    """QoS 1 and 2 deliveries to one MQTT client that it has not acknowledged; MQTT has 65 535 packet identifiers."""
    receive_maximum: Restart[PacketIdentifiers] = 20_000
    """QoS 1 and 2 messages that one MQTT 5 client may have under way to us; a two byte integer. Clients that do not
    count (mqtt.js) send bursts of 10 000, and are disconnected beyond it. `PENDING_BYTES_MAX` bounds the bodies of all
    clients. The packet identifiers take 7 MiB at QoS 2, and 40 KB of each commit while there are this many."""
    keep_alive_s_max: Restart[Count] = 60
    """Keep Alive of MQTT 5 clients, and of clients that request none. A device that fell silent is noticed, and its
    Will Message published, within one and a half of it. Older clients cannot be given another value, and get the one
    they request."""
    session_expiry_s_max: Restart[Count] = 365 * 86_400
    """Longest time that an MQTT session is kept for an absent client: a device that was switched off for a season finds
    its session."""
    handshake_s: Restart[Positive] = 10.0
    """Time from accept to CONNECT or AMQP open."""
    idle_timeout_s: Restart[Positive] = 60.0
    """AMQP idle timeout that we announce."""
    memory_bytes_max: Restart[Count] = 256 * MIB
    """Memory that the process may take, half of a 512 MiB Pi. Parts of it bound what connections hold. If the process
    still takes more, no new connection is accepted, and the connections that hold most are closed until it takes
    less."""
    queues_max: Restart[Count] = 20_000
    """Queues of a space that clients made, by sending or receiving; names in the configuration do not count. An unused
    queue takes about 300 bytes of memory."""
    queues_per_user_max: Restart[Count] = 5_000
    """Queues of one user. For all limits of a user: where users have to authenticate, no user takes more than a
    quarter, and of sessions a half, as a fleet may share one user."""
    queue_unused_s: Restart[Count] = 7 * 86_400
    """Time after which an empty, unused queue that clients made is forgotten. The next message makes it again, and
    continues its sequence numbers."""
    subscriptions_max: Restart[Count] = 20_000
    """Durable subscriptions of a space: filters of MQTT sessions that outlive their connections, shared subscriptions,
    and subscriptions of AMQP; about 3 KiB each."""
    subscriptions_per_user_max: Restart[Count] = 5_000
    """Durable subscriptions of one user."""
    subscription_unused_s: Restart[Count] = 365 * 86_400
    """Time after which a durable subscription of AMQP ends that no client held while the gateway ran; its messages are
    entered in the loss ledger. A client may request less (timeout of its source). Subscriptions in the configuration
    stay."""
    filters_max: Restart[Count] = 50_000
    """Subscriptions of connected clients that end with them; about 1 KiB each."""
    filters_per_user_max: Restart[Count] = 12_500
    """Such subscriptions of one user."""
    retained_max: Restart[Count] = 100_000
    """Retained messages of a space, about 500 bytes each; a larger one (`NAME_CHARACTERS`) counts as several."""
    retained_per_user_max: Restart[Count] = 25_000
    """Retained messages of one user."""
    sessions_max: Restart[Count] = 20_000
    """MQTT sessions, connected or not; about 3 KiB each."""
    sessions_per_user_max: Restart[Count] = 10_000
    """MQTT sessions of one user."""
    free_floor_bytes: Restart[Count] = 64 * MIB
    """Free space of the medium that messages may not take. The write-ahead log, the system's own logs and an update of
    the image need some, and the reserves of addresses are still to be written when it is reached."""


ADDRESS_BYTES_MAX: Final = KIB
"""UTF-8 bytes of an address that messages are sent to: MQTT topic name, AMQP address or HTTP path. A publisher may give
it once for thousands of messages (a topic alias, a link), and it is written with each one that is delivered or
landed."""

ADDRESSED_AT_ONCE: Final = 32
"""Messages of an anonymous relay taken at once: each may have a new address, 0.1 ms."""

TRANSLATED_BYTES_A_TURN: Final = 4 * KIB
"""Bytes of AMQP messages decoded for one MQTT session in one turn of the loop, or one message: at worst each byte is a
value that takes a microsecond. The session continues in the next turn."""

TRANSLATIONS_REMEMBERED_BYTES_MAX: Final = MIB
"""Bytes of translated AMQP messages that are cached with their originals: sessions that get the same messages do so
within a few turns."""

TOPIC_BYTES_A_TURN: Final = MIB
"""Bytes of topic names written for one session in one turn of the loop: 30 000 messages under usual names, or 1 000
under long ones, which a publisher gives once for all of them."""

ADDRESSES_STATED_TOGETHER: Final = 1_000
"""Addresses that one pass of a closed hour states, some 8 ms of the loop; the others follow in the next passes."""

STATEMENTS_A_DOCUMENT: Final = 50
"""Statements of a manifest in one document, and signed in one turn of the loop: 0.2 ms each on a Raspberry Pi 3."""

STATEMENTS_KEPT_MAX: Final = 50_000
"""Statements of one connector that wait in the store for the peer, some 300 bytes each: 100 addresses for three weeks.
Beyond it the hour stays open, so that the next statements cover many hours. One closing may exceed it."""

CLOCK_RANGES_A_DOCUMENT: Final = 500
"""Ranges of messages with a wrong clock in one document: some 50 KiB of JSON."""

CLOCK_RANGES_KEPT_MAX: Final = 50_000
"""Such ranges of one connector that wait in the store until the clock is right, or for the peer, some 60 bytes each:
100 addresses and 500 starts without a time service. Beyond it a single range is kept, without its clock offset, until
the peer has taken some. The end of one range may exceed it."""

CLOCK_KNOWN_EVERY_S: Final = 3_600.0
"""Seconds between two writes of a right clock: after a power cut, messages that a wrong clock stamps are known to be
later than the last one."""

USER_PROPERTIES_MAX: Final = 1_024
"""Properties of one MQTT packet that may be repeated (User Property), each some 2 us of the loop's time to check."""

TOPIC_LEVELS_MAX: Final = 128
"""Levels of a topic name or filter; matching costs a step for each level."""

REFUSALS_KEPT_MAX: Final = 1_000
"""Entries of the journal of refused clients, about 1 KiB each at most; the least recently refused are dropped first."""

REFUSAL_REMOTE_SHARE: Final = 4
"""One remote address has at most a fourth of these entries, so that a client which guesses names does not displace the
entries of others."""

REFUSAL_TEXT_CHARACTERS_MAX: Final = 200
"""Characters kept of each name, address and reason in the journal of refused clients."""

REFUSAL_TIMES_MAX: Final = 5
"""Times of the latest refusals kept in an entry: as many as make it a problem."""
