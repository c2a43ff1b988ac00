"""Limits that gateway and hub share, each with its unit and reason: above all the sizes of messages and batches.

A writer of batches keeps within them, so that a hub never refuses what a gateway has acknowledged. A reader checks them
before it expands anything.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20

DEPTH_MAX: Final = 32
"""Nested lists, maps, arrays and described types of one AMQP value; a peer's nesting must not exhaust our stack."""

VALUES_MAX: Final = 4_096
"""Values within one AMQP value that is decoded, nested ones counted too: an empty list is one byte on the wire and 64
in memory, and decoding it and writing it as JSON takes a microsecond on a PC, four on a Pi."""

HEADER_VALUES_MAX: Final = 128
"""Values within a header, properties or message annotations, which are decoded for each incoming message: the first
two have 5 and 13 fields, and senders write a handful of annotations."""

FIXED_ITEMS_A_VALUE: Final = 8
"""Items of an array of numbers that count as one value: they are decoded together, some 20 ns each."""

SECTIONS_MAX: Final = 1_024
"""Sections of one AMQP message: only data and sequence sections repeat, and few senders use more than one of them."""

ANNOTATIONS_MAX: Final = 1_024
"""Pairs of a message's annotations, or of its body, that are searched for entries to change; peers send a handful. A
message with more is left unchanged."""

JSON_BYTES_MAX: Final = MIB
"""Encoded size of an AMQP list, map or array that is translated into JSON text, which may be six times as long and is
written in one turn of the loop; a larger one leaves unchanged."""

BATCH_MESSAGES_MAX: Final = 1 << 15
"""Messages in one batch: eight times as many as an uplink sends in one; decoding takes 20 ms of the loop."""

BATCH_RANGES_MAX: Final = BATCH_MESSAGES_MAX
"""Ranges in one batch; at worst each message is one."""

BATCH_NAME_BYTES_MAX: Final = 256
"""UTF-8 bytes of a batch's address space, and of its epoch, which is written out with each message."""

BATCH_ENDS_MAX: Final = 8_192
"""Logs of a gateway's store with their end in a batch; an uplink's batch has at most 4 096 messages."""

BATCH_TABLE_BYTES_MAX: Final = 16 * MIB
"""Bytes of a batch's range table before compression."""

BATCH_COLUMNS_BYTES_MAX: Final = 32 * MIB
"""Bytes of a batch's columns before compression: bounds what a decompression bomb can make a reader allocate. Twice the
largest message that a gateway takes."""

BATCH_EXPANDED_BYTES_MAX: Final = 64 * MIB
"""Bytes of a batch's messages with the address, device and properties of each written out, as in rows; the batch has
them once for many messages. A gateway's batches expand to `UPLINK_BATCH_BYTES`, or to one large message."""

MESSAGE_OVERHEAD_BYTES: Final = 64
"""Bytes that a held message costs in addition to its content; bounds the empty messages in an uplink's batch."""

HELD_MESSAGE_BYTES: Final = 120
"""Bytes that a message of a decoded batch costs in addition to its content: its share of the columns, as Python
objects."""

HELD_RANGE_BYTES: Final = 400
"""Bytes that a range of a decoded batch costs, with its address as a separate object."""

UPLINK_BATCH_BYTES: Final = 256 << 10
"""An uplink cuts its batches at this expanded size; one larger message is a batch of its own."""

UPLINK_WINDOW_BYTES: Final = 16 * MIB
"""Bodies, properties, addresses and overhead that an uplink's backlog takes before the hub has settled them. With a
hub that lands once a second this is also the most that is sent in a second: 100 000 messages of 100 bytes."""

UPLINK_LIVE_WINDOW_BYTES: Final = 8 * MIB
"""Window of the live lane: enough for 50 000 readings a second at a hub that lands once a second."""

DIALED_UNREAD_BYTES_MAX: Final = 64 * MIB
"""Bytes that a dialed peer may leave unread in our send buffer: both windows of an uplink, and one message of maximum
size at the end of each. A peer that leaves more unread makes us answer without reading: its connection ends."""

