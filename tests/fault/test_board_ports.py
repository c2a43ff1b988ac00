"""Ports of the portable core to boards, as processes of this machine against a real gateway.

The SDK of a board is played by OpenSSL and files (`tests/fault/firmware`). No board runs here: what a port asks of its
SDK is tested, and not the SDK.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.firmware.board_ports import ESP_IDF, PORTS, BoardPort, board_firmware
from tests.fault.firmware.checker import judge_example
from tests.fault.firmware.programs import EXAMPLES, NEEDS_C
from tests.fault.firmware.site import CERTIFIED
from tests.fault.firmware.update_site import UpdateSite, UpdatingDevice
from tests.support.artefacts import OTHER_KEY
from tests.support.certificates import Authority
from tests.support.processes import wait_until

pytestmark = [NEEDS_C, pytest.mark.timeout(300), pytest.mark.slow]

HEALTHY, ROLLED_BACK = 5, 6
"""States in a record of the update."""
each_port = pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpdateSite]:
    with UpdateSite(tmp_path_factory.mktemp("site")) as running:
        yield running


def device_of(site: UpdateSite, port: BoardPort, name: str, **settings: object) -> UpdatingDevice:
    """Return a device with the first version of a port."""
    ports = {"HTTP_PORT": site.links["https"].port, "UPDATE_URL": ""}
    return UpdatingDevice(site, f"{port.name}-{name}", board_firmware(port, "1.0.0", 1), **ports, **settings)


def newest_reading(device: UpdatingDevice) -> bytes:
    """Return the content of the last stored reading."""
    return max(device.spool.slots.values(), key=lambda slot: slot.number).content


@each_port
def test_port_loses_nothing_over_kills_and_resets(site: UpdateSite, port: BoardPort) -> None:
    with device_of(site, port, "kills") as device:
        device.wait_acknowledged()
        site.kill_gateway()
        device.wait_acknowledged()
        device.reset()
        device.wait_acknowledged()
        site.unplug(True)
        device.wait_stored(5)
        device.reset()
        device.wait_stored(5)
        site.unplug(False)
        device.wait_acknowledged(20)
        name = str(device.settings["DEVICE"])
        site.command(name, b'{"interval_ms": 20, "id": "faster"}')
        site.command(name, b'{"stop": true}')
        assert device.ended() == 0, device.said()
    arrived = site.collect()
    verdict = judge_example([bytes(each.payload) for each in arrived[f"plant/{name}"]], device.spool.next)
    assert verdict.right, (verdict, device.said())
    assert verdict.boots == 3
    status = [each.payload for each in arrived[f"status/{name}"]]
    assert (status[0], status[-1]) == (b"online", b"offline")
    assert len(arrived[f"command-response/{name}"]) == 2


@each_port
def test_port_takes_a_certificate_in_place_of_a_password(site: UpdateSite, port: BoardPort) -> None:
    issued = site.authority.issue(CERTIFIED, file=port.name)
    own = {"CERTIFICATE": issued.certificate, "KEY": issued.key, "PASSWORD": "", "DEVICE": CERTIFIED}
    with device_of(site, port, "certified", **own) as device:
        device.wait_acknowledged()


@each_port
def test_port_trusts_only_the_pinned_authority(site: UpdateSite, tmp_path: Path, port: BoardPort) -> None:
    other = Authority(tmp_path / "other", "another authority")
    with device_of(site, port, "stranger", CA=other.certificate) as device:
        link = site.links["mqtts"]
        seen = link.connections
        wait_until(lambda: link.connections >= seen + 3, timeout_s=60, what="it tries again")
        assert device.spool.acknowledged == 0
        assert "certificate" in device.said()


@each_port
def test_port_updates_itself_and_goes_back(site: UpdateSite, port: BoardPort) -> None:
    site.offer("1.1.0", board_firmware(port, "1.1.0", 2), sequence=2, key=OTHER_KEY)
    with device_of(site, port, "update") as device:
        device.wait_reported(HEALTHY)
        device.wait_acknowledged()
        assert device.state.kept == "1"
        site.offer("1.2.0", b"#!/bin/sh\nexit 3\n", sequence=3, key=OTHER_KEY)
        device.wait_reported(ROLLED_BACK)
        device.wait_until(lambda: b'"at":' in newest_reading(device), "the gateway's answers give the time")
        name = str(device.settings["DEVICE"])
        site.command(name, b'{"stop": true}')
        assert device.ended() == 0, device.said()
    arrived = site.collect()
    assert judge_example([bytes(each.payload) for each in arrived[f"plant/{name}"]], device.spool.next).right
    reports = site.reports(name, arrived)
    states = [state for version, state, _ in reports if version == "1.1.0"]
    assert states == ["downloading", "verified", "installed", "healthy"]
    assert ("1.2.0", "rolled-back", "restarted") in reports


@each_port
def test_port_refuses_an_image_of_another_maker(site: UpdateSite, port: BoardPort) -> None:
    site.offer("1.1.0", board_firmware(port, "1.1.0", 2), sequence=2)
    with device_of(site, port, "refuses") as device:
        device.wait_reported(ROLLED_BACK)
        arrived = site.collect()
    assert site.reports(str(device.settings["DEVICE"]), arrived)[-1] == ("1.1.0", "rolled-back", "unknown-key")


ARDUINO_STUBS = {
    "WiFi.h": """#include <cstddef>
#include <cstdint>
#include <cstdio>
#define WIFI_STA 1
struct WiFiClass {
  void mode(int);
  void setAutoReconnect(bool);
  void begin(const char *, const char *);
  int8_t RSSI();
};
extern WiFiClass WiFi;
struct SerialClass { void begin(unsigned long); void println(const char *); };
extern SerialClass Serial;
struct EspClass { uint32_t getFreeHeap(); void restart(); };
extern EspClass ESP;
void delay(uint32_t);
""",
    "esp_task_wdt.h": """#include <cstdint>
typedef struct { uint32_t timeout_ms; uint32_t idle_core_mask; bool trigger_panic; } esp_task_wdt_config_t;
extern "C" int esp_task_wdt_reconfigure(const esp_task_wdt_config_t *);
extern "C" int esp_task_wdt_add(void *);
extern "C" int esp_task_wdt_reset(void);
""",
}
"""Declarations of arduino-esp32 3 that the sketch uses."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_arduino_folder_has_everything_and_compiles(tmp_path: Path) -> None:
    subprocess.run([str(EXAMPLES / "arduino_esp32" / "make_sketch.sh"), str(tmp_path)], check=True, capture_output=True)
    sketch = tmp_path / "waypost_device"
    (sketch / "config.h").write_text((sketch / "config.h").read_text() + "// mine\n")
    subprocess.run([str(EXAMPLES / "arduino_esp32" / "make_sketch.sh"), str(tmp_path)], check=True, capture_output=True)
    assert "// mine" in (sketch / "config.h").read_text()
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name, text in ARDUINO_STUBS.items():
        (stubs / name).write_text(text)
    for name in ESP_IDF.headers:
        (stubs / name).write_text(f'#include "{ESP_IDF.declarations}"\n')
    (stubs / "psa").mkdir()
    (stubs / "psa" / "crypto.h").write_text('#include "psa_api.h"\n')
    here = Path(__file__).with_name("firmware")
    check = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{stubs}", f"-I{here}"]
    for source in sketch.glob("*.c"):
        subprocess.run(["gcc", *check, str(source)], check=True)
    subprocess.run(["g++", "-std=c++17", *check, "-x", "c++", str(sketch / "waypost_device.ino")], check=True)
