"""Addresses change while clients are connected: no client waits at a deleted one, and no stored message is lost."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message
from proton.utils import LinkDetached

from tests.support.amqp_client import amqp_client, detached_with
from tests.support.command import output_of
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge, wait_until

WAIT_S = 20.0


class Site:
    """Gateway that follows applied changes."""

    def __init__(self, folder: Path) -> None:
        self.gateway: Waypost = edge(folder, "gw")
        self._folder = folder
        self._changes = 0

    def put(self, types: dict[str, str], extra: str = "") -> None:
        """Apply addresses and their types; a resource is named after the first level of its address."""
        file = self._folder / "addresses.yaml"
        file.write_text(
            "---\n".join(
                "apiVersion: enmasse.io/v1beta1\nkind: Address\n"
                f"metadata: {{name: default.{address.split('/')[0]}}}\n"
                f'spec: {{address: "{address}", type: {kind}{extra}}}\n'
                for address, kind in types.items()
            )
        )
        self._change("apply", "-f", str(file))

    def drop(self, *names: str) -> None:
        for name in names:
            self._change("delete", "Address", f"default.{name}")

    def _change(self, command: str, *arguments: str) -> None:
        """Run a command and wait until the gateway has followed."""
        output_of(command, "--data", str(self._folder / "gw"), *arguments)
        self._changes += 1
        wait_until(self._followed, timeout_s=WAIT_S, what=f"{command} is followed")

    def _followed(self) -> bool:
        return self.gateway.log.read_text().count("configuration applied") >= self._changes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.gateway:
        yield made


@pytest.mark.parametrize("clean", [True, False])
def test_mqtt_subscriptions_follow_their_address(site: Site, clean: bool) -> None:
    kinds = ("queue", "anycast", "multicast")
    changes = (lambda: None, lambda: site.put({kind: kind for kind in kinds}), lambda: site.drop(*kinds))
    with (
        mqtt_client(site.gateway, "taker", version=5, clean=clean) as taker,
        mqtt_client(site.gateway, "giver") as giver,
    ):
        for kind in kinds:
            taker.subscribe(kind, 1)
        for i, change in enumerate(changes):
            change()
            for kind in kinds:
                giver.publish(kind, b"%d" % i, 1)
                assert taker.get()[:2] == (kind, b"%d" % i)
        with pytest.raises(queue.Empty):
            taker.received.get(timeout=0.5)


def test_amqp_links_end_when_their_address_does(site: Site) -> None:
    """Links end with a condition so that clients attach again; links to unchanged addresses stay."""
    site.put({"jobs": "queue"})
    with amqp_client(site.gateway) as connection:
        receiver = connection.create_receiver("jobs", credit=1)
        sender = connection.create_sender("jobs")
        other = connection.create_sender("other")
        site.drop("jobs")
        with pytest.raises(LinkDetached, match="topic") as caught:
            receiver.receive(timeout=WAIT_S)
        assert caught.value.condition == "amqp:resource-deleted"
        with detached_with("amqp:resource-deleted"):
            sender.send(Message(body="x"))
        other.send(Message(body="x"))
        again = connection.create_receiver("jobs", credit=1)
        connection.create_sender("jobs").send(Message(body="anew"))
        assert again.receive(timeout=WAIT_S).body == "anew"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("becomes", ["topic", "queue"])
def test_messages_stored_under_an_older_rule_are_delivered(site: Site, becomes: str, restarted: bool) -> None:
    """An acknowledged message is delivered although its rule was deleted or its address became a queue."""
    site.put({"plant/#": "topic"})
    with mqtt_client(site.gateway, "keeper", version=5, clean=False) as keeper:
        keeper.subscribe("plant/1", 1)
    with mqtt_client(site.gateway, "giver") as giver:
        giver.publish("plant/1", b"kept", 1)
        if becomes == "topic":
            site.drop("plant")
        else:
            site.put({"plant/#": "queue"})
        giver.publish("plant/1", b"after", 1)
    if restarted:
        site.gateway.stop()
        site.gateway.start()
    with mqtt_client(site.gateway, "keeper", version=5, clean=False) as keeper:
        assert keeper.session_present
        assert sorted(keeper.bodies(2)) == [b"after", b"kept"]
    with mqtt_client(site.gateway, "keeper", version=5, clean=False) as keeper, pytest.raises(queue.Empty):
        keeper.received.get(timeout=0.5)


def test_session_resumes_although_its_queue_is_at_the_consumer_limit(site: Site) -> None:
    """At the consumer limit of a queue the subscription fails but the connection stays."""
    site.put({"jobs": "queue"}, ", maxConsumers: 1")
    with mqtt_client(site.gateway, "first", version=5, clean=False) as first:
        first.subscribe("jobs", 1)
        first.subscribe("plant/1", 1)
    with mqtt_client(site.gateway, "second") as second:
        assert second.subscribe("jobs", 1) == [1]
        with mqtt_client(site.gateway, "first", version=5, clean=False) as first:
            assert first.session_present
            second.publish("plant/1", b"still mine", 1)
            assert first.bodies(1) == [b"still mine"]
            assert first.subscribe("jobs", 1) == [0x97]
