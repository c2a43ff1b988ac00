"""Alerts of a hub, on SQLite and on PostgreSQL: from what the hub knows to webhooks and mails, across restarts.

The time is the one that the service is given; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud.hub.alerts.gateways import JudgedGateways
from cloud.hub.alerts.limits import HISTORY_KEPT_S, SINGLE_ALERTS_MAX
from cloud.hub.alerts.measures import HubFigures, HubMeasures
from cloud.hub.alerts.receivers import MailSettings, PingSettings, ReceiverSettings, WebhookSettings
from cloud.hub.alerts.service import HubAlerts
from cloud.hub.fleet import FleetState, GatewayState
from cloud.hub.groups import GatewaySession, Key
from cloud.hub.labels import Labels
from cloud.hub.metrics import CommandFigures
from cloud.hub.registry.alerts import AlertFilter, AlertRecord, Alerts, MuteRecord, ReceiverRecord, RuleSettings
from cloud.hub.registry.campaign_rows import CampaignRecord
from cloud.hub.registry.hubs import HubRecord, Hubs
from cloud.hub.rollout import RolloutState
from cloud.hub.seen_gateway import classify
from cloud.hub.webhooks.sending import make_secret
from edge.health.problems import HealthProblem, Severity
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.support.notified import MailServer, WebhookServer

START_S = 1_800_000_000.0
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
ALL = AlertFilter()


def halted_campaign() -> CampaignRecord:
    shown = ("c1", "acme", 1, "anna", "", "blinker", "1.2.0", "acme", None)
    return CampaignRecord(*shown, 1, 1, 0, 100, 0, RolloutState.HALTED, "device a: no boot", [], None, False)


class World:
    """One hub with its fleet, its clock and its registry."""

    def __init__(self, place: Place, folder: Path, hub: str = HERE) -> None:
        self.place, self.folder, self.hub = place, folder, hub
        self.now_s = START_S
        self.fleet = FleetState(hub=hub)
        self.away: dict[Key, GatewayState] = {}
        self.labels: dict[tuple[str, str], dict[str, str]] = {}
        self.problems: list[HealthProblem] = []
        self.commands: Counter[str] = Counter()
        self.failing = False
        self.figures: Counter[RolloutState] = Counter()
        self.halted: list[CampaignRecord] = []
        self.tables = Alerts(place.url)
        self.alerts = self.restarted()

    def restarted(self) -> HubAlerts:
        """Return the service of a hub that has just started on the same registry."""
        measures = HubMeasures(self._figures, self.folder / "proof.prom", int(self.now_s * 1e6), hub=self.fleet.hub)
        self.alerts = HubAlerts(
            self.place.url, self.hub, measures, MemoryGateways(self), lambda: self.now_s, name="hub7"
        )
        return self.alerts

    def _figures(self) -> HubFigures:
        commands = CommandFigures({}, dict(self.commands))
        return HubFigures(self.problems, self.failing, "no space left", commands, [], {}, self)

    def add(self, name: str, *, connected: bool = True, tenant: str = "default", **labels: str) -> None:
        now_us = int(self.now_s * 1e6)
        self.labels[tenant, name] = labels
        if connected:
            self.away.pop((tenant, name), None)
            self.fleet.connect(GatewaySession(tenant, name, "192.0.2.1"), now_us)
            self.report(name, tenant=tenant)
        else:
            self.away[tenant, name] = GatewayState(tenant, name, now_us, now_us)

    def report(self, name: str, *, tenant: str = "default", **status: Any) -> None:
        figures = {"backlog_messages": 0, "backlog_oldest_at": None, "errors": 0, "manifest_waiting": 0}
        status = {"reported_at": int(self.now_s * 1e3), **figures, "certificate_problems": 0, **status}
        self.fleet.gateways[tenant, name].status = status

    def cut(self, *names: str) -> None:
        for name in names:
            session = self.fleet.gateways["default", name].session
            assert session is not None
            self.fleet.disconnect(session, int(self.now_s * 1e6))
            self.away["default", name] = self.fleet.gateways["default", name]

    async def after(self, seconds: float = 0.0) -> None:
        """Let time pass, then evaluate and deliver once."""
        self.now_s += seconds
        await self.alerts.evaluate()
        await self.alerts.deliver()

    def receiver(self, name: str, settings: ReceiverSettings, severity: str = "warning", secret: str = "s3") -> None:
        text = msgspec.json.encode(settings).decode()
        kind = str(type(settings).__struct_config__.tag)
        assert self.tables.put_receiver(ReceiverRecord(name, kind, severity, text, secret, 1, "ann"), 20)

    def mute(self, minutes: float, **fields: str) -> MuteRecord:
        now_us = int(self.now_s * 1e6)
        values = {"id": "m1", "tenant": "", "rule": "", "selector": "", "gateway": "", **fields}
        made = MuteRecord(
            **values, until=now_us + int(minutes * 60e6), reason="works on the mast", made_at=now_us, made_by="ann"
        )
        assert self.tables.mute(made, 200)
        return made

    def all(self, state: str = "") -> list[AlertRecord]:
        return self.tables.page(AlertFilter(state=state), 500)[0]


class MemoryGateways:
    """Gateways to judge from the fleet of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self) -> None:
        """Open nothing."""

    async def close(self) -> None:
        """Close nothing."""

    async def read(self, members: Collection[Key]) -> JudgedGateways:
        world, known = self._world, {**self._world.fleet.gateways, **self._world.away}
        elsewhere = {key for key, each in known.items() if each.connected and each.hub != world.hub}
        now_us = int(world.now_s * 1e6)
        seen = [classify(each, {}, now_us) for key, each in known.items() if key not in elsewhere]
        return JudgedGateways(seen, elsewhere & set(members))

    async def labels(self, keys: Collection[Key]) -> Mapping[Key, Labels]:
        return {key: self._world.labels.get(key, {}) for key in keys}


