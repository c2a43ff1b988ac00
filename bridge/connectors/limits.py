"""Limits and timeouts of connectors, each with its unit and reason."""

from __future__ import annotations

from typing import Final

from bridge.limits import MIB

CONNECT_TIMEOUT_S: Final = 8.0
"""Seconds from the attempt to the peer's first answer, including TLS; less than the dialer's limit of 10 s."""

READ_BYTES: Final = 64 << 10
"""Bytes read from a peer, or taken from the forwarders for it, at once."""

TOKEN_LIFETIME_S: Final = 3600.0
"""Default lifetime in seconds of a token that we sign for a peer, which bounds the use of a stolen token."""

TOKEN_LIFETIME_S_MIN: Final = 60
"""Shortest lifetime in seconds of such a token: a clock error below a quarter of it does no harm."""

TOKEN_LIFETIME_USED: Final = 0.75
"""Share of a token's lifetime after which an MQTT connection is replaced by one with a new token."""

TOKEN_RENEWAL_TIMEOUT_S: Final = 10.0
"""Seconds that a connection waits for outstanding acknowledgements before it is replaced for a new token; less than the
last quarter of the shortest lifetime of a token (15 s). The lifetime starts before the connection is opened."""

SUSPECT_ENDS: Final = 3
"""Ends of a connection in a row with the same oldest message, after which a service may have ended them for it. Then
messages are sent one by one, and that one is rejected after as many more ends."""

MQTT_PACKET_BYTES_MAX: Final = 16 * MIB + 64 * 1024 + 16
"""Largest packet of a remote MQTT broker: the largest message that a gateway stores, with its topic. A larger PUBLISH
is rejected, and its payload is skipped."""

MQTT_EARLY_BYTES_MAX: Final = 2 * MQTT_PACKET_BYTES_MAX
"""Bytes of stored messages that may arrive before SUBACK and wait for it. Some brokers send a stored session early:
Mosquitto 20 messages, AWS IoT Core 100 of up to 128 KiB."""

MQTT_PACKET_COST_BYTES: Final = 512
"""Memory overhead of a waiting packet."""

MQTT_IN_FLIGHT_MAX: Final = 1_000
"""Default limit of unacknowledged PUBLISH packets to a remote MQTT broker: enough for 20 000 messages a second with a
round trip of 50 ms. AWS IoT Core accepts 100."""

MQTT_KEEP_ALIVE_S: Final = 30.0
"""Default Keep Alive towards a remote MQTT broker (section 3.1.2.10), and limit of the broker's silence."""

IOT_HUB_MESSAGE_BYTES_MAX: Final = 256 << 10
"""Largest message to Azure IoT Hub: the body, the values of its system properties, and the names and values of its
application properties. IoT Hub ends the connection of a device that sends a larger one."""

IOT_HUB_KEEP_ALIVE_S_MAX: Final = 1_177.0
"""Longest Keep Alive that Azure IoT Hub supports: it disconnects after 1.5 times as long, and after 1 767 s at most."""

AWS_IN_FLIGHT_MAX: Final = 100
"""PUBLISH packets without a PUBACK that AWS IoT Core accepts from one client."""

AWS_PAYLOAD_BYTES_MAX: Final = 128 << 10
"""Largest payload of a message to AWS IoT Core."""

AWS_TOPIC_BYTES_MAX: Final = 256
"""Longest topic of AWS IoT Core, in UTF-8 and without the prefix of Basic Ingest."""

AWS_TOPIC_SLASHES_MAX: Final = 7
"""Most slashes in a topic of AWS IoT Core, without the prefix of Basic Ingest."""

AWS_CLIENT_ID_BYTES_MAX: Final = 128
"""Longest client identifier of AWS IoT Core."""

AWS_CONTENT_TYPE_BYTES_MAX: Final = 256
"""Longest content type in a message to AWS IoT Core."""

AWS_CORRELATION_BYTES_MAX: Final = 1_024
"""Most bytes of correlation data in a message to AWS IoT Core; its documents name 1 024 characters for rules."""

IOT_HUB_IDENTIFIER_CHARACTERS_MAX: Final = 128
"""Longest message and correlation identifier of Azure IoT Hub."""

