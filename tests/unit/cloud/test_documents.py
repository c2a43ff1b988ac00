"""Status and ledger documents, and the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.resources.endpoint import Endpoint
from bridge.resources.errors import ConfigurationRejected
from cloud.hub.configuration import Settings, load
from cloud.hub.documents import DocumentError, ledger_ranges, status_row
from cloud.hub.groups import Session
from cloud.lake.landing import LedgerRange

NOW_US = 1_795_250_665_237_123
SESSION = Session("default", "gw1", "-")


def test_a_status_of_an_edge_becomes_a_row() -> None:
    document = {
        "state": "running",
        "epoch": "e",
        "reported_at": "2026-11-21T08:44:25.237123+00:00",
        "backlog_messages": 5,
        "backlog_oldest_at": 1_795_250_000_000_000_000,
        "something_newer": [1],
    }
    row = status_row(SESSION, document, 1)
    assert row["reported_at"] == 1_795_250_665_237_123
    assert row["backlog_oldest_at"] == 1_795_250_000_000_000
    assert (row["gateway"], row["state"], row["backlog_messages"], row["version"]) == ("gw1", "running", 5, None)
    assert status_row(SESSION, {}, NOW_US)["reported_at"] == NOW_US


@pytest.mark.parametrize(
    "document",
    [{"state": 5}, {"backlog_messages": -1}, {"backlog_messages": 1 << 63}, {"epoch": "e" * 256}],
)
def test_a_status_that_lies_about_its_types_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(DocumentError, match=r"\$"):
        status_row(SESSION, document, NOW_US)


RANGE = {"epoch": "e", "address": "a", "first_sequence": 3, "last_sequence": 9, "reason": "expired", "bytes": 70}


def test_ledger_documents_have_one_range_or_several() -> None:
    expected = LedgerRange("default", "gw1", "e", "a", 3, 9, 70, "expired", NOW_US)
    assert list(ledger_ranges(SESSION, RANGE, NOW_US)) == [expected]
    assert list(ledger_ranges(SESSION, {"ranges": [RANGE, RANGE]}, NOW_US)) == [expected, expected]


@pytest.mark.parametrize("change", [{"last_sequence": 2}, {"first_sequence": -1}, {"reason": None}, {"epoch": 1}])
def test_a_ledger_document_that_cannot_be_right_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DocumentError):
        ledger_ranges(SESSION, {**RANGE, **change}, NOW_US)


def test_a_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text("apiVersion: waypost/v1\nkind: Hub\nspec:\n  amqp: 127.0.0.1:0\n  gatherMilliseconds: 50\n")
    assert load(file) == Settings(amqp=Endpoint("127.0.0.1", 0), gather_milliseconds=50)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "apiVersion: waypost/v1\nkind: Hub\nspec:\n  ampq: x\n",
            ':4: spec.ampq: unknown field "ampq"; did you mean',
        ),
        ("apiVersion: waypost/v1\nkind: Hub\nspec:\n  gatherMilliseconds: 9000\n", ":4: spec.gatherMilliseconds: "),
        ("apiVersion: waypost/v1\nkind: Hub\nspec:\n  amqp: 5673\n", ":4: spec.amqp: expected text, not 5673"),
        ("apiVersion: waypost/v1\nkind: hub\nspec: {}\n", ':2: kind: unknown kind "hub"; did you mean "Hub"?'),
        ("apiVersion: waypost/v2\nkind: Hub\nspec: {}\n", ":1: apiVersion: "),
        ("apiVersion: waypost/v1\nkind: Hub\n", ':1: "spec" is missing'),
        ("kind: [\n", ":2: "),
        ("", ": one resource of kind Hub is wanted, not 0"),
        ("kind: Hub\nspec: {}\nkind: Hub\n", ':3: kind: "kind" is written twice; first in line 1'),
        ("kind: &kind Hub\nspec: *kind\n", ":1: spec: YAML aliases"),
    ],
)
def test_a_bad_configuration_names_file_line_and_path(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationRejected) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}{place}")
    assert "\n" not in str(caught.value)
