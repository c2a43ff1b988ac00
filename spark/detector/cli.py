"""`waypost lake detect`: run the detector of the anomaly job on a file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from spark.amounts import counted

FAILED, USAGE = 1, 2


@click.command()
@click.argument("source", metavar="IN.csv", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("target", metavar="OUT.csv", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--explain", is_flag=True, help="Two more columns: the rule with the highest score, and its expected value."
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object on standard output.")
def detect(source: Path, target: Path, explain: bool, as_json: bool) -> None:
    """Find anomalies in one series. It works row by row, and does not look ahead.

    IN.csv has the columns timestamp (ISO 8601, or a number since 1970) and value; OUT.csv gets timestamp, value and
    anomaly_score, from 0 to 1. A score of 0.5 or more is an anomaly. The first 150 values are for learning.

    \b
    Rules (--explain):
      unusual value  the value is far from the mean of the series
      level shift    the mean of the last values differs from earlier ones
      spike          one value differs from the last ones
      season         the last hour differs from the same time of other days
      variability    values vary more or less than before, or others are frequent
      pattern        the course of the last hours is new
      forecast       the value differs from the forecast
    """
    from rich.console import Console
    from rich.progress import Progress

    from spark.detector.detector import REPORTED
    from spark.detector.series_file import SeriesError, judge_file

    console = Console(stderr=True)
    started = time.monotonic()
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(source.name, total=source.stat().st_size)
            judged = judge_file(
                source, target, explain=explain, tell=lambda read: progress.update(task, completed=read)
            )
    except SeriesError as error:
        click.echo(f"error: {source}: {error}; nothing was written", err=True)
        sys.exit(USAGE)
    except OSError as error:
        click.echo(f"error: {error.filename or target}: {error.strerror or error}", err=True)
        sys.exit(FAILED)
    elapsed_s = time.monotonic() - started
    if as_json:
        click.echo(json.dumps({**judged._asdict(), "seconds": round(elapsed_s, 3)}))
        return
    values = f"{counted(judged.rows, 'value')} in {elapsed_s:.1f} s"
    click.echo(
        f"{target}: {counted(judged.anomalies, 'anomaly', 'anomalies')} (score {REPORTED} or more) in {values}",
        err=True,
    )
    if judged.without_value:
        click.echo(f"note: {counted(judged.without_value, 'row')} without a value, with score 0", err=True)