BACKLOG_QUEUE_S: Final = 0.1
"""Longest queueing delay that a backlog may add in the socket, in addition to the round trip: live batches wait behind
it. One batch of a backlog takes no longer either."""

BACKLOG_POLL_S: Final = 0.02
"""Interval at which a backlog checks whether the socket has room."""

BACKLOG_UNSENT_BYTES_MIN: Final = 8 << 10
"""A backlog may always send while fewer bytes than this are unsent in the socket, also at the start of a connection."""

BACKLOG_UNSENT_BYTES_MAX: Final = 4 * MIB
"""A backlog sends nothing while more bytes than this are unsent in the socket: 0.03 s at 1 Gbit/s."""

LIVE_CREDIT_KEPT: Final = 8
"""Deliveries of the peer's credit (at most a quarter of it) that a backlog leaves to the live lane: two seconds of live
batches. Of a credit of two or three it leaves one, and of one none."""

LIVE_GATHER_S: Final = 0.2
"""Shortest time between two batches of the live lane that are not full. With the time in the store and in the socket, a
reading leaves within 250 ms, together with those of other devices; after a pause it leaves at once."""

LIVE_GATHER_LAST_S: Final = 1.0
"""The same time when only one batch of credit is left and other batches are unsettled: about as often as a hub lands. A
hub with thousands of gateways gives each little credit, as most of its cost is per batch."""

LIVE_BATCHES_UNDELAYED: Final = 32
"""Number of unsettled batches of a lane above which only full ones leave: six seconds of the live lane."""

STATUS_BYTES_MAX: Final = 64 << 10
"""JSON text of a status: a report has a few hundred bytes."""

LEDGER_BYTES_MAX: Final = 8 * MIB
"""JSON text of a ledger document: 10 000 ranges have 2 MiB, the lineage of a store of 10 000 logs 6 MiB. As Python
objects it is up to twenty times as large."""

DESIRED_BYTES_MAX: Final = 512 << 10
"""JSON text of a configuration from the hub: 2 000 addresses have 300 KiB. A gateway keeps two, a hub some for each."""

DESIRED_REPORT_BYTES_MAX: Final = 64 << 10
"""JSON text of a gateway's configuration report: some hundred bytes, and the names of overridden resources."""

DEVICE_PAGE_BYTES_MAX: Final = 256 << 10
"""JSON text of a page of devices: 250 devices with a password each, or two with the most credentials. A slow link
takes it in seconds, and a power cut costs one."""

DEVICE_CURSOR_BYTES_MAX: Final = 48 << 10
"""JSON text of a cursor of devices: 100 tenants with names of 255 characters, and 32 labels."""

AUTH_ID_CHARACTERS_MAX: Final = 512
"""Characters in an authentication identifier of a device, and in the subject of an authority: an index of PostgreSQL
takes 2.7 KB of an entry."""

MANIFEST_BYTES_MAX: Final = MIB
"""JSON text of a manifest document: 50 statements have about 30 KiB, with addresses of 255 characters 45 KiB."""

OUTBOX_WINDOW_BYTES: Final = 16 * MIB
"""Unsettled bytes of all outgoing forwarders of one connector, divided evenly between them."""

OUTLET_WINDOW_BYTES_MIN: Final = 256 << 10
"""Smallest share of one forwarder: a run of small messages from the store."""

INBOX_WINDOW: Final = 500
"""Unanswered messages that the peer of one incoming forwarder may have sent: some commits' worth."""

INBOX_BYTES_MAX: Final = 8 * MIB
"""Bytes that one incoming forwarder holds while the store is full; beyond it no credit is given. Messages that are on
the way then add at most `INBOX_WINDOW` messages."""

LEAVE_TIMEOUT_S: Final = 2.0
"""Time that a closing connection waits until the messages its incoming forwarders took are on disk and answered: a
hundred commits of a good card, or one of a card that stalls. The peer sends the unanswered ones again."""

