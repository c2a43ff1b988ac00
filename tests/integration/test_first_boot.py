"""First boot from the card's file to an enrolled gateway, with the real program and hub, and kills at any moment."""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from bridge.enrolment import EnrolmentToken
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.location import sqlite_url
from edge.appliance.first_boot.journal import state_of
from edge.appliance.first_boot.places import RESTART, CardPaths
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.location import identity_file
from edge.card.text import document, text_of
from tests.support.clock import Clock
from tests.support.command import item_in, kill_waypost, run_program, run_waypost
from tests.support.enrolled import EnrolledFleet
from tests.support.http_proxy import HttpProxy
from tests.support.processes import Waypost, free_port, wait_until
from tests.support.seeds import chosen_seed

WAIT_S = 60.0


class Machine:
    """Gateway installed from a card, inside a folder."""

    def __init__(self, fleet: EnrolledFleet, name: str, **hub: object) -> None:
        self.places = CardPaths(fleet.folder / name)
        self.name = name
        self.data = self.places.data
        self.places.card.mkdir(parents=True)
        self.data.mkdir(parents=True, mode=0o700)
        self.write(url=fleet.url, **hub)

    def write(self, **hub: object) -> None:
        self.places.file.write_text(text_of(document(self.name, {"hub": {**hub, "forward": ["plant/#"]}})))

    def settings(self) -> tuple[str, ...]:
        return ("first-boot", "settings", "--root", str(self.places.root))

    def enrol(self, *more: str) -> tuple[str, ...]:
        return ("first-boot", "enrol", "--data", str(self.data), "--root", str(self.places.root), *more)

    def make(self) -> None:
        """Run the step that the service takes before its first start."""
        places = ("--mqtt", "127.0.0.1:0", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "none")
        done = run_waypost("init", "--data", str(self.data), "--name", "waypost", *places)
        assert done.returncode == 0, done.stderr

    def status(self, port: int) -> dict[str, Any]:
        """Return the status of the running gateway."""
        words = ("status", "--data", str(self.data), "--http", f"127.0.0.1:{port}", "--json")
        return dict(item_in(self.run(*words)))

    def run(self, *words: str, code: int = 0) -> str:
        done = run_waypost(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return str(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def token(fleet: EnrolledFleet) -> str:
    return fleet.fleet("token", "create")


def certificates(fleet: EnrolledFleet, name: str) -> list[str]:
    """Return the serials of a gateway's certificates, including revoked ones."""
    with closing(Enrolments(sqlite_url(fleet.folder / "hub" / "registry.db"))) as registry:
        return [each.serial for each in registry.certificates() if each.gateway == name]


def test_gateway_enrols_while_it_serves_and_attests_everywhere(fleet: EnrolledFleet) -> None:
    machine = Machine(fleet, "hall", token=token(fleet))
    assert "new settings are applied" in machine.run(*machine.settings())
    machine.make()
    with Waypost(fleet.folder / "hall.log", "run", "--data", str(machine.data)) as running:
        assert (machine.places.root / "run/waypost/light").read_text() == "working\n"
        said = machine.run(*machine.enrol())
        assert said.index("Waypost hall: being set up") < said.index("enrolled, certificate")

        def status() -> dict[str, Any]:
            return machine.status(running.port("http"))

        wait_until(lambda: "connected" in str(status()["uplink"]), timeout_s=WAIT_S, what="its uplink", every_s=0.3)
    shown = item_in(fleet.fleet("show", "hall", "--json"))
    [serial] = certificates(fleet, "hall")
    attested = shown["attestation"]
    assert (shown["state"], attested["certificate"], attested["hostname"]) == ("good", serial, "hall")
    assert attested["settings"] == state_of(machine.data).settings
    assert serial in fleet.fleet("show", "hall")
    assert "enrolled" in (machine.places.root / "run/waypost/issue").read_text()
    assert (machine.places.root / "run/waypost/light").read_text() == "done\n"
    assert state_of(machine.data).summary()["certificate"] == serial
    assert "settings unchanged" in machine.run(*machine.settings())
    machine.places.card.rename(machine.places.card.with_name("away"))
    machine.places.card.mkdir()  # mount point of the first partition
    assert "the card's first partition cannot be read: it is not mounted" in machine.run(*machine.settings(), code=1)
    assert (machine.places.root / "run/waypost/light").read_text() == "waiting\n"
    machine.run(*machine.enrol())
    assert certificates(fleet, "hall") == [serial], "what is done is not done again"
    for build in ("a" * 64, "b" * 64):  # the build of each start; the second one is an update
        (machine.places.root / "run/waypost-root").mkdir(parents=True, exist_ok=True)
        (machine.places.root / "run/waypost-root/sha256").write_text(build)
        machine.run(*machine.enrol("--once"))
        assert item_in(fleet.fleet("show", "hall", "--json"))["attestation"]["root"] == build


def test_enrols_through_a_proxy_at_the_allowed_url(fleet: EnrolledFleet) -> None:
    """The first URL's port is blocked; the proxy's password is where it is needed and in no public place."""
    with HttpProxy([fleet.hub_port], "plant:hidden") as proxy:
        machine = Machine(fleet, "behind")
        own = {"host": "127.0.0.1", "port": proxy.port}
        urls = {"url": f"wss://localhost:{free_port()}", "failover": [fleet.url]}
        made = token(fleet)
        machine.write(**urls, proxy=own, token=made)
        machine.run(*machine.settings())
        machine.make()
        assert "set its user name and password" in machine.run(*machine.enrol("--once"), code=1)
        machine.write(**urls, proxy={**own, "username": "plant", "password": "hidden"}, token=made)
        machine.run(*machine.settings())
        said = machine.run(*machine.enrol("--once"))
        assert "enrolled, certificate" in said
        assert proxy.asked[-1] == f"CONNECT localhost:{fleet.hub_port} HTTP/1.1"
        assert proxy.refused[-1] == 403, "the first URL's port"
        with Waypost(fleet.folder / "behind.log", "run", "--data", str(machine.data)) as running:
            wait_until(
                lambda: "connected" in str(machine.status(running.port("http"))["uplink"]),
                timeout_s=WAIT_S, what="its uplink", every_s=0.3,
            )  # fmt: skip
    assert len(certificates(fleet, "behind")) == 1
    assert "hidden" not in said + machine.places.applied.read_text() + (fleet.folder / "behind.log").read_text()


def test_failed_enrolment_is_reported_everywhere(fleet: EnrolledFleet) -> None:
    machine = Machine(fleet, "spent", token=EnrolmentToken.make(EnrolmentToken.parse(token(fleet)).authority).text)
    machine.run(*machine.settings())
    machine.make()
    said = machine.run(*machine.enrol("--once"), code=1)
    assert "is unknown to this hub" in said
    assert "waypost token create" in said
    assert "is unknown to this hub" in (machine.places.root / "run/waypost/issue").read_text()
    assert (machine.places.root / "run/waypost/light").read_text() == "waiting\n"
    machine.places.file.write_text("kind: Card\nname: hall\n")
    assert 'unknown field "name"' in machine.run(*machine.settings(), code=2)
    with Waypost(fleet.folder / "spent.log", "run", "--data", str(machine.data)) as running:
        status = machine.status(running.port("http"))
    [refused] = [each for each in status["problems"] if each["name"] == "card settings"]
    assert 'unknown field "name"' in refused["what"]
    assert "correct waypost.yaml" in refused["next_step"]
    machine.run(*machine.enrol("--once"), code=1)
    assert 'unknown field "name"' in (machine.places.root / "run/waypost/issue").read_text()
    [problem] = [each for each in status["problems"] if each["name"] == "first boot"]
    assert (problem["severity"], "is unknown to this hub" in problem["what"]) == ("warning", True)
    assert "is unknown to this hub" in str(status["first_boot"]["trouble"])
    machine.write(url=fleet.url, token=token(fleet))
    machine.run(*machine.settings())
    machine.run(*machine.enrol("--once"))
    assert len(certificates(fleet, "spent")) == 1


def test_changed_settings_apply_with_a_spent_token(fleet: EnrolledFleet) -> None:
    """A file with changed settings may repeat the used token."""
    machine = Machine(fleet, "again", token=token(fleet))
    text = machine.places.file.read_text()
    machine.run(*machine.settings())
    machine.make()
    machine.run(*machine.enrol("--once"))
    machine.places.file.write_text(text.replace("forward:\n    - plant/#", "forward:\n    - plant/#\n    - alarm/#"))
    assert "new settings" in machine.run(*machine.settings())
    machine.run(*machine.enrol("--once"))
    assert len(certificates(fleet, "again")) == 1
    assert "alarm/#" in machine.run("get", "--data", str(machine.data), "-o", "yaml")


def test_second_card_with_the_same_settings_is_refused(fleet: EnrolledFleet) -> None:
    """Name and token belong to an enrolled gateway, which stays unchanged."""
    first, second = Machine(fleet, "twin", token=token(fleet)), Machine(fleet, "other-card")
    second.name = first.name
    second.places.file.write_bytes(first.places.file.read_bytes())
    for machine in (first, second):
        machine.run(*machine.settings())
        machine.make()
    first.run(*first.enrol("--once"))
    said = second.run(*second.enrol("--once"), code=1)
    assert "the hub refuses a certificate" in said
    assert "has been used" in said
    assert "waypost token create" in said
    [serial] = certificates(fleet, "twin")
    assert item_in(fleet.fleet("show", "twin", "--json"))["attestation"]["certificate"] == serial
    assert not identity_file(second.data).exists()


def test_clock_in_1970_delays_enrolment_until_it_is_right(fleet: EnrolledFleet, tmp_path: Path) -> None:
    machine = Machine(fleet, "past", token=token(fleet))
    machine.run(*machine.settings())
    machine.make()
    with Clock(tmp_path, synchronized=False) as clock:
        clock.set(-int(time.time()), synchronized=False)
        done = run_program(*machine.enrol("--once"), environment=clock.environment)
    assert done.returncode == 1
    assert f"the certificate of localhost:{fleet.hub_port} begins in the future" in done.stderr
    assert "by this machine's clock, 1970-01-01" in done.stderr
    assert "no time server has answered" in done.stderr
    assert "timeServers" in state_of(machine.data).next_step
    [serial] = certificates(fleet, "past")
    machine.run(*machine.enrol("--once"))
    assert certificates(fleet, "past") == [serial]
    assert state_of(machine.data).summary()["certificate"] == serial


def test_devices_are_served_over_tls_with_the_certificate_of_the_hub(fleet: EnrolledFleet) -> None:
    """`image run` promises TLS for a gateway that has enrolled."""
    machine = Machine(fleet, "tls", token=token(fleet))
    settings = machine.places.file.read_text()
    machine.run(*machine.settings())
    machine.make()
    ports = {name: free_port() for name in ("mqtts", "https")}
    options = [word for name, port in ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
    restart = machine.places.root / RESTART
    machine.run(*machine.enrol(*options, "--restart", "--once"))
    assert restart.exists(), "a listener is opened at a start only"
    trusting = ssl.create_default_context(cadata=GatewayIdentity(machine.data).authority())
    with Waypost(fleet.folder / "tls.log", "run", "--data", str(machine.data)):
        for port in ports.values():
            with (
                socket.create_connection(("127.0.0.1", port), WAIT_S) as opened,
                trusting.wrap_socket(opened, server_hostname="tls.local") as shown,
            ):
                assert ("DNS", "tls.local") in shown.getpeercert()["subjectAltName"]  # type: ignore[index]
        trusting.check_hostname = False
        page = http.client.HTTPSConnection("127.0.0.1", ports["https"], timeout=WAIT_S, context=trusting)
        statuses = {}
        for name in ("tls.local", "elsewhere.example"):
            page.request("GET", "/api/v1/status", headers={"Host": name})
            with page.getresponse() as answer:
                statuses[name] = answer.status
                answer.read()
        page.close()
        assert statuses["tls.local"] == HTTPStatus.UNAUTHORIZED, "its console asks who it is"
        assert statuses["elsewhere.example"] != HTTPStatus.UNAUTHORIZED, "no page elsewhere leads here"
    restart.unlink()
    text = machine.run("get", "--data", str(machine.data), "-o", "yaml")
    (fleet.folder / "tls.yaml").write_text(text.replace(f"127.0.0.1:{ports['mqtts']}", "127.0.0.1:0"))
    machine.run("apply", "--data", str(machine.data), "-f", str(fleet.folder / "tls.yaml"))
    machine.places.file.write_text(f"{settings}# the same once more\n")
    assert "new settings" in machine.run(*machine.settings())
    machine.run(*machine.enrol(*options, "--restart", "--once"))
    assert not restart.exists(), "a listener that was changed stays so"


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_kills_at_any_moment_end_in_one_enrolment(fleet: EnrolledFleet, kills: int) -> None:
    drawn = random.Random(chosen_seed(16))
    killed = 0
    number = 0
    while killed < kills:
        number += 1
        assert number < 20 * kills, "it ends before it can be killed"
        machine = Machine(fleet, f"cut-{kills}-{number}", token=token(fleet))
        killed += kill_waypost(*machine.settings(), after_s=drawn.uniform(0, 0.05))
        machine.run(*machine.settings())
        machine.make()
        for _ in range(drawn.randrange(1, 4)):
            killed += kill_waypost(*machine.enrol(), after_s=drawn.uniform(0, 0.3))
        machine.run(*machine.enrol())
        [serial] = certificates(fleet, machine.name)
        assert state_of(machine.data).summary()["certificate"] == serial
        assert not machine.places.file.exists()
    print(f"{killed} kills of {number} gateways")


def test_enrolment_waits_for_a_hub_that_starts_later(fleet: EnrolledFleet) -> None:
    """The gateway retries until the hub answers, and reports what it waits for."""
    machine = Machine(fleet, "late", token=token(fleet))
    machine.run(*machine.settings())
    machine.make()
    fleet.hub.kill()
    ended: list[str] = []
    waiting = threading.Thread(target=lambda: ended.append(machine.run(*machine.enrol())))
    waiting.start()
    try:
        wait_until(lambda: "does not answer" in state_of(machine.data).trouble, timeout_s=WAIT_S, what="it says so")
    finally:
        fleet.hub.start()
        waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert "enrolled" in ended[0]
    assert state_of(machine.data).trouble == ""
