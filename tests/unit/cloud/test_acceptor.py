"""Admission of peers at a hub: clients' engines against the hub's end of each connection."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.engine import Attached, Closed, Engine, PeerOpened
from bridge.intake import Intake
from bridge.sasl import SaslClient
from bridge.transport.driver import ConnectionDriver, ConnectionOwner
from cloud.hub.acceptor import REMOVED, Acceptor, CertificatePolicy, PeerConnection, removed_words
from cloud.hub.peers import CertifiedGateway, HubPeer, PeerKind, gateway_uri
from cloud.hub.tenants import Quota, Tenants
from edge.broker.configuration import AuthenticationMode
from edge.broker.security.authenticator import Authenticator, Done, Work
from edge.broker.security.credentials import CredentialSnapshot, new_user, with_secret
from edge.broker.security.sasl_credentials import SaslCredentials
from tests.support.machines import take_all


def at_once(work: Work, done: Done) -> None:
    """Verify passwords in the same call."""
    done(work())


USERS = CredentialSnapshot({"reader@acme": with_secret(new_user("reader@acme"), "opensesame", at_s=0)})


class Served:
    """Owner of a peer's connection that answers and records events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[Any] = []

    def handle(self, events: Sequence[Any]) -> None:
        self.events += events
        if any(isinstance(event, PeerOpened) for event in events):
            self.engine.open()

    def writable(self) -> None:
        """Send nothing."""


class Hub:
    def __init__(
        self, *, dev: bool = False, authority: CertificatePolicy | None = None, tenants: Tenants | None = None
    ) -> None:
        mode = AuthenticationMode.NONE if dev else AuthenticationMode.STANDARD
        self.gate = Authenticator(mode, USERS, worker=at_once, clock=lambda: 0.0)
        self.served: dict[HubPeer, Served] = {}
        serve = dict.fromkeys((PeerKind.GATEWAY, PeerKind.APPLICATION), self._serve)
        self.removed: set[str] = set()
        is_removed = self.removed.__contains__
        self.acceptor = Acceptor(self.gate, serve, dev=dev, authority=authority, tenants=tenants, is_removed=is_removed)
        self.has_slot = True

    def _serve(
        self, peer: HubPeer, engine: Engine, _driver: ConnectionDriver, _credentials: SaslCredentials | None
    ) -> ConnectionOwner:
        self.served[peer] = Served(engine)
        return self.served[peer]


class Connection:
    """A client, the hub's end of its connection, and a stub for the driver."""

    transport: Any
    address, peername = "192.0.2.7", "192.0.2.7:4711"

    def __init__(
        self, hub: Hub, container_id: str, sasl: SaslClient | None = None, certificate: dict[str, Any] | None = None
    ) -> None:
        self.hub = hub
        self.transport = SimpleNamespace(get_extra_info=lambda name: certificate if name == "peercert" else None)
        self.visitor: PeerConnection = hub.acceptor.new_connection()
        self.client = Engine(container_id=container_id, server=False, sasl=sasl)
        self.server = Engine(container_id="hub", server=True, sasl=self.visitor.sasl)
        self.owner: ConnectionOwner = self.visitor.arrive(self.server, cast(ConnectionDriver, self))
        self.events: list[Any] = []
        self.paused: set[str] = set()
        self.client.open()
        self.settle()

    def hand_over(self, owner: ConnectionOwner) -> None:
        self.owner = owner

    def identified(self, _user: str) -> bool:
        return self.hub.has_slot

    def flush_soon(self) -> None:
        """Do nothing: the test reads all output."""

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.discard(reason)

    def wake(self) -> None:
        """Do nothing: passwords are verified at once."""

    def send_to(self, target: str) -> None:
        self.client.attach_sender("out", target)
        self.settle()

    def settle(self) -> None:
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not up and not down:
                return
            if up:
                self.owner.handle(take_all(self.server, up, 0.0))
            if down:
                self.events += take_all(self.client, down, 0.0)

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Return condition and description of the hub's close."""
        for event in self.events:
            if isinstance(event, Closed) and event.condition is not None:
                return event.condition.name, event.condition.description
        return None


