"""Progress of a simulation on stderr: a bar and a live table on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from edge.output.amounts import number, span
from edge.output.terminal import say, styled
from simulator.running import GroupRun, RunRates, SimulationRun
from simulator.summary import errors_of
from simulator.tally import LatencyCounts, percentile_ms

LINE_S: Final = 10.0
"""Time between two lines where there is no terminal."""
ERRORS_MAX: Final = 6
"""Reasons that the table names."""
COLUMNS: Final = ("group", "connected", "readings/s", "acknowledged", "waiting", "dropped", "p50 ms", "p99 ms")
_WIDTH: Final = 40


@contextlib.contextmanager
def shown(run: SimulationRun, duration_s: float | None) -> Iterator[Callable[[], None]]:
    """Show the progress of a run; yield a function that shows the present one."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(run)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda: live.update(drawn(run, duration_s), refresh=True)


def drawn(run: SimulationRun, duration_s: float | None) -> RenderableType:
    """Return the table with its bar."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "group" else "right")
    for group in run.groups:
        table.add_row(*(styled(each) for each in _cells(group, run.rates.get(group.name))))
    errors = errors_of(run).most_common(ERRORS_MAX)
    told = "errors: " + (", ".join(f"{code} {number(count)}" for code, count in errors) if errors else "none")
    return Group(_bar(run, duration_s), table, styled(told, "red" if errors else "dim"), styled(_doing(run), "dim"))


def _bar(run: SimulationRun, duration_s: float | None) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    if duration_s is None:
        row.add_row(styled(f"{span(run.elapsed_s)} until Ctrl-C"))
    else:
        done = min(run.elapsed_s, duration_s)
        row.add_row(ProgressBar(duration_s, done, width=_WIDTH), styled(f"{span(done)} of {span(duration_s)}"))
    return row


def _doing(run: SimulationRun) -> str:
    if run.draining:
        return "waiting for the last acknowledgements; Ctrl-C ends at once"
    return "Ctrl-C ends the run in order"


def _cells(group: GroupRun, rates: RunRates | None) -> list[str]:
    tally = group.tally
    latency = rates.latency if rates is not None else LatencyCounts()
    return [
        group.name,
        f"{number(tally.connected)} of {number(group.devices)}",
        number(rates.acknowledged_per_s if rates is not None else 0.0, 1),
        number(tally.acknowledged),
        number(tally.waiting),
        number(tally.dropped),
        _milliseconds(latency.percentile_ms(0.5)),
        _milliseconds(latency.percentile_ms(0.99)),
    ]


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else number(value, 1)


def _lines(run: SimulationRun) -> Callable[[], None]:
    next_s = LINE_S

    def look() -> None:
        nonlocal next_s
        if run.elapsed_s < next_s:
            return
        next_s = run.elapsed_s + LINE_S
        tallies = [group.tally for group in run.groups]
        rate = sum(each.acknowledged_per_s for each in run.rates.values())
        p99 = _milliseconds(percentile_ms((each.latency for each in run.rates.values()), 0.99))
        errors = sum(errors_of(run).values())
        connected = sum(each.connected for each in tallies)
        say(
            f"{span(run.elapsed_s)}: {number(connected)} of {number(len(run.devices))} connected, "
            f"{number(rate, 1)} readings/s, p99 {p99} ms, {number(sum(each.waiting for each in tallies))} waiting, "
            f"{number(errors)} errors",
            err=True,
        )

    return look
