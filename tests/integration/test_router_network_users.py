"""Gateways as processes that link as routers: rights of their users, and clients of Qpid Proton at both ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message
from proton.utils import BlockingReceiver, SendException

from tests.support.amqp_client import amqp_client
from tests.support.command import output_of
from tests.support.linked_gateways import LOWER, ROUTER, gateway, upper
from tests.support.processes import Waypost, wait_until


def connector(lower: Waypost) -> dict[str, Any]:
    status = json.loads(output_of("bridge", "status", "--data", str(lower.data), "--json"))
    (item,) = status["items"]
    (found,) = item["connectors"]
    return dict(found)


def test_a_client_at_one_gateway_sends_to_a_client_at_the_other(tmp_path: Path) -> None:
    with sent_and_received(tmp_path) as (sent, receiver, got):
        assert (got.body, got.id, got.reply_to, got.properties) == ("weld", "m-1", "answers", {"line": 7})
        receiver.accept()
        receiver.close()
        assert sent.result(20).remote_state == Delivery.ACCEPTED


def test_a_sender_loses_its_credit_when_the_last_consumer_leaves_the_other_gateway(tmp_path: Path) -> None:
    with (
        upper(tmp_path, ROUTER) as far,
        gateway(tmp_path, "lower", LOWER.format(name="lower", port=far.port("amqp"))) as near,
        amqp_client(far, user="worker", password="secret") as worker,
        amqp_client(near) as client,
    ):
        receiver = worker.create_receiver("jobs/7", credit=10)
        sender = client.create_sender("jobs/7")
        client.wait(lambda: sender.link.credit == 10, timeout=20, msg="the credit of the consumer")
        receiver.close()
        client.wait(lambda: sender.link.drain_mode, timeout=20, msg="a drain")
        sender.link.drained()
        client.wait(lambda: sender.link.credit == 0, timeout=20, msg="no credit without a consumer")


def test_an_outcome_with_its_condition_reaches_the_sender_at_the_other_gateway(tmp_path: Path) -> None:
    with sent_and_received(tmp_path) as (sent, receiver, _):
        receiver.reject()
        receiver.close()
        with pytest.raises(SendException) as caught:
            sent.result(20)
        assert caught.value.state == Delivery.REJECTED


@contextmanager
def sent_and_received(folder: Path) -> Iterator[tuple[Future[Any], BlockingReceiver, Message]]:
    """Send at the lower gateway, on a thread, what a worker receives at the upper one."""
    message = Message(body="weld", id="m-1", reply_to="answers", properties={"line": 7})
    with (
        upper(folder, ROUTER) as far,
        gateway(folder, "lower", LOWER.format(name="lower", port=far.port("amqp"))) as near,
        amqp_client(far, user="worker", password="secret") as worker,
        amqp_client(near) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        receiver = worker.create_receiver("jobs/7", credit=10)
        sent = pool.submit(lambda: client.create_sender("jobs/7").send(message))
        yield sent, receiver, receiver.receive(timeout=20)


@pytest.mark.parametrize(
    "rule",
    ['{addresses: ["jobs/#"], operations: [send, recv, manage]}', '{addresses: ["#"], operations: [relay, manage]}'],
)
def test_a_user_without_the_right_links_no_router(rule: str, tmp_path: Path) -> None:
    with (
        upper(tmp_path, rule) as far,
        gateway(tmp_path, "lower", LOWER.format(name="lower", port=far.port("amqp"))) as near,
    ):
        wait_until(lambda: bool(connector(near)["last_error"]), timeout_s=30, what="a refused link", every_s=0.5)
        found = connector(near)
        assert found["state"] == "connecting"
        assert "amqp:unauthorized-access" in found["last_error"]
