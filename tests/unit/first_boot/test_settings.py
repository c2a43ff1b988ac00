"""The file on a card is applied once, wherever the power is cut, and its settings are where the system looks for
them."""

from __future__ import annotations

import configparser
import errno
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.enrolment import EnrolmentToken
from bridge.proxy import Proxy
from bridge.resources.errors import ConfigurationRejected
from edge.appliance.first_boot import rendering
from edge.appliance.first_boot.attesting import report
from edge.appliance.first_boot.journal import FirstBootJournal, FirstBootState, refusal_of, state_of
from edge.appliance.first_boot.places import CardPaths
from edge.appliance.first_boot.settings import AppliedSettings, apply_settings
from edge.card.resource import plain_of, read
from edge.card.text import document, text_of
from images.rootfs.building import OVERLAY
from tests.support.power_cut import cut
from tests.support.simulated_kill import SimulatedKill

__all__ = ["cut"]

TOKEN = EnrolmentToken.make(bytes(32)).text
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nhidden00\n-----END PRIVATE KEY-----\n"
LOGIN = {
    "user": "gateway7@plant", "password": "hidden login", "certificate": CERTIFICATE, "key": KEY,
    "authority": CERTIFICATE, "server": "radius.example",
}  # fmt: skip
SPEC = {
    "hostname": "hall-1",
    "cable": {"address": "192.168.1.20/24", "gateway": "192.168.1.1", "dns": ["9.9.9.9"]},
    "wifi": {"ssid": 'a"b', "password": "hidden-wifi", "country": "DE", "login": LOGIN},
    "lte": {"apn": "internet", "user": "u", "password": "hidden\\lte", "pin": "0123"},
    "sshKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3cQ2p2d0pXyJfYf0W2l1X9c1u2kq8YwJ3gq0Y2m7aB ann"],
    "hub": {
        "url": "amqps://hub.example",
        "failover": ["wss://hub.example"],
        "proxy": {"host": "proxy.example", "username": "plant", "password": "hidden-proxy"},
        "token": TOKEN,
        "forward": ["plant/#"],
    },
    "timeServers": ["192.168.1.1", "time.example"],
    "data": {"keepFree": "1Gi"},
}


WPA_KEY_MGMT_PSK, WPA_KEY_MGMT_PSK_SHA256, WPA_KEY_MGMT_SAE = 1 << 1, 1 << 8, 1 << 10
WPA_KEY_MGMT_IEEE8021X, WPA_KEY_MGMT_IEEE8021X_SHA256 = 1 << 0, 1 << 7
"""Constants of wpa_supplicant (src/common/defs.h)."""


