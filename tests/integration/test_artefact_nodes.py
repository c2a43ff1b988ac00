"""Devices that speak only AMQP: offers, chunks and reports, as `docs/how-to/update-devices-over-amqp.md` says."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest
from proton import Delivery, Message
from proton.reactor import AtMostOnce
from proton.utils import BlockingConnection, LinkDetached, SendException

from edge.appliance.artefacts.limits import CHUNK_BYTES_MAX, CONNECTION_REQUESTS_MAX
from tests.support.amqp_client import connect_amqp, detached_with
from tests.support.artefacts import sealed
from tests.support.configured_gateway import gateway_with, resources
from tests.support.device_artefacts import IMAGE, WAIT_S, gateway_with_image, reports
from tests.support.node import rhea
from tests.support.processes import Waypost, wait_until

DIGEST: Final = hashlib.sha256(IMAGE).hexdigest()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Waypost]:
    """Run a gateway of one test."""
    with gateway_with_image(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Run a gateway; each test has its own device."""
    with gateway_with_image(tmp_path_factory.mktemp("nodes")) as made:
        yield made


def connected(gateway: Waypost, name: str) -> BlockingConnection:
    """Connect as a user."""
    return connect_amqp(gateway, user=name, password=name, allowed_mechs="PLAIN")


class AmqpDevice:
    """Device with Qpid Proton, as the description says it."""

    def __init__(self, gateway: Waypost, name: str, *, credit: int = CONNECTION_REQUESTS_MAX) -> None:
        self._gateway = gateway
        self._name = name
        self._credit = credit
        self.node = f"$artefacts/{name}"
        self.requests = 0

    def __enter__(self) -> Self:
        self.connection = connected(self._gateway, self._name)
        wait_until(self._attached, timeout_s=WAIT_S, what="the gateway serves artefacts", every_s=0.2)
        self.sender = self.connection.create_sender(self.node)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # of a killed gateway
            self.connection.close()

    def _attached(self) -> bool:
        try:
            self.receiver = self.connection.create_receiver(self.node, credit=self._credit)
        except LinkDetached:
            return False
        return True

    def reconnect(self) -> None:
        """Connect again, after a restart of the gateway."""
        self.__enter__()

    def ask(self, request: str, body: bytes = b"", **fields: Any) -> Message:
        """Return the answer to a request."""
        self.requests += 1
        self.sender.send(Message(body, subject=f"get/{request}", **fields))
        answer = self.receiver.receive(timeout=WAIT_S)
        self.receiver.accept()
        answer.body = bytes(answer.body)  # before, it points into the memory of the message
        return answer

    def offer(self, **said: str) -> dict[str, Any] | None:
        """Return what is offered, once the gateway has read its artefacts."""
        found: list[dict[str, Any]] = []

        def is_known() -> bool:
            found.append(json.loads(self.ask("offer", json.dumps(said).encode()).body))
            return found[-1].get("status") != 503

        wait_until(is_known, timeout_s=WAIT_S, what="the gateway knows its artefacts", every_s=0.2)
        return found[-1]["artefact"]  # type: ignore[no-any-return]

    def chunk(self, digest: str, offset: int, length: int) -> bytes:
        """Return bytes of an image or a manifest."""
        answer = self.ask(f"chunk/{digest}/{offset}/{length}")
        assert answer.subject == f"chunk/{digest}/{offset}", answer.body
        return bytes(answer.body)

    def refused(self, request: str, body: bytes = b"") -> int:
        """Return the status of a request that is refused."""
        answer = self.ask(request, body)
        assert answer.subject.startswith("refused/")
        return int(json.loads(answer.body)["status"])

    def report(self, **said: str) -> None:
        """Send a report; it is on disk on return."""
        self.sender.send(Message(json.dumps(said).encode(), subject="report"))

    def download(self, before: Callable[[int], None] = lambda have: None) -> bytes:
        """Return the offered image. `before` is called with the bytes that are here, before each request."""
        offer = self.offer(board="pico-w")
        assert offer is not None
        have = b""
        while len(have) < offer["size"]:
            before(len(have))
            have += self.chunk(offer["sha256"], len(have), offer["chunk_bytes_max"])
        assert hashlib.sha256(have).hexdigest() == offer["sha256"]
        return have


