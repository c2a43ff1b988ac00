"""Two tenants of one hub, with gateways and users of the same names, try to cross every boundary between them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from click.testing import CliRunner
from proton import ConnectionException, Message, Timeout
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached, SendException

from bridge import plain
from bridge.engine import DeliveryState
from bridge.manifest import GENESIS, HOUR_NS, ManifestStatement
from bridge.message import Run
from cloud.fleet.users import user
from cloud.hub.limits import RATE_AHEAD_S
from tests.support.lake import read_columns
from tests.support.processes import wait_until
from tests.support.tenants import EPOCH, WAIT_S, TenantHub, batch, body, tenant_hub

ALL = ("send:#", "recv:#", "view:#", "manage:#")
USERS: dict[str, Sequence[str]] = {
    "app@alpha": ALL,
    "app@beta": ALL,
    "narrow@alpha": ("recv:plant/1/#",),
    "leaver@alpha": ("recv:#",),
    "ops@alpha": ("view:$fleet",),
    "boss@alpha": ("manage:$fleet",),
    "caller@alpha": ("send:command/gw1/pump7",),
    "app@small": ALL,
}
RATE = 100 << 10
QUOTAS: dict[str, dict[str, Any]] = {
    "small": {
        "connections": 3, "applications": 1, "gateways": 2, "bytesPerSecond": RATE, "storedBytes": "64Ki", "commands": 2
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantHub]:
    with tenant_hub(tmp_path_factory.mktemp("tenants"), USERS, QUOTAS) as running:
        for tenant in ("alpha", "beta"):
            with running.gateway(tenant, "gw1") as gateway:
                said = f"of {tenant}".encode()
                assert gateway.send(batch("plant/1", 0, [said] * 3, space="beta")).settled() == [DeliveryState.ACCEPTED]
        yield running


def landed(hub: TenantHub, table: str, *columns: str, gateway: str) -> set[tuple[Any, ...]]:
    """Return rows of gateways of this name, by tenant."""
    return {
        (tenant, *rest) for name, tenant, *rest in read_columns(hub.data / "lake", table, "gateway", "tenant", *columns)
        if name == gateway
    }  # fmt: skip


class TestGateways:
    def test_equal_gateway_names_are_separate(self, hub: TenantHub) -> None:
        """Equal names in two tenants are separate, also if the header of a batch names the other one's space."""
        found = landed(hub, "telemetry", "sequence", "body", gateway="gw1")
        assert found == {(tenant, i, f"of {tenant}".encode()) for tenant in ("alpha", "beta") for i in range(3)}

    @pytest.mark.parametrize("claimed", ["gw2", "beta/gw1", "waypost://beta/gw1", ""])
    def test_container_id_cannot_claim_another_gateway(self, hub: TenantHub, claimed: str) -> None:
        with hub.gateway("alpha", "gw1", container_id=claimed or "gw1@beta") as gateway:
            assert gateway.closed
            assert gateway.condition is not None
            assert gateway.condition.name == "amqp:unauthorized-access"
            assert "the certificate names gateway 'gw1'" in gateway.condition.description

    def test_annotation_cannot_claim_another_gateway(self, hub: TenantHub) -> None:
        """A gateway may send any plain AMQP in its own name, and nothing in the name of another one."""
        run = Run("plain/1", "device-1", 1, b"", [b"x"], time.time_ns())
        with hub.gateway("alpha", "gw-plain", capabilities=()) as gateway:
            gateway.send(plain.messages(plain.Hop("gw1", EPOCH), 7, run)[0])
            gateway.send(plain.messages(plain.Hop("waypost://beta/gw-plain", EPOCH), 7, run)[0])
            gateway.send(plain.messages(plain.Hop("gw-plain", EPOCH), 7, run)[0])
            assert gateway.settled() == [DeliveryState.REJECTED, DeliveryState.REJECTED, DeliveryState.ACCEPTED]
        assert landed(hub, "telemetry", "sequence", gateway="gw-plain") == {("alpha", 7)}

    def test_documents_cannot_claim_another_gateway(self, hub: TenantHub) -> None:
        claim = {"tenant": "beta", "gateway": "gw1"}
        entry = {"epoch": EPOCH, "address": "a", "first_sequence": 1, "last_sequence": 2, "reason": "expired"}
        with hub.gateway("alpha", "gw-paper", target="ledger") as gateway:
            gateway.send(plain.data_section(json.dumps({**claim, "ranges": [{**claim, **entry}]}).encode()))
            gateway.send(plain.data_section(json.dumps({**claim, **entry, "first_sequence": 2}).encode()))
            said = gateway.settled()
        assert set(said) == {DeliveryState.ACCEPTED}, "landed as its own, or kept as what cannot be read"
        with hub.gateway("alpha", "gw-paper", target="status") as gateway:
            assert gateway.send(plain.data_section(json.dumps({**claim, "state": "forged"}).encode())).settled()
        document = hub.ask("/api/v1/gateways/gw-paper", "app@alpha")[1]
        assert document["tenant"] == "alpha"
        assert (hub.ask("/api/v1/gateways/gw1", "app@beta")[1]["status"] or {}).get("state") != "forged"
        assert {tenant for tenant, *_ in read_columns(hub.data / "lake", "ledger", "tenant", "gateway")} <= {"alpha"}

    def test_manifest_cannot_claim_another_gateway(self, hub: TenantHub) -> None:
        """A gateway can state only what it has accepted itself."""
        said = ManifestStatement(EPOCH, "plant/1", 0, HOUR_NS, 0, 99, 100, {}, "good", EPOCH, 1, 1, GENESIS).sealed(
            "gw1"
        )
        claim = {"tenant": "beta", "gateway": "gw1", "signature": "forged", **msgspec.structs.asdict(said)}
        document = {"tenant": "beta", "gateway": "gw1", "public_key": "ed25519:forged", "statements": [claim]}
        with hub.gateway("alpha", "gw-claims", target="manifests") as gateway:
            gateway.send(plain.data_section(json.dumps(document).encode()))
            assert gateway.settled() == [DeliveryState.ACCEPTED]
        found = {(tenant, name) for name, tenant in read_columns(hub.data / "lake", "manifests", "gateway", "tenant")}
        assert found == {("alpha", "gw-claims")}

    def test_gateway_cannot_receive_messages_of_applications(self, hub: TenantHub) -> None:
        """A gateway cannot receive the messages of applications."""
        with hub.gateway("alpha", "gw-curious") as gateway:
            link = gateway.engine.attach_receiver("in", "#")
            gateway.until(lambda: link.closed, "refusal of the link")


