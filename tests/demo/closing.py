"""Final output of the demo: the sums, the facts and the path of the report."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edge.output.amounts import number
from tests.demo.accounting import Account
from tests.demo.board import Board
from tests.demo.errors import DemoError
from tests.demo.scenario import Outcome


def mark(ok: bool) -> Text:
    return Text("ok", style="bold green") if ok else Text("failed", style="bold red")


def show(outcome: Outcome, console: Console) -> None:
    """Print the tables and the verdict."""
    console.print(_sums(outcome))
    console.print(_facts(outcome))
    for note in outcome.notes:
        console.print(Text(f"· {note}", style="bright_black"))
    verdict = "Everything acknowledged is in the lake, once." if outcome.ok else "The numbers do not add up."
    console.print(Text(f"\n{verdict}", style="bold green" if outcome.ok else "bold red"))
    console.print(f"open this: {outcome.report}", highlight=False, soft_wrap=True)


def _sums(outcome: Outcome) -> Table:
    table = Table(
        title="published = in the lake, duplicates 0, unexplained gaps 0",
        title_justify="left",
        title_style="bold",
        box=box.ROUNDED,
    )
    table.add_column("gateway")
    for heading in ("published\n(acked)", "in the\nlake", "duplicates", "unexplained\ngaps", "sent again\nby devices"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in outcome.accounts:
        table.add_row(*_row(one))
    table.add_section()
    table.add_row(*_row(outcome.everything), style="bold")
    return table


def _row(one: Account) -> tuple[str | Text, ...]:
    figures = (one.acknowledged, one.landed, one.duplicates, one.unexplained_gaps, one.resent)
    return (one.gateway, *(number(figure) for figure in figures), mark(one.adds_up))


def _facts(outcome: Outcome) -> Table:
    table = Table(box=box.ROUNDED)
    table.add_column("checked")
    table.add_column("found", justify="right")
    table.add_column("expected", justify="right")
    table.add_column("")
    for fact in outcome.facts:
        table.add_row(fact.name, _figure(fact.value), _figure(fact.expected), mark(fact.ok))
    return table


def _figure(value: object) -> str:
    return number(value) if isinstance(value, int) else str(value)


def show_consoles(board: Board, console: Console) -> None:
    """Print the addresses of the consoles while everything stays up."""
    console.print()
    console.print(f"hub      {board.hub_console}", highlight=False)
    for gateway in board.gateways.values():
        console.print(f"{gateway.name:8} {gateway.console}", highlight=False)
    console.print(Text("Ctrl-C ends it", style="bright_black"))


def show_failure(why: DemoError, console: Console) -> None:
    """Print one clear line, and the last log lines of the failed process."""
    console.print(Text(f"error: {why}", style="bold red"))
    if why.detail:
        console.print(Text(why.detail, style="bright_black"), soft_wrap=True)
