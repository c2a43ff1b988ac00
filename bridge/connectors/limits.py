"""What one connector holds, sends together and waits for, each with unit and reason."""

from __future__ import annotations

from typing import Final

from bridge.limits import MIB

CONNECT_TIMEOUT_S: Final = 8.0
"""From the attempt to the peer's first answer, TLS included; the shell's own limit comes after 10 s."""

READ_BYTES: Final = 64 << 10
"""What is read of a peer, or taken from the forwarders for it, at once."""

AMQP_TOKEN_LIFETIME_S: Final = 3600.0
"""Of a token for an AMQP peer, unless the connector says otherwise: whoever gets hold of one has it as long."""

MQTT_PACKET_BYTES_MAX: Final = 16 * MIB + 64 * 1024 + 16
"""One packet of a remote MQTT broker: the largest message a gateway takes, with its topic. A larger PUBLISH is
rejected: its payload is dropped as it comes."""

MQTT_EARLY_BYTES_MAX: Final = 2 * MQTT_PACKET_BYTES_MAX
"""Messages of a kept session that come before the broker has answered our subscription: brokers send some dozen of them
ahead (Mosquitto 20, AWS IoT Core 100 of 128 KiB), which wait until it has."""

MQTT_PACKET_COST_BYTES: Final = 512
"""What one of them costs beside its bytes."""

MQTT_IN_FLIGHT_MAX: Final = 1_000
"""PUBLISH packets a remote MQTT broker has not acknowledged, unless the connector says otherwise: 20 000 messages a
second at 50 ms round trip. AWS IoT Core takes 100."""

MQTT_KEEP_ALIVE_S: Final = 30.0
"""Keep Alive towards a remote MQTT broker (section 3.1.2.10); one that is silent for as long is gone."""

HTTP_BATCH_MESSAGES_MAX: Final = 500
"""Messages in one request, unless the connector says otherwise: what others' collectors take at once."""

HTTP_BATCH_BYTES_MAX: Final = 256 << 10
"""Bytes of bodies and addresses in one request, unless the connector says otherwise; Base64 makes them a third more.
One larger message is a request of its own."""

HTTP_BATCH_AGE_S: Final = 0.25
"""How long the first message of a request waits for others, unless the connector says otherwise."""

HTTP_ANSWER_TIMEOUT_S: Final = 30.0
"""From a request to the whole of its answer."""

HTTP_ANSWER_BYTES_MAX: Final = 1024
"""What is read of an answer's body: a line for a person."""

HTTP_RETRY_AFTER_S_MAX: Final = 3600.0
"""The longest wait a server can ask for: a wrong clock, or a mistake, must not end the forwarding."""

KAFKA_IN_FLIGHT_MAX: Final = 10_000
"""Messages given to Kafka's client and not acknowledged: some MB of its buffers, a second of a fast gateway's."""

KAFKA_MESSAGE_BYTES_MAX: Final = 1_048_576
"""One record with its headers, as Kafka's own producer and brokers have it (``message.max.bytes``)."""

KAFKA_LINGER_MS: Final = 5
"""How long a record waits for others of its partition."""

KAFKA_ANSWER_TIMEOUT_S: Final = 30.0
"""How long the brokers may leave everything unanswered before the connection counts as lost."""

KAFKA_CLOSE_TIMEOUT_S: Final = 2.0
"""How long records under way have to be answered when a connection ends in good order."""

KAFKA_FETCH_BYTES_MAX: Final = 1 << 20
"""What one answer of a broker brings: a larger record comes alone."""

KAFKA_RECORDS_MAX: Final = 500
"""Records taken from the library's buffer at once: what a forwarder has room for."""

KAFKA_COMMIT_INTERVAL_S: Final = 0.5
"""How long what is on disk here waits until the cluster is told, with all that has come there meanwhile."""

KAFKA_UNCOMMITTED_MAX: Final = 16_384
"""Records whose place the cluster has not been told; no more are taken before. They come again after a kill, and
`bridge.limits.INBOX_NAMES_MAX` names are remembered to find them out."""

KAFKA_REVOKED_TIMEOUT_S: Final = 4.0
"""How long a change of the group waits for what is on its way to the disk; the group waits 10 s for its members."""

KAFKA_HEADER_BYTES_MAX: Final = 16 << 10
"""Names and values of a record's headers that cross with it: user properties of MQTT, which devices have to hold."""
