"""Update of programs by themselves: from a real gateway, killed at random moments, with bad images.

Bad images, and the campaign of 21 kills, are slow tests:
``./waypost test tests/fault/test_firmware_update.py -m slow -s``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.artefacts.keys import MakerPrivateKey
from bridge.artefacts.manifest import ArtefactKind
from tests.fault.firmware.checker import judge_example
from tests.fault.firmware.programs import NEEDS_C, NEEDS_CURL, needs_built
from tests.fault.firmware.scripted_broker import ScriptedBroker
from tests.fault.firmware.scripted_gateway import ScriptedGateway
from tests.fault.firmware.update_site import (
    BOARD_PROGRAM,
    C_PROGRAM,
    CURL_PROGRAM,
    GO_PROGRAM,
    NODE_PROGRAM,
    PYTHON_PROGRAM,
    RUST_PROGRAM,
    UpdateSite,
    UpdatingDevice,
    UpdatingProgram,
    chance,
)
from tests.support.artefacts import IMAGE, OTHER_KEY, sealed
from tests.support.node import mqtt_js

pytestmark = pytest.mark.timeout(300)

OLD, NEW = ("1.0.0", 1), ("1.1.0", 2)
HEALTHY, ROLLED_BACK = 5, 6
"""States in a record of the update."""
KILLS, DEVICES = 7, 3


PROGRAMS = [
    pytest.param(C_PROGRAM, id="portable_c", marks=NEEDS_C),
    pytest.param(PYTHON_PROGRAM, id="python"),
    pytest.param(NODE_PROGRAM, id="nodejs", marks=mqtt_js),
    pytest.param(CURL_PROGRAM, id="curl", marks=(NEEDS_CURL, pytest.mark.slow)),
    pytest.param(BOARD_PROGRAM, id="micropython"),
    pytest.param(GO_PROGRAM, id="go", marks=needs_built("go")),
    pytest.param(RUST_PROGRAM, id="rust", marks=needs_built("rust")),
]


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> UpdatingProgram:
    found: UpdatingProgram = request.param
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpdateSite]:
    with UpdateSite(tmp_path_factory.mktemp("site")) as running:
        yield running


def device_of(site: UpdateSite, program: UpdatingProgram, name: str, **settings: object) -> UpdatingDevice:
    """Return a device with the old version of a program."""
    return UpdatingDevice(site, f"{program.loader.name}-{name}", program.image(*OLD), program, **settings)


def finish(site: UpdateSite, device: UpdatingDevice) -> tuple[dict[str, list[Any]], int]:
    """Stop a device once all is delivered; return what arrived, and check that nothing of the spool was lost."""
    name = str(device.settings["DEVICE"])
    if device.program.listener == "https":
        device.stop()  # without a queue for its commands
    else:
        site.command(name, b'{"stop": true}')
    assert device.ended() == 0, device.said()
    arrived = site.collect()
    verdict = judge_example([bytes(each.payload) for each in arrived[f"plant/{name}"]], device.spool.next)
    assert verdict.right, (verdict, device.said())
    return arrived, verdict.boots


def test_device_updates_itself(site: UpdateSite, program: UpdatingProgram) -> None:
    site.offer("1.1.0", program.image(*NEW), sequence=2, key=program.key)
    connections = site.links["https"].connections
    with device_of(site, program, "update") as device:
        device.wait_reported(HEALTHY)
        device.wait_acknowledged()
        arrived, boots = finish(site, device)
    assert device.state.kept == "1"
    assert program.has(device.slots, program.image(*NEW))
    states = [state for _, state, _ in site.reports(str(device.settings["DEVICE"]), arrived)]
    assert states == ["downloading", "verified", "installed", "healthy"]
    assert boots == 2
    assert "firmware: pump 1.1.0" in device.said()
    if program is C_PROGRAM:
        assert site.links["https"].connections - connections < 10, "parts of an image share a connection"


@pytest.mark.slow
def test_image_signed_with_es256_is_installed(site: UpdateSite, program: UpdatingProgram) -> None:
    site.offer("1.1.0", program.image(*NEW), sequence=2, key=OTHER_KEY)
    with device_of(site, program, "es256") as device:
        device.wait_reported(HEALTHY)
        finish(site, device)
    assert device.state.kept == "1"


def board_image(program: str) -> str:
    """Return an image for boards with this program."""
    return f"main.py {len(program)}\n{program}"


BAD_IMAGES = {
    "c": {
        "crashes": "#!/bin/sh\nexit 3\n",
        "hangs": "#!/bin/sh\nexec sleep 1000\n",
        "is-no-program": "\x7fELF nothing",
        "cannot-connect": "#!/bin/sh\nWAYPOST_PORT=1 exec {program}\n",
    },
    "python": {
        "crashes": "raise SystemExit(3)\n",
        "hangs": "import time\ntime.sleep(1000)\n",
        "is-no-program": "\x7fELF nothing",
        "cannot-connect": (
            "import os, runpy\nos.environ['WAYPOST_PORT'] = '1'\nrunpy.run_path('{program}', None, '__main__')\n"
        ),
    },
    "board": {
        "crashes": board_image("raise SystemExit(3)\n"),
        "hangs": board_image("import time\ntime.sleep(1000)\n"),
        "is-no-program": "\x7fELF nothing",
        "cannot-connect": "",
    },
    "node": {
        "crashes": "process.exit(3);\n",
        "hangs": "setInterval(() => 0, 1000);\n",
        "is-no-program": "\x7fELF nothing",
        "cannot-connect": "process.env.WAYPOST_PORT = '1';\nrequire('{program}');\n",
    },
}
"""Images in place of a program, by its language."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD_IMAGES["c"])
def test_bad_image_is_rolled_back_and_reported(
    site: UpdateSite, program: UpdatingProgram, tmp_path: Path, kind: str
) -> None:
    good = tmp_path / "device"
    good.write_bytes(program.image(*NEW))
    good.chmod(0o755)
    image = BAD_IMAGES[program.language][kind].format(program=good).encode()
    if not image:
        port = b'settings["PORT"],'
        image = good.read_bytes().replace(port, b"1,".ljust(len(port)))
    site.offer("1.1.0", image, sequence=2, key=program.key)
    watchdog_s = 20 if program is CURL_PROGRAM else 5  # its processes are slow on a busy machine
    with device_of(site, program, kind, WATCHDOG_S=watchdog_s, TRIAL_S=2, UPDATE_S=240) as device:
        device.wait_reported(ROLLED_BACK)
        device.wait_acknowledged()
        arrived, _ = finish(site, device)
    assert device.state.kept == "0"
    reports = site.reports(str(device.settings["DEVICE"]), arrived)
    reason = "not-healthy" if kind == "cannot-connect" else "restarted"
    if program is BOARD_PROGRAM and kind == "is-no-program":
        assert reports[-1] == ("1.1.0", "rolled-back", "cannot-install"), "it cannot be unpacked"
        return
    assert reports[-1] == ("1.1.0", "rolled-back", reason), (reports, device.said(), device.state)
    assert [state for _, state, _ in reports] == ["downloading", "verified", "installed", "rolled-back"]


