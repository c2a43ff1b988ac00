"""Updates of a booted system, from its hub and by hand: a new version is kept, broken ones are taken back, and no
message is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from images import source
from images.disk import bundle, filesystem, signing
from images.programs import run
from images.steps import default_cache
from tests.images.emulated import BOOT_S, DATA, HOST, MARKS, Gateway
from tests.support.enrolled import EnrolledFleet
from tests.support.file_server import FileServer
from tests.support.lake import rows
from tests.support.processes import wait_until
from tests.support.publisher import Publisher

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("rauc") is None, reason="rauc is not installed")]

NEXT = "0.2.0"
INSTALL_S = 1200.0
TRIAL_S = 2400.0
"""The gate's quarter of an hour, the starts around it, and a busy machine."""
BUILT_FROM = ("bridge", "edge", "images", "hatch_build.py", "pyproject.toml", "requirements.lock", "LICENSE")


class Broken(NamedTuple):
    """A version that lacks a file of its root."""

    version: str
    lacks: str
    why: str
    """What is said of it."""


NOTHING_RUNS = Broken("0.3.0", "/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", "it did not start")
NO_GATEWAY_RUNS = Broken("0.3.1", "/usr/lib/waypost/prepare", "the gateway does not answer")


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    """A bundle of this checkout with another version: frozen, packed and signed as `waypost image bundle` does it."""
    checkout = tmp_path_factory.mktemp("next")
    for name in BUILT_FROM:
        place = source.ROOT / name
        copy = shutil.copytree if place.is_dir() else shutil.copy
        copy(place, checkout / name)
    file = checkout / "bridge" / "version.py"
    file.write_text(file.read_text().replace(f'"{source.version()}"', f'"{NEXT}"'))
    environment = {**os.environ, "PYTHONPATH": str(checkout), "SOURCE_DATE_EPOCH": str(source.date())}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "edge.appliance.main", "image", "bundle", "--out", str(checkout / "out")],
        env=environment, cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(f"{time.monotonic() - began:.0f} s for a bundle of {NEXT}")
    file = Path(done.stdout.strip())
    return bundle.Bundle(file, NEXT, filesystem.digest(unpacked(file, checkout)))


def unpacked(file: Path, folder: Path) -> Path:
    """The root file system of a bundle."""
    run("unsquashfs", "-no-progress", "-dest", folder / "content", file, log=folder / "log")
    return folder / "content" / "rootfs.ext4"


def made(broken: Broken, whole: bundle.Bundle, folder: Path) -> bundle.Bundle:
    """The bundle of a broken version."""
    folder.mkdir()
    log = folder / "log"
    root = unpacked(whole.file, folder)
    run("debugfs", "-w", "-R", f"rm {broken.lacks}", root, log=log)
    target = folder / f"waypost-{broken.version}-arm64.raucb"
    build = filesystem.digest(root)
    bundle.make(target, root, build, signing.keys(default_cache(), None, None), log, version=broken.version)
    shutil.rmtree(folder / "content")
    return bundle.Bundle(target, broken.version, build)


class Updated(Gateway):
    """A gateway that gets bundles from its hub, and over SSH."""

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.shell("waypost", "edge", "update", "status", "--json")))

    def install(self, file: Path) -> None:
        """It starts anew when this returns."""
        self.shell("cat > /data/update.raucb", given=file, timeout_s=INSTALL_S)
        self.shell(
            "waypost", "edge", "update", "install", "/data/update.raucb", "--data", DATA, "--no-restart",
            timeout_s=INSTALL_S,
        )  # fmt: skip
        assert self.machine is not None
        self.shell("rm /data/update.raucb; (sleep 2; systemctl reboot) > /dev/null 2>&1 &")

    def roll_out(self, system: bundle.Bundle, server: FileServer) -> str:
        """Have the hub tell it to run a system; the roll-out's id."""
        server.content = system.file.read_bytes()
        folder = f"http://{HOST}:{server.port}"
        resource = self.fleet.written(f"{system.version}.yaml", bundle.resource(system, folder))
        pace = ("--waves", "100%", "--soak", "1s", "--away", "2h")
        [begun] = json.loads(self.fleet.fleet("rollout", "start", self.name, "-f", resource, *pace, "--json"))
        return str(begun["id"])

    def wait_until_decided(self, version: str) -> dict[str, Any]:
        """The record of the update, once it is kept or given up."""
        found: dict[str, Any] = {}

        def decided() -> bool:
            try:
                found.update(self.status())
            except (AssertionError, subprocess.TimeoutExpired):  # between two starts
                return False
            last = found["last"]
            return bool(last["version"] == version and last["state"] in ("kept", "given up"))

        wait_until(decided, timeout_s=TRIAL_S, what=f"a decision on {version}", every_s=5)
        return found


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path, "--name", HOST) as made:
        yield made


