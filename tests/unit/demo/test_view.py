"""Terminal view of the demo: it fits, it shows the progress, and plain output has no control codes."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.demo import closing
from tests.demo.accounting import Account, total
from tests.demo.board import PHASES, Board, DeviceBoard, GatewayBoard
from tests.demo.errors import DemoError
from tests.demo.facts import Fact
from tests.demo.journals import Journal
from tests.demo.plan import devices
from tests.demo.scenario import Outcome
from tests.demo.view import BARS, LiveView, PlainView, bars, make_view, picture, sparkline


def board_in_trouble() -> Board:
    board = Board("/tmp/demo")
    board.enter("kill gateway", "devices keep their readings")
    board.gateways = {name: GatewayBoard(name, "http://h/") for name in ("gw1", "gw2")}
    status = {
        "messages": {"received": 10},
        "uplink": {"state": "connecting", "backlog_messages": 1234},
        "clients": {"mqtt": 2},
    }
    board.gateways["gw1"].take(status, 1.0)
    board.gateways["gw1"].take({**status, "messages": {"received": 60}}, 2.0)
    board.gateways["gw2"].take({}, 1.0)
    board.gateways["gw2"].lost()
    for plan in devices(sensors=False):
        journal = Journal(Path("/nowhere"), plan.name, plan.gateway, sends={0: 1, 1: 1})
        board.devices.append(DeviceBoard(plan.name, plan.gateway, plan.protocol, plan.kind, "Proton", journal))
    board.say("gw2 killed", "bad")
    return board


def drawn(board: Board, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(picture(board, width, height), height=height)
    return captured.get().splitlines()


class TestPicture:
    @pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40), (200, 60)])
    @pytest.mark.parametrize("board", [Board("/tmp/demo"), board_in_trouble()], ids=["start", "trouble"])
    def test_picture_fits_the_terminal(self, board: Board, width: int, height: int) -> None:
        lines = drawn(board, width, height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)

    def test_picture_shows_the_progress(self) -> None:
        text = "\n".join(drawn(board_in_trouble(), 120, 40))
        for words in ("devices keep their readings", "● kill", "cut", "killed", "1,234", "gw1-cpu", "gw2 killed", "16"):
            assert words in text

    def test_devices_are_left_out_without_room(self) -> None:
        assert "gw1-cpu" not in "\n".join(drawn(board_in_trouble(), 80, 24))

    @pytest.mark.parametrize("phase", PHASES)
    def test_every_phase_has_a_word(self, phase: str) -> None:
        board = Board("/tmp/demo")
        board.enter(phase)
        assert "start" in "\n".join(drawn(board, 120, 30))


class TestSparkline:
    def test_sparkline_scales_from_zero_to_the_peak(self) -> None:
        assert sparkline([0, 4, 8], 5) == "  ▁▄█"
        assert sparkline([4], 1, peak=8) == "▄"
        assert sparkline([0, 0], 3) == " ▁▁"
        assert sparkline([], 3) == "   "

    @given(st.lists(st.floats(0, 1e9), max_size=50), st.integers(1, 30))
    def test_sparkline_has_the_requested_width(self, values: list[float], width: int) -> None:
        line = sparkline(values, width)
        assert len(line) == width
        assert set(line) <= set(BARS) | {" "}

    def test_bars_are_means_of_whole_spans(self) -> None:
        assert bars([1, 3, 5, 5, 1, 7, 9], seconds=1.0) == [2, 5, 4, 9]


class TestGatewayBoard:
    def test_rates_are_differences_and_restart_with_the_gateway(self) -> None:
        gateway = GatewayBoard("gw", "http://h/")
        gateway.take({"messages": {"received": 100}}, 1.0)
        gateway.take({"messages": {"received": 150}}, 2.0)
        assert gateway.rate == 50
        gateway.lost()
        assert (gateway.state, gateway.rate) == ("down", 0)
        gateway.take({"messages": {"received": 5}}, 3.0)
        assert gateway.rate == 0
        assert gateway.backlog is None

    def test_gateway_that_never_answered_is_starting(self) -> None:
        gateway = GatewayBoard("gw", "http://h/")
        gateway.lost()
        assert gateway.state == "starting"


def test_output_without_a_terminal_is_plain_lines() -> None:
    board, out = board_in_trouble(), io.StringIO()
    console = Console(file=out, width=80)
    view = make_view(board, console)
    assert isinstance(view, PlainView)
    assert isinstance(make_view(board, Console(force_terminal=True)), LiveView)

    async def main() -> None:
        async with view:
            await asyncio.sleep(0)
        board.say("never shown")

    asyncio.run(main())
    assert "gw2 killed" in out.getvalue()
    assert "acknowledged 16, in the lake 0; gw1 connecting backlog 1234" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_closing_table_shows_what_does_not_add_up() -> None:
    good = Account("gw1", acknowledged=5, landed=5)
    bad = Account("gw2", acknowledged=1234, landed=1233)
    outcome = Outcome([Fact("x", 1, 2, ok=False)], ["a note"], [good, bad], total([good, bad]), Path("/r/report.html"))
    console = Console(file=(out := io.StringIO()), width=100)
    closing.show(outcome, console)
    text = out.getvalue()
    assert "1,233" in text
    assert text.count("failed") == 3
    assert "The numbers do not add up." in text
    assert "/r/report.html" in text


def test_failure_shows_the_last_log_lines() -> None:
    console = Console(file=(out := io.StringIO()), width=100)
    closing.show_failure(DemoError("gw1 ended unexpectedly", "port [1883] is taken"), console)
    assert out.getvalue() == "error: gw1 ended unexpectedly\nport [1883] is taken\n"
