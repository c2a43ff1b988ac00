"""Every bound of the broker in one place: name, unit, reason. A peer can make nothing grow that is not bounded here."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from bridge.resources.fields import Count, Positive, ResourcePart, Restart

KIB: Final = 1024
MIB: Final = 1024 * KIB

NAMES_REMEMBERED_MAX: Final = 32_768
"""Addresses whose rule and route are kept resolved, some 600 bytes each with what lanes know of them, more where many
subscribe: four for each of 8 000 devices. Beyond it the cache starts anew, 10 us an address."""

NAMES_REMEMBERED_AT_ONCE: Final = 256
"""Of these, so many get their place when they come for the first time; the others when they come again."""

NAMES_NOTED_MAX: Final = 65_536
"""Names of which it is noted, in 64 KiB, that they came once: twice as many as are remembered, so that those of a fleet
that come in turn all come again before it begins anew."""

UNROUTED_ADDRESSES_MAX: Final = 64
"""Topics without a subscriber that are noted by name: 20 KiB, and more than a person reads. Beyond it the one that was
published to longest ago is forgotten; the counter has all messages."""

UNROUTED_S: Final = 600.0
"""Seconds after its last message for which a topic without a subscriber is reported: a device that sends every five
minutes is reported without a break."""

UNAUTHENTICATED_SHARE: Final = 4
"""What connections may hold together whose peer has not said who it is, as a part of `Limits.memory_bytes_max`: 64 MiB
are 16 000 devices over MQTT, or 1 800 over AMQP, that return at once after a power cut. Beyond it the oldest
of the address with most of them gives way."""

CONNECTIONS_SHARE: Final = 3
"""The same for all other connections of a space: half-sent messages, answers nobody reads, links. A message that comes
takes its size once more while it is put together, what waits for the disk as much as `PENDING_BYTES_MAX` allows, and
what waits for readers `TRANSIENT_POOL_BYTES_MAX`."""

BODIES_SHARE: Final = 8
"""The same for the bodies of requests over HTTP."""

ACCOUNT_SHARE_MAX: Final = 2
"""The most one user, or one remote address, may take of the pool it is in: a half, so that others have the rest. Many
devices may share a user, and many an address behind a router."""

STRAINED_SHARE: Final = 4
"""A pool is strained when less than this part of it is left: where most is held only one connection is read on, so that
its message is completed before others are begun."""

SHED_S: Final = 0.0005
"""How long connections may be closed in one turn of the loop until a pool is no more strained; what exceeds it is given
back at once. One takes 0.05 to 0.2 ms."""

LOOK_S: Final = 0.0005
"""How long it may be looked in one turn of the loop at what connections hold, which takes 0.5 us each, and 5 where one
is to wait."""

STRAINED_S_MAX: Final = 3.0
"""How long a pool may be strained; then who holds most is disconnected. A message of 16 MiB takes so long at 45 Mbit/s;
whoever is slower gets through while there is no strain."""

STRAINED_LOOK_S: Final = 0.02
"""How soon it is looked who may go on once a pool is strained: 20 ms bring 2.5 MB at 1 Gbit/s."""

TRIM_AGAIN_S_MIN: Final = 2.0
"""Between two times the allocator is asked to give memory back to the kernel: that takes up to 0.1 s."""

TRIM_AGAIN_S_MAX: Final = 600.0
"""The same while it has nothing to give: what the process takes is in use."""

TRIM_CALM_S: Final = 1.0
"""How long nobody has left, and nothing has been given up, before the allocator is asked: once for all that go."""

TRIM_LATEST_S: Final = 6.0
"""How long that is waited for: what was given up is given back within 10 s, whoever comes and goes."""

TRIM_GROWTH_BYTES: Final = 16 * MIB
"""By so much the process has to grow before it is asked again as soon as that."""

TRIM_SETTLED_BYTES: Final = 2 * MIB
TRIM_SETTLED_S: Final = 6.0
"""By so much the process has to grow, and for so long not to grow on, before it is asked for that alone: half of what a
burst of names takes is in use while it lasts only."""

PACKETS_HELD_MAX: Final = 2
"""Largest messages (`Limits.packet_bytes_max`) one connection may hold, half-sent or unread: an AMQP client may have
begun a second on another link."""

LINKS_HELD_BYTES_MAX: Final = 8 * MIB
"""What one connection may hold where messages are small: as many AMQP links as it may have are 6 KiB each."""

MEMORY_MESSAGES_MIN: Final = 8
"""Largest messages `Limits.memory_bytes_max` has to hold, or two senders could not send theirs at once."""

PLACES_KEPT_SHARE: Final = 10
"""The last tenth of `connections_max` is for users and addresses with few connections: who opens all he can leaves
these to others."""

FEW_CONNECTIONS_SHARE: Final = 100
"""What counts as few: a hundredth of `connections_max`."""

MQTT_CONNECTION_BYTES: Final = 3 * KIB
"""What a connection costs that does nothing, as measured: machine, handler, driver and the loop's part. Counted until
its peer has said who it is; then the number of connections is bounded, and the process' memory."""

