"""Updates of a booted system, from its hub and by hand: a good version is kept, broken ones fall back.

No message is lost on the way.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from images.building import build_bundle
from images.disk import bundle, filesystem, signing
from images.emulator import machine
from images.programs import run
from images.steps import BuildSteps, default_cache
from tests.images.emulated import BOOT_S, DATA, HOST, MARKS, Gateway, mirror
from tests.support.command import item_in, items_in
from tests.support.enrolled import EnrolledFleet
from tests.support.file_server import FileServer
from tests.support.lake import rows
from tests.support.processes import wait_until
from tests.support.publisher import Publisher

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("rauc") is None, reason="rauc is not installed")]

BACKLOG = 100
"""Messages that wait for the hub before each update."""
STICK_FREE = 64 << 20
INSTALL_S = 3600.0
TRIAL_S = 5400.0
"""A quarter of an hour of the gate, the starts around it, and a busy machine."""


class Variant(NamedTuple):
    """Version that differs from this checkout's in one file of its root; any other would need a new freeze."""

    version: str
    change: str
    """Commands for debugfs(8)."""


MARK = "/usr/lib/waypost-system/version"
NEXT = Variant("0.2.0", f"symlink {MARK} 0.2.0")
NOTHING_RUNS = Variant("0.3.0", "rm /usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1")
FORGED = Variant("0.9.0", f"symlink {MARK} 0.9.0")
NO_GATEWAY_RUNS = Variant("0.3.1", "rm /usr/lib/waypost/prepare")


@pytest.fixture(scope="module")
def whole() -> Path:
    """Bundle of this checkout."""
    cache = default_cache()
    return build_bundle(BuildSteps(cache), cache, mirror(), (None, None)).file


def made(variant: Variant, whole: Path, folder: Path, keys: signing.SigningKeys | None = None) -> bundle.UpdateBundle:
    """Build its bundle. `folder`: a new folder for it; `keys`: its maker's, by default those of the card."""
    folder.mkdir()
    log = folder / "log"
    run("unsquashfs", "-no-progress", "-dest", folder / "whole", whole, log=log)
    root = folder / "whole" / "rootfs.ext4"
    before = filesystem.compute_sha256(root)
    run("debugfs", "-w", "-R", variant.change, root, log=log)
    build = filesystem.compute_sha256(root)
    assert build != before, log.read_text()
    target = folder / f"waypost-{variant.version}-arm64.raucb"
    keys = keys or signing.load_keys(default_cache(), None, None)
    bundle.make(target, root, build, keys, log, version=variant.version)
    shutil.rmtree(folder / "whole")
    return bundle.UpdateBundle(target, variant.version, build)


