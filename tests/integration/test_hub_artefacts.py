"""Artefacts of a hub: uploaded by API and commands, continued after breaks, downloaded by gateways with ranges."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.artefacts.manifest import ArtefactKind
from cloud.hub.artefacts.image_store import FOLDER
from cloud.hub.artefacts.limits import HUB_IMAGE_BYTES_MAX, PART_BYTES
from edge.appliance.identity.files import GatewayIdentity
from tests.support.artefacts import KEY, OTHER_KEY, sealed
from tests.support.command import error_of, items_in, items_of, output_of
from tests.support.configured_gateway import basic
from tests.support.enrolled import EnrolledFleet
from tests.support.http_client import Answer, ask, ask_port
from tests.support.lake import rows
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

IMAGE = b"image of a device" * 80_000
COSE = "application/cose"
BYTES = "application/octet-stream"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path_factory.mktemp("artefacts")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def hub(fleet: EnrolledFleet) -> HubOperator:
    hub = HubOperator(fleet.hub)
    assert hub.send("POST", "artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}).status == 201
    return hub


def added(hub: HubOperator, image: bytes = IMAGE, **fields: Any) -> dict[str, Any]:
    answer = hub.send("POST", "artefacts", sealed(image, **fields), COSE)
    assert answer.status == 201, answer
    return dict(answer.document)


def put(hub: HubOperator, path: str, number: int, image: bytes = IMAGE) -> Answer:
    part = image[number * PART_BYTES : (number + 1) * PART_BYTES]
    return hub.send("PUT", f"{path}/parts/{number}", part, BYTES)


def uploaded(hub: HubOperator, image: bytes = IMAGE, **fields: Any) -> str:
    """Upload an artefact; return its path below the API."""
    upload = added(hub, image, **fields)
    path = f"artefacts/{upload['artefact']['name']}/{upload['artefact']['version']}"
    for number in upload["missing"]:
        assert put(hub, path, number, image).status == 200
    answer = hub.send("POST", f"{path}/complete")
    assert (answer.status, answer.document["state"]) == (200, "stored"), answer
    return path


def reason(answer: Answer, status: int = 422) -> str:
    assert answer.status == status, answer
    return str(answer.document.get("reason", answer.document["code"]))


def test_upload_and_download(hub: HubOperator) -> None:
    path = uploaded(hub, name="plain")
    found = hub.get(path)
    assert (found["parts"], found["missing"]) == (2, [])
    assert found["artefact"]["sha256"] == hashlib.sha256(IMAGE).hexdigest()
    answer = hub.send("GET", f"{path}/image")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, IMAGE, str(len(IMAGE)))
    part = hub.send("GET", f"{path}/image", Range=f"bytes={PART_BYTES - 3}-{PART_BYTES + 2}")
    assert (part.status, part.body) == (206, IMAGE[PART_BYTES - 3 : PART_BYTES + 3])
    assert hub.send("GET", f"{path}/image", If_None_Match=answer.headers["etag"]).status == 304
    assert hub.send("GET", f"{path}/image", Range="bytes=99999999-").status == 416
    assert hub.send("GET", f"{path}/manifest").body == sealed(IMAGE, name="plain")


def test_upload_continues_with_the_missing_parts(hub: HubOperator, fleet: EnrolledFleet) -> None:
    image = IMAGE + b"resumed"
    path, fields = "artefacts/resumed/1.2.0", {"name": "resumed"}
    assert added(hub, image, **fields)["missing"] == [0, 1]
    assert put(hub, path, 1, image).status == 200
    assert reason(hub.send("POST", f"{path}/complete"), 409) == "conflict"
    assert hub.send("GET", f"{path}/image").status == 409
    fleet.hub.kill()
    fleet.hub.start()
    assert added(hub, image, **fields)["missing"] == [0]
    assert put(hub, path, 1, image).status == 200
    assert put(hub, path, 0, image).status == 200
    assert hub.send("POST", f"{path}/complete").status == 200
    assert hub.send("POST", f"{path}/complete").status == 200
    assert hub.send("GET", f"{path}/image").body == image


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (lambda: b"\x00", "malformed"),
        (lambda: sealed()[:-1], "truncated"),
        (lambda: sealed()[:-1] + bytes([sealed()[-1] ^ 1]), "forged"),
        (lambda: sealed(key=OTHER_KEY), "unknown-key"),
        (lambda: sealed(not_before=4_000_000_000), "not-yet-valid"),
        (lambda: sealed(size=HUB_IMAGE_BYTES_MAX + 1), "too-large"),
    ],
)
def test_manifest_is_refused_with_a_reason(hub: HubOperator, content: Any, fault: str) -> None:
    assert reason(hub.send("POST", "artefacts", content(), COSE)) == fault


def test_other_image_is_refused_and_deleted(hub: HubOperator) -> None:
    image = IMAGE + b"!"
    upload = added(hub, image, name="wrong")
    path = "artefacts/wrong/1.2.0"
    other = bytes(len(image))
    for number in upload["missing"]:
        assert put(hub, path, number, other).status == 200
    assert reason(hub.send("POST", f"{path}/complete")) == "forged"
    assert hub.get(path)["missing"] == [0, 1]
    assert uploaded(hub, image, name="wrong") == path


def test_artefact_with_the_digest_of_another_image_does_not_touch_it(hub: HubOperator) -> None:
    first = uploaded(hub, name="first-of-two")
    digest = hashlib.sha256(IMAGE).digest()
    other = "artefacts/second-of-two/1.2.0"
    assert added(hub, b"12345", name="second-of-two", sha256=digest)["missing"] == [0]
    assert put(hub, other, 0, b"12345").status == 200
    assert reason(hub.send("POST", f"{other}/complete")) == "forged"
    assert hub.send("GET", f"{first}/image").body == IMAGE


def test_odd_parameters(hub: HubOperator) -> None:
    assert hub.send("GET", "artefacts?tenant=").status == 200
    cursor = base64.urlsafe_b64encode(json.dumps(["a", "b", 2**70]).encode()).decode()
    assert hub.send("GET", f"artefacts?after={cursor}").status == 400
    assert hub.send("GET", "artefacts?after=x").status == 400


def test_part_of_another_size_is_refused(hub: HubOperator) -> None:
    added(hub, IMAGE + b"sizes", name="sizes")
    path = "artefacts/sizes/1.2.0/parts"
    assert reason(hub.send("PUT", f"{path}/0", b"short", BYTES)) == "truncated"
    assert reason(hub.send("PUT", f"{path}/1", bytes(PART_BYTES), BYTES)) == "too-large"
    assert hub.send("PUT", f"{path}/0", bytes(PART_BYTES + 1), BYTES).status == 413
    assert hub.send("PUT", f"{path}/2", b"x", BYTES).status == 404


def test_downgrade_is_refused(hub: HubOperator) -> None:
    uploaded(hub, name="newer", sequence=12)
    older = sealed(IMAGE, name="newer", version="1.1.0", sequence=11)
    assert reason(hub.send("POST", "artefacts", older, COSE)) == "downgraded"


def test_remove_deletes_the_image(hub: HubOperator, fleet: EnrolledFleet) -> None:
    folder = fleet.lake / FOLDER / "default"
    before = set(folder.iterdir()) if folder.is_dir() else set()
    path = uploaded(hub, b"removed", name="removed")
    [made] = set(folder.iterdir()) - before
    assert hub.send("DELETE", path).status == 200
    assert not made.exists()
    assert hub.send("GET", path).status == hub.send("DELETE", path).status == 404


def test_gateway_downloads_with_its_certificate(hub: HubOperator, fleet: EnrolledFleet) -> None:
    uploaded(hub, name="fetched", kind=ArtefactKind.MODEL)
    fleet.enrol("hall")
    identity = GatewayIdentity(fleet.folder / "hall")
    context = ssl.create_default_context(cadata=identity.authority())
    path = "/uplink/artefacts/fetched/1.2.0"
    assert ask(fleet.hub, "GET", f"{path}/image", tls=context).status == 401
    context.load_cert_chain(identity.file)
    assert ask(fleet.hub, "GET", f"{path}/manifest", tls=context).body == sealed(
        IMAGE, name="fetched", kind=ArtefactKind.MODEL
    )
    part = ask(fleet.hub, "GET", f"{path}/image", headers={"Range": "bytes=5-9"}, tls=context)
    assert (part.status, part.body) == (206, IMAGE[5:10])
    context.set_alpn_protocols(["http/1.1"])
    assert ask_port(fleet.hub_port, "GET", f"{path}/image", tls=context).body == IMAGE  # the port of the uplink
    fleet.fleet("revoke", "hall")
    wait_until(
        lambda: ask(fleet.hub, "GET", f"{path}/image", tls=context).status == 401, timeout_s=60, what="it is revoked"
    )


@pytest.mark.timeout(500)  # a gateway is enrolled and fetches, which waits some seconds after a failure
def test_gateway_fetches_what_the_hub_tells_it_and_serves_it(fleet: EnrolledFleet, hub: HubOperator) -> None:
    """The list and the trusted key come with the signed configuration, the files over the port of the uplink. A device
    downloads and reports over HTTP, and the report lands in the lake."""
    uploaded(hub, name="told", kind=ArtefactKind.MODEL)
    gateway = fleet.enrol("mill")
    [user] = items_in(fleet.here("mill", "user", "add", "pump-1", "--profile", "sensor", "--json"))
    gateway.start()
    spec = {"trustedKeys": [KEY.public.pem], "artefacts": [{"name": "told", "version": "1.2.0"}]}
    document = {"apiVersion": "waypost/v1", "kind": "Artefacts", "metadata": {"name": "gateway"}, "spec": spec}
    fleet.fleet("config", "apply", "mill", "-f", fleet.written("artefacts.yaml", json.dumps(document)))
    image = fleet.folder / "mill" / "artefacts" / "1.image"
    wait_until(image.exists, timeout_s=120, what="it is fetched and verified")
    fields = basic("pump-1", user["password"])
    path = "/artefacts/told/1.2.0"

    def served() -> bool:
        return ask(gateway, "GET", f"{path}/manifest", headers=fields).status == 200

    wait_until(served, timeout_s=60, what="it is served")
    part = ask(gateway, "GET", f"{path}/image", headers={**fields, "Range": f"bytes={len(IMAGE) - 9}-"})
    assert (part.status, part.body) == (206, IMAGE[-9:])
    assert ask(gateway, "GET", f"{path}/image", headers=fields).body == IMAGE
    assert ask(gateway, "GET", f"{path}/image").status == 401
    report = json.dumps({"state": "installed"}).encode()
    json_fields = {**fields, "Content-Type": "application/json"}
    assert ask(gateway, "POST", f"{path}/report", report, json_fields).status == 202

    def reported() -> bool:
        found = rows(fleet.folder / "hub" / "lake", "telemetry")
        return any(row["address"] == "plant/pump-1/artefact-report" for row in found)

    wait_until(reported, timeout_s=60, what="the report lands")

    def states() -> list[tuple[str, str, str]]:
        found = hub.get("artefact-reports?artefact=told&version=1.2.0")["reports"]
        return [(each["device"], each["state"], each["gateway"]) for each in found]

    wait_until(lambda: states() == [("pump-1", "installed", "mill")], timeout_s=60, what="the registry has it")
    fleet.hub.kill()
    healthy = json.dumps({"state": "healthy"}).encode()
    assert ask(gateway, "POST", f"{path}/report", healthy, json_fields).status == 202
    fleet.hub.start()
    wait_until(lambda: states() == [("pump-1", "healthy", "mill")], timeout_s=120, what="the report comes later")
    [counted] = hub.get("artefact-reports/counts?artefact=told")["counts"]
    assert counted == {"artefact": "told", "version": "1.2.0", "state": "healthy", "devices": 1}
    [row] = items_of("artefact", "reports", "--data", str(fleet.hub.data), "told", "1.2.0", "--state", "healthy")
    assert (row["device"], row["gateway"]) == ("pump-1", "mill")
    assert "no report" in output_of("artefact", "reports", "--data", str(fleet.hub.data), "--device", "pump-2")
    for wrong in ("state=exploded", "after=x", "artefact=%00"):
        assert hub.send("GET", f"artefact-reports?{wrong}").status == 400
    fleet.fleet("revoke", "mill")


def test_changes_are_in_the_audit(hub: HubOperator) -> None:
    path = uploaded(hub, b"audited", name="audited")
    hub.send("DELETE", path)
    lines = hub.get("audit?limit=100")["lines"]
    actions = [each["action"] for each in lines if "audited" in each["subject"]]
    assert sorted(set(actions)) == ["artefact.complete", "artefact.create", "artefact.remove"]


class TestCommands:
    """`waypost artefact` over HTTP and in the data directory."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        (tmp_path / "image.bin").write_bytes(IMAGE)
        return tmp_path / "image.bin"

    def test_upload_list_show_remove(self, fleet: EnrolledFleet, hub: HubOperator, files: Path) -> None:
        files.with_name("image.bin.cose").write_bytes(sealed(IMAGE, name="typed"))
        place = ("--data", str(fleet.hub.data))
        [done] = items_of("artefact", "upload", *place, str(files))
        assert (done["name"], done["state"]) == ("typed", "stored")
        assert hub.send("GET", "artefacts/typed/1.2.0/image").body == IMAGE
        assert "typed" in output_of("artefact", "list", *place)
        [shown] = items_of("artefact", "show", *place, "typed", "1.2.0")
        assert (shown["sequence"], shown["missing_parts"]) == (12, 0)
        output_of("artefact", "remove", *place, "typed", "1.2.0")
        assert "error[not-found]" in error_of("artefact", "show", *place, "typed", "1.2.0", code=1)

    def test_refusal_has_its_reason(self, fleet: EnrolledFleet, hub: HubOperator, files: Path) -> None:
        files.with_name("image.bin.cose").write_bytes(sealed(IMAGE, key=OTHER_KEY, name="typed"))
        said = error_of("artefact", "upload", "--data", str(fleet.hub.data), str(files), code=4)
        assert "reason: unknown-key" in said

    def test_tenant_is_checked(self, fleet: EnrolledFleet) -> None:
        said = error_of("artefact", "list", "--data", str(fleet.hub.data), "--tenant", "../x", code=2)
        assert "error[invalid-name]" in said

    def test_keys(self, fleet: EnrolledFleet, hub: HubOperator, tmp_path: Path) -> None:
        place, file = ("--data", str(fleet.hub.data)), tmp_path / "other.pub.pem"
        file.write_text(OTHER_KEY.public.pem)
        output_of("artefact", "keys", "add", *place, "--label", "Other", str(file))
        found = {each["id"]: each["label"] for each in items_of("artefact", "keys", "list", *place)}
        assert found == {KEY.public.id: "Maker", OTHER_KEY.public.id: "Other"}
        output_of("artefact", "keys", "remove", *place, OTHER_KEY.public.id)
        assert [each["id"] for each in hub.get("artefact-keys")["keys"]] == [KEY.public.id]
        file.write_text(json.dumps("no key"))
        assert "error[invalid-artefact-key]" in error_of("artefact", "keys", "add", *place, str(file), code=2)
