"""`waypost explain`: what a problem, a refusal or a reason code means, and the next step."""

from __future__ import annotations

import difflib
import importlib.resources
import re
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from edge.appliance.program import as_called
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say

FILE: Final = "entries.json"
CLOSE_MAX: Final = 5
"""Similar codes in an error."""
_PLACEHOLDER: Final = re.compile("\u2039[^\u203a]*\u203a")


class ExplainedCase(msgspec.Struct, frozen=True):
    """One way in which a code is reported. A word in angle marks is filled in at run time."""

    what: str
    next: str
    severity: str


class ExplainedCode(msgspec.Struct, frozen=True):
    """Entry of one code."""

    code: str
    kind: str
    cases: list[ExplainedCase]

    def matches(self, wanted: str) -> bool:
        """Return True for the code in any case, with any word in place of a placeholder."""
        parts = [re.escape(part) for part in _PLACEHOLDER.split(self.code)]
        return "".join(parts) != "" and re.fullmatch(".+".join(parts), wanted, re.IGNORECASE) is not None


@click.command()
@click.argument("code", nargs=-1, metavar="[CODE]")
@json_option("explanation")
def explain(code: tuple[str, ...], as_json: JsonOutput | None) -> None:
    """Explain a problem or a reason code. Without CODE it lists all of them.

    CODE is a word of a list of problems, of a refusal, of an answer of MQTT or HTTP, of the loss ledger, or an exit
    code. The docs have the same text: reference, problems and reason codes.

    \b
      waypost explain wrong-password
      waypost explain 0x87
      waypost explain forwarder plant
    """
    known = read_entries()
    found = find(known, " ".join(code)) if code else known
    if as_json:
        as_json.show(msgspec.to_builtins(found))
        return
    if not code:
        _print_list(found)
        return
    for place, entry in enumerate(found):
        _print_entry(entry, first=place == 0)


def read_entries() -> list[ExplainedCode]:
    """Return all entries; `docs.generate.explanations` has written them."""
    text = importlib.resources.files("edge.appliance.explaining").joinpath(FILE).read_bytes()
    return msgspec.json.decode(text, type=list[ExplainedCode])


def find(known: Sequence[ExplainedCode], wanted: str) -> list[ExplainedCode]:
    """Return the entries of a code: the exact ones, else those with a placeholder. Raises CommandError."""
    exact = [entry for entry in known if entry.code.lower() == wanted.lower()]
    if found := exact or [entry for entry in known if entry.matches(wanted)]:
        return found
    codes = list(dict.fromkeys(entry.code for entry in known))
    close = difflib.get_close_matches(wanted, codes, n=CLOSE_MAX, cutoff=0.5)
    close += [code for code in codes if wanted.lower() in code.lower() and code not in close][: CLOSE_MAX - len(close)]
    meant = f"did you mean: {', '.join(close)}?\n" if close else ""
    raise CommandError(
        f"no code {wanted!r}", hint=f"{meant}all of them: waypost explain", code=Exit.USAGE, error="code-not-found"
    )


def _print_list(known: Sequence[ExplainedCode]) -> None:
    for kind in dict.fromkeys(entry.kind for entry in known):
        say(kind[0].upper() + kind[1:], style="bold")
        for entry in known:
            if entry.kind == kind:
                say(f"  {entry.code}")


def _print_entry(entry: ExplainedCode, *, first: bool) -> None:
    if not first:
        say("")
    say(entry.code, style="bold", nl=False)
    severities = ", ".join(dict.fromkeys(case.severity for case in entry.cases if case.severity))
    say(f"  ({entry.kind}{f'; {severities}' if severities else ''})")
    for case in entry.cases:
        if case.what:
            say(f"  what  {as_called(case.what)}")
        if case.next:
            say(f"  next  {as_called(case.next)}", style="bold")
