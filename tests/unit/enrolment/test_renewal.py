"""A running gateway renews its certificate in time, and its file is complete at every moment."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from bridge.proxy import PeerRoute
from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.identity.enrolling import enrol, renew
from edge.appliance.identity.exchange import AnswerLost, HubUnreachable, NotIssued
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.location import identity_file
from edge.appliance.identity.renewal import CHECK_INTERVAL_S_MAX, Renewal
from edge.health.certificates import validity_of
from tests.unit.enrolment.hub import DAY, NOW, Hub


class Enrolled:
    """A gateway with a certificate, and its hub."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(folder)
        self.data = folder / "gw"
        self.data.mkdir()
        enrol(self.data, self.hub, self.hub.token(), "hall", now=lambda: NOW)
        self.now = NOW
        self.ahead_s = 0.0
        """Seconds by which the gateway's clock is ahead of the hub's."""
        self.uptime = 0.0

    @property
    def file(self) -> Path:
        return identity_file(self.data)

    @property
    def serial(self) -> str:
        return f"{GatewayIdentity(self.data).certificate().serial_number:X}"

    def renew(self) -> None:
        self.hub.now, self.hub.shows = self.now - self.ahead_s, self.serial
        renew(self.data, self.hub)

    def good(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.file))
        context.load_cert_chain(self.file, self.file)
        return True


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enrolled:
    made = Enrolled(tmp_path)
    monkeypatch.setattr("edge.appliance.identity.enrolling.renew", lambda _data, _exchange: made.renew())
    return made


def renewal(gateway: Enrolled, *, draw: float = 0.5, endpoints: int = 1) -> Renewal:
    places = [PeerRoute(ListenEndpoint("hub", 5671))] * endpoints
    return Renewal(
        gateway.data, lambda: places, now=lambda: gateway.now, clock=lambda: gateway.uptime, draw=lambda: draw
    )


def test_renewal_starts_at_two_thirds_of_the_life(gateway: Enrolled) -> None:
    async def run() -> None:
        running, first = renewal(gateway), gateway.serial
        begins, ends = validity_of(gateway.file)
        assert await running.check() == CHECK_INTERVAL_S_MAX
        gateway.now = begins + (ends - begins) * 2 / 3 - 10
        assert await running.check() == pytest.approx(10)
        assert gateway.serial == first
        gateway.now += 10
        assert await running.check() == 0.0
        assert gateway.serial != first
        assert gateway.good()
        assert validity_of(gateway.file)[1] == gateway.now // 1 + 90 * DAY
        assert await running.check() == CHECK_INTERVAL_S_MAX

    asyncio.run(run())


@pytest.mark.parametrize(("draw", "share"), [(0.0, 2 / 3 - 1 / 20), (0.999999, 2 / 3 + 1 / 20)])
def test_gateways_enrolled_together_renew_at_different_times(gateway: Enrolled, draw: float, share: float) -> None:
    async def run() -> None:
        running, first = renewal(gateway, draw=draw), gateway.serial
        begins, ends = validity_of(gateway.file)
        gateway.now = begins + (ends - begins) * share - 60
        await running.check()
        assert gateway.serial == first
        gateway.now += 120
        await running.check()
        assert gateway.serial != first

    asyncio.run(run())


def test_clock_months_ahead_causes_no_extra_requests(gateway: Enrolled) -> None:
    async def run() -> None:
        running = renewal(gateway)
        gateway.now += 80 * DAY
        gateway.ahead_s = 80 * DAY
        for _ in range(5):
            await running.check()
            gateway.uptime += DAY
        assert gateway.hub.asked == 2, "once to enrol, once to renew"

    asyncio.run(run())


def test_certificate_that_no_connector_uses_is_not_renewed(gateway: Enrolled) -> None:
    gateway.now += 89 * DAY
    assert asyncio.run(renewal(gateway, endpoints=0).check()) == CHECK_INTERVAL_S_MAX
    assert gateway.hub.asked == 1


def test_unreachable_hub_is_no_problem_and_is_asked_again(gateway: Enrolled) -> None:
    async def run() -> None:
        running, first = renewal(gateway), gateway.serial
        gateway.now += 61 * DAY
        gateway.hub.gone = True
        pause_s = await running.check()
        assert pause_s == CHECK_INTERVAL_S_MAX, "its first pause is 30 to 60 s"
        assert running.trouble is None
        assert 0 < await running.check() <= pause_s, "a look before its time asks nobody"
        assert gateway.serial == first
        gateway.hub.gone = False
        gateway.uptime += 60
        await running.check()
        assert gateway.serial != first

    asyncio.run(run())


def test_hub_that_refuses_is_a_problem_until_it_accepts(gateway: Enrolled) -> None:
    async def run() -> None:
        running = renewal(gateway)
        gateway.now += 61 * DAY
        gateway.hub.revoke("hall")
        await running.check()
        assert "revoked" in (running.trouble or "")
        again = gateway.hub.token(gateway="hall")
        await asyncio.to_thread(enrol, gateway.data, gateway.hub, again, "hall", now=lambda: gateway.now)
        await running.check()
        assert running.trouble is None

    asyncio.run(run())


def test_lost_answer_is_requested_again(gateway: Enrolled) -> None:
    """The next try gets the lost certificate, as the key was kept."""
    first, gateway.now = gateway.serial, NOW + 61 * DAY
    gateway.hub.lost = 1
    with pytest.raises(AnswerLost):
        gateway.renew()
    assert gateway.serial == first
    assert gateway.good()
    gateway.now += 60
    gateway.renew()
    assert gateway.serial != first
    assert gateway.good()
    assert validity_of(gateway.file)[1] == NOW + 61 * DAY + 90 * DAY


def test_renewal_survives_a_kill_at_any_line(gateway: Enrolled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key and certificate match after a kill at any line, and the next try continues."""

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    for place in ("os.fsync", "pathlib.Path.replace", "edge.appliance.identity.files.replace_file"):
        gateway.now += 61 * DAY
        monkeypatch.setattr(place, kill)
        with pytest.raises(Killed):
            gateway.renew()
        monkeypatch.undo()
        assert gateway.good(), place
        gateway.renew()
        assert gateway.good(), place


def test_unreadable_file_is_left_to_other_checks(gateway: Enrolled) -> None:
    gateway.file.write_text("nothing")
    assert asyncio.run(renewal(gateway).check()) == CHECK_INTERVAL_S_MAX


def test_errors_of_an_exchange_are_distinguished() -> None:
    assert issubclass(AnswerLost, HubUnreachable)
    assert not issubclass(NotIssued, HubUnreachable)
