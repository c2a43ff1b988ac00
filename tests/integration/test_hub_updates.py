"""System updates from the hub: a roll-out in waves halts where a gateway falls back; real program over sockets.

`tests.support.slots` simulates cards and RAUC; the command of an image's service fetches the bundle.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.identity.exchange import HubEnrolmentClient, HubUnreachable, NotIssued, trusting
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.update.following import SLOTS
from edge.appliance.update.gate import GatewayCondition, UpdateVerdict
from edge.appliance.update.limits import TRIAL_S
from edge.appliance.update.record import UpdateRecord
from edge.appliance.update.slots import BundleInfo
from edge.appliance.update.updating import Updater
from edge.appliance.update.wanted import ROOT, WantedFiles
from tests.support.command import items_in
from tests.support.enrolled import WAIT_S, EnrolledFleet
from tests.support.file_server import FileServer
from tests.support.processes import Waypost, wait_until
from tests.support.slots import Card

CONTENT = random.Random(7).randbytes(100_000)
OLD, NEW = BundleInfo("0.1.0", "a" * 64), BundleInfo("0.2.0", "b" * 64)
SYSTEM = """
apiVersion: waypost/v1
kind: System
metadata: {{name: gateway}}
spec: {{version: {version}, build: {build}, url: "{url}", sha256: {sha256}, size: {size}}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path) as made:
        yield made


class Box:
    """Gateway from a card: its machine is a folder, its slots are in memory."""

    def __init__(self, fleet: EnrolledFleet, name: str) -> None:
        self._fleet, self.name = fleet, name
        self.data, self.root = fleet.folder / name, fleet.folder / f"{name}-root"
        (self.root / SLOTS).parent.mkdir(parents=True)
        (self.root / SLOTS).touch()
        (self.root / ROOT).parent.mkdir(parents=True)
        self.card = Card()
        self.card.holds["A"], self.card.offered = OLD, NEW
        self.power_on()
        fleet.enrol(name)
        words = ("run", "--data", str(self.data), "--root", str(self.root))
        fleet.gateways[name] = Waypost(fleet.folder / f"{name}.log", *words).start()

    def power_on(self) -> None:
        self.card.power_on()
        held = self.card.holds[self.card.booted]
        assert held is not None
        (self.root / ROOT).write_text(f"{held.build}\n")

    def fetch(self) -> str:
        """Run the service of an image that fetches a bundle."""
        wait_until(lambda: WantedFiles(self.data).wanted() is not None, timeout_s=WAIT_S, what="it is handed on")
        return self._fleet.here(self.name, "update", "fetch")

    def install(self, *, well: bool) -> UpdateVerdict:
        """Run the service that installs, and the start after it."""
        files = WantedFiles(self.data)
        wanted = files.wanted()
        assert wanted is not None
        seen = GatewayCondition(frozenset(), connected=True)
        updating = Updater(self.card, UpdateRecord(self.root), lambda: seen)
        updating.install_wanted(str(files.bundle(wanted)), BundleInfo(wanted.version, wanted.build))
        self.power_on()
        updating = Updater(self.card, UpdateRecord(self.root), lambda: seen if well else None)
        tried = updating.current_trial()
        assert tried is not None
        gate = updating.gate(tried, 0.0)
        updating.step(gate, 0.0)
        verdict = updating.step(gate, TRIAL_S)
        self.power_on()
        return verdict


