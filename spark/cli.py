"""`waypost lake` and `waypost report`: run the jobs over a lake, and draw the report.

Imports are lazy so that `--help` is instant.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from cloud.place.place import LakePlace
from spark import amounts, commands, interruption
from spark.detector.cli import detect
from spark.query.cli import query
from spark.verify_cli import verify

if TYPE_CHECKING:
    from rich.table import Table

    from spark.jobs.job import AnalyticsJob
    from spark.jobs.runner import JobStatus
    from spark.report.facts import Facts
    from spark.report.queries import LakeFigures, ReportReader

FAILED, USAGE, INTEGRITY = 1, 2, 4
"""Exit codes other than 0: failed; wrong usage or configuration; data that breaks its contract."""
_SECRET = re.compile(r"(\.secret|\.secret\.key|\.session\.token|[pP]assword)$")
"""Settings that hold a secret itself, not the name of one."""


@click.group("lake")
def analytics() -> None:
    """Analyse a lake. Run the jobs, answer SQL, find anomalies, repair tables."""


analytics.add_command(detect)


def _session_options(command: Any) -> Any:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object a pass on standard output."),
        click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A further spark.* setting."),
        click.option("--master", metavar="URL", help="Spark master [default: WAYPOST_SPARK_MASTER, or this machine]"),
    ):
        command = option(command)
    return command


@analytics.command()
@commands.lake_option
@click.option("--job", "names", multiple=True, metavar="NAME", help="Only this job and what it reads; may be repeated.")
@click.option("--follow", is_flag=True, help="Repeat until Ctrl-C; each job at its own interval.")
@_session_options
def run(
    lake: LakePlace, names: tuple[str, ...], follow: bool, master: str | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Bring the derived tables up to date. It reads the landed data.

    \b
    Job        with --follow  result
    readings   every 5 s      one row per value of each message; unreadable ones to reject
    rollups    every 5 s      count, min, max, sum, mean, last per metric and minute
    messages   every minute   last data, lag, delivery time, throughput, outages of each gateway
    anomalies  every minute   values that are unusual for their series, with the rule that found them
    gaps       every minute   missing, explained and duplicate sequences of each address
    hours      every hour     the rollups per hour and day
    health     every hour     battery, silence, reboots, clock and radio of each device
    """
    jobs = _select_jobs(names, "chosen")
    _run_passes(lake, jobs, _PassOptions(follow, master, _parse_settings(settings), as_json))


