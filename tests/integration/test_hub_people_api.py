"""Users, tenants and the audit of a hub over HTTP."""

from __future__ import annotations

import ast
import base64
import getpass
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cloud.hub.limits import IDEMPOTENT_BODY_BYTES_MAX
from tests.support.enrolled import EnrolledFleet, run_fleet
from tests.support.http_client import Answer, ask
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

HUB = Path(__file__).parents[2] / "cloud" / "hub"
NO_CHANGES = {"api.put", "api.delete", "api.plan", "api.rehearse"}
"""Endpoints that change nothing: saved views, plans, rehearsals."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubOperator]:
    folder = tmp_path_factory.mktemp("people")
    config = folder / "hub.yaml"
    spec = "{gatherMilliseconds: 100, trustedProxies: [127.0.0.1]}"
    config.write_text(f"{{apiVersion: waypost/v1, kind: Hub, spec: {spec}}}\n")
    with EnrolledFleet(folder, "--config", str(config)) as fleet:
        yield HubOperator(fleet.hub)


def added(hub: HubOperator, name: str, *allow: str) -> str:
    """Add a user; return its password."""
    made = hub.send("POST", "users", {"name": name, "allow": list(allow)})
    assert made.status == HTTPStatus.CREATED, made
    return str(made.document["password"])


class Person:
    """User who sends requests with its password, or with the cookie of a session."""

    def __init__(self, hub: HubOperator, name: str, password: str) -> None:
        self.hub, self.name, self.password = hub, name, password
        token = base64.b64encode(f"{name}:{password}".encode()).decode()
        self.headers = {"Authorization": f"Basic {token}"}

    def send(self, method: str, path: str, body: Any = None, **fields: str) -> Answer:
        more = {name.replace("_", "-"): value for name, value in fields.items()}
        headers = {**self.headers, "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin", **more}
        content = None if body is None else json.dumps(body).encode()
        return ask(self.hub.hub, method, f"/api/v1/{path}", content, headers, tls=self.hub.context)

    def sign_in(self) -> Person:
        """Open a session, and use its cookie from now on."""
        self.headers = {}
        answer = self.send("POST", "session", {"user": self.name, "password": self.password})
        assert answer.status == HTTPStatus.OK, answer
        self.headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        return self


def audit(hub: HubOperator, query: str) -> list[dict[str, Any]]:
    return list(hub.get(f"audit?{query}")["lines"])


@pytest.fixture(scope="module")
def manager(hub: HubOperator) -> Person:
    allow = ("manage:#", "view:#", "recv:plant/#", "send:box/%u")
    return Person(hub, "boss@south", added(hub, "boss@south", *allow))


class TestUsers:
    """Users of a hub."""

    def test_a_new_user_signs_in_at_once(self, hub: HubOperator) -> None:
        person = Person(hub, "ann@acme", added(hub, "ann@acme", "view:#"))
        assert person.send("GET", "status").document["tenant"] == "acme"
        [row] = hub.get("users?q=ANN")["users"]
        assert (row["tenant"], row["allow"], row["passwords"]) == ("acme", ["view:#"], 1)
        assert "password" not in row
        assert hub.send("POST", "users", {"name": "ann@acme"}).status == HTTPStatus.CONFLICT
        for wrong in ({"name": "ann"}, {"name": "bob@acme", "allow": ["see:#"]}, {"nam": "bob@acme"}):
            assert hub.send("POST", "users", wrong).status == HTTPStatus.BAD_REQUEST, wrong

    def test_a_new_password_ends_the_sessions(self, hub: HubOperator) -> None:
        person = Person(hub, "eve@acme", added(hub, "eve@acme", "view:#")).sign_in()
        assert person.send("GET", "status").status == HTTPStatus.OK
        assert hub.get("users?q=eve")["users"][0]["sessions"] == 1
        made = hub.send("POST", "users/eve@acme/password", {}).document
        assert made["password"] != person.password
        assert person.send("GET", "status").status == HTTPStatus.UNAUTHORIZED
        assert Person(hub, "eve@acme", person.password).send("GET", "status").status == HTTPStatus.UNAUTHORIZED
        assert Person(hub, "eve@acme", made["password"]).send("GET", "status").status == HTTPStatus.OK

    def test_a_stranger_behind_the_same_proxy_locks_nobody_out(self, hub: HubOperator) -> None:
        person = Person(hub, "ida@acme", added(hub, "ida@acme", "view:#"))
        stranger = Person(hub, "ida@acme", "a guess")
        guesses = (stranger.send("GET", "status", X_Forwarded_For="192.0.2.66").status for _ in range(100))
        assert next(each for each in guesses if each != HTTPStatus.UNAUTHORIZED) == HTTPStatus.SERVICE_UNAVAILABLE
        made_up = "192.0.2.1, 192.0.2.66"
        assert person.send("GET", "status", X_Forwarded_For=made_up).status == HTTPStatus.SERVICE_UNAVAILABLE
        assert person.send("GET", "status", X_Forwarded_For="192.0.2.1").status == HTTPStatus.OK

    def test_with_an_overlap_both_passwords_are_valid(self, hub: HubOperator) -> None:
        old = added(hub, "tom@acme", "view:#")
        new = hub.send("POST", "users/tom@acme/password", {"overlap_s": 600}).document["password"]
        for password in (old, new):
            assert Person(hub, "tom@acme", password).send("GET", "status").status == HTTPStatus.OK
        assert hub.get("users?q=tom")["users"][0]["passwords"] == 2
        assert hub.send("POST", "users/tom@acme/password", {"overlap_s": 1e9}).status == HTTPStatus.BAD_REQUEST

    def test_sessions_end_with_the_rights_the_user_or_by_hand(self, hub: HubOperator) -> None:
        person = Person(hub, "sam@acme", added(hub, "sam@acme", "view:#")).sign_in()
        assert hub.send("DELETE", "users/sam@acme/sessions").document["sessions"] == 1
        assert person.send("GET", "status").status == HTTPStatus.UNAUTHORIZED
        person.sign_in()
        assert hub.send("PUT", "users/sam@acme/rights", {"allow": ["recv:#"]}).document["allow"] == ["recv:#"]
        assert person.send("GET", "status").status == HTTPStatus.UNAUTHORIZED
        person.sign_in()
        assert person.send("GET", "status").status == HTTPStatus.FORBIDDEN
        assert hub.send("DELETE", "users/sam@acme").status == HTTPStatus.OK
        assert person.send("GET", "status").status == HTTPStatus.UNAUTHORIZED
        assert hub.send("DELETE", "users/sam@acme").status == HTTPStatus.NOT_FOUND

    def test_a_change_of_rights_that_somebody_else_has_changed_is_refused(self, hub: HubOperator) -> None:
        added(hub, "two@tabs", "view:#")
        tag = hub.send("GET", "users/two@tabs").headers["etag"]
        assert hub.send("PUT", "users/two@tabs/rights", {"allow": ["recv:#"]}, if_match=tag).status == HTTPStatus.OK
        for method, path, body in (
            ("PUT", "users/two@tabs/rights", {"allow": []}),
            ("POST", "users/two@tabs/password", {}),
            ("DELETE", "users/two@tabs", None),
        ):
            assert hub.send(method, path, body, if_match=tag).status == HTTPStatus.PRECONDITION_FAILED
        [row] = hub.get("users?q=two@tabs")["users"]
        assert (row["allow"], row["etag"] != tag) == (["recv:#"], True)

    def test_roles_are_names_for_rights(self, hub: HubOperator, manager: Person) -> None:
        made = hub.send("POST", "users", {"name": "rob@roles", "role": "operator", "allow": ["send:command/#"]})
        assert made.status == HTTPStatus.CREATED, made
        user = made.document["user"]
        assert (user["role"], user["allow"]) == ("operator", ["view:#", "manage:#", "send:command/#"])
        for body, role, allow in (
            ({"role": "viewer"}, "viewer", ["view:#"]),
            ({"allow": ["recv:plant/#"]}, None, ["recv:plant/#"]),
            ({"role": "admin", "allow": []}, "admin", ["view:$fleet", "manage:$fleet"]),
        ):
            changed = hub.send("PUT", "users/rob@roles/rights", body).document
            assert (changed["role"], changed["allow"]) == (role, allow)
        for wrong in ({}, {"role": "king"}):
            assert hub.send("PUT", "users/rob@roles/rights", wrong).status == HTTPStatus.BAD_REQUEST
        refused = manager.send("POST", "users", {"name": "eve@south", "role": "admin"})
        assert refused.status == HTTPStatus.FORBIDDEN, "a role gives no more than the user has who gives it"

    def test_pages_follow_each_other(self, hub: HubOperator) -> None:
        for name in ("p1@paged", "p2@paged", "p3@paged"):
            added(hub, name)
        first = hub.get("users?tenant=paged&limit=2")
        assert ([each["name"] for each in first["users"]], first["total"]) == (["p1@paged", "p2@paged"], 3)
        rest = hub.get(f"users?tenant=paged&limit=2&after={first['next']}")
        assert ([each["name"] for each in rest["users"]], rest["next"]) == (["p3@paged"], None)


class TestQuotas:
    """Limits of tenants, set while the hub runs."""

    PATH = "tenants/limited/quota"

    def test_are_in_force_when_they_are_answered(self, hub: HubOperator, manager: Person) -> None:
        before = hub.send("GET", self.PATH)
        assert (before.document["source"], before.headers["etag"]) == ("default", before.document["etag"])
        made = hub.send("PUT", self.PATH, {"gateways": 7, "waitingBytes": 1 << 20}, if_match=before.headers["etag"])
        assert made.status == HTTPStatus.OK, made
        assert (made.document["source"], made.document["limits"]["gateways"]) == ("operator", 7)
        assert made.document["limits"]["commands"] == before.document["limits"]["commands"], "the default"
        [row] = hub.get("tenants?q=limited")["tenants"]
        assert {each["limit"]: each["most"] for each in row["quota"]}["gateways"] == 7
        assert row["own_quota"]
        late = hub.send("PUT", self.PATH, {"gateways": 8}, if_match=before.headers["etag"])
        assert late.status == HTTPStatus.PRECONDITION_FAILED
        again = hub.send("DELETE", self.PATH, if_match=made.headers["etag"])
        assert again.document == before.document
        lines = [each for each in audit(hub, "action=tenant.quota") if each["status"] == HTTPStatus.OK]
        assert [(each["subject"], each["tenant"]) for each in lines] == [("limited", "limited")] * 2
        assert lines[0]["before"]["gateways"] == lines[1]["after"]["gateways"] == 7

    def test_are_set_by_operators_of_the_fleet_only(self, hub: HubOperator, manager: Person) -> None:
        own = "tenants/south/quota"
        assert manager.send("GET", own).document["source"] == "default"
        assert manager.send("GET", self.PATH).status == HTTPStatus.FORBIDDEN
        assert manager.send("PUT", own, {"gateways": 7}).status == HTTPStatus.FORBIDDEN
        assert manager.send("DELETE", own).status == HTTPStatus.FORBIDDEN

    @pytest.mark.parametrize(
        "limits", [{"gateways": 0}, {"gateways": "7"}, {"waitingBytes": 0}, {"gatewais": 7}, [], "text"]
    )
    def test_invalid_limit_is_refused(self, hub: HubOperator, limits: Any) -> None:
        assert hub.send("PUT", self.PATH, limits).status == HTTPStatus.BAD_REQUEST
        assert hub.send("PUT", "tenants/no%20tenant/quota", {}).status == HTTPStatus.BAD_REQUEST


def test_only_the_certificate_that_was_meant_is_revoked(hub: HubOperator, manager: Person) -> None:
    path = "hub/certificate"
    shown = hub.send("GET", path)
    tag = shown.headers["etag"]
    assert manager.send("GET", path).status == HTTPStatus.FORBIDDEN, "it is about every tenant"
    assert manager.send("POST", f"{path}/revoke", {}).status == HTTPStatus.FORBIDDEN
    assert hub.send("POST", f"{path}/revoke", {}, if_match='"another"').status == HTTPStatus.PRECONDITION_FAILED
    assert hub.send("POST", f"{path}/revoke", {}, if_match=tag).document == {"serial": shown.document["serial"]}
    wait_until(lambda: hub.send("GET", path).status == HTTPStatus.OK, timeout_s=60.0, what="the hub has another one")
    assert hub.get(path)["serial"] != shown.document["serial"]
    assert hub.send("POST", f"{path}/revoke", {}, if_match=tag).status == HTTPStatus.PRECONDITION_FAILED
    [line] = [each for each in audit(hub, "action=hub-certificate.revoke") if each["status"] == HTTPStatus.OK]
    assert (line["before"], line["tenant"]) == ({"serial": shown.document["serial"]}, "")


class TestIdempotencyKeys:
    """A POST that is repeated with its key is done once."""

    MUTE: ClassVar[dict[str, Any]] = {"minutes": 5, "reason": "repair", "gateway": "hall"}

    def test_repeat_gets_the_first_answer(self, hub: HubOperator) -> None:
        before = len(audit(hub, "action=mute.create&limit=500"))
        first, again = (hub.send("POST", "mutes", self.MUTE, idempotency_key="m1") for _ in range(2))
        assert (first.status, again.status, again.body) == (HTTPStatus.CREATED, HTTPStatus.CREATED, first.body)
        assert ("idempotency-replayed" in first.headers, "idempotency-replayed" in again.headers) == (False, True)
        assert [each["id"] for each in hub.get("mutes")["mutes"]].count(first.document["id"]) == 1
        assert len(audit(hub, "action=mute.create&limit=500")) == before + 1, "it is one change"

    def test_another_request_with_the_key_is_refused(self, hub: HubOperator) -> None:
        assert hub.send("POST", "mutes", self.MUTE, idempotency_key="m2").status == HTTPStatus.CREATED
        other = hub.send("POST", "mutes", {**self.MUTE, "minutes": 6}, idempotency_key="m2")
        assert (other.status, other.document["code"]) == (HTTPStatus.UNPROCESSABLE_ENTITY, "key-reused")

    def test_secrets_are_not_kept(self, hub: HubOperator) -> None:
        body = {"name": "once@keys", "allow": []}
        made = hub.send("POST", "users", body, idempotency_key="u1")
        assert made.status == HTTPStatus.CREATED, made
        again = hub.send("POST", "users", body, idempotency_key="u1")
        assert (again.status, again.document["code"]) == (HTTPStatus.CONFLICT, "done-already")
        assert "new password" in again.document["next_step"]
        stored = b"".join(path.read_bytes() for path in hub.hub.data.glob("registry.db*"))
        assert made.document["password"].encode() not in stored

    def test_refused_request_may_be_repeated_with_its_key(self, hub: HubOperator) -> None:
        wrong = hub.send("POST", "mutes", {"minutes": 5}, idempotency_key="m3")
        assert wrong.status == HTTPStatus.BAD_REQUEST
        assert hub.send("POST", "mutes", self.MUTE, idempotency_key="m3").status == HTTPStatus.CREATED

    def test_key_and_request_have_a_limit(self, hub: HubOperator) -> None:
        assert hub.send("POST", "mutes", self.MUTE, idempotency_key="k" * 256).status == HTTPStatus.BAD_REQUEST
        large = b" " * (IDEMPOTENT_BODY_BYTES_MAX + 1)
        assert hub.send("POST", "mutes", large, idempotency_key="m4").status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def test_key_of_another_user_is_another_one(self, hub: HubOperator, manager: Person) -> None:
        first = hub.send("POST", "mutes", self.MUTE, idempotency_key="m5")
        other = manager.send("POST", "mutes", self.MUTE, idempotency_key="m5")
        assert (first.status, other.status) == (HTTPStatus.CREATED, HTTPStatus.CREATED)
        assert first.document["id"] != other.document["id"]


class TestManagerOfATenant:
    """A user with ``manage:#`` manages users of its tenant, within its own rights."""

    def test_gives_what_it_has_in_its_own_tenant(self, manager: Person) -> None:
        made = manager.send("POST", "users", {"name": "new@south", "allow": ["view:#", "recv:plant/hall/+"]})
        assert made.status == HTTPStatus.CREATED, made
        assert manager.send("DELETE", "users/new@south").status == HTTPStatus.OK

    @pytest.mark.parametrize("right", ["recv:#", "send:plant/x", "view:$fleet", "manage:$fleet", "send:box/%u"])
    def test_gives_no_more_than_it_has(self, manager: Person, right: str) -> None:
        refused = manager.send("POST", "users", {"name": "new@south", "allow": [right]})
        assert refused.status == HTTPStatus.FORBIDDEN, refused
        assert "you have no right" in refused.document["error"]

    def test_takes_over_no_user_with_more_rights(self, hub: HubOperator, manager: Person) -> None:
        added(hub, "root@south", "manage:$fleet")
        for method, path in (("POST", "/password"), ("PUT", "/rights"), ("DELETE", "/sessions"), ("DELETE", "")):
            answer = manager.send(method, f"users/root@south{path}", {"allow": []} if method == "PUT" else None)
            assert answer.status == HTTPStatus.FORBIDDEN, answer
        rows = {each["name"]: each["manageable"] for each in manager.send("GET", "users").document["users"]}
        assert rows == {"boss@south": True, "root@south": False}

    def test_sees_and_changes_nothing_of_other_tenants(self, hub: HubOperator, manager: Person) -> None:
        added(hub, "far@north", "view:#")
        assert manager.send("GET", "users?tenant=north").document["total"] == 2, "its own"
        assert manager.send("DELETE", "users/far@north").status == HTTPStatus.NOT_FOUND
        assert manager.send("POST", "users", {"name": "x@north"}).status == HTTPStatus.FORBIDDEN
        assert [each["tenant"] for each in manager.send("GET", "tenants").document["tenants"]] == ["south"]
        assert {each["tenant"] for each in manager.send("GET", "audit").document["lines"]} == {"south"}


