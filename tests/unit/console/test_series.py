"""Series of the console's charts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.appliance.console.series import FILE, SPANS, SeriesSample, StatusSeries

NOON = 1_800_000_000


class Source:
    """Counters that a test moves."""

    def __init__(self) -> None:
        self.now = SeriesSample(received=0, acked=0, waiting=0, linked=True)

    def __call__(self) -> SeriesSample:
        return self.now


def test_rates_are_averages_of_a_point() -> None:
    source = Source()
    series = StatusSeries(source)
    for second in range(61):
        source.now = SeriesSample(received=second * 10, acked=second * 5, waiting=second, linked=second != 30)
        series.take(NOON + second)
    minute = series.points("24h")
    assert minute.received_per_s[-2:] == [pytest.approx(590 / 60, abs=0.1), pytest.approx(10 / 60, abs=0.1)]
    assert minute.acked_per_s[-2] == pytest.approx(295 / 60, abs=0.1)
    assert minute.waiting[-2:] == [59, 60]
    assert minute.linked[-2:] == [False, True], "a point in which the uplink was cut for a second is cut"
    assert minute.end == NOON + 120


def test_time_without_the_gateway_is_a_gap() -> None:
    source = Source()
    series = StatusSeries(source)
    series.take(NOON)
    series.take(NOON + 25)
    points = series.points("15m")
    assert points.waiting[-6:] == [0, None, None, None, None, 0]
    assert points.linked[-2] is None


def test_clock_that_steps_back_begins_anew() -> None:
    source = Source()
    series = StatusSeries(source)
    series.take(NOON)
    series.take(NOON - 86_400)
    points = series.points("15m")
    assert points.end == NOON - 86_400 + 5
    assert [value for value in points.waiting if value is not None] == [0]


def test_counter_of_a_removed_connector_is_no_negative_rate() -> None:
    source = Source()
    series = StatusSeries(source)
    source.now = SeriesSample(received=5, acked=100, waiting=0, linked=True)
    series.take(NOON)
    source.now = SeriesSample(received=6, acked=10, waiting=0, linked=True)
    series.take(NOON + 1)
    assert series.points("15m").acked_per_s[-1] == 0


@given(st.lists(st.integers(-100_000, 100_000), min_size=1, max_size=40))
def test_every_span_keeps_its_size_and_ends_at_the_last_sample(steps: list[int]) -> None:
    series, now = StatusSeries(Source()), NOON
    for step in steps:
        now += step
        series.take(now)
    for name, (step_s, size) in SPANS.items():
        points = series.points(name)
        assert len(points.waiting) == len(points.linked) == len(points.received_per_s) == size
        assert points.end == (now // step_s + 1) * step_s
        assert points.waiting[-1] is not None


class TestFile:
    def test_restart_keeps_the_long_spans(self, tmp_path: Path) -> None:
        source = Source()
        first = StatusSeries(source, tmp_path)
        for minute in range(0, 7 * 24 * 60, 7):
            source.now = SeriesSample(
                received=minute * 1_000, acked=minute * 999, waiting=minute * 7, linked=minute % 5 > 0
            )
            first.take(NOON + minute * 60)
        first.save()
        second = StatusSeries(source, tmp_path)
        second.load()
        assert second.points("24h") == first.points("24h")
        assert second.points("7d") == first.points("7d")
        assert (tmp_path / FILE).stat().st_size <= 30_000

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"x\x9c\x01\x00\x00\xff\xff"])
    def test_damaged_file_is_reported_and_the_charts_start_empty(
        self, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / FILE).write_bytes(content)
        series = StatusSeries(Source(), tmp_path)
        series.load()
        assert "charts start empty" in caplog.text
        assert not any(series.points("7d").waiting)

    def test_missing_file_is_no_error(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        StatusSeries(Source(), tmp_path).load()
        assert not caplog.text
