"""Forwarders to an HTTP endpoint, from the router to the outcome in the store."""

from __future__ import annotations

import json

from bridge.connectors.settings import HttpSettings
from edge.broker.configuration import AddressConfiguration, Connector, ConnectorType, EndpointHost
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from tests.integration.forwarders.gateways import Receiver, Sender, eventually, gateways, out, scenario
from tests.support.web_peer import Reply, Request, WebPeer

MESSAGES = 3_000


def http_to(*ports: int, **settings: object) -> Connector:
    return Connector(
        name="peer",
        type=ConnectorType.HTTP,
        hosts=tuple(EndpointHost(host="127.0.0.1", port=port) for port in ports),
        http=HttpSettings(**{"batch_age_s": 0.01, **settings}),  # type: ignore[arg-type]
    )


class Collector:
    """Endpoint that takes batches and drops duplicates by their name."""

    def __init__(self) -> None:
        self.items: list[tuple[int, str]] = []
        self.repeated = 0
        self.failures: list[Reply] = []
        self._seen: set[str] = set()

    def __call__(self, request: Request) -> Reply:
        name = request.headers["idempotency-key"]
        self.repeated += name in self._seen
        if name not in self._seen:
            self._seen.add(name)
            self.items += [(item["sequence"], item["body"]) for item in json.loads(request.body)]
        return self.failures.pop() if self.failures else Reply()  # the batch is taken, but the answer is lost


@scenario
async def test_lost_answers_lose_and_repeat_no_message() -> None:
    collector = Collector()
    collector.failures = [Reply(503), Reply(hang_up=True), Reply(500), Reply(hang_up=True)]
    async with WebPeer(collector).serving() as peer, gateways("gw1") as (near,):
        await near.configure(http_to(peer.port), out("f", "plant/#", "cloud/#"))
        sender = Sender(near.broker)
        for start in range(0, MESSAGES, 100):
            sender.publish("plant/7", *(b"n%d" % n for n in range(start, start + 100)))
        while collector.failures:
            left = len(collector.failures)
            near.connector().dialer.resume()
            await eventually(lambda left=left: len(collector.failures) < left)
        near.connector().dialer.resume()
        await eventually(lambda: near.connector().backlog == 0)
    assert [body for _, body in collector.items] == [f"n{n}" for n in range(MESSAGES)]
    assert collector.repeated == 4


@scenario
async def test_message_that_the_server_always_refuses_becomes_a_dead_letter() -> None:
    answer = lambda request: Reply(422, body=b"no") if b"poison" in request.body else Reply()  # noqa: E731
    rules = (
        AddressConfiguration(AddressRule("plant/#", AddressType.TOPIC), AddressPolicy(deadletter="dead")),
        AddressConfiguration(AddressRule("dead", AddressType.DEADLETTER)),
    )
    async with WebPeer(answer).serving() as peer, gateways("gw1") as (near,):
        await near.configure(http_to(peer.port), out("f", "plant/#", "cloud/#"), addresses=rules)
        dead = Receiver(near.broker, "dead")
        Sender(near.broker).publish("plant/7", b"1", b"2", b"poison", b"4")
        await eventually(lambda: near.connector().backlog == 0)
        await eventually(lambda: [run.bodies for run in dead.runs] == [[b"poison"]])
        assert near.connector().figures.messages_rejected == 1


@scenario
async def test_second_endpoint_is_used_while_the_first_is_down() -> None:
    async with WebPeer(lambda _: Reply()).serving() as away:
        pass
    async with WebPeer(lambda _: Reply()).serving() as peer, gateways("gw1") as (near,):
        await near.configure(http_to(away.port, peer.port), out("f", "plant/#", "cloud/#"))
        Sender(near.broker).publish("plant/7", b"1")
        await eventually(lambda: near.connector().figures.messages_accepted == 1)
        assert near.connector().dialer.state.endpoint == f"http://127.0.0.1:{peer.port}"


@scenario
async def test_removed_connector_leaves_its_messages_in_the_store() -> None:
    """Messages of a removed connector stay in the store; a late answer to them has no effect."""
    held: list[Request] = []

    def answer(request: Request) -> Reply:
        held.append(request)
        return Reply(503)

    async with WebPeer(answer).serving() as peer, gateways("gw1") as (near,):
        await near.configure(http_to(peer.port), out("f", "plant/#", "cloud/#"))
        Sender(near.broker).publish("plant/7", b"1", b"2")
        await eventually(lambda: held)
        await near.configure(None)
        assert near.store.info().messages == 2