AMQP_CONNECTION_BYTES: Final = 36 * KIB
"""The same for AMQP: the engine's buffers."""

TLS_CONNECTION_BYTES: Final = 10 * KIB
"""What TLS adds to a connection; as measured some 7 KiB."""

WEBSOCKET_CONNECTION_BYTES: Final = 12 * KIB
"""What WebSocket adds to a connection."""

WRITE_BUFFER_BYTES_MAX: Final = 256 * KIB
"""Bytes a peer may leave unread in our socket buffer before deliveries to it pause."""

ADDRESSES_MATCHED_MAX: Final = 100_000
"""Addresses of one log whose subscriptions are kept found; beyond it they are looked for anew."""

SLEEPERS_MAX: Final = 8
"""Subscriptions of a log that are asked, with each commit, whether one of them has to be told of its messages: where
none has, no message is looked at; with more the asking would cost what it saves."""

FEEDS_LOOKED_AT_MAX: Final = 1_000
"""Logs asked in one tick whether they hold something nobody was told of; with more, a round takes several ticks."""

CURSORS_MOVED_MAX: Final = 2_000
"""Cursors that pass, in one tick, what did not concern their subscriptions; each is a row of a later commit."""

UNREAD_BYTES_MAX: Final = 4 * MIB
"""Bytes of answers (deliveries have paused long before) a peer may leave unread before nothing more is read of it: a
million PUBACKs, so that a client which sends all it has before it reads is not caught unless it overdoes it."""

ANYCAST_ANSWER_S_MAX: Final = 30.0
"""How long the consumer of an anycast message may take to answer before its MQTT sender is told that none came: as long
as one over HTTP waits (`HTTP_ANSWER_S_MAX`). Until then every later answer to that sender waits, as they keep order."""

PENDING_BYTES_MAX: Final = 32 * MIB
"""Message bytes gathered and not yet on disk. Above it sockets are not read: a slow card slows its senders down
instead of filling the memory of a 512 MiB Pi."""

PENDING_BYTES_LOW: Final = 16 * MIB
"""Reading goes on below this; half the limit, so that it does not flap at every commit."""

SUBSCRIPTION_BUFFER_BYTES_MAX: Final = MIB
"""Message bytes held in memory for one subscription that is being served; what is beyond stays in the store and
is read when it is wanted."""

TRANSIENT_BUFFER_BYTES_MIN: Final = MIB
"""Message bytes any subscriber without a durable subscription may have waiting when it does not read fast enough; newer
messages are dropped for it (and counted) beyond what it may have, as its session promises nothing."""

TRANSIENT_BUFFER_BYTES_LEAST: Final = 4 * KIB
"""The same when all together have a quarter more waiting than `TRANSIENT_POOL_BYTES_MAX`: 10 000 of them that do not
read have 40 MiB."""

TRANSIENT_BUFFER_BYTES_MAX: Final = 16 * MIB
"""The same while others leave room in the pool: a burst of 150 000 small messages is taken in before it is dropped."""

TRANSIENT_POOL_BYTES_MAX: Final = 64 * MIB
"""Message bytes waiting for all such subscribers together; above it each is held to the minimum."""

