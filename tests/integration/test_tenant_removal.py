"""Removal of a tenant at a running hub, and with commands: what is refused, what ends, and what stays."""

from __future__ import annotations

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
    return "was removed" in why


@pytest.mark.slow
def test_removed_tenant_loses_and_repeats_no_message(tmp_path: Path) -> None:
    """Its gateway is refused, keeps its backlog, and lands it once in another tenant; although the hub is killed during
    the removal."""
    port, data = free_port(), tmp_path / "hall"
    with enrolling_hub(tmp_path, amqps=port) as far:
        operator = HubOperator(far)
        token = run_fleet(tmp_path, "token", "create", "--tenant", "acme")
        assert init_gateway(tmp_path, f"amqps://localhost:{port}", token)[0] == 0
        run_fleet(tmp_path, "hub", "user", "add", "ann@acme", "--allow", "recv:#")
        spaces = tmp_path / "hub" / "spaces"
        with gateway_at(data) as near:
            device = PasswordDevice(data, near.port("mqtt"))
            device.send(20)
            wait_until(lambda: len(landed(tmp_path)) == 20, timeout_s=WAIT_S, what="20 in the lake")
            wait_until(
                lambda: operator_uplink(near)["backlog_messages"] == 0, timeout_s=WAIT_S, what="they are acknowledged"
            )
            wait_until((spaces / "acme").is_dir, timeout_s=WAIT_S, what="its applications have a space")
            status, code, contents = refusal(operator, "tenants/acme")
            assert (status, code) == (HTTPStatus.CONFLICT, "tenant-in-use")
            assert (contents["gateways"], contents["users"]) == (1, 1)
            assert operator.send("DELETE", "tenants/acme?force=true").status == HTTPStatus.ACCEPTED
            far.kill()
            far.start()
            wait_until(lambda: state_of(operator, "acme") == "removed", timeout_s=WAIT_S, what="it is removed")
            wait_until(lambda: is_refused(near), timeout_s=WAIT_S, what="its gateway is refused")
            wait_until(lambda: any(spaces.glob(".removed/acme.*")), timeout_s=WAIT_S, what="its space is put aside")
            assert not (spaces / "acme").exists()
            assert "ann@acme" not in users_of(operator)
            device.send(20)
            assert "acme" not in {each["tenant"] for each in operator.get("tenants")["tenants"]}
            assert len(landed(tmp_path)) == 20
            [line] = operator.get("audit?action=tenant.remove&outcome=done")["lines"]
            assert (line["tenant"], line["subject"], line["after"]) == ("acme", "acme", {"forced": True})
            token = run_fleet(tmp_path, "token", "create", "--tenant", "mega")
            again = run_waypost("enrol", "--data", str(data), "--token", token)
            assert again.returncode == 0, again.stderr
            wait_until(lambda: len(landed(tmp_path)) == 40, timeout_s=WAIT_S, what="40 in the lake")
            device.close()
            assert near.stop() == 0
        assert far.stop() == 0
    found = landed(tmp_path)
    assert len({epoch for _, epoch, _ in found}) == 1
    assert [sequence for _, _, sequence in found] == list(range(40))


def test_removal_at_a_hub_and_with_its_command(tmp_path: Path) -> None:
    with enrolling_hub(tmp_path) as far:
        operator = HubOperator(far)
        for path, status, code in (
            ("tenants/default?force=true", HTTPStatus.CONFLICT, "default-tenant"),
            ("tenants/other", HTTPStatus.NOT_FOUND, "tenant-not-found"),
            ("tenants/other?force=yes", HTTPStatus.BAD_REQUEST, "invalid-request"),
            ("tenants/-?force=true", HTTPStatus.BAD_REQUEST, "invalid-request"),
        ):
            assert refusal(operator, path)[:2] == (status, code)
        assert operator.send("POST", "users", {"name": "bob@beta", "allow": []}).status == HTTPStatus.CREATED
        hub = ("--data", str(tmp_path / "hub"))
        unsure = run_waypost("tenant", "remove", "beta", "--force", *hub)
        assert unsure.returncode != 0
        assert "--yes" in unsure.stderr
        used = run_waypost("tenant", "remove", "beta", "--yes", *hub)
        assert used.returncode != 0
        assert "1 users" in used.stderr
        assert state_of(operator, "beta") == "none"
        forced = run_waypost("tenant", "remove", "beta", "--yes", "--force", *hub)
        assert forced.returncode == 0, forced.stderr
        wait_until(lambda: state_of(operator, "beta") == "removed", timeout_s=WAIT_S, what="it is removed")
        assert users_of(operator) == set()
        made = operator.send("POST", "users", {"name": "eve@beta", "allow": []})
        assert (made.status, made.document["code"]) == (HTTPStatus.CONFLICT, "tenant-removed")
        made = operator.send("POST", "tokens", {"count": 1, "tenant": "beta"})
        assert (made.status, made.document["code"]) == (HTTPStatus.CONFLICT, "tenant-removed")
        again = run_waypost("hub", "user", "add", "eve@beta", *hub)
        assert again.returncode != 0
        assert "not given out again" in again.stderr
        [line] = operator.get("audit?action=tenant.remove&outcome=done")["lines"]
        assert (line["tenant"], line["remote"], line["before"]) == ("beta", "command line", {"users": 1})
        assert far.stop() == 0
