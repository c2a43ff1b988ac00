"""Output of the running demo: a live picture on a terminal, plain lines elsewhere. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Protocol

from rich import box
from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tests.demo.board import PHASES, Board, DeviceBoard, GatewayBoard
from tests.demo.watching import INTERVAL_S

REFRESH_S = 0.25
HEADER_HIGH = 5
SUMS_HIGH = 7
LAKE_WIDE = 34
BARS = "▁▂▃▄▅▆▇█"
STYLES = {"plain": "", "good": "green", "bad": "bright_red"}
UPLINK_STYLES = {"connected": "green", "connecting": "bold red", "paused": "yellow", "down": "bold red"}
PHASE_WORDS = ("start", "flow", "cut", "kill", "restore", "drain", "analyse", "done")


def bars(samples: Iterable[float], seconds: float = 2.5) -> list[float]:
    """Average the watcher's samples over periods of `seconds`.

    Periods are whole multiples from the first sample, so that a complete bar never changes.
    """
    size, values = max(1, round(seconds / INTERVAL_S)), list(samples)
    return [mean(values[i : i + size]) for i in range(0, len(values), size)]


def sparkline(values: Sequence[float], width: int, peak: float | None = None) -> str:
    """Draw the last values as bars of eight heights, newest at the right, scaled to `peak` or their own."""
    shown = values[-width:]
    top = max(shown, default=0) if peak is None else peak
    if top <= 0:
        return (BARS[0] * len(shown)).rjust(width)
    return "".join(BARS[max(0, min(7, int(value / top * 7.999)))] for value in shown).rjust(width)


class View(Protocol):
    """Shows a board until its context is left."""

    async def __aenter__(self) -> View: ...

    async def __aexit__(self, *_: object) -> None: ...


class LiveView:
    """Full-screen view, redrawn four times a second and removed afterwards."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    async def __aenter__(self) -> LiveView:
        self._live.start()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._live.stop()

    async def _run(self) -> None:
        while True:
            size = self._live.console.size
            self._live.update(picture(self._board, size.width, size.height), refresh=True)
            await asyncio.sleep(REFRESH_S)


class PlainView:
    """The event log line by line, and sometimes the sums."""

    SUMS_S = 5.0

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console
        self._shown = 0
        self._sums_due = 0.0

    async def __aenter__(self) -> PlainView:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._print()

    async def _run(self) -> None:
        while True:
            self._print()
            if time.monotonic() >= self._sums_due:
                self._sums_due = time.monotonic() + self.SUMS_S
                if self._board.devices and PHASES[self._board.phase] != "done":
                    self._line(time.time(), sums(self._board))
            await asyncio.sleep(REFRESH_S)

    def _print(self) -> None:
        for at, text, _ in self._board.log[self._shown :]:
            self._line(at, text)
        self._shown = len(self._board.log)

    def _line(self, at: float, text: str) -> None:
        self._console.print(
            f"{at - self._board.started_at:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True
        )


def make_view(board: Board, console: Console) -> View:
    """Return the view for this kind of output."""
    return LiveView(board, console) if console.is_terminal else PlainView(board, console)


def sums(board: Board) -> str:
    """Return the current sums as one line."""
    backlogs = ", ".join(
        f"{g.name} {g.uplink} backlog {g.backlog if g.backlog is not None else '-'}" for g in board.gateways.values()
    )
    if PHASES[board.phase] == "analyse":
        return f"[{board.doing}]"
    doing = f"{PHASES[board.phase]}{': ' + board.doing if board.doing else ''}"
    return f"[{doing}] acknowledged {board.acknowledged}, in the lake {board.landed.rows}; {backlogs}"


# --- the picture -------------------------------------------------------------------------------------------------


def picture(board: Board, width: int, height: int) -> RenderableType:
    """Build everything for a terminal of this size; devices are left out if they do not fit."""
    layout = Layout()
    gateways_high, devices_high = max(1, len(board.gateways)) + 3, len(board.devices) + 3
    left = height - HEADER_HIGH - gateways_high
    parts = [
        Layout(_header(board), size=HEADER_HIGH),
        Layout(_panel("Gateways", _gateways(board, width)), size=gateways_high),
    ]
    if left - devices_high >= SUMS_HIGH:
        parts.append(Layout(_panel("Devices", _devices(board)), size=devices_high))
        left -= devices_high
    log_high = max(SUMS_HIGH, left)
    below = Layout(size=log_high)
    below.split_row(
        Layout(_panel("What happened", _log(board, log_high - 2)), ratio=5),
        Layout(_panel("Hub and lake", _lake(board)), size=LAKE_WIDE),
    )
    layout.split_column(*parts, below)
    return layout


