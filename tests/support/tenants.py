"""A hub of several tenants, in a process of its own: gateways show certificates, users have passwords."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from proton import SSLDomain
from proton.utils import BlockingConnection, BlockingReceiver

from bridge import plain
from bridge.batch import CAPABILITY, Lane, encode
from bridge.hub_addresses import TELEMETRY
from bridge.message import CLOCK_GOOD, Run, Stored
from cloud.hub.peers import gateway_uri
from edge.broker.security import rights
from edge.broker.security.credentials import CredentialFile, new_user, with_secret
from tests.support.amqp_sender import AmqpSender
from tests.support.certificates import Authority
from tests.support.processes import Waypost

WAIT_S = 30.0
EPOCH = "e" * 32

_RUN = """
import sys
from pathlib import Path
from bridge.resources.endpoint import Endpoint
from cloud.hub.server import HubConfiguration, run
from edge.broker.configuration import TlsListener
data, certificate, key, authority = sys.argv[1:]
tls = TlsListener(certificate=certificate, key=key, client_ca=authority)
anywhere = Endpoint("127.0.0.1", 0)
configuration = HubConfiguration(data=Path(data), amqp=anywhere, http=anywhere, dev=False, gather_ms=20, tls=tls)
run(configuration, lambda amqp, http: print(f"ready amqp={amqp} http={http}", flush=True))
"""


class TenantHub:
    """A hub that asks who everybody is."""

    def __init__(self, folder: Path, users: dict[str, Sequence[str]]) -> None:
        """`users`: their rights, as ``waypost hub user`` takes them; the password is the name."""
        self.data = folder / "hub"
        self.authority = Authority(folder / "authority")
        own = self.authority.issue("hub")
        self.data.mkdir()
        with CredentialFile.open(self.data) as file:
            file.put([with_secret(new_user(name, rights.read(may)), name, at_s=0.0) for name, may in users.items()])
        self.process = Waypost(folder / "hub.log")
        self.process.arguments = [
            *(sys.executable, "-c", _RUN, str(self.data), own.certificate, own.key, self.authority.certificate)
        ]

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
        return AmqpSender(self.process.port("amqp"), container_id or name, target, capabilities, context)

    def application(self, user: str, password: str | None = None) -> BlockingConnection:
        """An application, with the C library of Qpid Proton."""
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(self.authority.certificate)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        return BlockingConnection(
            f"amqps://localhost:{self.process.port('amqp')}",
            timeout=WAIT_S,
            ssl_domain=domain,
            user=user,
            password=user if password is None else password,
            allowed_mechs="PLAIN",
            reconnect=False,
        )

    def ask(
        self, path: str, user: str | None = None, password: str | None = None, document: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Status and document of an answer over HTTP; of what is no JSON the text. `document` is sent, if there is
        one."""
        sent = json.dumps(document).encode() if document is not None else None
        request = urllib.request.Request(f"https://localhost:{self.process.port('http')}{path}", sent)
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
    lane: Lane = Lane.LIVE,
) -> bytes:
    """A message with a batch of one run."""
    run = Run(address, "device-1", 1 | CLOCK_GOOD, b"", list(bodies), time.time_ns())
    return plain.data_section(encode([Stored(-1, first, run)], space=space, epoch=epoch, lane=lane))


def body(receiver: BlockingReceiver) -> bytes:
    """Of the next message. It is copied while there is a message: Proton's views are of memory that goes with it."""
    message = receiver.receive(timeout=WAIT_S)
    return bytes(message.body)


@contextlib.contextmanager
def tenant_hub(folder: Path, users: dict[str, Sequence[str]]) -> Iterator[TenantHub]:
    """One that runs."""
    made = TenantHub(folder, users)
    with made.process:
        yield made


__all__ = ["EPOCH", "WAIT_S", "Lane", "TenantHub", "batch", "body", "tenant_hub"]