def certificate(tenant: str = "acme", name: str = "gw1", serial: int = 7) -> dict[str, Any]:
    return {"subjectAltName": (("URI", gateway_uri(tenant, name)),), "serialNumber": f"{serial:X}"}


def external() -> SaslClient:
    return SaslClient(external=True)


class TestDevelopment:
    def test_peer_is_the_gateway_of_its_container_id(self) -> None:
        hub = Hub(dev=True)
        for sasl in (None, SaslClient(), SaslClient("anybody", "anything", plain=True)):
            connection = Connection(hub, "gw1", sasl)
            assert any(isinstance(event, PeerOpened) for event in connection.events), "some attach only then"
            assert not hub.served
            connection.send_to("telemetry")
            assert connection.refusal is None
            peer, served = hub.served.popitem()
            assert peer == HubPeer("default", "gw1", PeerKind.GATEWAY)
            assert [type(event) for event in served.events] == [PeerOpened, Attached]

    def test_peer_with_another_first_link_is_an_application(self) -> None:
        hub = Hub(dev=True)
        Connection(hub, "reader").send_to("plant/1")
        receiver = Connection(hub, "other")
        receiver.client.attach_receiver("in", "telemetry")
        receiver.settle()
        assert list(hub.served) == [HubPeer("default", each, PeerKind.APPLICATION) for each in ("reader", "other")]

    def test_certificate_of_any_name_is_accepted(self) -> None:
        hub = Hub(dev=True)
        shown = {"subject": ((("commonName", "gw-tls"),),), "serialNumber": "1"}
        Connection(hub, "gw1", external(), shown).send_to("status")
        assert list(hub.served) == [HubPeer("default", "gw-tls", PeerKind.GATEWAY)]

    @pytest.mark.parametrize("name", ["", "g" * 256, "gw\n1"])
    def test_invalid_names_are_refused(self, name: str) -> None:
        hub = Hub(dev=True)
        assert "the name of a gateway" in (Connection(hub, name).refusal or ("", ""))[1]
        assert not hub.served


class TestGateways:
    def test_certificate_identifies_the_gateway(self) -> None:
        hub = Hub()
        connection = Connection(hub, "gw1", external(), certificate())
        assert connection.refusal is None
        assert list(hub.served) == [HubPeer("acme", "gw1", PeerKind.GATEWAY)]
        assert [visitor.peer for visitor in hub.acceptor.admitted.values()] == list(hub.served)
        hub.acceptor.remove(cast(ConnectionDriver, connection))
        assert not hub.acceptor.admitted

    def test_container_id_does_not_override_the_certificate(self) -> None:
        hub = Hub()
        condition, words = Connection(hub, "gw2", external(), certificate()).refusal or ("", "")
        assert condition == "amqp:unauthorized-access"
        assert "'gw1'" in words
        assert "'gw2'" in words
        assert not hub.served

    @pytest.mark.parametrize("sasl", [None, SaslClient(), SaslClient("gw1", ""), external()])
    def test_gateway_without_a_certificate_is_refused(self, sasl: SaslClient | None) -> None:
        hub = Hub()
        connection = Connection(hub, "gw1", sasl)
        assert not hub.served
        assert [event for event in connection.events if isinstance(event, PeerOpened)] == []

    def test_certificate_without_a_gateway_name_is_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        hub = Hub()
        Connection(hub, "gw1", external(), {"subject": ((("commonName", "gw1"),),), "serialNumber": "1"})
        assert not hub.served
        assert "192.0.2.7:4711: the certificate has 0 URIs" in caplog.text

    def test_full_hub_refuses(self) -> None:
        hub = Hub()
        hub.has_slot = False
        condition, _ = Connection(hub, "gw1", external(), certificate()).refusal or ("", "")
        assert condition == "amqp:resource-limit-exceeded"
        assert not hub.served
        assert not hub.acceptor.admitted


