"""Addresses made, changed and deleted over AMQP on a running gateway, and there after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse

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
        connection = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S)
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
        connection = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S)
        read = ask(connection, "READ", "orders")
        assert (read.body["addressType"], read.body["messages"]) == ("queue", 1)
        receiver = connection.create_receiver("orders", credit=1)
        assert receiver.receive(timeout=WAIT_S).body == "kept"
        receiver.accept()
        receiver.close()
        assert ask(connection, "DELETE", "orders").properties["statusCode"] == 204
        assert ask(connection, "DELETE", "orders").properties["statusCode"] == 404
        connection.close()


def test_a_gateway_that_follows_a_file_says_so(tmp_path: Path) -> None:
    resources = tmp_path / "gateway.yaml"
    resources.write_text(
        "apiVersion: waypost/v1\nkind: AddressSpace\nmetadata: {name: default}\n"
        "spec: {authenticationService: {name: none}}\n"
    )
    with edge(tmp_path, "gw", "--config", str(resources)) as gateway:
        connection = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S)
        answer = ask(connection, "CREATE", "orders", {"addressType": "queue"})
        assert answer.properties["statusCode"] == 501
        assert "file" in answer.properties["statusDescription"]
        connection.close()
