"""Routes that the hub's console needs for many gateways: plans, rehearsals, saved views, files, revocation."""

from __future__ import annotations

import csv
import resource
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from bridge.applied_query import APPLIED_QUERY
from cloud.hub.limits import FILES_BESIDE_CONNECTIONS
from edge.remote.client import ConsoleClient, Login
from tests.support.enrolled import EnrolledFleet
from tests.support.http_client import Answer
from tests.support.openapi import OpenApiContract, address_of, check_openapi
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

YAML = "application/yaml"
ADDRESS = b"""
apiVersion: waypost/v1
kind: Address
metadata: {name: one}
spec: {address: "one/#", type: topic}
"""
OTHER = ADDRESS.replace(b"one/#", b"two/#")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    """Yield a hub with three gateways, of which one runs."""
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as running:
        hall = running.enrol("hall", "site=lyon", "ring=canary")
        running.enrol("yard", "site=lyon")
        running.enrol("mast", "site=bern")
        hall.start()
        operator = HubOperator(running.hub)
        wait_until(lambda: operator.get("status")["gateways"]["connected"] == 1, timeout_s=60, what="it is connected")
        yield running


@pytest.fixture
def operator(fleet: EnrolledFleet) -> HubOperator:
    return HubOperator(fleet.hub)


def plan(operator: HubOperator, selector: str, body: bytes) -> dict[str, Any]:
    answer = operator.send("POST", f"plans?selector={selector}", body, YAML)
    assert answer.status == HTTPStatus.OK, answer
    return dict(answer.document)


VALUES = {
    "tenant": "default",
    "name": "hall",
    "gateway": "hall",
    "device": "pump7",
    "id": "00",
    "table": "rollup",
    "begin": "0",
    "end": "3600000",
    "topics": "status",
    "question": "MA==",
    "version": "1.0.0",
}
"""Parameters of operations."""
STREAMS = {"/", "/ui/{name}", "/api/v1/events", "/api/v1/session/oidc", "/api/v1/session/oidc/callback"}
"""Paths that answer with no document."""
ANY_QUERY = {"/api/v1/gold/{table}", "/api/v1/session/oidc/callback"}
"""Paths with parameters that others name."""
OF_GATEWAYS = ("/uplink/", "/bundles/")
"""Paths for gateways, with their certificates."""


class TestOpenApi:
    def test_every_answer_follows_the_document(self, operator: HubOperator) -> None:
        document = operator.get("openapi.json")
        check_openapi(document)
        contract, found = OpenApiContract(document, {"ProblemDocument"}), Counter[int]()
        for operation in contract.operations("get"):
            if operation.path not in STREAMS:
                answer = operator.ask("GET", address_of(operation, VALUES))
                contract.check(operation, answer)
                if operation.path.startswith(OF_GATEWAYS):
                    assert answer.status in {401, 403}, operation.path
                else:
                    found[answer.status] += 1
        assert found[200] >= 35, found
        assert set(found) <= {200, 404}, found


class TestQuery:
    """Parameters that a path does not have are refused; answers name those that were applied."""

    def test_every_path_refuses_an_unknown_parameter(self, operator: HubOperator) -> None:
        document = operator.get("openapi.json")
        contract, asked = OpenApiContract(document, {"ProblemDocument"}), 0
        for operation in contract.operations("get"):
            if operation.path.startswith("/api/v1/") and operation.path not in ANY_QUERY:
                address = address_of(operation, VALUES)
                answer = operator.ask("GET", f"{address}{'&' if '?' in address else '?'}luck=1")
                assert (answer.status, answer.document["code"]) == (400, "unknown-parameter"), operation.path
                assert answer.document["parameter"] == "luck"
                asked += 1
        assert asked > 35

    def test_a_change_with_an_unknown_parameter_is_not_made(self, operator: HubOperator) -> None:
        body = {"gateway": "hall", "device": "pump7", "name": "speed"}
        answer = operator.send("POST", "commands?waits=1", body)
        assert (answer.status, answer.document["code"]) == (400, "unknown-parameter")
        assert operator.get("commands")["commands"] == []

    def test_answer_names_what_was_applied(self, operator: HubOperator) -> None:
        answer = operator.send("GET", "gateways?selector=site%3Dlyon&older_than=9.0.0&limit=5")
        assert answer.headers[APPLIED_QUERY.lower()] == "limit, older_than, selector"
        assert APPLIED_QUERY.lower() not in operator.send("GET", "gateways").headers
        odd = operator.send("GET", "gold/gaps?gateway=hall&a%0d%0ab=1&%D0%96=1")
        assert odd.headers[APPLIED_QUERY.lower()] == "gateway"

    def test_client_takes_the_answer_of_this_hub(self, operator: HubOperator) -> None:
        token = (operator.hub.data / "operator.token").read_text().strip()
        client = ConsoleClient(operator.base.rstrip("/"), Login(token=token), context=operator.context)
        found = client.pages("gateways", "gateways", {"selector": "site=lyon", "seen_after": "1d"}, sort="name")
        assert [each["name"] for each in found] == ["hall"]