@analytics.command()
@commands.lake_option
@click.argument("names", nargs=-1, metavar="[JOB]...")
@_session_options
def rebuild(
    lake: LakePlace, names: tuple[str, ...], master: str | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Rebuild derived tables. Those of these jobs, or of all jobs, and the tables that depend on them.

    Use it when a derived table is damaged, when files of a landed table were restored, or when the log of one was
    cleaned before a job had read it. After an interruption run it again; other tables do not change.
    """
    jobs = _select_jobs(names, "made_of")
    _run_passes(lake, jobs, _PassOptions(False, master, _parse_settings(settings), as_json, rebuilds=True))


@analytics.command()
@commands.lake_option
@interruption.interruptible(interruption.CONTINUES)
def maintain(lake: LakePlace) -> None:
    """Compact tables and delete unused files. It shortens logs too, and needs no JVM.

    `waypost lake run` does it by itself for tables that have had 100 commits since the last time. Files that landed
    tables or readings no longer use stay for 7 days; files of tables that each pass rewrites stay for 2 hours.
    """
    commands.require_writable(lake)
    commands.match_permissions(lake)
    if not _maintain(lake, lake.tables()):
        sys.exit(FAILED)


def _maintain(lake: LakePlace, names: Sequence[str], *, by_need: bool = False) -> bool:
    """Maintain these tables, or those that are due (`by_need`); return False if one could not be maintained."""
    from spark import conflict, maintenance, table_errors
    from spark.jobs import catalog

    well = True
    for name in names:
        try:
            if by_need and not maintenance.is_due(lake, name):
                continue
            for done in maintenance.maintain(lake, [name], catalog.followed_tables()):
                after = amounts.counted(done.files_after, "file")
                files = f"{done.files_before:>7,} -> {after:>12} {done.size / 1e6:>10,.1f} MB"
                click.echo(f"{done.table:<20} {files} {done.deleted:>7,} deleted {done.seconds:>7.1f} s", err=True)
        except table_errors.FAILURES as error:
            why = (
                "a job wrote it at the same time; the next maintenance retries"
                if conflict.is_conflict(error)
                else table_errors.summarize(error)
            )
            click.echo(f"warning: table {name} was not maintained: {why}", err=True)
            well = False
    return well


def _select_jobs(names: Sequence[str], which: Literal["chosen", "made_of"]) -> list[AnalyticsJob]:
    from spark.jobs import catalog

    try:
        return catalog.select(names) if which == "chosen" else catalog.select_dependents(names or catalog.NAMES)
    except KeyError as unknown:
        raise click.UsageError(f"no job named {unknown}; jobs: {', '.join(catalog.NAMES)}") from None


@dataclass(frozen=True)
class _PassOptions:
    """Options of passes. `rebuilds`: empty the tables of the jobs first."""

    follow: bool
    master: str | None
    settings: dict[str, str]
    as_json: bool
    rebuilds: bool = False


def _run_passes(lake: LakePlace, jobs: list[AnalyticsJob], how: _PassOptions) -> None:
    commands.require_writable(lake)
    closed = commands.match_permissions(lake)
    from spark import dropping, java, session
    from spark.connector.repository import ConnectorMissing
    from spark.jobs import pass_lock, rhythms, runner

    options = session.SessionOptions(
        master=how.master,
        load="rounds" if how.follow else runner.estimate_load(lake),
        settings={commands.UMASK_SETTING: f"{closed:03o}", **how.settings},
        log=runner.log_file(lake),
    )
    interruption.handle_sigterm()
    display = _Display([job.name for job in jobs], how.as_json)

    def passed(jobs: Sequence[AnalyticsJob], steps: Sequence[JobStatus], seconds: float) -> None:
        display.pass_done(steps, seconds)
        _maintain_by_need(lake, jobs, steps)

    def starts() -> None:
        commands.warn_stale_archive()
        display.show_starting()

    try:
        watch = runner.StartCallbacks(starts, display.show_started)
        with display, pass_lock.hold(lake), runner.open_lake(lake, options, watch) as opened:
            if how.rebuilds:
                interruption.run_in_thread(partial(runner.empty_tables, opened, jobs))
                interruption.run_in_thread(partial(dropping.forget_restored, lake))
            if how.follow:
                steps = rhythms.follow(opened, jobs, rhythms.FollowOptions(display.show, passed))
            else:
                started = time.monotonic()
                steps = runner.run_pass(opened, jobs, display.show)
                interruption.run_in_thread(partial(passed, jobs, steps, time.monotonic() - started))
    except KeyboardInterrupt:
        if how.follow:
            interruption.exit_now(0)
        click.echo(f"interrupted: {interruption.CONTINUES}", err=True)
        interruption.exit_now(FAILED)
    except (pass_lock.PassRunning, session.SparkNotStarted) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    except (ConnectorMissing, java.JavaMissing) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(USAGE)
    _exit_for(steps, runner.log_file(lake))


def _maintain_by_need(lake: LakePlace, jobs: Sequence[AnalyticsJob], steps: Sequence[JobStatus]) -> None:
    """Maintain the tables of a pass's rhythms after the pass, when no job writes them.

    Tables of no job go with the values. A lake with a damaged table is left as it is.
    """
    from spark.jobs import catalog

    rhythm_of = {name: job.rhythm for job in catalog.JOBS for name in job.outputs}
    ended = {job.rhythm for job in jobs}
    if all(step.state == "done" for step in steps):
        names = [name for name in lake.tables() if rhythm_of.get(name, "values") in ended]
        _maintain(lake, names, by_need=True)


def _exit_for(steps: Sequence[JobStatus], log: Path) -> None:
    """Print the failures of the last pass, and exit with its code."""
    wrong: dict[str, list[str]] = {}  # one damaged table ends most jobs with the same words
    for step in steps:
        if step.error is not None:
            where = "" if step.integrity or step.state == "skipped" else f" (Spark's log: {log})"
            wrong.setdefault(f"{step.error}{where}", []).append(step.job)
    for text, jobs in wrong.items():
        click.echo(f"error: {', '.join(jobs)}: {text}", err=True)
    if any(step.integrity for step in steps):
        sys.exit(INTEGRITY)
    if any(step.error is not None for step in steps):
        sys.exit(FAILED)


def _parse_settings(settings: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.UsageError(f"--conf takes spark.KEY=VALUE, not {setting!r}")
        if _SECRET.search(key):
            raise click.UsageError(
                f"--conf {key}: all users of this machine can read command lines. Give a bucket's key in the "
                "environment (AWS_SECRET_ACCESS_KEY) and a cluster's secret in spark-defaults.conf"
            )
        pairs[key] = value
    return pairs


class _Display:
    """Progress on standard error: a live table on a terminal, otherwise a line per job; JSON on standard output."""

    def __init__(self, names: list[str], as_json: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._as_json = as_json
        self._names = names
        self._steps: dict[str, JobStatus] = {}
        self._started: dict[str, float] = {}
        self._phase = ""
        self._opened_at = time.monotonic()
        self._console = Console(stderr=True)
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=4, transient=False)

    def __enter__(self) -> _Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._phase = f"{time.monotonic() - self._opened_at:.1f} s in all"
            self._live.stop()

    def show_starting(self) -> None:
        """Show that Spark is being started, which takes some seconds."""
        self._phase = "starting Spark"

    def show_started(self, seconds: float) -> None:
        """Show that Spark has started."""
        self._phase = f"Spark started in {seconds:.1f} s"
        self._line(self._phase)

    def show(self, step: JobStatus) -> None:
        """Show that a job began or ended."""
        self._steps[step.job] = step
        if step.state == "running":
            self._started[step.job] = time.monotonic()
        else:
            self._line(
                f"{step.job:<11} {step.state:<7} {step.rows_in:>12,} in {step.rows_out:>12,} out {step.seconds:>7.1f} s"
            )

    def pass_done(self, steps: Sequence[JobStatus], seconds: float) -> None:
        """Print the result of a pass after `seconds`."""
        if self._as_json:
            jobs = [
                {
                    "job": step.job,
                    "state": step.state,
                    "rows_in": step.rows_in,
                    "rows_out": step.rows_out,
                    "seconds": round(step.seconds, 3),
                    "error": step.error,
                }
                for step in steps
            ]
            click.echo(json.dumps({"jobs": jobs, "seconds": round(seconds, 3)}))

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            click.echo(text, err=True)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(title="waypost lake", caption=self._phase, title_justify="left", caption_justify="left")
        for heading, justify in (
            ("job", "left"),
            ("", "left"),
            ("rows in", "right"),
            ("rows out", "right"),
            ("s", "right"),
        ):
            table.add_column(heading, justify="left" if justify == "left" else "right")
        for name in self._names:
            table.add_row(*self._row(name))
        return table

    def _row(self, name: str) -> tuple[str, ...]:
        step = self._steps.get(name)
        if step is None:
            return (name, "[dim]waiting[/]", "", "", "")
        if step.state == "running":
            return (name, "[yellow]running[/]", "", "", f"{time.monotonic() - self._started[name]:.1f}")
        if step.state == "skipped":
            return (name, "[red]not run[/]", "", "", "")
        if step.state == "failed":
            return (name, "[red]failed[/]", "", "", f"{step.seconds:.1f}")
        state = "[green]done[/]" if step.rows_in or step.rows_out else "[green]nothing new[/]"
        return (name, state, f"{step.rows_in:,}", f"{step.rows_out:,}", f"{step.seconds:.1f}")


@click.command()
@commands.lake_option
@click.option(
    "--out",
    metavar="FILE.html",
    help="The page to write; `-`: to standard output. `DIR/`: a folder, with linked pages of the gateways with "
    "the worst findings.",
)
@click.option("--gateway", metavar="NAME", help="The page of this gateway, NAME or TENANT/NAME [default: the fleet].")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of the page as one JSON object.")
@click.option(
    "--facts",
    metavar="FILE.json",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Expected and seen counts of a run, drawn at the top: title, verdict, facts, notes, events.",
)
@interruption.interruptible("not all pages were written")
def report(lake: LakePlace, out: str | None, gateway: str | None, as_json: bool, facts: Path | None) -> None:
    """Draw the report of a lake. It is one HTML page that needs no network.

    Reads the tables that `waypost lake run` made; starts no JVM.
    """
    if out == "" or (out is None and not as_json):
        raise click.UsageError("nothing to do: give --out FILE.html, or --json")
    if out == "-" and as_json:
        raise click.UsageError("the page and its numbers cannot both go to standard output: give a file as --out")
    folder = out is not None and (out.endswith("/") or Path(out).is_dir())
    if folder and gateway is not None:
        raise click.UsageError("a folder is of the whole fleet: leave out --gateway, or give a file as --out")
    from spark.report import facts as facts_file
    from spark.report import names, queries

    try:
        described = facts_file.load(facts) if facts is not None else facts_file.Facts()
        known, written = queries.read_without_broken(
            lake, lambda reader: _draw(reader, out, folder, gateway, described)
        )
    except (facts_file.BadFacts, names.NoGateway) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        click.echo(f"error: {error.filename or lake.uri}: {error.strerror or error}", err=True)
        sys.exit(FAILED)
    if written is not None:
        click.echo(written, err=as_json, nl=isinstance(written, str))
    if as_json:
        click.echo(queries.encode(known))
    _print_notices(known, lake)
    if known.unreadable:
        sys.exit(INTEGRITY)


def _draw(
    lake: ReportReader, out: str | None, folder: bool, gateway: str | None, facts: Facts
) -> tuple[LakeFigures, str | bytes | None]:
    """Write the page or pages.

    Returns the figures of the first page, and a summary, or the page itself for standard output.
    """
    from spark.report import page

    if folder and out is not None:
        known, pages = page.write_folder(lake, Path(out), facts)
        return known, f"{Path(out) / 'index.html'} ({pages} {'page' if pages == 1 else 'pages'})"
    known = lake.fleet() if gateway is None else lake.gateway(lake.named(gateway))
    if out is None:
        return known, None
    if out == "-":
        return known, page.render(known, facts)
    return known, f"{out} ({page.write(known, Path(out), facts) / 1024:,.0f} KB)"


def _print_notices(known: LakeFigures, lake: LakePlace) -> None:
    from spark.report import formatting, notices

    root = click.get_current_context().parent
    program = "waypost" if root is None else root.command_path  # as the user called it
    for text in notices.list_notices(known, f"{program} lake run --lake {shlex.quote(lake.uri)}"):
        click.echo(f"note: {text.replace(formatting.THIN_SPACE, ' ')}", err=True)


analytics.add_command(query)
analytics.add_command(verify)
analytics.add_command(commands.schema)
analytics.add_command(commands.replay)

if __name__ == "__main__":
    analytics.add_command(report)
    analytics()
