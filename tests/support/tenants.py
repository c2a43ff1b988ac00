"""Hub of several tenants in its own process: gateways have certificates, users have passwords."""

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
    """Hub that authenticates every client."""

    def __init__(self, folder: Path, users: dict[str, Sequence[str]], quotas: dict[str, dict[str, Any]]) -> None:
        """`users`: their rights, as ``waypost hub user`` takes them; the password is the name. `quotas`: for tenants
        with their own quota.
        """
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
        """Connect a gateway with its own certificate; by default it sends batches."""
        issued = self.authority.issue(name, file=f"{tenant}-{name}", uri=gateway_uri(tenant, name))
        context = self.authority.context(issued)
        return AmqpSender(self.process.port("amqps"), container_id or name, target, capabilities, context)

    def application(self, user: str, password: str | None = None) -> BlockingConnection:
        """Connect an application with the C library of Qpid Proton."""
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
        """Send a request over HTTP; return status and document, or the text if it is not JSON.

        `document`: the body of the request; a text is sent unchanged.
        """
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
    """Build a message with a batch of one run."""
    run = Run(address, "device-1", 1 | CLOCK_GOOD, b"", list(bodies), time.time_ns())
    return plain.data_section(encode([Stored(-1, first, run)], space=space, epoch=epoch, lane=lane))


def body(receiver: BlockingReceiver) -> bytes:
    """Return a copy of the next message's body: Proton's view is of memory that the message frees."""
    message = receiver.receive(timeout=WAIT_S)
    return bytes(message.body)


@contextlib.contextmanager
def tenant_hub(
    folder: Path, users: dict[str, Sequence[str]], quotas: dict[str, dict[str, Any]] | None = None
) -> Iterator[TenantHub]:
    """Run a hub of several tenants."""
    made = TenantHub(folder, users, quotas or {})
    with made.process:
        yield made


__all__ = ["EPOCH", "WAIT_S", "BatchLane", "TenantHub", "batch", "body", "tenant_hub"]
