"""Updates of a booted system: a new version is kept, broken ones are taken back, and no message is lost on the way."""

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
from typing import Any

import pytest

from images import source
from images.disk import bundle, filesystem, signing
from images.programs import run
from images.steps import default_cache
from tests.images.emulated import BOOT_S, DATA, HOST, MARKS, Gateway
from tests.support.enrolled import EnrolledFleet
from tests.support.lake import rows
from tests.support.processes import wait_until
from tests.support.publisher import Publisher

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("rauc") is None, reason="rauc is not installed")]

NEXT = "0.2.0"
INSTALL_S = 1200.0
TRIAL_S = 2400.0
"""The gate's quarter of an hour, the starts around it, and a busy machine."""
BUILT_FROM = ("bridge", "edge", "images", "hatch_build.py", "requirements.lock", "LICENSE")
BROKEN = (
    ("/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", "0.3.0", "it did not start"),
    ("/usr/lib/waypost/prepare", "0.3.1", "the gateway does not answer"),
)
"""What is missing in a version, its number, and what is said of it: nothing runs there, not even its init; no gateway
does."""


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    return Path(done.stdout.strip())


def without(whole: Path, path: str, version: str, folder: Path) -> Path:
    """The bundle of a version that lacks a file of its root."""
    folder.mkdir()
    log = folder / "log"
    run("unsquashfs", "-no-progress", "-dest", folder / "content", whole, log=log)
    root = folder / "content" / "rootfs.ext4"
    run("debugfs", "-w", "-R", f"rm {path}", root, log=log)
    target = folder / f"waypost-{version}-arm64.raucb"
    keys = signing.keys(default_cache(), None, None)
    bundle.make(target, root, filesystem.digest(root), keys, log, version=version)
    shutil.rmtree(folder / "content")
    return target


class Updated(Gateway):
    """A gateway that gets bundles over SSH."""

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
    tmp_path: Path, image: Path, next_version: Path, fleet: EnrolledFleet
) -> None:
    gateway = Updated(tmp_path, image, fleet)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:.0f} s: {what}")

    gateway.start()
    publisher = None
    try:
        wait_until(lambda: bool(gateway.attested()), timeout_s=BOOT_S, what="its attestation", every_s=2)
        say("set up")
        password = gateway.add_device("pump7")
        publisher = Publisher("pump7", gateway.ports["mqtt"], "plant/pump7/temp", password=password, pause_s=0.05)
        publisher.start()
        gateway.install(next_version)
        say(f"{NEXT} is installed")
        found = gateway.wait_until_decided(NEXT)
        say(f"{NEXT} is decided on")
        assert (found["last"]["state"], found["booted"]["letter"], found["booted"]["version"]) == ("kept", "B", NEXT)
        assert NEXT in gateway.shell("waypost", "--version")
        fleet.hub.stop()
        for path, version, why in BROKEN:
            gateway.install(without(next_version, path, version, tmp_path / version))
            say(f"{version} is installed")
            found = gateway.wait_until_decided(version)
            say(f"{version} is decided on")
            assert (found["last"]["state"], found["booted"]["version"]) == ("given up", NEXT)
            assert why in found["last"]["why"]
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