AWS_USER_PROPERTIES_BYTES_MAX: Final = 8 << 10
"""Most bytes of names and values of the user properties of a message to AWS IoT Core."""

AWS_SUBSCRIPTIONS_MAX: Final = 8
"""Most topic filters in one SUBSCRIBE that AWS IoT Core accepts."""

AWS_KEEP_ALIVE_S_MAX: Final = 1_200.0
"""Longest Keep Alive of AWS IoT Core, which uses it for longer ones too."""

AWS_PUBLISHES_PER_S: Final = 80.0
"""Messages a second to AWS IoT Core over one connection. It takes 100 and discards others without a PUBACK; the rest is
for messages that arrive."""

AWS_PUBLISHES_AT_ONCE: Final = 10
"""Messages that leave without a pause: a tenth of a second's quota, so no second has many more."""

AWS_PUBLISH_BYTES_PER_S: Final = 512.0 * 1024
"""Bytes a second that AWS IoT Core takes over one connection."""

AWS_PUBACK_TIMEOUT_S: Final = 30.0
"""Seconds after which a message without a PUBACK counts as discarded by AWS IoT Core, and is sent again."""

AWS_SIGNATURE_LIFETIME_S: Final = 300
"""Lifetime in seconds of a signature for a WebSocket: enough for a slow handshake and a clock that is minutes wrong."""

AWS_WEBSOCKET_LIFETIME_S: Final = 23.0 * 3600
"""Age in seconds at which a WebSocket is replaced; AWS IoT Core ends it after 24 hours."""

HTTP_BATCH_MESSAGES_MAX: Final = 500
"""Default limit of messages in one request; common collectors accept as many."""

HTTP_BATCH_BYTES_MAX: Final = 256 << 10
"""Default limit in bytes of bodies and addresses in one request; Base64 adds a third. A larger message has its own
request."""

HTTP_BATCH_AGE_S: Final = 0.25
"""Default time in seconds that the first message of a request waits for more."""

HTTP_ANSWER_TIMEOUT_S: Final = 30.0
"""Seconds from a request to the end of its answer."""

HTTP_ANSWER_BYTES_MAX: Final = 1024
"""Bytes of a response body that are read, for one line in the log."""

HTTP_RETRY_AFTER_S_MAX: Final = 3600.0
"""Longest wait that a server can request, so that a wrong clock does not stop the forwarding."""

KAFKA_IN_FLIGHT_MAX: Final = 10_000
"""Unacknowledged messages in Kafka's client: a few MB, or one second of a fast gateway."""

KAFKA_MESSAGE_BYTES_MAX: Final = 1_048_576
"""Largest record with its headers: the default of Kafka's producer and brokers (``message.max.bytes``)."""

KAFKA_LINGER_MS: Final = 5
"""Time that a record waits for more records of its partition."""

KAFKA_ANSWER_TIMEOUT_S: Final = 30.0
"""Seconds without any answer of the brokers after which the connection counts as lost."""

KAFKA_CLOSE_TIMEOUT_S: Final = 2.0
"""Seconds to wait for answers to sent records when a connection closes."""

KAFKA_FETCH_BYTES_MAX: Final = 1 << 20
"""Bytes of one fetch from a broker; a larger record is fetched alone."""

KAFKA_RECORDS_MAX: Final = 500
"""Records taken from the library's buffer at once, as many as a forwarder can hold."""

KAFKA_COMMIT_INTERVAL_S: Final = 0.5
"""Interval in seconds between commits of offsets; the records are on this gateway's disk."""

KAFKA_UNCOMMITTED_MAX: Final = 16_384
"""Maximum number of records with uncommitted offsets. After a crash they arrive again, and are detected by their names
(`bridge.limits.INBOX_NAMES_MAX`)."""

KAFKA_REVOKED_TIMEOUT_S: Final = 4.0
"""Seconds that a rebalance waits for records that are being written to disk; the group itself waits 10 s."""

KAFKA_HEADER_BYTES_MAX: Final = 16 << 10
"""Maximum bytes of a record's headers that are kept; devices get them as MQTT user properties."""