def card(root: Path, text: str | None = None) -> CardPaths:
    places = CardPaths(root)
    places.card.mkdir(parents=True, exist_ok=True)
    places.file.write_text(text_of(document("hall", SPEC)) if text is None else text)
    return places


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class TestApplying:
    def test_settings_are_written_to_their_files(self, tmp_path: Path) -> None:
        places = card(tmp_path)
        found = apply_settings(places)
        assert found.card is not None
        assert (found.card.name, found.new, found.trouble) == ("hall", True, None)
        made = tree(tmp_path)
        assert "Address=192.168.1.20/24\nDNS=9.9.9.9\n" in made[rendering.CABLE].decode()
        assert "[Route]\nGateway=192.168.1.1\nMetric=100\n" in made[rendering.CABLE].decode()
        assert "MulticastDNS=yes" in made[rendering.CABLE].decode()
        assert "Type=_ssh._tcp\nPort=22\n" in made[rendering.SSH].decode(), "found by NAME.local"
        assert made[rendering.TIME] == b"[Time]\nNTP=192.168.1.1 time.example\n"
        assert "ssid=612262" in made[rendering.WIFI].decode()
        assert "password=hidden\\\\lte\npin=0123" in made[rendering.LTE].decode()
        assert made["run/waypost-settings/hostname"] == b"hall-1\n"
        assert made["data/ssh/authorized_keys"].startswith(b"ssh-ed25519 ")
        wanted = FirstBootJournal(places.data).wanted()
        assert wanted is not None
        assert (wanted.name, wanted.token, wanted.keep_free) == ("hall", TOKEN, 1 << 30)
        assert wanted.urls == ("amqps://hub.example", "wss://hub.example")
        assert wanted.proxy == Proxy(host="proxy.example", username="plant", password="hidden-proxy")
        assert "hidden-proxy" not in repr(wanted)
        assert made[rendering.WIFI_KEY].decode() == KEY
        secret = [rendering.WIFI, rendering.WIFI_KEY, rendering.LTE]
        secret += ["data/settings/waypost.yaml", "var/lib/waypost/first-boot/wanted.json"]
        assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in secret} == dict.fromkeys(secret, 0o600)

    def test_name_that_looks_like_a_time_is_unchanged_in_the_remaining_copy(self, tmp_path: Path) -> None:
        name = "2001-12-14 21:59:43.10"
        places = card(tmp_path, text_of(document("hall", SPEC)).replace('ssid: a"b', f"ssid: {name}"))
        apply_settings(places)
        assert plain_of(places.applied.read_bytes(), "copy")["spec"]["wifi"]["ssid"] == name

    def test_secrets_do_not_stay_on_the_first_partition(self, tmp_path: Path) -> None:
        places = card(tmp_path)
        apply_settings(places)
        assert [path.name for path in places.card.iterdir()] == ["waypost.applied.yaml"]
        applied = places.applied.read_text()
        assert not [each for each in (TOKEN, "hidden-wifi", "hidden", "0123") if each in applied]
        assert "hub.example" in applied

    def test_settings_are_applied_once(self, tmp_path: Path) -> None:
        places = card(tmp_path)
        apply_settings(places)
        for name in rendering.ALL:  # they are in memory: a start finds none of them
            (tmp_path / name).unlink()
        before = tree(tmp_path)
        again = apply_settings(places)
        assert not again.new
        assert tree(tmp_path).keys() == before.keys() | set(rendering.ALL)
        card(tmp_path, text_of(document("hall", {"hostname": "other"})))
        changed = apply_settings(places)
        assert changed.card is not None
        assert (changed.new, changed.card.hostname) == (True, "other")
        assert not set(rendering.ALL) & tree(tmp_path).keys(), "what nobody asks for any more is gone"

    def test_symbolic_link_of_the_gateway_user_is_not_followed(self, tmp_path: Path) -> None:
        """The program would change the owner of the target or overwrite it, such as root's keys."""
        places = card(tmp_path)
        places.data.mkdir(parents=True)
        roots = places.ssh_keys.parent
        roots.mkdir(parents=True)
        (places.data / "first-boot").symlink_to(roots)
        with pytest.raises(NotADirectoryError):
            apply_settings(places)
        assert [path.name for path in roots.iterdir()] == ["authorized_keys"]

    def test_settings_applied_by_an_older_program_remain(self, tmp_path: Path) -> None:
        """An update keeps a filter that new files may not have; otherwise the address and the logins would go with
        it."""
        hub = {**SPEC["hub"], "forward": ["plant/*"]}  # type: ignore[dict-item]
        text = text_of(document("hall", {**SPEC, "hub": hub, "timeServers": ["10.0.0.1;10.0.0.2"]}))
        places = card(tmp_path, text)
        refused = apply_settings(places)
        assert refused.card is None
        assert "wildcards are + and #" in (refused.trouble or "")
        assert "is not a time server" in places.refused.read_text()
        places.file.unlink()
        places.kept.parent.mkdir(parents=True, exist_ok=True)
        places.kept.write_text(text)
        found = apply_settings(places)
        assert found.card is not None
        assert (found.card.hostname, found.new, found.trouble) == ("hall-1", False, None)
        assert (tmp_path / rendering.CABLE).exists()

    def test_empty_file_changes_nothing(self, tmp_path: Path) -> None:
        for text in (text_of(None), "", "\n\n"):
            assert apply_settings(card(tmp_path, text)) == AppliedSettings(None, False, None)

    def test_unreadable_first_partition_keeps_the_previous_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        places = card(tmp_path)
        places.card.joinpath("boot.scr").touch()
        apply_settings(places)
        for name in rendering.ALL:
            (tmp_path / name).unlink()
        places.card.rename(places.card.with_name("away"))
        places.card.mkdir()  # mount point of the card
        found = apply_settings(places)
        assert found.card is not None
        assert (found.card.name, found.new, found.unread) == ("hall", False, "it is not mounted")
        assert set(rendering.ALL) <= tree(tmp_path).keys()
        places.kept.unlink()
        assert apply_settings(places) == AppliedSettings(None, False, None, "it is not mounted")
        monkeypatch.setattr(Path, "iterdir", torn)
        assert apply_settings(places).unread == "Input/output error"

    @pytest.mark.parametrize(
        "text", ["{", "kind: Card", "\0" * 100, "apiVersion: waypost/v1\nkind: Hub\n", "é" * 40_000]
    )
    def test_errors_are_written_to_the_card_and_previous_settings_remain(self, tmp_path: Path, text: str) -> None:
        places = card(tmp_path)
        apply_settings(places)
        found = apply_settings(card(tmp_path, text))
        assert found.card is not None
        assert found.card.name == "hall"
        assert found.trouble is not None
        assert found.trouble in places.refused.read_text()
        assert places.file.read_text() == text
        refusal = refusal_of(places.data)
        assert refusal == found.refusal
        assert refusal is not None
        assert found.trouble in refusal.why
        assert found.trouble in report(places, "hall", FirstBootState(done_at="now"), refusal)
        assert (tmp_path / "run/waypost/light").read_text() == "waiting\n"
        assert apply_settings(card(tmp_path)).trouble is None
        assert not places.refused.exists()
        assert refusal_of(places.data) is None


