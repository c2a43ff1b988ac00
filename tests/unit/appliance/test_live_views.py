"""Live views: what is said of changes, and the rows of `waypost top`."""

from __future__ import annotations

from typing import Any

import pytest

from edge.appliance.watching.changes import merge, sentences
from edge.appliance.watching.terminal import ScreenSize
from edge.appliance.watching.top import FIXED_ROWS, TABS, TopView, sparkline

PROBLEM = {"name": "clock", "what": "the clock is wrong", "severity": "warning", "next_step": "waypost doctor"}
STATUS: dict[str, Any] = {
    "gateway": "hall",
    "uptime_s": 7300.0,
    "clients": {"mqtt": 3},
    "messages": {"received": 100, "stored": 90, "delivered": 80, "refused": 1},
    "store": {"file_bytes": 1_500_000},
    "uplink": {"state": "connected", "backlog_messages": 12},
    "problems": [PROBLEM],
}
CONNECTOR = {
    "name": "hub",
    "state": "connecting",
    "accepted_per_s": 2.5,
    "last_error": "refused",
    "backlog_oldest_at": 1,
}
BRIDGE = {
    "autonomy_hours": 30.0,
    "connectors": [{**CONNECTOR, "forwarders": [{"name": "plant", "filter": "plant/#", "backlog_messages": 12}]}],
}
CLIENTS = [
    {"name": f"pump{number}", "user": "pump", "state": "connected", "protocol": "MQTT 5", "in": number, "out": 0}
    for number in range(40)
]


class FakeConnection:
    """Documents of a gateway, and the requests for them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.status = dict(STATUS)

    def ask(self, path: str, **query: Any) -> Any:
        self.asked.append((path, query))
        addresses = [{"address": "plant/\x1b[31mred", "type": "queue", "stored": 5}]
        return {
            "status": self.status,
            "bridge": BRIDGE,
            "clients": {"clients": CLIENTS},
            "addresses": {"addresses": addresses},
        }[path]


def rows_of(view: TopView, columns: int = 100, rows: int = 24) -> list[str]:
    return view.draw(ScreenSize(columns, rows))


@pytest.fixture
def view() -> TopView:
    made = TopView()
    made.read(FakeConnection(), 10.0)  # type: ignore[arg-type]
    return made


def test_header_follows_a_reading(view: TopView) -> None:
    rows = rows_of(view)
    assert rows[0] == "\x1b[1mhall  up 2 h  1 problem: clock"
    assert rows[1] == "3 clients -> store 1.5 MB, full in 30 h -> uplink connected -> 12 messages waiting"


def test_rates_are_of_the_time_between_two_looks(view: TopView) -> None:
    later = FakeConnection()
    later.status["messages"] = {**STATUS["messages"], "received": 120}
    view.read(later, 12.0)  # type: ignore[arg-type]
    assert rows_of(view)[2] == "received          10 /s  █"


@pytest.mark.parametrize("rows", [10, 24, 60])
@pytest.mark.parametrize("tab", range(len(TABS)))
def test_every_table_fits_the_screen(view: TopView, tab: int, rows: int) -> None:
    view.press(str(tab + 1))
    view.read(FakeConnection(), 11.0)  # type: ignore[arg-type]
    drawn = rows_of(view, 80, rows)
    assert len(drawn) == rows
    assert "q end" in drawn[-1]
    assert "\x1b[31m" not in "".join(drawn), "names of devices are text, never control sequences"


def test_orders_go_round_and_are_asked_for(view: TopView) -> None:
    connection = FakeConnection()
    for sort in ("out", "queued", "last", "name", "in"):
        view.press("s")
        view.read(connection, 11.0)  # type: ignore[arg-type]
        assert connection.asked[-1] == ("clients", {"sort": sort, "limit": 200})


def test_table_moves_up_to_its_end(view: TopView) -> None:
    for _ in range(100):
        view.press("j")
    rows = rows_of(view, rows=24)
    assert view.first == len(CLIENTS) - (24 - FIXED_ROWS)
    assert rows[-2].startswith("pump39 ")
    for _ in range(100):
        view.press("k")
    assert rows_of(view)[8].startswith("pump0 ")


def test_tab_key_goes_round(view: TopView) -> None:
    seen = []
    for _ in TABS:
        view.press("\t")
        seen.append(view.tab)
    assert seen == [1, 2, 3, 0]


def test_fault_is_shown_in_the_last_row(view: TopView) -> None:
    rows = view.draw(ScreenSize(80, 24), "no gateway answers at http://127.0.0.1:1")
    assert rows[-1].endswith("no gateway answers at http://127.0.0.1:1")


def test_sparkline_is_relative_to_its_largest_value() -> None:
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"


def test_patch_is_merged() -> None:
    patch = {"uplink": {"state": "connecting", "backlog_messages": None}, "problems": []}
    merged = merge(STATUS, patch)
    assert merged["uplink"] == {"state": "connecting"}
    assert merged["problems"] == []
    assert merged["gateway"] == "hall"


def test_changes_are_sentences() -> None:
    new = {
        **STATUS,
        "problems": [{**PROBLEM, "name": "store", "what": "full", "severity": "error"}],
        "uplink": {"state": "connecting"},
        "clients": {"mqtt": 2},
        "messages": {"refused": 4},
    }
    assert list(sentences(STATUS, new)) == [
        "error began: store: full",
        "warning ended: clock: the clock is wrong",
        "uplink: connected -> connecting",
        "mqtt clients: 3 -> 2",
        "messages refused: 3 more",
    ]
    assert list(sentences(STATUS, STATUS)) == []
