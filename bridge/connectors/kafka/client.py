"""One producer of a Kafka cluster: idempotent, acks=all, a message settled by the brokers' word on its record.

The producer repeats by itself what a broker does not answer, in order and without writing it twice. Where it gives up,
or nothing is answered for long, it is thrown away, and the forwarders give again what has no answer: what the cluster
had written of it is there twice then, under the same name in its headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer, errors
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from bridge.client_attempt import Carriage, ConnectorError
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.flights import ACCEPTED, Answer, Flight, Flights
from bridge.connectors.kafka.record import Record, record
from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    KAFKA_ANSWER_TIMEOUT_S,
    KAFKA_CLOSE_TIMEOUT_S,
    KAFKA_IN_FLIGHT_MAX,
    KAFKA_LINGER_MS,
    READ_BYTES,
)
from bridge.connectors.messages import Message, Translate, messages
from bridge.connectors.settings import Identity, KafkaSettings
from bridge.dialer import Endpoint
from bridge.forwarders.outcome import Outcome

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a line a try, many a second; what matters we say ourselves


class KafkaClient:
    """`bridge.client_attempt.Client` of a Kafka cluster; one for the connector's life."""

    def __init__(
        self,
        identity: Identity,
        settings: KafkaSettings,
        endpoints: Sequence[Endpoint],
        *,
        translate: Translate,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`endpoints`: brokers to ask first, for who the others are. `tls` makes the context for one producer."""
        self._identity = identity
        self._settings = settings
        self._endpoints = list(endpoints)
        self._translate = translate
        self._tls = tls
        self._alone = 0
        """Messages that are sent one by one, as a broker found a batch with them too large."""

    async def run(self, endpoint: Endpoint, carriage: Carriage) -> None:
        """One producer, from its start until it fails: ConnectorError."""
        producer = self._producer([endpoint, *(each for each in self._endpoints if each != endpoint)])
        try:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await producer.start()
            except KafkaError as error:
                raise ConnectorError(_words(error)) from None
            carriage.up("a Kafka cluster")
            sending = _Sending(self._settings, self._translate, carriage, producer, self._alone)
            try:
                await sending.run()
            finally:
                self._alone = sending.alone
        finally:
            await _end(producer)

    def _producer(self, endpoints: Sequence[Endpoint]) -> AIOKafkaProducer:
        identity, settings = self._identity, self._settings
        tls = self._tls() if self._tls is not None and any(endpoint.tls for endpoint in endpoints) else None
        protocol = ("SASL_" if identity.username is not None else "") + ("SSL" if tls is not None else "PLAINTEXT")
        return AIOKafkaProducer(
            bootstrap_servers=[f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints],
            client_id=identity.client_id,
            acks="all",
            enable_idempotence=True,
            linger_ms=KAFKA_LINGER_MS,
            max_request_size=settings.message_bytes_max,
            request_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
            security_protocol=protocol,
            ssl_context=tls,
            sasl_mechanism=settings.mechanism.value,
            sasl_plain_username=identity.username,
            sasl_plain_password=identity.password,
        )


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

    async def run(self) -> None:
        """Until the producer fails: ConnectorError."""
        await first_to_end(self._send(), self._watch(), self._fail())

    async def _send(self) -> None:
        while True:
            room = 1 if self.alone else KAFKA_IN_FLIGHT_MAX
            if self._in_flight >= room:
                self._room.clear()
                await self._room.wait()
                continue
            for outgoing in await self._carriage.outgoing(room - self._in_flight, READ_BYTES):
                flight = Flight(outgoing.ticket, len(outgoing))
                for message in messages(outgoing, self._translate):
                    await self._hand_over(flight, message)

    async def _hand_over(self, flight: Flight, message: Message) -> None:
        """Give one message to the producer; what it can never send is answered as rejected."""
        try:
            made = record(message, self._settings.key)
            answer = await self._record(made)
        except (ValueError, MessageSizeTooLargeError) as error:
            self._flights.answered(flight, message.place, Answer(Outcome.REJECTED, str(error)))
            self._flush_soon()
            return
        except KafkaError as error:
            raise ConnectorError(_words(error)) from None
        if not self._in_flight:
            self._answered_at = self._loop.time()
        self._in_flight += 1
        answer.add_done_callback(partial(self._answered, flight, message.place))

    async def _record(self, made: Record) -> asyncio.Future[Any]:
        """Waits while the producer's buffers are full."""
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
            self._flights.answered(flight, index, Answer(Outcome.REJECTED, "larger than its topic takes"))
        else:
            if isinstance(error, MessageSizeTooLargeError):  # of a batch: one of these messages is too large
                self.alone = self._in_flight + 1
            self._failed.set_exception(ConnectorError(_words(error)))
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
        """Brokers that answer nothing for long are gone, whatever the producer hopes for."""
        while True:
            await asyncio.sleep(KAFKA_ANSWER_TIMEOUT_S / 6)
            if self._in_flight and self._loop.time() - self._answered_at > KAFKA_ANSWER_TIMEOUT_S:
                raise ConnectorError(f"the brokers have answered nothing for {KAFKA_ANSWER_TIMEOUT_S:g} s")

    async def _fail(self) -> None:
        await self._failed


async def _end(producer: AIOKafkaProducer) -> None:
    """Stop the producer; one that hopes for brokers that are gone is not waited for, another one sends its messages."""
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(KAFKA_CLOSE_TIMEOUT_S):
            await producer.flush()
            await producer.stop()
            return
    # `stop` waits for the answers to everything: for ever, as the producer is idempotent.
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
        await asyncio.wait((sender,))
    await producer.client.close()
    producer._closed = True


_WORDS: Final[Mapping[type[KafkaError], str]] = {
    errors.KafkaConnectionError: "no broker answers",
    errors.KafkaTimeoutError: "the brokers do not answer",
    errors.UnknownTopicOrPartitionError: "a topic is not there, and the brokers make none: create it there",
    errors.TopicAuthorizationFailedError: "we may not write to a topic: see its access control list",
    errors.ClusterAuthorizationFailedError: "we may not write idempotently: it takes the right IDEMPOTENT_WRITE",
    errors.AuthenticationFailedError: "the brokers do not let us in: see the connector's credentials and mechanism",
    errors.MessageSizeTooLargeError: "a batch is larger than its topic takes; its messages are sent one by one",
}


def _words(error: BaseException) -> str:
    """One line for a person."""
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    return " ".join(f"{type(error).__name__} {error}".split())