INBOX_NAMES_MAX: Final = 40_960
"""Message names that an incoming forwarder remembers, on disk too: more than a killed RabbitMQ sends again, as it
persists up to 32 768 acknowledgements late. About 200 bytes of memory each, and 16 on disk."""

SENDERS_UNSETTLED_MAX: Final = 2_048
"""Unsettled messages of a connector at an AMQP peer: at most this many are sent twice when the connection breaks."""

SENDER_LINKS_MAX: Final = 128
"""Addresses of a peer that a connector has a link to at a time; brokers take 255 in a session. The least recently used
link makes room for another."""

SENDERS_WAITING_BYTES_MAX: Final = 4 * MIB
"""Bytes that a connector takes from its forwarders before there is credit for them: another address may have credit."""

COMMAND_PAYLOAD_BYTES_MAX: Final = 64 << 10
"""Payload of one command: a device with 256 KiB of memory can take it; firmware is fetched from a URL."""

COMMAND_NAME_CHARACTERS_MAX: Final = 255
"""Name of a command: a level of an MQTT topic in Hono's device API, and a column of the hub's registry."""

DEVICE_CHARACTERS_MAX: Final = 255
"""Name of a device that gets commands, and a content type: columns of the hub's registry."""

COMMAND_TTL_S_MAX: Final = 30 * 86_400.0
"""Longest time to live of a command: AMQP counts it in milliseconds in 32 bits, which is 49 days."""

PROXY_ANSWER_BYTES_MAX: Final = 16 << 10
"""Bytes of an HTTP proxy's answer to CONNECT: a status line and some fields. With more it is not a proxy."""

RECONNECT_AFTER_S_MAX: Final = 60.0
"""Longest wait in seconds that a hub may ask for in its close: a hub that stops spreads its gateways over a minute."""

PREFERRED_ENDPOINT_AGAIN_S: Final = 900.0
"""Seconds between attempts at a peer's first endpoint while a later one works. An attempt without an answer takes 10 s,
so reconnects lose at most 1 % of the time to it. After a firewall is opened, the first endpoint is used again at the
next reconnect after a quarter of an hour."""

INSTANCE_CHARACTERS_MAX: Final = 64
"""Characters that a hub stores of the name of a gateway's process; our names have 16."""

LOGIN_WAIT_S_MAX: Final = 30.0
"""Seconds that a login may wait for us, in addition to the time its client has: longer than a password waits to be
verified, and than a token issuer takes to send its keys (20 s each), so that the client gets an answer first."""

LINGER_SILENCE_S: Final = 5.0
"""Seconds without a byte before a lingering socket is closed: a slow link sends again within this time."""

LINGER_S: Final = 30.0
"""Longest time in seconds for a peer to read our last bytes and close: a client that sends 12 MB before it reads an
answer needs it at 3 Mbit/s."""

LINGERING_MAX: Final = 1_024
"""Sockets that linger at a time, each a descriptor and some bytes. Beyond it the oldest of the host with the most is
closed at once. They count as open connections but give way to real ones, so a refused client gains no slot."""

RECEIPT_SPANS_MAX: Final = 64
"""Ranges of messages in a gateway's request for statements: the hub looks each up, 10 us, and signs it, 50 us."""

RECEIPT_STATEMENTS_MAX: Final = 128
"""Statements in a hub's answer, 80 KiB: a range with holes needs several. The gateway requests the rest again."""

RECEIPT_DOCUMENT_BYTES_MAX: Final = 512 * 1024
"""Bytes of a request for statements, of its answer and of a receipt: the longest addresses have 64 KiB each."""

RECEIPT_CORRELATION_BYTES_MAX: Final = 256
"""Bytes of the correlation data of a message that wants a receipt: the gateway stores them until the receipt is out."""

RECEIPT_REQUESTS_UNSETTLED_MAX: Final = 2
"""Requests for statements that a gateway may have in flight; it sends the next one after the answer."""