class TestPlan:
    def test_plan_counts_and_changes_nothing(self, operator: HubOperator) -> None:
        found = plan(operator, "site%3Dlyon", ADDRESS)
        assert (found["chosen"], found["changed"], found["unchanged"], found["excluded"]) == (2, 2, 0, 0)
        assert found["gateways"] == ["hall", "yard"]
        assert found["connected"] == 1
        [difference] = found["differences"]
        assert difference["gateways"] == 2
        assert "+  address: one/#" in difference["diff"]
        assert operator.get("selectors")["selectors"] == []
        assert not any(each["wanted"] for each in operator.get("configurations")["gateways"])

    def test_plan_says_what_is_the_same_and_what_it_overlaps(self, operator: HubOperator) -> None:
        for selector, body in (("site%3Dlyon", ADDRESS), ("ring%3Dcanary", OTHER)):
            sent = operator.send("POST", f"configurations?selector={selector}", body, YAML)
            assert sent.status == HTTPStatus.CREATED, sent
        found = plan(operator, "site%3Dlyon", ADDRESS)
        assert (found["changed"], found["unchanged"]) == (1, 1)
        assert found["overlaps"] == {"ring=canary": 1}
        assert "-  address: two/#" in found["differences"][0]["diff"]
        first, second = operator.get("selectors")["selectors"]
        assert (first["selector"], first["matches"], first["effective"]) == ("ring=canary", 1, 1)
        assert (second["selector"], second["matches"], second["effective"]) == ("site=lyon", 2, 1)
        assert second["hidden_by"] == {"ring=canary": 1}
        assert "one/#" in operator.get("selectors?selector=site%3Dlyon")["yaml"]
        for selector in ("site%3Dlyon", "ring%3Dcanary"):
            assert operator.send("DELETE", f"configurations?selector={selector}").status == HTTPStatus.OK

    @pytest.mark.parametrize(
        ("selector", "body", "wanted"),
        [("site%3D", ADDRESS, 400), ("site%3Dlyon", b"kind: Unknown", 400), ("", ADDRESS, 400)],
    )
    def test_mistakes_are_refused(self, operator: HubOperator, selector: str, body: bytes, wanted: int) -> None:
        answer = operator.send("POST", f"plans?selector={selector}", body, YAML)
        assert answer.status == wanted, answer