def torn(_: Path) -> Iterator[Path]:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_power_cut_before_any_file_change_has_the_same_result(tmp_path: Path, cut: Callable[[int], None]) -> None:
    whole = card(tmp_path / "whole")
    apply_settings(whole)
    wanted = tree(whole.root)
    cuts = 0
    for count in range(1, 1000):
        places = card(tmp_path / str(count))
        cut(count)
        try:
            apply_settings(places)
        except SimulatedKill:
            cuts += 1
        else:
            break
        finally:
            cut(1 << 30)
        for name in rendering.ALL:
            (places.root / name).unlink(missing_ok=True)
        assert apply_settings(places).trouble is None
        made = {name: content for name, content in tree(places.root).items() if not name.endswith(".new")}
        assert made == wanted, f"before change {count}"
    assert cuts > 20


def test_truncated_file_is_replaced_by_the_complete_one(tmp_path: Path, cut: Callable[[int], None]) -> None:
    """The card was pulled during the write: the file is refused, or has fewer settings."""
    whole = card(tmp_path / "whole")
    apply_settings(whole)
    wanted, text = tree(whole.root), whole.kept.read_text()
    refused = 0
    for length in range(1, len(text), 37):
        places = card(tmp_path / str(length), text[:length])
        found = apply_settings(places)
        refused += found.trouble is not None
        assert places.refused.exists() == (found.trouble is not None)
        assert found.card is None or found.card.spec.hub is None or found.card.spec.hub.token == TOKEN
        places.file.write_text(text)
        assert apply_settings(places).trouble is None
        assert tree(places.root) == wanted, f"after its first {length} characters"
    assert refused > 5


def test_unreadable_state_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "first-boot").mkdir()
    assert state_of(tmp_path) == FirstBootState()
    (tmp_path / "first-boot/state.json").write_bytes(b"{")
    assert state_of(tmp_path) == FirstBootState()
    assert FirstBootState().summary() == {}


def test_networks_are_used_in_the_order_cable_wifi_modem() -> None:
    """A lower metric is used first; networkd's own is 1024, behind the metered network.

    Two networks have no metric in common: a route of one would replace that of the other.
    """
    found = dict[str, list[int]]()
    for name in ("20-wired", "30-wireless", "15-modem"):
        text = (OVERLAY / f"etc/systemd/network/{name}.network").read_text()
        found[name] = [int(each) for each in re.findall(r"(?m)^RouteMetric=(\d+)$", text)]
    found["lte"] = [rendering.LTE_METRIC] * 2
    assert found["20-wired"] == [rendering.CABLE_METRIC] * 2, "IPv4 and IPv6"
    assert found["20-wired"] < found["30-wireless"] < found["lte"] < found["15-modem"]
    assert all(len(each) == 2 for each in found.values())
    modem = read(text_of(document("a", {"lte": {"apn": "internet"}})).encode(), "x")
    assert modem is not None
    text = rendering.files(modem)[rendering.LTE].text
    assert text.count(f"method=auto\nroute-metric={rendering.LTE_METRIC}\n") == 2