def test_tenants_with_limits_and_use(hub: HubOperator) -> None:
    added(hub, "one@limits", "view:#")
    page = hub.get("tenants?q=limits")
    [row] = page["tenants"]
    assert (row["tenant"], row["users"], row["gateways"], row["messages"]) == ("limits", 1, 0, 0)
    quota = {each["limit"]: each for each in row["quota"]}
    assert quota["gateways"]["used"] == 0
    assert quota["storedBytes"]["most"] > 0
    assert quota["bytesPerSecond"]["most"] is None
    assert hub.get("tenants?limit=1")["next"]


class TestAudit:
    """Audit of the changes over HTTP."""

    def test_a_line_says_who_did_what_from_where(self, hub: HubOperator) -> None:
        added(hub, "audited@acme", "view:#")
        hub.send("PUT", "users/audited@acme/rights", {"allow": ["recv:#"]})
        last, first = audit(hub, "q=audited@acme&user=operator")
        assert (first["action"], first["tenant"], first["remote"]) == ("user.create", "acme", "127.0.0.1")
        assert (last["action"], last["subject"], last["status"]) == ("user.rights", "audited@acme", 200)
        assert (last["before"], last["after"]) == ({"allow": ["view:#"]}, {"allow": ["recv:#"]})
        assert hub.get("audit?limit=1")["next"]

    def test_refused_changes_have_a_line_with_the_reason(self, hub: HubOperator) -> None:
        person = Person(hub, "viewer@acme", added(hub, "viewer@acme", "view:#"))
        for _ in range(3):
            assert person.send("POST", "tokens", {}).status == HTTPStatus.FORBIDDEN
        [line] = audit(hub, "user=viewer@acme&outcome=refused")
        assert (line["action"], line["status"], line["tenant"]) == ("token.create", 403, "acme")
        assert "no right to manage" in line["error"]

    def test_secrets_are_not_recorded(self, hub: HubOperator) -> None:
        settings = {"settings": {"kind": "webhook", "url": "https://user:pw7@localhost/x"}, "secret": "s3cret"}
        hub.send("PUT", "receivers/hook", settings)
        hub.send("DELETE", "receivers/hook")
        password = added(hub, "hidden@acme")
        everything = json.dumps(hub.get("audit?limit=500"))
        assert not any(secret in everything for secret in ("pw7", "s3cret", password))
        assert {each["tenant"] for each in audit(hub, "action=receiver")} == {""}

    def test_a_receiver_with_other_settings_has_a_line_and_one_with_the_same_has_none(self, hub: HubOperator) -> None:
        for path in ("x", "x", "y"):
            settings = {"settings": {"kind": "webhook", "url": f"https://example.com/{path}"}, "secret": "k" * 40}
            assert hub.send("PUT", "receivers/other", settings).status < HTTPStatus.BAD_REQUEST
        changes = audit(hub, "action=receiver.change&outcome=done&q=other")
        assert [each["after"].get("settings") for each in changes] == ["changed", None]

    def test_tokens_labels_rules_mutes_and_sessions(self, hub: HubOperator) -> None:
        hub.send("POST", "tokens", {"gateways": ["hall"], "labels": {"site": "lyon"}})
        hub.send("POST", "mutes", {"minutes": 5, "reason": "works"})
        hub.send("PATCH", "alert-rules/WaypostGatewayProblem", {"enabled": False})
        Person(hub, "day@acme", added(hub, "day@acme")).sign_in()
        assert audit(hub, "action=token.create&outcome=done")[0]["after"]["labels"] == {"site": "lyon"}
        assert audit(hub, "action=mute.create")[0]["after"]["reason"] == "works"
        [rule] = audit(hub, "action=alert-rule")
        assert (rule["subject"], rule["before"]["enabled"], rule["after"]["enabled"]) == (
            "WaypostGatewayProblem",
            True,
            False,
        )
        assert audit(hub, "user=day@acme")[0]["action"] == "session.open"

    def test_changes_by_commands_at_the_machine(self, hub: HubOperator) -> None:
        run_fleet(hub.hub.data.parent, "token", "create", "--gateway", "mast")
        run_fleet(hub.hub.data.parent, "token", "list")
        [line] = audit(hub, "q=command+line")
        assert (line["action"], line["user"], line["tenant"]) == ("token.create", getpass.getuser(), "default")

    def test_views_plans_and_reads_are_no_changes(self, hub: HubOperator) -> None:
        before = hub.get("audit")["total"]
        hub.send("PUT", "views/mine", {"page": "fleet", "query": ""})
        hub.send("POST", "plans?selector=a=b", b"", "application/yaml")
        hub.send("GET", "tokens")
        assert hub.get("audit")["total"] == before

    @pytest.mark.parametrize("query", ["outcome=maybe", "after=x", "since=-1", "limit=0"])
    def test_wrong_queries_are_refused(self, hub: HubOperator, query: str) -> None:
        assert hub.send("GET", f"audit?{query}").status == HTTPStatus.BAD_REQUEST

    def test_largest_numbers_are_answered(self, hub: HubOperator) -> None:
        assert hub.get(f"audit?since={'9' * 19}&until={'9' * 19}&after={'9' * 19}")["lines"] == []


def test_every_endpoint_that_changes_something_names_its_action() -> None:
    silent = []
    for path in HUB.rglob("*http.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="HttpRoute"),
                    args=[_, ast.Call(func=ast.Name(id="answered"), args=[endpoint])],
                    keywords=[ast.keyword(arg="methods", value=ast.Tuple())],
                ) if ast.unparse(endpoint) not in NO_CHANGES:
                    silent.append(f"{path.name}: {ast.unparse(endpoint)}")
    assert not silent