def silent(receiver: Any) -> None:
    with pytest.raises(Timeout):
        receiver.receive(timeout=0.3)


class TestApplications:
    def test_application_receives_only_own_gateways(self, hub: TenantHub) -> None:
        alpha, beta = hub.application("app@alpha"), hub.application("app@beta")
        of_alpha, of_beta = alpha.create_receiver("#", credit=10), beta.create_receiver("#", credit=10)
        for tenant in ("alpha", "beta"):
            with hub.gateway(tenant, "gw-live") as gateway:
                gateway.send(batch("plant/2", 0, [f"live of {tenant}".encode()])).settled()
        assert body(of_alpha) == b"live of alpha"
        assert body(of_beta) == b"live of beta"
        silent(of_alpha)
        silent(of_beta)
        alpha.close()
        beta.close()

    @pytest.mark.parametrize("address", ["queue/tasks", "plant/3", "beta/plant/3", "telemetry"])
    def test_message_stays_within_its_tenant(self, hub: TenantHub, address: str) -> None:
        alpha, beta = hub.application("app@alpha"), hub.application("app@beta")
        own, other = alpha.create_receiver(address), beta.create_receiver(address)
        everything = beta.create_receiver("#", name="everything")
        alpha.create_sender(address).send(Message(body=b"of alpha"))
        assert body(own) == b"of alpha"
        own.accept()
        silent(other)
        silent(everything)
        alpha.close()
        beta.close()

    def test_links_outside_rights_are_refused(self, hub: TenantHub) -> None:
        narrow = hub.application("narrow@alpha")
        narrow.create_receiver("plant/1/#")
        for address in ("#", "plant/2", "$fleet", "queue/tasks"):
            with pytest.raises(LinkDetached) as detached:
                narrow.create_receiver(address, name=f"r-{address}")
            assert detached.value.condition == "amqp:unauthorized-access"
        with pytest.raises(LinkDetached) as detached:
            narrow.create_sender("plant/1/a")
        assert detached.value.condition == "amqp:unauthorized-access"
        narrow.close()

    @pytest.mark.parametrize(
        ("name", "password"),
        [
            ("app@beta", "app@alpha"),
            ("app", "app@alpha"),
            ("app@alpha@beta", "app@alpha"),
            ("app@", "app@alpha"),
            ("waypost://alpha/gw1", "app@alpha"),
        ],
    )
    def test_password_is_valid_for_one_user_only(self, hub: TenantHub, name: str, password: str) -> None:
        with pytest.raises(ConnectionException):
            hub.application(name, password)
        assert hub.ask("/api/v1/status", name, password)[0] == 401

    def test_removed_user_is_disconnected(self, hub: TenantHub) -> None:
        leaver: BlockingConnection = hub.application("leaver@alpha")
        receiver = leaver.create_receiver("plant/1")
        assert CliRunner().invoke(user, ["remove", "leaver@alpha", "--data", str(hub.data)]).exit_code == 0
        with pytest.raises(ConnectionClosed) as closed:
            receiver.receive(timeout=WAIT_S)
        assert closed.value.condition == "amqp:unauthorized-access"
        with pytest.raises(ConnectionException):
            hub.application("leaver@alpha")

    def test_added_user_can_connect(self, hub: TenantHub) -> None:
        """A new user gets in, also the first of its tenant."""
        command = ["add", "first@gamma", "--data", str(hub.data), "--allow", "recv:#", "--password-stdin"]
        assert CliRunner().invoke(user, command, input="opensesame\n").exit_code == 0

        def comes_in() -> bool:
            try:
                hub.application("first@gamma", "opensesame").close()
            except ConnectionException:  # its space is being opened
                return False
            return True

        wait_until(comes_in, timeout_s=WAIT_S, what="a user of a new tenant")


