"""Connectors to a real Kafka broker: TLS and SASL, incoming topics, and members of one consumer group."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bridge.connectors.settings import KafkaSettings, Mechanism
from bridge.publisher import device_of
from edge.broker.configuration import Connector, ConnectorType, EndpointHost, PeerCredentials, TlsFiles
from tests.integration.forwarders.gateways import Gateway, Receiver, Sender, eventually, gateways, into, out
from tests.support.certificates import Authority
from tests.support.issuer import AUDIENCE, SigningKey
from tests.support.kafka import PASSWORD, USER, Kafka, kafka_jars
from tests.support.token_endpoint import CLIENT, SECRET, TokenEndpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MESSAGES = 5_000
PASSWORD_MECHANISMS = [mechanism for mechanism in Mechanism if mechanism is not Mechanism.OAUTHBEARER]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


KEY = SigningKey("k1", "RS256")


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = authority.issue("broker")
    with Kafka(tmp_path_factory.mktemp("kafka") / "broker", kafka_jars(), server, KEY).running() as running:
        yield running


def open_to(broker: Kafka, **settings: object) -> Connector:
    hosts = (EndpointHost(host="127.0.0.1", port=broker.port),)
    return Connector(name="peer", type=ConnectorType.KAFKA, hosts=hosts, kafka=KafkaSettings(**settings))  # type: ignore[arg-type]


def secure_to(broker: Kafka, tls: TlsFiles, mechanism: Mechanism, password: str = PASSWORD) -> Connector:
    return Connector(
        name="peer",
        type=ConnectorType.KAFKA,
        hosts=(EndpointHost(host="127.0.0.1", port=broker.secure_port),),
        tls=tls,
        credentials=PeerCredentials(username=USER, password=password),
        kafka=KafkaSettings(mechanism=mechanism),
    )


async def error_of(near: Gateway) -> str:
    await eventually(lambda: near.connector().dialer.state.last_error, "it says why")
    return near.connector().dialer.state.last_error or ""


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_records_go_both_ways_over_tls_with_each_mechanism(
    broker: Kafka, authority: Authority, mechanism: Mechanism
) -> None:
    topic = f"both.{mechanism.value}"
    broker.create(topic)

    async def run() -> None:
        async with gateways("gw1", "gw2") as (one, two):
            reader = Receiver(two.broker, "plant/#", "reader")
            peer = secure_to(broker, TlsFiles(ca=authority.certificate), mechanism)
            await one.configure(peer, out("f", "plant/#", topic))
            await two.configure(peer, into("f", "plant/#", topic))
            Sender(one.broker).publish("plant/7", *[b"%d" % i for i in range(100)])
            await eventually(lambda: len(reader.runs) and len(payloads_of(reader)) == 100)
            assert payloads_of(reader) == [b"%d" % i for i in range(100)]
            assert {(run.address, device_of(run.device)) for run in reader.runs} == {("plant/7", "dev")}

    asyncio.run(run())


def payloads_of(reader: Receiver) -> list[bytes]:
    return [body for run in reader.runs for body in run.bodies]


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_refused_login_shows_the_reason(broker: Kafka, authority: Authority, mechanism: Mechanism) -> None:
    async def run() -> None:
        async with gateways("gw1") as (near,):
            tls = TlsFiles(ca=authority.certificate)
            await near.configure(secure_to(broker, tls, mechanism, "wrong"), out("f", "plant/#", "t"))
            assert "authentication failed: check the connector's credentials and mechanism" in await error_of(near)

    asyncio.run(run())


def access_token(key: SigningKey, number: int) -> str:
    now = int(time.time())
    return key.token(
        {"iss": "x", "sub": USER, "aud": AUDIENCE, "scope": "kafka", "iat": now, "exp": now + 300, "jti": f"{number}"}
    )


def test_records_go_both_ways_with_tokens_of_an_issuer(broker: Kafka, authority: Authority) -> None:
    """The broker checks each token's signature, audience and time."""
    broker.create("bearer")

    async def run() -> None:
        stranger = SigningKey("k1", "RS256")
        good, bad = (TokenEndpoint(partial(access_token, key)) for key in (KEY, stranger))
        async with gateways("gw1", "gw2") as (one, two), good.serving(), bad.serving():
            reader = Receiver(two.broker, "plant/#", "reader")
            peer = secure_to(broker, TlsFiles(ca=authority.certificate), Mechanism.OAUTHBEARER)
            credentials = PeerCredentials(username=CLIENT, password=SECRET)
            kafka = KafkaSettings(mechanism=Mechanism.OAUTHBEARER, token_url=bad.url)
            peer = msgspec.structs.replace(peer, credentials=credentials, kafka=kafka)
            await one.configure(peer, out("f", "plant/#", "bearer"))
            assert "authentication failed" in await error_of(one)
            await eventually(lambda: bad.requests >= 2, "a refused token is not used again")
            peer = msgspec.structs.replace(peer, kafka=msgspec.structs.replace(kafka, token_url=good.url))
            await one.configure(peer, out("f", "plant/#", "bearer"))
            await two.configure(peer, into("f", "plant/#", "bearer"))
            Sender(one.broker).publish("plant/7", *[b"%d" % i for i in range(100)])
            await eventually(lambda: len(payloads_of(reader)) == 100)
            assert payloads_of(reader) == [b"%d" % i for i in range(100)]
            assert (good.requests, good.refused) == (2, []), "one for each gateway"

    asyncio.run(run())


