"""A hub of several tenants, in a process of its own: gateways show certificates, users have passwords."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from proton import SSLDomain
from proton.utils import BlockingConnection, BlockingReceiver

from bridge import plain
from bridge.batch import CAPABILITY, encode
from bridge.hub_addresses import TELEMETRY
from bridge.lane import BatchLane
from bridge.message import CLOCK_GOOD, Run, Stored
from cloud.hub.peers import gateway_uri
from edge.broker.security import rights
from edge.broker.security.credentials import CredentialFile, new_user, with_secret
from tests.support.amqp_sender import AmqpSender
from tests.support.certificates import Authority
from tests.support.processes import Waypost

WAIT_S = 30.0
EPOCH = "e" * 32

CONFIGURATION = """
apiVersion: waypost/v1
kind: Hub
spec:
  amqp: 127.0.0.1:0
  http: 127.0.0.1:0
  gatherMilliseconds: 20
  authority: {{certificate: {certificate}, key: {key}}}
  tenants: {tenants}
"""


class TenantHub:
    """A hub that asks who everybody is."""

    def __init__(self, folder: Path, users: dict[str, Sequence[str]], quotas: dict[str, dict[str, Any]]) -> None:
        """`users`: their rights, as ``waypost hub user`` takes them; the password is the name. `quotas` of tenants that
        have one of their own."""
        self.data = folder / "hub"
        self.authority = Authority(folder / "authority")
        self.data.mkdir()
        with CredentialFile.open(self.data) as file:
            file.put(
                [with_secret(new_user(name, rights.parse_rights(may)), name, at_s=0.0) for name, may in users.items()]
            )
        tenants = json.dumps([{"name": name, "quota": quota} for name, quota in quotas.items()])
        file = folder / "hub.yaml"
        files = {"certificate": self.authority.certificate, "key": self.authority.key}
        file.write_text(CONFIGURATION.format(**files, tenants=tenants))
        self.process = Waypost(folder / "hub.log", "hub", "run", "--data", str(self.data), "--config", str(file))

    def gateway(
        self,
        tenant: str,
        name: str,
        container_id: str | None = None,
        target: str = TELEMETRY,
        capabilities: Sequence[str] = (CAPABILITY,),
    ) -> AmqpSender:
        """A gateway with a certificate of its own; it sends batches, unless said otherwise."""
        issued = self.authority.issue(name, file=f"{tenant}-{name}", uri=gateway_uri(tenant, name))
        context = self.authority.context(issued)
        return AmqpSender(self.process.port("amqps"), container_id or name, target, capabilities, context)

    def application(self, user: str, password: str | None = None) -> BlockingConnection:
        """An application, with the C library of Qpid Proton."""
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(self.authority.certificate)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        return BlockingConnection(
            f"amqps://localhost:{self.process.port('amqps')}",
            timeout=WAIT_S,
            ssl_domain=domain,
            user=user,
            password=user if password is None else password,
            allowed_mechs="PLAIN",
            reconnect=False,
        )

    def ask(
        self,
        path: str,
        user: str | None = None,
        password: str | None = None,
        document: dict[str, Any] | str | None = None,
    ) -> tuple[int, Any]:
        """Status and document of an answer over HTTP; of what is no JSON the text. `document` is sent, if there is
        one, a text as it is."""
        text = document if document is None or isinstance(document, str) else json.dumps(document)
        sent = text.encode() if text is not None else None
        request = urllib.request.Request(f"https://localhost:{self.process.port('https')}{path}", sent)
        if user is not None:
            shown = base64.b64encode(f"{user}:{user if password is None else password}".encode()).decode()
            request.add_header("Authorization", f"Basic {shown}")
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S, context=self.authority.context()) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                status, body = refused.code, refused.read()
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode()


def batch(
    address: str,
    first: int,
    bodies: Sequence[bytes],
    *,
    epoch: str = EPOCH,
    space: str = "default",
    lane: BatchLane = BatchLane.LIVE,
) -> bytes:
    """A message with a batch of one run."""
    run = Run(address, "device-1", 1 | CLOCK_GOOD, b"", list(bodies), time.time_ns())
    return plain.data_section(encode([Stored(-1, first, run)], space=space, epoch=epoch, lane=lane))


def body(receiver: BlockingReceiver) -> bytes:
    """Of the next message. It is copied while there is a message: Proton's views are of memory that goes with it."""
    message = receiver.receive(timeout=WAIT_S)
    return bytes(message.body)


@contextlib.contextmanager
def tenant_hub(
    folder: Path, users: dict[str, Sequence[str]], quotas: dict[str, dict[str, Any]] | None = None
) -> Iterator[TenantHub]:
    """One that runs."""
    made = TenantHub(folder, users, quotas or {})
    with made.process:
        yield made


__all__ = ["EPOCH", "WAIT_S", "BatchLane", "TenantHub", "batch", "body", "tenant_hub"]
