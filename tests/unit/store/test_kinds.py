"""Kinds of the store's small state: names from users have a kind without other keys."""

from __future__ import annotations

from edge.broker.delivery import sweep
from edge.broker.retention import clock_offsets, loss_reports, manifests
from edge.broker.router import connector_uplink, running_time


def test_connector_may_have_any_name() -> None:
    """A connector called ``steady`` once shared its key with the clock of the sweeper."""
    by_connector = [clock_offsets.HEADS, loss_reports.KIND, manifests.HEADS, connector_uplink.BUDGET]
    others = [sweep.STEADY[0], running_time.KEPT[0]]
    assert len({*by_connector}) == len(by_connector)
    assert not {*by_connector} & {*others}
