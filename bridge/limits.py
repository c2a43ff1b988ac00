"""What one message and one batch may expand to: the bounds gateway and hub share, each with unit and reason.

Whoever makes a batch keeps within them, so that a hub never refuses what a gateway has acknowledged; whoever reads one
checks them before anything is expanded.
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
"""The same for a header, properties or message annotations, which are looked at when a message comes in: the first two
have 5 and 13 fields, and senders write a handful of annotations."""

FIXED_ITEMS_A_VALUE: Final = 8
"""Items of an array of numbers that count as one value: they are decoded together, some 20 ns each."""

SECTIONS_MAX: Final = 1_024
"""Sections of one AMQP message: only data and sequence sections repeat, and few senders use more than one of them."""

ANNOTATIONS_MAX: Final = 1_024
"""Pairs of a message's annotations, or of its body, that are looked through where some of them change; peers send a
handful. Of a message with more nothing changes."""

JSON_BYTES_MAX: Final = MIB
"""Encoded size of an AMQP list, map or array that is translated into JSON text, which may be six times as long and must
be made in one turn of the loop; a larger one goes out as the message it is."""

BATCH_MESSAGES_MAX: Final = 1 << 15
"""Messages in one batch: eight times what an uplink puts into one; 20 ms of a loop's time to decode."""

BATCH_RANGES_MAX: Final = BATCH_MESSAGES_MAX
"""Ranges in one batch; at worst each message is one."""

BATCH_NAME_BYTES_MAX: Final = 256
"""UTF-8 bytes of a batch's address space, and of its epoch, which is written out with each message."""

BATCH_ENDS_MAX: Final = 8_192
"""Logs of a gateway's store of which a batch says how far they reach; an uplink's batch has 4 096 messages at most."""

BATCH_TABLE_BYTES_MAX: Final = 16 * MIB
"""Bytes of a batch's range table before compression."""

BATCH_COLUMNS_BYTES_MAX: Final = 32 * MIB
"""Bytes of a batch's columns before compression: bounds what a compressed bomb can make a reader allocate. Twice the
largest message a gateway takes."""

BATCH_EXPANDED_BYTES_MAX: Final = 64 * MIB
"""Bytes of a batch's messages with each one's address, device and properties written out, as rows have them: the batch
says them once for many. A gateway's batches expand to `UPLINK_BATCH_BYTES`, or to one large message."""

MESSAGE_OVERHEAD_BYTES: Final = 64
"""What a message costs beside its bytes while it is held; bounds how many empty ones fit into an uplink's batch."""

HELD_MESSAGE_BYTES: Final = 120
"""What a decoded message costs beside its bytes where a batch waits: its share of the columns, as Python objects."""

HELD_RANGE_BYTES: Final = 400
"""The same for a range, with its address as an object of its own."""

UPLINK_BATCH_BYTES: Final = 256 << 10
"""An uplink cuts its batches at this expanded size; one larger message is a batch of its own."""

UPLINK_WINDOW_BYTES: Final = 16 * MIB
"""Bodies, properties, addresses and overhead an uplink takes from the router before the hub has settled them. With a
hub that lands once a second this is also the most that crosses in a second: 100 000 messages of 100 bytes."""

UPLINK_LIVE_WINDOW_BYTES: Final = 8 * MIB
"""The same of the live lane: what a hub that lands once a second takes of 50 000 readings a second."""

DIALED_UNREAD_BYTES_MAX: Final = 64 * MIB
"""What a peer that we dialed may leave unread in our buffer: both windows of an uplink, and a message of the maximum
that crosses the end of each. Whoever leaves more makes us answer, and reads nothing: its connection ends."""

BACKLOG_QUEUE_S: Final = 0.1
"""So long, beyond the way to the peer, what a backlog has put into the socket takes to leave: a live batch waits behind
it. A batch of a backlog is no longer than that either."""

BACKLOG_LOOK_S: Final = 0.02
"""How soon a backlog looks again whether the socket has room."""

BACKLOG_UNSENT_BYTES_MIN: Final = 8 << 10
"""While less than this has not left the socket a backlog may send, however slow the link is; so it begins, too."""

BACKLOG_UNSENT_BYTES_MAX: Final = 4 * MIB
"""With more than this in the socket a backlog sends nothing, however fast the link is: 0.03 s at 1 Gbit/s."""

LIVE_CREDIT_KEPT: Final = 8
"""Deliveries of the peer's credit, or a quarter of it, that a backlog leaves to the live lane: two seconds of it. Of
two or three it is one, and of one none."""

LIVE_GATHER_S: Final = 0.2
"""Between two batches of the live lane that are not full: with the way into the store and out of the socket a reading
leaves within 250 ms, with those of other devices that came meanwhile; after a pause it leaves at once."""

LIVE_GATHER_LAST_S: Final = 1.0
"""The same where the peer has given credit for one batch more and owes answers: about as often as a hub lands. A hub
with thousands of gateways gives each little credit: what a batch costs it whatever is in it is most of the cost."""