UNSELECTED_MAX: Final = 10_000
"""Messages that wait in a temporary queue none of whose consumers selects them; more are dropped and counted: each is
looked at anew when an older one comes back."""

LIVE_BEHIND_BYTES_MAX: Final = 2 * MIB
"""Message bytes waiting for one live subscriber above which those who publish to it are held back. Every publisher may
have one read (256 KiB) under way then, so 50 of them stay below `TRANSIENT_BUFFER_BYTES_MAX`."""

LIVE_BEHIND_BYTES_LOW: Final = 256 * KIB
"""They go on below this; also what one may have waiting when half of the pool is used up."""

LIVE_HOLD_S_MAX: Final = 2.0
"""How long a subscriber may be behind before nobody is held back for it any more; longer than a pause of a loaded
reader, shorter than the patience of a publisher."""

LIVE_PUMP_BYTES_MAX: Final = 256 * KIB
"""Message bytes handed to a live subscriber's connection in one go; then it is seen whether the socket takes them."""

LANE_HOLES_MAX: Final = 1_024
"""Ranges settled above a cursor's position (8 KiB in its row, written 20 times a second at most) with which lanes do
not part any more when the link comes up: one is added each time the link went while a backlog was under way. The hub
keeps four times as many for an address."""

BACKLOG_CHUNK_POSITIONS: Final = 4_096
"""Of a backlog that goes newest first: so many positions are delivered in order, then those before them."""

READ_BYTES_MAX: Final = 512 * KIB
"""Message bytes of one read from the store: large enough to be sequential, small enough to keep the loop alive."""

TICK_S: Final = 0.25
"""Period of housekeeping: idle cursors advance, session expiry, delayed wills, status figures."""

WILLS_AFTER_START_S: Final = 10.0
"""How long after a start the wills of clients that were connected before wait: as long as their devices take to notice
that the connection is gone, and come back. One that does is not gone, and its new connection has a new will."""

EVICT_AHEAD_SHARE: Final = 64
"""An address that gives up old messages gives up this part of its quota more than it has to: a commit that evicts reads
and names what goes, so it should not be every commit."""

EVICT_AHEAD_BYTES_MAX: Final = MIB
"""The most it gives up ahead."""

YIELDING_LOGS_MAX: Final = 8
"""Logs of one address that give way to what comes for another, in one go: each is an eviction in the commit."""

WILLS_AGAIN_S: Final = 5.0
"""Between two attempts to store the wills that the store could not take when their clients went."""

WILLS_PUT_OFF_BYTES_MAX: Final = 16 * MIB
"""Wills the store could not take are held in memory, beside their copies on disk, up to this. Only clients that are
gone leave one; 10 000 of them with a KiB each have room."""

WILLS_AT_ONCE: Final = 16
"""Wills published in one turn of the loop, some 0.1 ms each where they are for addresses nobody has sent to before."""

FLOOR_HYSTERESIS_BYTES: Final = 4 * MIB
"""Free space above the floor at which messages are taken again, so that it does not flap."""

NAME_CHARACTERS: Final = 256
"""A queue, subscription, retained message (with its body) or session counts once more among the names of its user for
each so many characters: a thousand names must not be a thousand times 64 KiB."""

ADDRESS_REMEMBERED_CHARACTERS_MAX: Final = 512
"""Longer addresses are looked at anew each time: 100 000 of 64 KiB are no cache but 6 GB."""

QUEUES_LOOKED_AT_MAX: Final = 500
"""Queues asked in one tick whether anybody uses them; with more, a round takes several ticks. 0.5 ms."""

QUEUES_OPENED_MAX: Final = 50
"""Queues nobody consumes from that are opened in one tick because messages in them may have expired; 0.1 ms each."""

PATTERN_SLICE_S: Final = 0.005
"""Seconds of one turn of the loop that a consumer of all queues a filter matches is joined to them, or served from
them; the rest is done in the next turns. To open a queue takes 0.1 ms and more."""

RECEIPTS_WAITING_MAX: Final = 10_000
"""Receipts of commands that wait in memory for room in the store, some 300 bytes each; the oldest goes first."""

