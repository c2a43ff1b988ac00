"""Addresses are created, changed and deleted over AMQP on a running gateway, and survive a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse

from tests.support.amqp_client import connect_amqp
from tests.support.processes import edge

WAIT_S = 20.0


def ask(connection: BlockingConnection, operation: str, name: str, body: Any = None) -> Message:
    client = SyncRequestResponse(connection, "$management")
    try:
        properties = {"operation": operation, "type": "io.waypost.address", "name": name}
        return client.call(Message(properties=properties, body=body or {}))
    finally:
        client.receiver.close()
        client.sender.close()


def test_create_use_change_restart_delete(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        connection = connect_amqp(gateway)
        made = ask(connection, "CREATE", "orders", {"addressType": "queue"})
        assert made.properties["statusCode"] == 201
        connection.create_sender("orders").send(Message(body="kept", durable=True))
        wrong = ask(connection, "UPDATE", "orders", {"whenFull": "explode"})
        assert wrong.properties["statusCode"] == 400
        assert "spec.whenFull" in wrong.properties["statusDescription"]
        assert ask(connection, "UPDATE", "orders", {"maxConsumers": 1}).properties["statusCode"] == 200
        assert ask(connection, "CREATE", "orders", {"addressType": "queue"}).properties["statusCode"] == 409
        connection.close()
        assert gateway.stop() == 0
        gateway.start()
        connection = connect_amqp(gateway)
        read = ask(connection, "READ", "orders")
        assert (read.body["addressType"], read.body["messages"]) == ("queue", 1)
        receiver = connection.create_receiver("orders", credit=1)
        assert receiver.receive(timeout=WAIT_S).body == "kept"
        receiver.accept()
        receiver.close()
        assert ask(connection, "DELETE", "orders").properties["statusCode"] == 204
        assert ask(connection, "DELETE", "orders").properties["statusCode"] == 404
        connection.close()


def test_gateway_that_follows_a_file_refuses_changes_over_amqp(tmp_path: Path) -> None:
    resources = tmp_path / "gateway.yaml"
    resources.write_text(
        "apiVersion: waypost/v1\nkind: AddressSpace\nmetadata: {name: default}\n"
        "spec: {authenticationService: {name: none}}\n"
    )
    with edge(tmp_path, "gw", "--config", str(resources)) as gateway:
        connection = connect_amqp(gateway)
        answer = ask(connection, "CREATE", "orders", {"addressType": "queue"})
        assert answer.properties["statusCode"] == 501
        assert "file" in answer.properties["statusDescription"]
        connection.close()


QDSTAT_CONNECTION = (
    "identity", "host", "container", "role", "dir", "isAuthenticated", "isEncrypted", "sasl", "sslProto", "sslCipher",
    "user",
)  # fmt: skip
QDSTAT_LINK = (
    "linkType", "linkDir", "connectionId", "identity", "peer", "owningAddr", "capacity", "undeliveredCount",
    "unsettledCount", "deliveryCount", "presettledCount", "acceptedCount", "rejectedCount", "releasedCount",
    "modifiedCount", "adminStatus", "operStatus", "linkName",
)  # fmt: skip
QDSTAT_ADDRESS = (
    "name", "distribution", "inProcess", "subscriberCount", "remoteCount", "containerCount", "deliveriesIngress",
    "deliveriesEgress", "deliveriesTransit", "deliveriesToContainer", "deliveriesFromContainer",
)  # fmt: skip
"""Attributes that qdstat reads of each row; qdstat fails if one is missing."""


def query(connection: BlockingConnection, kind: str, *names: str) -> list[dict[str, Any]]:
    """Query entities of one of Dispatch's types as qdstat does."""
    client = SyncRequestResponse(connection, "$management")
    try:
        properties = {
            "operation": "QUERY", "type": "org.amqp.management", "name": "self", "offset": 0, "count": 500,
            "entityType": f"org.apache.qpid.dispatch.{kind}",
        }  # fmt: skip
        answer = client.call(Message(properties=properties, body={"attributeNames": list(names)}))
        assert answer.properties["statusCode"] == 200, answer.properties
        return [dict(zip(answer.body["attributeNames"], row, strict=True)) for row in answer.body["results"]]
    finally:
        client.receiver.close()
        client.sender.close()


def test_connections_links_and_addresses_are_listed_as_qdstat_reads_them(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        port = gateway.port("amqp")
        device = BlockingConnection(f"127.0.0.1:{port}", timeout=WAIT_S)
        for address in ("queue/stock", "queue/later"):
            device.create_sender(address, name=address).send(Message(body="kept", durable=True))
        worker = BlockingConnection(f"127.0.0.1:{port}", timeout=WAIT_S)
        receiver = worker.create_receiver("queue/stock", credit=5)
        assert receiver.receive(timeout=WAIT_S).body == "kept"  # received but not settled
        live = worker.create_receiver("topic/live", credit=3)
        admin = BlockingConnection(f"127.0.0.1:{port}", timeout=WAIT_S)

        assert len(query(admin, "router")) == 1  # qdstat reads its id first
        connections = query(admin, "connection")
        containers = [each.container.container_id for each in (device, worker, admin)]
        assert [row["container"] for row in connections] == containers
        assert {row["host"].rpartition(":")[0] for row in connections} == {"127.0.0.1"}
        assert {(row["user"], row["isAuthenticated"], row["isEncrypted"]) for row in connections} == {
            (None, False, False)
        }
        assert {row["sasl"] for row in connections} == {"ANONYMOUS"}
        assert set(QDSTAT_CONNECTION) <= connections[0].keys()

        found = query(admin, "router.link", *QDSTAT_LINK, "credit")
        links = {(row["owningAddr"], row["linkDir"]): row for row in found}
        incoming, outgoing = links["M0queue/stock", "in"], links["M0queue/stock", "out"]
        assert incoming.keys() == {*QDSTAT_LINK, "credit"}
        assert (incoming["connectionId"], incoming["deliveryCount"]) == (connections[0]["identity"], 1)
        assert outgoing["connectionId"] == connections[1]["identity"]
        assert (outgoing["deliveryCount"], outgoing["unsettledCount"]) == (1, 1)
        assert links["M0topic/live", "out"]["credit"] == 3
        assert ("L$management", "in") in links

        found = query(admin, "router.address", *QDSTAT_ADDRESS, "messages", "unsettled", "no such attribute")
        addresses = {row["name"]: row for row in found}
        assert addresses["M0queue/stock"].keys() == {*QDSTAT_ADDRESS, "messages", "unsettled"}
        stock, topic = addresses["M0queue/stock"], addresses["M0topic/live"]
        assert (stock["distribution"], stock["subscriberCount"]) == ("balanced", 1)
        assert (stock["messages"], stock["unsettled"]) == (0, 1)
        later = addresses["M0queue/later"]
        assert (later["subscriberCount"], later["messages"], later["unsettled"]) == (0, 1, 0)
        assert (topic["distribution"], topic["subscriberCount"]) == ("multicast", 1)
        live.close()
        for connection in (admin, worker, device):
            connection.close()