def test_a_new_version_is_kept_and_broken_ones_are_taken_back(
    tmp_path: Path, image: Path, next_version: bundle.Bundle, fleet: EnrolledFleet
) -> None:
    gateway = Updated(tmp_path, image, fleet)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:.0f} s: {what}", flush=True)

    gateway.start()
    publisher = None
    try:
        wait_until(lambda: bool(gateway.attested()), timeout_s=BOOT_S, what="its attestation", every_s=2)
        say("set up")
        password = gateway.add_device("pump7")
        publisher = Publisher("pump7", gateway.ports["mqtt"], "plant/pump7/temp", password=password, pause_s=0.05)
        publisher.start()
        with FileServer(b"") as server:
            gateway.roll_out(next_version, server)
            fleet.wait_for(gateway.name, "confirmed", 1, timeout_s=TRIAL_S)
            say(f"{NEXT} is kept, and the hub knows")
            found = gateway.wait_until_decided(NEXT)
            booted = found["booted"]
            assert (found["last"]["state"], booted["letter"], booted["version"]) == ("kept", "B", NEXT)
            assert NEXT in gateway.shell("waypost", "--version")
            rollout = gateway.roll_out(made(NOTHING_RUNS, next_version, tmp_path / "nothing"), server)
            row = fleet.wait_for(gateway.name, "rolled-back", 2, timeout_s=TRIAL_S)
            say(f"{NOTHING_RUNS.version} is taken back, and the hub knows: {row['why']}")
            assert NOTHING_RUNS.why in row["why"]
        found = gateway.wait_until_decided(NOTHING_RUNS.version)
        assert (found["last"]["state"], found["booted"]["version"]) == ("given up", NEXT)
        [halted] = json.loads(fleet.fleet("rollout", "status", rollout, "--json"))
        assert (halted["state"], halted["why"]) == ("halted", f"gateway {gateway.name}: {row['why']}")
        fleet.fleet("rollout", "abort", rollout, "--take-back")
        fleet.wait_for(gateway.name, "confirmed", 3, timeout_s=TRIAL_S)
        fleet.hub.stop()
        gateway.install(made(NO_GATEWAY_RUNS, next_version, tmp_path / "no-gateway").file)
        say(f"{NO_GATEWAY_RUNS.version} is installed by hand, and the hub is away")
        found = gateway.wait_until_decided(NO_GATEWAY_RUNS.version)
        say(f"{NO_GATEWAY_RUNS.version} is decided on")
        assert (found["last"]["state"], found["booted"]["version"]) == ("given up", NEXT)
        assert NO_GATEWAY_RUNS.why in found["last"]["why"]
        acked = len(publisher.acked)
        wait_until(lambda: len(publisher.acked) > acked, timeout_s=BOOT_S, what="devices are served")
        publisher.end()
        fleet.hub.start()
        acknowledged = set(publisher.acked)

        def missing() -> set[bytes]:
            return acknowledged - {row["body"] for row in rows(fleet.lake, "telemetry")}

        wait_until(lambda: not missing(), timeout_s=BOOT_S, what="all of it in the lake", every_s=3)
    finally:
        gateway.cut_off()
        if publisher is not None and publisher.is_alive():
            publisher.end()
    landed = Counter(row["body"] for row in rows(fleet.lake, "telemetry"))
    assert max(landed.values()) == 1, "once"
    say(f"{len(acknowledged)} acknowledged, {len(landed)} in the lake, each once")
