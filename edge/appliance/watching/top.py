"""View of `waypost top`: the path of a reading in the header, and one table below. Draws rows of text, does no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.cells import set_cell_size

from edge.appliance.watching.terminal import ScreenSize
from edge.output.amounts import counted, size, span
from edge.output.text import line
from edge.remote.client import ConsoleClient

FIXED_ROWS: Final = 9
"""Rows above the rows of the table, and the one below them."""
ROWS_MAX: Final = 200
"""Rows of a table that are asked for."""
POINTS_MAX: Final = 40
"""Points of a sparkline."""
BARS: Final = "▁▂▃▄▅▆▇█"
BOLD, DIM, REVERSE, RED, YELLOW = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[31m", "\x1b[33m"
_COUNTERS: Final = ("received", "stored", "delivered")


class TopColumn(NamedTuple):
    """Column of a table: heading, width, and its text in a row. Numbers are aligned at the right."""

    heading: str
    width: int
    text: Callable[[Mapping[str, Any]], str]
    right: bool = False


class TopTab(NamedTuple):
    """Table of the view: the route that has its rows, and the orders it can be in."""

    title: str
    path: str
    rows: Callable[[Any], Sequence[Mapping[str, Any]]]
    sorts: Sequence[str]
    columns: Sequence[TopColumn]


def _number(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{row.get(key) or 0:,}"


def _text(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: line(row.get(key) or "-")


def _forwarders(document: Any) -> list[dict[str, Any]]:
    """Return one row for each forwarder, with what its connector knows."""
    shared = ("state", "accepted_per_s", "backlog_oldest_at", "last_error")
    return [
        {**{name: connector.get(name) for name in shared}, **forwarder, "connector": connector["name"]}
        for connector in document["connectors"]
        for forwarder in connector["forwarders"]
    ]


TABS: Final = (
    TopTab(
        "clients", "clients", lambda page: page["clients"], ("in", "out", "queued", "last", "name"),
        (
            TopColumn("client", 28, _text("name")), TopColumn("user", 16, _text("user")),
            TopColumn("state", 9, _text("state")), TopColumn("protocol", 10, _text("protocol")),
            TopColumn("in", 12, _number("in"), right=True), TopColumn("out", 12, _number("out"), right=True),
            TopColumn("queued", 10, _number("queued"), right=True), TopColumn("remote", 24, _text("remote")),
        ),
    ),
    TopTab(
        "addresses", "addresses", lambda page: page["addresses"], ("rate", "waiting", "consumers", "address"),
        (
            TopColumn("address", 40, _text("address")), TopColumn("type", 12, _text("type")),
            TopColumn("per s", 10, lambda row: f"{row.get('received_per_s') or 0:,.1f}", right=True),
            TopColumn("received", 14, _number("received"), right=True),
            TopColumn("delivered", 14, _number("delivered"), right=True),
            TopColumn("waiting", 14, _number("waiting"), right=True),
            TopColumn("consumers", 10, _number("consumers"), right=True),
            TopColumn("subscription", 24, _text("subscription")),
        ),
    ),
    TopTab(
        "forwarders", "bridge", _forwarders, ("",),
        (
            TopColumn("forwarder", 24, _text("name")), TopColumn("connector", 16, _text("connector")),
            TopColumn("state", 11, _text("state")),
            TopColumn("backlog", 14, _number("backlog_messages"), right=True),
            TopColumn("per s", 10, lambda row: f"{row.get('accepted_per_s') or 0:,.1f}", right=True),
            TopColumn("filter", 28, _text("filter")), TopColumn("error", 40, _text("last_error")),
        ),
    ),
    TopTab(
        "problems", "status", lambda status: status.get("problems", ()), ("",),
        (
            TopColumn("severity", 9, _text("severity")), TopColumn("problem", 24, _text("name")),
            TopColumn("what", 60, _text("what")), TopColumn("next step", 80, _text("next_step")),
        ),
    ),
)  # fmt: skip


class TopView:
    """State of the view: tab, order, position, and the rates of the last minutes."""

    def __init__(self) -> None:
        self.tab = 0
        self.first = 0
        self._sorts = [0] * len(TABS)
        self._rates: dict[str, deque[float]] = {name: deque(maxlen=POINTS_MAX) for name in _COUNTERS}
        self._last: tuple[float, Mapping[str, int]] | None = None
        self.status: Mapping[str, Any] = {}
        self.bridge: Mapping[str, Any] = {}
        self.document: Any = {}

    @property
    def sort(self) -> str:
        """Order of the table now."""
        return TABS[self.tab].sorts[self._sorts[self.tab]]

    def press(self, key: str) -> None:
        """Take a key: 1 to 4 and Tab choose a table, s the order, j and k or the arrows move."""
        if key in ("\t", "\x1b[C"):
            self._choose((self.tab + 1) % len(TABS))
        elif key == "\x1b[D":
            self._choose((self.tab - 1) % len(TABS))
        elif key.isdigit() and 0 < int(key) <= len(TABS):
            self._choose(int(key) - 1)
        elif key == "s":
            self._sorts[self.tab] = (self._sorts[self.tab] + 1) % len(TABS[self.tab].sorts)
            self.first = 0
        elif key in ("j", "\x1b[B"):
            self.first += 1
        elif key in ("k", "\x1b[A"):
            self.first = max(0, self.first - 1)

    def _choose(self, tab: int) -> None:
        self.tab, self.first = tab, 0

    def read(self, client: ConsoleClient, now_s: float) -> None:
        """Read status and table. Raises CommandError."""
        self.status = client.ask("status")
        self._note(self.status.get("messages", {}), now_s)
        self.bridge = client.ask("bridge")
        tab = TABS[self.tab]
        query: dict[str, Any] = {"sort": self.sort, "limit": ROWS_MAX} if self.sort else {}
        same = {"status": self.status, "bridge": self.bridge}
        self.document = same[tab.path] if tab.path in same else client.ask(tab.path, **query)

    def _note(self, counters: Mapping[str, int], now_s: float) -> None:
        if self._last is not None and now_s > self._last[0]:
            for name, rates in self._rates.items():
                rates.append(max(0.0, (counters.get(name, 0) - self._last[1].get(name, 0)) / (now_s - self._last[0])))
        self._last = now_s, counters

    def draw(self, screen: ScreenSize, fault: str = "") -> list[str]:
        """Return the rows of the screen."""
        tab = TABS[self.tab]
        rows = list(tab.rows(self.document))
        shown = max(1, screen.rows - FIXED_ROWS)
        self.first = min(self.first, max(0, len(rows) - shown))
        head = [*self._header(), "", self._tabs(), f"{BOLD}{_cut(_headings(tab), screen.columns)}"]
        body = [_cut(_row(tab, row), screen.columns) for row in rows[self.first : self.first + shown]]
        body = body or [f"{DIM}{'no problems' if tab.title == 'problems' else 'none'}"]
        body += [""] * (shown - len(body))
        keys = fault or f"1-{len(TABS)} table  s order ({self.sort or 'fixed'})  j k move  q end"
        foot = f"{YELLOW if fault else DIM}{_cut(line(keys), screen.columns)}"
        return [*(_cut_styled(text, screen.columns) for text in head[:-1]), head[-1], *body, foot][: screen.rows]

    def _header(self) -> list[str]:
        """Return the path of a reading, and the rates."""
        status, bridge = self.status, self.bridge
        clients = sum(count for count in status.get("clients", {}).values() if isinstance(count, int))
        uplink, store = status.get("uplink", {}), status.get("store", {})
        hours = bridge.get("autonomy_hours")
        room = f", full in {span(hours * 3600)}" if hours is not None and hours < 24 * 3650 else ""
        problems = [each for each in status.get("problems", ()) if not each.get("muted")]
        worst = f"  {counted(len(problems), 'problem')}: {line(problems[0]['name'])}" if problems else "  no problems"
        rates = {name: rates[-1] if rates else 0.0 for name, rates in self._rates.items()}
        return [
            f"{BOLD}{line(status.get('gateway') or 'gateway')}  up {span(status.get('uptime_s', 0))}{worst}",
            f"{counted(clients, 'client')} -> store {size(store.get('file_bytes', 0))}{room}"
            f" -> uplink {uplink.get('state', '-')} -> {counted(uplink.get('backlog_messages', 0), 'message')} waiting",
            *(f"{name:<10}{rates[name]:>10,.0f} /s  {sparkline(list(self._rates[name]))}" for name in _COUNTERS),
        ]

    def _tabs(self) -> str:
        names = [f" {place + 1} {tab.title} " for place, tab in enumerate(TABS)]
        return " ".join(f"{REVERSE}{name}\x1b[0m" if place == self.tab else name for place, name in enumerate(names))


def sparkline(values: Sequence[float]) -> str:
    """Return a line of bars, and the highest one is the largest value."""
    most = max(values, default=0.0)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] if most else BARS[0] for value in values)


def _headings(tab: TopTab) -> str:
    return "  ".join(_cell(column.heading, column) for column in tab.columns)


def _row(tab: TopTab, row: Mapping[str, Any]) -> str:
    return "  ".join(_cell(column.text(row), column) for column in tab.columns)


def _cell(text: str, column: TopColumn) -> str:
    return text.rjust(column.width) if column.right else set_cell_size(text, column.width)


def _cut(text: str, columns: int) -> str:
    """Return a text without styles that fits its row."""
    return set_cell_size(text, columns).rstrip()


def _cut_styled(text: str, columns: int) -> str:
    """Return a text that fits its row; its style stands at its beginning, or it is short."""
    style = text[: len(BOLD)] if text.startswith(BOLD) else ""
    return style + _cut(text.removeprefix(style), columns) if "\x1b[7m" not in text else text