@pytest.mark.slow
def test_mislabelled_image_is_rolled_back(site: UpdateSite, program: UpdatingProgram) -> None:
    """An image that says another sequence than its manifest would be offered again and again."""
    site.offer("1.2.0", program.image(*NEW), sequence=3, key=program.key)
    with device_of(site, program, "mislabelled") as device:
        device.wait_reported(ROLLED_BACK)
        arrived, _ = finish(site, device)
    assert device.state.kept == "0"
    assert site.reports(str(device.settings["DEVICE"]), arrived)[-1] == ("1.2.0", "rolled-back", "wrong-sequence")


def test_later_images_for_other_boards_and_versions_are_passed_over(site: UpdateSite, program: UpdatingProgram) -> None:
    later: dict[str, tuple[bytes, dict[str, Any]]] = {
        "1.1.0": (program.image(*NEW), {"sequence": 2, "key": program.key}),
        "1.2.0": (b"another program", {"sequence": 3, "boards": ("other",)}),
        "1.3.0": (b"another program", {"sequence": 4, "from_versions": ("1.2.0",)}),
    }
    site.offer_all(later)
    with device_of(site, program, "other-boards") as device:
        device.wait_reported(HEALTHY)
        arrived, _ = finish(site, device)
    assert {version for version, _, _ in site.reports(str(device.settings["DEVICE"]), arrived)} == {"1.1.0"}


