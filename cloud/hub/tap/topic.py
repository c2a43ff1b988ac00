"""Topic of a Kafka cluster that a tap passes commits on to: each in one transaction, together with its position.

The position is an offset of a consumer group that is named after the lake, and a part of the transaction. So records
and position cannot differ, whatever ends when. The transactional id is named after the lake too: brokers let only the
newest producer of that id write, which ends what a replaced hub still has under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalOperation, KafkaError, MessageSizeTooLargeError, ProducerFenced, for_code
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from bridge.client_attempt import ConnectorError
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.kafka.producer import end_producer
from bridge.connectors.kafka.reasons import describe_error
from bridge.connectors.limits import CONNECT_TIMEOUT_S, KAFKA_ANSWER_TIMEOUT_S, KAFKA_CLOSE_TIMEOUT_S, KAFKA_LINGER_MS
from bridge.connectors.settings import ClientIdentity, KafkaSettings
from bridge.dialer import PeerEndpoint
from cloud.hub.registry.taps import TapName
from cloud.hub.tap.landed_log import TapPosition
from cloud.hub.tap.limits import BATCH_BYTES, BYTES_AT_ONCE, COMMIT_TIMEOUT_S, TRANSACTION_TIMEOUT_S
from cloud.hub.tap.message import TappedMessage
from cloud.hub.tap.topic_settings import TopicSettings
from edge.broker.security.peer_tls import peer_context
from edge.output.logs import describe_error as describe_internal_error

CLIENT_ID: Final = "waypost-tap"


class TopicFault(Exception):
    """Nothing can be passed on to the topic. The message says why, and what to do."""


class TopicTaken(Exception):
    """Another hub passes on to the topic."""


class TapTopic(Protocol):
    """Topic as the tap needs it. Each method raises `TopicFault`; then `close` it. After `TopicTaken` too."""

    async def open(self) -> TapPosition | None:
        """Connect, end what an earlier producer has under way, and return its last position; None without one."""
        ...

    async def begin(self) -> None:
        """Begin a transaction."""
        ...

    async def send(self, messages: Sequence[TappedMessage]) -> None:
        """Send records of a transaction, in order. On return the brokers have them."""
        ...

    async def commit(self, position: TapPosition) -> None:
        """End a transaction: consumers get its records, and `open` returns this position."""
        ...

    async def close(self) -> None:
        """Close the connections without waiting for brokers. Idempotent."""
        ...


class KafkaTopic:
    """Topic of a real cluster, implements `TapTopic`."""

    def __init__(self, settings: TopicSettings, name: TapName) -> None:
        self._settings = settings
        self._id = f"{CLIENT_ID}.{name.lake}.{name.table_name}"
        """Transactional id."""
        self._group = f"{self._id}.{name.topic}"
        self._partition = TopicPartition(name.topic, 0)
        self._producer: AIOKafkaProducer | None = None
        self._options: dict[str, Any] = {}

    async def open(self) -> TapPosition | None:
        self._options = await connect(self._settings)
        with _faults(CONNECT_TIMEOUT_S):
            await self._open_producer()  # it ends earlier ones before the position is read
            return await self._position()

    async def begin(self) -> None:
        with _faults():
            await self._opened().begin_transaction()

    async def send(self, messages: Sequence[TappedMessage]) -> None:
        for part in _parts(messages):
            with _faults():
                async with asyncio.timeout(KAFKA_ANSWER_TIMEOUT_S):
                    await self._send(part)

    async def _send(self, messages: Sequence[TappedMessage]) -> None:
        producer, answers = self._opened(), list[asyncio.Future[Any]]()
        try:
            for each in messages:
                sent = producer.send(
                    *(self._settings.topic, each.value),
                    key=each.key,
                    headers=each.headers,
                    timestamp_ms=each.timestamp_ms,
                )
                answers.append(await sent)
            await asyncio.gather(*answers)
        finally:
            for answer in answers:  # the first error is the reason, and the others follow from it
                answer.cancelled() or (answer.done() and answer.exception())

    async def commit(self, position: TapPosition) -> None:
        offset = {self._partition: OffsetAndMetadata(position.version, position.digest)}
        with _faults():
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await self._opened().send_offsets_to_transaction(offset, self._group)
                await self._opened().commit_transaction()

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await end_producer(producer)

    def _opened(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise TopicFault("the connection to Kafka is closed")
        return self._producer

    async def _open_producer(self) -> None:
        self._producer = AIOKafkaProducer(
            **self._options,
            acks="all",
            transactional_id=self._id,
            transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1_000),
            linger_ms=KAFKA_LINGER_MS,
            max_batch_size=min(BATCH_BYTES, self._settings.message_bytes_max),
            max_request_size=self._settings.message_bytes_max,
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await self._producer.start()
            await self._producer.partitions_for(self._settings.topic)

    async def _position(self) -> TapPosition | None:
        admin = AIOKafkaAdminClient(**self._options)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await admin.start()
                found = await admin.list_consumer_group_offsets(self._group, partitions=[self._partition])
        finally:
            await _end_admin(admin)
        position = found.get(self._partition)
        return (
            TapPosition(position.offset, position.metadata) if position is not None and position.offset >= 0 else None
        )


async def connect(settings: TopicSettings) -> dict[str, Any]:
    """Connect to the first broker that answers; return the options of clients. Raises `TopicFault`."""
    endpoints = [PeerEndpoint(host, port, settings.tls is not None, "kafka") for host, port in settings.brokers]
    identity = ClientIdentity(CLIENT_ID, settings.user, settings.password)
    tls = partial(peer_context, settings.tls) if settings.tls is not None else None
    cluster = Cluster(identity, KafkaSettings(mechanism=settings.mechanism), endpoints, tls)
    reasons: list[str] = []
    for endpoint in endpoints:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await cluster.connect(endpoint)
        except TimeoutError:
            reasons.append(f"{endpoint.authority}: {_no_answer(CONNECT_TIMEOUT_S)}")
        except (ConnectorError, OSError) as error:
            reasons.append(f"{endpoint.authority}: {error}")
    raise TopicFault("; ".join(reasons))


async def count_partitions(settings: TopicSettings) -> int:
    """Return the number of partitions of a topic. Raises `TopicFault`."""
    try:
        with _faults(CONNECT_TIMEOUT_S):
            return await _count_partitions(settings)
    finally:
        for _ in range(2):
            await asyncio.sleep(0)  # closed connections end before the loop may


async def _count_partitions(settings: TopicSettings) -> int:
    admin = AIOKafkaAdminClient(**await connect(settings))
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await admin.start()
            found = (await admin.describe_topics([settings.topic]))[0]
    finally:
        await _end_admin(admin)
    if found["error_code"]:
        raise for_code(found["error_code"])
    return len(found["partitions"])


async def _end_admin(admin: AIOKafkaAdminClient) -> None:
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(KAFKA_CLOSE_TIMEOUT_S):
            await admin.close()


@contextlib.contextmanager
def _faults(seconds: float = KAFKA_ANSWER_TIMEOUT_S) -> Iterator[None]:
    """Translate errors of the library. `seconds`: bound of the wait."""
    try:
        yield
    except ProducerFenced:
        raise TopicTaken from None
    except TimeoutError:
        raise TopicFault(_no_answer(seconds)) from None
    except (KafkaError, OSError) as error:
        raise _fault(error) from None
    except (IllegalOperation, ValueError) as error:
        raise TopicFault(f"the Kafka client has failed: {describe_internal_error(error)}") from error


def _fault(error: Exception) -> TopicFault:
    if isinstance(error, MessageSizeTooLargeError):
        return TopicFault(
            "a record is larger than the topic accepts: raise its max.message.bytes, or reduce kafka.maxMessageBytes"
        )
    return TopicFault(describe_error(error) if isinstance(error, KafkaError) else str(error))


def _no_answer(seconds: float) -> str:
    return f"no answer from the brokers for {seconds:g} s"


def _parts(messages: Iterable[TappedMessage]) -> Iterator[Sequence[TappedMessage]]:
    """Divide records into parts of about `BYTES_AT_ONCE`."""
    part: list[TappedMessage] = []
    size = 0
    for each in messages:
        part.append(each)
        size += each.size
        if size >= BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