def test_broker_of_an_unknown_authority_is_refused(broker: Kafka, tmp_path: Path) -> None:
    async def run() -> None:
        async with gateways("gw1") as (near,):
            tls = TlsFiles(ca=Authority(tmp_path / "stranger", "stranger").certificate)
            await near.configure(secure_to(broker, tls, Mechanism.PLAIN), out("f", "plant/#", "t"))
            assert "certificate verify failed" in await error_of(near)

    asyncio.run(run())


def test_foreign_topic_is_read_from_its_first_record_and_resumed(broker: Kafka) -> None:
    """A new connector reads a topic from its first record; the next connection resumes there."""
    broker.create("orders")
    first, second = [b"%d" % i for i in range(MESSAGES)], [b"again %d" % i for i in range(MESSAGES)]
    broker.send(first)

    async def run(values: list[bytes], names: tuple[str, ...] = ("gw1",)) -> None:
        async with gateways(*names) as (near,):
            reader = Receiver(near.broker, "queue/orders")
            await near.configure(open_to(broker), into("f", "queue/orders", "orders"))
            await eventually(lambda: len(payloads_of(reader)) >= len(values))
            assert Counter(payloads_of(reader)) == Counter(values)
            figures = near.connector().inboxes[0].figures
            assert (figures.accepted, figures.duplicates, figures.rejected) == (len(values), 0, 0)

    asyncio.run(run(first))
    broker.send(second)
    asyncio.run(run(second))


def test_members_of_a_group_take_over_partitions_without_loss(broker: Kafka) -> None:
    """A second gateway joins and leaves the group during traffic: no record is lost, none is taken twice."""
    broker.create("shared", partitions=4)
    sent: list[bytes] = []

    def send() -> None:
        more = [b"%d" % i for i in range(len(sent), len(sent) + 500)]
        broker.send(more)
        sent.extend(more)

    async def run() -> None:
        async with gateways("gw1", "gw2") as (one, two):
            readers = [Receiver(gateway.broker, "queue/shared") for gateway in (one, two)]
            peer, forwarder = open_to(broker, group="plant"), into("f", "queue/shared", "shared")

            async def send_until(condition: Callable[[], object]) -> None:
                async with asyncio.timeout(90):
                    while not condition():
                        await asyncio.to_thread(send)

            await one.configure(peer, forwarder)
            await send_until(lambda: readers[0].runs)
            await two.configure(peer, forwarder)
            await send_until(lambda: readers[1].runs)
            sending = asyncio.ensure_future(asyncio.to_thread(send))
            await two.configure(None)
            await sending
            await asyncio.to_thread(send)
            await all_of(lambda: [body for reader in readers for body in payloads_of(reader)], sent)
            assert Counter(body for reader in readers for body in payloads_of(reader)) == Counter(sent)

    asyncio.run(run())


async def all_of(got: Callable[[], list[bytes]], wanted: list[bytes]) -> None:
    await eventually(lambda: len(got()) >= len(wanted) and set(got()) == set(wanted), "each of them is there")


def test_readers_continue_after_the_broker_restarts(tmp_path: Path) -> None:
    with Kafka(tmp_path / "broker", kafka_jars()).running() as broker:
        broker.create("kept")
        values = [b"%d" % i for i in range(2 * MESSAGES)]

        async def run() -> None:
            async with gateways("gw1") as (near,):
                reader = Receiver(near.broker, "queue/kept")
                await near.configure(open_to(broker), into("f", "queue/kept", "kept"))
                await asyncio.to_thread(broker.send, values[:MESSAGES])
                await eventually(lambda: reader.runs)
                await asyncio.to_thread(broker.restart)
                await asyncio.to_thread(broker.send, values[MESSAGES:])
                await all_of(lambda: payloads_of(reader), values)
                assert Counter(payloads_of(reader)) == Counter(values)

        asyncio.run(run())
