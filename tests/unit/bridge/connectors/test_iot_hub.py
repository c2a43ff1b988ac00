"""Connector to Azure IoT Hub, against a server that checks requests by the documented rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import pytest

import bridge.connectors.mqtt.client as mqtt_client
from bridge.connectors.limits import SUSPECT_ENDS
from bridge.connectors.mqtt.client import MqttClient
from bridge.connectors.mqtt.iot_hub import decode_properties, encode_properties, service_of
from bridge.connectors.mqtt.suspect import SuspectMessage
from bridge.connectors.settings import MqttService, MqttSettings
from bridge.forwarders.shared_access import device_key, device_token
from bridge.publish_properties import PublishProperties, read, write
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.topics import matches
from tests.support.feeding import NOW_NS, Bench, running
from tests.support.iot_hub import HOST, KEY, MESSAGE_BYTES_MAX, IotHub
from tests.support.loop_wait import until
from tests.unit.bridge.connectors.inbox import StubInbox

EVENTS = "devices/gw1/messages/events/"
NOW_S = int(time.time())
INBOUND = "devices/gw1/messages/devicebound/#"


def client(
    *, renew_after_s: float | None = None, now_ns: Callable[[], int] = time.time_ns, **settings: Any
) -> MqttClient:
    fields: dict[str, Any] = {"device": "gw1", "shared_access_key": KEY, "hub_host": HOST, **settings}
    configured = MqttSettings(service=MqttService.AZURE_IOT_HUB, **fields)
    identity, dialects, terms = service_of(configured, "127.0.0.1", now_ns)
    if renew_after_s is not None:
        terms = terms._replace(renew_after_s=renew_after_s)
    return MqttClient(
        identity,
        configured,
        translate=mqtt_runs,
        matches=matches,
        now_ns=lambda: NOW_NS,
        dialects=dialects,
        terms=terms,
    )


class TestTokens:
    def test_token_has_the_documented_form(self) -> None:
        """`sr`, `sig` and `se`, without the name of a policy; the key is decoded before it signs."""
        token = device_token(device_key(KEY), f"{HOST}/devices/gw1", 1_456_971_697)
        assert token.startswith(f"SharedAccessSignature sr={HOST}%2Fdevices%2Fgw1&sig=")
        assert token.endswith("%3D&se=1456971697")

    @pytest.mark.parametrize("text", ["", "no key", "c2Vjcm", "c2VjcmV0!!"])
    def test_invalid_key_is_not_shown(self, text: str) -> None:
        with pytest.raises(ValueError, match="copy the primary") as error:
            device_key(text)
        assert text not in str(error.value) or not text

    def test_key_is_hidden(self) -> None:
        assert KEY not in repr(MqttSettings(shared_access_key=KEY))


class TestConnecting:
    @pytest.mark.parametrize("names", [{}, {"device": "pump@a:7"}, {"module": "m1"}])
    @running
    async def test_device_or_module_is_accepted(self, names: dict[str, Any]) -> None:
        hub = IotHub(names.get("device", "gw1"), names.get("module"))
        bench = Bench()
        feed = bench.feed(b"1", remote=hub.events)
        async with hub.serving(), bench.connected(client(**names), hub.port):
            await until(lambda: feed.accepted == [0], "accepted")
        assert (hub.refused, bench.errors) == ([], [])

    @pytest.mark.parametrize(
        "settings", [{"device": "other"}, {"shared_access_key": "b3RoZXI="}, {"hub_host": "other.example"}]
    )
    @running
    async def test_refusal_names_what_to_check(self, settings: dict[str, Any]) -> None:
        hub, bench = IotHub(), Bench()
        async with hub.serving():
            await bench.connect(client(**settings), hub.port)
        (error,) = bench.errors
        assert "does not accept this device" in str(error)
        assert hub.refused == ["not authorized"], "one attempt: no other version, no bridge bit"
        assert KEY not in str(error)


class TestSending:
    @running
    async def test_properties_are_in_the_topic(self) -> None:
        hub, bench = IotHub(), Bench()
        users = (("line", "a/b c+d"), ("$.mid", "forged"), ("iothub-x", "y"), ("waypost-address", "forged"))
        properties = write(PublishProperties(content_type="application/json", correlation_data=b"c1", users=users))
        feed = bench.feed(b'{"t": 1}', remote=EVENTS, properties=properties, flags=3)
        async with hub.serving(), bench.connected(client(), hub.port):
            await until(lambda: feed.accepted == [0], "accepted")
        ((body, found, dup),) = hub.messages
        assert (body, dup) == (b'{"t": 1}', False)
        assert len(found.pop("$.mid")) == 32
        assert found.pop("iothub-creation-time-utc") == "2026-09-21T14:13:20.000Z"
        assert found == {
            "$.cid": "c1",
            "$.ct": "application/json",
            "$.ce": "utf-8",
            "line": "a/b c+d",
            "_$.mid": "forged",
            "_iothub-x": "y",
            "waypost-gateway": "gw",
            "waypost-epoch": "e1",
            "waypost-address": "plant/7",
            "waypost-sequence": "0",
            "waypost-device": "dev",
            "waypost-hops": "gw",
        }, "and it was not sent as retained"

    @running
    async def test_repeat_has_the_same_message_id(self) -> None:
        hub, bench, using = IotHub(), Bench(), client()
        hub.acknowledge = False
        feed = bench.feed(b"1", b"2", remote=EVENTS)
        async with hub.serving():
            async with bench.connected(using, hub.port):
                await until(lambda: len(hub.messages) == 2, "sent")
            hub.acknowledge = True
            async with bench.connected(using, hub.port):
                await until(lambda: feed.accepted == [0, 1], "accepted")
        first, again = hub.messages[:2], hub.messages[2:]
        assert [each.properties["$.mid"] for each in first] == [each.properties["$.mid"] for each in again]
        assert len({each.properties["$.mid"] for each in first}) == 2

    @running
    async def test_message_that_the_hub_would_refuse_is_rejected_here(self) -> None:
        hub, bench = IotHub(), Bench()
        large = bench.feed(bytes(MESSAGE_BYTES_MAX), remote=EVENTS)
        elsewhere = bench.feed(b"1", address="plant/8", remote="devices/other/messages/events")
        good = bench.feed(bytes(MESSAGE_BYTES_MAX - 500), address="plant/9", remote=EVENTS)
        async with hub.serving(), bench.connected(client(), hub.port):
            await until(lambda: good.accepted == [0], "the last one")
            await until(lambda: large.rejected == elsewhere.rejected == [0], "the others")
        assert (hub.refused, hub.connects) == ([], 1)

    @pytest.mark.parametrize("left", [0, 1])
    @running
    async def test_limit_of_a_message_counts_its_properties(self, left: int) -> None:
        """The body, values of system properties, names and values of others."""
        probe, hub = IotHub(), IotHub()
        for each in (probe, hub):
            bench, body = Bench(), b""
            if probe.messages:
                ((_, found, _),) = probe.messages
                used = sum(len(v) + (0 if k.startswith("$") else len(k)) for k, v in found.items())
                body = bytes(MESSAGE_BYTES_MAX - used + left)
            feed = bench.feed(body, remote=EVENTS)
            async with each.serving(), bench.connected(client(), each.port):
                await until(partial(len, feed.outcomes), "an outcome")
        assert feed.outcomes == {0: "rejected" if left else "accepted"}
        assert hub.refused == []


class TestReceiving:
    @running
    async def test_message_from_the_cloud_keeps_its_properties(self) -> None:
        hub, bench, inbox = IotHub(), Bench(), StubInbox(INBOUND)
        bench.inboxes.append(inbox)
        hub.send(b"plain")
        hub.send(
            b"on", "%24.mid=m1&%24.to=%2Fdevices%2Fgw1&%24.ct=text%2Fplain&prop1&prop2=&prop3=a%20string&lines=a%0Ab"
        )
        async with hub.serving(), bench.connected(client(), hub.port):
            await until(lambda: len(inbox.got) == 2, "both")
            assert hub.unsettled == 2, "no PUBACK before the commit"
            inbox.commit(0, 1)
            await until(lambda: hub.unsettled == 0, "acknowledged")
        first, second = inbox.got
        assert (first.run.bodies, read(first.run.properties).users) == ([b"plain"], ())
        found = read(second.run.properties)
        assert found.content_type == "text/plain"
        assert found.users == (
            ("$.mid", "m1"),
            ("$.to", "/devices/gw1"),
            ("prop1", ""),
            ("prop2", ""),
            ("prop3", "a string"),
            ("lines", "a b"),
        )

    @running
    async def test_module_receives_its_inputs(self) -> None:
        hub, bench, inbox = IotHub(module="m1"), Bench(), StubInbox("devices/gw1/modules/m1/#")
        bench.inboxes.append(inbox)
        hub.send(b"on", "a=1")
        async with hub.serving(), bench.connected(client(module="m1"), hub.port):
            await until(lambda: len(inbox.got) == 1, "arrived")
        assert read(inbox.got[0].run.properties).users == (("a", "1"),)

    @running
    async def test_hub_may_encode_the_device_in_another_way(self) -> None:
        hub, bench, inbox = IotHub("a@b"), Bench(), StubInbox("devices/a%40b/messages/devicebound/#")
        bench.inboxes.append(inbox)
        hub.encodes = False
        hub.send(b"on", "a=1")
        hub.send(b"off")
        async with hub.serving(), bench.connected(client(device="a@b"), hub.port):
            await until(lambda: len(inbox.got) == 2, "arrived")
        assert [each.fault for each in inbox.got] == ["", ""]
        assert read(inbox.got[0].run.properties).users == (("a", "1"),)


def test_only_the_oldest_message_of_ends_in_a_row_is_rejected() -> None:
    suspect = SuspectMessage()
    for _ in range(SUSPECT_ENDS - 1):
        suspect.ended("a")
    suspect.ended(None)
    assert not suspect.alone
    suspect.ended("b")
    for _ in range(SUSPECT_ENDS - 1):
        assert not suspect.alone
        suspect.ended("b")
    assert suspect.alone
    suspect.settled("a")
    for _ in range(SUSPECT_ENDS):
        assert not suspect.is_rejected("b")
        suspect.ended("b")
    assert suspect.is_rejected("b")
    assert not suspect.is_rejected("a")
    suspect.settled("b")
    assert not suspect.alone


class TestRefusedMessages:
    @running
    async def test_message_that_the_hub_ends_each_connection_for_is_rejected(self) -> None:
        hub, bench, using = IotHub(), Bench(), client()
        hub.poison = b"bad"
        feed = bench.feed(b"1", b"bad", b"2", b"3", remote=EVENTS)
        others = bench.feed(*(b"o%d" % n for n in range(5)), address="plant/8", remote=EVENTS)

        async def connect_again() -> None:
            while True:
                await bench.connect(using, hub.port)

        async with hub.serving():
            connecting = asyncio.ensure_future(connect_again())
            await until(lambda: len(feed.outcomes) == 4 and len(others.outcomes) == 5, "all have an outcome")
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        assert (feed.rejected, sorted(feed.accepted)) == ([1], [0, 2, 3])
        assert len(others.accepted) == 5
        assert len(hub.refused) >= 2 * SUSPECT_ENDS
        assert set(hub.refused) == {"a message that the hub does not take"}

    @running
    async def test_ordinary_breaks_reject_nothing(self) -> None:
        """Each connection ends with another oldest message, or by itself."""
        hub, bench, using = IotHub(), Bench(), client()
        feed = bench.feed(*(b"%d" % n for n in range(20)), remote=EVENTS)
        async with hub.serving():
            for number in range(10):
                hub.poison = b"%d" % number
                await bench.connect(using, hub.port)
            hub.poison = b""
            async with bench.connected(using, hub.port):
                await until(lambda: len(feed.outcomes) == 20, "all have an outcome")
        assert feed.rejected == []

    @running
    async def test_properties_that_a_device_chose_are_restricted(self) -> None:
        hub, bench = IotHub(), Bench()
        users = (("", "nameless"), ("waypost-hops", "forged"), ("ok", "1"))
        feeds = []
        for number, correlation in enumerate((b"\0", b"x" * 129, b"a b", b"good-1")):
            properties = write(PublishProperties(correlation_data=correlation, content_type="ä", users=users))
            feeds.append(bench.feed(b"1", address=f"plant/{number}", remote=EVENTS, properties=properties))
        long = bench.feed(
            b"1",
            address="plant/long",
            remote=EVENTS,
            properties=write(PublishProperties(users=(("a", "ä" * 12_000),))),
        )
        async with hub.serving(), bench.connected(client(), hub.port):
            await until(lambda: all(feed.accepted == [0] for feed in feeds), "accepted")
            await until(lambda: long.rejected == [0], "its encoding does not fit into a topic")
        assert hub.refused == []
        assert [each.properties.get("$.cid") for each in hub.messages] == [None, None, None, "good-1"]
        assert all(each.properties["ok"] == "1" and "$.ct" not in each.properties for each in hub.messages)
        assert {each.properties["waypost-hops"] for each in hub.messages} == {"gw"}


class TestRenewal:
    @running
    async def test_connection_is_replaced_without_a_repeat(self) -> None:
        hub, bench, inbox = IotHub(), Bench(), StubInbox(INBOUND)
        bench.inboxes.append(inbox)
        feed = bench.feed(b"1", remote=hub.events)
        using = client(renew_after_s=0.0)
        async with hub.serving(), bench.connected(using, hub.port):
            await until(lambda: hub.connects >= 3 and feed.accepted == [0], "renewed twice")
            later = bench.feed(b"2", address="plant/8", remote=hub.events)
            await until(lambda: later.accepted == [0], "sent")
        assert [each.body for each in hub.messages] == [b"1", b"2"]
        assert (hub.refused, bench.errors) == ([], [])

    @running
    async def test_renewal_waits_for_commits_and_leaves_later_messages_to_the_next_connection(self) -> None:
        hub, bench, inbox = IotHub(), Bench(), StubInbox(INBOUND)
        bench.inboxes.append(inbox)
        async with hub.serving(), bench.connected(client(renew_after_s=0.05), hub.port):
            hub.send(b"0")
            await until(lambda: len(inbox.got) == 1, "it waits for its commit here")
            for number in range(1, 50):
                hub.send(b"%d" % number)
            committed = 0
            while len(inbox.got) < 50 or committed < 50:
                await until(lambda: len(inbox.got) > committed, "the next")  # noqa: B023
                inbox.commit(committed)
                committed += 1
            before = hub.connects
            await until(lambda: hub.connects > before and hub.unsettled == 0, "replaced")
        assert [each.run.bodies for each in inbox.got] == [[b"%d" % number] for number in range(50)]
        assert (bench.errors, hub.refused) == ([], [])

    @running
    async def test_messages_without_an_acknowledgement_are_sent_again(self) -> None:
        hub, bench = IotHub(), Bench()
        hub.acknowledge = False
        feed = bench.feed(b"1", remote=EVENTS)
        using = client(renew_after_s=0.01, token_lifetime_s=600.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mqtt_client, "TOKEN_RENEWAL_TIMEOUT_S", 0.01)
            async with hub.serving():
                await bench.connect(using, hub.port)
                assert "sent again" in str(bench.errors[0])
                assert feed.outcomes == {}
                hub.acknowledge = True
                async with bench.connected(using, hub.port):
                    await until(lambda: feed.accepted == [0], "accepted")
        assert [each.dup for each in hub.messages] == [False, True]

    @running
    async def test_next_connection_has_a_new_token(self) -> None:
        hub, bench, times = IotHub(), Bench(), iter((NOW_S, NOW_S + 60))
        using = client(now_ns=lambda: next(times) * 1_000_000_000)
        async with hub.serving():
            async with bench.connected(using, hub.port):
                await until(lambda: hub.connects == 1, "connected")
            async with bench.connected(using, hub.port):
                await until(lambda: hub.connects == 2, "connected again")
        first, second = (password.rpartition("&se=")[2] for password in hub.passwords)
        assert int(second) - int(first) == 60


def test_properties_survive_their_encoding() -> None:
    pairs = {"$.ct": "application/json;charset=utf-8", "a&b=c/d+e#f": "ä %2F?", "": "x", "empty": ""}
    text = encode_properties(pairs)
    assert not set("/+#") & set(text)
    assert dict(decode_properties(text)) == pairs
    assert text.startswith("$.ct=application%2Fjson%3Bcharset%3Dutf-8&"), "as documented"
    assert unquote(text.split("&")[1].split("=")[0]) == "a&b=c/d+e#f"
