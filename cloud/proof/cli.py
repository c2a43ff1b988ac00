"""`waypost prove`. Heavy modules are imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import datetime
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloud.place.option import PlaceOption
from edge.output.amounts import counted
from edge.output.errors import CommandError
from edge.output.listing import JsonOutput, json_option

if TYPE_CHECKING:
    from bridge.store_account import StoreAccount
    from cloud.place.place import LakePlace
    from cloud.proof.judgement import HourLine
    from cloud.proof.proof import Proof, Total

FAILED, USAGE = 1, 2
UNEXPLAINED = 4
"""Exit code for findings."""

_AGO = re.compile(r"([1-9][0-9]{0,5})([hd])")


@click.command()
@click.option(
    "--lake",
    type=PlaceOption(),
    metavar="PLACE",
    required=True,
    help="Lake: DATA/lake of a hub, or s3://BUCKET/FOLDER.",
)
@click.option("--gateway", metavar="NAME", help="Only this gateway.")
@click.option(
    "--account",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Check a gateway behind another one, with a file of `waypost store account`.",
)
@click.option("--since", metavar="WHEN", help="Only statements from that day on: 2026-11-22, 36h or 7d.")
@click.option("--hours", is_flag=True, help="Print a line for each hour, not for each address.")
@json_option("proof")
@click.option(
    "--metrics",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write totals for Prometheus (textfile collector).",
)
def prove(
    lake: LakePlace,
    gateway: str | None,
    account: Path | None,
    since: str | None,
    hours: bool,
    as_json: JsonOutput | None,
    metrics: Path | None,
) -> None:
    """Prove that a lake has every message. The missing ones of those that its gateways accepted are named.

    Gateways state the accepted messages of each hour and address, signed and chained (table `manifests`). Every stated
    message must be in the lake once, in the ledger as dropped, or still waiting at its gateway:

    \b
      `accepted = landed + given up + waiting + unexplained`

    \b
    Unexplained messages are a finding with their sequences, as are these; the exit code is then 4:
      hole                accepted, and missing without an explanation
      twice               in the lake more than once
      statement missing   another statement refers to one that is not in the lake
      statement forged    changed, or signed with another key
      statements overlap  two statements cover the same messages

    \b
    A gateway behind another one sends no statements to a hub. --account compares the account of its store with the
    rows that name it as their origin:
      waypost store account --data DIR --out lower.json      # at that gateway
      waypost prove --lake ./data/hub/lake --account lower.json

    \b
    It only reads the lake; the hub may run at the same time.
      waypost prove --lake ./data/hub/lake
      waypost prove --lake ./data/hub/lake --gateway gw1 --since 7d --hours
    """
    from cloud.lake.faults import LakeError
    from cloud.proof.account import prove_account
    from cloud.proof.document import proof_document
    from cloud.proof.lake import LakeMissing
    from cloud.proof.metrics import exposition
    from cloud.proof.proof import prove as judge

    if account is not None and (gateway, since, hours) != (None, None, False):
        raise click.UsageError("--account covers one gateway and all its messages: omit --gateway, --since and --hours")
    try:
        if account is not None:
            proof = prove_account(lake, _account(account))
        else:
            proof = judge(lake, gateway=gateway, since=_day(since), every_hour=hours)
    except LakeError as error:
        code = USAGE if isinstance(error, LakeMissing) else FAILED
        raise CommandError(
            str(error),
            "--lake names the directory `lake` in a hub's data directory",
            code=code,
            error="lake-not-readable",
        ) from None
    if metrics is not None:
        _write(metrics, exposition(proof, time.time()))
    if as_json:
        as_json.show([proof_document(proof)])
    else:
        _print(proof, hours=hours)
    sys.stdout.flush()
    if not proof.complete:
        click.get_current_context().exit(UNEXPLAINED)


def _account(path: Path) -> StoreAccount:
    """Read the account of a store. Raises `CommandError`."""
    import msgspec

    from bridge.store_account import read_account

    try:
        return read_account(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise CommandError(
            f"{path}: {error}",
            "create it with `waypost store account --data DIR --out FILE`",
            error="account-not-readable",
        ) from None


def _day(since: str | None) -> datetime.date | None:
    """Parse `--since`. Raises `click.UsageError`."""
    if since is None:
        return None
    ago = _AGO.fullmatch(since)
    try:
        if ago is None:
            return datetime.date.fromisoformat(since[:10])
        unit = "hours" if ago[2] == "h" else "days"
        return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(**{unit: int(ago[1])})).date()
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--since {since}: expected a day such as 2026-11-22, or a time before now such as 36h or 7d"
        ) from None


def _write(path: Path, text: str) -> None:
    """Write a file atomically: a collector may read at any moment. Raises `CommandError`."""
    part = path.with_name(f"{path.name}.new")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}", error="file-not-accessible") from None


# --- text -------------------------------------------------------------------------------------------------------------


def _print(proof: Proof, *, hours: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from cloud.proof.document import hour_text
    from cloud.proof.limits import LINES_SHOWN

    out = Console()
    table = Table(box=None, pad_edge=False)
    epochs = len({total.stream[:3] for total in proof.totals}) > len({total.stream[:2] for total in proof.totals})
    for name in ("gateway", *(("epoch",) if epochs else ()), "address", *(("hour",) if hours else ())):
        table.add_column(name, overflow="ellipsis", no_wrap=True, min_width=5)
    for name in ("accepted", "landed", "given up", "waiting", "unex-\nplained", "twice"):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    lines: list[tuple[Total | HourLine, str]] = [
        (line, hour_text(line.hour)[5:] if line.hour is not None else "open") for line in proof.hours
    ]
    if not hours:
        lines = [(total, "") for total in proof.totals]
    for line, hour in sorted(lines, key=_badness)[:LINES_SHOWN]:
        table.add_row(*_cells(line, hour, epochs=epochs))
    if lines:
        out.print(table)
    if len(lines) > LINES_SHOWN:
        click.echo(f"… and {counted(len(lines) - LINES_SHOWN, 'more line')}, none worse: use --json to see all")
    for finding in proof.findings[:LINES_SHOWN]:
        click.echo(_finding_line(finding))
    left = proof.findings_left_out + max(0, len(proof.findings) - LINES_SHOWN)
    if left:
        click.echo(f"… and {counted(left, 'more finding')}")
    for note in proof.notes:
        click.echo(f"note: {note}")
    click.echo(_summary(proof))


def _badness(line: tuple[Total | HourLine, str]) -> tuple[int, int]:
    return (-line[0].unexplained - line[0].twice, -line[0].waiting)


def _cells(line: Total | HourLine, hour: str, *, epochs: bool) -> tuple[str, ...]:
    counts = (line.accepted, line.landed, sum(line.given_up.values()), line.waiting, line.unexplained, line.twice)
    stream = line.stream
    names = (stream.gateway, *((stream.epoch[:8],) if epochs else ()), stream.address, *((hour,) if hour else ()))
    return (*names, *(f"{count:,}" for count in counts))


def _finding_line(finding: Any) -> str:
    name = "/".join(part for part in (finding.gateway, finding.epoch[:8], finding.address) if part)
    sequences = "" if finding.last < finding.first else f" sequences {finding.first}..{finding.last}:"
    return f"{finding.kind.value}: {name}{sequences} {finding.words}"


def _summary(proof: Proof) -> str:
    def total(name: str) -> int:
        return sum(getattr(line, name) for line in proof.totals)

    given_up = sum(sum(line.given_up.values()) for line in proof.totals)
    totals = (
        f"{total('accepted'):,} accepted = {total('landed'):,} landed + {given_up:,} given up + "
        f"{total('waiting'):,} waiting at their gateways"
    )
    unstated = total("unstated")
    if unstated:
        totals += f"; {unstated:,} of them have no statement yet"
    if proof.complete:
        by = counted(proof.accounts, "account") if proof.accounts else counted(proof.statements, "statement")
        return f"{totals}; 0 unexplained, by {by}"
    count = len(proof.findings) + proof.findings_left_out
    return f"{totals}; {total('unexplained'):,} unexplained, {total('twice'):,} twice; {counted(count, 'finding')}"
