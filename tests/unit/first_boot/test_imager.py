"""Files of Raspberry Pi Imager become the settings of a gateway, and nothing in them is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.enrolment import EnrolmentToken
from edge.appliance.first_boot.imager_files import take_over
from edge.appliance.first_boot.places import CardPaths
from edge.appliance.first_boot.settings import apply_settings
from edge.card.imager import DEPTH_MAX, merge_into, read_imager
from edge.card.resource import FILE_BYTES_MAX, read
from edge.card.text import document, text_of
from tests.support.power_cut import cut
from tests.support.simulated_kill import SimulatedKill

SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3cQ2p2d0pXyJfYf0W2l1X9c1u2kq8YwJ3gq0Y2m7aB ann"
KEY = "0123456789abcdef" * 4
USER_DATA = f"""\
#cloud-config
manage_resolv_conf: false

hostname: Hall-1
manage_etc_hosts: true
packages:
- avahi-daemon
apt:
  preserve_sources_list: true
  conf: |
    Acquire {{
      Check-Date "false";
    }};
timezone: Europe/Berlin
keyboard:
  model: pc105
  layout: "de"
user:
  name: pi
  shell: /bin/bash
  lock_passwd: false
  passwd: "$y$hidden-hash"
  ssh_authorized_keys:
    - "{SSH}"
  sudo: null
ssh_pwauth: false
runcmd:
  - [ systemctl, enable, --now, ssh ]
"""
"""As `generateCloudInitUserData` of Imager 2.0.11 writes it (src/customization_generator.cpp)."""
NETWORK_CONFIG = f"""\
network:
  version: 2
  ethernets:
    eth0:
      dhcp4: true
      dhcp6: true
      optional: true
  wifis:
    wlan0:
      dhcp4: true
      regulatory-domain: "DE"
      access-points:
        "pl\\xc3\\xa4nt \\"1\\"":
          password: "{KEY}"
      optional: true
