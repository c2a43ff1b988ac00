"""A campaign for devices behind narrow links: real processes, kills of gateways and hub, devices that reset.

Each device ends on the new version or back on its old one, and the hub knows which. Each gateway fetches the image
once. Readings are acknowledged as soon as without the campaign, and all of them land.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any, Final

import pytest

from tests.fault.campaign.fleet import CampaignFleet, Kills, RunningDevices, RunSize, Window, percentile
from tests.support.lake import read_columns
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7_200)]

SMALL: Final = RunSize(4, 200, 1 << 20, 125_000.0, 5.0, 0.1, 60.0)
LARGE: Final = RunSize(20, 2_000, 2 << 20, 125_000.0, 10.0, 0.05, 120.0)
"""Twenty links of 1 Mbit/s; an image takes 17 s."""
PROCESSES: Final = 2
IDLE_S: Final = {SMALL: 30.0, LARGE: 120.0}
RECOVERY_S: Final = 20.0
"""Time after a restart that does not count in the comparison: it takes the machine of the test for some seconds."""
CONNECTED_S: Final = 600.0
RUN_S: Final = 3_000.0
LANDED_S: Final = 300.0
SLOWER_MAX: Final = 1.5
"""Most that the campaign may add to the 99th percentile of PUBACK, as a factor."""


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["200", "2000"])
def test_each_device_ends_and_is_reported(tmp_path_factory: pytest.TempPathFactory, size: RunSize) -> None:
    folder = tmp_path_factory.mktemp("run")
    image = random.Random(5).randbytes(size.image_bytes)
    with CampaignFleet(folder, size) as fleet:
        fleet.upload(image)
        plans = fleet.register_all()
        with RunningDevices(folder, plans, PROCESSES) as devices:
            devices.wait_for("connected", size.devices, CONNECTED_S)
            before = idle(devices, IDLE_S[size])
            fetched_before = fleet.link_bytes()
            begun, kills = time.monotonic(), Kills(RECOVERY_S)
            path = start(fleet)
            disturb(fleet, devices, kills)
            hub = HubOperator(fleet.hub)
            wait_until(lambda: hub.get(path)["state"] == "done", timeout_s=RUN_S, what="it is done", every_s=2.0)
            campaign = Window(begun, time.monotonic())
            fetched = {name: got - fetched_before[name] for name, got in fleet.link_bytes().items()}
            after = idle(devices, IDLE_S[size])
            outcomes = devices.end()
        expected = {each.name: "failed" if each.bad else "done" for each in plans}
        assert phases(hub, path) == expected
        assert {name: each["runs"] for name, each in outcomes.items()} == {
            each.name: "1.1.0" if each.bad else "1.2.0" for each in plans
        }
        assert {len(list((each.data / "artefacts").glob("*.image"))) for each in fleet.gateways.values()} == {1}
        print(describe(outcomes, campaign, fetched))
        assert max(fetched.values()) < 1.3 * size.image_bytes, "an image was fetched twice"
        check_landed(fleet, outcomes)
        compare(outcomes, (before, after), campaign, kills)


def idle(devices: RunningDevices, seconds: float) -> Window:
    """Let devices publish without a campaign; return the time."""
    begun = time.monotonic()
    readings = devices.counts()["readings"]
    wait_until(lambda: time.monotonic() >= begun + seconds, timeout_s=2 * seconds, what="idle", every_s=1.0)
    assert devices.counts()["readings"] > readings
    return Window(begun, time.monotonic())


def start(fleet: CampaignFleet) -> str:
    """Start the campaign; return its path."""
    new = {"artefact": "blinker", "version": "1.2.0", "devices": ["d*"], "waves": "1%,10%,50%,100%", "soak_s": 600}
    answer = HubOperator(fleet.hub).send(
        "POST", "campaigns", {**new, "failures_max": fleet.size.devices, "away_s": 7_200}
    )
    assert answer.status == 201, answer
    return f"campaigns/{answer.document['id']}"


def disturb(fleet: CampaignFleet, devices: RunningDevices, kills: Kills) -> None:
    """Kill gateways and the hub while images are fetched, and as devices end."""
    chosen = random.Random(11)

    def fetching() -> list[str]:
        return [name for name, each in fleet.gateways.items() if list((each.data / "artefacts").glob("*.part"))]

    wait_until(lambda: bool(fetching()), timeout_s=RUN_S, what="an image is being fetched", every_s=0.5)
    kills.kill(fleet.gateways[chosen.choice(fetching() or fleet.names)])
    for number, share in enumerate((0.005, 0.05, 0.2, 0.4, 0.6, 0.8)):
        devices.wait_for("ended", int(share * fleet.size.devices), RUN_S)
        gateways = [fleet.gateways[name] for name in chosen.sample(fleet.names, max(1, len(fleet.names) // 10))]
        kills.kill(*gateways, *([fleet.hub] if number % 2 == 0 else []))


def phases(hub: HubOperator, path: str) -> dict[str, str]:
    """Return the phase of each device."""
    found: dict[str, str] = {}
    after: str | None = ""
    while after is not None:
        page = hub.get(f"{path}/devices?limit=500&after={after}")
        found.update((each["device"], each["phase"]) for each in page["devices"])
        after = page["next"]
    return found


def check_landed(fleet: CampaignFleet, outcomes: dict[str, Any]) -> None:
    """Wait until all acknowledged readings are in the lake, each message once."""

    def missing() -> int:
        landed: dict[str, set[int]] = {}
        for device, address, body in read_columns(fleet.lake, "telemetry", "device", "address", "body"):
            if address.endswith("/t"):
                landed.setdefault(device, set()).add(json.loads(body)["seq"])
        return sum(len(set(range(each["acked"])) - landed.get(name, set())) for name, each in outcomes.items())

    wait_until(lambda: not missing(), timeout_s=LANDED_S, what="all acknowledged readings are in the lake", every_s=5.0)
    names = read_columns(fleet.lake, "telemetry", "gateway", "epoch", "address", "sequence")
    assert len(names) == len(set(names)), "a message has landed twice"


def compare(outcomes: dict[str, Any], idle: tuple[Window, ...], campaign: Window, kills: Kills) -> None:
    """Compare the times until PUBACK with the campaign and without it."""
    quiet = sorted(wait_ms for each in idle for wait_ms in each.waits_ms(outcomes))
    whole, apart = campaign.waits_ms(outcomes), campaign.waits_ms(outcomes, kills.times)
    for name, found in (("idle", quiet), ("campaign", whole), ("without restarts", apart)):
        shares = ", ".join(f"p{100 * share:g} {percentile(found, share):.1f}" for share in (0.5, 0.9, 0.99, 0.999))
        print(f"PUBACK, {name}: {len(found)} readings, {shares} ms")
    assert percentile(apart, 0.99) <= SLOWER_MAX * percentile(quiet, 0.99)


def describe(outcomes: dict[str, Any], campaign: Window, fetched: dict[str, int]) -> str:
    """Return a line about a run."""
    last = ("healthy", "rolled-back")
    ended = Counter(state for each in outcomes.values() for state in last if state in each["states"])
    sums = {what: sum(each[what] for each in outcomes.values()) for what in ("acked", "resets", "lost", "repeated")}
    link = f"{min(fetched.values())} to {max(fetched.values())} bytes to a gateway"
    return f"{len(outcomes)} devices in {campaign.end - campaign.begin:.0f} s: {dict(ended)}, {sums}, {link}"
