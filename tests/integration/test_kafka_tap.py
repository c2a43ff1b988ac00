"""Landed messages reach a real Kafka broker once, in order: while hubs are killed and the broker is away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.connectors.settings import Mechanism
from cloud.hub.tap.topic import TopicFault, count_partitions
from cloud.hub.tap.topic_settings import TopicSettings
from edge.broker.configuration import TlsFiles
from tests.support.certificates import Authority
from tests.support.gateway_peer import GatewayPeer
from tests.support.http_client import ask, document
from tests.support.kafka import PASSWORD, USER, Kafka, kafka_jars
from tests.support.processes import Waypost, hub, wait_until

UNCLOSED = "ignore:unclosed:ResourceWarning"
"""aiokafka leaves a refused connection over TLS to the loop, which may end before the broker has answered its close."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings(UNCLOSED)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("kafka") / "broker"
    with Kafka(folder, kafka_jars(), authority.issue("broker")).running() as running:
        yield running


def config(folder: Path, broker: Kafka, topic: str, *more: str) -> str:
    """Return the option of a configuration with a topic."""
    file = folder / "hub.yaml"
    spec = [f"kafka: {{brokers: ['127.0.0.1:{broker.port}'], topic: {topic}}}", *more]
    file.write_text("apiVersion: waypost/v1\nkind: Hub\nspec:\n" + "".join(f"  {line}\n" for line in spec))
    return f"--config={file}"


def land(running: Waypost, first: int, count: int, gateway: str = "hall") -> None:
    async def send() -> None:
        peer = await GatewayPeer(gateway).connect(running.endpoints["amqp"])
        peer.batch(0, "plant/1", first, count)
        await peer.until(lambda: len(peer.outcomes) == 1)
        peer.close()

    asyncio.run(send())


def sequences(broker: Kafka) -> list[int]:
    """Return the sequences of committed records in order."""
    return [int(dict(record.headers)["waypost-sequence"]) for record in broker.records(committed=True)]


def arrived(broker: Kafka, count: int) -> None:
    wait_until(lambda: len(sequences(broker)) >= count, timeout_s=90, what=f"{count} records")
    assert sequences(broker) == list(range(count))


def claimed(running: Waypost) -> None:
    wait_until(lambda: tap_of(running)["hub"] is not None, timeout_s=60, what="the tap is claimed")


def tap_of(running: Waypost) -> dict[str, object]:
    found: dict[str, object] = document(running, "/api/v1/system")["kafka"]
    return found


def test_landed_messages_arrive_once_while_hub_and_broker_restart(broker: Kafka, tmp_path: Path) -> None:
    broker.create("restarts")
    running = hub(tmp_path, config(tmp_path, broker, "restarts"))
    with running:
        claimed(running)
        land(running, 0, 100)
        arrived(broker, 100)
        record = broker.records(committed=True)[0]
        assert (record.key, record.value) == (b"default/hall", b"0")
        assert dict(record.headers)["waypost-device"] == b"device-1"
        broker.stop()
        land(running, 100, 100)  # acknowledged although the broker is away
        wait_until(lambda: tap_of(running)["trouble"], timeout_s=90, what="the trouble is shown")
        assert tap_of(running)["lag_s"] > 0  # type: ignore[operator]
        broker.start()
        arrived(broker, 200)
        running.kill()
        running.start()
        land(running, 200, 100)
        arrived(broker, 300)
        wait_until(lambda: tap_of(running)["messages"] == 300, timeout_s=60, what="the registry knows it too")
        assert tap_of(running)["trouble"] == ""
        metrics = ask(running, "GET", "/metrics").body.decode()
        assert "waypost_hub_tap_messages_total 300.0" in metrics
        assert "waypost_hub_tap_lag_seconds 0.0" in metrics


def test_second_hub_takes_the_tap_over(broker: Kafka, tmp_path: Path) -> None:
    broker.create("replicas", partitions=1)
    option = config(
        tmp_path, broker, "replicas", f"registry: sqlite:///{tmp_path}/registry.db", f"lake: {tmp_path}/lake"
    )
    (tmp_path / "second").mkdir()
    with hub(tmp_path, option) as first:
        claimed(first)
        with hub(tmp_path / "second", option) as second:
            land(first, 0, 50)
            arrived(broker, 50)
            assert tap_of(second)["hub"] == tap_of(first)["hub"]
            before = tap_of(first)["hub"]
            first.stop()
            land(second, 50, 50)
            arrived(broker, 100)
            wait_until(lambda: tap_of(second)["hub"] not in (None, before), timeout_s=60, what="another hub has it")


@pytest.mark.parametrize("mechanism", [each for each in Mechanism if each is not Mechanism.OAUTHBEARER])
def test_topic_is_reached_over_tls_with_each_mechanism(
    broker: Kafka, authority: Authority, mechanism: Mechanism
) -> None:
    topic = f"secure.{mechanism.value}"
    broker.create(topic, partitions=3)
    brokers = (("127.0.0.1", broker.secure_port),)
    tls = TlsFiles(ca=authority.certificate)
    given = TopicSettings(brokers, topic, mechanism, 1 << 20, USER, PASSWORD, tls)
    assert asyncio.run(count_partitions(given)) == 3
    wrong = TopicSettings(brokers, topic, mechanism, 1 << 20, USER, "wrong", tls)
    with pytest.raises(TopicFault, match="authentication failed"):
        asyncio.run(count_partitions(wrong))


def test_missing_topic_is_reported(broker: Kafka) -> None:
    given = TopicSettings((("127.0.0.1", broker.port),), "nowhere", Mechanism.PLAIN, 1 << 20)
    with pytest.raises(TopicFault, match="does not exist"):
        asyncio.run(count_partitions(given))
