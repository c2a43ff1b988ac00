"""Validation of plain values by the types of a kind, which finds all errors of a document with their paths.

`msgspec.convert` stops at the first error and knows no lines, but the author of a file needs all errors. This walk uses
the same type annotations through `msgspec.inspect`, so there is one description of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import inspect

from bridge.resources.declaration import Tree, alternative, marked, reader_of, tree_of, type_of
from bridge.resources.errors import ConfigurationError, Path, ResourceOrigin, path_text
from bridge.resources.fields import FieldReader, ResourcePart
from bridge.resources.resource import Metadata, Resource, ResourceKind, ResourceKinds


class _InvalidValue:
    """Result of the walk for a value with an error."""


_WRONG: Final = _InvalidValue()


def build(kinds: ResourceKinds, document: Any, origin: ResourceOrigin) -> Resource | list[ConfigurationError]:
    """Return the resource of a document, or all its errors (never an empty list)."""
    walk = _SchemaWalk(origin)
    if not isinstance(document, dict):
        walk.complain((), f"a resource is a mapping of apiVersion, kind, metadata and spec, not {_word(document)}")
        return walk.errors
    kind = walk.kind(document, kinds)
    if kind is None:
        return walk.errors
    walk.unknown(document, ("apiVersion", "kind", "metadata", "spec"), ())
    walk.version(document, kind)
    metadata = walk.metadata(document, kind)
    spec = walk.part(document, "spec", kind.spec)
    if walk.errors or not isinstance(metadata, Metadata) or not isinstance(spec, kind.spec):
        return walk.errors
    return Resource(kind.name, metadata, spec, document, origin)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "…"?`` when a known word is close, otherwise the known words."""
    import difflib  # noqa: PLC0415 - 0.2 MiB, only for typing errors

    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not close:  # wrong case is the most common error, and has too much weight in the ratio of a short word
        close = [name for name in names if name.casefold() == word.casefold()]
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known: {', '.join(names)}" if names else ""