class TestHttp:
    PATHS = ("/metrics", "/api/v1/status", "/api/v1/fleet", "/api/v1/gateways", "/api/v1/gateways/gw1", "/nothing")

    @pytest.mark.parametrize("path", PATHS)
    def test_reading_requires_login(self, hub: TenantHub, path: str) -> None:
        assert hub.ask(path)[0] == 401
        assert hub.ask(path, "app@alpha", "wrong")[0] == 401

    def test_reading_requires_view(self, hub: TenantHub) -> None:
        assert [hub.ask(path, "narrow@alpha")[0] for path in self.PATHS] == [403, 403, 403, 403, 403, 404]
        assert [hub.ask(path, "app@alpha")[0] for path in self.PATHS] == [403, 200, 200, 200, 200, 404]
        assert [hub.ask(path, "ops@alpha")[0] for path in self.PATHS] == [200, 200, 200, 200, 404, 404]

    @pytest.mark.parametrize("query", ["", "?state=danger", "?sort=name&limit=1"])
    def test_list_has_only_own_gateways(self, hub: TenantHub, query: str) -> None:
        status, page = hub.ask(f"/api/v1/gateways{query}", "app@alpha")
        assert status == 200
        assert {gateway["tenant"] for gateway in page["gateways"]} <= {"alpha"}
        assert "beta" not in json.dumps(page)

    def test_page_after_a_place_in_the_whole_list_has_only_own_gateways(self, hub: TenantHub) -> None:
        place = hub.ask("/api/v1/gateways?sort=name&limit=1", "ops@alpha")[1]["next"]
        status, page = hub.ask(f"/api/v1/gateways?sort=name&after={quote(place)}", "app@alpha")
        assert status == 200
        assert {gateway["tenant"] for gateway in page["gateways"]} <= {"alpha"}
        assert "beta" not in json.dumps(page)

    def test_fleet_counts_only_own_gateways(self, hub: TenantHub) -> None:
        fleet, page = hub.ask("/api/v1/fleet", "app@beta")[1], hub.ask("/api/v1/gateways", "app@beta")[1]
        assert fleet["total"] == page["total"] < hub.ask("/api/v1/fleet", "ops@alpha")[1]["total"]
        assert "alpha" not in json.dumps(fleet)

    @pytest.mark.parametrize("query", ["", "&tenant=beta", "&gateway=gw1", "&type=gateway&tenant="])
    def test_events_are_of_the_own_tenant(self, hub: TenantHub, query: str) -> None:
        path = f"/api/v1/events?after=0&limit=500{query}"
        assert {each["tenant"] for each in hub.ask(path, "app@alpha")[1]["events"]} == {"alpha"}
        assert {each["tenant"] for each in hub.ask(path, "ops@alpha")[1]["events"]} >= {"beta"}
        assert hub.ask(path, "narrow@alpha")[0] == 403
        assert hub.ask(path)[0] == 401

    def test_problems_are_of_the_own_tenant(self, hub: TenantHub) -> None:
        problem = {"name": "store", "severity": "error", "what": "it fails", "since": "2026-11-29T10:00:00+00:00"}
        with hub.gateway("beta", "gw1", target="status") as gateway:
            document = {"state": "running", "problems": [problem]}
            assert gateway.send(plain.data_section(json.dumps(document).encode())).settled()
            path = "/api/v1/problems/store"
            wait_until(lambda: hub.ask(path, "app@beta")[1]["total"] == 1, timeout_s=WAIT_S, what="it is stored")
        assert hub.ask(path, "app@alpha")[1]["places"] == []
        assert hub.ask(f"{path}?tenant=beta", "app@alpha")[1]["places"] == []
        names = [each["name"] for each in hub.ask("/api/v1/problems", "app@beta")[1]["problems"]]
        assert names == ["store"], "and none of the hub"
        assert hub.ask("/api/v1/problems?severity=x", "app@beta")[0] == 400
        assert hub.ask(f"{path}?after=x", "app@beta")[0] == 400
        assert hub.ask("/api/v1/problems/", "app@beta")[0] == 404
        assert hub.ask(path, "narrow@alpha")[0] == 403

    def test_gateway_of_another_tenant_is_not_found(self, hub: TenantHub) -> None:
        assert hub.ask("/api/v1/gateways/gw1", "app@alpha")[1]["tenant"] == "alpha"
        for name in ("gw1", "gw-none"):
            status, said = hub.ask(f"/api/v1/gateways/{name}?tenant=beta", "app@alpha")
            assert (status, said["detail"]) == (404, f"no gateway {name} in tenant beta")
        assert hub.ask("/api/v1/gateways/gw1?tenant=beta", "ops@alpha")[1]["tenant"] == "beta"

    def test_status_counts_only_own_gateways(self, hub: TenantHub) -> None:
        page = hub.ask("/api/v1/gateways", "app@beta")[1]["gateways"]

        def is_counted() -> bool:
            return bool(hub.ask("/api/v1/status", "app@beta")[1]["gateways"]["known"] == len(page))

        wait_until(is_counted, timeout_s=WAIT_S, what="the gateways are counted")
        status = hub.ask("/api/v1/status", "app@beta")[1]
        everything = hub.ask("/api/v1/status", "ops@alpha")[1]
        assert status["tenant"] == "beta"
        assert status["gateways"]["known"] == len(page) < everything["gateways"]["known"]
        assert status["totals"] == {"rows": sum(gateway["landed"] for gateway in page)}
        assert {"landing", "tables", "problems", "log"}.isdisjoint(status)
        assert everything["tenant"] is None
        assert {"landing", "tables", "problems"} <= everything.keys()


