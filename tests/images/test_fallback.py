"""Networks of a gateway take over from each other: systemd-networkd with the files of an image, in a network namespace.

Each network is a pair of virtual cards with a DHCP server behind it. The modem is a stick that looks like a network
card; one that NetworkManager dials is not part of the test.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from edge.appliance.first_boot import rendering
from edge.card.resource import read
from edge.card.text import document, text_of
from images.rootfs.building import OVERLAY
from tests.support.processes import wait_until

NETWORKD: Final = Path("/lib/systemd/systemd-networkd")
pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(not NETWORKD.exists(), reason="systemd-networkd is not installed"),
    *(pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is missing") for name in ("unshare", "ip")),
]

CARDS: Final = ("eth0", "wlan0", "usb0")
"""Cable, Wi-Fi and modem, in the order in which they are used."""
FILES: Final = ("15-modem", "20-wired", "30-wireless")
CABLE_FILE: Final = Path(rendering.CABLE).name
FIXED: Final = "192.168.1.20/24"
NO_HARDWARE: Final = "bridge"
"""Kind and driver of a card without hardware."""
CHANGE_S: Final = 120.0
"""Limit of a change on a busy machine; 1 to 3 s were seen."""
SETUP: Final = """
mount --make-rprivate /
mount -t sysfs -o ro sysfs /sys  # as in a container: networkd does not wait for udev
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases
chown -R systemd-network /run/systemd/netif
cp -r {folder} /run/systemd/network
ip link set lo up
for card in {cards}; do ip link add $card type veth peer name far-$card; done
exec {networkd}
"""


class NetworkNamespace:
    """systemd-networkd and its cards in namespaces of their own."""

    def __init__(self, folder: Path, log: Path) -> None:
        """`folder`: files of networks."""
        words = {"folder": shlex.quote(str(folder)), "cards": " ".join(CARDS), "networkd": NETWORKD}
        with log.open("wb") as output:
            command = ["unshare", "--net", "--mount", "sh", "-e", "-c", SETUP.format(**words)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._log = log

    def run(self, *words: str) -> str:
        """Run a command in the namespaces; return its output."""
        command = ["nsenter", f"--target={self._process.pid}", "--net", "--mount", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def used(self) -> list[str]:
        """Return the cards of the default routes, the one that is used first."""
        routes = json.loads(self.run("ip", "-json", "-4", "route", "show", "default") or "[]")
        return [each["dev"] for each in sorted(routes, key=lambda each: int(each.get("metric", 0)))]

    def wait_until_used(self, *cards: str) -> None:
        """Wait until exactly these cards have a default route, in this order."""

        def there() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return self.used() == list(cards)

        wait_until(there, timeout_s=CHANGE_S, what=f"routes by {cards}", every_s=0.2)

    def wait_until_file(self, card: str, name: str) -> None:
        """Wait until networkd has taken this file for a card."""
        state = f"/run/systemd/netif/links/$(cat /sys/class/net/{card}/ifindex)"

        def taken() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            lines = self.run("sh", "-c", f"cat {state} || true").splitlines()
            return f"NETWORK_FILE=/run/systemd/network/{name}" in lines

        wait_until(taken, timeout_s=CHANGE_S, what=f"{name} for {card}", every_s=0.2)

    def addresses(self, card: str) -> list[str]:
        """Return the IPv4 addresses of a card, with their prefix."""
        [link] = json.loads(self.run("ip", "-json", "-4", "address", "show", "dev", card)) or [{}]
        return [f"{each['local']}/{each['prefixlen']}" for each in link.get("addr_info", ())]

    def end(self) -> None:
        self._process.kill()
        self._process.wait(60)


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[NetworkNamespace]:
    folder = tmp_path / "network"
    folder.mkdir()
    for name in FILES:
        text = (OVERLAY / f"etc/systemd/network/{name}.network").read_text()
        if name == "15-modem":  # all cards have the same driver here
            text = "\n".join(line for line in text.splitlines() if not line.startswith(("Name=", "Driver=")))
            text = text.replace("[Match]", "[Match]\nName=usb*\nDriver=veth")
        (folder / f"{name}.network").write_text(text)
    for number, card in enumerate(CARDS):
        (folder / f"05-{card}.network").write_text(
            f"[Match]\nName=far-{card}\n[Network]\nAddress=10.0.{number}.1/24\nDHCPServer=yes\n"
            "[DHCPServer]\nEmitRouter=yes\nEmitDNS=no\n"
        )
    made = NetworkNamespace(folder, tmp_path / "log")
    try:
        yield made
    finally:
        made.end()


def test_next_network_takes_over_and_hands_back(namespace: NetworkNamespace) -> None:
    cable, wifi, modem = CARDS
    namespace.wait_until_used(cable, wifi, modem)
    for change, cards in (
        (f"far-{cable} down", (wifi, modem)),
        (f"far-{wifi} down", (modem,)),
        (f"far-{wifi} up", (wifi, modem)),
        (f"far-{cable} up", (cable, wifi, modem)),
    ):
        namespace.run("ip", "link", "set", *change.split())
        namespace.wait_until_used(*cards)


def test_fixed_address_is_that_of_the_cable_alone(tmp_path: Path) -> None:
    """A `!` before a list of drivers excludes all of them; the last of the list is that of a card without hardware."""
    folder = tmp_path / "network"
    folder.mkdir()
    card = read(text_of(document("hall", {"cable": {"address": FIXED}})).encode(), "waypost.yaml")
    assert card is not None
    texts = {f"{name}.network": (OVERLAY / f"etc/systemd/network/{name}.network").read_text() for name in FILES}
    texts[CABLE_FILE] = rendering.files(card)[rendering.CABLE].text
    for name, text in texts.items():
        (folder / name).write_text(text.replace(rendering.MODEM_DRIVERS, f"{rendering.MODEM_DRIVERS} {NO_HARDWARE}"))
    made = NetworkNamespace(folder, tmp_path / "log")
    try:
        made.wait_until_file("eth0", CABLE_FILE)
        made.run("ip", "link", "add", "usb1", "type", NO_HARDWARE)
        made.wait_until_file("usb1", "15-modem.network")
        made.run("ip", "link", "set", "far-eth0", "up")
        wait_until(lambda: FIXED in made.addresses("eth0"), timeout_s=CHANGE_S, what="the fixed address", every_s=0.2)
        assert FIXED not in made.addresses("usb1")
    finally:
        made.end()
