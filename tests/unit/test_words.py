"""Plain English in code: docstrings that open like a sentence, words of the field, class names that stand once."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("bridge", "edge", "cloud", "spark", "images", "simulator", "firmware_examples", "launcher", "docs", "tests")
OPENINGS = re.compile(r"(What|Of|Who|Whose|Those|Whether|So many|How|Nobody|Others?)\b")
"""A docstring opens with a verb or a noun phrase."""
INSTEAD = {
    "anew": "again, from scratch",
    "somebody": "a client, another process",
    "nobody": "no client, no subscriber, no reader",
    "whose": "two sentences",
    "mend": "fix, repair",
    "mended": "fixed, repaired",
    "no more": "no longer",
    "beside": "next to, in addition to",
    "at rest": "idle",
    "laid down": "stored",
    "given up": "dropped, discarded",
    "turned away": "refused",
    "let go": "released",
    "put back": "restored",
    "hears": "is notified",
    "begun": "started",
    "owed": "pending",
    "by so much": "by this amount",
    "thereby": "leave it out",
    "what comes": "incoming messages",
}
WORDS = re.compile(rf"\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)
SUSPECTS = re.compile(rf'"""\s*{OPENINGS.pattern}|{WORDS.pattern}', re.IGNORECASE)
"""Text of a file that may have something to find: parsing all 2 000 files takes seconds."""
NAMES = re.compile(r"(`+)[^`]+\1")
"""Code in a text: a name is not prose."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, also those below attributes."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            value = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment; of none in a file without a word to find, as reading tokens takes long."""
    source = path.read_text()
    if not any("#" in line and WORDS.search(line) for line in source.splitlines()):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def findings() -> Iterator[str]:
    """Yield file, line and reason of each place to rewrite."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if path == Path(__file__) or not SUSPECTS.search(path.read_text()):
                continue
            texts = list(docstrings(path))
            for line, text in texts:
                if found := OPENINGS.match(text.strip()):
                    yield f"{name}:{line}: opens with {found[0]!r}: begin with a verb or a noun phrase"
            for line, text in [*texts, *comments(path)]:
                for word in WORDS.findall(NAMES.sub("", text)):
                    yield f"{name}:{line}: {word!r}: {INSTEAD[word.lower()]}"


def test_words_are_plain() -> None:
    found = list(findings())
    assert not found, "\n".join(found)


MATCH_WORDS_MAX = 3
"""Words of a text that a test compares with the message of an error: what names the cause, not a sentence."""


def long_patterns(path: Path) -> Iterator[str]:
    """Yield place and text of each `match=` with more words than `MATCH_WORDS_MAX`."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if "match=" in source else ():
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "match":
                constants = (each.value for each in ast.walk(keyword.value) if isinstance(each, ast.Constant))
                text = "".join(each for each in constants if isinstance(each, str))
                if len(re.findall(r"[A-Za-z]{3,}\S*", text)) > MATCH_WORDS_MAX:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {text}"


def test_errors_are_told_apart_by_class_code_or_few_words() -> None:
    """A test asserts an error's class, code or fields; of its text only the words that name the cause."""
    found = [line for path in sorted((ROOT / "tests").rglob("*.py")) for line in long_patterns(path)]
    assert not found, f"more than {MATCH_WORDS_MAX} words in `match=`:\n" + "\n".join(found)


CLASSES = re.compile(r"^class ([^\W_]\w*)", re.MULTILINE)
"""Names of public classes."""


def test_class_names_are_unique() -> None:
    """Private classes aside: a reader finds a class by its name."""
    places: dict[str, list[str]] = {}
    for folder in FOLDERS[:-2]:
        for path in (ROOT / folder).rglob("*.py"):
            for name in CLASSES.findall(path.read_text()):
                places.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice
