"""Order in which connections are read while many bytes wait for the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from bridge.intake import Intake
from cloud.hub.limits import RATE_CHECK_S_MAX, RATE_CHECK_S_MIN
from cloud.hub.pressure import QUOTA, RATE, LandingPressure, TenantPressure, TenantRate


class Connection:
    """An intake as `LandingPressure` sees it."""

    def __init__(self, waiting_bytes: int = 0) -> None:
        self.waiting_bytes = waiting_bytes
        self.has_backlog = False
        self.unread_bytes = 0
        """Part of `waiting_bytes` that is not read yet."""
        self.is_read = True
        self.went_on = 0
        self.batches = 0

    @property
    def unsettled(self) -> tuple[int, int]:
        return 1, self.waiting_bytes - self.unread_bytes

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def resume_decoding(self) -> None:
        self.went_on += 1

    def share(self, batches: int) -> None:
        self.batches = batches


class Rig:
    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.pressure = LandingPressure(
            lambda: sum(one.unsettled[1] for one in self.connections),
            lambda: sum(one.unread_bytes for one in self.connections),
        )

    def connect(self) -> Connection:
        made = Connection()
        self.connections.append(made)
        self.pressure.add(as_intake(made))
        return made

    def wait(self, connection: Connection, waiting_bytes: int) -> None:
        connection.waiting_bytes = waiting_bytes
        self.pressure.update_for(as_intake(connection))


def as_intake(connection: Connection) -> Intake:
    return connection  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.pressure.PENDING_BYTES_MAX", 1_000)
    monkeypatch.setattr("cloud.hub.pressure.PENDING_BYTES_LAST", 200)


def test_connections_with_most_waiting_bytes_pause_until_half_has_landed() -> None:
    rig = Rig()
    small, greedy, other = (rig.connect() for _ in range(3))
    rig.wait(small, 10)
    rig.wait(greedy, 600)
    rig.wait(other, 390)
    assert [one.is_read for one in rig.connections] == [True] * 3
    rig.wait(other, 420)
    assert [one.is_read for one in rig.connections] == [True, False, False]
    assert [rig.pressure.has_room(as_intake(one)) for one in rig.connections] == [True, False, False]
    rig.wait(small, 20)
    assert small.is_read
    rig.wait(greedy, 100)
    assert greedy.is_read, "it has less than its share"
    assert not other.is_read
    rig.wait(other, 380)
    rig.pressure.resume_decoding()
    assert [one.is_read for one in rig.connections] == [True] * 3
    assert [one.went_on for one in rig.connections] == [1] * 3


def test_longest_paused_connection_resumes_first() -> None:
    """Reading resumes with the connection that was read least recently; in order of arrival the last would starve."""
    rig = Rig()
    every = [rig.connect() for _ in range(4)]
    order: list[Connection] = []
    for one in every:
        one.resume_reading = lambda one=one: order.append(one)  # type: ignore[method-assign,misc]
    rig.wait(every[0], 900)
    rig.wait(every[2], 900)
    for one in (every[0], every[2]):
        one.waiting_bytes = 0
    rig.pressure.resume_decoding()
    assert order == [every[1], every[3], every[0], every[2]]


def test_no_connection_is_read_beyond_the_reserve() -> None:
    rig = Rig()
    greedy = rig.connect()
    rig.wait(greedy, 1_100)
    small = [rig.connect() for _ in range(20)]
    assert all(one.is_read for one in small)
    for one in small:
        rig.wait(one, 10)
    rig.pressure.update()
    assert not any(one.is_read for one in small)
    assert not rig.pressure.has_room(as_intake(small[0]))
    newcomer = rig.connect()
    assert not newcomer.is_read
    rig.wait(greedy, 0)
    assert all(one.is_read for one in rig.connections)


def test_room_exists_while_nothing_is_decoded() -> None:
    rig = Rig()
    both = [rig.connect(), rig.connect()]
    for one in both:
        one.unread_bytes = 700
        rig.wait(one, 700)
    assert not any(one.is_read for one in both)
    assert all(rig.pressure.has_room(as_intake(one)) for one in both)


def test_departed_connection_is_skipped() -> None:
    rig = Rig()
    greedy = rig.connect()
    rig.wait(greedy, 2_000)
    rig.pressure.remove(as_intake(greedy))
    rig.connections.clear()
    rig.pressure.resume_decoding()
    assert not rig.pressure.pressed
    assert not greedy.is_read


class Held:
    """Stub for an intake."""

    def __init__(self, waiting: int = 0) -> None:
        self.waiting_bytes = waiting
        self.unsettled = (0, 0)
        self.reasons: set[str] = set()

    def pause_reading(self, reason: str) -> None:
        self.reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.reasons.discard(reason)


class TestTenant:
    def test_gateways_of_a_tenant_pause_until_half_has_landed(self) -> None:
        first, second, late = Held(60), Held(30), Held()
        total = [90]
        tenant = TenantPressure(100, lambda: total[0])
        tenant.add(cast(Intake, first))
        tenant.add(cast(Intake, second))
        tenant.update_some()
        assert not first.reasons
        second.waiting_bytes, total[0] = 50, 110
        tenant.update_some()
        tenant.add(cast(Intake, late))
        assert [each.reasons for each in (first, second, late)] == [{QUOTA}] * 3
        first.waiting_bytes = 10
        tenant.update()
        assert first.reasons, "more than half of it waits yet"
        second.waiting_bytes = 40
        tenant.update()
        assert [each.reasons for each in (first, second, late)] == [set()] * 3

    def test_gateway_without_decoded_bytes_continues(self) -> None:
        held = Held(101)
        tenant = TenantPressure(100, lambda: 101)
        tenant.add(cast(Intake, held))
        tenant.update_some()
        assert tenant.has_room(cast(Intake, held))
        held.unsettled = (1, 50)
        assert not tenant.has_room(cast(Intake, held))
        tenant.remove(cast(Intake, held))
        assert not tenant


class TestRate:
    """A rate of 100 bytes a second with a burst of 10 seconds."""

    def setup_method(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.told = 0
        self.rate = TenantRate(100, lambda: self.now, self._later, self._spent)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, call))

    def _spent(self) -> None:
        self.told += 1

    def _wait(self) -> None:
        """Advance to the next call."""
        self.now, call = self.due.pop(0)
        call()

    def test_tenant_above_its_rate_pauses_until_it_is_below(self) -> None:
        first, late = Held(), Held()
        self.rate.add(cast(Intake, first))
        self.rate.count_received(1_000)
        assert not first.reasons
        self.rate.count_received(50)
        self.rate.count_received(150)
        self.rate.add(cast(Intake, late))
        assert first.reasons == late.reasons == {RATE}
        assert self.told == 1
        self._wait()
        assert first.reasons == {RATE}, "more had been read by then"
        self._wait()
        assert 2.0 <= self.now <= 2.0 + RATE_CHECK_S_MIN
        assert not first.reasons | late.reasons
        assert not self.due

    def test_hub_grants_its_share(self) -> None:
        share = 1.0
        self.rate = TenantRate(100, lambda: self.now, self._later, self._spent, lambda: share)
        gateway = Held()
        self.rate.add(cast(Intake, gateway))
        share = 0.25
        self.rate.count_received(1_250)
        assert gateway.reasons == {RATE}, "of what it could send at once it has a quarter too"
        self._wait()
        assert (self.now, gateway.reasons) == (RATE_CHECK_S_MAX, {RATE})
        share = 1.0
        while gateway.reasons:
            self._wait()
        assert self.now == 13.75, "the share that has grown counts while it waits"

    def test_average_keeps_the_rate(self) -> None:
        gateway, took = Held(), 0
        self.rate.add(cast(Intake, gateway))
        while self.now < 1_000:
            while not gateway.reasons:
                self.rate.count_received(70)
                took += 70
            self._wait()
        assert took <= 100 * (self.now + 10) + 70

    def test_reconnecting_gateway_keeps_its_debt(self) -> None:
        gateway, again = Held(), Held()
        self.rate.add(cast(Intake, gateway))
        self.rate.count_received(2_000)
        self.rate.remove(cast(Intake, gateway))
        self.rate.add(cast(Intake, again))
        assert again.reasons == {RATE}
