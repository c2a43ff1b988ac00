"""`waypost trace`: what becomes of messages to an address of a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import click
import msgspec

from edge.appliance.addresses.documents import AddressExplanation
from edge.appliance.errors import CommandError, Exit
from edge.appliance.program import as_called
from edge.appliance.resource_commands import json_option
from edge.appliance.running import ask, console, data_option, http_option, token_of
from edge.output.terminal import say, say_json
from edge.output.text import line

_MARKS: Final = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@click.command("trace")
@click.argument("address")
@data_option
@http_option
@json_option
def trace_address(address: str, data: Path | None, http: str | None, as_json: bool) -> None:
    """Explain where messages go.

    Shows the rule that applies, who may send and receive, what came, who subscribes, where messages are now, and the
    next step. Exits with 1 when something stands in the way.
    """
    url = f"http://{console(data, http)}/api/v1/why?{urlencode({'address': address})}"
    answer = ask(url, token_of(data))
    try:
        found = msgspec.convert(answer, AddressExplanation)
    except msgspec.ValidationError:
        raise CommandError(f"{url} is not a gateway that explains addresses") from None
    if as_json:
        say_json(answer)
    else:
        for step in found.steps:
            say(f"{_MARKS.get(step.state, step.state)} {step.part + ':':12} {line(step.text)}")
            if step.next_step:
                say(as_called(f"      next: {line(step.next_step)}"))
    if any(step.state == "wrong" for step in found.steps):
        click.get_current_context().exit(int(Exit.FAILED))
