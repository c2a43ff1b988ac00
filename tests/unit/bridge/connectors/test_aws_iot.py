"""Connector to AWS IoT Core, against a server that checks requests by the documented rules."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("botocore", reason="it signs what the server expects")

import bridge.connectors.mqtt.opening as opening
from bridge.connectors.limits import AWS_IN_FLIGHT_MAX, AWS_USER_PROPERTIES_BYTES_MAX
from bridge.connectors.mqtt.aws_iot import service_of
from bridge.connectors.mqtt.aws_names import region_of, topic_fault
from bridge.connectors.mqtt.aws_signature import AccessKey, SigningScope, signed_query, signing_key
from bridge.connectors.mqtt.client import MqttClient
from bridge.connectors.mqtt.service_terms import PublishQuota
from bridge.connectors.settings import ClientIdentity, MqttService, MqttSettings
from bridge.publish_properties import PublishProperties, write
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.topics import matches
from tests.support.aws_iot import KEY_ID, PAYLOAD_BYTES_MAX, REGION, SECRET, AwsIotCore
from tests.support.certificates import Authority
from tests.support.feeding import NOW_NS, Bench, running
from tests.support.loop_wait import until

THING = ClientIdentity("gw1")
SIGNED = ClientIdentity("gw1", KEY_ID, SECRET)


def client(
    identity: ClientIdentity = THING,
    *,
    websocket: bool = False,
    now_ns: Callable[[], int] = time.time_ns,
    quota: PublishQuota | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> MqttClient:
    settings = MqttSettings(service=MqttService.AWS_IOT_CORE, region=REGION)
    identity, dialects, terms = service_of(identity, settings, "127.0.0.1", now_ns, websocket=websocket)
    return MqttClient(
        identity,
        settings,
        translate=mqtt_runs,
        matches=matches,
        now_ns=lambda: NOW_NS,
        tls=tls,
        dialects=dialects,
        terms=terms if quota is None else terms._replace(quota=quota),
    )


class TestSignature:
    """Examples that AWS publishes."""

    def test_query_of_the_published_example(self) -> None:
        """ "Authenticating Requests: Using Query Parameters" in the reference of Amazon S3."""
        key = AccessKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
        query = signed_query(
            key,
            SigningScope("us-east-1", "s3"),
            "examplebucket.s3.amazonaws.com",
            "/test.txt",
            "20130524T000000Z",
            86_400,
            "UNSIGNED-PAYLOAD",
        )
        assert query == (
            "X-Amz-Algorithm=AWS4-HMAC-SHA256"
            "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
            "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
            "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        )

    def test_key_of_the_published_example(self) -> None:
        """ "Deriving the signing key" in the AWS General Reference."""
        key = signing_key(SECRET, "20150830", SigningScope("us-east-1", "iam"))
        assert key.hex() == "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"

    def test_secret_is_hidden(self) -> None:
        assert SECRET not in repr(AccessKey(KEY_ID, SECRET))


class TestNames:
    @pytest.mark.parametrize(
        ("host", "region"),
        [
            ("a1b2-ats.iot.eu-west-1.amazonaws.com", "eu-west-1"),
            ("a1b2.ats.iot.cn-north-1.amazonaws.com.cn", "cn-north-1"),
            ("iot.example.com", None),
        ],
    )
    def test_region_is_in_the_host_name(self, host: str, region: str | None) -> None:
        assert region_of(host) == region

    @pytest.mark.parametrize(
        ("topic", "said"),
        [
            ("a/b/c/d/e/f/g/h", ""),
            ("a/b/c/d/e/f/g/h/i", "8 slashes"),
            ("$aws/rules/r/a/b/c/d/e/f/g/h", ""),
            ("$aws/rules/r/a/b/c/d/e/f/g/h/i", "8 slashes"),
            ("x" * 256, ""),
            ("ä" * 129, "258 bytes"),
            ("$SYS/x", "reserves"),
        ],
    )
    def test_topics_have_limits(self, topic: str, said: str) -> None:
        assert (said in topic_fault(topic)) if said else not topic_fault(topic)


class TestPublishing:
    @running
    async def test_older_version_is_not_tried(self) -> None:
        """AWS closes a connection for many reasons; MQTT 3.1.1 would drop names and properties."""
        core, bench = AwsIotCore(level_max=4), Bench()
        bench.feed(b"1")
        async with core.serving():
            await bench.connect(client(), core.port)
        assert (core.connects, core.violations, len(bench.errors)) == ([], [], 1)

    @running
    async def test_message_that_the_service_would_refuse_is_rejected_here(self) -> None:
        core, bench = AwsIotCore(), Bench()
        bad = [
            bench.feed(bytes(PAYLOAD_BYTES_MAX + 1), address="plant/1"),
            bench.feed(b"1", address="plant/2", remote="a/b/c/d/e/f/g/h/i"),
            bench.feed(b"1", address="plant/3", remote="x" * 257),
            bench.feed(b"1", address="plant/4", remote="$SYS/x"),
            *(
                bench.feed(b"1", address=f"plant/p{number}", properties=write(properties))
                for number, properties in enumerate(
                    (
                        PublishProperties(response_topic="a/b/c/d/e/f/g/h/i"),
                        PublishProperties(response_topic="$x"),
                        PublishProperties(content_type="x" * 257),
                        PublishProperties(correlation_data=bytes(1_025)),
                    )
                )
            ),
        ]
        good = bench.feed(bytes(PAYLOAD_BYTES_MAX), b"2", address="plant/5")
        async with core.serving(), bench.connected(client(), core.port):
            await until(lambda: good.accepted == [0, 1], "accepted")
            await until(lambda: all(feed.rejected == [0] for feed in bad), "rejected")
        assert (core.connects, core.violations) == ([5], [])

    @running
    async def test_user_properties_have_a_limit(self) -> None:
        core, bench = AwsIotCore(), Bench()
        users = (("a", "x" * AWS_USER_PROPERTIES_BYTES_MAX),)
        feed = bench.feed(b"1", properties=write(PublishProperties(users=users)))
        async with core.serving(), bench.connected(client(), core.port):
            await until(lambda: feed.rejected == [0], "rejected")

    @running
    async def test_discarded_message_is_sent_again(self) -> None:
        quota = PublishQuota(AWS_IN_FLIGHT_MAX, 1e6, 1e9, 10, 0.02)
        core, bench, using = AwsIotCore(), Bench(), client(quota=quota)
        core.discards = 1
        feed = bench.feed(b"1", b"2")
        async with core.serving():
            await bench.connect(using, core.port)
            assert "no PUBACK" in str(bench.errors[0])
            using._terms = using._terms._replace(quota=quota._replace(acknowledgement_timeout_s=60.0))
            async with bench.connected(using, core.port):
                await until(lambda: feed.accepted == [1, 0] or feed.accepted == [0, 1], "accepted")
        assert [each for each in core.messages if each.body == b"1"] == [("cloud/7", b"1", True)]

    def test_messages_are_paced(self) -> None:
        quota = client()._terms.quota
        assert quota is not None
        assert quota.in_flight_max == 100
        assert quota.pause_s(8, 100) == pytest.approx(0.1)
        assert quota.pause_s(1, 512 * 1024) == pytest.approx(1.0)

    @running
    async def test_pace_separates_batches(self) -> None:
        pauses: list[tuple[int, int]] = []

        class Quota(PublishQuota):
            def pause_s(self, messages: int, size: int) -> float:
                pauses.append((messages, size))
                return 0.0

        core, bench = AwsIotCore(), Bench()
        feed = bench.feed(*(b"%d" % n for n in range(35)))
        async with core.serving(), bench.connected(client(quota=Quota(100, 1, 1, 10, 60.0)), core.port):
            await until(lambda: len(feed.accepted) == 35, "accepted")
        assert sum(messages for messages, _ in pauses) == 35
        assert max(messages for messages, _ in pauses) <= 10
        assert all(size > messages for messages, size in pauses)


class TestWebSocket:
    @running
    async def test_signed_request_is_accepted(self) -> None:
        core, bench = AwsIotCore(websocket=True), Bench()
        feed = bench.feed(b"1", bytes(PAYLOAD_BYTES_MAX))
        async with core.serving(), bench.connected(client(SIGNED, websocket=True), core.port, path="/mqtt"):
            await until(lambda: feed.accepted == [0, 1], "accepted")
        assert (core.connects, core.violations) == ([5], [])
        assert [each.body for each in core.messages] == [b"1", bytes(PAYLOAD_BYTES_MAX)]
        assert SECRET not in core.paths[0]

    @pytest.mark.parametrize(
        ("secret", "behind_s"), [("another", 0), (SECRET, 900), (SECRET, -900)], ids=["key", "slow", "fast"]
    )
    @running
    async def test_refusal_names_what_to_check(self, secret: str, behind_s: int) -> None:
        core, bench = AwsIotCore(websocket=True), Bench()
        using = client(
            ClientIdentity("gw1", KEY_ID, secret), websocket=True, now_ns=lambda: time.time_ns() - behind_s * 10**9
        )
        async with core.serving():
            await bench.connect(using, core.port, path="/mqtt")
        text = str(bench.errors[0])
        assert "HTTP status 403" in text
        assert "check the access key" in text
        assert "X-Amz" not in text
        assert len(core.violations) == 1

    @running
    async def test_each_connection_has_its_own_signature(self) -> None:
        core, bench, times = AwsIotCore(websocket=True), Bench(), iter((0, 1))
        using = client(SIGNED, websocket=True, now_ns=lambda: time.time_ns() + next(times) * 10**9 * 60)
        async with core.serving():
            for count in (1, 2):
                async with bench.connected(using, core.port, path="/mqtt"):
                    await until(lambda count=count: len(core.connects) == count, "connected")  # type: ignore[misc]
        assert len(set(core.paths)) == 2

    @running
    async def test_end_of_the_server_ends_the_connection(self) -> None:
        core, bench = AwsIotCore(websocket=True), Bench()
        using = client(SIGNED, websocket=True)
        async with core.serving(), bench.connected(using, core.port, path="/mqtt") as task:
            await until(lambda: core.connects == [5], "connected")
            feed = bench.feed(b"1")
            await until(lambda: feed.accepted == [0], "accepted")
            core.end()
            await task
        assert "closed the connection" in str(bench.errors[0])


class TestTls:
    @pytest.mark.parametrize("port_is_https", [True, False])
    def test_protocol_is_named_on_the_https_port_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port_is_https: bool
    ) -> None:
        authority = Authority(tmp_path)
        server = authority.issue("127.0.0.1")
        thing = authority.issue("gw1")

        def offered() -> ssl.SSLContext:
            return authority.context(thing)

        @running
        async def run() -> None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
            context.load_cert_chain(server.certificate, server.key)
            context.verify_mode = ssl.CERT_REQUIRED
            context.set_alpn_protocols(["x-amzn-mqtt-ca"])
            core, bench = AwsIotCore(), Bench()
            feed = bench.feed(b"1")
            async with core.serving(context):
                if port_is_https:
                    monkeypatch.setattr(opening, "HTTPS_PORT", core.port)
                async with bench.connected(client(tls=offered), core.port, tls=True):
                    await until(lambda: feed.accepted == [0], "accepted")
            assert core.protocols == ["x-amzn-mqtt-ca" if port_is_https else None]

        run()


def test_identity_of_a_websocket_has_no_password() -> None:
    """The access key signs; it must not be in CONNECT."""
    identity, _, terms = service_of(SIGNED, MqttSettings(region=REGION), "h", time.time_ns, websocket=True)
    assert identity == ClientIdentity("gw1")
    assert terms.sign_path is not None
    assert SECRET not in terms.sign_path("h", "/mqtt")
