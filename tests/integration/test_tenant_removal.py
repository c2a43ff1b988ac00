"""Removal of a tenant at a running hub, and with commands: what is refused, what ends, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run_waypost
from tests.support.enrolled import WAIT_S, enrolling_hub, init_gateway, landed, operator_uplink, run_fleet
from tests.support.operator import HubOperator
from tests.support.password_device import PasswordDevice
from tests.support.processes import Waypost, free_port, gateway_at, wait_until


def state_of(operator: HubOperator, tenant: str) -> str:
    return str(operator.get(f"tenants/{tenant}/removal")["state"])


def refusal(operator: HubOperator, path: str) -> tuple[int, str, dict[str, Any]]:
    """Return status, code and contents of a refused removal."""
    answer = operator.send("DELETE", path)
    return answer.status, answer.document["code"], answer.document.get("contents", {})


def users_of(operator: HubOperator) -> set[str]:
    return {each["name"] for each in operator.get("users")["users"]}


def is_refused(gateway: Waypost) -> bool:
    """Return whether a gateway says that its hub refuses it, because of the removal."""
    why = operator_uplink(gateway)["last_error"] or ""
    return "being removed" in why or "was revoked" in why


def test_tenant_that_is_being_removed_refuses_its_peers(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "hall"
    with enrolling_hub(tmp_path, amqps=port) as far:
        operator = HubOperator(far)
        token = run_fleet(tmp_path, "token", "create", "--tenant", "acme")
        assert init_gateway(tmp_path, f"amqps://localhost:{port}", token)[0] == 0
        run_fleet(tmp_path, "hub", "user", "add", "ann@acme", "--allow", "recv:#")
        with gateway_at(data) as near:
            wait_until(lambda: operator_uplink(near)["state"] == "connected", timeout_s=WAIT_S, what="it is connected")
            wait_until(lambda: "ann@acme" in users_of(operator), timeout_s=WAIT_S, what="the user is known")
            status, code, contents = refusal(operator, "tenants/acme")
            assert (status, code) == (HTTPStatus.CONFLICT, "tenant-in-use")
            assert (contents["gateways"], contents["users"]) == (1, 1)
            assert operator.send("DELETE", "tenants/acme?force=true").status == HTTPStatus.ACCEPTED
            wait_until(lambda: is_refused(near), timeout_s=WAIT_S, what="its gateway is refused")
            wait_until(lambda: "ann@acme" not in users_of(operator), timeout_s=WAIT_S, what="its user is gone")
            assert near.stop() == 0
        if state_of(operator, "acme") == "removing":
            made = operator.send("POST", "tokens?tenant=acme", {"count": 1, "tenant": "acme"})
            assert made.document.get("code") in ("tenant-being-removed", None)  # None: it has ended just now
        assert far.stop() == 0


@pytest.mark.slow
def test_removed_tenant_loses_and_repeats_no_message(tmp_path: Path) -> None:
    """Its gateway is refused, keeps its backlog, and lands it once when it enrols again under its name; although the
    hub is killed during the removal."""
    port, data = free_port(), tmp_path / "hall"
    with enrolling_hub(tmp_path, amqps=port) as far:
        operator = HubOperator(far)
        token = run_fleet(tmp_path, "token", "create", "--tenant", "acme")
        assert init_gateway(tmp_path, f"amqps://localhost:{port}", token)[0] == 0
        run_fleet(tmp_path, "hub", "user", "add", "ann@acme", "--allow", "recv:#")
        space = tmp_path / "hub" / "spaces" / "acme"
        with gateway_at(data) as near:
            device = PasswordDevice(data, near.port("mqtt"))
            device.send(20)
            wait_until(lambda: len(landed(tmp_path)) == 20, timeout_s=WAIT_S, what="20 in the lake")
            wait_until(space.is_dir, timeout_s=WAIT_S, what="its applications have a space")
            assert operator.send("DELETE", "tenants/acme?force=true").status == HTTPStatus.ACCEPTED
            far.kill()
            far.start()
            wait_until(lambda: state_of(operator, "acme") == "removed", timeout_s=WAIT_S, what="it is removed")
            wait_until(lambda: is_refused(near), timeout_s=WAIT_S, what="its gateway is refused")
            wait_until(lambda: not space.exists(), timeout_s=WAIT_S, what="its space is deleted")
            device.send(20)
            assert "acme" not in {each["tenant"] for each in operator.get("tenants")["tenants"]}
            assert refusal(operator, "tenants/acme")[:2] == (HTTPStatus.NOT_FOUND, "tenant-not-found")
            assert len(landed(tmp_path)) == 20
            [line] = operator.get("audit?action=tenant.remove&outcome=done")["lines"]
            assert (line["tenant"], line["subject"], line["after"]) == ("acme", "acme", {"forced": True})
            token = run_fleet(tmp_path, "token", "create", "--tenant", "acme")
            again = run_waypost("enrol", "--data", str(data), "--token", token)
            assert again.returncode == 0, again.stderr
            wait_until(lambda: len(landed(tmp_path)) == 40, timeout_s=WAIT_S, what="40 in the lake")
            device.close()
            assert near.stop() == 0
        run_fleet(tmp_path, "hub", "user", "add", "bob@acme", "--allow", "recv:#")
        second = space.with_name("acme.1")
        wait_until(second.is_dir, timeout_s=WAIT_S, what="the next tenant of the name has a folder of its own")
        assert not space.exists()
        assert far.stop() == 0
    found = landed(tmp_path)
    assert len({epoch for _, epoch, _ in found}) == 1
    assert [sequence for _, _, sequence in found] == list(range(40))


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubOperator]:
    with enrolling_hub(tmp_path_factory.mktemp("refusals")) as far:
        yield HubOperator(far)


class TestRefusals:
    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("tenants/default?force=true", HTTPStatus.CONFLICT, "default-tenant"),
            ("tenants/other?force=true", HTTPStatus.NOT_FOUND, "tenant-not-found"),
            ("tenants/other?force=yes", HTTPStatus.BAD_REQUEST, "invalid-request"),
            ("tenants/-?force=true", HTTPStatus.BAD_REQUEST, "invalid-request"),
        ],
    )
    def test_removal_is_refused(self, operator: HubOperator, path: str, status: int, code: str) -> None:
        assert refusal(operator, path)[:2] == (status, code)


class TestCommand:
    """`waypost tenant remove` at a hub that does not run."""

    @pytest.fixture
    def hub(self, tmp_path: Path) -> Path:
        with enrolling_hub(tmp_path) as far:
            assert far.stop() == 0
        run_fleet(tmp_path, "hub", "user", "add", "bob@beta", "--allow", "recv:#")
        return tmp_path / "hub"

    def test_name_has_to_be_typed(self, hub: Path) -> None:
        done = run_waypost("tenant", "remove", "beta", "--force", "--data", str(hub))
        assert done.returncode != 0
        assert "--yes" in done.stderr
        assert "bob@beta" in run_waypost("hub", "user", "list", "--data", str(hub), "--json").stdout

    def test_tenant_in_use_needs_force(self, hub: Path) -> None:
        done = run_waypost("tenant", "remove", "beta", "--yes", "--data", str(hub))
        assert done.returncode != 0
        assert "1 users" in done.stderr

    @pytest.mark.slow
    def test_users_of_the_file_end_too(self, hub: Path) -> None:
        forced = run_waypost("tenant", "remove", "beta", "--yes", "--force", "--data", str(hub))
        assert forced.returncode == 0, forced.stderr
        assert run_waypost("hub", "user", "list", "--data", str(hub), "--json").stdout.count("bob@beta") == 0
