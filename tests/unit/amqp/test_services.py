"""Services of a session next to sending and receiving: browsing, selectors, retained messages, wills and requests."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, ClassVar
from uuid import UUID

import pytest

from bridge import sections as s
from bridge.amqp_values import DescribedValue, Symbol, Timestamp, Ubyte, Ulong, decode, encode
from bridge.engine import Condition, DeliveryState, Detached, Engine, Link, LinkFlow, Transfers
from bridge.engine.terminus import source, target
from bridge.message import RETAIN, Run
from bridge.sasl import SaslClient
from edge.broker.amqp import services
from edge.broker.limits import MANAGEMENT_RESULTS_MAX, RETAINED_STEPS_MAX, WILL_BYTES_MAX
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.translation import parse_message, payload_of, read_header
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.router.batch import Publication
from tests.unit.amqp.broker import Client, MqttDevice, Site
from tests.unit.amqp.wire import of_kind


def section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


def message(text: str, *, annotations: Any = None, properties: Any = None, application: Any = None) -> bytes:
    parts = section(s.MESSAGE_ANNOTATIONS, annotations) if annotations else b""
    parts += section(s.PROPERTIES, properties) if properties else b""
    parts += section(s.APPLICATION_PROPERTIES, application) if application else b""
    return parts + section(s.DATA, text.encode())


def send(client: Client, address: str, *messages: bytes) -> None:
    link = client.sender(address, name=f"send {address} {len(client.events)}")
    for tag, each in enumerate(messages):
        client.engine.send(link, tag, each)
    client.site.settle_down()


def bodies(client: Client, link: Link) -> list[bytes]:
    return [parse_message(each).body for each in client.received(link)]


def selecting(text: Any) -> dict[str, Any]:
    return {"selector": DescribedValue(Symbol("apache.org:selector-filter:string"), text)}


class TestDeliveryCount:
    def test_header_counts_failures(self) -> None:
        client = Site().client()
        send(client, "queue/a", section(s.HEADER, [True]) + message("m"))
        link = client.receiver("queue/a")
        for i, state in enumerate(
            (DeliveryState.RELEASED, DeliveryState.MODIFIED_FAILED, DeliveryState.MODIFIED_FAILED)
        ):
            client.engine.settle(link, [i], state)
            client.site.settle_down()
        headers = [decode(each, 3)[0] for each in client.received(link)]
        assert headers[:2] == [[True], [True]]
        assert [header[4] for header in headers[2:]] == [1, 2]
        assert headers[3][0] is True

    def test_dead_letter_has_the_reason(self) -> None:
        site = Site()
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=1), deadletter="deadletter/d")
        site.router.reconfigure(site.router.addresses.table, {"queue/#": policy})
        client = site.client()
        send(client, "queue/a", message("m", annotations={Symbol("x-opt-own"): 1}))
        link = client.receiver("queue/a")
        client.engine.settle(link, [0], DeliveryState.MODIFIED_FAILED)
        site.settle_down()
        (dead,) = client.received(client.receiver("deadletter/d", name="dead"))
        assert parse_message(dead).annotations == {
            "x-opt-own": 1,
            "x-opt-waypost-dead-reason": "delivery attempts exceeded",
            "x-opt-waypost-dead-from": "queue/a",
            "x-opt-waypost-dead-sequence": 0,
        }

    @pytest.mark.parametrize("behind", [[], [Timestamp(7), "group", Ulong(3)]])
    def test_expired_dead_letter_does_not_expire_again(self, behind: list[Any]) -> None:
        """The expiry field is removed, as a JMS client would drop an expired message while a person browses."""
        site = Site()
        site.router.reconfigure(site.router.addresses.table, {"queue/#": AddressPolicy(expiry="deadletter/d")})
        client = site.client()
        past = Timestamp(site.router.now_ns() // 1_000_000 - 1)
        send(client, "queue/a", message("late", properties=["id", *[None] * 7, past, *behind]))
        client.receiver("queue/a")
        site.settle_down()
        (dead,) = client.received(client.receiver("deadletter/d", name="dead"))
        found = {each.code: decode(dead, each.value)[0] for each in s.sections(dead)}
        assert found[s.PROPERTIES] == ["id", *[None] * 8, *behind]
        assert found[s.DATA] == b"late"

    def test_absolute_expiry_time_becomes_a_time_to_live(self) -> None:
        site = Site()
        client = site.client()
        now_ms = site.router.now_ns() // 1_000_000
        fields = [None] * 8
        late = message("late", properties=[*fields, Timestamp(now_ms - 1)])
        soon = message("soon", properties=[*fields, Timestamp(now_ms + 5000)])
        send(client, "queue/a", late, soon)
        (got,) = client.received(client.receiver("queue/a"))
        assert parse_message(got).body == b"soon"
        assert read_header(got).ttl_ms == 5000
        assert [lost.reason for lost in site.store.ledger.entries(0, 10)] == ["expired"]


class TestBrowsing:
    def test_browsing_copies_and_leaves_messages(self) -> None:
        site = Site()
        client = site.client()
        send(client, "queue/a", *(message(str(i)) for i in range(5)))
        eater = client.receiver("queue/a", credit=2)
        client.engine.settle(eater, [0, 1])
        site.settle_down()
        browser = client.receiver(source("queue/a", distribution_mode="copy"), name="browse")
        assert bodies(client, browser) == [b"2", b"3", b"4"]
        assert client.deliveries(browser) == []
        send(client, "queue/a", message("5"))
        assert bodies(client, browser)[3:] == [b"5"]
        client.engine.grant(eater, 10)
        site.settle_down()
        assert bodies(client, eater) == [b"0", b"1", b"2", b"3", b"4", b"5"]

    def test_browsing_follows_credit_and_drains_at_the_end(self) -> None:
        site = Site()
        client = site.client()
        send(client, "queue/a", *(message(str(i)) for i in range(5)))
        browser = client.receiver(source("queue/a", distribution_mode="copy"), credit=2)
        assert bodies(client, browser) == [b"0", b"1"]
        client.engine.grant(browser, 10, drain=True)
        site.settle_down()
        assert bodies(client, browser) == [b"0", b"1", b"2", b"3", b"4"]
        assert of_kind(client.events, LinkFlow)[-1] == LinkFlow(browser, 0, True)

    def test_browsing_applies_a_selector(self) -> None:
        client = Site().client()
        send(client, "queue/a", *(message(str(i), application={"n": i}) for i in range(6)))
        wanted = source("queue/a", distribution_mode="copy", filters=selecting("n > 3"))
        assert bodies(client, client.receiver(wanted, credit=2)) == [b"4", b"5"]


class TestSelectors:
    def test_topic_selector_is_confirmed(self) -> None:
        client = Site().client()
        link = client.receiver(source("topic/a", filters=selecting("kind = 'x' AND JMSPriority = 4")))
        assert set(link.source.filters) == {"selector"}
        send(client, "topic/a", message("1", application={"kind": "x"}), message("2", application={"kind": "y"}))
        assert bodies(client, link) == [b"1"]

    def test_unselected_messages_of_a_durable_subscription_are_settled(self) -> None:
        site = Site()
        client = site.client()
        client.receiver(source("topic/a", durability=1, filters=selecting("kind = 'x'")))
        send(client, "topic/a", message("1"), message("2", application={"kind": "x"}))
        (durable,) = site.router.durable_subscriptions.values()
        assert sum(part.outstanding + part.backlog for part in durable.parts) == 1

    def test_user_properties_of_mqtt_can_be_selected(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver(source("topic/a", filters=selecting("room = 'kitchen'")))
        for room in ("hall", "kitchen"):
            properties = encode_run(Properties(user_property=(("room", room),)))
            site.router.publish(Publication(MqttDevice(), Run("topic/a", "m", 1, properties, [room.encode()]), ()))
        site.settle_down()
        assert bodies(client, link) == [b"kitchen"]

    @pytest.mark.parametrize("text", ["n >", 5])
    def test_invalid_selectors_are_refused(self, text: Any) -> None:
        client = Site().client()
        client.receiver(source("topic/a", filters=selecting(text)))
        (detached,) = of_kind(client.events, Detached)
        assert detached.condition.name == "amqp:invalid-field"

    def test_competing_consumers_of_a_queue_get_what_each_selects(self) -> None:
        client = Site().client()
        link = client.receiver(source("queue/a", filters=selecting("n > 1")), "high")
        assert set(link.source.filters) == {"selector"}
        send(client, "queue/a", *(message(str(i), application={"n": i}) for i in range(4)))
        assert bodies(client, link) == [b"2", b"3"]
        assert bodies(client, client.receiver("queue/a", "rest")) == [b"0", b"1"]

    def test_every_field_has_a_name(self) -> None:
        client = Site().client()
        text = (
            "header.priority = 7 AND header.durable AND JMSPriority = 7 AND properties.group_id = 'g' AND "
            "JMSXGroupID = 'g' AND properties.correlation_id = 'c' AND JMSType = 's' AND properties.subject = 's'"
        )
        link = client.receiver(source("queue/a", filters=selecting(text)))
        head = DescribedValue(Ulong(0x70), [True, Ubyte(7)])
        fields = DescribedValue(Ulong(0x73), [None, None, None, "s", None, "c", *[None] * 4, "g"])
        wanted = encode(head) + encode(fields) + message("yes")
        other = encode(head) + message("no")
        send(client, "queue/a", other, wanted)
        assert bodies(client, link) == [b"yes"]

    @pytest.mark.parametrize(
        ("identifier", "text"),
        [(UUID(int=7), f"ID:AMQP_UUID:{UUID(int=7)}"), (Ulong(7), "ID:AMQP_ULONG:7"), ("7", "7")],
    )
    def test_identifiers_are_accepted_as_jms_clients_write_them(self, identifier: Any, text: str) -> None:
        client = Site().client()
        selector = selecting(f"JMSMessageID = '{text}' AND JMSCorrelationID = '{text}'")
        link = client.receiver(source("queue/a", filters=selector))
        fields = DescribedValue(Ulong(0x73), [identifier, *[None] * 4, identifier])
        send(client, "queue/a", message("no"), encode(fields) + message("yes"))
        assert bodies(client, link) == [b"yes"]

    def test_user_properties_of_mqtt_can_be_selected_from_a_queue(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver(source("queue/a", filters=selecting("room = 'kitchen'")))
        for room in ("hall", "kitchen"):
            properties = encode_run(Properties(user_property=(("room", room),)))
            site.router.publish(Publication(MqttDevice(), Run("queue/a", "m", 1, properties, [room.encode()]), ()))
        site.settle_down()
        assert bodies(client, link) == [b"kitchen"]
        assert site.router.queues["queue/a"].backlog == 1


MANY = RETAINED_STEPS_MAX * 2


def full_of_retained() -> Site:
    site = Site()
    for i in range(MANY):
        site.router.retained.put(Run(f"topic/{i}", "m", RETAIN, b"", [b"%d" % i]), "")
    return site


class TestRetained:
    def test_retained_messages_pass_in_both_directions(self) -> None:
        site = Site()
        client = site.client()
        send(client, "topic/a", message("kept", annotations={Symbol("x-opt-retain-message"): True}))
        (kept,) = site.router.retained.matching("topic/a")
        assert kept.flags & RETAIN
        link = client.receiver("topic/#")
        assert bodies(client, link) == [b"kept"]
        assert parse_message(client.received(link)[0]).annotations == {"x-opt-retain-message": True}
        send(client, "topic/a", message("", annotations={Symbol("x-opt-retain-message"): True}))
        assert site.router.retained.matching("topic/a") == []

    @pytest.mark.parametrize(("mode", "settled"), [(0, [False, False]), (1, [True, True]), (2, [False, True])])
    def test_settlement_follows_link_and_message(self, mode: int, settled: list[bool]) -> None:
        """The sender decides per message in snd-settle-mode mixed (AMQP 1.0 section 2.8.2): a message that was
        published at least once is forwarded at least once."""
        site = Site()
        client = site.client()
        for qos in (1, 0):
            site.router.publish(Publication(MqttDevice(), Run(f"topic/{qos}", "m", qos | RETAIN, b"", [b"kept"]), ()))
        site.settle_down()
        link = client.receiver("topic/#", snd_settle_mode=mode)
        arrived = {}
        for event in of_kind(client.events, Transfers):
            for each in event.messages:
                arrived[parse_message(each).properties[2]] = event.settled
        assert [arrived["topic/1"], arrived["topic/0"]] == settled
        client.engine.settle(link, client.deliveries(link))
        site.settle_down()
        assert client.ended == []

    def test_renewed_subscription_gets_no_retained_messages(self) -> None:
        site = Site()
        client = site.client()
        site.router.publish(Publication(MqttDevice(), Run("topic/a", "m", 1 | RETAIN, b"", [b"kept"]), ()))
        site.settle_down()
        wanted = source("topic/a", durability=1)
        link = client.receiver(wanted)
        assert bodies(client, link) == [b"kept"]
        client.engine.detach(link, closed=False)
        site.settle_down()
        again = client.receiver(wanted)
        assert bodies(client, again) == []

    def test_each_turn_sends_a_part_until_all_are_sent(self) -> None:
        site = full_of_retained()
        client = site.client()
        link = client.engine.attach_receiver("r", "topic/#")
        client.engine.grant(link, MANY * 2)
        parts = [0]
        while client.carry():
            parts += [each._tag for each in client.session._links.outgoing]
        assert len(parts) > 3
        assert all(later - sooner <= RETAINED_STEPS_MAX for sooner, later in pairwise(parts))
        assert sorted(bodies(client, link)) == sorted(b"%d" % i for i in range(MANY))
        assert client.session._links.outgoing[0]._retained is None

    def test_credit_is_respected_and_drain_waits_for_all(self) -> None:
        site = full_of_retained()
        client = site.client()
        link = client.receiver("topic/#", credit=10)
        assert len(bodies(client, link)) == 10
        client.engine.grant(link, MANY, drain=True)
        site.settle_down()
        assert len(bodies(client, link)) == MANY
        assert link.credit == 0

    def test_replaced_message_is_not_sent(self) -> None:
        site = full_of_retained()
        client = site.client()
        link = client.receiver("topic/#", credit=1)
        sent = bodies(client, link)
        for i in range(MANY):
            site.router.publish(Publication(MqttDevice(), Run(f"topic/{i}", "m", RETAIN, b"", [b"new"]), ()))
        client.engine.grant(link, MANY * 2)
        site.settle_down()
        later = bodies(client, link)[1:]
        assert set(later) == {b"new"}, "none of the old ones but the first"
        assert len(sent) == 1

    def test_ended_link_gets_no_more_retained_messages(self) -> None:
        site = full_of_retained()
        client = site.client()
        link = client.engine.attach_receiver("r", "topic/#")
        client.engine.grant(link, MANY)
        while not site.turns:
            assert client.carry()
        client.engine.detach(link, closed=True)
        client.carry()
        site.settle_down()
        assert len(bodies(client, link)) <= RETAINED_STEPS_MAX
        assert not site.turns


def with_will(site: Site, **will: Any) -> Client:
    client = Client(site, "device-1")
    properties: dict[str, Any] = {Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in will.items()}
    client.engine = Engine(container_id="device-1", server=False, sasl=SaslClient(), properties=properties)
    client.engine.open()
    site.clients.append(client)
    site.settle_down()
    return client


class TestWill:
    WILL: ClassVar[dict[str, Any]] = {
        "will_address": "topic/gone",
        "will_body": b"bye",
        "mqtt_qos": 2,
        "retain_message": True,
    }

    def test_will_is_published_when_the_connection_breaks(self) -> None:
        site = Site()
        client = with_will(site, **self.WILL)
        client.cut()
        site.settle_down()
        (kept,) = site.router.retained.matching("topic/gone")
        assert (kept.bodies, kept.device, kept.qos) == ([b"bye"], "device-1", 2)

    def test_close_withdraws_the_will(self) -> None:
        site = Site()
        client = with_will(site, **self.WILL)
        client.engine.close()
        site.settle_down()
        assert client.ended == [None]
        assert not len(site.router.retained)

    @pytest.mark.parametrize(
        "change",
        [
            {"will_address": "a/#"},
            {"will_address": 5},
            {"will_body": "x" * (WILL_BYTES_MAX + 1)},
            {"will_body": 5},
            {"mqtt_qos": 3},
        ],
    )
    def test_invalid_will_is_refused_at_once(self, change: dict[str, Any]) -> None:
        site = Site()
        client = with_will(site, **{**self.WILL, **change})
        client.cut()
        site.settle_down()
        (ended,) = client.ended
        assert ended is None or isinstance(ended, Condition)
        assert not len(site.router.retained)


def ask(client: Client, service: str, application: dict[str, Any], body: Any = None) -> tuple[dict[str, Any], Any]:
    """Send one request over new links; return (application properties, body) of the answer."""
    number = len(client.events)
    answers = client.receiver(source(service), name=f"answers {number}", target=target(f"me {number}"))
    request = section(s.PROPERTIES, ["id-1", None, None, None, f"me {number}"])
    request += section(s.APPLICATION_PROPERTIES, application) + section(s.VALUE, body)
    link = client.sender(service, name=f"ask {number}")
    client.engine.send(link, 0, request)
    client.site.settle_down()
    assert client.outcomes(link) == [(0, DeliveryState.ACCEPTED, None)]
    (answer,) = client.received(answers)
    _, properties, payload = payload_of(answer[s.bare_message(answer)[1] :])
    assert properties["correlation-id"] == "id-1"
    return properties["application-properties"], json.loads(payload)


class TestManagement:
    def test_query_and_read_are_answered(self) -> None:
        site = Site()
        client = site.client()
        send(client, "queue/a", message("1"), message("2"))
        client.receiver("queue/a", credit=1)
        wanted = {"attributeNames": ["name", "messages", "unsettled", "consumers"]}
        application, body = ask(client, "$management", {"operation": "QUERY"}, wanted)
        assert application["statusCode"] == 200
        assert body["attributeNames"] == wanted["attributeNames"]
        assert ["queue/a", 1, 1, 1] in body["results"]
        assert ["anycast/#", 0, 0, 0] in body["results"]
        application, body = ask(client, "$management", {"operation": "READ", "name": "queue/a"})
        assert (application["statusCode"], body["addressType"]) == (200, "queue")

    @pytest.mark.parametrize(
        ("application", "status"),
        [
            ({"operation": "READ", "name": "nothing"}, 404),
            ({"operation": "CREATE", "name": "queue/x"}, 501),
            ({"operation": "QUERY", "offset": -1}, 400),
            ({"operation": "DANCE"}, 400),
            ({"operation": "QUERY", "entityType": "org.apache.qpid.dispatch.router.node"}, 400),
            ({"operation": "GET-MGMT-NODES"}, 200),
            ({"operation": "GET-TYPES"}, 200),
        ],
    )
    def test_status_is_answered(self, application: dict[str, Any], status: int) -> None:
        assert ask(Site().client(), "$management", application)[0]["statusCode"] == status

    def test_answers_are_bounded(self) -> None:
        site = Site()
        client = site.client()
        for i in range(MANAGEMENT_RESULTS_MAX + 1):
            site.router.publish(Publication(MqttDevice(), Run(f"queue/{i}", "m", 1, b"", [b""]), ()))
        site.settle_down()
        request = {"operation": "QUERY", "entityType": "io.waypost.address"}
        _, body = ask(client, "$management", request)
        assert len(body["results"]) == MANAGEMENT_RESULTS_MAX
        _, rest = ask(client, "$management", {**request, "offset": MANAGEMENT_RESULTS_MAX})
        names = {row[0] for row in body["results"] + rest["results"]}
        assert {f"queue/{i}" for i in range(MANAGEMENT_RESULTS_MAX + 1)} <= names

    @pytest.mark.parametrize("kind", ["connection", "router.link", "router.address"])
    def test_answers_about_connections_and_links_are_bounded(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        monkeypatch.setattr(services, "MANAGEMENT_RESULTS_MAX", 3)
        site = Site()
        clients = [site.client(f"device-{i}") for i in range(5)]
        for i, each in enumerate(clients):
            each.receiver(f"topic/{i}")
        request = {"operation": "QUERY", "entityType": f"org.apache.qpid.dispatch.{kind}"}
        wanted = {"attributeNames": ["identity"]}
        found: list[Any] = []
        for offset in range(0, 30, 3):
            _, body = ask(clients[0], "$management", {**request, "offset": offset, "count": 500}, wanted)
            assert len(body["results"]) <= 3
            found += body["results"]
        assert len({row[0] for row in found}) >= 5

    def test_closed_connection_is_not_listed(self) -> None:
        site = Site()
        client, other = site.client("one"), site.client("two")
        request = {"operation": "QUERY", "entityType": "org.apache.qpid.dispatch.connection"}
        wanted = {"attributeNames": ["container"]}
        assert ask(client, "$management", request, wanted)[1]["results"] == [["one"], ["two"]]
        other.cut()
        site.settle_down()
        assert ask(client, "$management", request, wanted)[1]["results"] == [["one"]]

    def test_answer_opens_no_queue(self) -> None:
        """An answer about queues opens none of them, as a user may have 100 000."""
        site = Site()
        for i in range(50):
            site.router.publish(Publication(MqttDevice(), Run(f"queue/{i}", "m", 1, b"", [b"", b""]), ()))
        site.settle_down()
        assert not site.router.queues.opened
        client = site.client()
        _, body = ask(client, "$management", {"operation": "QUERY"}, {"attributeNames": ["name", "messages"]})
        assert [each for each in body["results"] if each[0].startswith("queue/") and each[1]] == [
            [address, 2] for address in sorted(f"queue/{i}" for i in range(50))
        ]
        _, found = ask(client, "$management", {"operation": "READ", "name": "queue/7"})
        assert (found["messages"], found["unsettled"], found["consumers"]) == (2, 0, 0)
        _, none = ask(client, "$management", {"operation": "QUERY", "offset": 2**63})
        assert none["results"] == []
        assert not site.router.queues.opened

    def test_request_without_a_reply_address_is_rejected(self) -> None:
        client = Site().client()
        link = client.sender("$management")
        client.engine.send(link, 0, section(s.APPLICATION_PROPERTIES, {"operation": "QUERY"}) + section(s.VALUE, None))
        client.site.settle_down()
        ((_, state, condition),) = client.outcomes(link)
        assert condition is not None
        assert (state, condition.name) == (DeliveryState.REJECTED, "amqp:invalid-field")

    def test_put_token_is_answered(self) -> None:
        application, _ = ask(Site().client(), "$cbs", {"operation": "put-token", "type": "jwt"}, "token")
        assert application["status-code"] == 202