LIVE_BATCHES_UNDELAYED: Final = 32
"""Unsettled batches of a lane beyond which only full ones leave: six seconds of the live lane."""

STATUS_BYTES_MAX: Final = 64 << 10
"""JSON text of a status: a report is a few hundred bytes."""

LEDGER_BYTES_MAX: Final = 8 * MIB
"""JSON text of a ledger document: 10 000 ranges are 2 MiB, the lineage of a store of 10 000 logs 6 MiB. As
objects it is up to twenty times as large."""

DESIRED_BYTES_MAX: Final = 512 << 10
"""JSON text of a configuration from the hub: 2 000 addresses are 300 KiB. A gateway keeps two, a hub some for each."""

DESIRED_REPORT_BYTES_MAX: Final = 64 << 10
"""JSON text of what a gateway says of it: some hundred bytes, and the names of resources kept there."""

MANIFEST_BYTES_MAX: Final = MIB
"""JSON text of a manifest document: 50 statements are some 30 KiB, with addresses of 255 characters 45 KiB."""

OUTBOX_WINDOW_BYTES: Final = 16 * MIB
"""The same for the forwarders of one connector together, divided evenly between them."""

OUTLET_WINDOW_BYTES_MIN: Final = 256 << 10
"""What each of many forwarders of a connector may take all the same: a run of small messages from the store."""

INBOX_WINDOW: Final = 500
"""Messages of one incoming forwarder that its peer may have sent and has no answer for: some commits' worth."""

INBOX_BYTES_MAX: Final = 8 * MIB
"""Bytes of what one incoming forwarder holds while there is no room in the store; no credit is given beyond it. With
the messages that are on their way then it is at most `INBOX_WINDOW` messages more."""

LEAVE_TIMEOUT_S: Final = 2.0
"""How long a connection that ends in good order waits until what its incoming forwarders took is on disk and answered:
a hundred commits of a good card, and one of a card that stalls. What has no answer by then comes again."""

INBOX_NAMES_MAX: Final = 40_960
"""Names of messages an incoming forwarder remembers, on disk too: more than a killed RabbitMQ sends again, which
writes down up to 32 768 of the answers it got with some delay. Some 200 bytes of memory each, and 16 on disk."""

SENDERS_UNSETTLED_MAX: Final = 2_048
"""Messages a connector has sent to an AMQP peer that are not settled: so many at most go twice over a break."""

SENDER_LINKS_MAX: Final = 128
"""Addresses of a peer that a connector has a link to at a time; brokers take 255 in a session. The one unused longest
makes room for another."""

SENDERS_WAITING_BYTES_MAX: Final = 4 * MIB
"""What a connector takes from its forwarders before there is credit for it: another address may have some."""

COMMAND_PAYLOAD_BYTES_MAX: Final = 64 << 10
"""Payload of one command: a device with 256 KiB of memory is to take it; firmware comes by a URL."""

COMMAND_NAME_CHARACTERS_MAX: Final = 255
"""Name of a command: a level of an MQTT topic in Hono's device API, and a column of the hub's registry."""

DEVICE_CHARACTERS_MAX: Final = 255
"""Name of a device that gets commands, and a content type: columns of the hub's registry."""

COMMAND_TTL_S_MAX: Final = 30 * 86_400.0
"""Longest time to live of a command: AMQP counts it in milliseconds in 32 bits, which is 49 days."""

PROXY_ANSWER_BYTES_MAX: Final = 16 << 10
"""Of an HTTP proxy's answer to CONNECT: a status and some fields; whoever says more is none."""

PREFERRED_ENDPOINT_AGAIN_S: Final = 900.0
"""Between two attempts at a peer's first endpoint while links come from a further one: where nobody answers at the
first, an attempt takes 10 s, so that reconnects lose 1 % of the time to it at most; and who opens a firewall sees the
first used again at the next reconnect after a quarter of an hour."""

INSTANCE_CHARACTERS_MAX: Final = 64
"""Characters that a hub keeps of the name of a gateway's run; our names have 16."""

LOGIN_WAIT_S_MAX: Final = 30.0
"""Seconds that a login may wait for us, in addition to the time its client has: longer than a password waits to be
verified, and than a token issuer takes to send its keys (20 s each), so that the client gets an answer first."""

LINGER_SILENCE_S: Final = 5.0
"""Seconds without a byte before a lingering socket is closed: a slow link sends again within this time."""

LINGER_S: Final = 30.0
"""Seconds in all that a peer has to read our last words and close: a client that sends 12 MB before it reads an answer
needs them at 3 Mbit/s."""

LINGERING_MAX: Final = 1_024
"""Sockets that linger at a time, each a descriptor and some bytes; beyond it the oldest of the host with most is closed
at once. They count among the connections that may be open, and give way to those: being refused wins no places."""
