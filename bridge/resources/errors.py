"""What is wrong with a configuration, and where: file, line and path."""

from __future__ import annotations

import msgspec

Path = tuple[str | int, ...]
"""The way to a value in a document: ``("spec", "connectors", 0, "name")``."""


class ResourceOrigin(msgspec.Struct, frozen=True):
    """Where a resource was read: a file's name and the line of every path in it (``("spec", "address")`` → 4)."""

    source: str
    lines: dict[Path, int] = {}

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest thing around it that has one; 0 when nothing has."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 0


class ConfigurationError(msgspec.Struct, frozen=True, order=True):
    """One thing wrong with a configuration: where, and what. `line` counts from 1; 0 for the file as a whole."""

    source: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class ConfigurationRejected(ValueError):
    """A configuration with errors in it. Nothing of it is in force."""

    def __init__(self, errors: list[ConfigurationError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors


def path_text(path: Path) -> str:
    """``("spec", "connectors", 0, "name")`` as ``spec.connectors[0].name``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
