"""A built card: its partitions and drivers, also in a machine with a copy of it in a reader; its power button."""

from __future__ import annotations

import lzma
import re
import subprocess
from pathlib import Path

import pytest

from edge.card.countries import KNOWN
from images.emulator import machine
from images.programs import find, run
from tests.images.emulated import BOOT_S, MARKS, Emulated, Shell, begin, decompressed, free_ports
from tests.images.lan import DHCPV6_SERVER_PORT, MAC, MDNS_PORT, Lan
from tests.support.command import run_waypost
from tests.support.processes import wait_until

pytestmark = [*MARKS]

ALIGNED = 4 << 20
IMAGE_ID = "0x67617465"
AAAA, PTR = 28, 12
DUID_LL = b"\x00\x01\x00\x0a\x00\x03\x00\x01" + bytes.fromhex(MAC.replace(":", ""))
"""Client identifier of DHCPv6 by an interface's address (RFC 8415 sections 11.4 and 21.2)."""
UNUSED = "rtlwifi/rtl8723bu_bt.bin"
"""Missing from Debian; rtl8xxxu names it for Bluetooth, which it does not start."""
ONBOARD = "brcmfmac"
"""The Raspberry Pi's own Wi-Fi, which uses few of the files that its driver names."""
DRIVERS = "usr/lib/modules/*/kernel/drivers"
USB_WIFI = {"rtl8xxxu", "rt2800usb", "rt73usb"}
ETHERNET = {"genet", "macb", "r8169", "igb", "igc", "e1000e", "lan743x"}
DISKS = {"nvme", "sd_mod", "uas", "usb-storage"}
MODEMS = {"qmi_wwan", "cdc_mbim", "option", "cdc_ether", "cdc_ncm", "huawei_cdc_ncm", "rndis_host"}
RASPBERRY_PI_5 = {"rp1_pci", "clk-rp1", "pinctrl-rp1", "sdhci-brcmstb", "gpio_keys"}
MODEM_PROGRAMS = ("usr/sbin/usb_modeswitch", "usr/libexec/qmi-proxy", "usr/libexec/mbim-proxy")
"""ModemManager opens no modem without the proxies, which its libraries only recommend."""
UNITS = "/etc/systemd/system"
CHANGED_UNITS = "/run/systemd/system.control"
"""Folder of units that replace those of the system until the next start."""
WEEK_S = 7 * 86_400.0
TIMER_PLACE = "/org/freedesktop/systemd1/unit/waypost_2dtrim_2etimer"
NEXT_TRIM = ("busctl", "get-property", "org.freedesktop.systemd1", TIMER_PLACE, "org.freedesktop.systemd1.Timer",
             "NextElapseUSecMonotonic")  # fmt: skip
"""Command that shows the uptime at which the timer starts the service next, in microseconds."""


