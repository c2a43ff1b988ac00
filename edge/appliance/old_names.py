"""Old names of commands: they work until `GONE_IN`, with one line of notice on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge.appliance.program import program_name
from edge.output.terminal import say

GONE_IN: Final = "0.3"
"""First version without the old names."""

RENAMED: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("edge",): (),
    ("edge", "trace"): ("client", "trace"),
    ("fleet",): ("gateway",),
    ("fleet", "token"): ("token",),
    ("fleet", "config"): ("config",),
    ("fleet", "rollout"): ("rollout",),
    ("fleet", "command"): ("command",),
    ("fleet", "revoke-hub"): ("hub", "revoke-certificate"),
    ("analytics",): ("lake",),
    ("analytics", "report"): ("report",),
    ("bridge", "prove"): ("prove",),
}
"""New words by the old ones; the longest match counts. `waypost edge run` is now `waypost run`."""

SPELLINGS: Final = {"enroll": "enrol"}
"""Words that are accepted without a notice."""

_WORDS_MAX: Final = max(map(len, RENAMED))


def renamed(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line with new names, and print a notice if they were old ones."""
    first = next((place for place, each in enumerate(arguments) if not each.startswith("-")), len(arguments))
    options, words = list(arguments[:first]), list(arguments[first:])
    for count in range(min(_WORDS_MAX, len(words)), 0, -1):
        new = RENAMED.get(tuple(words[:count]))
        if new is not None:
            next_word = words[count : count + 1]
            _notice([*words[:count], *next_word], [*new, *next_word])
            words[:count] = new
            break
    if words and words[0] in SPELLINGS:
        words[0] = SPELLINGS[words[0]]
    return [*options, *words]


def _notice(old: Sequence[str], new: Sequence[str]) -> None:
    """Print one line with both names."""
    shown = [" ".join((program_name(), *(each for each in words if not each.startswith("-")))) for words in (old, new)]
    say(f"note: `{shown[0]}` is now `{shown[1]}`; the old name works until version {GONE_IN}", err=True)
