"""`waypost problem`: problems of a running gateway, and their mutes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from edge.appliance.muting.limits import MUTE_S_MAX
from edge.appliance.running import data_option, gateway_client, http_option
from edge.health.problems import Severity
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import line
from edge.remote.client import ConsoleClient

PROBLEMS: Final = Listing(
    "problem",
    "name",
    ("severity", "name", "what", "since", "muted_until", "muted_by", "mute_reason"),
    ("next_step",),
    "no problems",
)
SEVERITIES: Final = tuple(each.value for each in Severity)
_UNITS: Final = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def problem() -> None:
    """Show problems, and mute them.

    A muted problem is listed apart until its time is over; it does not count on the console, and raises no alert at the
    hub, which shows that it is muted. /healthz and the metrics still report it.
    """


@problem.command("list")
@data_option
@http_option
@output_option("problem")
def list_problems(data: Path | None, http: str | None, form: str) -> None:
    """List problems with their mutes. The most serious is first, muted ones are last."""
    found = gateway_client(data, http).ask("status").get("problems", ())
    print_listing(PROBLEMS, [_row(each) for each in found], form)


@problem.command()
@data_option
@http_option
@click.argument("code")
@click.option("--until", "age", required=True, metavar="TIME", help="For how long: 30m, 4h, 7d; at most 30 days.")
@click.option("--reason", required=True, help="Words for others, such as who looks after it.")
@click.option("--what", default="", metavar="TEXT", help="Mute only the problem with this text, of several.")
@click.option(
    "--severity",
    type=click.Choice(SEVERITIES),
    help="Mute problems up to this one.  [default: the most serious that is there now; warning without any]",
)
@json_option("mute")
def mute(
    data: Path | None,
    http: str | None,
    code: str,
    age: str,
    reason: str,
    what: str,
    severity: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Mute the problems of a name. CODE: a name as in `list`; also one that is not there now.

    A problem that gets worse than those that were muted is shown again.

    \b
      waypost problem mute 'device silent' --until 7d --reason 'hall 3 is closed for the holidays'
    """
    client, seconds = gateway_client(data, http), _seconds(age)
    there = [each for each in client.ask("status").get("problems", ()) if each["name"] == code]
    one = _the_one(there, what) if what else None
    body = {
        "name": code,
        "what": "" if one is None else one["what"],
        "severity": severity or _worst(there if one is None else [one]),
        "seconds": seconds,
        "reason": reason,
    }
    made = client.ask("mutes", method="POST", body=body)
    if as_json:
        as_json.show([made])
        return
    say(f"{line(code)}: muted until {made['until']}")
    if not there:
        words = f"note: no such problem exists now; it is muted when it comes, up to severity {made['severity']}"
        say(words, err=True, style="yellow")


@problem.command()
@data_option
@http_option
@click.argument("code")
@json_option("mute")
def unmute(data: Path | None, http: str | None, code: str, as_json: JsonOutput | None) -> None:
    """End the mutes of the problems of a name."""
    client = gateway_client(data, http)
    mutes: list[dict[str, Any]] = [each for each in client.ask("mutes")["mutes"] if each["name"] == code]
    if not mutes:
        hint = "list them: waypost problem list"
        raise CommandError(f"no problem named {line(code)} is muted", hint, error="not-found")
    for each in mutes:
        _end(client, each)
    if as_json:
        as_json.show(mutes)
    else:
        say(f"{line(code)}: {counted(len(mutes), 'mute')} ended")


def _end(client: ConsoleClient, each: dict[str, Any]) -> None:
    """End a mute; one that has ended in the meantime is fine. Raises CommandError."""
    try:
        client.ask("mutes", method="DELETE", name=each["name"], what=each["what"])
    except CommandError as error:
        if error.error != "not-found":
            raise


def _worst(there: list[dict[str, Any]]) -> str:
    """Return the severity of the most serious problem; of a warning without any, so that errors are still shown."""
    found = [str(each["severity"]) for each in there] or [Severity.WARNING.value]
    return min(found, key=SEVERITIES.index)


def _the_one(there: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """Return the one problem with a text that contains another. Raises CommandError."""
    found = [each for each in there if text.casefold() in str(each["what"]).casefold()]
    if len(found) != 1:
        what = f"--what {line(text)}: {counted(len(found), 'problem')} of this name, expected one"
        raise CommandError(what, "list them: waypost problem list", code=Exit.USAGE, error="invalid-value")
    return found[0]


def _row(each: dict[str, Any]) -> dict[str, Any]:
    muted = each.get("muted") or {}
    return {
        "severity": each["severity"],
        "name": each["name"],
        "what": each["what"],
        "since": each["since"],
        "next_step": each["next_step"],
        "muted_until": muted.get("until"),
        "muted_by": muted.get("by"),
        "mute_reason": muted.get("reason"),
    }


def _seconds(text: str) -> float:
    """Return the seconds of a duration such as ``4h``. Raises CommandError."""
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0.0
    if not 0 < seconds <= MUTE_S_MAX:
        what = f"--until {line(text)}: a mute lasts up to {MUTE_S_MAX // 86_400} days"
        raise CommandError(what, "for example 30m, 4h or 7d", code=Exit.USAGE, error="invalid-value")
    return seconds