def test_update(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-1") as device:
        offer = device.offer(board="pico-w")
        assert offer is not None
        assert base64.b64decode(offer["manifest"]) == sealed(IMAGE)
        assert device.download() == IMAGE
        device.report(artefact="blinker", version="1.2.0", state="verified")
        assert reports(gateway, "pump-1") == ["verified"]
        have = b"".join(device.chunk(offer["manifest_sha256"], at, 100) for at in range(0, offer["manifest_size"], 100))
        assert have == sealed(IMAGE)


@pytest.mark.slow
def test_update_survives_kills_of_the_gateway(fresh: Waypost) -> None:
    def kill(have: int) -> None:
        if have in (3 * CHUNK_BYTES_MAX, 5 * CHUNK_BYTES_MAX):
            fresh.kill()
            fresh.start()
            device.reconnect()

    with AmqpDevice(fresh, "pump-1") as device:
        assert device.download(kill) == IMAGE
        device.report(artefact="blinker", version="1.2.0", state="installed")
        fresh.kill()
        fresh.start()
        device.reconnect()
        assert reports(fresh, "pump-1") == ["installed"], "it was accepted, so it is on disk"


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, CHUNK_BYTES_MAX + 10])
def test_image_that_vanishes_or_is_cut_during_a_download(fresh: Waypost, size: int | None) -> None:
    (image,) = (path for path in fresh.data.rglob("*.image") if path.stat().st_size == len(IMAGE))
    with AmqpDevice(fresh, "pump-1") as device:
        assert device.offer(board="pico-w") is not None
        assert len(device.chunk(DIGEST, 0, CHUNK_BYTES_MAX)) == CHUNK_BYTES_MAX
        if size is None:
            image.unlink()
        else:
            with image.open("r+b") as file:
                file.truncate(size)
        assert device.refused(f"chunk/{DIGEST}/{2 * CHUNK_BYTES_MAX}/100") in (404, 503), "never other bytes"


