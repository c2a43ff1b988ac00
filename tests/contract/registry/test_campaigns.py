"""Campaigns in the registry: offers for the pages of gateways, waves, and what ends an offer."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from bridge.device_pages import OfferedUpdate
from cloud.hub.campaigns import starting
from cloud.hub.campaigns.starting import NoDeviceChosen, find_devices, start_campaign
from cloud.hub.labels import parse_selector
from cloud.hub.limits import SUCCESS_EARLY_S_MAX
from cloud.hub.registry import campaign_rows
from cloud.hub.registry import campaign_sending as sending
from cloud.hub.registry import campaign_steps as steps
from cloud.hub.registry import campaigns as module
from cloud.hub.registry.artefacts import ArtefactInUse, RegisteredArtefacts
from cloud.hub.registry.campaign_rows import UnknownCampaign
from cloud.hub.registry.campaign_states import OLDER_COPY, pause_campaigns
from cloud.hub.registry.campaigns import CampaignError, Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_choice import DeviceTarget, choose_devices
from cloud.hub.registry.device_targets import restart_gateways
from cloud.hub.registry.device_tenants import UnknownDeviceTenant
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates, UpdateFilter, device_name
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices
from cloud.hub.registry.events import EventType, utc_us
from cloud.hub.registry.opening import open_registry
from cloud.hub.rollout import MemberPhase, RolloutState, WavesError
from tests.contract.registry.conftest import Place
from tests.support.campaign_site import CampaignSite, S

Site = CampaignSite


def limit_parameters(database: Database) -> None:
    """Let SQLite take as many parameters in a statement as old versions."""

    def work(tx: sa.Connection) -> None:
        connection = tx.connection.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)

    database.transaction(work)


@pytest.fixture
def site(place: Place) -> Iterator[Site]:
    with contextlib.closing(open_registry(place.url).database) as database:
        made = Site(database)
        made.store("1.1.0", 11)
        made.store("1.2.0", 12)
        for name in ("a", "b", "c", "d"):
            made.register(name, "hall")
        yield made


def test_waves_are_offered_and_end_with_reports(site: Site) -> None:
    assert site.offers() == {}
    campaign = site.start(waves="1,100%")
    site.run(campaign)
    assert site.offers() == {"a": [("1.2.0", False)]}
    site.report("a", "downloading")
    site.report("a", "installed")
    assert site.run(campaign).wave == 0
    assert site.phases(campaign)["a"] == "confirmed"
    site.run(campaign, 9)
    assert site.phases(campaign)["a"] == "confirmed"
    assert site.run(campaign, 1).wave == 1
    assert site.offers().keys() == {"a", "b", "c", "d"}
    for name in "bcd":
        site.report(name, "healthy")
    assert site.run(campaign).state is RolloutState.DONE
    assert set(site.phases(campaign).values()) == {"done"}
    assert site.offers().keys() == {"a", "b", "c", "d"}, "a device that is set back gets it again"
    assert site.hall.pages < 8


def test_only_gateways_of_the_device_get_its_offer(site: Site) -> None:
    site.register("e", "roof")
    campaign = site.start("e")
    site.run(campaign)
    assert site.offers() == {}
    assert site.offers(site.roof) == {"e": [("1.2.0", False)]}


def test_a_device_that_moves_is_offered_it_there(site: Site) -> None:
    campaign = site.start("a")
    site.run(campaign)
    assert site.offers().keys() == {"a"}
    document = json.dumps({"enabled": True, "ext": {"waypost": {"gateways": ["roof"]}}})
    new = NewDeviceRow("acme", "a", document, [], 1, "anna")
    RegisteredDevices(site.database).replace(new, lambda _: None)
    assert site.offers() == {}
    assert site.offers(site.roof) == {"a": [("1.2.0", False)]}
    site.report("a", "healthy", gateway="roof")
    assert site.run(campaign).state is RolloutState.DONE


def test_failure_halts_and_withholds(site: Site) -> None:
    campaign = site.start(waves="2,100%")
    site.run(campaign)
    site.report("a", "rolled-back", reason="no boot")
    record = site.run(campaign)
    assert (record.state, record.why) == (RolloutState.HALTED, "device a: no boot")
    assert site.offers() == {"a": [("1.2.0", True)], "b": [("1.2.0", True)]}
    site.report("b", "healthy")
    site.run(campaign)
    assert site.phases(campaign)["b"] == "done", "reports count while it is halted"
    site.campaigns.resume(campaign)
    assert site.run(campaign).wave == 1
    assert site.phases(campaign) == {"a": "left-out", "b": "done", "c": "sent", "d": "sent"}
    assert site.offers()["a"] == [("1.2.0", True)]
    assert site.offers()["b"] == site.offers()["c"] == [("1.2.0", False)]


def test_pause_withholds_and_resume_offers_again(site: Site) -> None:
    campaign = site.start()
    site.run(campaign)
    site.report("a", "installed")
    site.run(campaign)
    site.campaigns.pause(campaign)
    assert site.offers() == {name: [("1.2.0", name != "a")] for name in "abcd"}
    site.run(campaign, 500)
    assert site.phases(campaign)["b"] == "away"
    with pytest.raises(CampaignError):
        site.campaigns.pause(campaign)
    site.campaigns.resume(campaign)
    assert site.phases(campaign)["b"] == "sent", "with its time from the beginning"
    assert {each for some in site.offers().values() for each in some} == {("1.2.0", False)}


def test_stop_withdraws_all_offers(site: Site) -> None:
    campaign = site.start()
    site.run(campaign)
    assert len(site.offers()) == 4
    assert site.campaigns.stop(campaign).state is RolloutState.ABORTED
    assert site.offers() == {}
    for change in (site.campaigns.stop, site.campaigns.resume, site.campaigns.pause):
        with pytest.raises(CampaignError):
            change(campaign)
    assert not site.campaigns.offering()
    site.start()


def test_stop_of_a_campaign_that_is_done(site: Site) -> None:
    campaign = site.start("a")
    site.report("a", "healthy")
    assert site.run(campaign).state is RolloutState.DONE
    assert len(site.offers()) == 1
    stopped = site.campaigns.stop(campaign)
    assert (stopped.state, stopped.closed) == (RolloutState.DONE, True)
    assert site.offers() == {}


def test_end_time_withdraws_what_was_not_taken(site: Site) -> None:
    campaign = site.start(ends_at=2_000 * S, away_s=5_000)
    site.run(campaign)
    site.report("a", "healthy")
    assert site.run(campaign, 999).state is RolloutState.RUNNING
    record = site.run(campaign, 1)
    assert (record.state, record.why, record.closed) == (RolloutState.DONE, "its time has ended", True)
    assert site.offers() == {}


def test_sleeping_devices_hold_up_nothing_and_get_their_turn(site: Site) -> None:
    campaign = site.start(waves="1,100%")
    site.run(campaign)
    site.run(campaign, 99)
    assert len(site.offers()) == 1
    site.run(campaign, 1)
    assert site.phases(campaign) == {"a": "away", "b": "sent", "c": "waiting", "d": "waiting"}
    site.report("b", "healthy")
    site.run(campaign)
    for name in "cd":
        site.report(name, "healthy")
    assert site.run(campaign).state is RolloutState.DONE
    assert site.offers()["a"] == [("1.2.0", False)]
    site.now += 50_000
    site.report("a", "downloading")
    site.run(campaign)
    assert site.phases(campaign)["a"] == "sent"
    site.report("a", "healthy")
    site.run(campaign)
    assert site.phases(campaign)["a"] == "done"


def test_all_asleep_is_no_success(site: Site) -> None:
    campaign = site.start(waves="1,100%")
    site.run(campaign)
    for _ in range(9):
        record = site.run(campaign, 100)
    assert record.state is RolloutState.RUNNING
    assert set(site.phases(campaign).values()) == {"away"}
    site.report("d", "healthy")
    assert site.run(campaign).state is RolloutState.DONE


def test_devices_that_wake_after_the_end_halt_it(site: Site) -> None:
    campaign = site.start()
    site.run(campaign)
    site.report("a", "healthy")
    assert site.run(campaign, 100).state is RolloutState.DONE
    for name in "bcd":
        site.report(name, "rolled-back", reason="no boot")
    record = site.run(campaign)
    assert (record.state, "no boot" in record.why) == (RolloutState.HALTED, True)
    assert {name: withheld for name, [(_, withheld)] in site.offers().items()} == {
        "a": False,
        **dict.fromkeys("bcd", True),
    }


def test_removed_devices_start_no_wave(site: Site) -> None:
    campaign = site.start(waves="1,50%,100%")
    site.run(campaign)
    for name in "acd":
        site.remove(name)
    site.run(campaign)
    assert (site.phases(campaign)["b"], site.campaigns.get(campaign).wave) == ("sent", 0), "the next one is asked first"
    site.run(campaign, 100)
    assert not site.campaigns.has_step(campaign), "nobody else waits"
    site.report("b", "healthy")
    assert site.run(campaign).state is RolloutState.DONE


def test_device_that_goes_silent_after_it_has_begun_halts(site: Site) -> None:
    """It may be bricked. A device that has not started sleeps."""
    campaign = site.start(waves="2,100%")
    site.run(campaign)
    site.report("a", "downloading", "verified")
    site.report("b", "healthy")
    site.run(campaign)
    assert site.run(campaign, 99).wave == 0, "it is waited for"
    record = site.run(campaign, 1)
    assert (record.state, site.phases(campaign)["a"]) == (RolloutState.HALTED, "failed")
    assert "a" in record.why
    assert site.offers()["a"] == [("1.2.0", True)]
    site.report("a", "installed")
    site.run(campaign)
    assert site.phases(campaign)["a"] == "confirmed", "it lives"
    assert site.offers()["a"] == [("1.2.0", False)]
    site.campaigns.resume(campaign)
    record = site.run(campaign, 10)
    assert (record.state, record.wave) == (RolloutState.RUNNING, 1)
    assert site.phases(campaign)["a"] == "done"


def test_device_that_lost_its_power_fetches_the_rest(site: Site) -> None:
    """While the campaign runs, and after its operator has resumed it."""
    campaign = site.start("[ab]", failures_max=1)
    site.run(campaign)
    for name in "ab":
        site.report(name, "downloading")
    site.run(campaign)
    assert site.run(campaign, 99).state is RolloutState.RUNNING
    site.report("b", "verified")
    assert site.run(campaign, 1).state is RolloutState.RUNNING, "one failure is allowed"
    assert site.phases(campaign) == {"a": "failed", "b": "sent"}
    assert site.offers() == {"a": [("1.2.0", False)], "b": [("1.2.0", False)]}
    assert site.run(campaign, 100).state is RolloutState.HALTED
    assert site.offers() == {"a": [("1.2.0", True)], "b": [("1.2.0", True)]}
    site.campaigns.resume(campaign)
    assert site.phases(campaign) == {"a": "sent", "b": "sent"}
    assert site.offers() == {"a": [("1.2.0", False)], "b": [("1.2.0", False)]}
    site.report("a", "healthy")
    assert site.run(campaign, 99).state is RolloutState.RUNNING
    site.run(campaign, 1)
    assert site.phases(campaign) == {"a": "done", "b": "away"}, "its operator knows of it"
    site.report("b", "downloading")
    site.run(campaign)
    site.run(campaign, 100)
    assert site.phases(campaign)["b"] == "failed", "it has started again"
    assert site.offers()["b"] == [("1.2.0", False)]
    site.report("b", "rolled-back", reason="no boot")
    site.run(campaign)
    assert site.offers()["b"] == [("1.2.0", True)], "it has not survived the version"


def test_silence_is_no_failure_until_reports_have_had_their_time(site: Site) -> None:
    """The hub was away for longer than that, and looks before gateways have brought their reports."""
    campaign = site.start("[ab]")
    site.run(campaign)
    for name in "ab":
        site.report(name, "downloading")
    site.run(campaign)
    site.now += 500
    assert not site.campaigns.has_step(campaign, settling=True)
    assert not site.campaigns.advance(campaign, settling=True)
    site.report("a", "healthy")
    assert site.campaigns.has_step(campaign, settling=True)
    site.campaigns.advance(campaign, settling=True)
    assert site.phases(campaign) == {"a": "done", "b": "sent"}
    assert site.run(campaign).state is RolloutState.HALTED
    assert site.phases(campaign) == {"a": "done", "b": "failed"}


def test_device_is_not_asleep_until_reports_have_had_their_time(site: Site) -> None:
    """Its failure may wait at its gateway: the next wave must not begin without it."""
    campaign = site.start(waves="2,100%")
    site.run(campaign)
    site.report("a", "healthy")
    site.now += 1_000_000
    while site.campaigns.advance(campaign, settling=True):
        pass
    assert site.phases(campaign) == {"a": "done", "b": "sent", "c": "waiting", "d": "waiting"}
    site.report("b", "rolled-back")
    assert site.run(campaign).state is RolloutState.HALTED
    assert site.phases(campaign)["c"] == "waiting"


def test_members_of_an_older_program(site: Site, place: Place) -> None:
    """Schema 28 remembered no reports: the time at which a hub took one decides."""
    for name, state in (("a", "rolled-back"), ("b", "healthy"), ("c", "downloading")):
        site.report(name, state)
    site.now += 60
    campaign = site.start(failures_max=2)
    site.run(campaign)
    columns = "seen_report = NULL, seen_failure = NULL, seen_progress = NULL"
    place.execute(f"UPDATE campaign_members SET phase = 'sent', {columns}")
    site.run(campaign)
    assert set(site.phases(campaign).values()) == {"sent"}, "these reports are of before"
    for name, state in (("a", "rolled-back"), ("b", "installed"), ("c", "verified")):
        site.report(name, state)
    site.run(campaign)
    assert site.phases(campaign) == {"a": "failed", "b": "confirmed", "c": "sent", "d": "sent"}
    place.execute("UPDATE campaign_members SET phase = 'away' WHERE device = 'c'")
    site.run(campaign, 100)
    assert site.phases(campaign)["c"] == "failed", "the older program took its silence for sleep"


def test_device_is_not_silent_while_it_is_held(site: Site) -> None:
    campaign = site.start("a")
    site.run(campaign)
    site.report("a", "downloading")
    site.run(campaign)
    site.campaigns.pause(campaign)
    site.run(campaign, 500)
    assert site.phases(campaign) == {"a": "sent"}
    site.campaigns.resume(campaign)
    site.run(campaign, 99)
    assert site.phases(campaign) == {"a": "sent"}
    assert site.run(campaign, 1).state is RolloutState.HALTED


@pytest.mark.parametrize("ahead", [-600, 600, 366 * 86_400])
def test_clocks_of_hubs_change_nothing(site: Site, ahead: int) -> None:
    """A hub takes reports by its own clock; the registry measures the times."""
    site.now = 400 * 86_400
    campaign = site.start(waves="1,2,100%", failures_max=1)
    site.run(campaign)
    site.report("a", "installed", ahead=ahead)
    site.run(campaign, 9)
    assert site.phases(campaign)["a"] == "confirmed", "its soak time has not ended"
    site.run(campaign, 1)
    site.report("b", "verified", ahead=ahead)
    site.run(campaign, 99)
    assert site.phases(campaign)["b"] == "sent"
    site.report("b", "rolled-back", ahead=ahead)
    assert site.run(campaign).state is RolloutState.HALTED
    assert site.phases(campaign)["b"] == "failed"


def test_registry_measures_the_times(site: Site) -> None:
    """Without a clock of its own, as at a hub."""
    campaigns = Campaigns(site.database)
    since = campaigns.now_us()
    site.now = since // S
    campaign = site.start("a")
    while campaigns.advance(campaign):
        pass
    [row] = campaigns.members(campaign, None, "", 9)
    assert since <= row.member.sent_at <= campaigns.now_us()
    assert not campaigns.has_step(campaign)


def test_reports_of_before_are_no_answer(site: Site) -> None:
    """A device was set back to another version; its old success, and old failures of others, say nothing."""
    site.report("a", "healthy")
    site.report("a", "installed", version="1.1.0", ago=-1)
    site.report("b", "rolled-back")
    site.report("c", "healthy")
    campaign = site.start("[abc]", waves="100%")
    record = site.run(campaign)
    assert site.phases(campaign) == {"a": "sent", "b": "sent", "c": "done"}, "c has it, and nothing newer"
    assert record.state is RolloutState.RUNNING
    site.report("a", "rolled-back", gateway="roof", ago=2 * 86_400)
    site.report("b", "healthy", gateway="roof", ago=2 * 3_600)
    site.run(campaign)
    assert site.phases(campaign) == {"a": "sent", "b": "sent", "c": "done"}, "a gateway that was away brings them"
    site.report("a", "healthy")
    site.report("b", "rolled-back")
    site.run(campaign)
    assert site.phases(campaign) == {"a": "done", "b": "failed", "c": "done"}


def test_reports_end_with_the_device(site: Site) -> None:
    """Another device under its name has proven nothing."""
    site.register("a", "hall", tenant="ACME")
    for name in ("a", "a@ACME", "b"):
        site.report(name, "healthy")
    site.remove("a")
    left = [each.device for each in DeviceUpdates(site.database).page(UpdateFilter("acme"), None, 9)]
    assert left == ["a@ACME", "b"]
    site.register("a", "hall")
    campaign = site.start("[ab]")
    site.run(campaign)
    assert site.phases(campaign) == {"a": "sent", "b": "done"}


def test_device_that_was_removed_before_the_start_is_not_offered_it(site: Site) -> None:
    draft = site.draft("[ab]")
    labelled = find_devices(site.database, draft)
    site.remove("a")
    campaign = start_campaign(site.campaigns, draft, labelled).id
    site.run(campaign)
    assert site.phases(campaign) == {"a": "forgotten", "b": "sent"}
    site.register("a", "hall")
    assert site.offers().keys() == {"b"}


@pytest.mark.parametrize("devices_of", ["acme", "plant"])
def test_late_report_of_a_removed_device_proves_nothing_about_the_next(site: Site, devices_of: str) -> None:
    """Its gateway was away while the device was removed and another one of its name was registered."""
    site.now += 9_000
    site.register("x", "hall", tenant=devices_of)
    name = device_name("acme", devices_of, "x")
    updates, wanted = DeviceUpdates(site.database), UpdateFilter("acme", device=name)
    site.report(name, "healthy", ago=SUCCESS_EARLY_S_MAX + 1)
    assert updates.page(wanted, None, 9) == []
    site.report(name, "healthy", ago=SUCCESS_EARLY_S_MAX)
    assert [each.state for each in updates.page(wanted, None, 9)] == ["healthy"], "its clock may be behind"


@pytest.mark.parametrize("devices_of", ["acme", "plant"])
def test_report_that_came_before_the_registration_is_of_another_device(site: Site, devices_of: str) -> None:
    site.register("first", "hall", tenant=devices_of)
    name = device_name("acme", devices_of, "x")
    updates, wanted = DeviceUpdates(site.database), UpdateFilter("acme", device=name)
    site.report(name, "healthy")
    assert len(updates.page(wanted, None, 9)) == 1
    site.register("x", "hall", tenant=devices_of)
    assert updates.page(wanted, None, 9) == []


@pytest.mark.parametrize("states", [("installed", "downloading"), ("installed", "verified")])
def test_device_that_fetches_it_again_in_its_soak_time_has_failed(site: Site, states: tuple[str, str]) -> None:
    campaign = site.start("a")
    site.run(campaign)
    site.report("a", states[0])
    site.run(campaign)
    site.report("a", states[1])
    assert site.run(campaign).state is RolloutState.HALTED
    assert site.phases(campaign) == {"a": "failed"}


@pytest.mark.parametrize("after", ["downloading", "installed", "healthy"])
def test_failure_is_seen_although_a_later_report_came_with_it(site: Site, after: str) -> None:
    """A gateway that was away brings both in one batch."""
    campaign = site.start("a")
    site.run(campaign)
    site.report("a", "downloading", "rolled-back", after, reason="no boot")
    record = site.run(campaign)
    assert (record.state, record.why) == (RolloutState.HALTED, "device a: no boot")
    site.campaigns.stop(campaign)
    second = site.start("a")
    record = site.run(second)
    assert record.state is not RolloutState.HALTED, "it is known, and of before"


def test_failure_at_a_gateway_whose_clock_is_behind_halts(site: Site) -> None:
    """Another gateway reported a success before, by its own clock after it."""
    campaign = site.start("a")
    site.run(campaign)
    site.report("a", "healthy")
    site.run(campaign)
    assert site.phases(campaign) == {"a": "done"}
    site.report("a", "rolled-back", gateway="roof", reason="no disk", ago=2 * 3_600)
    record = site.run(campaign)
    assert (record.state, record.why) == (RolloutState.HALTED, "device a: no disk")


def test_older_copy_pauses_campaigns_that_may_have_been_stopped(site: Site) -> None:
    """Nothing is offered again to devices that have not fetched it; those of devices that have it stay."""
    ended, asleep, running = site.start("a", version="1.1.0"), "", ""
    site.run(ended)
    site.report("a", "healthy", version="1.1.0")
    site.run(ended)
    asleep = site.start("[bc]", version="1.1.0")
    site.run(asleep)
    site.report("b", "healthy", version="1.1.0")
    assert site.run(asleep, 100).state is RolloutState.DONE
    running = site.start("d")
    site.run(running)
    assert {name: offers[0][1] for name, offers in site.offers().items()} == dict.fromkeys("abcd", False)
    assert site.database.transaction(lambda tx: pause_campaigns(tx, site.now * S)) == 2
    site.database.transaction(lambda tx: restart_gateways(tx, utc_us()))
    for _ in range(2):
        states = {each: site.run(each).state for each in (ended, asleep, running)}
        assert states == {ended: RolloutState.DONE, asleep: RolloutState.PAUSED, running: RolloutState.PAUSED}
    assert site.campaigns.get(running).why == OLDER_COPY
    assert {name: offers[0][1] for name, offers in site.offers().items()} == {
        "a": False,
        "b": False,
        "c": True,
        "d": True,
    }
    assert site.database.transaction(lambda tx: pause_campaigns(tx, site.now * S)) == 0
    site.campaigns.resume(asleep)
    assert site.run(asleep).state is RolloutState.RUNNING, "its device has its time again"
    assert site.offers()["c"] == [("1.1.0", False)]
    with pytest.raises(CampaignError, match=f"campaign {asleep}"):
        site.campaigns.resume(running)
    site.campaigns.stop(running)
    assert "d" not in site.offers()


@pytest.mark.parametrize("make_place", ["sqlite"], indirect=True)
def test_mass_failure_with_an_old_sqlite(site: Site) -> None:
    """SQLite before 3.32 takes 999 parameters in a statement."""
    for number in range(1_000):
        site.register(f"x{number:03}", "hall")
    campaign = site.start("x*", failures_max=9)
    site.run(campaign)
    reports = [
        DeviceUpdate("acme", "blinker", "1.2.0", f"x{number:03}", "rolled-back", "", "hall", "h", number, S, S)
        for number in range(1_000)
    ]
    DeviceUpdates(site.database).record([each._replace(reported_at=site.now * S) for each in reports])
    limit_parameters(site.database)
    assert site.run(campaign).state is RolloutState.HALTED
    assert set(site.phases(campaign).values()) == {"failed"}


def test_artefact_of_a_campaign_is_not_removed(site: Site) -> None:
    campaign = site.start()
    artefacts = RegisteredArtefacts(site.database)
    with pytest.raises(ArtefactInUse):
        artefacts.begin_removal("acme", "blinker", "1.2.0")
    site.campaigns.stop(campaign)
    assert artefacts.begin_removal("acme", "blinker", "1.2.0").removing


def test_downgrade_is_a_failure(site: Site) -> None:
    site.report("a", "healthy")
    site.report("b", "rolled-back")
    campaign = site.start(version="1.1.0", failures_max=1)
    site.run(campaign)
    assert site.phases(campaign) == {"a": "failed", "b": "sent", "c": "sent", "d": "sent"}
    [failed] = site.campaigns.members(campaign, MemberPhase.FAILED, "", 9)
    assert failed.member.why.startswith("downgraded")


def test_later_campaign_takes_over_device_by_device(site: Site) -> None:
    first = site.start(version="1.1.0")
    site.run(first)
    for name in "abcd":
        site.report(name, "healthy", version="1.1.0")
    assert site.run(first).state is RolloutState.DONE
    second = site.start(waves="1,100%")
    site.run(second)
    assert site.offers() == {"a": [("1.2.0", False)], **{name: [("1.1.0", False)] for name in "bcd"}}
    assert site.phases(first)["a"] == "superseded"
    with pytest.raises(CampaignError):
        site.start(version="1.1.0")


def test_removed_device_is_forgotten(site: Site) -> None:
    campaign = site.start()
    site.run(campaign)
    site.remove("b")
    assert site.phases(campaign)["b"] == "forgotten"
    site.register("b", "hall")
    assert site.offers().keys() == {"a", "c", "d"}
    for name in "acd":
        site.report(name, "healthy")
    assert site.run(campaign).state is RolloutState.DONE


def test_devices_of_another_tenant_of_the_registry(site: Site) -> None:
    """Their reports name their tenant."""
    site.register("a", "hall", tenant="ACME")
    campaign = site.start("a", devices_of="ACME")
    site.run(campaign)
    site.report("a", "healthy")
    site.run(campaign)
    assert site.phases(campaign) == {"a": "sent"}
    site.report("a@ACME", "healthy")
    site.run(campaign)
    assert site.phases(campaign) == {"a": "done"}


def test_choice_of_devices(site: Site) -> None:
    site.register("e", "hall", group="lamps", site="berlin", ring="canary")
    site.register("f", "hall", group="lamps", site="berlin")
    site.register("g", "hall", site="rome")

    def chosen(
        *patterns: str, selector: str = "", group: str | None = None, waves: str = "100%"
    ) -> dict[int, set[str]]:
        target = DeviceTarget(patterns, parse_selector(selector) if selector else None, group)
        campaign = site.start(target=target, waves=waves)
        found: dict[int, set[str]] = {}
        for each in site.campaigns.members(campaign, None, "", 99):
            found.setdefault(each.member.wave, set()).add(each.member.device)
        site.campaigns.stop(campaign)
        return found

    assert chosen("a", "[bc]") == {0: {"a", "b", "c"}}
    assert chosen(selector="site=berlin") == {0: {"e", "f"}}
    assert chosen(group="lamps", selector="!ring") == {0: {"f"}}
    assert chosen("*", selector="site", waves="ring=canary,100%") == {0: {"e"}, 1: {"f", "g"}}
    with pytest.raises(NoDeviceChosen):
        chosen("x*")
    with pytest.raises(WavesError):
        chosen("*", waves="ring=none")
    for other in ("other", "unknown"):
        with pytest.raises(UnknownDeviceTenant):
            site.start(devices_of=other)


def test_what_cannot_start(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"version": "9"}, {"ends_at": site.now * S}):
        with pytest.raises(CampaignError):
            site.start(**wrong)
    monkeypatch.setattr(starting, "CAMPAIGN_DEVICES_MAX", 3)
    with pytest.raises(CampaignError):
        site.start()
    with pytest.raises(UnknownCampaign):
        site.campaigns.get("none")
    with pytest.raises(UnknownCampaign):
        site.campaigns.members("none", None, "", 1)


def test_limits_of_a_tenant(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended campaigns are forgotten; those with offers count."""
    monkeypatch.setattr(module, "CAMPAIGNS_KEPT", 2)
    monkeypatch.setattr(module, "CAMPAIGNS_MAX", 1)
    ended = []
    for _ in range(4):
        site.now += 1
        ended.append(site.start("a"))
        site.campaigns.stop(ended[-1])
    assert site.campaigns.has_old()
    while site.campaigns.forget_old():
        pass
    assert not site.campaigns.has_old()
    assert [each.id for each in site.campaigns.page("acme", None, 9)] == [ended[3], ended[2]]
    with pytest.raises(UnknownCampaign):
        site.campaigns.members(ended[0], None, "", 9)
    going = site.start("a")
    with pytest.raises(CampaignError):
        site.start("b", version="1.1.0")
    site.campaigns.stop(going)


