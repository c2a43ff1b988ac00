"""Limits and timeouts of connectors, each with its unit and reason."""

from __future__ import annotations

from typing import Final

from bridge.limits import MIB

CONNECT_TIMEOUT_S: Final = 8.0
"""Seconds from the attempt to the peer's first answer, including TLS; the shell has a limit of 10 s."""

READ_BYTES: Final = 64 << 10
"""Bytes read from a peer, or taken from the forwarders for it, at once."""

AMQP_TOKEN_LIFETIME_S: Final = 3600.0
"""Default lifetime in seconds of a token for an AMQP peer: a stolen token is valid for as long."""

MQTT_PACKET_BYTES_MAX: Final = 16 * MIB + 64 * 1024 + 16
"""Largest packet of a remote MQTT broker: the largest message that a gateway takes, with its topic. A larger PUBLISH is
rejected, and its payload is skipped."""

MQTT_EARLY_BYTES_MAX: Final = 2 * MQTT_PACKET_BYTES_MAX
"""Messages of a stored session that arrive before the broker has answered our subscription. Brokers send some dozens of
them early (Mosquitto 20, AWS IoT Core 100 of 128 KiB); they wait for the answer."""

MQTT_PACKET_COST_BYTES: Final = 512
"""Memory of one of them in addition to its bytes."""

MQTT_IN_FLIGHT_MAX: Final = 1_000
"""Default limit of PUBLISH packets that a remote MQTT broker has not acknowledged: 20 000 messages a second with a
round trip of 50 ms. AWS IoT Core takes 100."""

MQTT_KEEP_ALIVE_S: Final = 30.0
"""Default Keep Alive towards a remote MQTT broker (section 3.1.2.10); a broker that is silent for as long is lost."""

HTTP_BATCH_MESSAGES_MAX: Final = 500
"""Default limit of messages in one request, as common collectors take them."""

HTTP_BATCH_BYTES_MAX: Final = 256 << 10
"""Default limit in bytes of bodies and addresses in one request; Base64 adds a third. A larger message has its own
request."""

HTTP_BATCH_AGE_S: Final = 0.25
"""Default time in seconds that the first message of a request waits for others."""

HTTP_ANSWER_TIMEOUT_S: Final = 30.0
"""Seconds from a request to the end of its answer."""

HTTP_ANSWER_BYTES_MAX: Final = 1024
"""Bytes read of an answer's body: one line for people."""

HTTP_RETRY_AFTER_S_MAX: Final = 3600.0
"""Longest wait that a server can request, so that a wrong clock or a mistake does not stop the forwarding."""

KAFKA_IN_FLIGHT_MAX: Final = 10_000
"""Unacknowledged messages in Kafka's client: some MB of its buffers, a second of a fast gateway."""

KAFKA_MESSAGE_BYTES_MAX: Final = 1_048_576
"""Largest record with its headers: the default of Kafka's producer and brokers (``message.max.bytes``)."""

KAFKA_LINGER_MS: Final = 5
"""Time that a record waits for others of its partition."""

KAFKA_ANSWER_TIMEOUT_S: Final = 30.0
"""Seconds without any answer of the brokers after which the connection counts as lost."""

KAFKA_CLOSE_TIMEOUT_S: Final = 2.0
"""Seconds to wait for answers to sent records when a connection closes."""

KAFKA_FETCH_BYTES_MAX: Final = 1 << 20
"""Bytes of one fetch from a broker; a larger record is fetched alone."""

KAFKA_RECORDS_MAX: Final = 500
"""Records taken from the library's buffer at once: the room of a forwarder."""

KAFKA_COMMIT_INTERVAL_S: Final = 0.5
"""Interval in seconds of offset commits for records that are on disk here."""

KAFKA_UNCOMMITTED_MAX: Final = 16_384
"""Maximum records with uncommitted offsets. They come again after a kill, and are detected by
`bridge.limits.INBOX_NAMES_MAX` remembered names."""

KAFKA_REVOKED_TIMEOUT_S: Final = 4.0
"""Seconds that a rebalance of the group waits for records on their way to the disk; the group waits 10 s."""

KAFKA_HEADER_BYTES_MAX: Final = 16 << 10
"""Bytes of names and values of a record's headers that are kept: devices get them as user properties of MQTT."""
