"""Two hubs without the authority's key, and the process that has it, which is killed: nothing in use depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx
import pytest
import sqlalchemy as sa
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
from cloud.hub.enrolment.limits import PAGE_REQUEST_CHARACTERS_MAX
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.signatures import Signatures
from edge.appliance.identity.exchange import HubEnrolmentClient, NotIssued, trusting
from edge.appliance.identity.location import identity_file
from edge.appliance.identity.request import new_key, signing_request
from tests.support.artefacts import IMAGE, KEY, sealed
from tests.support.device_fleet import PASSWORD, arrive, soon, status_of, stored
from tests.support.enrolled import init_gateway
from tests.support.lake import rows
from tests.support.operator import HubOperator
from tests.support.password_device import PasswordDevice
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, free_port, gateway_at, wait_until

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
        self.folder, self.registry = folder, registry
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
                    folder / f"{name}.log", "hub", "run", "--data", str(folder / name), f"--amqp=127.0.0.1:{port}",
                    "--http=127.0.0.1:0", f"--lake={folder / 'lake'}", f"--config={folder / 'hub.yaml'}",
                )
            )
            for name, port in (("first", free_port()), ("second", 0))
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

    def register(self, device: str, gateway: str) -> None:
        """Register a device at the second hub."""
        operator, place = HubOperator(self.hubs[1]), f"{DEFAULT_TENANT}/{device}"
        document = {"ext": {"waypost": {"gateways": [gateway]}}}
        assert operator.ask("POST", f"/v1/devices/{place}", document).status == HTTPStatus.CREATED
        login = {"type": "hashed-password", "auth-id": device, "secrets": [{"pwd-plain": PASSWORD}]}
        assert operator.ask("PUT", f"/v1/credentials/{place}", [login]).status == HTTPStatus.NO_CONTENT

    def upload_artefact(self) -> None:
        """Store an artefact with one image."""
        operator = HubOperator(self.hubs[1])
        assert operator.send("POST", "artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}).status == 201
        assert operator.send("POST", "artefacts", sealed(IMAGE), "application/cose").status == 201
        part = operator.send("PUT", "artefacts/blinker/1.2.0/parts/0", IMAGE, "application/octet-stream")
        assert part.status == HTTPStatus.OK
        assert operator.send("POST", "artefacts/blinker/1.2.0/complete").status == HTTPStatus.OK

    def awaits_pages(self) -> bool:
        """Return whether the request of a hub for a page of devices waits."""
        with contextlib.closing(open_registry(sa.make_url(self.registry)).database) as database:
            name = self.own.fingerprint.hex()
            return bool(Signatures(database).waiting(name, 1, PAGE_REQUEST_CHARACTERS_MAX, pages=True))

    def landed(self) -> int:
        return len(rows(self.folder / "lake", "telemetry"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[SplitFleet]:
    with ExitStack() as stack:
        yield SplitFleet(tmp_path_factory.mktemp("split"), postgres.url(postgres.schema()), stack)


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


def test_devices_and_offers_come_from_hubs_without_the_key(fleet: SplitFleet) -> None:
    """Authority, hub and gateway are killed while a device is added: a gateway keeps those that it has."""
    first, second = fleet.hubs
    code, output = fleet.enrol("roof", fleet.token("roof"))
    assert code == 0, output
    with gateway_at(fleet.folder / "roof") as near:
        fleet.register("pump", "roof")
        arrive(near, "pump")
        fleet.authority.kill()
        fleet.register("fan", "roof")
        wait_until(fleet.awaits_pages, timeout_s=WAIT_S, what="the first hub requests a page")
        first.kill()
        near.kill()
        near.start()
        assert status_of(near, "pump") < 300
        assert "fan" not in stored(near)
        fleet.authority.start()
        first.start()
        arrive(near, "fan")
        fleet.upload_artefact()
        new = {"artefact": "blinker", "version": "1.2.0", "devices": ["pump"], "soak_s": 0}
        assert HubOperator(second).send("POST", "campaigns", new).status == HTTPStatus.CREATED
        soon(lambda: [each.version for each in stored(near)["pump"].offers] == ["1.2.0"], "the campaign is offered")


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
