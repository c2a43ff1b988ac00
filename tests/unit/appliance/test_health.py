"""Health report of a gateway: its hub, its losses, its users and its clock."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.hub_addresses import IDENTITY_SHARED
from edge.appliance import health
from edge.appliance.connector_health import SHARED_IDENTITY_S
from edge.appliance.health import GatewayHealth
from edge.broker.configuration import ConnectorType
from edge.broker.listeners.admission import AdmissionFigures
from edge.broker.model.budget import Budget
from edge.broker.model.refusals import RefusalJournal
from edge.broker.store.wear import BlockDevice
from edge.health.problems import HealthProblem, Severity
from edge.health.process import FILES_CHECK_S
from edge.health.stall_detector import STALLED_S
from edge.health.storage_life import StorageLife


class Gateway:
    """Everything that the health of a gateway reads; healthy until a test changes it."""

    def __init__(self, folder: Path, system: BlockDevice | None = None) -> None:
        folder.chmod(0o700)
        self.now = 0.0
        state = SimpleNamespace(
            connected=True, paused=False, since=0.0, refused=False, last_error=None, ended=None, ended_at=0.0
        )
        figures = SimpleNamespace(messages_rejected=0, messages_accepted=1)
        self.uplink = SimpleNamespace(
            connector=SimpleNamespace(name="hub", tls=None, type=ConnectorType.WAYPOST),
            dialer=SimpleNamespace(state=state),
            figures=figures,
            backlog=0,
            uplink=SimpleNamespace(pacer=None),
            faults=dict[str, str](),
        )
        self.state, self.figures = state, figures
        self.quotas = SimpleNamespace(usage=list, space_bytes=None, closed=False, floor_bytes=0)
        self.feeds = SimpleNamespace(restarts=0)
        self.scheduled = SimpleNamespace(refused=0)
        router: Any = SimpleNamespace(
            quotas=self.quotas,
            feeds=self.feeds,
            names=(),
            scheduled=self.scheduled,
            queues=SimpleNamespace(opened={}),
            durable_subscriptions=SimpleNamespace(opened={}),
            unrouted=(),
        )
        self.listeners = SimpleNamespace(refused=0, certificate_trouble=None, revocations=None, status_trouble=None)
        self.admission = SimpleNamespace(
            figures=AdmissionFigures(),
            resident=SimpleNamespace(exceeded=False),
            budget=Budget(1 << 28, "default"),
        )
        self.gate = SimpleNamespace(waits_s=0.0, late=0)
        self.broker: Any = SimpleNamespace(
            router=router,
            listeners=self.listeners,
            admission=self.admission,
            failing={},
            gate=self.gate,
            refusals=RefusalJournal(),
        )
        self.store: Any = SimpleNamespace(
            medium=SimpleNamespace(problems=[], device=None), ledger=SimpleNamespace(entered={})
        )
        self.users: str | None = None
        self.renewal: str | None = None
        self.clock: Any = _Clock()
        uplinks: Any = _Uplinks([self.uplink])
        self.left: dict[str, int] = uplinks.left
        configuration: Any = SimpleNamespace(connectors=(), tls=None)
        self.health = GatewayHealth(
            broker=self.broker, store=self.store, uplinks=uplinks, clock=self.clock, data=folder,
            development=False, room_hours=lambda: 72.0,
            configuration=lambda: configuration, tokens=lambda: None, users=lambda: self.users,
            renewal=lambda: self.renewal, system=system, monotonic_s=lambda: self.now,
        )  # fmt: skip

    def problems(self) -> list[HealthProblem]:
        return self.health.problems()

    def only(self) -> HealthProblem:
        [problem] = self.problems()
        return problem


class _Uplinks(list[Any]):
    def __init__(self, uplinks: list[Any]) -> None:
        super().__init__(uplinks)
        self.left: dict[str, int] = {}
        self.network = None


class _Clock:
    stepped_lately = False

    def __call__(self) -> bool:
        return True


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path)


def test_healthy_gateway_has_no_problems(gateway: Gateway) -> None:
    assert gateway.problems() == []


def test_worn_card_of_the_system_is_a_problem_while_the_data_are_on_a_disk(tmp_path: Path) -> None:
    """Both are looked at, and each once."""
    devices = []
    for name, life in (("nvme9n1", "0x01 0x01"), ("mmcblk9", "0x0b 0x01")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/life_time").write_text(life)
        devices.append(BlockDevice(name, tmp_path / name))
    gateway = Gateway(tmp_path, system=devices[1])
    for data, expected in ((None, 1), (devices[0], 1), (devices[1], 1)):
        gateway.store.medium.device = data
        gateway.now += FILES_CHECK_S
        found = [each.what for each in gateway.problems() if each.name == "medium"]
        assert [what.split()[0] for what in found] == ["mmcblk9"] * expected


def test_failed_card_of_the_system_is_a_warning_while_the_data_are_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same state is an error on the medium of the data."""
    monkeypatch.setattr(health, "read_storage_life", lambda _: StorageLife(read_only=True))
    data, system = (BlockDevice(name, tmp_path / name) for name in ("nvme9n1", "mmcblk9"))
    gateway = Gateway(tmp_path, system=system)
    gateway.store.medium.device = data
    found = {each.what.split()[0]: each.severity for each in gateway.problems() if each.name == "medium"}
    assert found == {"nvme9n1": Severity.ERROR, "mmcblk9": Severity.WARNING}


