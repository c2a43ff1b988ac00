"""`waypost explain`: entries from the code of the product, found by code."""

from __future__ import annotations

import json

import pytest

from docs.generate import explanations
from edge.appliance.explaining.cli import read_entries
from edge.appliance.main import run
from edge.output.errors import Exit


def test_entries_are_those_of_the_code() -> None:
    made = explanations.encoded()
    assert explanations.FILE.read_text() == made, "run: python -m docs.generate.explanations"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["clock"], "clock  (problem of a gateway; warning)\n  what  "),
        (["0x87"], "0x87  (MQTT 5 reason codes)\n  what  not authorized"),
        (["WRONG-PASSWORD"], "wrong-password  (Refused clients)\n  what  "),
        (["forwarder", "plant"], "forwarder \u2039name\u203a  (problem of a gateway; warning)"),
        (["3"], "3  (Exit codes of commands)"),
    ],
)
def test_code_is_explained(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *words]) == Exit.DONE
    assert expected in capsys.readouterr().out


def test_similar_codes_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "wrong-pasword"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "did you mean: wrong-password" in err
    assert "all of them: waypost explain" in err


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == Exit.DONE
    out = capsys.readouterr().out
    assert all(f"  {entry.code}\n" in out for entry in read_entries())


def test_document_has_the_common_envelope(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "clock", "--json"]) == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "explanation")
    assert {item["code"] for item in document["items"]} == {"clock"}
    assert set(document["items"][0]) == {"code", "kind", "cases"}


def test_every_problem_has_a_next_step() -> None:
    """A problem without a next step leaves its reader alone."""
    assert not [
        entry.code
        for entry in read_entries()
        if entry.kind.startswith("problem of") and not all(case.next for case in entry.cases)
    ]