class TestPages:
    def test_configurations_are_pages(self, operator: HubOperator) -> None:
        operator.send("POST", "configurations?gateways=hall,yard", ADDRESS, YAML)
        first = operator.get("configurations?limit=1")
        second = operator.get(f"configurations?limit=500&after={first['next']}")
        names = [each["gateway"] for each in (*first["gateways"], *second["gateways"])]
        assert (len(names), second["next"]) == (first["total"], None)
        assert names == sorted(names)
        away = operator.get("configurations?state=unconfirmed")
        assert {"yard"} <= {each["gateway"] for each in away["gateways"]}
        assert away["configured"] >= away["total"]

    def test_labels_are_pages(self, operator: HubOperator) -> None:
        first = operator.get("labels?limit=1")
        second = operator.get(f"labels?limit=500&after={first['next']}")
        names = [each["gateway"] for each in (*first["gateways"], *second["gateways"])]
        assert (names, second["next"]) == (["hall", "mast", "yard"], None)
        chosen = operator.get("labels?selector=site%3Dlyon&limit=1")
        assert [each["gateway"] for each in chosen["gateways"]] == ["hall"]
        following = operator.get(f"labels?selector=site%3Dlyon&after={chosen['next']}")
        assert ([each["gateway"] for each in following["gateways"]], following["next"]) == (["yard"], None)

    @pytest.mark.parametrize("query", ["limit=0", "limit=501", "after=x", "after=WyJhIl0=", "state=odd"])
    def test_invalid_parameter_of_configurations_is_refused(self, operator: HubOperator, query: str) -> None:
        assert operator.send("GET", f"configurations?{query}").status == HTTPStatus.BAD_REQUEST

    @pytest.mark.parametrize("query", ["limit=0", "limit=501", "after=%00", "selector=%3D"])
    def test_invalid_parameter_of_labels_is_refused(self, operator: HubOperator, query: str) -> None:
        assert operator.send("GET", f"labels?{query}").status == HTTPStatus.BAD_REQUEST


class TestTwoTabs:
    """A change with the ETag of an earlier state is refused, and changes nothing."""

    def refused(self, answer: Answer) -> None:
        assert (answer.status, answer.document["code"]) == (HTTPStatus.PRECONDITION_FAILED, "changed-meanwhile"), answer
        assert answer.document["next_step"]

    def test_labels(self, operator: HubOperator) -> None:
        [row] = [each for each in operator.get("labels")["gateways"] if each["gateway"] == "mast"]
        first = operator.send("PATCH", "labels/mast", {"rack": "1"}, if_match=row["etag"])
        assert first.status == HTTPStatus.OK, first
        self.refused(operator.send("PATCH", "labels/mast", {"rack": "2"}, if_match=row["etag"]))
        again = operator.send("PATCH", "labels/mast", {"rack": None}, if_match=first.headers["etag"])
        assert again.document["labels"] == {"site": "bern"}

    def test_configuration_of_a_gateway(self, operator: HubOperator) -> None:
        path = "configurations/mast"
        assert operator.send("POST", path, ADDRESS, YAML, if_none_match="*").status == HTTPStatus.CREATED
        self.refused(operator.send("POST", path, OTHER, YAML, if_none_match="*"))
        tag = operator.send("GET", path).headers["etag"]
        assert operator.send("POST", path, OTHER, YAML, if_match=tag).status == HTTPStatus.CREATED
        self.refused(operator.send("POST", path, ADDRESS, YAML, if_match=tag))
        self.refused(operator.send("POST", f"{path}/rollback?to=1", if_match=tag))
        assert operator.get(path)["wanted"] == int(tag.strip('"')) + 1

    def test_configuration_of_a_selector(self, operator: HubOperator) -> None:
        path = "configurations?selector=site%3Doslo"
        assert operator.send("POST", path, ADDRESS, YAML, if_none_match="*").status == HTTPStatus.CREATED
        self.refused(operator.send("POST", path, OTHER, YAML, if_none_match="*"))
        tag = operator.get("selectors?selector=site%3Doslo")["etag"]
        assert operator.send("POST", path, OTHER, YAML, if_match=tag).status == HTTPStatus.CREATED
        self.refused(operator.send("DELETE", path, if_match=tag))
        [row] = [each for each in operator.get("selectors")["selectors"] if each["selector"] == "site=oslo"]
        assert operator.send("DELETE", path, if_match=row["etag"]).status == HTTPStatus.OK
        self.refused(operator.send("DELETE", path, if_match=row["etag"]))

    def test_alert_rules_and_receivers(self, operator: HubOperator) -> None:
        rule = operator.get("alert-rules")["rules"][0]
        path = f"alert-rules/{rule['rule']}"
        assert operator.send("PATCH", path, {"for_s": 90}, if_match=rule["etag"]).status == HTTPStatus.OK
        self.refused(operator.send("PATCH", path, {"for_s": 91}, if_match=rule["etag"]))
        made = {"settings": {"kind": "webhook", "url": "http://127.0.0.1:9/"}}
        first = operator.send("PUT", "receivers/desk", made, if_none_match="*")
        assert first.status == HTTPStatus.CREATED, first
        self.refused(operator.send("PUT", "receivers/desk", made, if_none_match="*"))
        changed = operator.send(
            "PUT", "receivers/desk", {**made, "severity": "critical"}, if_match=first.document["etag"]
        )
        assert changed.status == HTTPStatus.OK, changed
        self.refused(operator.send("DELETE", "receivers/desk", if_match=first.document["etag"]))
        assert operator.send("DELETE", "receivers/desk", if_match=changed.document["etag"]).status == HTTPStatus.OK

    def test_views(self, operator: HubOperator) -> None:
        view = {"page": "fleet", "query": "show=all"}
        first = operator.send("PUT", "views/mine", view, if_none_match="*").document
        self.refused(operator.send("PUT", "views/mine", view, if_none_match="*"))
        second = operator.send("PUT", "views/mine", {**view, "query": "q=x"}, if_match=first["etag"]).document
        self.refused(operator.send("DELETE", "views/mine", if_match=first["etag"]))
        assert operator.send("DELETE", "views/mine", if_match=second["etag"]).status == HTTPStatus.OK


