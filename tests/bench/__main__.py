"""`./waypost bench [NAME…]`: speed of this gateway on this machine, compared with its peers in the same run."""

from __future__ import annotations

import json
import platform
import signal
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from edge.appliance.program import program_name
from tests.bench.cases import CASES
from tests.bench.comparison import ROUNDS, Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import BrokerMissing, say
from tests.bench.plot import svg
from tests.bench.result import Result, figure

WIDTH = 80
"""Columns of the table."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True, help="Counted rounds of each.")
@click.option("--full", is_flag=True, help="Backlogs of 20 million messages instead of 2 million.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--markdown", is_flag=True, help="The figures as the table of the README.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture (SVG).")
@click.option("--list", "listing", is_flag=True, help="Name the benchmarks and stop.")
def bench(
    names: tuple[str, ...], rounds: int, full: bool, as_json: bool, markdown: bool, plot: Path | None, listing: bool
) -> None:
    """Run the named benchmarks, or all of them.

    Exits 1 when a goal is missed or a load fails, 2 when there is no benchmark of that name, 3 when a peer of a named
    benchmark is not installed. Without names, a missing peer is skipped.
    """
    if listing:
        for case in CASES.values():
            click.echo(f"{case.name:22} {case.about}")
        return
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise click.UsageError(f"no benchmark called {', '.join(unknown)}; there are {', '.join(CASES)}")
    Path("build").mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no broker keeps running
    chosen = [CASES[name] for name in dict.fromkeys(names or CASES)]
    results, failed = measure(chosen, Settings(rounds, full), named=bool(names))
    if as_json:
        click.echo(json.dumps([document(result) for result in results], indent=2))
    elif markdown:
        click.echo("\n".join(rows(results)))
    else:
        show(results)
    if plot is not None:
        plot.write_text(svg(results))
    sys.exit(1 if failed or any(result.met is False for result in results) else 0)


def measure(cases: list[Benchmark], settings: Settings, *, named: bool) -> tuple[list[Result], bool]:
    """Return the results, and True if a load failed. Skips a missing peer unless `named`."""
    minutes = sum(case.seconds for case in cases) * (settings.rounds + 1) / (ROUNDS + 1) / 60
    say(f"{len(cases)} benchmarks, about {max(1, round(minutes))} min; keep the machine quiet meanwhile")
    say(python())
    results: list[Result] = []
    failed = False
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-load-") as folder, progress() as bar:
        task = bar.add_task("", total=sum(case.seconds for case in cases))
        load = LoadGenerators(Path(folder))
        for number, case in enumerate(cases, start=1):
            say(f"[{number}/{len(cases)}, {time.monotonic() - begin:.0f} s] {case.name}: {case.about}")
            bar.update(task, description=f"{number}/{len(cases)} {case.name}")
            try:
                results += case.run(load, settings)
            except BrokerMissing as missing:
                if named:
                    say(f"error: {missing}")
                    sys.exit(3)
                say(f"  skipped: {missing}")
            except LoadFailed as error:
                say(f"error: {case.name}: {error}")
                failed = True
            bar.advance(task, case.seconds)
    return results, failed


def progress() -> Progress:
    """Show a progress bar below the text on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:"))
    watched = sys.stderr.isatty()
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, disable=not watched)


def python() -> str:
    """Return the Python of the measured gateway: Pythons differ by a tenth."""
    build = "optimized" if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") else "plain"
    return f"Python {platform.python_version()} ({build} build, {sys.executable})"


def document(result: Result) -> dict[str, object]:
    """Convert a result for JSON."""
    goal = None if result.goal is None else result.goal._asdict()
    return {**result._asdict(), "goal": goal, "met": result.met, "python": python()}


def rows(results: list[Result]) -> list[str]:
    """Format the results as a table in Markdown."""
    lines = ["| benchmark | load | Waypost | beside | ratio |", "|---|---|---|---|---|"]
    for each in results:
        unit = each.unit.partition(",")[0]
        beside = "" if each.peer_value is None else f"{each.peer} {figure(each.peer_value)} {unit}"
        ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
        lines.append(f"| `{each.name}` | {each.about} | {figure(each.value)} {unit} | {beside} | {ratio} |")
    return lines


def show(results: list[Result]) -> None:
    """Print the results as a table of 80 columns."""
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        pad_edge=False,
        title="medians of the rounds; ratios are medians of each round's own",
        caption=python().replace(", ", ",\n"),
        caption_justify="left",
        title_justify="left",
    )
    for heading in ("benchmark", "waypost", "peer", "ratio", "goal", "MiB", ""):
        left = heading in ("benchmark", "goal", "")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    words = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}
    for result in results:
        memories = [memory for memory in (result.resident_mib, result.peer_resident_mib) if memory is not None]
        table.add_row(
            f"{result.name}\n[dim]{result.unit}[/]",
            figure(result.value),
            "-" if result.peer_value is None else f"{figure(result.peer_value)}\n[dim]{result.peer}[/]",
            "-" if result.ratio is None else f"{result.ratio:.2f}",
            "report" if result.goal is None else result.goal.words.replace(", ", "\n"),
            "\n".join(f"{memory:,.0f}" for memory in memories),
            words[result.met],
        )
    Console(width=WIDTH).print(table)


if __name__ == "__main__":
    bench(prog_name=f"{program_name()} bench")