def test_roll_out_halts_where_a_gateway_reverts_its_update(fleet: EnrolledFleet) -> None:
    first, second = Box(fleet, "g1"), Box(fleet, "g2")
    with FileServer(CONTENT) as server:
        told = {"url": server.url, "sha256": hashlib.sha256(CONTENT).hexdigest(), "size": len(CONTENT)}
        file = fleet.written("system.yaml", SYSTEM.format(version=NEW.version, build=NEW.build, **told))
        pace = ("--waves", "1,100%", "--soak", "1s", "--away", "60s", "--confirm", "60s")
        [begun] = items_in(fleet.fleet("rollout", "start", "g1", "g2", "-f", file, *pace, "--json"))
        row = fleet.wait_for("g1", "updating", 1)
        assert row["system"]["version"] == NEW.version
        server.cuts = [60_000]
        assert "its checksum is correct" in first.fetch()
        assert server.asked == ["", "bytes=60000-"]

        wait_until(lambda: "installing" in fleet.states()["g1"]["why"], timeout_s=WAIT_S, what="it is fetched")
        phases = {each["gateway"]: each["phase"] for each in fleet.rollout(begun["id"])["members"]}
        assert phases == {"g1": "sent", "g2": "waiting"}, "nobody else before it is kept"
        assert first.install(well=True) is UpdateVerdict.KEEP
        fleet.wait_for("g1", "confirmed", 1)
        fleet.wait_for("g2", "updating", 1)
        second.fetch()
    assert second.install(well=False) is UpdateVerdict.GO_BACK
    row = fleet.wait_for("g2", "rolled-back", 1)
    assert row["why"] == "system 0.2.0 rolled-back: the gateway does not answer"
    assert fleet.wait_for_rollout(begun["id"], "halted")["why"] == f"gateway g2: {row['why']}"
    for box in (first, second):
        wait_until(lambda each=box: not list(each.data.glob("update/*")), timeout_s=WAIT_S, what="nothing is left")
    [version] = items_in(fleet.fleet("config", "history", "g2", "--json"))
    assert (version["confirmed_at"], version["failure"]) == (None, row["why"])

    fleet.fleet("rollout", "abort", begun["id"], "--take-back")
    for name in ("g1", "g2"):
        assert fleet.wait_for(name, "confirmed", 2)["system"] is None
    assert fleet.gateways["g1"].stop() == 0
    assert fleet.gateways["g2"].stop() == 0


def test_hub_serves_the_bundle_to_its_gateways_only(fleet: EnrolledFleet) -> None:
    box = Box(fleet, "g1")
    content = b"hsqs" + CONTENT
    built = fleet.folder / "next.raucb"
    built.write_bytes(content)
    told = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    text = SYSTEM.format(version=NEW.version, build=NEW.build, url="hub:next.raucb", **told)
    file = fleet.written("system.yaml", text)
    pace = ("--waves", "100%", "--soak", "1s", "--away", "60s", "--confirm", "60s")
    refused = fleet.fleet("rollout", "start", "g1", "-f", file, *pace, code=2)
    assert "no bundle next.raucb" in refused
    [added] = items_in(fleet.fleet("hub", "bundle", "add", str(built), "--json"))
    assert (added["name"], added["has_index"]) == ("next.raucb", False)
    [begun] = items_in(fleet.fleet("rollout", "start", "g1", "-f", file, *pace, "--json"))
    fleet.wait_for("g1", "updating", 1)
    assert "its checksum is correct" in box.fetch()
    [bundle] = box.data.glob("update/*.raucb")
    assert bundle.read_bytes() == content

    context = trusting(GatewayIdentity(box.data).authority())
    address = ListenEndpoint("localhost", fleet.hub_port)
    with pytest.raises(NotIssued, match="status 401"):
        HubEnrolmentClient(address).fetch("/bundles/next.raucb", context)
    assert box.install(well=True) is UpdateVerdict.KEEP
    fleet.wait_for("g1", "confirmed", 1)
    fleet.wait_for_rollout(begun["id"], "done")  # a bundle that it needs is not removed

    own = str(GatewayIdentity(box.data).file)
    context.load_cert_chain(own, own)
    assert HubEnrolmentClient(address).fetch("/bundles/next.raucb", context, len(content)) == content
    fleet.fleet("revoke", "g1")

    def is_refused() -> bool:
        try:
            HubEnrolmentClient(address).fetch("/bundles/next.raucb", context, len(content))
        except (NotIssued, HubUnreachable):
            return True
        return False

    wait_until(is_refused, timeout_s=WAIT_S, what="a revoked gateway fetches nothing")
    fleet.fleet("hub", "bundle", "remove", "next.raucb")
    assert items_in(fleet.fleet("hub", "bundle", "list", "--json")) == []


def test_gateway_without_slots_refuses_the_update(fleet: EnrolledFleet) -> None:
    fleet.enrol("hall").start()
    told = {"url": "https://localhost/x", "sha256": "c" * 64, "size": 1}
    file = fleet.written("system.yaml", SYSTEM.format(version=NEW.version, build=NEW.build, **told))
    fleet.fleet("config", "apply", "hall", "-f", file)
    assert "not from a card" in fleet.wait_for("hall", "refused", 1)["why"]
