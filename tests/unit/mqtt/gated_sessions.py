"""MQTT sessions behind a gate that answers when the test decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from edge.broker.configuration import AuthenticationMode
from edge.broker.limits import Limits
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressTable
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.mqtt import packets
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.handler import ConnectionHandler, HandlerContext
from edge.broker.mqtt.overlap import merge_live
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, CredentialUser, new_user
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity
from tests.support.machines import take_all
from tests.support.memory_store import MemoryStore
from tests.support.models.lanes import NoLanes
from tests.support.mqtt_connection import split

RULES = [AccessRule(("up/#",), frozenset({Operation.SEND, Operation.RECV}))]


class PendingGate(Authenticator):
    """Gate that answers when the test decides."""

    def __init__(self, *users: CredentialUser) -> None:
        snapshot = CredentialSnapshot({user.name: user for user in users})
        super().__init__(AuthenticationMode.STANDARD, snapshot, worker=lambda _work, _done: None, clock=lambda: 0.0)
        self.asked: list[Callable[[LoginVerdict], None]] = []

    def check(
        self, username: str | None, password: bytes | None, decided: Decided, source: str = "", client: str = ""
    ) -> None:
        proven = VerifiedIdentity(username or "")
        self.asked.append(lambda said: decided(said, proven if said is LoginVerdict.ACCEPTED else None))


class GatedDriver:
    """Driver as a session sees it."""

    address = "192.0.2.1"
    congested = False
    trace = None

    def __init__(self, identity: str | None = None) -> None:
        self.identity = identity
        self.flushes = 0

    def flush_soon(self) -> None:
        self.flushes += 1

    def identified(self, user: str) -> bool:
        return True

    def run(self, step: Callable[[], None]) -> None:
        step()


class GatedSite:
    """A router, sessions, a gate with the user ``joe``."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.store = MemoryStore(post=self.posted.append)
        self.turns: deque[Callable[[], None]] = deque()
        """Callbacks for the next turn of the loop."""
        self.router = Router(
            self.store, AddressTable([]), clock_ns=lambda: 1, flush_soon=lambda: None, merge_live=merge_live,
            soon=self.turns.append,
        )  # fmt: skip
        self.sessions = SessionRegistry(self.router, self.store, MqttTranslator())
        self.gate = PendingGate(new_user("joe", RULES), new_user("jane", RULES))

    def settle(self) -> None:
        self.router.flush()
        while self.posted:
            self.posted.popleft()()


class GatedPeer:
    """One client of the site."""

    def __init__(self, site: GatedSite, version: int, *, identity: str | None = None, **connect: Any) -> None:
        self.site, self.version = site, version
        self.connection = MqttConnection(Limits(), 0.0)
        self.driver = GatedDriver(identity)
        self.session = ConnectionHandler(
            self.driver,  # type: ignore[arg-type]
            self.connection,
            HandlerContext(site.router, site.sessions, lambda: 0.0, NoLanes(), site.gate),
        )
        self.send(packets.Connect(connect.pop("client_id", "c"), version, **connect))

    def send(self, packet: Any) -> None:
        self.session.handle(take_all(self.connection, packet.encode(self.version), 0.0))

    def sent(self) -> list[Any]:
        self.site.settle()
        return split(self.connection.data_to_send(), self.version)


def admitted(site: GatedSite, version: int, **connect: Any) -> GatedPeer:
    peer = GatedPeer(site, version, username=connect.pop("username", "joe"), password=b"x", **connect)
    site.gate.asked.pop()(LoginVerdict.ACCEPTED)
    peer.sent()
    return peer