class _SchemaWalk:
    """Walk over one document."""

    def __init__(self, origin: ResourceOrigin) -> None:
        self.origin = origin
        self.errors: list[ConfigurationError] = []

    def complain(self, path: Path, message: str) -> _InvalidValue:
        """Add an error at a path."""
        self.errors.append(ConfigurationError(self.origin.source, self.origin.line(path), path_text(path), message))
        return _WRONG

    def kind(self, document: dict[str, Any], kinds: ResourceKinds) -> ResourceKind | None:
        """Return the kind of the document; None, with an error, when it is missing or unknown."""
        word = document.get("kind")
        found = kinds.get(word)
        if word is None:
            self.complain((), f'"kind" is missing; known: {", ".join(kinds.names)}')
        elif found is None:
            self.complain(("kind",), f'unknown kind "{word}"{suggestion(str(word), kinds.names)}')
        return found

    def version(self, document: dict[str, Any], kind: ResourceKind) -> None:
        """Check that the apiVersion is one of this kind."""
        allowed = " or ".join(kind.versions)
        if "apiVersion" not in document:
            self.complain((), f'"apiVersion" is missing: {allowed}')
        elif document["apiVersion"] not in kind.versions:
            self.complain(("apiVersion",), f'"{document["apiVersion"]}" is not {allowed}')

    def unknown(self, value: dict[str, Any], known: Iterable[str], path: Path) -> None:
        """Add an error for every unknown key."""
        names = list(known)
        for key in value:
            if key not in names:
                self.complain((*path, key), f'unknown field "{key}"{suggestion(key, names)}')

    def metadata(self, document: dict[str, Any], kind: ResourceKind) -> object:
        """Return the document's metadata, with the kind's default name if it has none."""
        given = document.get("metadata")
        if kind.default_name and isinstance(given, dict | None):
            document = {"metadata": {"name": kind.default_name, **(given or {})}}
        return self.part(document, "metadata", Metadata)

    def part(self, document: dict[str, Any], key: str, type_: type[ResourcePart]) -> object:
        """Return `metadata` or `spec` of the document."""
        if key not in document:
            return self.complain((), f'"{key}" is missing')
        value = document[key]
        return self.value({} if value is None else value, type_of(type_), (key,))

    def value(self, value: Any, type_: inspect.Type, path: Path) -> Any:
        """Return the converted value, or `_WRONG` with errors added."""
        type_, extra, _ = marked(type_)
        reader = reader_of(extra)
        if reader is not None:
            return self._read(value, reader, path)
        if isinstance(type_, inspect.UnionType):
            return None if value is None else self.value(value, alternative(type_), path)
        return _VISITORS[type(type_)](self, value, type_, path)

    def _read(self, value: Any, reader: FieldReader, path: Path) -> Any:
        if isinstance(value, bool) or not isinstance(value, reader.types):
            expected = " or ".join(dict.fromkeys(_WORDS[type_] for type_ in reader.types))
            found = _no_text(value) if reader.types == (str,) else _word(value)
            return self.complain(path, f"expected {expected}, not {found}")
        try:
            return reader.read(value)
        except ValueError as why:
            return self.complain(path, str(why))

    def struct(self, value: Any, type_: inspect.StructType, path: Path) -> Any:
        """Convert a mapping with the fields of a part."""
        fields: dict[str, Any] = {}
        self._mapping(value, tree_of(type_.cls), path, fields)
        return _WRONG if any(item is _WRONG for item in fields.values()) else type_.cls(**fields)

    def _mapping(self, value: Any, tree: Tree, path: Path, fields: dict[str, Any]) -> None:
        """Convert the fields of a mapping and of the mappings in it."""
        if not isinstance(value, dict):
            fields[""] = self.complain(path, f"expected a mapping, not {_word(value)}")
            return
        self.unknown(value, tree, path)
        for key, field in tree.items():
            given = value.get(key)
            if isinstance(field, dict):
                self._mapping({} if given is None else given, field, (*path, key), fields)
            elif key in value:
                fields[field.attribute] = self.value(given, field.type, (*path, key))
            elif field.required:
                fields[field.attribute] = self.complain(path, f'"{key}" is missing')

    def sequence(self, value: Any, type_: inspect.VarTupleType, path: Path) -> Any:
        """Convert a sequence with elements of one type."""
        if not isinstance(value, list):
            return self.complain(path, f"expected a list, not {_word(value)}")
        if type_.min_length and len(value) < type_.min_length:
            return self.complain(path, f"expected at least {type_.min_length}")
        items = [self.value(item, type_.item_type, (*path, i)) for i, item in enumerate(value)]
        return _WRONG if any(item is _WRONG for item in items) else tuple(items)

    def dict(self, value: Any, type_: inspect.DictType, path: Path) -> Any:
        """Convert a mapping with free keys and values of one type."""
        if not isinstance(value, dict):
            return self.complain(path, f"expected a mapping, not {_word(value)}")
        items = {key: self.value(item, type_.value_type, (*path, key)) for key, item in value.items()}
        return _WRONG if any(item is _WRONG for item in items.values()) else items

    def text(self, value: Any, type_: inspect.StrType, path: Path) -> Any:
        """Check text and its limits."""
        if not isinstance(value, str):
            return self.complain(path, f"expected text, not {_no_text(value)}")
        if type_.min_length and len(value) < type_.min_length:
            return self.complain(path, "must not be empty")
        if type_.max_length is not None and len(value) > type_.max_length:
            return self.complain(path, f"longer than {type_.max_length} characters")
        # Unlike in a JSON schema (ECMA 262), `$` also matches before a line break at the end.
        if type_.pattern and (not re.search(type_.pattern, value) or value.endswith("\n")):
            return self.complain(path, f'"{value}" is not a name; allowed: letters and digits, and between them . - _')
        return value

    def number(self, value: Any, type_: inspect.IntType | inspect.FloatType, path: Path) -> Any:
        """Check a number and its limits."""
        whole = isinstance(type_, inspect.IntType)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            return self.complain(path, f"expected a {'whole ' if whole else ''}number, not {_word(value)}")
        if type_.gt is not None and not value > type_.gt:
            return self.complain(path, f"expected a {'whole ' if whole else ''}number above {type_.gt:g}, not {value}")
        if (type_.ge is not None and value < type_.ge) or (type_.le is not None and value > type_.le):
            lowest = type_.ge if type_.ge is not None else type_.gt + 1 if whole and type_.gt is not None else 0
            upper = f" to {type_.le:g}" if type_.le is not None else " or more"
            return self.complain(path, f"{value} is out of range: {lowest:g}{upper}")
        return value if whole else float(value)

    def truth(self, value: Any, _type: inspect.BoolType, path: Path) -> Any:
        """Check a boolean."""
        return value if isinstance(value, bool) else self.complain(path, f"expected true or false, not {_word(value)}")

    def word(self, value: Any, type_: inspect.EnumType, path: Path) -> Any:
        """Convert a word to its enumeration."""
        known = [member.value for member in type_.cls]
        if value in known:
            return type_.cls(value)
        return self.complain(path, f'"{value}" is not one of {", ".join(known)}{_meant(value, known)}')

    def anything(self, value: Any, _type: inspect.AnyType, _path: Path) -> Any:
        """Return any value, which is checked later."""
        return value


def _meant(value: object, known: Iterable[str]) -> str:
    text = suggestion(str(value), known)
    return text if "did you mean" in text else ""


_VISITORS: Final[dict[type, Callable[[_SchemaWalk, Any, Any, Path], Any]]] = {
    inspect.StructType: _SchemaWalk.struct,
    inspect.VarTupleType: _SchemaWalk.sequence,
    inspect.DictType: _SchemaWalk.dict,
    inspect.StrType: _SchemaWalk.text,
    inspect.IntType: _SchemaWalk.number,
    inspect.FloatType: _SchemaWalk.number,
    inspect.BoolType: _SchemaWalk.truth,
    inspect.EnumType: _SchemaWalk.word,
    inspect.AnyType: _SchemaWalk.anything,
}

_WORDS: Final[dict[type, str]] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
    type(None): "nothing",
}


def _word(value: object) -> str:
    """Describe a value for an error."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 40 else "text"
    if isinstance(value, int | float):
        return str(value)
    return _WORDS.get(type(value), type(value).__name__)


def _no_text(value: object) -> str:
    """Describe a value that is not text. Numbers are not quoted: one may be a password without its quotes."""
    if isinstance(value, dict | list | None):
        return _word(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{'a number' if number else _word(value)}; put it in quotes if text is meant"