class TestCommands:
    COMMAND: Mapping[str, Any] = {"gateway": "gw1", "device": "pump7", "name": "on"}
    PATH = "/api/v1/commands"

    def send(self, hub: TenantHub, who: str, tenant: str = "") -> tuple[int, Any]:
        path = self.PATH + (f"?tenant={tenant}" if tenant else "")
        status, said = hub.ask(path, who, document=dict(self.COMMAND))
        assert isinstance(said, dict)
        return status, said

    def test_sending_a_command_requires_the_right(self, hub: TenantHub) -> None:
        assert hub.ask(self.PATH, document=dict(self.COMMAND))[0] == 401
        for who in ("narrow@alpha", "ops@alpha"):
            status, said = self.send(hub, who)
            assert status == 403
            assert "send:command/gw1/pump7" in said["error"]
        assert self.send(hub, "caller@alpha")[0] == 202
        elsewhere = {**self.COMMAND, "device": "pump8"}
        assert hub.ask(self.PATH, "caller@alpha", document=elsewhere)[0] == 403
        assert hub.ask(self.PATH, "caller@alpha")[0] == 403, "who sends may not look"

    def test_command_goes_only_to_own_gateways(self, hub: TenantHub) -> None:
        status, sent = self.send(hub, "app@alpha")
        assert (status, sent["tenant"], sent["sent_by"]) == (202, "alpha", "app@alpha")
        status, said = self.send(hub, "app@alpha", "beta")
        assert (status, said["detail"]) == (403, "app@alpha may only send to gateways of its own tenant")
        assert self.send(hub, "boss@alpha", "beta")[1]["tenant"] == "beta"

    def test_command_of_another_tenant_is_not_found(self, hub: TenantHub) -> None:
        identifier = self.send(hub, "app@alpha")[1]["id"]
        assert hub.ask(f"{self.PATH}/{identifier}", "app@alpha")[0] == 200
        for query in ("", "?wait=1"):
            status, said = hub.ask(f"{self.PATH}/{identifier}{query}", "app@beta")
            assert (status, said["detail"]) == (404, f"no command {identifier}")
        for query in ("", "?tenant=alpha"):
            page = hub.ask(self.PATH + query, "app@beta")[1]["commands"]
            assert {command["tenant"] for command in page} <= {"beta"}

    def test_receipt_of_another_gateway_is_ignored(self, hub: TenantHub) -> None:
        identifier = self.send(hub, "app@alpha")[1]["id"]
        receipt = json.dumps({"command": identifier, "receipt": "delivered"}).encode()
        for tenant, name in (("beta", "gw1"), ("alpha", "gw-other")):
            with hub.gateway(tenant, name) as gateway:
                sent = gateway.send(batch("command-receipt/pump7", 100, [receipt], epoch="9" * 32))
                assert sent.settled() == [DeliveryState.ACCEPTED]
        assert hub.ask(f"{self.PATH}/{identifier}", "app@alpha")[1]["state"] == "waiting"
        with hub.gateway("alpha", "gw1") as gateway:
            sent = gateway.send(batch("command-receipt/pump7", 100, [receipt], epoch="9" * 32))
            assert sent.settled() == [DeliveryState.ACCEPTED]
        assert hub.ask(f"{self.PATH}/{identifier}", "app@alpha")[1]["state"] == "delivered", (
            "kept before it is accepted"
        )