class Revoked:
    """Policy that refuses revoked certificates."""

    def __init__(self, *serials: int) -> None:
        self.serials = set(serials)
        self.asked: list[tuple[HubPeer, int]] = []
        self.let_in: list[int] = []

    def refusal(self, peer: HubPeer, serial: int) -> str | None:
        self.asked.append((peer, serial))
        return f"the certificate {serial} was revoked" if serial in self.serials else None

    def admitted(self, shown: CertifiedGateway) -> None:
        self.let_in.append(shown.serial)


class TestAuthority:
    def test_revoked_certificate_is_refused(self) -> None:
        authority = Revoked(7)
        hub = Hub(authority=authority)
        assert Connection(hub, "gw1", external(), certificate()).refusal == (
            "amqp:unauthorized-access",
            "the certificate 7 was revoked",
        )
        assert authority.asked == [(HubPeer("acme", "gw1", PeerKind.GATEWAY), 7)]
        assert Connection(hub, "gw1", external(), certificate(serial=8)).refusal is None
        assert authority.let_in == [8]

    def test_connected_gateway_with_a_revoked_certificate_is_disconnected(self) -> None:
        authority = Revoked()
        hub = Hub(authority=authority)
        first = Connection(hub, "gw1", external(), certificate())
        other = Connection(hub, "gw2", external(), certificate(name="gw2", serial=8))
        served = hub.served[HubPeer("acme", "gw1", PeerKind.GATEWAY)]
        authority.serials.add(7)
        hub.acceptor.review()
        first.client.attach_sender("late", "telemetry")
        first.settle()
        other.settle()
        assert first.refusal == ("amqp:unauthorized-access", "the certificate 7 was revoked")
        assert other.refusal is None
        assert [type(event) for event in served.events] == [PeerOpened, Closed], "what comes behind is not taken"


class TestApplications:
    def test_password_identifies_the_tenant(self) -> None:
        hub = Hub()
        assert Connection(hub, "any", SaslClient("reader@acme", "opensesame")).refusal is None
        assert list(hub.served) == [HubPeer("acme", "reader", PeerKind.APPLICATION)]

    @pytest.mark.parametrize(
        ("name", "password"), [("reader@acme", "wrong"), ("reader@other", "opensesame"), ("reader", "opensesame")]
    )
    def test_other_tenants_refuse_the_application(self, name: str, password: str) -> None:
        hub = Hub()
        Connection(hub, "any", SaslClient(name, password))
        assert not hub.served

    def test_certificate_does_not_make_an_application_a_gateway(self) -> None:
        hub = Hub()
        Connection(hub, "gw1", SaslClient("reader@acme", "opensesame"), certificate())
        assert list(hub.served) == [HubPeer("acme", "reader", PeerKind.APPLICATION)]


class Unanswered(Intake):
    """Receiver with data that is not landed yet."""

    def __init__(self) -> None:
        self.bytes = 7

    def handle(self, events: Sequence[Any]) -> None:
        """Answer nothing."""

    @property
    def waiting_bytes(self) -> int:
        return self.bytes


