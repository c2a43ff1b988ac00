"""Outlook of a card: write rates over time windows, endurance used, and days left."""

from __future__ import annotations

import pytest

from edge.appliance.wear import DAY_S, RATE_SPAN_S_MIN, Outlook, advice, lasting_line, outlook, written_line
from edge.broker.store.wear import HOUR_S, WearTotals

GB = 10**9


def steady(hours: int, per_hour: int = GB, *, since: int = 0) -> list[WearTotals]:
    """Return the totals at the end of each hour of a gateway that writes at a constant rate."""
    return [
        WearTotals(hour * HOUR_S - 1, hour * per_hour // 4, hour * per_hour // 2, hour * per_hour)
        for hour in range(since + 1, hours + 1)
    ]


def at(hours: float, device_bytes: int, process_bytes: int = 1) -> WearTotals:
    return WearTotals(hours * HOUR_S, 1, process_bytes, device_bytes)


class TestRates:
    def test_short_history_gives_no_rate(self) -> None:
        seen = outlook(WearTotals(RATE_SPAN_S_MIN - 1, 5, 10, 20), [], endurance_bytes=1000)
        assert (seen.bytes_per_day, seen.days_left) == ({}, None)
        seen = outlook(WearTotals(RATE_SPAN_S_MIN, 5, 10, 20), [], endurance_bytes=1000)
        assert seen.bytes_per_day == dict.fromkeys(("hour", "day", "week"), pytest.approx(20 / RATE_SPAN_S_MIN * DAY_S))

    def test_each_window_covers_its_full_length(self) -> None:
        rows = steady(24 * 8)
        rows.append(WearTotals(rows[-1].seconds + HOUR_S, 0, 0, rows[-1].device_bytes + 100 * GB))
        seen = outlook(rows[-1], rows)
        assert seen.bytes_per_day["hour"] == pytest.approx(2400 * GB)
        assert seen.bytes_per_day["day"] == pytest.approx(123 * GB)
        assert seen.bytes_per_day["week"] == pytest.approx((167 + 100) / 168 * 24 * GB)

    def test_young_store_is_measured_from_its_start(self) -> None:
        seen = outlook(at(3, 6 * GB), [at(0.5, GB)])
        assert seen.bytes_per_day["week"] == pytest.approx(48 * GB)
        assert seen.bytes_per_day["hour"] == pytest.approx(48 * GB)

    def test_old_store_is_measured_from_its_recorded_hours(self) -> None:
        rows = steady(400, since=300)
        assert outlook(rows[-1], rows).bytes_per_day["week"] == pytest.approx(24 * GB, rel=0.01)

    def test_hours_without_a_row_extend_the_window(self) -> None:
        seen = outlook(at(12, 12 * GB), [at(1, GB), at(2, 2 * GB)])
        assert seen.bytes_per_day["hour"] == pytest.approx(24 * GB)

    def test_process_counts_where_the_device_is_unknown(self) -> None:
        seen = outlook(at(4, 0, 4 * GB), [at(2, 0, 3 * GB)])
        assert (seen.device_bytes, seen.process_bytes) == (None, 4 * GB)
        assert seen.bytes_per_day["hour"] == pytest.approx(12 * GB)
        assert "by the gateway" in written_line(seen)

    @pytest.mark.parametrize("rows", [[at(2, 0, 3 * GB)], [at(2, 5 * GB, 3 * GB)]])
    def test_process_counts_where_the_device_was_partly_unknown(self, rows: list[WearTotals]) -> None:
        now = at(3, 7 * GB if not rows[0].device_bytes else 0, 4 * GB)
        assert outlook(now, rows).bytes_per_day["hour"] == pytest.approx(24 * GB)

    def test_unknown_counters_give_no_rate(self) -> None:
        seen = outlook(WearTotals(5 * HOUR_S, 100, 0, 0), [])
        assert (seen.bytes_per_day, seen.device_bytes, seen.process_bytes) == ({}, None, None)
        assert "not known" in written_line(seen)

    def test_idle_store_has_a_rate_of_zero(self) -> None:
        seen = outlook(at(30, GB), [at(0.9, GB), at(6, GB)], endurance_bytes=10 * GB)
        assert seen.bytes_per_day == {"hour": 0, "day": 0, "week": pytest.approx(0.8 * GB)}
        still = outlook(at(200, GB), [at(1, GB), at(6, GB)], endurance_bytes=10 * GB)
        assert set(still.bytes_per_day.values()) == {0}
        assert (still.used, still.days_left) == (pytest.approx(0.1), None)


class TestEndurance:
    NOW = at(10, 10 * GB)

    def test_days_left_use_the_faster_rate_of_day_and_week(self) -> None:
        rows = steady(24 * 8)
        rows.append(WearTotals(rows[-1].seconds + HOUR_S, 0, 0, rows[-1].device_bytes + 100 * GB))
        seen = outlook(rows[-1], rows, endurance_bytes=1000 * GB)
        assert seen.used == pytest.approx(0.292)
        assert seen.days_left == pytest.approx(708 / 123)

    def test_card_without_a_rating_uses_its_own_report(self) -> None:
        assert (outlook(self.NOW, []).used, outlook(self.NOW, []).days_left) == (None, None)
        seen = outlook(self.NOW, [], life_used=0.3)
        assert (seen.used, seen.days_left) == (0.3, None)
        assert "30% of its life used" in lasting_line(seen)
        assert "enduranceTerabytes" in lasting_line(seen)

    def test_card_older_than_the_store_uses_its_own_report(self) -> None:
        seen = outlook(self.NOW, [], endurance_bytes=100 * GB, life_used=0.5)
        assert seen.used == 0.5
        assert seen.days_left == pytest.approx(50 / 24)

    @pytest.mark.parametrize(("written", "used"), [(99, 0.99), (100, 1.0), (250, 2.5)])
    def test_worn_out_card_has_no_days_left(self, written: int, used: float) -> None:
        seen = outlook(at(10, written * GB), [], endurance_bytes=100 * GB)
        assert seen.used == pytest.approx(used)
        assert seen.days_left is not None
        assert (seen.days_left == 0) == (used >= 1)
        assert ("exceeded" in lasting_line(seen)) == (used >= 1)

    def test_worn_out_idle_card_has_no_days_left(self) -> None:
        seen = outlook(WearTotals(10, 0, 1, 100 * GB), [], endurance_bytes=GB)
        assert (seen.bytes_per_day, seen.days_left) == ({}, 0.0)


def test_text_is_readable() -> None:
    seen = outlook(WearTotals(10 * HOUR_S, GB, 2 * GB, 10 * GB), [], endurance_bytes=60e12, device="mmcblk0")
    assert written_line(seen) == (
        "2.0 GB by the gateway, 2.0 bytes written per byte of messages; "
        "10.0 GB to the whole disk mmcblk0 by all programs; in 10 h of running"
    )
    assert lasting_line(seen).startswith(
        "4.8 GB (last hour), 4.8 GB (last day), 4.8 GB (last week) a day by the gateway;"
    )
    assert lasting_line(seen).endswith("by all programs; 0.0% of 60.0 TB used, 2,500 days left")
    assert isinstance(seen, Outlook)


@pytest.mark.parametrize(
    ("seconds", "payload", "factor", "advised"),
    [
        (720, 720 * 20 * 50, 70, True),  # twenty messages of 50 bytes a second, for 12 minutes
        (720, 720 * 20 * 50, 5, False),
        (60, 60 * 20 * 50, 70, False),
        (720, 720 * 100_000, 70, False),
    ],
)
def test_batching_is_advised_where_each_small_message_is_synced(
    seconds: int, payload: int, factor: int, advised: bool
) -> None:
    said = advice(outlook(WearTotals(seconds, payload, payload * factor, 435 * GB), []))
    assert (said is not None) == advised
    if said is not None:
        assert "70 bytes are written per byte" in said
        assert "durability: batch:100" in said
