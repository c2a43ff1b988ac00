"""Configuration file of a gateway: JSON with a format number, replaced atomically, private for its passwords."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bridge.durable_file import replace_file, sync_path

Content = TypeVar("Content", bound=msgspec.Struct)
Mark = tuple[int, int, int]
"""Inode, modification time and size, which change with the content."""


class RepositoryError(Exception):
    """The file cannot be read or written; the message has the reason and the next step."""


class _Head(msgspec.Struct):
    format: int


class ConfigurationFile(Generic[Content]):
    """File with one struct as content; its field `format` is the format number."""

    def __init__(self, path: Path, content: type[Content], layout: int, *, damaged: str) -> None:
        """`layout`: highest format number that this program supports. `damaged`: next step for an unreadable file."""
        self.path = path
        self._content = content
        self._layout = layout
        self._damaged = damaged

    def mark(self) -> Mark | None:
        """Return the mark, or None if the file is missing. Raises `RepositoryError`."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as why:
            raise self.failed("read", why) from why
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    def read(self) -> Content | None:
        """Return the content, or None if the file is missing. Raises `RepositoryError`."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as why:
            raise self.failed("read", why) from why
        try:
            made_by = msgspec.json.decode(data, type=_Head).format
            if made_by > self._layout:
                raise RepositoryError(
                    f"{self.path} has format {made_by}, but this program supports up to {self._layout}: a newer "
                    "program made it; run the newer one, or apply the configuration again in another data directory"
                )
            return msgspec.json.decode(data, type=self._content)
        except msgspec.DecodeError as why:
            raise RepositoryError(f"{self.path} is damaged ({why}): {self._damaged}; no messages are in it") from why

    def write(self, content: Content) -> None:
        """Replace the file; it is on disk on return. Raises `RepositoryError`; the file is then unchanged."""
        try:
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        except OSError as why:
            raise self.failed("write", why) from why

    def delete(self) -> None:
        """Delete the file if it is there. Raises `RepositoryError`."""
        try:
            self.path.unlink(missing_ok=True)
            if self.path.parent.is_dir():
                sync_path(self.path.parent)
        except OSError as why:
            raise self.failed("delete", why) from why

    def failed(self, verb: str, why: OSError) -> RepositoryError:
        """Return the error for a failed operation."""
        return RepositoryError(f"cannot {verb} {why.filename or self.path}: {why.strerror or why}")