class TestRemovedTenant:
    def test_its_peers_are_refused_and_those_of_others_are_not(self) -> None:
        hub = Hub()
        served = Connection(hub, "gw1", external(), certificate())
        other = Connection(hub, "gw1", external(), certificate("mega"))
        hub.removed.add("acme")
        assert hub.acceptor.end_removed("acme", late=False) == 0
        for connection in (
            served,
            Connection(hub, "gw2", external(), certificate(name="gw2")),
            Connection(hub, "gw2-doctor", external(), certificate(name="gw2")),
            Connection(hub, "reader", SaslClient("reader@acme", "opensesame", plain=True)),
        ):
            connection.settle()
            assert connection.refusal == ("amqp:unauthorized-access", removed_words("acme"))
        assert other.refusal is None
        assert Connection(hub, "gw2", external(), certificate("mega", "gw2")).refusal is None

    def test_revoked_certificate_is_not_the_cause(self) -> None:
        hub = Hub(authority=Revoked(7))
        hub.removed.add("acme")
        connection = Connection(hub, "gw1", external(), certificate())
        assert connection.refusal == ("amqp:unauthorized-access", removed_words("acme"))

    def test_gateway_stays_until_what_it_has_sent_is_answered(self) -> None:
        """Otherwise the gateway would send it again, in another tenant, although it is in the lake."""
        hub = Hub()
        first, second = (Connection(hub, name, external(), certificate(name=name)) for name in ("gw1", "gw2"))
        waiting = [Unanswered(), Unanswered()]
        for connection, owner in zip((first, second), waiting, strict=True):
            connection.visitor._owner = owner
        hub.removed.add("acme")
        assert hub.acceptor.end_removed("acme", late=False) == 2
        for connection in (first, second):
            connection.visitor.review()  # its certificate is revoked, by another hub
            connection.settle()
            assert (connection.refusal, connection.paused) == (None, {REMOVED})
        waiting[0].bytes = 0
        assert hub.acceptor.end_removed("acme", late=False) == 1
        assert hub.acceptor.end_removed("acme", late=True) == 0
        for connection in (first, second):
            connection.settle()
            assert connection.refusal == ("amqp:unauthorized-access", removed_words("acme"))
            assert not connection.paused


class TestProbe:
    """A program at the gateway tests its login; it never replaces the gateway's connection."""

    def test_probe_of_an_acceptable_gateway_succeeds(self) -> None:
        hub = Hub()
        looking = Connection(hub, "gw1-doctor", external(), certificate())
        assert any(isinstance(event, PeerOpened) for event in looking.events)
        assert any(isinstance(event, Closed) and event.condition is None for event in looking.events)
        assert not hub.served
        assert not hub.acceptor.admitted

    def test_probe_of_an_unacceptable_gateway_fails(self) -> None:
        class Never:
            def refusal(self, peer: HubPeer, serial: int) -> str | None:
                return f"{peer.name} {serial}"

            def admitted(self, shown: CertifiedGateway) -> None:
                raise AssertionError(shown)

        looking = Connection(Hub(authority=Never()), "gw1-doctor", external(), certificate())
        assert looking.refusal == ("amqp:unauthorized-access", "gw1 7")


class TestQuota:
    def test_connections_of_a_tenant_are_limited(self) -> None:
        hub = Hub(tenants=Tenants(Quota(connections=2)))
        first = Connection(hub, "gw1", external(), certificate())
        assert Connection(hub, "any", SaslClient("reader@acme", "opensesame")).refusal is None
        condition, words = Connection(hub, "gw2", external(), certificate(name="gw2")).refusal or ("", "")
        assert condition == "amqp:resource-limit-exceeded"
        assert "tenant acme is at its quota `connections`" in words
        assert Connection(hub, "gw2", external(), certificate("other", "gw2")).refusal is None, "others go on"
        again = Connection(hub, "gw1", external(), certificate())
        assert again.refusal is None, "it takes the place it has"
        for connection in (first, again):
            hub.acceptor.remove(cast(ConnectionDriver, connection))
        assert Connection(hub, "gw2", external(), certificate(name="gw2")).refusal is None

    def test_applications_of_a_tenant_leave_places_for_gateways(self) -> None:
        tenants = Tenants(Quota(connections=3), {"acme": Quota(connections=3, applications=1)})
        hub = Hub(tenants=tenants)
        reader = Connection(hub, "any", SaslClient("reader@acme", "opensesame"))
        assert reader.refusal is None
        condition, words = Connection(hub, "more", SaslClient("reader@acme", "opensesame")).refusal or ("", "")
        assert condition == "amqp:resource-limit-exceeded"
        assert words.startswith("tenant acme is at its quota `applications`; the operator of the hub can raise it")
        assert Connection(hub, "gw1", external(), certificate()).refusal is None
        assert tenants.reached == {("acme", "applications"): 1}
        hub.acceptor.remove(cast(ConnectionDriver, reader))
        assert Connection(hub, "more", SaslClient("reader@acme", "opensesame")).refusal is None