KAFKA_TOKEN_LIFETIME_S: Final = 60.0
"""Lifetime in seconds of a token if its endpoint states none (RFC 6749 section 5.1); short, so it is renewed in
time."""

KAFKA_TOKEN_LIFETIME_S_MAX: Final = 86_400.0
"""Longest time in seconds that a token is used, whatever its endpoint states: a client may lose its rights."""

KAFKA_TOKEN_RETRY_S: Final = 10.0
"""Seconds until a failed renewal is tried again while the present token is valid."""

KAFKA_TOKEN_ANSWER_BYTES_MAX: Final = 64 << 10
"""Bytes of a token endpoint's answer that are read; tokens with many roles have some KiB."""

ROUTER_HELLO_S: Final = 0.5
"""Default interval of greetings between neighbours of a router network, some 260 bytes each way with all headers;
`router.helloInterval` sets another one for a metered link."""

ROUTER_HELLO_S_MIN: Final = 0.25
"""Shortest interval of greetings: that of a broker's housekeeping, which sends them."""

ROUTER_HELLO_S_MAX: Final = 60.0
"""Longest interval of greetings. A neighbour that misses three of them is lost."""

ROUTER_COST_MAX: Final = 1_000
"""Largest cost of a link between routers. A path of 128 links stays far below 2^31."""

LORAWAN_PAYLOAD_BYTES_MAX: Final = 242
"""Bytes of the largest downlink (LoRaWAN regional parameters, EU868 at DR4 and up); ChirpStack knows the limit of the
present data rate."""

LORAWAN_WINDOW_S: Final = 0.1
"""Seconds after an uplink in which ChirpStack takes a downlink for its receive window, unless a connector sets another;
the default of `get_downlink_data_delay` of ChirpStack 4."""

LORAWAN_HELD_MAX: Final = 10_000
"""Commands of all devices of one connector that are held for a receive window; further ones wait in their queues."""

LORAWAN_TICK_S: Final = 1.0
"""Seconds between two looks for commands that have expired."""

LORAWAN_QUIET_S: Final = 1.0
"""Seconds after a connection in which no downlink leaves. Events that the broker has kept come first, and one may be
the answer to a command that a killed gateway sends again."""

LORAWAN_TRIES_MAX: Final = 3
"""Times that a confirmed downlink is handed over while its device does not acknowledge it."""

LORAWAN_HANDED_AGAIN_UPLINKS: Final = 3
"""Uplinks without an answer of ChirpStack after which it gets a downlink again; it sends one after each uplink."""

LORAWAN_HANDED_AGAIN_S: Final = 60.0
"""Seconds without an answer of ChirpStack after which it gets a downlink of a device that listens again."""

LORAWAN_HAND_OVERS_MAX: Final = 5
"""Times that ChirpStack gets a downlink without any answer before it is rejected. ChirpStack sends no event when it
cannot queue a downlink, for example of a device that it does not know."""

LORAWAN_ACKNOWLEDGE_UPLINKS: Final = 5
"""Uplinks after `txack` without an `ack` that count as a try; ChirpStack answers at the first one, so it was lost."""

LORAWAN_ACKNOWLEDGE_S: Final = 300.0
"""Seconds after `txack` without an `ack` of a device that listens that count as a try; profiles of devices have
timeouts of some seconds."""

LORAWAN_EXPIRY_GRACE_S: Final = 10.0
"""Seconds after its end in which a downlink that ChirpStack has does not expire: its `txack` may be on its way."""

LORAWAN_EXPIRY_CHECK_S: Final = 60.0
"""Longest time in seconds between two looks whether a command has expired; the clock may be set in between."""

LORAWAN_HELD_PER_DEVICE_MAX: Final = 100
"""Commands that wait for one device; further ones are rejected, so that a dead device does not stop all others."""

LORAWAN_REMEMBERED_MAX: Final = LORAWAN_HELD_MAX
"""Downlinks of which the progress is remembered until the command comes again, after a break."""

LORAWAN_DEVICES_MAX: Final = 2 * LORAWAN_HELD_MAX
"""Devices that are known by their last event; a forgotten one of class B or C gets commands after its next event."""