class Updated(Gateway):
    """Gateway that gets bundles from its hub and over SSH while it serves a device."""

    def __init__(self, folder: Path, image: Path, fleet: EnrolledFleet) -> None:
        super().__init__(folder, image, fleet)
        self._began = time.monotonic()
        self._device: Publisher | None = None

    def serve(self) -> None:
        """Set up the gateway and wait until a device publishes."""
        self.start()
        wait_until(lambda: bool(self.attested()), timeout_s=BOOT_S, what="its attestation", every_s=2)
        self.say("set up")
        password = self.add_device("pump7")
        self._device = Publisher("pump7", self.ports["mqtt"], "plant/pump7/temp", password=password, pause_s=0.05)
        self._device.start()

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:.0f} s: {what}", flush=True)

    def status(self) -> dict[str, Any]:
        return dict(item_in(self.shell("waypost", "update", "status", "--json")))

    def install(self, file: Path) -> None:
        """Install a bundle; the gateway restarts on return."""
        self.shell("cat > /data/update.raucb", given=file, timeout_s=INSTALL_S)
        self.shell(
            "waypost", "update", "install", "/data/update.raucb", "--data", DATA, "--no-restart",
            timeout_s=INSTALL_S,
        )  # fmt: skip
        assert self.machine is not None
        self.shell("rm /data/update.raucb; (sleep 2; systemctl reboot) > /dev/null 2>&1 &")

    def roll_out(self, system: bundle.UpdateBundle, server: FileServer) -> str:
        """Let the hub roll out a system; return the roll-out's id."""
        server.content = system.file.read_bytes()
        folder = f"http://{HOST}:{server.port}"
        resource = self.fleet.written(f"{system.version}.yaml", bundle.make_resource(system, folder))
        pace = ("--waves", "100%", "--soak", "1s", "--away", "2h")
        [begun] = items_in(self.fleet.fleet("rollout", "start", self.name, "-f", resource, *pace, "--json"))
        return str(begun["id"])

    def wait_until_decided(self, version: str) -> dict[str, Any]:
        """Return the record of the update once it is confirmed or rolled back."""
        found: dict[str, Any] = {}

        def decided() -> bool:
            try:
                found.update(self.status())
            except (AssertionError, subprocess.TimeoutExpired):  # between two starts
                return False
            last = found["last"]
            return bool(last["version"] == version and last["state"] in ("kept", "given up"))

        wait_until(decided, timeout_s=TRIAL_S, what=f"a decision on {version}", every_s=5)
        self.say(f"{version} is {found['last']['state']}: {found['last']['why'] or 'well'}")
        return found

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged messages."""
        return 0 if self._device is None else len(self._device.acked)

    def wait_until_served(self) -> None:
        """Wait until the running system serves a device."""
        device = self._device
        assert device is not None
        acked = len(device.acked)
        wait_until(lambda: len(device.acked) > acked, timeout_s=BOOT_S, what="devices are served")

    def drain(self) -> None:
        """Stop publishing, and check that every acknowledged message is in the lake once."""
        assert self._device is not None
        self._device.end()
        acknowledged = set(self._device.acked)

        def missing() -> set[bytes]:
            return acknowledged - {row["body"] for row in rows(self.fleet.lake, "telemetry")}

        wait_until(lambda: not missing(), timeout_s=BOOT_S, what="all of it in the lake", every_s=3)
        landed = Counter(row["body"] for row in rows(self.fleet.lake, "telemetry"))
        assert max(landed.values()) == 1, "once"
        self.say(f"{len(acknowledged)} acknowledged, {len(landed)} in the lake, each once")

    def end(self) -> None:
        self.cut_off()
        if self._device is not None and self._device.is_alive():
            self._device.end()


@pytest.fixture
def gateway(tmp_path: Path, image: Path, fleet: EnrolledFleet) -> Iterator[Updated]:
    made = Updated(tmp_path, image, fleet)
    try:
        made.serve()
        yield made
    finally:
        made.end()


def test_of_two_updates_from_the_hub_one_is_kept_and_one_rolls_back(
    tmp_path: Path, whole: Path, fleet: EnrolledFleet, gateway: Updated
) -> None:
    with FileServer(b"") as server:
        gateway.roll_out(made(NEXT, whole, tmp_path / "next"), server)
        fleet.wait_for(gateway.name, "confirmed", 1, timeout_s=TRIAL_S)
        found = gateway.wait_until_decided(NEXT.version)
        booted = found["booted"]
        assert (found["last"]["state"], booted["letter"], booted["version"]) == ("kept", "B", NEXT.version)
        assert gateway.shell("readlink", MARK).strip() == NEXT.version
        rollout = gateway.roll_out(made(NOTHING_RUNS, whole, tmp_path / "nothing"), server)
        assert gateway.machine is not None
        gateway.machine.wait_for(f"Waypost: {NOTHING_RUNS.version} is installed", timeout_s=INSTALL_S)
    fleet.hub.stop()
    found = gateway.wait_until_decided(NOTHING_RUNS.version)
    assert (found["last"]["state"], found["booted"]["version"]) == ("given up", NEXT.version)
    assert "it did not start" in found["last"]["why"]
    gateway.wait_until_served()
    fleet.hub.start()
    row = fleet.wait_for(gateway.name, "rolled-back", 2, timeout_s=BOOT_S)
    assert found["last"]["why"] in row["why"]

    def halted() -> bool:
        [found] = items_in(fleet.fleet("rollout", "status", rollout, "--json"))
        return bool((found["state"], found["why"]) == ("halted", f"gateway {gateway.name}: {row['why']}"))

    wait_until(halted, timeout_s=BOOT_S, what="the roll-out halts", every_s=2)
    gateway.say(f"the hub knows: {row['why']}")
    gateway.drain()


def stick_with(bundles: Sequence[Path], folder: Path) -> Path:
    """Build the content of a stick (FAT, without partitions)."""
    stick, log = folder / "stick", folder / "log"
    with stick.open("wb") as file:
        file.truncate(sum(each.stat().st_size for each in bundles) + STICK_FREE)
    run("mkfs.vfat", "-F", "32", stick, log=log)
    run("mcopy", "-i", stick, *bundles, "::", log=log)
    return stick


def test_signed_stick_update_is_kept_while_the_hub_is_away_and_the_stick_remains(
    tmp_path: Path, whole: Path, fleet: EnrolledFleet, gateway: Updated
) -> None:
    gateway.wait_until_served()
    fleet.hub.stop()
    others = signing.load_keys(tmp_path / "others", None, None)
    bundles = [made(FORGED, whole, tmp_path / "forged", others).file, made(NEXT, whole, tmp_path / "next").file]
    stick = stick_with(bundles, tmp_path)
    emulated = gateway.machine
    assert emulated is not None
    emulated.wait_for(machine.SERVES)
    emulated.put_in(stick)
    gateway.say("a stick is put in")
    emulated.wait_for(f"{bundles[0].name} on the stick is not installed")
    emulated.wait_for(f"{NEXT.version} is installed", timeout_s=INSTALL_S)
    found = gateway.wait_until_decided(NEXT.version)
    assert (found["last"]["state"], found["booted"]["version"]) == ("kept", NEXT.version)
    text = f"{bundles[1].name} on the stick is not installed: it holds {NEXT.version}, and {NEXT.version} runs"
    emulated.wait_for(text)
    gateway.wait_until_served()
    fleet.hub.start()
    gateway.drain()


def test_update_without_a_gateway_rolls_back_while_the_hub_is_away(
    tmp_path: Path, whole: Path, fleet: EnrolledFleet, gateway: Updated
) -> None:
    gateway.wait_until_served()
    fleet.hub.stop()
    gateway.install(made(NO_GATEWAY_RUNS, whole, tmp_path / "no-gateway").file)
    gateway.say(f"{NO_GATEWAY_RUNS.version} is installed by hand")
    found = gateway.wait_until_decided(NO_GATEWAY_RUNS.version)
    assert (found["last"]["state"], found["booted"]["letter"]) == ("given up", "A")
    assert "the gateway does not answer" in found["last"]["why"]
    gateway.wait_until_served()
    fleet.hub.start()
    gateway.drain()