def test_modem_that_looks_like_a_network_card_is_no_cable() -> None:
    """systemd-networkd takes the first file that matches, by its number; a fixed address is that of the cable only."""
    overlay = OVERLAY / "etc/systemd/network"
    modem, wired = ((overlay / f"{name}.network").read_text() for name in ("15-modem", "20-wired"))
    assert f"[Match]\nName={rendering.CABLES}\nDriver={rendering.MODEM_DRIVERS}\n" in modem
    assert f"Name={rendering.CABLES}\n" in wired
    fixed = read(text_of(document("a", {"cable": {"address": "192.168.1.20/24"}})).encode(), "x")
    assert fixed is not None
    text = rendering.files(fixed)[rendering.CABLE].text
    assert f"[Match]\nName={rendering.CABLES}\nDriver=!{rendering.MODEM_DRIVERS}\n" in text


@pytest.mark.skipif(shutil.which("nmcli") is None, reason="network-manager is not installed")
def test_network_manager_reads_the_settings_of_a_modem() -> None:
    """`nmcli --offline` reads the connection as NetworkManager does, and prints what it understood."""
    lte = {"apn": "plant.iot", "user": "a;b#c", "password": "\\s;#\"'=\\", "pin": "0123"}
    card = read(text_of(document("a", {"lte": lte})).encode(), "x")
    assert card is not None
    given = rendering.files(card)[rendering.LTE].text
    words = ["nmcli", "--offline", "connection", "modify", "connection.id", "read"]
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    understood = configparser.RawConfigParser(delimiters="=", comment_prefixes=())
    understood.read_string(done.stdout)
    assert understood["connection"]["id"] == "read"
    gsm = {name: value.replace("\\\\", "\\") for name, value in understood["gsm"].items()}
    assert gsm == {"apn": lte["apn"], "username": lte["user"], "password": lte["password"], "pin": lte["pin"]}
    for family in ("ipv4", "ipv6"):
        assert understood[family]["method"] == "auto"
        assert understood[family]["route-metric"] == str(rendering.LTE_METRIC)


def test_hidden_network_is_looked_for() -> None:
    """A hidden network answers only to those who ask for its name."""
    assert "\tscan_ssid=1\n" in wifi(ssid="x", password="hidden-wifi")
    assert "\tscan_ssid=1\n" in wifi(ssid="x")


def wifi(**settings: object) -> str:
    """Return the configuration of wpa_supplicant for a wireless network."""
    found = read(text_of(document("a", {"wifi": {"country": "DE", **settings}})).encode(), "x")
    assert found is not None
    return rendering.files(found)[rendering.WIFI].text


def test_key_of_a_network_is_for_wpa2() -> None:
    told = wifi(ssid="x", password="0123456789abcdef" * 4)
    assert f"psk={'0123456789abcdef' * 4}\n" in told
    assert "key_mgmt=WPA-PSK WPA-PSK-SHA256\n" in told
    assert "sae_password" not in told, "WPA3 needs the password itself"


def test_open_network_is_configured() -> None:
    told = wifi(ssid="x")
    assert "key_mgmt=NONE" in told
    assert "sae_password" not in told


