"""Producer of a Kafka cluster: idempotent, acks=all; the brokers' answer to a record settles its message.

It is created with the first message to send, because a connector that only receives may have no write permission. It
retries unanswered requests itself, in order and without duplicates. If it fails, or gets no answer for long, it is
discarded and the forwarders send unanswered messages again. Messages that the cluster had already written are then
stored twice, with the same name in their headers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from bridge.client_attempt import ConnectorError, ConnectorTraffic
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.kafka.reasons import describe_error
from bridge.connectors.kafka.record import KafkaRecord, SchemaHeaders, record
from bridge.connectors.kafka.schema_headers import schema_headers
from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    KAFKA_ANSWER_TIMEOUT_S,
    KAFKA_CLOSE_TIMEOUT_S,
    KAFKA_IN_FLIGHT_MAX,
    KAFKA_LINGER_MS,
    READ_BYTES,
)
from bridge.connectors.messages import ConnectorMessage, Translate, messages
from bridge.connectors.settings import KafkaSettings
from bridge.connectors.ticket_answers import ACCEPTED, AnswerCollector, MessageAnswer, TicketAnswers
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome


class KafkaProducer:
    """Producer of one connector. Each connection creates a new producer of the library."""

    def __init__(self, settings: KafkaSettings, translate: Translate) -> None:
        """Raises ValueError for an identifier of a schema that its registry does not have."""
        self._settings = settings
        self._schemas = schema_headers(settings.schemas)
        self._translate = translate
        self._one_by_one = 0
        """Number of messages to send one at a time, because their batch was too large for the broker."""

    async def run(self, options: dict[str, Any], traffic: ConnectorTraffic) -> None:
        """Wait for messages, and send until the producer fails. Raises ConnectorError. `options`: result of
        `Cluster.connect`."""
        first = await traffic.outgoing(1 if self._one_by_one else KAFKA_IN_FLIGHT_MAX, READ_BYTES)
        producer = AIOKafkaProducer(
            **options,
            acks="all",
            enable_idempotence=True,
            linger_ms=KAFKA_LINGER_MS,
            max_request_size=self._settings.message_bytes_max,
        )
        try:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await producer.start()
            except KafkaError as error:
                raise ConnectorError(describe_error(error)) from None
            sending = _Sending(self._settings, self._schemas, self._translate, traffic, producer, self._one_by_one)
            try:
                await sending.run(first)
            finally:
                self._one_by_one = sending.one_by_one
        finally:
            await end_producer(producer)


class _Sending:
    """Sends messages with one producer and collects the answers."""

    def __init__(
        self,
        settings: KafkaSettings,
        schemas: SchemaHeaders,
        translate: Translate,
        traffic: ConnectorTraffic,
        producer: AIOKafkaProducer,
        one_by_one: int,
    ) -> None:
        self.one_by_one = one_by_one
        self._settings = settings
        self._schemas = schemas
        self._translate = translate
        self._traffic = traffic
        self._producer = producer
        self._collector = AnswerCollector(traffic.settle)
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._room = asyncio.Event()
        self._answered_at = self._loop.time()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._flush_scheduled = False

    async def run(self, first: Sequence[Outgoing]) -> None:
        """Send until the producer fails. Raises ConnectorError. `first`: messages that were already taken."""
        await first_to_end(self._send(first), self._watch(), self._fail())

    async def _send(self, first: Sequence[Outgoing]) -> None:
        await self._send_all(first)
        while True:
            room = 1 if self.one_by_one else KAFKA_IN_FLIGHT_MAX
            if self._in_flight >= room:
                self._room.clear()
                await self._room.wait()
                continue
            await self._send_all(await self._traffic.outgoing(room - self._in_flight, READ_BYTES))

    async def _send_all(self, taken: Sequence[Outgoing]) -> None:
        for outgoing in taken:
            answers = TicketAnswers(outgoing.ticket, len(outgoing))
            for message in messages(outgoing, self._translate):
                await self._send_one(answers, message)

    async def _send_one(self, answers: TicketAnswers, message: ConnectorMessage) -> None:
        """Pass one message to the producer; reject a message that can never be sent."""
        try:
            made = record(message, self._settings.key, self._schemas)
            answer = await self._record(made)
        except (ValueError, MessageSizeTooLargeError) as error:
            self._collector.record(answers, message.place, MessageAnswer(ForwardOutcome.REJECTED, str(error)))
            self._flush_soon()
            return
        except KafkaError as error:
            raise ConnectorError(describe_error(error)) from None
        if not self._in_flight:
            self._answered_at = self._loop.time()
        self._in_flight += 1
        answer.add_done_callback(partial(self._answered, answers, message.place))

    async def _record(self, made: KafkaRecord) -> asyncio.Future[Any]:
        """Send a record, after waiting for room in the producer's buffers."""
        answer: asyncio.Future[Any] = await self._producer.send(
            made.topic, made.value, key=made.key, headers=made.headers, timestamp_ms=made.timestamp_ms
        )
        return answer

    def _answered(self, answers: TicketAnswers, index: int, answer: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        self._room.set()
        if answer.cancelled() or self._failed.done():
            answer.cancelled() or answer.exception()
            return
        error = answer.exception()
        if error is None:
            self._answered_at = self._loop.time()
            self._collector.record(answers, index, ACCEPTED)
        elif isinstance(error, MessageSizeTooLargeError) and self.one_by_one:
            self._collector.record(
                answers, index, MessageAnswer(ForwardOutcome.REJECTED, "larger than its topic allows")
            )
        else:
            if isinstance(error, MessageSizeTooLargeError):  # one message of the batch is too large
                self.one_by_one = self._in_flight + 1
            self._failed.set_exception(ConnectorError(describe_error(error)))
            return
        self.one_by_one = max(0, self.one_by_one - 1)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._collector.flush()

    async def _watch(self) -> None:
        """Fail when the brokers have not answered for long; the producer itself would retry forever."""
        while True:
            await asyncio.sleep(KAFKA_ANSWER_TIMEOUT_S / 6)
            if self._in_flight and self._loop.time() - self._answered_at > KAFKA_ANSWER_TIMEOUT_S:
                raise ConnectorError(f"no answer from the brokers for {KAFKA_ANSWER_TIMEOUT_S:g} s")

    async def _fail(self) -> None:
        await self._failed


async def end_producer(producer: AIOKafkaProducer) -> None:
    """Stop the producer without waiting for unreachable brokers; its successor sends the messages again."""
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(KAFKA_CLOSE_TIMEOUT_S):
            await producer.flush()
            await producer.stop()
            return
    # `stop` of an idempotent producer waits for all answers, without a timeout
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
        await asyncio.wait((sender,))
    await producer.client.close()
    producer._closed = True
