"""Certificate of a gateway that is connected to one hub, and is revoked at another one of the same registry."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from bridge.batch import CAPABILITY
from bridge.engine import DeliveryState
from edge.appliance.identity.location import identity_file
from tests.support.amqp_sender import AmqpSender
from tests.support.enrolled import init_gateway
from tests.support.moving_gateway import MovingGateway
from tests.support.operator import HubOperator
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, wait_until

WAIT_S: Final = 60.0
GATEWAY: Final = "hall"


@pytest.fixture
def hubs(tmp_path: Path, postgres: Postgres) -> Iterator[list[Waypost]]:
    """Run two hubs of one authority."""
    config = tmp_path / "hub.yaml"
    url = postgres.url(postgres.schema())
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{url}', gatherMilliseconds: 100}}\n")
    with ExitStack() as stack:
        running = []
        for name in ("first", "second"):
            if running:
                shutil.copytree(running[0].data / "authority", tmp_path / name / "authority")
            running.append(
                stack.enter_context(
                    Waypost(
                        tmp_path / f"{name}.log", "hub", "run", "--data", str(tmp_path / name),
                        "--amqp=127.0.0.1:0", "--http=127.0.0.1:0", f"--lake={tmp_path / 'lake'}", f"--config={config}",
                    )
                )
            )  # fmt: skip
        yield running


class CertifiedSender:
    """Connects with the certificate of an enrolled gateway."""

    def __init__(self, data: Path, authority: Path) -> None:
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(identity_file(data))
        self._batches = MovingGateway(GATEWAY, "e" * 32)

    def connect(self, hub: Waypost) -> AmqpSender:
        return AmqpSender(hub.port("amqps"), GATEWAY, "telemetry", [CAPABILITY], self._context)

    def is_served(self, hub: Waypost) -> bool:
        """Return True if the hub accepts a message of the gateway."""
        try:
            with self.connect(hub) as sender:
                return not sender.closed and sender.send(self._batches.batch(0)).settled() == [DeliveryState.ACCEPTED]
        except OSError:
            return False


def test_revoked_gateway_is_disconnected_and_refused_at_every_hub(hubs: list[Waypost], tmp_path: Path) -> None:
    first, second = hubs
    operator = HubOperator(first)
    made = operator.send("POST", "tokens", {"gateways": [GATEWAY]})
    assert made.status == HTTPStatus.CREATED, made
    code, output = init_gateway(
        tmp_path, f"amqps://localhost:{first.port('amqps')}", made.document["tokens"][0]["token"], name=GATEWAY
    )
    assert code == 0, output
    gateway = CertifiedSender(tmp_path / GATEWAY, first.data / "authority" / "ca.pem")
    assert [gateway.is_served(hub) for hub in hubs] == [True, True]
    with gateway.connect(second) as link:
        assert not link.closed
        assert operator.send("POST", f"gateways/{GATEWAY}/revoke").document["certificates"] == 1
        link.until(lambda: link.closed, "end of the connection")
        assert link.condition is not None
        assert link.condition.name == "amqp:unauthorized-access"
    wait_until(lambda: not gateway.is_served(first), timeout_s=WAIT_S, what="the hub knows its own revocation")
    assert not gateway.is_served(second)
    for hub in hubs:
        hub.kill()
        hub.start()
    assert [gateway.is_served(hub) for hub in hubs] == [False, False]
