"""Errors of a configuration, with file, line and path."""

from __future__ import annotations

import msgspec

Path = tuple[str | int, ...]
"""Path of a value in a document: ``("spec", "connectors", 0, "name")``."""


class ResourceOrigin(msgspec.Struct, frozen=True):
    """Source of a resource: the file's name and the line of every path in it (``("spec", "address")`` → 4)."""

    source: str
    lines: dict[Path, int] = {}

    def line(self, path: Path) -> int:
        """Return the line of a path, or of its nearest enclosing path with a line; 0 without one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 0


class ConfigurationError(msgspec.Struct, frozen=True, order=True):
    """One error of a configuration and its place. `line` counts from 1; 0 for the whole file."""

    source: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class ConfigurationRejected(ValueError):
    """A configuration with errors, of which nothing is applied."""

    def __init__(self, errors: list[ConfigurationError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors


def path_text(path: Path) -> str:
    """Format ``("spec", "connectors", 0, "name")`` as ``spec.connectors[0].name``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
