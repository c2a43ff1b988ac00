"""Campaigns under random orders of events: two hubs with different clocks, gateways that were away, devices that brick,
fail, sleep, are removed or set back. What the registry says of each device is compared with what happened."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
import sqlalchemy as sa

from cloud.hub.campaign import CampaignPace, move_member
from cloud.hub.campaigns.starting import CampaignDraft, find_devices, start_campaign
from cloud.hub.registry import campaign_steps
from cloud.hub.registry.artefacts import ArtefactRow, RegisteredArtefacts
from cloud.hub.registry.campaign_rows import CampaignRecord, campaign_of, member_rows, with_reports
from cloud.hub.registry.campaigns import Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_choice import DeviceTarget
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.opening import open_registry
from cloud.hub.rollout import MemberPhase, RolloutState
from tests.contract.registry.conftest import Place

S: Final = 1_000_000
BEGIN: Final = 400 * 86_400
DEVICES: Final = [f"d{number:02}" for number in range(8)]
CLOCKS: Final = {"here": -600, "there": 600}
"""Seconds by which the clocks of the hubs are wrong."""
GATEWAYS: Final = {"hall": -300, "roof": 300}
"""Seconds by which the clocks of gateways are wrong; the second one is ahead."""
PACE: Final = CampaignPace(soak_s=10, away_s=100, failures_max=1, enough_percent=100)
FATES: Final = ("good", "good", "good", "bad", "bricked", "asleep", "loses-it")
"""Ends of an update: a bricked device is silent after it has verified, one that loses it begins again."""
WORDS: Final = {
    "good": ("downloading", "verified", "installed", "healthy"),
    "bad": ("downloading", "verified", "rolled-back"),
    "bricked": ("downloading", "verified"),
    "asleep": (),
    "loses-it": ("downloading", "installed", "downloading", "installed"),
}
EVENTS: Final = 70


class Sent(NamedTuple):
    """Report that a gateway has received."""

    report: DeviceUpdate
    gateway: str


class World:
    """Registry, devices and gateways of one seed."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.random = database, random.Random(seed)
        self.now = BEGIN
        self.campaigns = Campaigns(database, lambda _: self.now * S)
        self.fates = {name: self.random.choice(FATES) for name in DEVICES}
        self.steps = dict.fromkeys(DEVICES, 0)
        self.sequence = 0
        self.waiting: list[Sent] = []
        """Reports at gateways that are away."""
        self.delivered: dict[str, list[str]] = {name: [] for name in DEVICES}
        """States that hubs have taken since the offer, by device."""
        self.removed: set[str] = set()
        self.ever_lost: set[str] = set()
        """Devices that have failed at some time."""
        self.ran_it: set[str] = set()
        """Devices that had reported the version before their offer, and nothing since."""
        self.campaign = self._start()

    def _start(self) -> str:
        row = ArtefactRow("acme", "blinker", "2", "firmware", 2, "0" * 64, 1, "i" * 32, b"e", "k", 1, "a")
        artefacts = RegisteredArtefacts(self.database)
        artefacts.store(artefacts.add(row), 1)
        for name in DEVICES:
            new = NewDeviceRow("acme", name, '{"enabled": true}', [], 1, "anna")
            RegisteredDevices(self.database).add(new, TenantLimits("acme", lambda _: 1_000))
        for name in self.random.sample(DEVICES, 3):  # of an earlier campaign
            self.record(self.report(name, self.random.choice(("rolled-back", "downloading"))))
        target = DeviceTarget(("*",))
        draft = CampaignDraft("acme", "acme", "blinker", "2", target, "1,3,50%,100%", PACE, None, "anna", "")
        return start_campaign(self.campaigns, draft, find_devices(self.database, draft)).id

    def report(self, device: str, state: str, ago: int = 0) -> Sent:
        gateway = self.random.choice(list(GATEWAYS)) if ago else list(GATEWAYS)[DEVICES.index(device) % 2]
        self.sequence += 1
        at = min(self.now, self.now - ago + GATEWAYS[gateway]) * S
        name = ("acme", "blinker", "2", device, state, "", gateway, f"{gateway}-{device}", self.sequence)
        return Sent(DeviceUpdate(*name, at, at), gateway)

    def record(self, *sent: Sent) -> None:
        ahead = self.random.choice(list(CLOCKS.values()))
        reports = [each.report._replace(changed_at=(self.now + ahead) * S) for each in sent]
        DeviceUpdates(self.database).record(reports)

    # --- events -----------------------------------------------------------------------------------------------------

    def step_device(self) -> None:
        """Let a device with an offer report its next state; its gateway may be away."""
        phases = self.phases()
        offered = [each for each in DEVICES if phases[each] is not MemberPhase.WAITING and each not in self.removed]
        if not offered:
            return
        device = self.random.choice(offered)
        words = WORDS[self.fates[device]]
        if self.steps[device] == len(words):
            return
        sent = self.report(device, words[self.steps[device]])
        self.steps[device] += 1
        self.waiting.append(sent)
        if self.random.random() < 0.7:
            self.deliver()

    def deliver(self) -> None:
        """Let all waiting reports arrive, some of them twice."""
        sent, self.waiting = self.waiting, []
        self.record(*sent)
        for each in sent:
            self.delivered[each.report.device].append(each.report.state)
        if sent and self.random.random() < 0.3:
            self.record(self.random.choice(sent))

    def bring_old_report(self) -> None:
        """Let a gateway that was away for weeks bring a report."""
        device = self.random.choice(DEVICES)
        if self.delivered[device]:  # a newer one is known
            return
        if self.phases()[device] is MemberPhase.WAITING:
            self.ran_it.add(device)
        self.record(self.report(device, self.random.choice(("healthy", "rolled-back", "verified")), 14 * 86_400))

    def remove(self) -> None:
        device = self.random.choice(DEVICES)
        if len(self.removed) < 3 and device not in self.removed:
            self.removed.add(device)
            self.waiting = [each for each in self.waiting if each.report.device != device]
            RegisteredDevices(self.database).remove("acme", device, lambda _: None)

    def look(self) -> None:
        """Let a hub look, which may be cut off after any step."""
        for _ in range(self.random.randint(1, 4)):
            before, phases = self.get(), self.phases()
            if not self.campaigns.has_step(self.campaign):
                return
            self.campaigns.advance(self.campaign)
            after = self.get()
            if after.wave > before.wave:
                proven = (MemberPhase.DONE, MemberPhase.LEFT_OUT)
                assert any(each in proven for each in {**phases, **self.phases()}.values()), "a wave without a success"

    def command(self) -> None:
        """Let the operator pause or resume."""
        state = self.get().state
        if state is RolloutState.RUNNING and self.random.random() < 0.3:
            self.campaigns.pause(self.campaign)
        elif state in (RolloutState.PAUSED, RolloutState.HALTED) and self.random.random() < 0.5:
            self.campaigns.resume(self.campaign)

    # --- checks -----------------------------------------------------------------------------------------------------

    def get(self) -> CampaignRecord:
        return self.campaigns.get(self.campaign)

    def phases(self) -> dict[str, MemberPhase]:
        return {each.member.device: each.member.phase for each in self.campaigns.members(self.campaign, None, "", 99)}

    def check_condition(self) -> None:
        """Check that the query finds just the members that move."""

        def work(tx: sa.Connection) -> tuple[CampaignRecord, set[str], set[str]]:
            record, now_us, every = campaign_of(tx, self.campaign), self.now * S, with_reports(self.campaign)
            query = every.where(campaign_steps._movable(record, now_us))
            found = {each.member.device for each in member_rows(tx, query)}
            held = record.state in (RolloutState.PAUSED, RolloutState.HALTED)
            moves = {
                row.member.device
                for row in member_rows(tx, every)
                if move_member(row.member, row.report, record.pace, now_us, held=held) != row.member
            }
            return record, found, moves

        record, found, moves = self.database.transaction(work)
        assert found == moves, record

    def check_members(self) -> None:
        """Check the phases against what devices have reported since their offers."""
        for name, phase in self.phases().items():
            states = self.delivered[name]
            if phase is MemberPhase.FAILED:
                self.ever_lost.add(name)
            if phase in (MemberPhase.CONFIRMED, MemberPhase.DONE):
                assert {"installed", "healthy"} & set(states) or name in self.ran_it, name
            if phase is MemberPhase.FAILED:
                assert states, f"{name}: an old report is no failure"

    def finish(self) -> None:
        """Let everything arrive and time pass, until nothing more happens."""
        self.deliver()
        lost = (MemberPhase.FAILED, MemberPhase.LEFT_OUT)
        for _ in range(60):
            while self.campaigns.has_step(self.campaign):
                self.campaigns.advance(self.campaign)
            self.check_members()
            if self.get().state in (RolloutState.PAUSED, RolloutState.HALTED):
                self.campaigns.resume(self.campaign)
            self.now += 101
        while self.campaigns.has_step(self.campaign):
            self.campaigns.advance(self.campaign)
        assert not self.campaigns.has_step(self.campaign)
        for name, phase in self.phases().items():
            states = self.delivered[name]
            if name in self.removed:
                assert phase is MemberPhase.FORGOTTEN
            elif "rolled-back" in states:
                assert phase in lost, name
            elif name in self.ran_it:
                assert phase not in (MemberPhase.WAITING, MemberPhase.CONFIRMED)
            elif states and not {"installed", "healthy"} & set(states):
                assert name in self.ever_lost, f"{name} has started, and is silent"
            elif states and self.fates[name] == "good":
                assert phase in (MemberPhase.DONE, *lost), name


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    with contextlib.closing(open_registry(place.url).database) as made:
        yield made


@pytest.mark.parametrize("seed", range(6))
def test_phases_are_what_happened(database: Database, seed: int) -> None:
    world = World(database, seed)
    events = [world.step_device] * 6 + [world.look] * 4 + [world.command, world.deliver, world.bring_old_report]
    for _ in range(EVENTS):
        world.random.choice([*events, *[world.remove] * (world.random.random() < 0.1)])()
        world.now += world.random.choice((0, 0, 1, 5, 30))
        world.check_condition()
        world.check_members()
    world.finish()
