"""The data budget of a connector continues after a restart, is shown, and is reported when it is used up."""

from __future__ import annotations

from bridge.pace import PaceSettings
from bridge.plain import Hop
from edge.appliance.connector_health import budget_problems
from edge.broker.configuration import Connector, EndpointHost
from edge.broker.router.commands.addresses import PLAIN
from edge.broker.router.commands.inbox import CommandInbox
from edge.broker.router.connector_uplink import ConnectorUplink
from edge.broker.router.recent_names import RecentNames
from edge.health.problems import Severity
from tests.support.manifest_bench import StubSigner
from tests.support.router_site import NS_PER_S, RouterSite


def _uplink(site: RouterSite, pace: PaceSettings) -> ConnectorUplink:
    endpoint = EndpointHost(host="127.0.0.1", port=1)
    connector = Connector(name="hub", hosts=(endpoint,), pace=pace)
    hop = Hop("gw1", site.store.lineage.epoch)
    commands = CommandInbox("hub", site.router, PLAIN, RecentNames(), hop.gateway, lambda _device: True)
    return ConnectorUplink(
        connector, space="s", hop=hop, router=site.router, store=site.store, signer=StubSigner(), commands=commands
    )


def test_spent_budget_survives_a_restart_and_is_shown() -> None:
    site = RouterSite()
    site.now = 1_763_845_200.0
    made = _uplink(site, PaceSettings(monthly_budget=1_000_000))
    made.uplink.count_bytes(9_000)
    made.poll(int(site.now * NS_PER_S), clock_good=True)
    site.settle_down()
    assert list(site.store.state.items("budget")) == [], "not each few bytes are written"
    made.uplink.count_bytes(791_000)
    made.poll(int(site.now * NS_PER_S), clock_good=True)
    site.settle_down()
    assert [problem.severity for problem in budget_problems("hub", made)] == [Severity.WARNING]
    site.boot()
    again = _uplink(site, PaceSettings(monthly_budget=1_000_000))
    assert (again.progress().spent_bytes, again.progress().budget_bytes) == (800_000, 1_000_000)
    again.uplink.count_bytes(200_000)
    assert [problem.severity for problem in budget_problems("hub", again)] == [Severity.ERROR]
    site.now += 31 * 86_400
    again.poll(int(site.now * NS_PER_S), clock_good=True)
    assert list(budget_problems("hub", again)) == []