class TestDesiredConfigurations:
    PATH = "/api/v1/configurations"
    WANTED = (
        "apiVersion: enmasse.io/v1beta1\nkind: Address\nmetadata: {name: made}\nspec: {address: made, type: queue}\n"
    )

    def test_configuration_goes_only_to_own_gateways(self, hub: TenantHub) -> None:
        status, made = hub.ask(f"{self.PATH}/gw1", "app@alpha", document=self.WANTED)
        assert (status, made["version"]) == (201, 1)
        for query, wanted in (("", 404), ("?tenant=alpha", 403)):
            assert hub.ask(f"{self.PATH}/gw1{query}", "app@beta")[0] == wanted
        for path in (f"{self.PATH}/gw1?tenant=alpha", f"{self.PATH}/gw1/rollback?tenant=alpha"):
            assert hub.ask(path, "app@beta", document=self.WANTED)[0] == 403
        page = hub.ask(f"{self.PATH}?tenant=alpha", "app@beta")[1]["gateways"]
        assert page == [], "nothing is wanted of its own"
        assert hub.ask(f"{self.PATH}/gw1", "narrow@alpha")[0] == 403

    def test_labels_and_selectors_cover_only_own_gateways(self, hub: TenantHub) -> None:
        status, made = hub.ask(f"{self.PATH}?selector=nobody", "app@alpha", document=self.WANTED)
        assert (status, made["gateways"]) == (201, [])
        assert hub.ask(f"{self.PATH}?selector=nobody&tenant=alpha", "app@beta", document=self.WANTED)[0] == 403
        assert hub.ask(f"{self.PATH}?tenant=alpha", "app@beta")[1]["selectors"] == []
        assert hub.ask("/api/v1/labels?tenant=alpha", "app@beta")[0] == 403
        assert hub.ask("/api/v1/labels", "narrow@alpha")[0] == 403
        of_beta = {each["gateway"] for each in hub.ask("/api/v1/labels", "app@beta")[1]["gateways"]}
        assert "gw-paper" not in of_beta

    def test_rollout_of_another_tenant_is_not_found(self, hub: TenantHub) -> None:
        rollouts = "/api/v1/rollouts"
        wanted = "?gateways=gw*&waves=1&soak=3600"
        assert hub.ask(f"{rollouts}{wanted}&tenant=alpha", "app@beta", document=self.WANTED)[0] == 403
        status, begun = hub.ask(rollouts + wanted, "app@alpha", document=self.WANTED)
        assert status == 201, begun
        status, said = hub.ask(f"{rollouts}/{begun['id']}", "app@beta")
        assert (status, said["detail"]) == (404, f"no roll-out {begun['id']}")
        assert hub.ask(f"{rollouts}/{begun['id']}?tenant=alpha", "app@beta")[0] == 400, "it has no such parameter"
        for step in ("pause", "resume", "abort"):
            assert hub.ask(f"{rollouts}/{begun['id']}/{step}", "app@beta", document="")[0] == 404
        assert hub.ask(f"{rollouts}?tenant=alpha", "app@beta")[1] == {"rollouts": [], "next": None, "total": 0}
        assert hub.ask(f"{rollouts}/{begun['id']}/abort", "app@alpha", document="")[1]["state"] == "aborted"