@pytest.fixture(scope="module")
def root(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return modules, firmware and programs in slot A of the card."""
    folder = tmp_path_factory.mktemp("card")
    card = decompressed(image, folder)
    slot, tree = folder / "slot", folder / "root"
    skip, end = (begin(card, number) // ALIGNED for number in (2, 3))
    words = (f"if={card}", f"of={slot}", f"bs={ALIGNED}", f"skip={skip}", f"count={end - skip}", "conv=sparse")
    subprocess.run(["dd", *words], check=True, capture_output=True)
    (tree / "usr/lib").mkdir(parents=True)
    for name in ("lib/modules", "lib/firmware", "libexec", "sbin"):
        run("debugfs", "-R", f"rdump /usr/{name} {tree}/usr/{name.rpartition('/')[0]}", slot, log=folder / "log")
    return tree


def list_modules(root: Path, folder: str = "") -> dict[str, Path]:
    """Return the drivers in a folder of the kernel's drivers, by their names."""
    return {path.name.partition(".")[0]: path for path in root.glob(f"{DRIVERS}/{folder}**/*.ko.xz")}


def read_module(path: Path) -> bytes:
    """Return the content of a driver, which is compressed."""
    return lzma.decompress(path.read_bytes())


def disk_id(there: Emulated, shell: Shell, disk: str) -> str:
    return shell.run(there, "sfdisk", "--disk-id", disk).strip()


def test_partitions_are_aligned(image: Path, tmp_path: Path) -> None:
    card = decompressed(image, tmp_path)
    told = subprocess.run([find("sfdisk") or "", "-d", str(card)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"start= *(\d+), size= *(\d+)", told)
    assert len(found) == 4
    assert not [each for pair in found for each in pair if int(each) * 512 % ALIGNED]
    assert f"label-id: {IMAGE_ID}" in told


def test_drivers_have_their_firmware_and_countries_their_rules(root: Path) -> None:
    """Modules for USB Wi-Fi name their firmware; the database has each country of the settings."""
    wireless = {name: read_module(path) for name, path in list_modules(root, "net/wireless/").items()}
    modules = {name: content for name, content in wireless.items() if b"usb:v" in content and name != ONBOARD}
    assert modules.keys() >= USB_WIFI
    for name, content in modules.items():
        named = re.findall(rb"(?<=\0)firmware=([^\0]+)", content)
        lacking = [each.decode() for each in named if not (root / "usr/lib/firmware" / each.decode()).exists()]
        assert not [each for each in lacking if each != UNUSED], name
    database = (root / "usr/lib/firmware/regulatory.db-debian").read_bytes()
    assert database[:8] == b"RGDB\0\0\0\x14"
    countries = set()
    for at in range(8, len(database), 4):
        if database[at + 2 : at + 4] == b"\0\0":
            break
        countries.add(database[at : at + 2].decode())
    assert countries - {"00"} == KNOWN


def test_networks_disks_and_modems_have_their_drivers_and_programs(root: Path) -> None:
    drivers = list_modules(root).keys()
    assert not (ETHERNET | DISKS | MODEMS) - drivers
    assert not [each for each in MODEM_PROGRAMS if not (root / each).exists()]


def test_raspberry_pi_5_has_its_drivers_and_the_settings_of_its_wifi(root: Path) -> None:
    assert not RASPBERRY_PI_5 - list_modules(root).keys()
    assert (root / "usr/lib/firmware/brcm/brcmfmac43455-sdio.raspberrypi,5-model-b.txt").exists()


def test_card_ignores_its_copy_in_a_reader_and_is_found_by_its_name(tmp_path: Path, image: Path) -> None:
    shell, card = Shell(tmp_path), decompressed(image, tmp_path)
    done = run_waypost("image", "configure", str(card), "name=hall", f"sshKeys=@{shell.public}")
    assert done.returncode == 0, done.stderr
    for name in ("own", "copy"):
        (tmp_path / name).mkdir()
    drive, copy = (machine.make_disk(card, tmp_path / name, tmp_path / "log") for name in ("own", "copy"))
    reader = ("-drive", f"file={copy},if=none,id=copy,format=qcow2", "-device", "usb-storage,drive=copy,bus=usb.0")
    with Lan() as lan:
        for turn in ("first", "second"):
            there = Emulated(drive, tmp_path / f"{turn}.console", free_ports(), more=(*reader, *lan.words))
            try:
                wait_until(lambda one=there: shell.answers(one), timeout_s=BOOT_S, what="SSH", every_s=2)  # type: ignore[misc]
                there.wait_for("good")
                own = disk_id(there, shell, "/dev/vda")
                assert own != IMAGE_ID, "its first start gave it an id"
                assert disk_id(there, shell, "/dev/sda") == IMAGE_ID
                for name, number in (("boot", 1), ("root-a", 2), ("root-b", 3), ("data", 4)):
                    assert shell.run(there, "readlink", "-f", f"/dev/waypost/{name}") == f"/dev/vda{number}\n"
                assert shell.run(there, "findmnt", "--noheadings", "--output", "SOURCE", "/data") == "/dev/vda4\n"
                assert "/dev/sda" not in shell.run(there, "findmnt", "--noheadings", "--output", "SOURCE")
                assert "/dev/waypost/root-b" in shell.run(there, "rauc", "status", "--detailed")
                if turn == "first":
                    first_id = own
                    _trim_its_data(there, shell)
                    _look_at_its_network(lan)
                else:
                    there.press_power_button()
                    assert "reboot: Power down" in there.told
            finally:
                there.cut_off()
            given = IMAGE_ID if turn == "first" else own
            assert f"waypost: root {given.removeprefix('0x')}-02 on virtio" in there.told
        assert own == first_id


def _trim_its_data(there: Emulated, shell: Shell) -> None:
    """Let the timer start its service on a card that takes discards, a second after itself and not in an hour.

    Without a mounted /data it skips the service, and tries again a week later.
    """
    assert "waypost-trim.timer" in shell.run(there, "systemctl", "list-timers", "--no-legend")
    assert "ConditionResult=no" in _started_by_timer(there, shell, "/nothing")
    shown = _started_by_timer(there, shell, "/data")
    assert set(shown.split()) == {"ConditionResult=yes", "Result=success", "ExecMainStatus=0"}
    logged = ("journalctl", "--unit=waypost-trim.service", "--output=cat")
    wait_until(lambda: "trimmed" in shell.run(there, *logged), timeout_s=BOOT_S, what="its line in the log", every_s=1)


def _started_by_timer(there: Emulated, shell: Shell, mount_point: str) -> str:
    """Return the service's state after its timer has started it, or skipped it if the path is not a mount point.

    The timer waits for a week then.
    """
    shell.run(there, "systemctl", "stop", "waypost-trim.timer")
    for kind, change in (("service", f"s,=/data$,={mount_point},"), ("timer", "s,^OnBootSec=1h,OnActiveSec=1s,")):
        unit = f"waypost-trim.{kind}"
        shell.run(there, f"mkdir -p {CHANGED_UNITS}; sed '{change}' {UNITS}/{unit} > {CHANGED_UNITS}/{unit}")
    began_us = float(shell.run(there, "cat", "/proc/uptime").split()[0]) * 1e6
    shell.run(there, "systemctl", "daemon-reload")
    shell.run(there, "systemctl", "start", "waypost-trim.timer")

    def waits() -> bool:
        answer = shell.run(there, *NEXT_TRIM)
        return WEEK_S <= (int(answer.split()[1]) - began_us) / 1e6 < WEEK_S + BOOT_S

    wait_until(waits, timeout_s=BOOT_S, what="the timer waits for a week", every_s=1)
    names = "ConditionResult,Result,ExecMainStatus"
    return shell.run(there, "systemctl", "show", f"--property={names}", "waypost-trim.service")


def _look_at_its_network(lan: Lan) -> None:
    """Check that it answers for its name and services, and that a DHCPv6 server recognises its interface."""
    answered, identified = set[str](), list[bool]()
    asked = {"hall.local": AAAA, "_mqtt._tcp.local": PTR, "_ssh._tcp.local": PTR}

    def seen() -> bool:
        lan.be_a_router()
        for name, kind in asked.items():
            lan.ask(name, kind)
        for each in lan.datagrams():
            if each.port == MDNS_PORT and each.content[2] & 0x80:
                labels = {name: name.split(".")[0].encode() for name in asked}
                answered.update(name for name, label in labels.items() if label in each.content[12:40])
            elif each.port == DHCPV6_SERVER_PORT:
                identified.append(DUID_LL in each.content)
        return answered == set(asked) and bool(identified)

    wait_until(seen, timeout_s=300, what="answers on the cable")
    assert all(identified)
