"""`./waypost bench [NAME…]`: how fast this gateway is on this machine, beside its peers in the same run."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.bench.brokers import BrokerMissing, say
from tests.bench.cases import CASES, ROUNDS, Result, run
from tests.bench.load import LoadFailed, LoadGenerators


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Counted rounds of each, after one to warm up.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--list", "listing", is_flag=True, help="Name the benchmarks and stop.")
def bench(names: tuple[str, ...], rounds: int, as_json: bool, listing: bool) -> None:
    """Run the benchmarks named, or all. Exits 1 when a goal is missed, 3 when a peer is not installed."""
    if listing:
        for case in CASES.values():
            click.echo(f"{case.name:14} {case.about}")
        return
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise click.UsageError(f"no benchmark called {', '.join(unknown)}; there are {', '.join(CASES)}")
    Path("build").mkdir(exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="waypost-load-") as folder:
        load = LoadGenerators(Path(folder))
        try:
            results.extend(run(CASES[name], load, rounds) for name in names or CASES)
        except BrokerMissing as missing:
            say(f"error: {missing}")
            sys.exit(3)
        except LoadFailed as failed:
            say(f"error: {failed}")
            sys.exit(1)
    if as_json:
        click.echo(json.dumps([result._asdict() for result in results], indent=2))
    else:
        show(results)
    sys.exit(0 if all(result.met for result in results) else 1)


def show(results: list[Result]) -> None:
    """A table that fits a terminal."""
    table = Table(title="messages a second, medians", title_justify="left")
    for heading in ("benchmark", "waypost", "peer", "ratio", "goal", "RSS MiB", ""):
        table.add_column(heading, justify="left" if heading in ("benchmark", "goal") else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.rate:,.0f}",
            "-" if result.peer_rate is None else f"{result.peer_rate:,.0f}",
            "-" if result.ratio is None else f"{result.ratio:.2f}",
            result.goal,
            f"{result.resident_mib:.0f}",
            "[green]met[/]" if result.met else "[red]missed[/]",
        )
    Console().print(table)


if __name__ == "__main__":
    bench(prog_name="waypost bench")
