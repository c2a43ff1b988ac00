"""Two hubs without the authority's key, and the process that has it, which is killed: nothing in use depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
import pytest
from cryptography import x509

from bridge.enrolment import (
    CERTIFICATE_PATH,
    RENEWAL_PATH,
    REVOKED_PATH,
    EnrolmentToken,
    RefusalReason,
    RenewalRequest,
    enrolment_request,
)
from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment.authority import OwnAuthority
from edge.appliance.identity.exchange import HubEnrolmentClient, NotIssued, trusting
from edge.appliance.identity.location import identity_file
from edge.appliance.identity.request import new_key, signing_request
from tests.support.enrolled import init_gateway
from tests.support.lake import rows
from tests.support.operator import HubOperator
from tests.support.password_device import PasswordDevice
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, gateway_at, wait_until

WAIT_S: Final = 60.0
HUB: Final = """\
apiVersion: waypost/v1
kind: Hub
spec: {{registry: '{registry}', gatherMilliseconds: 100, authority: {{certificate: '{folder}/ca.crt'{key}}}}}
"""
ADDRESS: Final = b"""
apiVersion: waypost/v1
kind: Address
metadata: {name: far}
spec: {address: "far/#", type: topic}
"""


class SplitFleet:
    """Two hubs, and the authority's process."""

    def __init__(self, folder: Path, registry: str, stack: ExitStack) -> None:
        self.folder = folder
        self.own = OwnAuthority.make("fleet", 1_700_000_000.0)
        (folder / "ca.crt").write_text(self.own.pem)
        (folder / "ca.key").write_text(self.own.key_pem)
        for name, key in (("hub", ""), ("authority", f", key: '{folder}/ca.key'")):
            (folder / f"{name}.yaml").write_text(HUB.format(registry=registry, folder=folder, key=key))
        program = ("hub", "authority", "--config", str(folder / "authority.yaml"), "--http=127.0.0.1:0")
        self.authority = stack.enter_context(Waypost(folder / "authority.log", *program))
        self.hubs = [
            stack.enter_context(
                Waypost(
                    folder / f"{name}.log", "hub", "run", "--data", str(folder / name), "--amqp=127.0.0.1:0",
                    "--http=127.0.0.1:0", f"--lake={folder / 'lake'}", f"--config={folder / 'hub.yaml'}",
                )
            )
            for name in ("first", "second")
        ]  # fmt: skip

    def token(self, gateway: str) -> str:
        made = HubOperator(self.hubs[0]).send("POST", "tokens", {"gateways": [gateway]})
        assert made.status == HTTPStatus.CREATED, made
        return str(made.document["tokens"][0]["token"])

    def enrol(self, name: str, token: str) -> tuple[int, str]:
        url = f"amqps://localhost:{self.hubs[0].port('amqps')}"
        return init_gateway(self.folder, url, token, name=name)

    def ask_first_certificate(self, name: str, token: str) -> None:
        """Ask once, as `waypost init` does several times."""
        endpoint = ListenEndpoint("localhost", self.hubs[0].port("amqps"))
        request = enrolment_request(EnrolmentToken.parse(token), name, signing_request(new_key()))
        HubEnrolmentClient(endpoint).ask(CERTIFICATE_PATH, request, trusting(self.own.pem))

    def revoked_at(self, hub: Waypost) -> set[int]:
        """Return the serial numbers in the revocation list of a hub."""
        answer = httpx.get(
            f"https://localhost:{hub.port('https')}{REVOKED_PATH}", verify=trusting(self.own.pem), timeout=WAIT_S
        )
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return set()
        return {each.serial_number for each in x509.load_der_x509_crl(answer.content)}

    def renewed(self, name: str, hub: Waypost) -> bool:
        """Return whether the hub has renewed the certificate."""
        try:
            self.renew(name, hub)
        except NotIssued:
            return False
        return True

    def renew(self, name: str, hub: Waypost) -> None:
        file = identity_file(self.folder / name)
        context = trusting(self.own.pem)
        context.load_cert_chain(file, file)
        endpoint = ListenEndpoint("localhost", hub.port("amqps"))
        request = RenewalRequest(signing_request(new_key()))
        assert HubEnrolmentClient(endpoint).ask(RENEWAL_PATH, request, context).gateway == name

    def landed(self) -> int:
        return len(rows(self.folder / "lake", "telemetry"))


@pytest.fixture
def fleet(tmp_path: Path, postgres: Postgres) -> Iterator[SplitFleet]:
    with ExitStack() as stack:
        yield SplitFleet(tmp_path, postgres.url(postgres.schema()), stack)


def test_fleet_goes_on_without_its_authority(fleet: SplitFleet) -> None:
    first, second = fleet.hubs
    code, output = fleet.enrol("hall", fleet.token("hall"))
    assert code == 0, output
    assert not any(fleet.own.key_pem.encode() in each.read_bytes() for each in files_of(first, second))
    serial = x509.load_pem_x509_certificate(identity_file(fleet.folder / "hall").read_bytes()).serial_number
    with gateway_at(fleet.folder / "hall") as near:
        device = PasswordDevice(fleet.folder / "hall", near.port("mqtt"))
        device.send(5)
        wait_until(lambda: fleet.landed() == 5, timeout_s=WAIT_S, what="5 in the lake")
        for hub in fleet.hubs:
            wait_until(lambda hub=hub: fleet.renewed("hall", hub), timeout_s=WAIT_S, what="it is renewed")
        token = fleet.token("yard")
        fleet.authority.kill()
        with pytest.raises(NotIssued, match="waypost hub authority") as refused:
            fleet.ask_first_certificate("yard", token)
        assert refused.value.reason == RefusalReason.UNAVAILABLE.value
        with pytest.raises(NotIssued) as refused:
            fleet.renew("hall", second)
        assert refused.value.reason == RefusalReason.UNAVAILABLE.value
        device.send(5)
        wait_until(lambda: fleet.landed() == 10, timeout_s=WAIT_S, what="it goes on")
        second.kill()
        second.start()  # its certificate is still there
        fleet.authority.start()
        code, output = fleet.enrol("yard", token)
        assert code == 0, output
        operator = HubOperator(second)
        sent = operator.send("POST", "configurations/hall", ADDRESS, "application/yaml")
        assert sent.status == HTTPStatus.CREATED, sent
        wait_until(
            lambda: operator.get("configurations/hall")["state"] == "confirmed", timeout_s=WAIT_S, what="it is in force"
        )
        revoked = operator.send("POST", "gateways/hall/revoke")
        assert revoked.status == HTTPStatus.OK, revoked
        for hub in fleet.hubs:
            wait_until(lambda hub=hub: serial in fleet.revoked_at(hub), timeout_s=WAIT_S, what="it is in the list")
        device.close()


def files_of(*hubs: Waypost) -> Iterator[Path]:
    for hub in hubs:
        yield from (each for each in hub.data.rglob("*") if each.is_file())


def test_process_without_the_key_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(OwnAuthority.make("fleet", 1_700_000_000.0).pem)
    file = tmp_path / "hub.yaml"
    file.write_text(HUB.format(registry=f"sqlite:///{tmp_path}/registry.db", folder=tmp_path, key=""))
    process = Waypost(tmp_path / "log", "hub", "authority", "--config", str(file))
    with pytest.raises(AssertionError, match="are needed"):
        process.start()