QUEUE_REST_S: Final = 5.0
"""Seconds a queue is kept open without consumers: clients that come back for every message find it as it was. Then it
is rows of the store, and some 100 bytes of memory instead of 3 KiB."""

QUEUES_IDLE_MAX: Final = 256
"""With more open ones nobody consumes from, none is kept as it was, 1 MiB: after a start every queue that has messages
is opened once."""

SUBSCRIPTION_REST_S: Final = 2.0
"""Seconds the objects of a durable subscription are kept once its client is away: clients come back after a lost
connection. Then it is rows of the store, and some 100 bytes of memory instead of 3 KiB."""

SUBSCRIPTIONS_LOOKED_AT_MAX: Final = 4_000
"""Durable subscriptions asked in one tick whether anybody holds them, 0.5 us each; with more, a round takes several
ticks."""

SUBSCRIPTIONS_LAID_DOWN_MAX: Final = 2_000
"""Objects of those that are dropped in one tick, 20 us each."""

SUBSCRIPTIONS_OPEN_MAX: Final = 250
"""With more of them open, those nobody holds are not kept open: objects of a burst leave the allocator in pieces, which
the process keeps when they have gone."""

ABSENT_DECLARATIONS_MAX: Final = 1_024
"""Declarations of durable subscriptions without a client that are kept read, 300 bytes each: those with No Local, which
decide about each message to their topics."""

SUBSCRIPTIONS_OPENED_MAX: Final = 50
"""Durable subscriptions nobody holds that are opened in one tick because messages for them may have expired; 0.1 ms
each."""

SUBSCRIPTION_LEFT_KEPT_S: Final = 600
"""How long after a durable subscription was left it is written when that was: who comes back for each message has
nothing written, and a crash meanwhile counts it from the next start."""

SUBSCRIPTION_ENDED_AFTER_START_S: Final = 300
"""How long after a start a durable subscription stays whose time is all but over: its client may just have come back,
and may again once the gateway is there."""

RUNNING_TIME_KEPT_S: Final = 3_600
"""How often the time the gateway has been running is written while something ends by it: a small commit an hour. A
crash lets that live an hour longer at most."""

SUBSCRIPTIONS_PASSED_S: Final = 5.0
"""How often the cursors of durable subscriptions nobody holds pass what did not concern them: each is a row of a later
commit, and until then the log keeps messages that nobody may want any more."""

ANYCAST_GROUPS_MAX: Final = 10_000
"""Anycast addresses remembered that nobody consumes from any more, about 1 KiB each; then all of them are forgotten."""

EXCLUDED_MAX: Final = 100_000
"""Pairs of a message of one subscription and a consumer it must not go to again, about 100 bytes each; beyond it the
oldest are forgotten, and may be delivered there once more."""

RETAINED_PURGED_MAX: Final = 500
"""Expired retained messages taken away in one tick, some 5 ms of the loop's time; the others wait for the next ones,
and are not delivered meanwhile."""

RETAINED_STEPS_MAX: Final = 500
"""Topic names looked at for one client's retained messages in one turn of the loop: 0.1 ms where none matches, 5 ms
where all do and are sent."""

CONNECTION_STATES_MAX: Final = 1_000
"""States of other brokers' bridges remembered below ``$SYS/broker/connection``, one a client identifier: some 200 bytes
each as a rule, and all of them are looked at when a client subscribes to ``$SYS``."""

CONNECTION_STATE_BYTES_MAX: Final = 64
"""Bytes of one such state: bridges tell ``0`` or ``1``."""

RETAINED_STALE_MAX: Final = 1_000
"""Expiries remembered beyond those of messages there are, about 150 bytes each: a topic that is retained anew every
second with a year to live must not leave one each time."""

RETAINED_JUDGED_AGAIN_S: Final = 3_600
"""When a message is looked at again whose age cannot be told, as the clock was set after it came."""

SESSIONS_ENDED_MAX: Final = 20
"""Sessions of clients that are away looked at in one tick because their time has come: the end of one with 1 000
filters takes 30 ms, of a usual one 0.1 ms."""