class TestRehearsal:
    def test_rehearsal_says_who_gets_it_when(self, operator: HubOperator) -> None:
        body = {"selector": "site=lyon", "device": "pump7", "name": "speed", "ttl_s": 60}
        found = operator.send("POST", "commands/rehearsal", body).document
        assert (found["total"], found["now"], found["later"], found["never"]) == (2, 1, 1, 0)
        assert {each["gateway"]: each["when"] for each in found["gateways"]} == {
            "hall": "now", "yard": "when it connects",
        }  # fmt: skip
        assert operator.get("commands")["commands"] == []

    def test_unknown_gateway_never_gets_it(self, operator: HubOperator) -> None:
        body = {"gateway": "nowhere", "device": "pump7", "name": "speed"}
        [row] = operator.send("POST", "commands/rehearsal", body).document["gateways"]
        assert row["when"] == "never"
        assert "has no gateway nowhere" in row["why"]

    def test_command_line_rehearses(self, fleet: EnrolledFleet) -> None:
        words = ("command", "send", "--dry-run")
        assert "now" in fleet.fleet(*words, "pump7@hall", "speed")
        assert "when it connects within 1h" in fleet.fleet(*words, "pump7@mast", "speed")
        assert "never" in fleet.fleet(*words, "pump7@nowhere", "speed", code=1)

    def test_command_to_a_selector_is_one_for_each_gateway(self, operator: HubOperator) -> None:
        body = {"selector": "site=lyon", "device": "pump7", "name": "speed", "ttl_s": 60}
        late = operator.send("POST", "commands?expected=3", body)
        assert late.status == HTTPStatus.CONFLICT, late
        assert operator.get("commands")["commands"] == []
        sent = operator.send("POST", "commands?expected=2", body)
        assert sent.status == HTTPStatus.ACCEPTED, sent
        assert sorted(each["gateway"] for each in sent.document["commands"]) == ["hall", "yard"]
        assert sent.document["refused"] == []

    def test_gateway_and_selector_exclude_each_other(self, operator: HubOperator) -> None:
        for both in ({}, {"gateway": "hall", "selector": "site=lyon"}):
            answer = operator.send("POST", "commands/rehearsal", {"device": "pump7", "name": "speed", **both})
            assert answer.status == HTTPStatus.BAD_REQUEST, answer