def test_old_campaign_is_deleted_in_parts(site: Site, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAMPAIGNS_KEPT", 0)
    monkeypatch.setattr(module, "FORGOTTEN_AT_ONCE", 3)
    for patterns, expected in ((["*"], [1, 0]), (["a", "b"], [0]), (["[abc]"], [0, 0])):
        campaign = site.start(*patterns)
        site.campaigns.stop(campaign)
        left = []
        while site.campaigns.forget_old():
            left.append(place.execute("SELECT count(*) FROM campaign_members")[0][0])
        assert left == expected
        with pytest.raises(UnknownCampaign):
            site.campaigns.get(campaign)


def test_interrupted_start_offers_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub ends between two of its transactions; another start follows."""
    monkeypatch.setattr(module, "ADDED_AT_ONCE", 2)
    draft = site.draft()
    labelled = find_devices(site.database, draft)
    original, left = site.database.transaction, 0

    def transaction(work: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return original(work)

    for count in (2, 3, 4):  # the time, the campaign, two parts, the end
        left = count
        with monkeypatch.context() as patch:
            patch.setattr(site.database, "transaction", transaction)
            with pytest.raises(KeyboardInterrupt):
                start_campaign(site.campaigns, draft, labelled)
    for record in site.campaigns.page(None, None, 9):
        assert (record.state, record.closed, record.why != "") == (RolloutState.ABORTED, True, True)
    assert (site.campaigns.offering(), site.offers()) == ([], {})
    campaign = site.start()
    assert site.run(campaign).why == ""
    assert len(site.offers()) == 4


def test_start_that_was_deleted_by_another_hub_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the registry was set back, so the new campaign is the oldest."""
    monkeypatch.setattr(module, "CAMPAIGNS_KEPT", 0)
    draft = site.draft()
    labelled = find_devices(site.database, draft)
    original = site.database.transaction
    left = 3  # the time, the campaign, its devices

    def transaction(work: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            site.campaigns.forget_old()
        return original(work)

    with monkeypatch.context() as patch:
        patch.setattr(site.database, "transaction", transaction)
        with pytest.raises(CampaignError):
            start_campaign(site.campaigns, draft, labelled)
    assert site.campaigns.page(None, None, 9) == []


def test_changed_state_is_passed_on_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is in force at once, and each gateway gets it some steps later, also after a kill."""
    monkeypatch.setattr(campaign_rows, "MARKED_AT_ONCE", 2)
    site.register("e", "hall")
    campaign = site.start()
    site.run(campaign)
    assert len(site.offers()) == 5
    site.campaigns.pause(campaign)
    assert site.campaigns.get(campaign).marked_to == "b"
    assert {name for name, [(_, withheld)] in site.offers().items() if withheld} == {"a", "b"}
    assert [each.done for each in site.campaigns.offering()] == [False]
    assert site.campaigns.has_step(campaign)
    assert site.campaigns.advance(campaign)
    assert {name for name, [(_, withheld)] in site.offers().items() if withheld} == {"a", "b", "c", "d"}
    assert site.campaigns.resume(campaign).marked_to == "b", "from the beginning"
    site.run(campaign)
    assert not any(withheld for [(_, withheld)] in site.offers().values())
    site.campaigns.stop(campaign)
    assert site.offers().keys() == {"c", "d", "e"}
    assert not site.campaigns.has_old()
    assert [each.id for each in site.campaigns.offering()] == [campaign], "its end is not passed on to all"
    record = site.run(campaign)
    assert (record.marked_to, record.closed, site.offers()) == (None, True, {})
    assert site.campaigns.offering() == []


def test_failure_halts_at_once_and_is_passed_on_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_rows, "MARKED_AT_ONCE", 2)
    campaign = site.start()
    site.run(campaign)
    site.report("d", "rolled-back")
    assert site.campaigns.advance(campaign), "there is more to pass on"
    assert site.campaigns.get(campaign).state is RolloutState.HALTED
    site.run(campaign)
    assert [withheld for [(_, withheld)] in site.offers().values()] == [True] * 4


def test_campaign_that_later_ones_have_taken_over_is_closed(site: Site) -> None:
    """No look examines it any more."""
    first = site.start(version="1.1.0")
    site.run(first)
    for name in "abcd":
        site.report(name, "healthy", version="1.1.0")
    site.run(first)
    second = site.start()
    site.run(second)
    assert {each.id: each.done for each in site.campaigns.offering()} == {first: True, second: False}
    record = site.run(first)
    assert (record.state, record.closed) == (RolloutState.DONE, True)
    assert [each.id for each in site.campaigns.offering()] == [second]
    assert {offers[0][0] for offers in site.offers().values()} == {"1.2.0"}


def test_choice_ends_behind_the_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant with a million devices does not fill the memory of the hub."""
    assert len(choose_devices(site.database, "acme", "acme", DeviceTarget(), 2)) == 3
    assert len(choose_devices(site.database, "acme", "acme", DeviceTarget(("[ab]", "c.d", "d")), 9)) == 3
    monkeypatch.setattr(starting, "CAMPAIGN_DEVICES_MAX", 4)
    site.start()
    site.register("e", "hall")
    with pytest.raises(CampaignError):
        find_devices(site.database, site.draft())


def test_large_wave_takes_several_steps(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SENT_AT_ONCE", 3)
    monkeypatch.setattr(steps, "MOVED_AT_ONCE", 2)
    campaign = site.start()
    assert site.campaigns.advance(campaign)
    assert len(site.offers()) == 3
    site.run(campaign)
    assert len(site.offers()) == 4
    for name in "abcd":
        site.report(name, "healthy")
    assert site.run(campaign).state is RolloutState.DONE


def test_events_and_pages(site: Site, place: Place) -> None:
    campaigns = []
    for _ in range(3):
        site.now += 1
        campaigns.append(site.start("a"))
        site.campaigns.stop(campaigns[-1])
    first = site.campaigns.page(None, None, 2)
    assert [each.id for each in first] == campaigns[:0:-1]
    last = first[-1]
    assert [each.id for each in site.campaigns.page("acme", (last.made_at, last.id), 2)] == campaigns[:1]
    assert site.campaigns.page("other", None, 9) == []
    rows = place.execute("SELECT type, subject FROM events ORDER BY number")
    assert [row for row in rows if row[0] == EventType.CAMPAIGN_CHANGED.value] == [
        (EventType.CAMPAIGN_CHANGED.value, each) for each in campaigns for _ in range(2)
    ]


def test_repeated_steps_change_nothing(site: Site) -> None:
    """Another hub repeats steps, and so does one after a kill."""
    campaign = site.start(waves="1,100%")
    site.run(campaign)
    site.offers()
    pages = site.hall.pages
    for _ in range(3):
        assert not site.campaigns.has_step(campaign)
        assert not site.campaigns.advance(campaign)
    site.offers()
    assert site.hall.pages == pages


def test_offer_in_a_page(site: Site) -> None:
    campaign = site.start("a")
    site.run(campaign)
    site.offers()
    offer = OfferedUpdate(
        artefact="blinker", version="1.2.0", campaign=campaign, begun_at=site.campaigns.get(campaign).made_at // S
    )
    assert site.hall.devices["acme"]["a"].offers == (offer,)


def test_all_gateways_get_to_know_that_a_device_is_done(site: Site) -> None:
    site.register("e", "hall", "roof")
    campaign = site.start("e")
    site.run(campaign)
    site.offers(), site.offers(site.roof)
    for state, is_done in (("downloading", False), ("installed", True), ("healthy", True)):
        site.report("e", state)
        site.run(campaign)
        for gateway in (site.hall, site.roof):
            site.offers(gateway)
            [offer] = gateway.devices["acme"]["e"].offers
            assert offer.done is is_done, state
    pages = site.roof.pages
    site.run(campaign, 100)
    site.offers(site.roof)
    assert site.roof.pages == pages, "from confirmed to done nothing changes for gateways"


def test_device_that_is_done_is_known_at_its_next_gateway(site: Site) -> None:
    campaign = site.start("a", soak_s=0)
    site.run(campaign)
    site.report("a", "healthy")
    site.run(campaign)
    document = json.dumps({"enabled": True, "ext": {"waypost": {"gateways": ["roof"]}}})
    RegisteredDevices(site.database).replace(NewDeviceRow("acme", "a", document, [], 1, "anna"), lambda _: None)
    site.offers(site.roof)
    assert [each.done for each in site.roof.devices["acme"]["a"].offers] == [True]
    site.now += 10
    site.report("a", "rolled-back", gateway="roof")
    site.run(campaign)
    assert site.offers(site.roof) == {"a": [("1.2.0", True)]}
    assert [each.done for each in site.roof.devices["acme"]["a"].offers] == [False]