SESSION_REST_S: Final = 2.0
"""Seconds the object of a session is kept once its client is away: clients come back after a lost connection. Then the
session is rows of the store, and 200 bytes of memory instead of 2 KiB."""

SESSIONS_LOOKED_AT_MAX: Final = 1_000
"""Sessions of absent clients that one tick looks at for objects it can drop, 30 us for one it drops."""

SESSIONS_AWAY_MAX: Final = 1_000
"""With more objects of absent clients' sessions, and of their subscriptions, none is kept for `SESSION_REST_S`: see
`SUBSCRIPTIONS_OPEN_MAX`."""

SUBSCRIPTIONS_PER_SESSION_MAX: Final = 1_000
"""Filters one session may hold: a device needs a handful, a hostile one would make every route long."""

ATTEMPTS_TRACKED_MAX: Final = 100_000
"""Messages of one subscription whose failed deliveries are counted, about 150 bytes each; only messages that were
delivered and failed are, so a consumer has to fail on purpose to get there."""

GIVEN_BACK_WAITS_S: Final = 5.0
"""Seconds that a message of a queue waits for another consumer when one has released it or failed: most consumers are
done with what they have by then. After that the one that gave it back may have it again, as the others may never have
credit."""

GIVEN_BACK_BY_MAX: Final = 8
"""Consumers that gave one message back and are passed over for it; the first of more may have it again. With it what is
known of `ATTEMPTS_TRACKED_MAX` messages has a bound."""

ATTEMPTS_KEPT_MAX: Final = 1_000
"""Of those, messages of one subscription whose count is kept over a restart, those that failed most: 6 to 11 bytes
each, written again when one changes."""

ATTEMPTS_WRITTEN_S: Final = 1.0
"""Seconds between two writes of them: each may be a commit of its own."""

ATTEMPTS_ANNOTATION_BYTES_MAX: Final = MIB
"""Annotations consumers of one subscription added to messages they gave back; what is more is not added."""

GIVING_UP_MAX: Final = 10_000
"""Messages of one subscription on their way to a dead letter address; above it the subscription reads no further until
they are on disk, so that an expired backlog does not pass through memory faster than the card takes it."""

GIVEN_UP_READ_BYTES: Final = 4 * KIB
"""Bytes read for each message that is to be given up, and one run at least: a rejected message must not cost as much as
the backlog behind it."""

SWEEP_READ_BYTES_MAX: Final = 128 * KIB
"""Message bytes looked at in one go for messages that have expired with nobody reading them, some 1 000 small ones."""

SWEEP_BYTES_MAX: Final = 4 * MIB
"""Message bytes looked at in one tick for that: 16 MiB a second, as fast as a card takes what would come instead."""

SWEEP_RUNS_MAX: Final = 4_000
"""Runs looked at in one tick for that: each takes 5 to 10 us of the loop's time, in all a sixth of it on a PC."""

SWEEP_VISITS_MAX: Final = 1_000
"""Subscriptions asked in one go whether anything is due; with more, a round takes several ticks."""

SWEEP_RANGES_MAX: Final = 1_000
"""Ranges of expired messages given up out of turn, between others that live longer: 8 bytes each, written with every
move of the cursor."""

SWEEP_AGAIN_S: Final = 600.0
"""When a backlog is looked at again that cannot be seen to the end, or whose age no clock can tell."""

CLOCK_STEP_S_MAX: Final = 2.0
"""Seconds by which the clock may differ between two ticks from the one that is never set: more, and it was set. Time
services turn the clock by less than a thousandth."""

VIEW_READ_BYTES_MAX: Final = 64 * KIB
"""Message bytes one consumer of a queue with selectors, groups or priorities looks at in one go: some 600 small
messages at 5 to 10 us each, so that a selector's walk over a backlog holds up nobody."""

TAKEN_RANGES_MAX: Final = 50_000
"""Ranges of a queue's messages taken out of turn, about 200 bytes each, all of them written with the cursor (8 bytes
each); above it a selector whose messages lie between others waits until those others are taken."""