class TestLists:
    def test_views_are_saved_and_deleted(self, operator: HubOperator) -> None:
        view = {"page": "fleet", "query": "show=all&selector=site%3Dlyon"}
        assert operator.send("PUT", "views/Lyon%20%C3%A9t%C3%A9", view).status == HTTPStatus.OK
        [found] = operator.get("views")["views"]
        assert {**view, "name": "Lyon été", "etag": found["etag"]} == found
        assert operator.send("DELETE", "views/Lyon%20%C3%A9t%C3%A9").status == HTTPStatus.OK
        assert operator.send("DELETE", "views/Lyon").status == HTTPStatus.NOT_FOUND
        assert operator.send("PUT", "views/x", {"page": "../", "query": ""}).status == HTTPStatus.BAD_REQUEST

    def test_views_have_a_limit(self, operator: HubOperator) -> None:
        view = {"page": "fleet", "query": ""}
        answers = [operator.send("PUT", f"views/v{number}", view).status for number in range(51)]
        assert answers == [HTTPStatus.OK] * 50 + [HTTPStatus.CONFLICT]
        for number in range(50):
            operator.send("DELETE", f"views/v{number}")

    def test_file_has_every_gateway(self, operator: HubOperator) -> None:
        answer = operator.send("GET", "gateways.csv?sort=name")
        assert answer.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(answer.body.decode().splitlines()))
        assert "hall" in {each["gateway"] for each in rows}
        chosen = "gateways.csv?selector=ring%3Dcanary"

        def labelled() -> bool:
            return b'"ring=canary,site=lyon"' in operator.send("GET", chosen).body

        wait_until(labelled, timeout_s=60, what="the labels are read again")
        assert operator.send("GET", "gateways.csv?state=strange").status == HTTPStatus.BAD_REQUEST

    def test_system_has_limits_registry_and_certificates(self, operator: HubOperator) -> None:
        found = operator.get("system")
        assert 0 < found["memory"] < found["memory_most"]
        assert 0 < found["open_files"] < found["open_files_most"]
        wanted, hard = (
            found["connections_most"] + FILES_BESIDE_CONNECTIONS,
            resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        )
        assert found["open_files_most"] >= (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
        assert found["registry"].endswith("registry.db")
        assert found["registry_size"] > 10_000
        days = {each["certificate"]: each["days"] for each in found["certificates"]}
        assert days["authority"] > days["server"] > 0

    def test_configuration_page_has_the_difference(self, operator: HubOperator) -> None:
        operator.send("POST", "configurations/yard", ADDRESS, YAML)
        found = operator.get("configurations/yard")
        assert (found["version"], found["wanted"]) == (0, found["versions"][0]["version"]), "it is away"
        assert "+  address: one/#" in found["difference"]

    def test_plan_for_named_gateways(self, operator: HubOperator) -> None:
        answer = operator.send("POST", "plans?gateways=ya*,mast", ADDRESS.replace(b"one/#", b"three/#"), YAML)
        assert (answer.document["changed"], answer.document["gateways"]) == (2, ["mast", "yard"])
        assert operator.send("POST", "plans?gateways=nowhere", OTHER, YAML).status == HTTPStatus.NOT_FOUND

    def test_identity_has_certificate_token_and_address(self, operator: HubOperator) -> None:
        found = operator.get("identities/hall")
        [certificate] = found["certificates"]
        assert (certificate["state"], certificate["revoked_at"]) == ("valid", None)
        assert certificate["issuer"].startswith("CN=")
        assert certificate["token"] in {each["id"] for each in operator.get("tokens?state=spent")["tokens"]}
        assert found["remote"].startswith("127.0.0.1")
        assert operator.send("GET", "identities/nowhere").status == HTTPStatus.NOT_FOUND

    def test_only_a_revoked_gateway_is_forgotten(self, operator: HubOperator) -> None:
        assert operator.send("POST", "gateways/mast/forget").status == HTTPStatus.CONFLICT
        assert operator.send("POST", "gateways/mast/revoke").status == HTTPStatus.OK
        assert operator.send("POST", "gateways/mast/forget").status == HTTPStatus.OK
        assert operator.send("POST", "gateways/mast/forget").status == HTTPStatus.NOT_FOUND
        [last] = operator.get("audit?action=gateway.forget&outcome=done")["lines"]
        assert (last["subject"], last["tenant"]) == ("mast", "default")

    def test_revoked_gateway_is_disconnected(self, operator: HubOperator) -> None:
        assert operator.send("POST", "gateways/hall/revoke").document["certificates"] == 1
        wait_until(lambda: operator.get("status")["gateways"]["connected"] == 0, timeout_s=60, what="it is closed")
        assert operator.send("POST", "gateways/hall/revoke").status == HTTPStatus.NOT_FOUND