class TestWirelessNetworks:
    @pytest.mark.skipif(shutil.which("wpa_supplicant") is None, reason="wpasupplicant is not installed")
    @pytest.mark.parametrize("password", ["hidden-wifi", 'a"b#c\\ {x}', "  spaces ", "~" * 63])
    def test_wpa_supplicant_joins_with_wpa3_and_wpa2(self, tmp_path: Path, password: str) -> None:
        """The parser of wpa_supplicant prints each value that it understood, on an interface that does not exist."""
        (tmp_path / "wpa_supplicant.conf").write_text(wifi(ssid='a"b', password=password))
        command = ["wpa_supplicant", "-dd", "-K", "-D", "none", "-i", "none0", "-c", "wpa_supplicant.conf"]
        said = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        ).stdout.splitlines()
        assert "country='DE'" in said
        assert "ieee80211w=1 (0x1)" in said
        assert f"key_mgmt: {hex(WPA_KEY_MGMT_SAE | WPA_KEY_MGMT_PSK | WPA_KEY_MGMT_PSK_SHA256)}" in said
        assert f"sae_password - hexdump_ascii(len={len(password)}):" in said
        key = hashlib.pbkdf2_hmac("sha1", password.encode(), b'a"b', 4096, 32)
        assert f"PSK - hexdump(len=32): {key.hex(' ')}" in said
        assert "SSID - hexdump_ascii(len=3):" in said or "ssid - hexdump_ascii(len=3):" in said
        assert not [line for line in said if "Line " in line and "error" in line.lower()]

    @pytest.mark.skipif(shutil.which("wpa_supplicant") is None, reason="wpasupplicant is not installed")
    @pytest.mark.parametrize("password", [None, r'a"b#c\ {x}', "~" * 256])
    @pytest.mark.parametrize("certificate", [None, CERTIFICATE])
    def test_wpa_supplicant_logs_in_with_password_and_certificate(
        self, tmp_path: Path, password: str | None, certificate: str | None
    ) -> None:
        if password is None and certificate is None:
            return
        login = {"user": 'DOMAIN\\g "7"', "authority": CERTIFICATE, "server": "radius.example"}
        login |= {"password": password} if password is not None else {}
        login |= {"certificate": certificate, "key": KEY} if certificate is not None else {}
        (tmp_path / "wpa_supplicant.conf").write_text(wifi(ssid="plant", login=login))
        command = ["wpa_supplicant", "-dd", "-K", "-D", "none", "-i", "none0", "-c", "wpa_supplicant.conf"]
        said = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        ).stdout.splitlines()
        assert f"key_mgmt: {hex(WPA_KEY_MGMT_IEEE8021X | WPA_KEY_MGMT_IEEE8021X_SHA256)}" in said
        assert f"identity - hexdump_ascii(len={len(login['user'])}):" in said
        assert "domain_suffix_match - hexdump_ascii(len=14):" in said
        assert f"ca_cert - hexdump_ascii(len={len(rendering.WIFI_AUTHORITY) + 1}):" in said
        assert [each for each in said if each.startswith("eap methods - hexdump")], said
        has = {"password": password is not None, "client_cert": certificate is not None}
        for name, given in has.items():
            assert any(each.startswith(f"{name} - hexdump") for each in said) == given
        assert not [line for line in said if "Line " in line and "error" in line.lower()]

    @pytest.mark.parametrize(
        ("login", "path"),
        [
            ({"user": "a", "authority": CERTIFICATE}, "wifi.login"),
            ({"user": "a", "authority": CERTIFICATE, "certificate": CERTIFICATE}, "wifi.login"),
            ({"user": "a", "authority": CERTIFICATE, "password": "b", "key": KEY}, "wifi.login"),
            ({"user": "a", "password": "b"}, "wifi.login"),
            ({"user": "a", "password": "b", "authority": KEY}, "wifi.login.authority"),
            ({**LOGIN, "key": KEY.replace("PRIV", "ENCRYPTED PRIV")}, "wifi.login.key"),
        ],
    )
    def test_incomplete_login_is_refused(self, login: dict[str, str], path: str) -> None:
        text = text_of(document("a", {"wifi": {"ssid": "x", "country": "DE", "login": login}}))
        with pytest.raises(ConfigurationRejected) as refused:
            read(text.encode(), "x")
        assert [each.path.rpartition(": ")[2] for each in refused.value.errors] == [f"spec.{path}"]

    def test_applied_country_remains(self, tmp_path: Path) -> None:
        """An older program accepted UK: its network survives an update. A new file with it is refused."""
        places = card(tmp_path)
        places.kept.parent.mkdir(parents=True)
        old = text_of(document("hall", {"wifi": {"ssid": "plant", "country": "UK"}}))
        places.kept.write_text(old)
        places.file.write_text(old.replace("plant", "other"))
        found = apply_settings(places)
        assert found.trouble is not None
        assert "did you mean GB?" in found.trouble
        assert "country=UK" in (tmp_path / rendering.WIFI).read_text()