def test_hub_that_accepts_nothing_is_a_problem(gateway: Gateway) -> None:
    gateway.uplink.backlog = 10
    assert gateway.problems() == []
    gateway.now += STALLED_S
    assert "accepted none" in gateway.only().what
    gateway.figures.messages_accepted += 1
    assert gateway.problems() == [], "it moves"


def test_peer_that_accepts_nothing_is_named(gateway: Gateway) -> None:
    gateway.uplink.backlog, gateway.uplink.connector.type = 10, ConnectorType.KAFKA
    gateway.problems()
    gateway.now += STALLED_S
    problem = gateway.only()
    assert problem.what.startswith("the kafka peer is connected")
    assert "hub" not in problem.what + problem.next_step


def test_absent_hub_is_a_notice_with_the_remaining_time(gateway: Gateway) -> None:
    gateway.uplink.backlog, gateway.state.connected = 10, False
    assert gateway.problems() == []
    gateway.now += STALLED_S
    notice = gateway.only()
    assert (notice.name, notice.severity) == ("connector hub", Severity.NOTICE)
    assert "space for 72.0 hours" in notice.next_step
    gateway.state.connected = True
    assert gateway.problems() == []


def test_paused_connector_is_a_notice_with_the_command_to_resume(gateway: Gateway) -> None:
    gateway.state.connected, gateway.state.paused = False, True
    notice = gateway.only()
    assert (notice.severity, "bridge resume hub" in notice.next_step) == (Severity.NOTICE, True)


def test_hub_that_releases_everything_is_a_problem(gateway: Gateway) -> None:
    """The hub accepts the link and cuts it repeatedly: no message is acknowledged."""
    gateway.uplink.backlog, gateway.state.connected, gateway.state.since = 10, False, time.time()
    gateway.problems()
    gateway.now += STALLED_S
    gateway.state.since = time.time()
    assert "accepted none" in gateway.only().what


def test_server_that_does_not_accept_the_link_is_a_problem(gateway: Gateway) -> None:
    gateway.state.connected, gateway.state.refused = False, True
    gateway.problems()
    gateway.now += STALLED_S
    problem = gateway.only()
    assert problem.severity is Severity.ERROR
    assert "does not accept the link" in problem.what


def test_hub_that_refuses_this_gateway_is_a_problem(gateway: Gateway) -> None:
    gateway.state.connected, gateway.state.refused = False, True
    gateway.state.last_error = "amqps://hub:5671: amqp:unauthorized-access: the certificate was revoked"
    gateway.problems()
    gateway.now += STALLED_S
    assert gateway.only().what == "the hub refuses this gateway: the certificate was revoked"
    assert "enrol" in gateway.only().next_step


