"""The commands of `waypost balena`, against an API that answers like balena's and checks each request."""

from __future__ import annotations

import contextlib
import csv
import io
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import enrolment
from edge.appliance import main
from images.balena.account import BalenaLogin, parse_endpoint
from images.balena.fleet import NewDevice, RegisteredDevice, read_device_list
from images.balena.os_image import find_boot_partition, read_configuration
from images.balena.variables import parse_variables
from images.errors import ImageError
from images.programs import find
from tests.support.balena_api import DEVICE_TYPE, FLEET, FLEET_ID, IMAGE, ROUTES, TOKEN, Cloud, cloud
from tests.support.command import items_in

FOR_THE_HUB = enrolment.EnrolmentToken.make(bytes(32)).text


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def api() -> Iterator[Cloud]:
    with cloud() as known:
        yield known
        assert not known.unknown, "each request is one that the API has"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command with a home of its own."""
    for name in ("XDG_CONFIG_HOME", "BALENA_API_KEY", "WAYPOST_WIFI_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def command(*arguments: str, **environment: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main.run(["balena", *arguments])
        return Done(code, *capsys.readouterr())

    return command


@pytest.fixture
def logged_in(run: Run, api: Cloud) -> Run:
    done = run("login", "--host", api.url, BALENA_API_KEY=TOKEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert "as ada" in done.stdout
    return run


def succeed(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail(done: Done, *words: str) -> None:
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


class TestLogin:
    def test_token_is_stored_for_its_owner_only(self, logged_in: Run, tmp_path: Path) -> None:
        files = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="ignore")]
        assert files == [tmp_path / ".config" / "waypost" / "balena.json"]
        assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
        succeed(logged_in("logout"))
        assert not files[0].exists()
        fail(logged_in("devices", FLEET), "not logged in", "waypost balena login")
        assert TOKEN not in repr(BalenaLogin("https://x/", TOKEN))

    def test_refused_token_is_not_stored(self, run: Run, api: Cloud, tmp_path: Path) -> None:
        fail(run("login", "--host", api.url, "--token", "another"), "refuses the token", "Access tokens")
        assert not (tmp_path / ".config").exists()

    def test_missing_terminal_is_reported(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        fail(run("login"), "Access token: without a terminal it cannot be typed", "BALENA_API_KEY")

    def test_unreachable_server_is_reported(self, run: Run) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            host = f"http://127.0.0.1:{taken.getsockname()[1]}"
            fail(run("login", "--host", host, "--token", "t"), "cannot be reached", "check the network")

    @pytest.mark.parametrize(
        ("host", "said"),
        [
            ("http://balena.example", "sent unencrypted"),
            ("ftp://x", "neither"),
            ("https://a:b@c", "neither"),
            ("https://a:65536", "neither"),
            ("https://[a", "neither"),
            ("", "neither"),
        ],
    )
    def test_invalid_host_is_refused(self, run: Run, host: str, said: str) -> None:
        fail(run("login", "--host", host, "--token", "t"), said)

    @pytest.mark.parametrize(
        ("host", "url"), [("x.example", "https://api.x.example/"), ("https://a:1/b", "https://a:1/")]
    )
    def test_host_may_be_an_address(self, host: str, url: str) -> None:
        assert parse_endpoint(host) == url

    @pytest.mark.parametrize("answer", ["<html>", [], {"id": 1}])
    def test_answer_of_another_server_is_reported(
        self, run: Run, api: Cloud, monkeypatch: pytest.MonkeyPatch, answer: object
    ) -> None:
        monkeypatch.setitem(ROUTES, "GET /actor/v1/whoami", lambda *_: answer)
        fail(run("login", "--host", api.url, "--token", TOKEN), "not an API of balena")


class TestRegister:
    @pytest.fixture
    def gateways(self, tmp_path: Path) -> Path:
        file = tmp_path / "gateways.csv"
        file.write_text(
            "name,tenant,WAYPOST_HUB,WAYPOST_TOKEN\n"
            f"hall-1,acme,amqps://hub:5671,{FOR_THE_HUB}\nhall-2,,amqps://hub:5671,\n"
        )
        return file

    def test_list_becomes_devices_with_tenants_and_variables(
        self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out.csv"
        succeed(logged_in("register", FLEET, str(gateways), "--out", str(out)))
        assert [each["device_name"] for each in api.devices] == ["hall-1", "hall-2"]
        assert [row["uuid"] for row in csv.DictReader(out.read_text().splitlines())] == [
            each["uuid"] for each in api.devices
        ]
        assert api.tags == {(100, "tenant"): "acme"}
        assert api.variables == {
            ("device", 100, "WAYPOST_HUB"): "amqps://hub:5671",
            ("device", 100, "WAYPOST_TOKEN"): FOR_THE_HUB,
            ("device", 101, "WAYPOST_HUB"): "amqps://hub:5671",
        }
        assert len({each["uuid"] for each in api.devices}) == 2
        said = items_in(succeed(logged_in("devices", FLEET, "--json")))
        assert [(each["name"], each["tenant"]) for each in said] == [("hall-1", "acme"), ("hall-2", "")]
        table = succeed(logged_in("devices", FLEET)).splitlines()
        assert table[0].split()[:2] == ["NAME", "TENANT"]
        assert table[1].split()[:2] == ["hall-1", "acme"]

    def test_interrupted_list_can_be_repeated(self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path) -> None:
        out = str(tmp_path / "out.csv")
        api.fails["POST /v7/device_environment_variable"] = 503
        fail(logged_in("register", FLEET, str(gateways), "--out", out), "answers 503")
        assert len(api.devices) == 1
        succeed(logged_in("register", FLEET, str(gateways), "--out", out))
        assert [each["device_name"] for each in api.devices] == ["hall-1", "hall-2"]
        assert api.variables["device", 100, "WAYPOST_TOKEN"] == FOR_THE_HUB

    @pytest.mark.parametrize("broken", [
        "POST /v7/device_environment_variable", "POST /v7/device_tag", "POST /device/register", "PATCH /v7/device",
        "POST /api-key/v1/", "GET /v7/device",
    ])  # fmt: skip
    def test_broken_connection_is_reported_and_the_list_can_be_repeated(
        self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path, broken: str
    ) -> None:
        """The SDK handles such errors in several ways; one reads an attribute that the error does not have."""
        out = str(tmp_path / "out.csv")
        api.breaks.add(broken)
        done = logged_in("register", FLEET, str(gateways), "--out", out)
        fail(done, "broke before the answer was complete", "run the command again")
        assert "AttributeError" not in done.stderr
        assert "logged in" not in done.stderr
        assert not api.breaks
        succeed(logged_in("register", FLEET, str(gateways), "--out", out))
        named = [each["device_name"] for each in api.devices]
        assert {"hall-1", "hall-2"} <= set(named)

    def test_server_error_is_reported_without_its_page(
        self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path
    ) -> None:
        for says, said in (("", ""), ("<html>oops</html>", ""), ("busy", ": busy")):
            api.says = says
            api.fails["POST /v7/device_environment_variable"] = 500
            done = logged_in("register", FLEET, str(gateways), "--out", str(tmp_path / "out.csv"))
            fail(done, f"answers 500 (Internal Server Error){said}\n", "try again")
            assert done.stdout == ""

    def test_responses_of_unknown_form_are_reported(
        self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path
    ) -> None:
        """The SDK accepts an answer of any status for a device."""
        api.fails["POST /device/register"] = 409
        fail(logged_in("register", FLEET, str(gateways), "--out", str(tmp_path / "o")), "hall-1 was not registered")
        api.fails["PATCH /v7/device"] = 500
        fail(
            logged_in("register", FLEET, str(gateways), "--out", str(tmp_path / "o")),
            "registered without its name, hall-1",
        )

    def test_registered_devices_are_written_to_a_separate_file(
        self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path
    ) -> None:
        """The list contains the tokens, and would be overwritten."""
        before = gateways.read_text()
        fail(logged_in("register", FLEET, str(gateways), "--out", str(gateways)), "would be overwritten")
        assert gateways.read_text() == before
        fail(logged_in("register", FLEET, str(gateways), "--out", str(tmp_path / "no" / "o")), "another --out")
        assert not api.devices

    def test_token_of_a_fleet_registers_no_device(
        self, logged_in: Run, api: Cloud, gateways: Path, tmp_path: Path
    ) -> None:
        api.actor = "application"
        fail(logged_in("register", FLEET, str(gateways), "--out", str(tmp_path / "o")), "needs a user's token")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "no column name"),
            ("name,name\na,b\n", "two columns have the same name"),
            ("name,tenant\na\n", "line 2: the number of fields differs"),
            ("name\na,b\n", "line 2: the number of fields differs"),
            ("name,tenant\na,t\n ,t\n", "line 3: no name"),
            ("name\na\na\n", "listed twice: a"),
            ("name,2x\na,b\n", "2x: a variable's name"),
            ("name,BALENA_HOST\na,b\n", "configures balenaOS itself"),
            ('name\n"a\n', "row 2: unexpected end"),
            ("name\nhall-1\nHall 1\n", 'line 3: column name, as WAYPOST_NAME: "Hall 1" is not a name'),
            ("name\nÜber\n", "line 2: column name, as WAYPOST_NAME"),
            ("name\n-hall\n", "line 2: column name, as WAYPOST_NAME"),
            ("name\nhall_1\nHALL-1\n", "listed twice: hall-1"),
            ("name,WAYPOST_NAME\nHall 1,hall\nHall 2,hall\n", "listed twice: hall"),
        ],
    )
    def test_invalid_list_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        file = tmp_path / "x.csv"
        file.write_text(text)
        with pytest.raises(ImageError, match=said):
            read_device_list(file)

    def test_device_name_may_differ_from_its_gateway(self, tmp_path: Path) -> None:
        file = tmp_path / "x.csv"
        file.write_text("name,WAYPOST_NAME\nHall 1 (Über),hall-1\n")
        [device] = read_device_list(file)
        assert device.name == "Hall 1 (Über)"

    @pytest.mark.parametrize(
        "text",
        [
            "\ufeffname,A\r\nhall-1,x\r\n",
            "\ufeffname;A\r\nhall-1;x\r\n",
            "name\tA\nhall-1\tx\n",
            "sep=;\nname;A\nhall-1;x\n",
            "name,A,,\nhall-1,x,,\n,,,\n",
        ],
    )
    def test_list_of_a_spreadsheet_is_read(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "x.csv"
        file.write_bytes(text.encode())
        assert read_device_list(file) == [NewDevice("hall-1", "", {"A": "x"})]
        assert "x" not in repr(read_device_list(file)).replace("hall", "")
        assert repr(RegisteredDevice("a", "b"))


class TestVariables:
    def test_variables_of_fleet_and_device_are_set(self, logged_in: Run, api: Cloud) -> None:
        succeed(logged_in("preload", FLEET, "A=1", "B=x=y"))
        api.devices.append({"id": 100, "uuid": "ab" * 31, "device_name": "hall-1"})
        succeed(logged_in("preload", FLEET, "A=2", "--device", "hall-1"))
        assert api.variables == {
            ("application", FLEET_ID, "A"): "1",
            ("application", FLEET_ID, "B"): "x=y",
            ("device", 100, "A"): "2",
        }

    def test_variables_are_read_from_a_file(self, logged_in: Run, api: Cloud, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(f"{FOR_THE_HUB}\n")
        token = f"WAYPOST_TOKEN=@{tmp_path / 'token'}"
        fail(logged_in("preload", FLEET, token), "admits one gateway", "--device NAME")
        api.devices.append({"id": 100, "uuid": "ab" * 31, "device_name": "hall-1"})
        succeed(logged_in("preload", FLEET, token, "--device", "hall-1"))
        assert api.variables == {("device", 100, "WAYPOST_TOKEN"): FOR_THE_HUB}
        fail(logged_in("preload", FLEET, "A=@none"), "A=@none: No such file")
        fail(logged_in("preload", FLEET, "A=@/dev/zero"), "more than 65536 characters")

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("WAYPOST_TOKN=x", "did you mean WAYPOST_TOKEN?"),
            ("WAYPOST_HUB=hub.example", "WAYPOST_HUB: "),
            ("WAYPOST_HUB=amqps://a wss://b:0", "port 0 is not valid"),
            ("WAYPOST_TOKEN=wpt1.secret", "WAYPOST_TOKEN: this is not a token"),
            ("WAYPOST_FORWARD=plant/# a/*", "wildcards are + and #"),
            ("WAYPOST_PROXY=proxy:3128", "a proxy is written http://"),
            ("WAYPOST_NAME=Hall 1", "is not a name"),
            ("WAYPOST_KEEP_FREE=much", "is not a size"),
        ],
    )
    def test_values_that_gateways_refuse_are_refused(self, tmp_path: Path, word: str, said: str) -> None:
        """The command refuses the value, so the error does not first appear at the gateway."""
        with pytest.raises(ImageError) as refused:
            parse_variables([word])
        assert said in refused.value.message
        assert "secret" not in refused.value.message
        name, _, value = word.partition("=")
        (tmp_path / "x.csv").write_text(f"name,{name}\nhall-1,{value}\n")
        with pytest.raises(ImageError) as refused:
            read_device_list(tmp_path / "x.csv")
        assert said in refused.value.message
        right = ["A=anything", "WAYPOST_NAME=Hall_1", "WAYPOST_KEEP_FREE=1Gi"]
        assert parse_variables(right) == dict(each.split("=") for each in right)

    def test_shared_token_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text(f"name,WAYPOST_TOKEN\nhall-1,{FOR_THE_HUB}\nhall-2,{FOR_THE_HUB}\n")
        with pytest.raises(ImageError, match=r"hall-2 .*hall-1"):
            read_device_list(tmp_path / "x.csv")

    def test_no_variable_is_set_when_one_is_invalid(self, logged_in: Run, api: Cloud) -> None:
        fail(logged_in("preload", FLEET, "A=1", "B"), "B: not NAME=VALUE")
        assert not api.variables
        with pytest.raises(ImageError, match="letters"):
            parse_variables(["1=2"])

    def test_missing_fleet_and_device_are_reported(self, logged_in: Run) -> None:
        fail(logged_in("preload", "acme/other", "A=1"), "acme/other")
        fail(logged_in("preload", FLEET, "A=1", "--device", "hall-9"), "no such device", "balena devices")


class TestReleases:
    @pytest.fixture
    def built(self, api: Cloud) -> Cloud:
        api.releases = [
            {"id": number, "commit": commit, "raw_version": version, "created_at": "2026-11-01"}
            for number, commit, version in ((3, "abc" + "0" * 29, "1.4.0"), (2, "abd" + "0" * 29, "1.3.0"))
        ]
        return api

    @pytest.mark.parametrize("release", ["1.4.0", "abc", "abc" + "0" * 29])
    def test_fleet_is_pinned_and_released(self, logged_in: Run, built: Cloud, release: str) -> None:
        assert "abc" in succeed(logged_in("pin", FLEET, release))
        assert built.fleet == {"should_be_running__release": 3, "should_track_latest_release": False}
        succeed(logged_in("pin", FLEET, "--newest"))
        assert built.fleet["should_track_latest_release"] is True

    def test_device_is_pinned_and_released(self, logged_in: Run, built: Cloud) -> None:
        built.devices.append({"id": 100, "uuid": "ab" * 31, "device_name": "hall-1"})
        succeed(logged_in("pin", FLEET, "1.3.0", "--device", "abab"))
        assert built.devices[0]["is_pinned_on__release"] == 2
        assert not built.fleet
        succeed(logged_in("pin", FLEET, "--newest", "--device", "ab" * 31))
        assert built.devices[0]["is_pinned_on__release"] is None

    @pytest.mark.parametrize(("release", "said"), [("ab", "more than one"), ("2.0", "no such release")])
    def test_unknown_release_is_refused(self, logged_in: Run, built: Cloud, release: str, said: str) -> None:
        fail(logged_in("pin", FLEET, release), said, "1.4.0 (abc0000)")
        assert not built.fleet

    def test_exactly_one_option_is_required(self, logged_in: Run) -> None:
        fail(logged_in("pin", FLEET), "--newest")
        fail(logged_in("pin", FLEET, "1.4.0", "--newest"), "--newest")

    def test_releases_are_listed(self, logged_in: Run, built: Cloud) -> None:
        assert built.releases[0]["commit"] in succeed(logged_in("releases", FLEET))
        assert items_in(succeed(logged_in("releases", FLEET, "--json"))) == built.releases


def partitioned(kind: str, fat: Path) -> bytes:
    """Return a disk with an empty ext4-like partition, and the FAT of `fat`."""
    content = fat.read_bytes()
    disk = bytearray(1 << 20) + content
    start = (1 << 20) // 512
    if kind == "MBR":
        struct.pack_into("<B3xB3xII", disk, 446, 0, 0x83, 8, 8)
        struct.pack_into("<B3xB3xII", disk, 462, 0x80, 0x0C, start, len(content) // 512)
    else:
        struct.pack_into("<B3xB3xII", disk, 446, 0, 0xEE, 1, len(disk) // 512)
        disk[512:520] = b"EFI PART"
        struct.pack_into("<QII", disk, 512 + 72, 2, 4, 128)
        struct.pack_into("<16x16xQQ", disk, 1024, 8, 15)
        struct.pack_into("<16x16xQQ", disk, 1024 + 128, start, start + len(content) // 512 - 1)
    disk[510:512] = b"\x55\xaa"
    return bytes(disk)


@pytest.mark.skipif(find("mcopy") is None or find("mkfs.vfat") is None, reason="needs mtools and dosfstools")
class TestImage:
    @pytest.fixture(params=["MBR", "GPT"])
    def image(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        fat = tmp_path / "fat"
        fat.write_bytes(bytes(4 << 20))
        subprocess.run([str(find("mkfs.vfat")), str(fat)], check=True, stdout=subprocess.DEVNULL)
        image = tmp_path / "balena.img"
        image.write_bytes(partitioned(request.param, fat))
        return image

    def test_card_becomes_a_device(self, logged_in: Run, api: Cloud, image: Path) -> None:
        api.devices.append({"id": 100, "uuid": "ab" * 31, "device_name": "hall-1"})
        arguments = ("os", "configure", str(image), FLEET, "--version", "6.1.0", "--device", "hall-1", "--wifi", "net")
        succeed(logged_in(*arguments, WAYPOST_WIFI_PASSWORD="secret"))
        made = read_configuration(image)
        assert (made["uuid"], made["deviceId"], made["deviceApiKey"]) == ("ab" * 31, 100, "key-of-100")
        assert (made["wifiSsid"], made["wifiKey"], made["network"]) == ("net", "secret", "wifi")
        assert "apiKey" not in made, "whoever has the card registers nobody"

    def test_card_registers_itself(self, logged_in: Run, image: Path) -> None:
        for _ in range(2):
            succeed(logged_in("os", "configure", str(image), FLEET, "--version", "6.1.0"))
        made = read_configuration(image)
        assert made["apiKey"] == "of the fleet"
        assert "uuid" not in made


class TestDownload:
    def test_image_is_downloaded_completely(self, logged_in: Run, tmp_path: Path) -> None:
        out = tmp_path / "new" / "balena.img"
        succeed(logged_in("os", "download", DEVICE_TYPE, "--out", str(out)))
        assert out.read_bytes() == IMAGE
        assert succeed(logged_in("os", "versions", DEVICE_TYPE)).split() == ["6.1.0", "6.0.10"]

    def test_partial_download_leaves_no_image(self, logged_in: Run, api: Cloud, tmp_path: Path) -> None:
        api.short_of = 1_000
        out = tmp_path / "balena.img"
        done = logged_in("os", "download", DEVICE_TYPE, "--out", str(out))
        fail(done, "broke before the answer was complete", "run the command again")
        assert not [word for word in ("IncompleteRead", "(", "Error") if word in done.stderr.replace("Error:", "")]
        assert not list(tmp_path.glob("balena*"))

    def test_unwritable_folder_is_reported(self, logged_in: Run, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        fail(logged_in("os", "download", DEVICE_TYPE, "--out", str(tmp_path / "file" / "x.img")), "x.img: File exists")

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(2_000), bytes(510) + b"\x55\xaa" + bytes(600)])
    def test_missing_image_is_reported(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "x.img"
        file.write_bytes(content)
        with pytest.raises(ImageError, match="no FAT partition"):
            find_boot_partition(file)

    @given(table=st.binary(max_size=1_200), tail=st.sampled_from([b"", bytes(4_096)]))
    def test_any_content_is_stored(self, tmp_path_factory: pytest.TempPathFactory, table: bytes, tail: bytes) -> None:
        file = tmp_path_factory.getbasetemp() / "any.img"
        for head in (table, table[:510].ljust(510) + b"\x55\xaaEFI PART" + table[510:]):
            file.write_bytes(head + tail)
            with contextlib.suppress(ImageError):
                assert find_boot_partition(file) % 512 == 0
