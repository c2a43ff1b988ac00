"""Credit of gateways: shares of the bytes that may wait."""

from __future__ import annotations

import pytest

from bridge.limits import UPLINK_BATCH_BYTES, UPLINK_WINDOW_BYTES
from cloud.hub.credit import BATCHES_MAX, BATCHES_MIN, MUCH_BYTES, SMALL_BATCHES, SMALL_BATCHES_MIN, Shares
from cloud.lake.limits import PENDING_BYTES_MAX


class Gateway:
    """A connection, and the number of its batches that may be on their way."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.has_backlog = False
        self.batches = 0

    def share(self, batches: int) -> None:
        self.batches = batches


class Rig:
    def __init__(self, count: int = 0) -> None:
        self.shares = Shares()
        self.gateways: list[Gateway] = []
        for _ in range(count):
            self.connect()

    @property
    def free_bytes(self) -> int:
        return PENDING_BYTES_MAX - sum(each.waiting_bytes for each in self.gateways)

    def connect(self) -> Gateway:
        made = Gateway()
        self.gateways.append(made)
        self.shares.add(made, self.free_bytes)
        return made

    def land(self) -> None:
        self.shares.landed(self.gateways, self.free_bytes)

    def settle(self) -> None:
        """Land twice, so that idle gateways count as idle."""
        self.land()
        self.land()


def test_single_gateway_gets_its_whole_window() -> None:
    rig = Rig(1)
    assert rig.gateways[0].batches == BATCHES_MAX == UPLINK_WINDOW_BYTES // UPLINK_BATCH_BYTES


def test_simultaneous_fleet_shares_from_the_start() -> None:
    rig = Rig(1_000)
    given = [each.batches for each in rig.gateways]
    assert given == sorted(given, reverse=True)
    assert set(given[200:]) == {BATCHES_MIN}, "none is without"
    assert sum(given) < 6_000, "a tenth of what each alone would have"
    for each in rig.gateways:
        each.waiting_bytes = 4 * UPLINK_BATCH_BYTES
    rig.land()
    assert {each.batches for each in rig.gateways} == {BATCHES_MIN}


def test_live_gateways_take_no_share() -> None:
    rig = Rig(1_000)
    rig.settle()
    for each in rig.gateways:
        each.waiting_bytes = MUCH_BYTES // 10
    behind = rig.gateways[7]
    behind.waiting_bytes = 8 * UPLINK_BATCH_BYTES
    rig.land()
    assert behind.batches == BATCHES_MAX


def test_waiting_bytes_reduce_credit_and_landed_ones_restore_it() -> None:
    rig = Rig(4)
    rig.settle()
    for each in rig.gateways:
        each.waiting_bytes = PENDING_BYTES_MAX // 4
    rig.land()
    assert {each.batches for each in rig.gateways} == {BATCHES_MIN}
    for each in rig.gateways:
        each.waiting_bytes = PENDING_BYTES_MAX // 32
    rig.land()
    assert {each.batches for each in rig.gateways} == {BATCHES_MAX}


def test_departed_gateway_has_no_share() -> None:
    rig = Rig(100)
    rig.land()
    few = rig.gateways[0].batches
    for each in rig.gateways:
        each.waiting_bytes = 2 * MUCH_BYTES
    for gone in rig.gateways[4:]:
        rig.shares.remove(gone)
    del rig.gateways[4:]
    rig.land()
    assert few < BATCHES_MAX == rig.gateways[0].batches


def fleet(sending: int, silent: int = 0) -> Rig:
    """Return gateways that send live readings, and silent ones."""
    rig = Rig(sending + silent)
    rig.settle()
    for each in rig.gateways[:sending]:
        each.waiting_bytes = MUCH_BYTES // 10
    rig.land()
    return rig


@pytest.mark.parametrize(
    ("sending", "batches"),
    [
        (SMALL_BATCHES // BATCHES_MAX, BATCHES_MAX),
        (500, SMALL_BATCHES // 500),
        (2_000, SMALL_BATCHES_MIN),
        (10_000, SMALL_BATCHES_MIN),
    ],
)
def test_gathering_time_grows_with_the_number_of_live_gateways(sending: int, batches: int) -> None:
    assert {each.batches for each in fleet(sending).gateways} == {batches}


def test_silent_gateways_do_not_extend_the_gathering() -> None:
    assert fleet(40, silent=5_000).gateways[0].batches == BATCHES_MAX


def test_thousands_of_simultaneous_starts_are_spread() -> None:
    """Granted credit cannot be withdrawn, so a silent gateway gets little, however few gateways send."""
    rig = fleet(1, silent=5_000)
    assert rig.gateways[0].batches == BATCHES_MAX
    assert {each.batches for each in rig.gateways[1:]} == {SMALL_BATCHES_MIN}
    assert {each.batches for each in fleet(1, silent=50).gateways} == {BATCHES_MAX}, "a small fleet may"


def test_backlog_on_a_slow_link_is_not_taken_for_live_readings() -> None:
    """A slow link needs several small batches at once for its backlog."""
    rig = fleet(2_000)
    rig.gateways[7].has_backlog = True
    rig.land()
    assert rig.gateways[7].batches == BATCHES_MAX
    assert rig.gateways[8].batches == SMALL_BATCHES_MIN
    rig.gateways[7].has_backlog = False
    rig.land()
    assert rig.gateways[7].batches == SMALL_BATCHES_MIN


def test_credit_returns_when_others_are_silent() -> None:
    rig = fleet(2_000)
    for each in rig.gateways[1:]:
        each.waiting_bytes = 0
    rig.land()
    assert rig.gateways[0].batches == BATCHES_MAX