class TestQuotas:
    """Crossing a limit of a tenant is reported to the sender; other tenants notice nothing."""

    @staticmethod
    def said(hub: TenantHub, bound: str) -> bool:
        problems = hub.ask("/api/v1/status", "ops@alpha")[1]["problems"]
        return any(each["name"] == "tenant small" and f"`{bound}`" in each["what"] for each in problems)

    def test_limits_of_gateways_connections_and_applications_are_reported(self, hub: TenantHub) -> None:
        application = hub.application("app@small")
        with pytest.raises(ConnectionException, match="`applications`"):
            hub.application("app@small")
        with hub.gateway("small", "gw1"), hub.gateway("small", "gw2") as second:
            assert not second.closed
            with hub.gateway("small", "gw3") as more:
                assert more.condition is not None
                assert more.condition.name == "amqp:resource-limit-exceeded"
                assert "tenant small is at its quota `connections`" in more.condition.description
            with hub.gateway("beta", "gw3") as other:
                assert not other.closed
        application.close()
        with hub.gateway("small", "gw3") as more:
            more.until(lambda: more.closed, "refusal")
            assert more.condition is not None
            assert "tenant small is at its quota `gateways`" in more.condition.description
        assert all(self.said(hub, bound) for bound in ("gateways", "connections", "applications"))

    def test_command_limit_is_reported(self, hub: TenantHub) -> None:
        with hub.gateway("small", "gw1"):
            command = {"gateway": "gw1", "device": "pump7", "name": "on"}
            told = [hub.ask("/api/v1/commands", "app@small", document=dict(command)) for _ in range(3)]
        assert [status for status, _ in told] == [202, 202, 429]
        assert told[2][1]["error"].startswith("tenant small is at its quota `commands`")
        assert self.said(hub, "commands")

    def test_messages_beyond_stored_bytes_are_refused(self, hub: TenantHub) -> None:
        application = hub.application("app@small")
        sender = application.create_sender("queue/full")

        def fill() -> None:
            for _ in range(20):
                sender.send(Message(body=bytes(8 << 10)), timeout=2.0)

        with pytest.raises((SendException, LinkDetached, Timeout)):
            fill()
        application.close()
        application = hub.application("app@small")
        receiver = application.create_receiver("queue/full", credit=20)
        kept = 0
        while kept < 7:
            assert len(body(receiver)) == 8 << 10
            receiver.accept()
            kept += 1
        application.close()

    def test_data_beyond_the_rate_waits_and_lands(self, hub: TenantHub) -> None:
        """Data beyond the rate waits and then lands, while another tenant's gateway is answered."""
        count = 24
        bodies = [random.Random(seed).randbytes(64 << 10) for seed in range(count)]
        with hub.gateway("small", "gw1") as gateway, hub.gateway("beta", "gw-fast") as fast:
            started = time.monotonic()
            for sequence, each in enumerate(bodies):
                gateway.send(batch("plant/fast", sequence, [each]))
            assert fast.send(batch("plant/fast", 0, [b"x"])).settled() == [DeliveryState.ACCEPTED]
            assert gateway.settled() == [DeliveryState.ACCEPTED] * count
            took = time.monotonic() - started
        too_much = count * (64 << 10) - RATE * RATE_AHEAD_S
        assert took > 0.25 * too_much / RATE  # data in the socket of a busy hub passes within one turn
        assert self.said(hub, "bytesPerSecond")
        found = read_columns(hub.data / "lake", "telemetry", "tenant", "gateway", "sequence", "address")
        assert {row[2] for row in found if row[0] == "small" and row[3] == "plant/fast"} == set(range(count))