SELECTIONS_REMEMBERED_MAX: Final = 64
"""Selectors of a queue whose consumers have left and of which it is known up to where nothing is for them, so that a
client that attaches anew for every message does not have the backlog scanned each time."""

PRIORITY_RANGES_MAX: Final = 10_000
"""Ranges of a queue's messages of other than normal priority, about 100 bytes each for the queue and for each consumer;
messages beyond it keep the place they arrived in."""

GROUP_BUCKETS: Final = 1_024
"""Buckets the groups of a queue's messages fall into; a bucket goes to one consumer. Many more than consumers, so that
each gets its share, and few enough to be looked through when one leaves."""

SELECTOR_LENGTH_MAX: Final = 4_096
"""Characters of a receiver's selector: it is evaluated for every message."""

SELECTOR_TERMS_MAX: Final = 512
"""Names, values and operators of a selector."""

SELECTOR_TEXT_CHARACTERS_MAX: Final = 16 * KIB
"""Characters of a value that LIKE looks at; what it says of a longer one is unknown, so that is not selected."""

SELECTOR_SEARCHES_MAX: Final = 8
"""Pieces with ``_`` between ``%`` in all LIKE of a selector: each takes 0.1 us a character of its text."""

SELECTOR_DEPTH_MAX: Final = 32
"""Parentheses within parentheses of a selector: a peer's nesting must not exhaust our stack."""

JSON_CONDITION_LENGTH_MAX: Final = 1_024
"""Characters of a forwarder's condition on JSON bodies: it is evaluated for every message."""

JSON_CONDITION_TERMS_MAX: Final = 64
"""Paths, values and signs of such a condition."""

JSON_CONDITION_BODY_BYTES_MAX: Final = 64 * KIB
"""A body it looks at: some 0.3 ms to parse. No condition is true of a larger one."""

SERVICE_CREDIT: Final = 50
"""Requests to $management or $cbs a peer may have under way on one link: each is answered in the turn it comes in."""

MANAGEMENT_RESULTS_MAX: Final = 500
"""Entities in one answer of $management: 100 KiB of links, which have the most attributes, and some 20 ms of work. A
client requests more with an offset; qdstat requests 500 at a time, and takes fewer as the last ones."""

WILL_BYTES_MAX: Final = 65_535
"""Payload of an AMQP client's last will, held while it is connected; as much as MQTT 3.1.1 allows a will."""

ANYCAST_QUICK_S: Final = 0.005
"""A consumer of an anycast address that answers sooner is not worth sharing out a few messages for."""

ANYCAST_TOGETHER_MAX: Final = 32
"""Messages such a consumer gets at once though others have none."""

DELIVERY_TIME_AHEAD_MS_MAX: Final = 1_000
"""Milliseconds by which the delivery time that an AMQP sender requests may be ahead of our clock, and still means now:
two clocks that are set by NTP differ by less."""

ANYCAST_HELD_MAX: Final = 100
"""Messages of one MQTT connection before version 5 that wait for the consumer of an anycast address: the protocol
cannot report its absence. Beyond it, or after `ANYCAST_ANSWER_S_MAX`, the connection ends and the client sends
again. Most clients have 20 messages under way at most."""

ANYCAST_HELD_BYTES_MAX: Final = 16 * MIB
"""Bytes of such messages of all connections, with `ANYCAST_HELD_MESSAGE_BYTES` for each."""

ANYCAST_HELD_MESSAGE_BYTES: Final = 512
"""Bytes that one of them takes in addition to its body: run, positions, and the reply that waits."""

ANYCAST_GIVEN_BACK_MAX: Final = 1_000
"""Messages of an anycast address that consumers gave back and that wait for another consumer (bytes:
`TRANSIENT_BUFFER_BYTES_MIN`); the sender of one more gets its answer at once. Each is looked at when a consumer that
had no credit has some, 1 us each."""

HEADER_USUAL_BYTES_MAX: Final = 32
"""An AMQP header section that is remembered as read: its five fields take 20 bytes at their longest."""

HEADERS_USUAL_MAX: Final = 1_000
"""So many are: the messages of a device have one header, as long as they have the same time to live."""

SENDER_CREDIT: Final = 1_000
"""AMQP messages a sender may have under way to a stored address: enough to fill a commit, little enough to hold."""


TURNED_AWAY_MAX: Final = 64
"""Connections beyond `connections_max` kept at one time until they can be told so, about 10 KiB each; the flood beyond
them is closed without a word."""

TURNED_AWAY_S: Final = 2.0
"""How long such a client has to say which answer it understands: a round trip of a slow link."""

TLS_HANDSHAKES_MAX: Final = 128
"""TLS handshakes under way on one listener; each holds a socket and some 50 KiB. One remote address has half of them;
connections beyond wait, and are served in turns of their addresses: a fleet that returns at once does not fill the
memory, and one that stalls does not keep out others."""

TLS_PARKED_MAX: Final = 1_024
"""Connections that wait for their handshake on one listener, a socket each; beyond it the last of the address with most
is closed."""

TLS_STALLED_S: Final = 3.0
"""How long a handshake may take while others wait: several round trips of a slow link."""

CERTIFICATES_CHECK_S: Final = 2.0
"""How often certificate files are looked at for changes: three stat(2)."""

GRANT_VERDICTS_MAX: Final = 256
"""Verdicts on addresses kept for one connection, each direction; beyond it they are made anew, at some 2 us a rule."""

GRANT_ADDRESS_CHARACTERS_MAX: Final = 512
"""Longer addresses are judged every time: a client must not make us keep 256 topics of 64 KiB."""


PacketIdentifiers = Annotated[int, msgspec.Meta(gt=0, le=65_535)]
"""As many as there are packet identifiers of MQTT."""


class Limits(ResourcePart, frozen=True, kw_only=True):
    """Bounds a configuration may change (resource `Gateway`, ``spec.limits``)."""

    connections_max: Restart[Count] = 10_000
    """Open sockets in all; each costs about 3 KiB."""
    packet_bytes_max: Restart[Count] = 16 * MIB
    """One MQTT packet, or one AMQP message."""
    inflight_max: Restart[PacketIdentifiers] = 1_000
    """QoS 1 and 2 deliveries un-acknowledged towards one MQTT client; there are no more packet identifiers."""
    receive_maximum: Restart[PacketIdentifiers] = 20_000
    """QoS 1 and 2 messages one MQTT 5 client may have under way to us; a two byte integer. Clients that do not count
    (mqtt.js) send bursts of 10 000, and beyond it are cut off. What bodies take is bounded by `PENDING_BYTES_MAX`, over
    all clients; their packet identifiers take 7 MiB at QoS 2, and 40 KB of each commit while there are so many."""
    keep_alive_s_max: Restart[Count] = 60
    """Keep Alive of MQTT 5 clients, and of those that ask for none: a device that fell silent is noticed, and its Will
    Message published, within one and a half of it. Older clients cannot be told, and get what they ask for."""
    session_expiry_s_max: Restart[Count] = 365 * 86_400
    """How long an MQTT session is kept for a client that is away: a device switched off for a season finds its own."""
    handshake_s: Restart[Positive] = 10.0
    """From accept to CONNECT or AMQP open."""
    idle_timeout_s: Restart[Positive] = 60.0
    """AMQP idle timeout we announce."""
    memory_bytes_max: Restart[Count] = 256 * MIB
    """What the process may take, half of a 512 MiB Pi. What connections hold is bounded by parts of it; when the
    process takes more all the same, nobody new is let in and who holds most is disconnected until it does not."""
    queues_max: Restart[Count] = 20_000
    """Queues of a space that clients made, by sending or receiving. Names the configuration says count nowhere. One
    that nobody uses takes about 300 bytes of memory."""
    queues_per_user_max: Restart[Count] = 5_000
    """Of those, one user's. Here and below: where users have to say who they are, nobody takes more than a quarter (of
    sessions half, as a fleet may share one user)."""
    queue_unused_s: Restart[Count] = 7 * 86_400
    """A queue that clients made, is empty, and that nobody has used for so long, is forgotten; the next message makes
    it anew, and goes on with its sequence numbers."""
    subscriptions_max: Restart[Count] = 20_000
    """Durable subscriptions of a space: filters of MQTT sessions that outlive their connections, shared ones, and
    AMQP's; about 3 KiB each."""
    subscriptions_per_user_max: Restart[Count] = 5_000
    """Of those, one user's."""
    subscription_unused_s: Restart[Count] = 365 * 86_400
    """A durable subscription of AMQP that nobody has held for so long, while the gateway ran, ends; what lies in it is
    in the loss ledger. A client may ask for less (timeout of its source). Those the configuration names stay."""
    filters_max: Restart[Count] = 50_000
    """Subscriptions of connected clients that end with them; about 1 KiB each."""
    filters_per_user_max: Restart[Count] = 12_500
    """Of those, one user's."""
    retained_max: Restart[Count] = 100_000
    """Retained messages of a space, about 500 bytes each; a larger one (`NAME_CHARACTERS`) counts as several."""
    retained_per_user_max: Restart[Count] = 25_000
    """Of those, one user's."""
    sessions_max: Restart[Count] = 20_000
    """MQTT sessions, connected or not; about 3 KiB each."""
    sessions_per_user_max: Restart[Count] = 10_000
    """Of those, one user's."""
    free_floor_bytes: Restart[Count] = 64 * MIB
    """Free space of the medium that messages may not take: the write-ahead log, the system's own logs and an update of
    the image need some, and what addresses hold in reserve is still to be written when it is reached."""


ADDRESS_BYTES_MAX: Final = KIB
"""UTF-8 bytes of an address messages are sent to, as MQTT topic name, AMQP address or in HTTP. A publisher may say it
once for thousands of messages (a topic alias, a link), and it is written out with each that is delivered or landed."""

ADDRESSED_AT_ONCE: Final = 32
"""Messages of an anonymous relay taken at once: each may be for an address nobody has sent to before, 0.1 ms."""

TRANSLATED_BYTES_A_TURN: Final = 4 * KIB
"""Bytes of AMQP messages that are decoded for one MQTT session in one turn of the loop, or one message: at worst each
is a value, of a microsecond. The session goes on in the next turn."""

TRANSLATIONS_REMEMBERED_BYTES_MAX: Final = MIB
"""What was made of AMQP messages, and the messages: sessions that get the same ones do so within a few turns."""

TOPIC_BYTES_A_TURN: Final = MIB
"""Bytes of topic names written out for one session in one turn of the loop: 30 000 messages under usual names, or 1 000
under long ones, which a publisher says once for all of them."""

ADDRESSES_STATED_TOGETHER: Final = 1_000
"""Addresses whose hour is closed in one look, some 8 ms of the loop; the others follow at the next looks."""

STATEMENTS_A_DOCUMENT: Final = 50
"""Statements of a manifest in one document, and signed in one turn of the loop: 0.2 ms each on a Raspberry Pi 3."""

STATEMENTS_KEPT_MAX: Final = 50_000
"""Statements of one connector that wait in the store for the peer, some 300 bytes each: 100 addresses for three weeks.
Beyond it the hour stays open, so that the next statements are of many hours. One closing may go beyond it."""

CLOCK_RANGES_A_DOCUMENT: Final = 500
"""Ranges of messages with a wrong clock in one document: some 50 KiB of JSON."""

CLOCK_RANGES_KEPT_MAX: Final = 50_000
"""Such ranges of one connector that wait in the store for the clock to be right, or for the peer, some 60 bytes each:
100 addresses and 500 starts without a time service. Beyond it one stretch is all there is until the peer has taken
some; how far the clock was off in it is not told. The end of one stretch may go beyond it."""

CLOCK_KNOWN_EVERY_S: Final = 3_600.0
"""How often a right clock is written down: after a power cut, what a wrong clock stamps is known to be later."""

USER_PROPERTIES_MAX: Final = 1_024
"""Properties of one MQTT packet that may be repeated (User Property), each some 2 us of the loop's time to check."""

TOPIC_LEVELS_MAX: Final = 128
"""Levels of a topic name or filter; matching costs a step a level."""
