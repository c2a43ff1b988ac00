"""Settings of gateways: checked before they are written, readable, and on the first partition of an image."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bridge.enrolment import EnrolmentToken
from bridge.proxy import Proxy
from edge.appliance.main import run
from edge.card.fields import PLACEHOLDER
from edge.card.location import FILE
from edge.card.resource import FILE_BYTES_MAX, KINDS
from edge.card.text import SECRETS, text_of
from images.card import partition
from images.card.advice import list_notes
from images.card.settings import LISTS, NAMES, apply_arguments, load_fleet, load_settings, parse_draft, parse_settings
from images.errors import ImageError
from images.programs import find
from tests.unit.images.published_image import BEGIN, card

TOKEN = EnrolmentToken.make(bytes(32)).text
SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3cQ2p2d0pXyJfYf0W2l1X9c1u2kq8YwJ3gq0Y2m7aB ann@laptop"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----"
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nhidden00\n-----END PRIVATE KEY-----"
EVERYTHING = {
    "name": "hall", "hostname": "hall-1", "cable.address": "192.168.1.20/24", "cable.gateway": "192.168.1.1",
    "cable.dns": "192.168.1.1 9.9.9.9", "wifi.ssid": "plant", "wifi.password": "a: 'secret' #1", "wifi.country": "DE",
    "wifi.login.user": "gateway7", "wifi.login.password": "hidden-login", "wifi.login.certificate": CERTIFICATE,
    "wifi.login.key": PRIVATE_KEY, "wifi.login.authority": CERTIFICATE, "wifi.login.server": "radius.example",
    "lte.apn": "internet", "lte.user": "u", "lte.password": "hidden-lte", "lte.pin": "0123", "sshKeys": f"{SSH}\n{SSH}",
    "hub.url": "amqps://hub.example:5671", "hub.failover": "wss://hub.example:443 wss://hub.example:8443",
    "hub.proxy.host": "proxy.example", "hub.proxy.port": "8080", "hub.proxy.username": "plant",
    "hub.proxy.password": "hidden-proxy", "hub.token": TOKEN, "hub.forward": "plant/# alarm/+",
    "timeServers": "192.168.1.1 time.example", "data.disk": "usb", "data.keepFree": "1Gi",
}  # fmt: skip

SSH_MENDED = f"sshKeys={SSH}"

mtools = pytest.mark.skipif(
    find("mcopy") is None or find("mkfs.vfat") is None, reason="mtools or dosfstools is not installed"
)


def words(**_: str) -> list[str]:
    return [f"{name}={value}" for name, value in EVERYTHING.items()]


class TestSettingsFile:
    def test_every_setting_has_a_name_and_is_kept(self) -> None:
        assert set(EVERYTHING) == set(NAMES) >= set(LISTS)
        made = apply_arguments(words(), None)
        spec = made.card.spec
        assert (made.card.name, made.card.hostname) == ("hall", "hall-1")
        assert spec.wifi is not None
        assert spec.wifi.password == "a: 'secret' #1"
        assert spec.lte is not None
        assert spec.lte.pin == "0123"
        assert spec.hub is not None
        assert (spec.hub.token, spec.hub.forward) == (TOKEN, ("plant/#", "alarm/+"))
        assert spec.hub.failover == ("wss://hub.example:443", "wss://hub.example:8443")
        assert spec.hub.proxy == Proxy(host="proxy.example", port=8080, username="plant", password="hidden-proxy")
        assert (len(spec.ssh_keys), spec.data.keep_free) == (2, 1 << 30)
        assert spec.time_servers == ("192.168.1.1", "time.example")
        again = parse_settings(made.card.text, "again")
        assert again is not None
        assert (again.card.spec, again.document) == (spec, made.document)

    def test_template_is_empty_and_lists_every_setting(self) -> None:
        text = text_of(None)
        assert parse_settings(text.encode(), FILE) is None
        assert all(name.partition(".")[0] in text for name in NAMES)

    @pytest.mark.parametrize("change", [lambda text: b"\xef\xbb\xbf" + text, lambda text: text.replace(b"\n", b"\r\n")])
    def test_file_of_any_editor_is_read(self, change) -> None:  # type: ignore[no-untyped-def]
        made = apply_arguments(words(), None)
        found = parse_settings(change(made.card.text), FILE)
        assert found is not None
        assert found.card.spec == made.card.spec

    @pytest.mark.parametrize(("word", "said"), [
        ("name=-x", "name: "), ("hostname=a_b", "is not a host name"), ("cable.address=192.168.1.20", "prefix length"),
        ("cable.address=192.168.1.0/24", "a network or broadcast address"),
        ("cable.gateway=10.0.0.1", "not another machine"),
        ("cable.dns=9.9.9", "is not an IP address"), ("wifi.ssid=" + "x" * 33, "1 to 32"),
        ("wifi.password=short", "8 to 63"),
        ("wifi.country=de", "did you mean DE?"), ("wifi.country=UK", "did you mean GB?"),
        ("wifi.country=EN", "did you mean GB?"), ("wifi.country=el", "did you mean GR?"),
        ("wifi.country=ZZ", "not a country with rules"), ("wifi.country=XX", "not a country with rules"),
        ("wifi.country=00", "not a country with rules"), ("wifi.country=Germany", "not a country with rules"),
        ("lte.apn=a b", "access point name"),
        ("lte.pin=12", "4 to 8 digits"),
        ("lte.user=", "1 to 64"), ("sshKeys=-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
        ("sshKeys=ssh-ed25519 AAAA", "not a public key"), ("hub.url=amqp://hub.example", "without TLS"),
        ("hub.failover=amqps://hub.example ws://hub.example", "without TLS"), ("hub.failover=hub", "is not a hub URL"),
        ("hub.proxy.host=a/b", "not a host"),
        ("hub.proxy.port=http", "port"),
        ("hub.proxy.username=a:b", "with a colon"),
        (f"hub.proxy.password={PLACEHOLDER}", "write the secret itself"), ("hub.proxy=x", "is not a setting"),
        ("hub.token=wpt1.x.y.z", "token"), ("hub.forward=", "forward"),
        ("hub.forward=plant/#/x", "# must be alone in the last level"),
        ("hub.forward=plant/*", "wildcards are + and #"),
        ("timeServers=a/b", "not a host"),
        ("timeServers=10.0.0.1;10.0.0.2", "not a time server"),
        ("data.keepFree=a lot", "is not a size"), ("data.disk=sda", "not a kind"),
        (f"hub.token={PLACEHOLDER}", "write the secret itself"),
        (f"wifi.password={PLACEHOLDER}", "write the secret itself"), ("wifi.pasword=x", "did you mean wifi.password?"),
        ("name", "expected NAME=VALUE"), ("sshKeys=@nowhere", "sshKeys=@nowhere: No such file"),
    ])  # fmt: skip
    def test_invalid_values_are_reported(self, word: str, said: str) -> None:
        with pytest.raises(ImageError) as refused:
            apply_arguments(
                [*(each for each in words() if not each.startswith(f"{word.partition('=')[0]}=")), word], None
            )
        assert said in refused.value.message
        assert "hidden" not in refused.value.message
        assert refused.value.exit_code == 2

    def test_private_key_is_one_error_and_is_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1\n-----END\n")
        with pytest.raises(ImageError, match="private key") as refused:
            apply_arguments(["name=hall", f"sshKeys=@{tmp_path / 'key'}"], None)
        assert "\n" not in refused.value.message
        assert "b3BlbnNzaC1" not in refused.value.message
        assert refused.value.hint.endswith("ends in .pub")

    def test_ipv6_router_may_have_a_link_local_address(self) -> None:
        made = apply_arguments(["name=hall", "cable.address=2001:db8::5/64", "cable.gateway=fe80::1"], None)
        assert made.card.spec.cable is not None
        assert made.card.spec.cable.gateway == "fe80::1"

    @pytest.mark.parametrize("value", ["1985-03-12", "2001-12-14t21:59:43.10-05:00"])
    def test_values_that_look_like_dates_are_text(self, tmp_path: Path, value: str) -> None:
        """Dates stay text in the base file of a CSV too, and when only another setting is given."""
        base = tmp_path / "base.yaml"
        spec = f"spec:\n  wifi:\n    ssid: {value}\n    password: {value}\n    country: DE\n"
        base.write_text(f"apiVersion: waypost/v1\nkind: Card\nmetadata:\n  name: base\n{spec}")
        (tmp_path / "fleet.csv").write_text("name\nnorth\n")
        found = load_settings(base)
        assert found is not None
        [one] = load_fleet(tmp_path / "fleet.csv", found.document)
        other = apply_arguments(["name=hall"], parse_draft(base.read_bytes(), str(base)))
        for each in (found, one, other):
            again = parse_settings(each.card.text, "again")
            assert again is not None
            assert again.card.spec.wifi is not None
            assert (again.card.spec.wifi.ssid, again.card.spec.wifi.password) == (value, value)

    def test_value_is_read_from_a_file_unchanged(self, tmp_path: Path) -> None:
        wifi = ("name=hall", "wifi.country=DE")
        for name, content, read in (
            ("ssid", "\ufeffplänt ".encode() + b"\r\n", "plänt "), ("password", b" se\"cr'et \n", " se\"cr'et "),
        ):  # fmt: skip
            (tmp_path / name).write_bytes(content)
            words = (*wifi, f"wifi.{name}=@{tmp_path / name}", *(("wifi.ssid=x",) if name != "ssid" else ()))
            made = apply_arguments(words, None)
            again = parse_settings(made.card.text, "again")
            assert again is not None
            assert getattr(again.card.spec.wifi, name) == read

    def test_unreadable_value_file_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "latin").write_bytes(b"pl\xe4nt")
        with pytest.raises(ImageError, match="UTF-8"):
            apply_arguments(["name=hall", f"wifi.ssid=@{tmp_path / 'latin'}"], None)
        with pytest.raises(ImageError, match=r"larger than 65536 bytes") as refused:
            apply_arguments(["name=@/dev/zero"], None)
        assert len(refused.value.message) < 100

    def test_terminal_of_another_encoding_is_reported(self) -> None:
        with pytest.raises(ImageError, match="not UTF-8") as refused:
            apply_arguments(["name=hall", "wifi.ssid=pl\udce4nt"], None)
        assert "wifi.ssid=@FILE" in refused.value.hint

    @pytest.mark.parametrize(("name", "said"), [
        ("hub.url", "give it once"), ("hub.forward", "hub.forward='A B'"), ("sshKeys", "sshKeys=@keys"),
    ])  # fmt: skip
    def test_repeated_setting_is_refused(self, name: str, said: str) -> None:
        """The first of two SSH keys would be lost without an error."""
        with pytest.raises(ImageError, match="is given twice") as refused:
            apply_arguments(["name=hall", f"{name}=a", f"{name}=b"], None)
        assert said in refused.value.hint

    def test_ssh_keys_are_read_from_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_bytes(f"# of the night shift\r\n{SSH}\r\n\r\n{SSH}\r\n".encode())
        made = apply_arguments(["name=hall", f"sshKeys=@{tmp_path / 'keys'}"], None)
        assert made.card.spec.ssh_keys == (SSH, SSH)

    def test_missing_token_is_reported_with_its_source(self) -> None:
        with pytest.raises(ImageError, match=r"hub\.token=@nowhere") as refused:
            apply_arguments(["name=hall", "hub.token=@nowhere"], None)
        assert "waypost token create" in refused.value.hint

    def test_proxy_requires_name_and_password_together(self) -> None:
        hub = ("name=hall", "hub.url=amqps://hub.example", f"hub.token={TOKEN}", "hub.proxy.host=proxy.example")
        spec = apply_arguments(hub, None).card.spec
        assert spec.hub is not None
        assert spec.hub.proxy == Proxy(host="proxy.example")
        for word in ("hub.proxy.username=plant", "hub.proxy.password=hidden-proxy"):
            with pytest.raises(ImageError, match=r"hub\.proxy: username") as refused:
                apply_arguments([*hub, word], None)
            assert "hidden" not in refused.value.message

    @pytest.mark.parametrize("spec", ["", " {hub: }", " {hub: , wifi: }"])
    def test_empty_section_is_accepted(self, spec: str) -> None:
        found = parse_draft(
            f"apiVersion: waypost/v1\nkind: Card\nmetadata: {{name: hall}}\nspec:{spec}\n".encode(), FILE
        )
        hub = apply_arguments(["hub.url=amqps://hub.example", f"hub.token={TOKEN}"], found).card.spec.hub
        assert hub is not None
        assert hub.token == TOKEN

    @pytest.mark.parametrize(("metadata", "spec", "mending"), [
        ("{name: hall}", f"{{hub: {{url: hub.example, token: '{TOKEN}'}}}}", "hub.url=amqps://hub.example"),
        ("{name: hall}", f"{{hub: {{url: amqps://hub.example, token: '{PLACEHOLDER}'}}}}", f"hub.token={TOKEN}"),
        ("{name: hall}", "{wifi: plant}", "wifi.ssid=plant wifi.country=DE"), ("{name: -x}", "{}", "name=hall"),
        ("hall", "{}", "name=hall"), ("{name: hall}", "{sshKeys: [ssh-rsa]}", "sshKeys="),
    ], ids=["url", "token", "wifi", "name", "metadata", "keys"])  # fmt: skip
    def test_invalid_value_of_a_file_can_be_overridden(
        self, tmp_path: Path, metadata: str, spec: str, mending: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "hall.yaml"
        faulty = f"apiVersion: waypost/v1\nkind: Card\nmetadata: {metadata}\nspec: {spec}\n"
        file.write_text(faulty)
        mended = [SSH_MENDED if each == "sshKeys=" else each for each in mending.split(" ")]
        assert run(["image", "configure", str(file), "data.keepFree=1Gi"]) == 2, "something else is not the remedy"
        assert f"{file}:" in capsys.readouterr().err, "the fault is the file's"
        assert run(["image", "configure", str(file), f"{mended[0]}\n!", *mended[1:]]) == 2
        assert "the command line: " in capsys.readouterr().err
        assert file.read_text() == faulty
        assert run(["image", "configure", str(file), *mended]) == 0
        assert run(["image", "configure", "--check", str(file)]) == 0

    @pytest.mark.parametrize(("text", "said"), [
        ("- a list\n", "one resource of kind Card"), ("a: 1\n---\nb: 2\n", "one resource of kind Card"),
        ("apiVersion: waypost/v1\nkind: Card\nspec: [hostname]\n", "other.yaml:3: spec: a mapping is expected"),
        ("a: 1\na: 2\n", "duplicate key"), ("a: [\n", "not YAML"), ("kind: Store\n", 'unknown kind "Store"'),
    ])  # fmt: skip
    def test_file_of_another_kind_is_not_overwritten(
        self, tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "other.yaml"
        file.write_text(text)
        assert run(["image", "configure", str(file), "name=hall"]) == 2
        assert said in capsys.readouterr().err
        assert file.read_text() == text

    def test_text_that_yaml_reads_otherwise_is_reported(self) -> None:
        wifi = "{ssid: 4711, password: 47114711, country: false}"
        text = f"apiVersion: waypost/v1\nkind: Card\nmetadata: {{name: hall}}\nspec:\n  wifi: {wifi}\n"
        with pytest.raises(ImageError) as refused:
            parse_settings(text.encode(), FILE)
        said = refused.value.message
        assert "4711" not in said
        for name, found in (("ssid", "a number"), ("password", "a number"), ("country", "false")):
            assert f"wifi.{name}: expected text, not {found}; put it in quotes if text is meant" in said

    def test_too_large_file_is_refused(self) -> None:
        with pytest.raises(ImageError, match="larger than"):
            parse_settings(b"#" * (FILE_BYTES_MAX + 1), FILE)

    def test_representations_hide_secrets(self) -> None:
        made = apply_arguments(words(), None)
        shown = repr(made.card) + repr(made.card.spec)
        assert not [secret for secret in ("'secret'", "hidden-lte", "hidden-proxy", "0123", TOKEN) if secret in shown]


class TestAdvice:
    """Mistakes that would show only at the installed gateway."""

    HUB = ("name=hall", f"sshKeys={SSH}", "hub.url=amqps://hub.example", f"hub.token={TOKEN}")

    def said(self, *more: str) -> list[str]:
        return list(list_notes([apply_arguments([*self.HUB, *more], None).card]))

    def test_missing_login_is_noted(self) -> None:
        [line] = list_notes([apply_arguments(["name=hall"], None).card])
        assert line.startswith("hall: without sshKeys login is impossible")
        assert self.said() == []

    def test_missing_host_name_is_noted(self) -> None:
        static = ("cable.address=10.0.0.2/24", "cable.gateway=10.0.0.1")
        assert self.said(*static) == ["hall: without cable.dns it cannot resolve host names: hub.example"]
        assert self.said(*static, "cable.dns=10.0.0.1") == []
        assert self.said(*static, "wifi.ssid=x", "wifi.country=DE") == [], "that network may have a server"
        assert self.said(*static, "hub.proxy.host=10.0.0.9") == [], "the proxy knows names"

    def test_missing_network_is_noted(self) -> None:
        static = ("cable.address=10.0.0.2/24", "cable.dns=10.0.0.3")
        assert self.said(*static) == [
            "hall: without cable.gateway it reaches only 10.0.0.0/24, and perhaps not hub.example"
        ]
        near = [word.replace("hub.example", "10.0.0.7") for word in self.HUB]
        assert list(list_notes([apply_arguments([*near, *static], None).card])) == []

    def test_note_about_a_fleet_is_printed_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "fleet.csv").write_text("name\n" + "".join(f"n{number}\n" for number in range(5)))
        for words in (
            ["--check", str(tmp_path / "fleet.csv")],
            [str(tmp_path / "x"), "--from", str(tmp_path / "fleet.csv")],
        ):
            assert run(["image", "configure", *words]) == 0
            assert "note: n0, n1, n2 and 2 more: without sshKeys" in capsys.readouterr().err


def mistaken(folder: Path, text: str, encoding: str = "utf-8") -> str:
    (folder / "fleet.csv").write_text(text, encoding)
    with pytest.raises(ImageError) as refused:
        load_fleet(folder / "fleet.csv", None)
    return f"{refused.value.message}\n{refused.value.hint}"


class TestFleets:
    def test_each_row_is_a_gateway_over_common_settings(self, tmp_path: Path) -> None:
        base = apply_arguments(["name=site", "hub.url=amqps://hub.example", f"hub.token={TOKEN}"], None).document
        other = EnrolmentToken.make(bytes(32)).text
        (tmp_path / "fleet.csv").write_text(f"\ufeffname;hub.token;hostname\nnorth;{other};\n\nsouth;;s1\n")
        north, south = load_fleet(tmp_path / "fleet.csv", base)
        assert north.card.spec.hub is not None
        assert south.card.spec.hub is not None
        assert (north.card.name, north.card.spec.hub.token, north.card.hostname) == ("north", other, "north")
        assert (south.card.name, south.card.spec.hub.token, south.card.hostname) == ("south", TOKEN, "s1")

    def test_all_errors_name_row_and_column(self, tmp_path: Path) -> None:
        said = mistaken(
            tmp_path, "name,hub.url,cable.address\nnorth,amqp://x,10.0.0.1\nnorth,,\n,,10.0.0.2/8\na,b,c,d\n"
        )
        file = tmp_path / "fleet.csv"
        for place in (
            f"{file}:2: hub.url:",
            f"{file}:2: cable.address:",
            f"{file}:4: name: is missing",
            f"{file}:5: a cell is in a column without a name",
        ):
            assert place in said
        assert f"{file}:3: name: " not in mistaken(tmp_path, "name\nnorth\nsouth\nx y\n")
        assert f"{file}:3: name: north is in row 2 already" in mistaken(tmp_path, "name\nnorth\nnorth\n")

    def test_shared_token_is_reported(self, tmp_path: Path) -> None:
        """The second card would never be admitted."""
        base = apply_arguments(["name=site", "hub.url=amqps://hub.example", f"hub.token={TOKEN}"], None).document
        other = EnrolmentToken.make(bytes(32)).text
        (tmp_path / "fleet.csv").write_text(f"name,hub.token\nnorth,\nsouth,{TOKEN}\neast,{other}\n")
        with pytest.raises(ImageError) as refused:
            load_fleet(tmp_path / "fleet.csv", base)
        said = f"{tmp_path / 'fleet.csv'}:3: hub.token: is that of row 2, and a token enrols one gateway"
        assert refused.value.message.startswith(said)
        assert "\n" not in refused.value.message

    def test_row_without_a_name_does_not_inherit_one(self, tmp_path: Path) -> None:
        base = apply_arguments(["name=site"], None).document
        (tmp_path / "fleet.csv").write_text("name,hostname\n,north\n")
        with pytest.raises(ImageError, match=r"fleet\.csv:2: name: "):
            load_fleet(tmp_path / "fleet.csv", base)

    @pytest.mark.parametrize(("text", "said"), [
        ("", "the column name is required"), ("name,name\n", "each column may be there once"),
        ("name\n", "has no rows"),
        ("name,wifi\nx,y\n", "is not a setting"), ("name,\nnorth,x\n", "a cell is in a column without a name"),
        (f'name,hostname\nnorth,"n\n{"x" * csv.field_size_limit()}', "row 2: field larger"),
    ])  # fmt: skip
    def test_invalid_table_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        assert said in mistaken(tmp_path, text)

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
    def test_table_of_another_encoding_is_refused(self, tmp_path: Path, encoding: str) -> None:
        assert 'save it as "CSV UTF-8"' in mistaken(tmp_path, "name\nn\xf6rd\n", encoding)

    def test_extra_columns_of_a_spreadsheet_are_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "fleet.csv").write_text(",,\nname,,\nnorth,,\n,,\n")
        [north] = load_fleet(tmp_path / "fleet.csv", None)
        assert north.card.name == "north"

    @pytest.mark.parametrize("text", [
        "name\thostname\r\nnorth\tn1\r\n", "sep=;\r\nname;hostname\r\nnorth;n1\r\n",
        '\ufeff"name";"hostname"\n"north";"n1"\n', "name,hostname\rnorth,n1\r",
    ])  # fmt: skip
    def test_spreadsheet_formats_are_read(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "fleet.CSV").write_bytes(text.encode())
        [north] = load_fleet(tmp_path / "fleet.CSV", None)
        assert (north.card.name, north.card.hostname) == ("north", "n1")
        assert run(["image", "configure", "--check", str(tmp_path / "fleet.CSV")]) == 0

    def test_errors_name_the_row_behind_the_separator_line(self, tmp_path: Path) -> None:
        assert f"{tmp_path / 'fleet.csv'}:3: hostname" in mistaken(tmp_path, "sep=;\nname;hostname\na;B\n")
        assert "an unclosed quotation mark" in mistaken(tmp_path, 'name;hostname\na;"b\nc;d\n')

    def test_password_with_outer_spaces_is_refused(self, tmp_path: Path) -> None:
        """A space behind a comma may be a habit or part of the password, so the file is refused."""
        head = "name,wifi.country,wifi.ssid,wifi.password\n"
        assert "2: wifi.password: begins or ends with a space" in mistaken(tmp_path, f"{head}a,DE,plant, secret-1\n")
        assert "2: wifi.country: " in mistaken(tmp_path, f"{head}a,UK,plant,secret-1\n")
        assert "2: wifi.ssid: begins or ends with a space" in mistaken(tmp_path, f"{head}a,DE,plant\xa0,secret-1\n")
        (tmp_path / "fleet.csv").write_text(f"{head} a , DE ,plant,sec ret-1\n")
        [one] = load_fleet(tmp_path / "fleet.csv", None)
        assert one.card.spec.wifi is not None
        assert (one.card.name, one.card.spec.wifi.country) == ("a", "DE")


class TestConfigureCommand:
    @mtools
    def test_settings_are_written_to_the_first_partition(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        image = str(card(tmp_path))
        assert run(["image", "configure", "--check", image]) == 0
        assert "has no settings" in capsys.readouterr().out
        assert run(["image", "configure", image, *words()]) == 0
        assert run(["image", "configure", image, "hostname=other"]) == 0
        assert run(["image", "configure", "--show", image]) == 0
        out = capsys.readouterr().out
        assert "hostname: other" in out
        assert out.count(PLACEHOLDER) == len(SECRETS)
        assert not [secret for secret in ("'secret'", "hidden-lte", "hidden-proxy", "0123", TOKEN) if secret in out]
        text = partition.read_file(Path(image), BEGIN, FILE)
        assert text is not None
        assert TOKEN.encode() in text
        before = Path(image).read_bytes()
        assert run(["image", "configure", image, "hub.url=x"]) == 2
        assert Path(image).read_bytes() == before, "what is wrong is not written"

    def test_file_that_is_no_image_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "x.img").write_bytes(bytes(4096))
        assert run(["image", "configure", str(tmp_path / "x.img"), "name=hall"]) == 4
        assert run(["image", "configure", str(tmp_path / "x.img.zst"), "name=hall"]) == 2
        assert "give it to waypost flash (--config)" in capsys.readouterr().err

    @pytest.mark.parametrize(("file", "said"), [
        ("name=hall", "FILE is missing"), ("hub.url=amqps://hub.example", "FILE is missing"),
        ("hall.txt", "ends with .yaml"),
    ])  # fmt: skip
    def test_invalid_settings_file_is_refused(self, file: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["image", "configure", file, "hostname=hall"]) == 2
        assert said in capsys.readouterr().err

    def test_written_files_are_private(self, tmp_path: Path) -> None:
        file = tmp_path / "hall.yaml"
        assert run(["image", "configure", str(file)]) == 0
        assert file.read_text() == text_of(None)
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        hub = ("hub.url=amqps://hub.example", f"hub.token=@{tmp_path / 'token'}")
        assert run(["image", "configure", str(file), "name=hall", *hub]) == 0
        assert TOKEN in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        assert run(["image", "configure", str(file)]) == 0, "without a change it stays as it is"

    def test_fleet_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "fleet.csv").write_text("name\nnorth\nsouth\n")
        out = tmp_path / "out"
        assert run(["image", "configure", str(out), "--from", str(tmp_path / "fleet.csv")]) == 0
        assert sorted(path.name for path in out.iterdir()) == ["north.yaml", "south.yaml"]

    @pytest.mark.parametrize(("words", "said"), [
        (["taken.yaml", "--from", "fleet.csv"], "FILE must be a folder"),
        (["hall.yaml", "name=hall", "--base", "taken.yaml"], "--base requires a CSV"),
        (["fleet", "--from", "taken.yaml", "--base", "taken.yaml"], "--base requires a CSV"),
        (["fleet.csv"], "configure ./fleet --from fleet.csv"), (["fleet.csv", "name=x"], "--from fleet.csv"),
        (["nowhere/hall.yaml", "name=x"], "the folder nowhere does not exist"),
    ])  # fmt: skip
    def test_fleet_and_single_gateway_are_exclusive(
        self, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        monkeypatch.chdir(tmp_path)
        Path("fleet.csv").write_text("name\nnorth\n")
        Path("taken.yaml").write_text(text_of(None))
        assert run(["image", "configure", *words]) == 2
        assert said in capsys.readouterr().err

    def test_schema_names_every_part(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["image", "configure", "--schema"]) == 0
        text = json.dumps(json.loads(capsys.readouterr().out))
        assert all(f'"{name.rpartition(".")[2]}"' in text for name in NAMES)
        assert KINDS.names == ["Card"]