def test_update_that_cannot_connect_leaves_the_readings_alone(site: UpdateSite, program: UpdatingProgram) -> None:
    """A handshake that fails leaves errors in OpenSSL's queue, which both connections share."""
    if program.over_mqtt:
        pytest.skip("over one connection")
    link = site.links["http"]
    before = link.connections
    url = f"https://127.0.0.1:{link.port}"  # a port without TLS
    with device_of(site, program, "no-https", UPDATE_URL=url) as device:
        device.wait_until(lambda: link.connections >= before + 3, "it tries to look for updates")
        device.wait_acknowledged(20)
        assert "disconnected" not in device.said()


def test_boot_loader_that_cannot_write_starts_the_kept_program(site: UpdateSite, program: UpdatingProgram) -> None:
    device = device_of(site, program, "full-disk")
    (device.slots / "boot").write_text("0 1 1\n")
    (device.slots / "boot.new").mkdir()  # it cannot be written
    with device:
        device.wait_acknowledged()
        assert "firmware: pump 1.0.0" in device.said()


@pytest.mark.slow
def test_image_without_the_key_of_the_maker_does_not_stay(site: UpdateSite, program: UpdatingProgram) -> None:
    site.offer("1.1.0", program.image("1.1.0-keyless", 2, has_key=False), sequence=2, key=program.key)
    with device_of(site, program, "keyless") as device:
        device.wait_reported(ROLLED_BACK)
        arrived, _ = finish(site, device)
    assert device.state.kept == "0"
    assert site.reports(str(device.settings["DEVICE"]), arrived)[-1] == ("1.1.0", "rolled-back", "no-key")


def flipped(content: bytes, at: int) -> bytes:
    """Return the content with one bit changed."""
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


ALGORITHM = re.compile(rb"\xa3\x01[\x26\x27]")
"""Begin of a protected header with ES256 or Ed25519."""
LATER: dict[str, Any] = {"name": "pump", "version": "2.0", "sequence": 2, "boards": ("posix",)}


def later(key: MakerPrivateKey, **fields: Any) -> bytes:
    """Return the signed manifest of a later version."""
    return sealed(key=key, **LATER | fields)


REFUSED: dict[str, Callable[[MakerPrivateKey], tuple[bytes, bytes]]] = {
    "forged": lambda key: (flipped(later(key), -80), IMAGE),
    "unknown-key": lambda key: (later(MakerPrivateKey.generate(key.public.algorithm)), IMAGE),
    "truncated": lambda key: (later(key)[:-1], IMAGE),
    "malformed": lambda key: (later(key) + b"\0", IMAGE),
    "unsupported-version": lambda key: (ALGORITHM.sub(b"\xa3\x01\x30", later(key)), IMAGE),
    "downgraded": lambda key: (later(key, sequence=1), IMAGE),
    "wrong-board": lambda key: (later(key, boards=("other", "posix2")), IMAGE),
    "wrong-from-version": lambda key: (later(key, from_versions=("0.9", "0.8")), IMAGE),
    "too-large": lambda key: (later(key, size=1 << 30), IMAGE),
    "another-name": lambda key: (later(key, name="fan"), IMAGE),
    "another-version": lambda key: (later(key, version="2.1"), IMAGE),
    "no-firmware": lambda key: (later(key, kind=ArtefactKind.MODEL), IMAGE),
    "short-image": lambda key: (later(key), IMAGE[:-1]),
    "changed-image": lambda key: (later(key), flipped(IMAGE, 100)),
}
REASONS = {
    "another-name": "forged", "another-version": "forged", "no-firmware": "malformed", "short-image": "truncated",
    "changed-image": "forged",
}  # fmt: skip
"""Reason of a case, where it is not the name of the case."""


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_artefact_is_refused_with_the_reason(
    refusing: RefusingDevice, program: UpdatingProgram, case: str
) -> None:
    manifest, image = REFUSED[case](program.key)
    reason = REASONS.get(case, case)
    reports = refusing.see(manifest, image)
    assert reports[-1] == ("rolled-back", reason)
    assert ("verified", "") not in reports
    assert refusing.device.state.kept == "0"
    assert not (refusing.device.slots / "boot").exists(), "the boot loader was told nothing"