"""
HUB = {"url": "amqps://hub.example", "token": EnrolmentToken.make(bytes(32)).text}
INSTANCE_DATA = "instance-id: rpi-imager-1764417600000\n"
__all__ = ["cut"]


def card(root: Path, user: str = USER_DATA, network: str = NETWORK_CONFIG, own: str | None = None) -> CardPaths:
    """Return the places of a card as Imager leaves it."""
    places = CardPaths(root)
    places.card.mkdir(parents=True)
    places.file.write_text(text_of(None) if own is None else own)
    for name, text in (("user-data", user), ("network-config", network), ("meta-data", INSTANCE_DATA)):
        if text:
            (places.card / name).write_text(text)
    (places.card / "cmdline.txt").write_text(" ds=nocloud;i=rpi-imager-1 cfg80211.ieee80211_regdom=DE")
    return places


def test_settings_of_imager_are_applied_and_its_files_removed(tmp_path: Path) -> None:
    places = card(tmp_path)
    found = apply_settings(places)
    assert found.card is not None
    assert found.refusal is None
    assert (found.card.name, found.card.spec.ssh_keys) == ("hall-1", (SSH,))
    wifi = found.card.spec.wifi
    assert wifi is not None
    assert (wifi.ssid, wifi.password, wifi.country) == ('plänt "1"', KEY, "DE")
    assert found.ignored == ("time zone", "keyboard", "password of the user")
    assert sorted(path.name for path in places.card.iterdir()) == ["cmdline.txt", "waypost.applied.yaml"]
    assert KEY not in places.applied.read_text()
    again = apply_settings(places)
    assert (again.card, again.new) == (found.card, False)


def test_own_file_has_precedence(tmp_path: Path) -> None:
    spec = {"hub": HUB, "wifi": {"ssid": "own", "country": "FR"}}
    found = apply_settings(card(tmp_path, own=text_of(document("north", spec))))
    assert found.card is not None
    assert (found.card.name, found.card.spec.ssh_keys) == ("north", (SSH,))
    assert found.card.spec.hub is not None
    assert found.card.spec.wifi is not None
    assert found.card.spec.wifi.ssid == "own"


def test_files_stay_until_the_own_file_can_be_read(tmp_path: Path) -> None:
    places = card(tmp_path, own="apiVersion: [")
    assert "not YAML" in (apply_settings(places).trouble or "")
    assert (places.card / "user-data").exists()
    places.file.write_text(text_of(None))
    found = apply_settings(places)
    assert found.card is not None
    assert found.card.name == "hall-1"


@pytest.mark.parametrize(
    ("user", "network", "said"),
    [
        ("{", "", "user-data: not YAML"),
        ("", "\0", "network-config: not YAML"),
        ("a: " + "[" * 20_000, "", "user-data:1: lists and mappings are nested"),
        ("a: " + "[" * DEPTH_MAX + "]" * DEPTH_MAX, "", "user-data:1: lists and mappings are nested"),
        ("x" * (FILE_BYTES_MAX + 1), "", "user-data: larger than"),
        ("runcmd:\n- &a [x, x]\n- &b [*a, *a]\n- [*b, *b]\n", "", "user-data: it has aliases"),
        ("hostname: a_b\n", "", '"a_b" is not'),
        ("hostname: hall\nuser: {ssh_authorized_keys: [x]}\n", "", "is not a public key"),
        ("", NETWORK_CONFIG.replace('"DE"', '"ZZ"'), "not a country with rules"),
        ("", NETWORK_CONFIG.replace(KEY, "short"), "8 to 63 printable"),
    ],
)
def test_wrong_files_are_reported_and_change_nothing(tmp_path: Path, user: str, network: str, said: str) -> None:
    places = card(tmp_path, user, network)
    found = apply_settings(places)
    assert found.card is None
    assert said in (found.trouble or "")
    assert said in places.refused.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b\n", "hostname: [a]\n", "hostname: !!python/object/apply:os.system [id]\n", "users: default\n",
"user: ~\n", "wifis: {wlan0: x}\n",
        "runcmd: [[touch, /tmp/x]]\nwrite_files: [{path: /etc/x, content: x}]\nbootcmd: [reboot]\n",
    ],
)  # fmt: skip
def test_values_without_a_meaning_here_have_no_effect(text: str) -> None:
    found = read_imager(text.encode(), text.encode(), b"")
    assert (found.name, dict(found.spec)) == (None, {})


def test_own_file_is_applied_next_to_a_broken_one(tmp_path: Path) -> None:
    """The report names the file that is wrong."""
    places = card(tmp_path, user="hostname: [unclosed", own=text_of(document("hall", {"hub": HUB})))
    for _ in range(2):
        found = apply_settings(places)
        assert found.card is not None
        assert found.card.name == "hall"
        assert "user-data: not YAML" in (found.trouble or "")
        assert found.refusal is not None
        assert "delete user-data" in found.refusal.next_step
        assert "user-data were not applied" in places.refused.read_text()
        assert not places.file.exists(), "it holds a token"
    (places.card / "user-data").unlink()
    (places.card / "network-config").unlink()
    assert apply_settings(places).refusal is None
    assert not places.refused.exists()


@pytest.mark.parametrize("wifi", [None, {"ssid": "own", "country": "FR"}])
def test_corrected_file_of_imager_leaves_the_applied_settings(tmp_path: Path, wifi: dict[str, str] | None) -> None:
    """Also when the own file has left the card; a setting that it lacked is taken over."""
    spec = {"hub": HUB, "cable": {"address": "192.168.1.20/24"}, **({} if wifi is None else {"wifi": wifi})}
    keys = {} if wifi is None else {"sshKeys": [SSH]}
    places = card(tmp_path, user="hostname: [unclosed", own=text_of(document("hall", {**spec, **keys})))
    before = apply_settings(places).card
    assert before is not None
    (places.card / "user-data").write_text(USER_DATA)
    found = apply_settings(places)
    assert (found.refusal, found.new) == (None, wifi is None)
    assert any(each.startswith("wifi (") for each in found.ignored) is (wifi is not None)
    assert found.card is not None
    assert (found.card.name, found.card.spec.hub, found.card.spec.cable) == ("hall", before.spec.hub, before.spec.cable)
    assert found.card.spec.wifi is not None
    assert found.card.spec.wifi.ssid == ("own" if wifi else 'plänt "1"')
    assert not (places.card / "user-data").exists()
    assert not places.file.exists()
    assert apply_settings(places).new is False


def test_older_imager_is_read_too() -> None:
    users = f"hostname: 1234\nusers:\n- name: pi\n  ssh_authorized_keys:\n  - {SSH}\n"
    point = "    access-points:\n      plänt:\n        hidden: true\n"
    networks = f"version: 2\nwifis:\n  renderer: networkd\n  wlan0:\n{point}"
    found = read_imager(users.encode(), networks.encode(), b"quiet cfg80211.ieee80211_regdom=gb\n")
    made = read(text_of(merge_into(None, found)).encode(), "x")
    assert made is not None
    assert (made.name, made.spec.ssh_keys) == ("1234", (SSH,))
    assert made.spec.wifi is not None
    assert (made.spec.wifi.ssid, made.spec.wifi.password, made.spec.wifi.country) == ("plänt", None, "GB")


def test_network_without_a_country_is_an_error(tmp_path: Path) -> None:
    places = card(tmp_path, network=NETWORK_CONFIG.replace('      regulatory-domain: "DE"\n', ""))
    (places.card / "cmdline.txt").unlink()
    assert '"country" is missing' in (apply_settings(places).trouble or "")


def test_script_of_imager_is_named_and_not_run(tmp_path: Path) -> None:
    places = card(tmp_path, user="", network="")
    (places.card / "firstrun.sh").write_text("touch /tmp/x\n")
    found = apply_settings(places)
    assert found.card is None
    assert "scripts are not run" in found.ignored[0]


def test_card_without_files_of_imager_is_left_alone(tmp_path: Path) -> None:
    places = card(tmp_path, user="", network="")
    before = places.file.read_bytes()
    assert take_over(places) == ()
    assert places.file.read_bytes() == before


def test_power_cut_before_any_file_change_has_the_same_result(tmp_path: Path, cut: Callable[[int], None]) -> None:
    own = text_of(document("hall", {"hub": HUB}))
    cuts = 0
    for count in range(1, 1000):
        places = card(tmp_path / str(count), own=own)
        cut(count)
        try:
            apply_settings(places)
        except SimulatedKill:
            cuts += 1
        else:
            break
        finally:
            cut(1 << 30)
        found = apply_settings(places)
        assert found.card is not None
        assert (found.card.name, found.card.spec.ssh_keys, found.trouble) == ("hall", (SSH,), None), f"change {count}"
        assert found.card.spec.hub is not None
        assert found.card.spec.wifi is not None
        assert not (places.card / "network-config").exists()
    assert cuts > 20
