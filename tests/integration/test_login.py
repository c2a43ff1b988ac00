"""`waypost login` at a real gateway and hub: commands from another machine, trust on first use, sign-out."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509

from edge.output.errors import Exit
from edge.remote.session import Context, UnknownCertificate, trusted
from edge.remote.trust import fingerprint
from tests.support.command import document_of, error_of, items_of, output_of, run_waypost
from tests.support.enrolled import EnrolledFleet, init_gateway
from tests.support.processes import Waypost, wait_until


class Node(NamedTuple):
    """A running gateway or hub with HTTPS, and a user."""

    url: str
    password: str
    fingerprint: str


def password_of(*words: str) -> str:
    return re.findall(r"^password: (\S+)", output_of(*words), re.MULTILINE)[0]


def shown_fingerprint(url: str) -> str:
    """Return what a person would compare."""
    found = trusted(Context(url=url), None)
    assert isinstance(found, UnknownCertificate)
    return found.fingerprint


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user at another machine: nothing of the nodes is in its folders."""
    return {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("gateway")
    data = str(folder / "hall")
    places = ("--mqtt", "none", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "127.0.0.1:0")
    output_of("init", "--data", data, "--name", "hall", *places)
    password = password_of("user", "add", "anna", "--data", data, "--profile", "operator")
    with Waypost(folder / "hall.log", "run", "--data", data) as process:
        url = f"https://127.0.0.1:{process.port('https')}"
        yield Node(url, password, shown_fingerprint(url))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(scope="module")
def hub(fleet: EnrolledFleet) -> Node:
    rights = ("--allow", "view:$fleet", "--allow", "manage:$fleet")
    password = password_of("hub", "user", "add", "ops@default", "--data", str(fleet.hub.data), *rights)
    url = f"https://localhost:{fleet.hub.port('https')}"
    node = Node(url, password, shown_fingerprint(url))
    first = {**os.environ, "XDG_CONFIG_HOME": str(fleet.folder / "first")}
    words = login_words(node, "ops@default")

    def signed_in() -> bool:
        return run_waypost(*words, stdin=f"{password}\n", environment=first).returncode == 0

    wait_until(signed_in, timeout_s=60, what="the hub has read its new user", every_s=0.3)
    return node


def login_words(node: Node, user: str) -> tuple[str, ...]:
    return "login", node.url, "--user", user, "--password-file", "-", "--fingerprint", node.fingerprint


def sign_in(node: Node, user: str, home: dict[str, str], *more: str) -> str:
    return output_of(*login_words(node, user), *more, stdin=f"{node.password}\n", environment=home)


class TestGateway:
    def test_commands_work_from_any_machine_until_the_sign_out(self, gateway: Node, home: dict[str, str]) -> None:
        assert sign_in(gateway, "anna", home) == (
            f"127.0.0.1: gateway {gateway.url}, signed in as anna; it is the context in use\n"
        )
        file = Path(home["XDG_CONFIG_HOME"]) / "waypost" / "contexts.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert gateway.password not in file.read_text()
        assert document_of("status", environment=home)["gateway"] == "hall"
        assert items_of("client", "list", environment=home) == []
        output_of("bridge", "resume", environment=home)  # a change, with the cookie of a session
        assert "sign-in: user=anna" in output_of("log", "--kind", "sign-in", environment=home)
        assert output_of("logout", environment=home) == "127.0.0.1: signed out\n"
        assert "error[not-signed-in]" in error_of("status", code=Exit.FAILED, environment=home)
        assert gateway.url in error_of("status", code=Exit.FAILED, environment=home)
        words = ("login", "--user", "anna", "--password-file", "-")  # the certificate is known now
        output_of(*words, stdin=f"{gateway.password}\n", environment=home)
        assert document_of("status", environment=home)["gateway"] == "hall"

    def test_unknown_certificate_is_not_accepted_without_an_answer(self, gateway: Node, home: dict[str, str]) -> None:
        words = ("login", gateway.url, "--user", "anna", "--password-file", "-")
        refused = error_of(*words, code=Exit.UNREACHABLE, stdin="x\n", environment=home)
        assert "error[certificate-not-trusted]" in refused
        assert gateway.fingerprint in refused
        other = ("--fingerprint", "AB" * 32)
        refused = error_of(*words, *other, code=Exit.UNREACHABLE, stdin="x\n", environment=home)
        assert "error[certificate-changed]" in refused

    def test_wrong_password_leaves_no_context(self, gateway: Node, home: dict[str, str]) -> None:
        words = ("login", gateway.url, "--user", "anna", "--password-file", "-", "--fingerprint", gateway.fingerprint)
        assert "error[not-signed-in]" in error_of(*words, code=Exit.FAILED, stdin="guess\n", environment=home)
        assert items_of("context", "list", environment=home) == []

    def test_password_is_not_sent_over_plain_http(self, home: dict[str, str]) -> None:
        words = ("login", "http://192.0.2.1:8080", "--user", "anna", "--password-file", "-")
        assert "error[no-tls]" in error_of(*words, code=Exit.USAGE, stdin="x\n", environment=home)

    def test_command_of_a_data_directory_says_so(self, gateway: Node, home: dict[str, str]) -> None:
        sign_in(gateway, "anna", home)
        refused = error_of("store", "info", code=Exit.USAGE, environment=home)
        assert f"the context in use is {gateway.url}, and this command needs a data directory" in refused

    def test_tab_completes_contexts_and_users_stay_out(self, gateway: Node, home: dict[str, str]) -> None:
        sign_in(gateway, "anna", home, "--name", "hall")
        typed = {**home, "_WAYPOST_TEST_COMPLETE": "bash_complete", "_WAYPOST_COMPLETE": "bash_complete"}
        line = {**typed, "COMP_WORDS": "waypost context use h", "COMP_CWORD": "3"}
        assert run_waypost(environment=line).stdout == "plain,hall\n"
        line = {**typed, "COMP_WORDS": "waypost client show ", "COMP_CWORD": "3"}
        assert run_waypost(environment=line).stdout.strip() == ""


class TestHub:
    def test_fleet_is_managed_from_any_machine(self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]) -> None:
        assert "hub https://localhost" in sign_in(hub, "ops@default", home, "--name", "plant")
        [token] = items_of("token", "create", "--label", "site=lyon", environment=home)
        code, printed = init_gateway(fleet.folder, fleet.url, token["token"], name="hall")
        assert code == 0, printed
        assert [each["state"] for each in items_of("token", "list", environment=home)] == ["spent"]
        spare = items_of("token", "create", "--gateway", "yard", "--expires", "1h", environment=home)[0]["id"]
        assert output_of("token", "revoke", spare, environment=home) == f"{spare}: revoked\n"
        output_of("gateway", "label", "h*", "ring=canary", environment=home)

        def conditions() -> list[str]:
            rows = items_of("gateway", "list", "--selector", "ring=canary", environment=home)
            return [each["condition"] for each in rows]

        wait_until(lambda: conditions() == ["never"], timeout_s=60, what="it is listed, and never connected")

    def test_status(self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]) -> None:
        sign_in(hub, "ops@default", home)

        def are_equal() -> bool:
            [shown] = items_of("hub", "status", environment=home)
            text = " ".join(output_of("hub", "status", environment=home).split())
            assert set(shown["gateways"]) == {"known", "connected"}
            names = [problem["name"] for problem in shown["problems"]]
            return f"of {shown['gateways']['known']} connected" in text and all(name in text for name in names)

        wait_until(are_equal, timeout_s=60, what="the text has what the document has")

    def test_configuration_and_roll_out(self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]) -> None:
        sign_in(hub, "ops@default", home)
        self._enrol(fleet, home, "g1")
        file = fleet.folder / "address.yaml"
        file.write_text(
            "{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},\n"
            " spec: {address: jobs, type: queue}}\n"
        )
        [planned] = items_of("config", "apply", "-f", str(file), "g*", "--dry-run", environment=home)
        assert planned == {"gateway": "g1", "version": None}
        [made] = items_of("config", "apply", "-f", str(file), "g1", "--why", "test", environment=home)
        assert made == {"gateway": "g1", "version": 1}
        [version] = items_of("config", "history", "g1", environment=home)
        assert (version["made_by"], version["note"]) == ("ops@default", "test")
        assert [each["gateway"] for each in items_of("config", "list", environment=home)] == ["g1"]
        assert items_of("config", "get", "g1", environment=home)[0]["spec"]["address"] == "jobs"
        [begun] = items_of("rollout", "start", "-f", str(file), "--soak", "1s", "g1", environment=home)
        assert output_of("rollout", "pause", begun["id"], environment=home) == f"{begun['id']}: paused\n"
        assert output_of("rollout", "abort", begun["id"], environment=home) == f"{begun['id']}: aborted\n"
        [shown] = items_of("rollout", "status", begun["id"], environment=home)
        assert shown["state"] == "aborted"
        assert [each["id"] for each in items_of("rollout", "status", environment=home)] == [begun["id"]]

    def test_commands_and_alerts(self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]) -> None:
        sign_in(hub, "ops@default", home)
        self._enrol(fleet, home, "g2")
        sent = document_of("command", "send", "lamp@g2", "on", "--ttl", "1h", environment=home)
        assert (sent["state"], sent["sent_by"]) == ("waiting", "ops@default")
        assert [each["id"] for each in items_of("command", "list", environment=home)] == [sent["id"]]
        outlook = document_of("command", "send", "lamp@g2", "on", "--dry-run", environment=home)
        assert outlook["gateway"] == "g2"
        assert document_of("command", "cancel", sent["id"], environment=home)["state"] in ("cancelled", "cancelling")
        mute = document_of("alert", "mute", "--for", "1h", "--reason", "works", environment=home)
        assert mute["made_by"] == "ops@default"
        assert items_of("alert", "unmute", mute["id"], environment=home)[0]["id"] == mute["id"]
        items_of("alert", "list", environment=home)

    def test_authority_of_the_hub_is_accepted_not_its_certificate(
        self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]
    ) -> None:
        ca = (fleet.hub.data / "authority" / "ca.pem").read_text()
        assert hub.fingerprint == fingerprint(ca)
        words = ("login", hub.url, "--user", "ops@default", "--password-file", "-", "--ca")
        output_of(*words, str(fleet.hub.data / "authority" / "ca.pem"), stdin=f"{hub.password}\n", environment=home)
        stored = json.loads((Path(home["XDG_CONFIG_HOME"]) / "waypost" / "contexts.json").read_text())
        assert stored["contexts"]["localhost"]["ca"] == ca

    def test_users_are_managed_over_http(self, hub: Node, home: dict[str, str]) -> None:
        sign_in(hub, "ops@default", home)
        made = document_of("hub", "user", "add", "eve@default", "--allow", "view:#", environment=home)
        assert made["password"]
        assert [each["name"] for each in items_of("hub", "user", "list", environment=home)] == [
            "eve@default", "ops@default",
        ]  # fmt: skip
        output_of("hub", "user", "remove", "eve@default", environment=home)
        assert "error[user-not-found]" in error_of("hub", "user", "remove", "eve@default", code=1, environment=home)

    def test_limits_of_a_tenant_are_set_over_http_or_at_the_hub(
        self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]
    ) -> None:
        sign_in(hub, "ops@default", home)
        output_of("tenant", "set-quota", "acme", "gateways=7", "waitingBytes=1Mi", environment=home)
        [shown] = items_of("tenant", "quota", "acme", environment=home)
        assert (shown["source"], shown["gateways"], shown["waitingBytes"]) == ("operator", 7, 1 << 20)
        here = ("--data", str(fleet.hub.data))
        output_of("tenant", "set-quota", "acme", "commands=9", *here)

        def limits() -> tuple[int, int]:
            [row] = items_of("tenant", "quota", "acme", environment=home)
            return row["gateways"], row["commands"]

        wait_until(lambda: limits() == (7, 9), timeout_s=60, what="the hub follows its registry")
        output_of("tenant", "set-quota", "acme", "--reset", environment=home)
        [shown] = items_of("tenant", "quota", "acme", *here)
        assert shown["source"] == "default"
        for wrong in ("gateways=0", "gateways=many", "gatewais=7", "waitingBytes=0"):
            assert "error[wrong-usage]" in error_of("tenant", "set-quota", "acme", wrong, *here, code=Exit.USAGE)
        assert "error[wrong-usage]" in error_of("tenant", "set-quota", "acme", *here, code=Exit.USAGE)

    def test_certificate_of_the_hub_is_revoked_over_http(
        self, fleet: EnrolledFleet, hub: Node, home: dict[str, str]
    ) -> None:
        sign_in(hub, "ops@default", home)
        shown = x509.load_pem_x509_certificate((fleet.hub.data / "authority" / "server.pem").read_bytes())
        serial = f"{shown.serial_number:x}"
        assert output_of("hub", "revoke-certificate", environment=home).startswith(f"{serial}: revoked")
        assert "hub-certificate.revoke" in output_of("audit", environment=home)

    def test_what_has_no_route_names_the_data_directory(self, hub: Node, home: dict[str, str]) -> None:
        sign_in(hub, "ops@default", home)
        refused = error_of("alert", "test", code=Exit.USAGE, environment=home)
        assert "error[no-data-directory]" in refused
        assert "error[not-found]" in error_of("gateway", "forget", "nobody", code=Exit.FAILED, environment=home)

    @staticmethod
    def _enrol(fleet: EnrolledFleet, home: dict[str, str], name: str) -> None:
        [token] = items_of("token", "create", "--gateway", name, environment=home)
        code, printed = init_gateway(fleet.folder, fleet.url, token["token"], name=name)
        assert code == 0, printed