Story = Callable[[World], Awaitable[None]]


@pytest.fixture
def run(place: Place, tmp_path: Path) -> Callable[[Story], World]:
    """Return a function that runs a story with an open service."""

    def play(story: Story) -> World:
        place.open().close()

        async def live() -> World:
            world = World(place, tmp_path)
            await world.alerts.open()
            try:
                await story(world)
            finally:
                await world.alerts.close()
                world.tables.close()
            return world

        return asyncio.run(live())

    return play


async def restart(world: World) -> None:
    await world.alerts.close()
    await world.restarted().open()


class TestFiring:
    def test_rule_fires_after_its_time_and_resolves(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            world.add("hall", site="lyon")
            await world.after()
            world.cut("hall")
            await world.after()
            assert world.alerts.figures.pending == 1
            await world.after(29 * MINUTE)
            assert world.all() == []
            await world.after(2 * MINUTE)
            [alert] = world.all()
            assert (alert.rule, alert.gateway, alert.state) == ("WaypostUplinkAway", "hall", "firing")
            assert alert.since == int(START_S * 1e6)
            world.add("hall", site="lyon")
            await world.after(10)
            [alert] = world.all()
            assert alert.state == "resolved"
            assert alert.gateways == 1

        run(story)

    def test_pending_rule_of_a_gateway_that_moved_never_fires(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            world.add("hall")
            world.cut("hall")
            await world.after()
            state = world.away["default", "hall"]
            state.connected, state.hub = True, THERE
            await world.after(20 * MINUTE)
            await world.after(20 * MINUTE)
            assert world.all() == []

        run(story)

    def test_pending_rule_that_is_over_never_fires(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            world.add("hall")
            world.cut("hall")
            await world.after()
            world.add("hall")
            await world.after(20 * MINUTE)
            world.cut("hall")
            await world.after(20 * MINUTE)
            await world.after(20 * MINUTE)
            assert world.all() == []

        run(story)

    @pytest.mark.parametrize(
        ("status", "rule", "minutes"),
        [
            ({"errors": 1}, "WaypostGatewayProblem", 2),
            ({"certificate_problems": 1}, "WaypostCertificateEnds", 5),
            ({"manifest_waiting": 3}, "WaypostManifestsWait", 60),
            ({"backlog_messages": 9, "room_hours": 23.9}, "WaypostRoomEnds", 10),
            ({"backlog_oldest_at": int((START_S - HOUR - 60) * 1e3)}, "WaypostBacklogOld", 10),
            ({"backlog_messages": 9, "room_hours": 500.0}, "WaypostBacklogDoesNotMove", 20),
        ],
    )
    def test_status_of_a_gateway_fires_its_rule(
        self, run: Callable[[Story], World], status: dict[str, Any], rule: str, minutes: int
    ) -> None:
        async def story(world: World) -> None:
            world.add("hall")
            world.report("hall", **status)
            await world.after()
            for minute in range(minutes):
                assert rule not in {each.rule for each in world.all()}, minute
                await world.after(MINUTE)
            assert rule in {each.rule for each in world.all()}

        run(story)

    def test_hub_and_proof_fire_their_rules(self, run: Callable[[Story], World], tmp_path: Path) -> None:
        async def story(world: World) -> None:
            world.failing = True
            world.problems = [HealthProblem("landing", "it fails", "2026-01-01T00:00:00+00:00", "df", Severity.ERROR)]
            world.commands["expired"] = 11
            world.figures[RolloutState.HALTED] = 1
            world.halted = [halted_campaign()]
            await world.after()
            assert "WaypostLossUnexplained" not in world.alerts.measured
            metrics = {"unexplained": 3, "twice": 0, "findings": 0, "proved_timestamp_seconds": int(world.now_s)}
            lines = [
                f"# TYPE waypost_lake_{name} gauge\nwaypost_lake_{name} {value}\n" for name, value in metrics.items()
            ]
            (tmp_path / "proof.prom").write_text("".join(lines))
            await world.after(2 * MINUTE)
            fired = {each.rule for each in world.all("firing")}
            assert fired == {
                "WaypostLandingFails", "WaypostHubProblem", "WaypostCommandsNotDelivered", "WaypostLossUnexplained",
                "WaypostCampaignHalted",
            }  # fmt: skip
            [halted] = [each for each in world.all() if each.rule == "WaypostCampaignHalted"]
            assert "c1: device a: no boot" in halted.what
            lost = next(each for each in world.all() if each.rule == "WaypostCommandsNotDelivered")
            assert "11 commands" in lost.what
            assert "--state expired" in lost.next_step
            await world.after(20 * MINUTE)
            assert "WaypostCommandsNotDelivered" not in {each.rule for each in world.all("firing")}

        run(story)

    def test_settings_change_time_severity_and_gateways(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            world.tables.set_rule(RuleSettings("WaypostUplinkAway", True, 0, "critical", "site=lyon", 1, "ann"))
            for name, site in (("hall", "lyon"), ("yard", "bern")):
                world.add(name, site=site)
                world.cut(name)
            await world.after()
            [alert] = world.all()
            assert (alert.gateway, alert.severity) == ("hall", "critical")
            world.tables.set_rule(RuleSettings("WaypostUplinkAway", False, None, None, None, 2, "ann"))
            await world.after(10)
            assert world.all("open") == []

        run(story)


class TestDropped:
    def test_drops_count_again_after_the_hub_has_forgotten_the_first_ones(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            await world.after(HOUR)
            world.add("hall")
            world.fleet.gateways["default", "hall"].dropped = 5
            await world.after(10)
            assert [(each.rule, each.state) for each in world.all()] == [("WaypostMessagesGivenUp", "firing")]
            world.fleet.gateways["default", "hall"].dropped = 0
            await world.after(20 * MINUTE)
            assert [each.state for each in world.all()] == ["resolved"]
            world.fleet.gateways["default", "hall"].dropped = 5
            await world.after(10)
            assert sorted(each.state for each in world.all()) == ["firing", "resolved"]

        run(story)


class TestCauses:
    def test_one_cause_is_one_alert_that_others_join(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with WebhookServer() as webhook:
                world.receiver("ops", WebhookSettings(url=webhook.url))
                names = [f"gw{number}" for number in range(8)]
                for name in names:
                    world.add(name, site="lyon", ring=name)
                world.add("far", site="bern")
                for name in names[:7]:
                    world.cut(name)
                    await world.after(10)
                await world.after(30 * MINUTE - 60)
                [alert] = world.all()
                assert (alert.selector, alert.gateways, alert.gateway) == ("site=lyon", 7, "")
                assert len(webhook.requests) == 1
                world.add("gw0", site="lyon", ring="gw0")
                await world.after(10)
                [alert] = world.all()
                assert alert.gateways == 6
                for name in names[1:7]:
                    world.add(name, site="lyon")
                await world.after(10)
                assert [each.state for each in world.all()] == ["resolved"]
                assert webhook.events() == ["firing", "resolved"]

        run(story)

    def test_gateways_of_many_labels_do_not_make_many_alerts(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            for number in range(SINGLE_ALERTS_MAX + 30):
                world.add(f"gw{number}", connected=True)
                world.report(f"gw{number}", errors=1)
            await world.after()
            await world.after(2 * MINUTE)
            found = world.all()
            assert len(found) == SINGLE_ALERTS_MAX + 1
            assert max(each.gateways for each in found) == 30

        run(story)


class TestRestart:
    def test_firing_alert_does_not_fire_twice(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with WebhookServer() as webhook:
                world.receiver("ops", WebhookSettings(url=webhook.url))
                world.add("hall")
                world.report("hall", errors=1)
                await world.after()
                await world.after(2 * MINUTE)
                assert webhook.events() == ["firing"]
                await restart(world)
                world.fleet = FleetState(hub=world.hub)
                world.add("hall", connected=False)
                await world.after(5)  # not connected yet: the hub cannot know
                world.add("hall")
                world.report("hall", errors=1)
                await world.after(5)
                await world.after(10 * MINUTE)
                assert webhook.events() == ["firing"]
                assert len(world.all()) == 1
                world.report("hall")
                await world.after(5)
                assert webhook.events() == ["firing", "resolved"]

        run(story)

    def test_notification_that_was_not_delivered_is_sent_after_a_restart(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with WebhookServer() as webhook:
                webhook.status = 503
                world.receiver("ops", WebhookSettings(url=webhook.url))
                world.failing = True
                await world.after()
                await world.after(2 * MINUTE)
                assert len(webhook.requests) == 1
                [receiver] = world.tables.receivers()
                assert "503" in receiver.failure
                await world.after(1)
                assert len(webhook.requests) == 1, "the second attempt is not due yet"
                await restart(world)
                webhook.status = 200
                await world.after(10)
                await world.after(HOUR)
                assert webhook.events() == ["firing", "firing"]
                assert len({each.headers["webhook-id"] for each in webhook.requests}) == 1
                assert world.tables.receivers()[0].failure == ""

        run(story)

    def test_mute_holds(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with WebhookServer() as webhook:
                world.receiver("ops", WebhookSettings(url=webhook.url))
                world.mute(120, selector="site=lyon")
                for name, site in (("hall", "lyon"), ("yard", "bern")):
                    world.add(name, site=site)
                    world.report(name, errors=1)
                await world.after()
                await world.after(2 * MINUTE)
                assert {each.gateway: each.state for each in world.all()} == {"hall": "muted", "yard": "firing"}
                await restart(world)
                world.cut("hall")
                await world.after(5)
                assert {each.gateway: each.state for each in world.all()} == {"hall": "muted", "yard": "firing"}
                assert [each.document["alert"]["gateway"] for each in webhook.requests] == ["yard"]
                world.add("hall", site="lyon")
                world.report("hall", errors=1)
                await world.after(2 * HOUR)
                assert [each.document["alert"]["gateway"] for each in webhook.requests] == ["yard", "hall"]

        run(story)


class TestTwoHubs:
    """Two hubs of one lake evaluate the same fleet."""

    def run_with_second(self, place: Place, folder: Path, story: Callable[[World, World], Awaitable[None]]) -> None:
        for identifier in (HERE, THERE):
            place.open(identifier)
        place.execute("UPDATE writers SET lake = 'shared'")
        for identifier in (HERE, THERE):
            with contextlib.closing(Hubs(place.url, identifier)) as hubs:
                hubs.write(HubRecord(identifier, identifier[:1], "1", "serving", 1, 1, 0))
        worlds = World(place, folder), World(place, folder, THERE)

        async def main() -> None:
            for world in worlds:
                await world.alerts.open()
            try:
                await story(*worlds)
            finally:
                for world in worlds:
                    await world.alerts.close()
                    world.tables.close()

        asyncio.run(main())

    def test_alert_about_a_gateway_is_sent_once(self, place: Place, tmp_path: Path) -> None:
        async def story(here: World, there: World) -> None:
            with WebhookServer() as webhook:
                here.receiver("ops", WebhookSettings(url=webhook.url))
                for world in (here, there):
                    world.add("hall", connected=False)
                for _ in range(8):
                    for world in (here, there):
                        await world.after(5 * MINUTE)
                assert webhook.events() == ["firing"]
                assert [each.gateway for each in here.all("open")] == ["hall"]
                here.add("hall")
                state = there.away["default", "hall"]
                state.connected, state.hub = True, HERE
                for world in (there, here, there):
                    await world.after(5)
                assert webhook.events() == ["firing", "resolved"]
                assert len(here.all()) == 1

        self.run_with_second(place, tmp_path, story)

    def test_hub_that_is_slower_writes_nothing(self, place: Place, tmp_path: Path) -> None:
        async def story(here: World, there: World) -> None:
            with WebhookServer() as webhook:
                here.receiver("ops", WebhookSettings(url=webhook.url))
                for world in (here, there):
                    world.add("hall", connected=False)
                    await world.after()
                    world.now_s += HOUR
                await asyncio.gather(here.alerts.evaluate(), there.alerts.evaluate())
                await asyncio.gather(here.after(5), there.after(5))
                assert len(here.all()) == 1
                assert webhook.events() == ["firing"]

        self.run_with_second(place, tmp_path, story)

    def test_each_hub_has_its_own_failure(self, place: Place, tmp_path: Path) -> None:
        async def story(here: World, there: World) -> None:
            here.failing = True
            for _ in range(3):
                for world in (here, there):
                    await world.after(MINUTE)
            assert [each.hub for each in here.all("open")] == [HERE]
            here.failing = False
            await there.after(5)
            assert len(here.all("open")) == 1, "only its own hub knows"
            await here.after(5)
            assert here.all("open") == []

        self.run_with_second(place, tmp_path, story)

    def test_alert_about_a_stopped_hub_ends(self, place: Place, tmp_path: Path) -> None:
        async def story(here: World, there: World) -> None:
            with WebhookServer() as webhook:
                here.receiver("ops", WebhookSettings(url=webhook.url))
                there.failing = True
                for _ in range(3):
                    await there.after(MINUTE)
                assert [each.hub for each in here.all("open")] == [THERE]
                place.execute("UPDATE hubs SET state = 'stopped' WHERE id = :id", id=THERE)
                await here.after()
                assert [(each.state, each.outcome) for each in here.all()] == [("resolved", "its hub has stopped")]
                assert webhook.events() == ["firing", "resolved"], "the incident at the receiver ends too"
                for _ in range(3):
                    await there.after(MINUTE)
                assert [each.hub for each in here.all("open")] == [THERE], "it is back, and reads that the alert ended"

        self.run_with_second(place, tmp_path, story)

    def test_notification_of_a_hub_that_ended_is_sent_by_another(self, place: Place, tmp_path: Path) -> None:
        async def story(here: World, there: World) -> None:
            with WebhookServer() as webhook:
                here.receiver("ops", WebhookSettings(url=webhook.url))
                here.add("hall", connected=False)
                for _ in range(2):
                    here.now_s += HOUR
                    await here.alerts.evaluate()
                now_us = here.alerts.now_us()
                claimed = here.tables.claim(HERE, now_us, now_us + 60_000_000, 8)
                assert len(claimed) == 1, "and then it is killed"
                there.now_s = here.now_s
                await there.alerts.deliver()
                assert webhook.events() == []
                there.now_s += 61
                await there.alerts.deliver()
                assert webhook.events() == ["firing"]

        self.run_with_second(place, tmp_path, story)


class TestPeople:
    def test_acknowledged_alert_stays_so_and_mutes_end(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            world.failing = True
            await world.after()
            await world.after(2 * MINUTE)
            [alert] = world.all()
            assert world.tables.acknowledge(alert.id, "ann", "on it", 5) is not None
            await world.after(10)
            [alert] = world.all("acknowledged")
            assert (alert.acknowledged_by, alert.note) == ("ann", "on it")
            assert world.alerts.figures.acknowledged == 1
            mute = world.mute(60, rule="WaypostLandingFails")
            await world.after(10)
            assert world.all()[0].muted_until == mute.until
            assert world.tables.unmute(mute.id, int(world.now_s * 1e6)) is not None
            await world.after(10)
            assert world.all()[0].muted_until is None

        run(story)

    def test_history_ends_after_its_time_and_pages_follow_each_other(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            for _ in range(5):
                world.failing = True
                await world.after(MINUTE)
                await world.after(2 * MINUTE)
                world.failing = False
                await world.after(MINUTE)
            everything = world.all()
            assert len(everything) == 5
            seen, after = [], None
            while True:
                page, total = world.tables.page(AlertFilter(after=after), 2)
                assert total == 5
                seen += page
                if len(page) < 2:
                    break
                after = (page[-1].fired_at, page[-1].id)
            assert seen == everything
            await world.after(HISTORY_KEPT_S + DAY)
            assert world.all() == []

        run(story)


class TestReceivers:
    def test_webhook_is_signed(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            secret = make_secret()
            with WebhookServer() as webhook:
                world.receiver("ops", WebhookSettings(url=webhook.url), secret=secret)
                assert await world.alerts.test(world.tables.receivers()[0]) is None
                [request] = webhook.requests
                assert request.path == "/hook"
                assert request.document["event"] == "test"
                stamp, identity = request.headers["webhook-timestamp"], request.headers["webhook-id"]
                assert stamp == str(int(world.now_s))
                key = base64.b64decode(secret.removeprefix("whsec_"))
                signed = hmac.digest(key, f"{identity}.{stamp}.".encode() + request.body, "sha256")
                assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"

        run(story)

    def test_mail_says_what_where_and_the_next_step(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with MailServer() as server:
                settings = MailSettings(
                    host="127.0.0.1", port=server.port, security="none", sender="hub@example.com",
                    to=["ops@example.com", "night@example.com"],
                )  # fmt: skip
                world.receiver("mail", settings, severity="critical")
                world.add("hall\u202e")
                world.report("hall\u202e", errors=1, manifest_waiting=1)
                await world.after()
                await world.after(2 * HOUR)
                [mail] = server.mails
                assert mail["To"] == "ops@example.com, night@example.com"
                text = str(mail.get_payload(decode=True), "utf-8") if mail.get_payload(decode=True) else ""
                assert "the gateway reports an error" in text
                assert "next step: run waypost status" in text
                assert "\u202e" not in text
                assert "WaypostGatewayProblem" in text

        run(story)

    def test_receiver_that_does_not_answer_is_reported(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))  # it does not listen
                world.receiver("ops", WebhookSettings(url=f"http://127.0.0.1:{bound.getsockname()[1]}/"))
                failure = await world.alerts.test(world.tables.receivers()[0])
            assert failure is not None
            assert "refused" in failure.lower()
            assert world.tables.receivers()[0].failure == failure

        run(story)

    def test_ping_comes_while_rules_are_evaluated_and_only_then(self, run: Callable[[Story], World]) -> None:
        async def story(world: World) -> None:
            with WebhookServer() as server:
                world.receiver("dead-man", PingSettings(url=server.url, every_s=60))
                await world.after()
                await world.after(30)
                assert len(server.requests) == 1
                await world.after(30)
                assert len(server.requests) == 2
                world.now_s += HOUR
                await world.alerts.deliver()
                assert len(server.requests) == 2, "nothing was evaluated for an hour"

        run(story)