def test_artefact_that_is_not_valid_yet_waits(refusing: RefusingDevice, program: UpdatingProgram) -> None:
    gateway, device = refusing.gateway, refusing.device
    refusing.offer(later(program.key, not_before=4_000_000_000), IMAGE)
    device.wait_said("not valid yet")
    assert gateway.reports == []


class RefusingDevice:
    """Device that sees one wrong artefact after the other."""

    def __init__(self, gateway: ScriptedGateway | ScriptedBroker, device: UpdatingDevice) -> None:
        self.gateway, self.device = gateway, device

    def offer(self, manifest: bytes, image: bytes) -> None:
        self.gateway.reports.clear()
        self.gateway.manifest, self.gateway.image = manifest, image
        self.gateway.offer = {"name": "pump", "version": "2.0", "kind": "firmware", "sequence": 2}

    def see(self, manifest: bytes, image: bytes) -> list[tuple[str, str]]:
        """Offer an artefact; return the reports about it, until the end of the first try."""
        self.offer(manifest, image)

        def ended() -> bool:
            return any(state == "rolled-back" for state, _ in self.gateway.reports)

        self.device.wait_until(ended, "it is refused")
        self.device.wait_reported(ROLLED_BACK)
        return self.gateway.reports


@pytest.fixture(scope="module")
def refusing(
    site: UpdateSite, program: UpdatingProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RefusingDevice]:
    gateway: ScriptedGateway | ScriptedBroker
    if not program.over_mqtt:
        with ScriptedGateway() as gateway, device_of(site, program, "refusing", UPDATE_URL=gateway.url) as device:
            yield RefusingDevice(gateway, device)
        return
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not installed")
    with (
        ScriptedBroker(tmp_path_factory.mktemp("broker")) as gateway,
        device_of(site, program, "refusing", PORT=gateway.port, CA="", PASSWORD="") as device,
    ):
        yield RefusingDevice(gateway, device)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_update_ends_new_and_healthy_or_old_and_reported(site: UpdateSite, program: UpdatingProgram) -> None:
    random = chance()
    site.offer("1.1.0", program.image(*NEW), sequence=2, key=program.key)
    ends = []
    for number in range(DEVICES):
        with device_of(site, program, f"killed-{number}", UPDATE_S=2) as device:
            for _ in range(KILLS):
                device.wait_changes(random.randrange(1, 12))
                device.reset()
            device.wait_reported(HEALTHY, ROLLED_BACK)
            device.wait_acknowledged()
            arrived, boots = finish(site, device)
            reports = site.reports(str(device.settings["DEVICE"]), arrived)
            ends.append((device.state, boots, reports))
            last = {HEALTHY: "healthy", ROLLED_BACK: "rolled-back"}[device.state.update]
            assert reports[-1][1] == last, (reports, device.said())
            assert device.state.kept == ("1" if last == "healthy" else "0")
            assert device.state.trial == "-"
    for end in ends:
        print(end)