def test_finished_update_is_not_offered_again(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-3") as device:
        assert device.offer(board="esp32") is None
        assert device.offer(board="pico-w") is not None
        device.report(artefact="blinker", version="1.2.0", state="rolled-back", reason="no room")
        wait_until(lambda: device.offer() is None, timeout_s=WAIT_S, what="the report is noted")
        assert reports(gateway, "pump-3") == ["rolled-back"]


def test_refusals(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-5") as device:
        assert device.refused(f"chunk/{DIGEST}/{len(IMAGE)}/10") == 416
        assert device.refused(f"chunk/{'0' * 64}/0/10") == 404
        assert device.offer(board="esp32") is None
        assert device.refused(f"chunk/{DIGEST}/0/10") == 422, "it is for another board"
        assert device.refused("offer", b"{") == 400
        answer = device.ask("offer", correlation_id=17)
        assert (answer.correlation_id, answer.content_type) == (17, "application/json")
        assert rejected(device, Message(b"{}", subject="get/nothing")) == "amqp:not-found"
        assert rejected(device, Message(b'{"state": "eaten"}', subject="report")) != ""
        device.report(artefact="blinker", version="1.2.0", state="verified")
        assert reports(gateway, "pump-5") == ["verified"]


def rejected(device: AmqpDevice, message: Message) -> str:
    """Send a message that is rejected; return the condition."""
    sent = device.sender.link.send(message)
    device.connection.wait(lambda: sent.settled, timeout=WAIT_S)
    assert sent.remote_state == Delivery.REJECTED
    return str(sent.remote.condition.name)


def test_attaches_that_are_refused(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-2") as device:
        for attach in (device.connection.create_receiver, device.connection.create_sender):
            for name in ("pump-1", "", "pump-2/get"):
                with detached_with("amqp:unauthorized-access"):
                    attach(f"$artefacts/{name}")
        with detached_with("amqp:not-implemented"):
            device.connection.create_receiver(device.node, name="settled", options=AtMostOnce())
        relay = device.connection.create_sender(None)
        with pytest.raises(SendException):
            relay.send(Message(b"", address=f"{device.node}/report"))


def test_request_before_the_receiver_is_rejected(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-6") as device:
        device.receiver.close()
        assert rejected(device, Message(b"", subject="get/offer")) == "amqp:precondition-failed"


def test_answers_wait_for_credit_and_for_room(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-7", credit=1) as device:
        device.offer(board="pico-w")  # it grants one more credit with each receive
        receiver = device.receiver
        wanted = [f"get/chunk/{DIGEST}/{at}/{CHUNK_BYTES_MAX}" for at in range(CONNECTION_REQUESTS_MAX)]
        requests = [device.sender.link.send(Message(b"", subject=each)) for each in wanted]
        credit = receiver.link.credit
        device.connection.wait(lambda: sum(each.settled for each in requests) == credit, timeout=WAIT_S)
        assert rejected_none(requests)
        assert device.sender.link.credit == credit, "the gateway takes as many requests as it answers"
        receiver.link.flow(8)
        device.connection.wait(lambda: all(each.settled for each in requests), timeout=WAIT_S)
        more = device.sender.link.send(Message(b"", subject=f"get/chunk/{DIGEST}/0/10"))
        for _ in range(CONNECTION_REQUESTS_MAX):
            assert not more.settled, "what the device has not settled takes its room"
            assert len(receiver.receive(timeout=WAIT_S).body) == CHUNK_BYTES_MAX
        receiver.accept()
        device.connection.wait(lambda: more.settled, timeout=WAIT_S)
        assert more.remote_state == Delivery.ACCEPTED
    with AmqpDevice(gateway, "pump-7") as device:
        assert device.download() == IMAGE, "the end of a connection frees its room"


def rejected_none(requests: list[Any]) -> bool:
    """Return whether the settled requests were accepted."""
    return all(each.remote_state == Delivery.ACCEPTED for each in requests if each.settled)


def test_nodes_of_a_gateway_without_artefacts(tmp_path: Path) -> None:
    """They are no usual addresses, also for clients without authentication: no report is accepted and lost."""
    with gateway_with(tmp_path, resources(space="authenticationService: {name: none}")) as plain:
        connection = connect_amqp(plain)
        try:
            for attach in (connection.create_receiver, connection.create_sender):
                with detached_with("amqp:not-found"):
                    attach("$artefacts/pump-1")
        finally:
            connection.close()


RHEA = """
const [port, name] = process.argv.slice(1);
const {createHash} = require('crypto');
const rhea = require('rhea');
const at = {host: '127.0.0.1', port: Number(port), reconnect: false};
const connection = rhea.connect({...at, username: name, password: name});
const sender = connection.open_sender('$artefacts/' + name);
const receiver = connection.open_receiver({source: '$artefacts/' + name, credit_window: 2});
const ask = (subject, body) => sender.send({subject, body: rhea.message.data_section(Buffer.from(body))});
let offer, have = Buffer.alloc(0);
const next = () => ask(`get/chunk/${offer.sha256}/${have.length}/${offer.chunk_bytes_max}`, '');
let begun = false;
sender.on('sendable', () => { if (!begun) { begun = true; ask('get/offer', '{"board": "pico-w"}'); } });
sender.on('rejected', (context) => { console.error(context.delivery.remote_state); process.exit(1); });
receiver.on('message', ({message}) => {
  const content = message.body.content;
  if (message.subject === 'refused/offer') return setTimeout(() => ask('get/offer', '{"board": "pico-w"}'), 200);
  if (message.subject === 'offer') offer = JSON.parse(content).artefact;
  else have = Buffer.concat([have, content]);
  if (have.length < offer.size) return next();
  console.log(createHash('sha256').update(have).digest('hex') === offer.sha256 ? 'done' : 'wrong');
  connection.close();
});
"""


@rhea
def test_rhea_downloads_an_image(gateway: Waypost) -> None:
    with AmqpDevice(gateway, "pump-8"):
        pass  # it serves artefacts now
    command = ["node", "-e", RHEA, str(gateway.port("amqp")), "pump-8"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "done\n", done.stderr
