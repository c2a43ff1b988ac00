"""Commands in messages can be pasted into a shell, with any value in them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import pytest

from edge.appliance.commands import COMMANDS, FROM_A_CHECKOUT
from edge.output.text import word
from tests.support.checkout import modules

PROGRAMS = ("chgrp", "chmod", "chown", "mount", "rm", "sudo", "umount")
COMMAND = re.compile(rf"\b(waypost ({'|'.join((*COMMANDS, *FROM_A_CHECKOUT))})|{'|'.join(PROGRAMS)}) [^`;\n]*$")
QUOTING = {"word", "quote", "quoted", "join"}


def quotes(value: ast.expr, quoted: set[str]) -> bool:
    """Return True when the value is quoted here or before, a constant, or the number of a user."""
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in QUOTING or name == "geteuid"
        case ast.Name(id=name):
            return name in quoted or name.isupper()
        case ast.Attribute(attr=name):
            return name == "uid"
    return False


def unquoted(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, expression) of unquoted values in a command."""
    tree = ast.parse(source)
    quoted = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "word(" in ast.unparse(node.value)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for node in ast.walk(tree):
        before = ""
        for part in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(part, ast.Constant):
                before += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                if COMMAND.search(before) and not quotes(part.value, quoted):
                    yield part.lineno, ast.unparse(part.value)
                before += "_"


@pytest.mark.parametrize("package", ["bridge", "cloud", "edge", "images"])
def test_values_in_commands_are_quoted(package: str) -> None:
    found = [f"{path}:{line}: {{{what}}}" for path, text in modules(package) for line, what in unquoted(text)]
    assert not found, "edge.output.text.word makes one word of it"


@pytest.mark.parametrize("name", ["plain", "of two words", "it's", "$HOME", "a\nb", "", "-x;rm"])
def test_word_survives_the_shell(name: str) -> None:
    assert shlex.split(f"waypost run --data {word(name)}") == ["waypost", "run", "--data", name]