def test_another_machine_with_the_same_identity_is_a_problem(gateway: Gateway) -> None:
    """The problem is reported while the hub displaces one of the two repeatedly, also while this one is connected."""
    gateway.state.ended = f"{IDENTITY_SHARED}: two machines use gateway gw1 (addresses 10.0.0.1, 10.0.0.2)"
    gateway.state.ended_at = time.time() - SHARED_IDENTITY_S / 2
    problem = gateway.only()
    assert problem.severity is Severity.WARNING
    assert "10.0.0.1, 10.0.0.2" in problem.what
    gateway.state.ended_at = time.time() - SHARED_IDENTITY_S - 1
    assert gateway.problems() == []


def test_refused_renewal_is_a_problem(gateway: Gateway) -> None:
    gateway.renewal = "the certificate shown has ended"
    assert "does not renew this gateway's certificate: the certificate shown has ended" in gateway.only().what


def test_messages_rejected_by_the_hub_are_a_problem(gateway: Gateway) -> None:
    gateway.figures.messages_rejected = 3
    assert "rejected" in gateway.only().what


def test_losses_are_a_warning_with_their_reasons(gateway: Gateway) -> None:
    gateway.store.ledger.entered = {"expired": 1, "evicted": 2}
    problem = gateway.only()
    assert problem.severity is Severity.WARNING
    assert "evicted, expired" in problem.what


_ENDED_LIST = SimpleNamespace(trouble="crl.pem has ended", closed=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda gateway: gateway.broker.failing.update(feeds="KeyError"), "KeyError"),
        (lambda gateway: setattr(gateway.feeds, "restarts", 1), "reads the store again"),
        (lambda gateway: setattr(gateway.listeners, "refused", 1), "maximum number is open"),
        (lambda gateway: setattr(gateway.admission.figures, "shed", 1), "because they held too much memory"),
        (lambda gateway: setattr(gateway.admission.figures, "refused", 1), "with many connections"),
        (lambda gateway: setattr(gateway.admission.resident, "exceeded", True), "new connections are refused"),
        (lambda gateway: setattr(gateway.listeners, "certificate_trouble", "it stays: no PEM"), "no PEM"),
        (lambda gateway: setattr(gateway.listeners, "revocations", _ENDED_LIST), "crl.pem has ended"),
        (lambda gateway: setattr(gateway.gate, "late", 1), "logins wait"),
        (lambda gateway: setattr(gateway.scheduled, "refused", 2), "refused by their addresses"),
        (lambda gateway: setattr(gateway.gate, "waits_s", 5.0), "logins wait"),
        (lambda gateway: setattr(gateway, "users", "credentials.sqlite: disk I/O error"), "disk I/O error"),
        (lambda gateway: gateway.store.medium.problems.append("commit: disk full"), "disk full"),
        (lambda gateway: setattr(gateway.clock, "stepped_lately", True), "set within"),
    ],
)
def test_faults_are_reported_as_problems(gateway: Gateway, change: Any, words: str) -> None:
    change(gateway)
    assert words in gateway.only().what
    assert gateway.only().next_step


def test_forwarder_without_access_to_its_address_is_a_problem(gateway: Gateway) -> None:
    gateway.uplink.faults["default.jobs/up"] = "'jobs' has 1 consumer, its limit"
    problem = gateway.only()
    assert (problem.name, problem.severity) == ("forwarder default.jobs/up", Severity.ERROR)
    assert "its limit" in problem.what


def test_backlog_of_a_removed_forwarder_is_a_problem(gateway: Gateway) -> None:
    gateway.left |= {"hub/default.plant/old": 3, "hub/default.plant/older": 0}
    problem = gateway.only()
    assert (problem.name, problem.severity) == ("forwarder hub/default.plant/old", Severity.WARNING)
    assert "3 messages wait for it" in problem.what
    assert "store purge --cursor forwarder/hub/default.plant/old" in problem.next_step
