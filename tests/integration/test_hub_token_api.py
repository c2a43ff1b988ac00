"""Enrolment tokens over HTTP: made with QR codes, used by a gateway, revoked, paged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import segno

from tests.support.enrolled import EnrolledFleet, init_gateway
from tests.support.operator import HubOperator


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture
def operator(fleet: EnrolledFleet) -> HubOperator:
    return HubOperator(fleet.hub)


def drawn(path: str, size: int) -> list[list[int]]:
    """Return the modules that a path draws."""
    modules = [[0] * size for _ in range(size)]
    for column, row, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path):
        for place in range(int(width)):
            modules[int(row)][int(column) + place] = 1
    return modules


def test_token_of_the_api_enrols_a_gateway_with_its_labels(fleet: EnrolledFleet, operator: HubOperator) -> None:
    made = operator.send("POST", "tokens", {"labels": {"site": "lyon"}, "expires_s": 3_600})
    assert made.status == HTTPStatus.CREATED, made
    assert made.document["hub"].endswith(f":{fleet.hub_port}")
    [token] = made.document["tokens"]
    code = segno.make_qr(token["token"], error="m")
    assert drawn(token["qr_path"], token["qr_size"]) == [list(row) for row in code.matrix_iter(border=4)]
    code_of_command, output = init_gateway(fleet.folder, fleet.url, token["token"], name="hall")
    assert code_of_command == 0, output
    [row] = operator.get("tokens?state=spent")["tokens"]
    assert (row["id"], row["gateway"], row["labels"]) == (token["id"], "hall", {"site": "lyon"})
    assert "token" not in row
    assert operator.send("DELETE", f"tokens/{token['id']}").status == HTTPStatus.CONFLICT
    [labelled] = [each for each in operator.get("labels")["gateways"] if each["gateway"] == "hall"]
    assert labelled["labels"] == {"site": "lyon"}


def test_revoked_token_enrols_nothing(fleet: EnrolledFleet, operator: HubOperator) -> None:
    [token] = operator.send("POST", "tokens", {"gateways": ["yard"]}).document["tokens"]
    assert token["gateway"] == "yard"
    assert operator.send("DELETE", f"tokens/{token['id']}").document["state"] == "revoked"
    code, output = init_gateway(fleet.folder, fleet.url, token["token"], name="yard")
    assert code != 0
    assert "revoked" in output


def test_pages_follow_each_other(operator: HubOperator) -> None:
    made = operator.send("POST", "tokens", {"count": 500, "expires_s": 600})
    assert len(made.document["tokens"]) == 500
    seen: list[str] = []
    after = ""
    while after is not None:
        page: Any = operator.get(f"tokens?state=open&limit=120&after={after}")
        assert page["total"] == 500
        seen += [each["id"] for each in page["tokens"]]
        after = page["next"]
    assert sorted(seen) == sorted(each["id"] for each in made.document["tokens"])
    assert len(set(seen)) == 500


@pytest.mark.parametrize(
    "body",
    [
        {"count": 0},
        {"count": 501},
        {"expires_s": 59},
        {"labels": {"": "x"}},
        {"gateways": ["a", "a"]},
        {"gateways": ["a/b\n"]},
        {"tenant": "No Tenant!"},
        {"unknown": 1},
    ],
)
def test_mistakes_are_refused(operator: HubOperator, body: dict[str, Any]) -> None:
    answer = operator.send("POST", "tokens", body)
    assert answer.status == HTTPStatus.BAD_REQUEST, answer


def test_unknown_tokens_and_states_are_refused(operator: HubOperator) -> None:
    assert operator.send("DELETE", "tokens/unknown").status == HTTPStatus.NOT_FOUND
    assert operator.send("GET", "tokens?state=strange").status == HTTPStatus.BAD_REQUEST
    assert operator.send("GET", "tokens?after=x").status == HTTPStatus.BAD_REQUEST
    assert operator.send("GET", "tokens?limit=501").status == HTTPStatus.BAD_REQUEST