def _panel(title: str, inside: RenderableType) -> Panel:
    return Panel(inside, title=title, title_align="left", border_style="bright_black", box=box.ROUNDED, padding=(0, 1))


def _header(board: Board) -> Panel:
    minutes, seconds = divmod(int(time.time() - board.started_at), 60)
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(Text(board.doing or "waypost demo", style="bold"), Text(f"{minutes}:{seconds:02}", style="bold"))
    return Panel(
        Group(line, Text(""), _timeline(board)),
        title="[bold]waypost demo[/] acknowledged is on disk, and in the lake once",
        title_align="left",
        border_style="cyan",
        box=box.ROUNDED,
        padding=(0, 1),
    )


def _timeline(board: Board) -> Text:
    """Draw every phase: past ones, the current one, future ones."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for index, word in enumerate(PHASE_WORDS):
        if index:
            text.append(" ── ", style="green" if index <= board.phase else "bright_black")
        if index < board.phase or (index == board.phase and word == "done"):
            text.append(f"✔ {word}", style="green")
        elif index == board.phase:
            text.append(f"● {word}", style="bold cyan")
        else:
            text.append(f"○ {word}", style="bright_black")
    return text


def _gateways(board: Board, width: int) -> RenderableType:
    if not board.gateways:
        return Align.center(Text("starting", style="bright_black"), vertical="middle")
    spark = max(6, min(40, (width - 62) // 2))
    rates = {gateway.name: bars(gateway.rates)[-spark:] for gateway in board.gateways.values()}
    backlogs = {gateway.name: bars(gateway.backlogs)[-spark:] for gateway in board.gateways.values()}
    rate_peak, backlog_peak = (max(map(max, filter(None, of.values())), default=0) for of in (rates, backlogs))
    table = _table("", "uplink", ">clients", ">received/s", "", ">backlog", "")
    for gateway in board.gateways.values():
        table.add_row(
            Text(gateway.name, style="bold"),
            _uplink(gateway),
            f"{gateway.clients}",
            f"{gateway.rate:,.0f}",
            Text(sparkline(rates[gateway.name], spark, rate_peak), style="cyan"),
            "-" if gateway.backlog is None else f"{gateway.backlog:,}",
            Text(sparkline(backlogs[gateway.name], spark, backlog_peak), style="yellow"),
        )
    return table


def _uplink(gateway: GatewayBoard) -> Text:
    if gateway.state == "down":
        return Text("killed", style="bold red")
    if gateway.state == "starting":
        return Text("starting", style="bright_black")
    word = "cut" if gateway.uplink == "connecting" else gateway.uplink
    return Text(word, style=UPLINK_STYLES.get(gateway.uplink, ""))


def _lake(board: Board) -> RenderableType:
    behind = board.acknowledged - board.landed.rows
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row("acknowledged", Text(f"{board.acknowledged:,}", style="bold"))
    grid.add_row("in the lake", Text(f"{board.landed.rows:,}", style="bold green"))
    grid.add_row("behind", Text(f"{max(0, behind):,}", style="yellow" if behind > 0 else "green"))
    grid.add_row("commits", f"{board.landed.commits:,}")
    grid.add_row("rows/s", Text(sparkline(bars(board.landed_rates), 16), style="green"))
    return grid


def _devices(board: Board) -> RenderableType:
    table = _table(
        "device", "speaks", "measures", "client", ">acknowledged", ">per second", ">held back", ">sent again"
    )
    for device in board.devices:
        table.add_row(*_device(device))
    return table


def _device(device: DeviceBoard) -> tuple[RenderableType, ...]:
    journal = device.journal
    if journal.end is not None:
        name = Text(f"{device.name} done", style="bright_black")
    else:
        name = Text(device.name, style="" if journal.connected else "red")
    held = "-" if journal.waiting is None else f"{journal.waiting:,}"
    return (
        name,
        device.protocol,
        device.kind,
        device.program,
        f"{len(journal.sends):,}",
        f"{device.rate:,.0f}",
        Text(held, style="yellow" if (journal.waiting or 0) > 20 else ""),
        f"{journal.resent:,}",
    )


def _log(board: Board, lines: int) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    for at, what, style in board.log[-lines:]:
        text.append(f"{at - board.started_at:6.1f} s  ", style="bright_black")
        text.append(f"{what}\n", style=STYLES[style])
    return text


def _table(*columns: str) -> Table:
    table = Table(box=None, expand=True, header_style="bright_black", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table
