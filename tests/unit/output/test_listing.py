"""Lists of commands in every form: golden texts, because scripts read them."""

from __future__ import annotations

import pytest

from edge.output.listing import FORMS, Listing, print_listing

LISTING = Listing("gateway", "name", ("name", "ends_at", "labels"), ("serial",), "no gateways")
ROWS = [
    {"name": "hall", "ends_at": "2027-01-01", "labels": {"site": "berlin", "ring": "1"}, "serial": "00ff"},
    {"name": "=cmd()", "ends_at": None, "labels": {}, "serial": "01"},
]
GOLDEN = {
    "table": "NAME    ENDS AT     LABELS\nhall    2027-01-01  site=berlin,ring=1\n=cmd()  -           -\n",
    "wide": (
        "NAME    ENDS AT     LABELS              SERIAL\n"
        "hall    2027-01-01  site=berlin,ring=1  00ff\n"
        "=cmd()  -           -                   01\n"
    ),
    "name": "hall\n=cmd()\n",
    "csv": 'name,ends_at,labels,serial\nhall,2027-01-01,"site=berlin,ring=1",00ff\n\'=cmd(),,,01\n',
    "json": """{
  "schema": 1,
  "kind": "gateway",
  "items": [
    {
      "name": "hall",
      "ends_at": "2027-01-01",
      "labels": {
        "site": "berlin",
        "ring": "1"
      },
      "serial": "00ff"
    },
    {
      "name": "=cmd()",
      "ends_at": null,
      "labels": {},
      "serial": "01"
    }
  ]
}
""",
    "yaml": """schema: 1
kind: gateway
items:
- name: hall
  ends_at: '2027-01-01'
  labels:
    site: berlin
    ring: '1'
  serial: 00ff
- name: =cmd()
  ends_at: null
  labels: {}
  serial: '01'
""",
}


@pytest.mark.parametrize("form", FORMS)
def test_form_is_stable(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(LISTING, ROWS, form)
    assert capsys.readouterr().out == GOLDEN[form]


@pytest.mark.parametrize("form", ["table", "wide"])
def test_table_without_rows_says_so(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(LISTING, [], form)
    assert capsys.readouterr().out == "no gateways\n"


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(LISTING, [{"name": "\x1b[31mred", "ends_at": "a\nb", "labels": {}}], "table")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2
