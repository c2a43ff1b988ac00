"""Producer of a Kafka cluster: idempotent, acks=all; the brokers' answer to a record settles its message.

It is created when there is something to send, as a connector that only receives may have no right to write. It repeats
unanswered requests by itself, in order and without duplicates. When it fails, or nothing is answered for long, it is
dropped, and the forwarders send unanswered messages again: those that the cluster had written are then there twice,
with the same name in their headers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from bridge.client_attempt import Carriage, ConnectorError
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.flights import ACCEPTED, Flight, Flights, MessageAnswer
from bridge.connectors.kafka.reasons import words
from bridge.connectors.kafka.record import KafkaRecord, record
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
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome


class KafkaProducer:
    """Producer of one connector; each connection creates one of the library's."""

    def __init__(self, settings: KafkaSettings, translate: Translate) -> None:
        self._settings = settings
        self._translate = translate
        self._alone = 0
        """Number of messages to send one by one, as a batch with them was too large for the broker."""

    async def run(self, reached: dict[str, Any], carriage: Carriage) -> None:
        """Wait for messages, and send until the producer fails. Raises ConnectorError. `reached`: from
        `Cluster.reach`."""
        first = await carriage.outgoing(1 if self._alone else KAFKA_IN_FLIGHT_MAX, READ_BYTES)
        producer = AIOKafkaProducer(
            **reached,
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
                raise ConnectorError(words(error)) from None
            sending = _Sending(self._settings, self._translate, carriage, producer, self._alone)
            try:
                await sending.run(first)
            finally:
                self._alone = sending.alone
        finally:
            await _end(producer)


class _Sending:
    """The messages of one producer."""

    def __init__(
        self,
        settings: KafkaSettings,
        translate: Translate,
        carriage: Carriage,
        producer: AIOKafkaProducer,
        alone: int,
    ) -> None:
        self.alone = alone
        self._settings = settings
        self._translate = translate
        self._carriage = carriage
        self._producer = producer
        self._flights = Flights(carriage.settle)
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
        await self._hand_over_all(first)
        while True:
            room = 1 if self.alone else KAFKA_IN_FLIGHT_MAX
            if self._in_flight >= room:
                self._room.clear()
                await self._room.wait()
                continue
            await self._hand_over_all(await self._carriage.outgoing(room - self._in_flight, READ_BYTES))

    async def _hand_over_all(self, taken: Sequence[Outgoing]) -> None:
        for outgoing in taken:
            flight = Flight(outgoing.ticket, len(outgoing))
            for message in messages(outgoing, self._translate):
                await self._hand_over(flight, message)

    async def _hand_over(self, flight: Flight, message: ConnectorMessage) -> None:
        """Give one message to the producer; reject a message that it can never send."""
        try:
            made = record(message, self._settings.key)
            answer = await self._record(made)
        except (ValueError, MessageSizeTooLargeError) as error:
            self._flights.answered(flight, message.place, MessageAnswer(ForwardOutcome.REJECTED, str(error)))
            self._flush_soon()
            return
        except KafkaError as error:
            raise ConnectorError(words(error)) from None
        if not self._in_flight:
            self._answered_at = self._loop.time()
        self._in_flight += 1
        answer.add_done_callback(partial(self._answered, flight, message.place))

    async def _record(self, made: KafkaRecord) -> asyncio.Future[Any]:
        """Send a record, after waiting for room in the producer's buffers."""
        answer: asyncio.Future[Any] = await self._producer.send(
            made.topic, made.value, key=made.key, headers=made.headers, timestamp_ms=made.timestamp_ms
        )
        return answer

    def _answered(self, flight: Flight, index: int, answer: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        self._room.set()
        if answer.cancelled() or self._failed.done():
            answer.cancelled() or answer.exception()
            return
        error = answer.exception()
        if error is None:
            self._answered_at = self._loop.time()
            self._flights.answered(flight, index, ACCEPTED)
        elif isinstance(error, MessageSizeTooLargeError) and self.alone:
            self._flights.answered(flight, index, MessageAnswer(ForwardOutcome.REJECTED, "larger than its topic takes"))
        else:
            if isinstance(error, MessageSizeTooLargeError):  # one message of the batch is too large
                self.alone = self._in_flight + 1
            self._failed.set_exception(ConnectorError(words(error)))
            return
        self.alone = max(0, self.alone - 1)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._flights.flush()

    async def _watch(self) -> None:
        """Fail when the brokers have answered nothing for long: the producer itself would retry forever."""
        while True:
            await asyncio.sleep(KAFKA_ANSWER_TIMEOUT_S / 6)
            if self._in_flight and self._loop.time() - self._answered_at > KAFKA_ANSWER_TIMEOUT_S:
                raise ConnectorError(f"the brokers have answered nothing for {KAFKA_ANSWER_TIMEOUT_S:g} s")

    async def _fail(self) -> None:
        await self._failed


async def _end(producer: AIOKafkaProducer) -> None:
    """Stop the producer without waiting for lost brokers; another one sends its messages."""
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(KAFKA_CLOSE_TIMEOUT_S):
            await producer.flush()
            await producer.stop()
            return
    # `stop` waits for all answers, forever as the producer is idempotent
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
        await asyncio.wait((sender,))
    await producer.client.close()
    producer._closed = True
