"""The plan meets the claims of the demo: enough devices, kinds and protocols, and the order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.demo.plan import GATEWAYS, Timeline, devices


def test_eight_devices_of_three_kinds_use_both_protocols_on_both_gateways() -> None:
    plans = devices(sensors=False)
    assert len(plans) >= 8
    assert len({plan.kind for plan in plans}) >= 3
    for gateway in GATEWAYS:
        assert {plan.protocol for plan in plans if plan.gateway == gateway} == {"mqtt", "amqp"}
    assert len({plan.name for plan in devices(sensors=True)}) == len(devices(sensors=True)) == len(plans) + 1


def test_outage_starts_after_twelve_seconds_and_lasts_twenty() -> None:
    timeline = Timeline.of(60)
    assert timeline.cut == 12
    assert timeline.restore - timeline.cut == 20


@given(st.floats(20, 3600))
def test_gateway_is_killed_and_restarted_within_the_outage(seconds: float) -> None:
    timeline = Timeline.of(seconds)
    assert 0 < timeline.cut < timeline.kill < timeline.restart < timeline.restore < timeline.stop
